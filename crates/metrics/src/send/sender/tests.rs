// SPDX-License-Identifier: Apache-2.0
//! Tests senders against collectors of all kinds, including hostile ones.

use super::*;
use crate::send::http::{Http, Target, client};
use crate::send::resolver::Here;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use ureq::unversioned::transport::DefaultConnector;

fn target(listener: &TcpListener) -> Target {
    Target {
        url: format!("http://{}/v1/metrics", listener.local_addr().unwrap()),
        headers: vec![("x-key".into(), "secret".into())],
    }
}

fn start(target: Target) -> Sender {
    start_telling(target, Duration::from_secs(5)).0
}

/// What a sender reported.
type Told = Arc<Mutex<Vec<String>>>;

fn start_telling(target: Target, timeout: Duration) -> (Sender, Told) {
    start_with((target, 16 << 20), timeout)
}

fn start_with((target, queue_bytes): (Target, usize), timeout: Duration) -> (Sender, Told) {
    let told = Told::default();
    let tell = Arc::clone(&told);
    let client = client(timeout, "test").build();
    let tell = move |why: &str| tell.lock().unwrap().push(why.into());
    let (sender, body) = Sender::over(Http::new(target, client), queue_bytes, tell);
    std::thread::spawn(body);
    (sender, told)
}

/// Calls `farewell` until everything is sent or `patience` has passed; returns the number of
/// requests that are left.
fn flush(sender: &Sender, patience: Duration) -> usize {
    let end = Instant::now() + patience;
    loop {
        let left = sender.farewell_within(patience);
        if left == 0 || Instant::now() >= end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads one request; returns its head and its body.
fn request(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Answers each request with the next status; returns the bodies in order.
fn collector(listener: TcpListener, answers: &'static [&'static str]) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    let mut answers = answers.iter();
    while answers.len() > 0 {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some((head, body)) = request(&stream) {
            assert!(head.starts_with("post /v1/metrics "), "{head}");
            assert!(head.contains("x-key: secret"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf"), "{head}");
            bodies.push(body);
            let Some(answer) = answers.next() else { return bodies };
            write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").unwrap();
            if answers.len() == 0 {
                return bodies;
            }
        }
    }
    bodies
}

#[test]
fn requests_come_in_order_and_are_sent_again_where_that_may_help() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = start(target(&listener));
    let answers = &["200 OK", "503 Busy\r\nRetry-After: 0", "200 OK", "400 Bad Request", "200 OK"];
    let collector = std::thread::spawn(move || collector(listener, answers));
    for body in [vec![1], vec![2], vec![3], vec![4]] {
        sender.send(body);
    }
    flush(&sender, Duration::from_secs(30));
    assert_eq!(collector.join().unwrap(), [vec![1], vec![2], vec![2], vec![3], vec![4]]);
    assert_eq!(sender.lost(), Lost { dropped: 0, refused: 1 }, "one was refused");
}

#[test]
fn a_collector_that_is_down_costs_the_oldest_requests_and_they_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target(&listener);
    drop(listener);
    let sender = start(target);
    let more = 10;
    for body in 0..QUEUE + more {
        sender.send(vec![u8::try_from(body).unwrap()]);
    }
    flush(&sender, Duration::from_millis(100));
    let Lost { dropped, refused } = sender.lost();
    // The thread may be sending one more.
    assert!((more as u64 - 1..=more as u64).contains(&dropped), "{dropped}");
    assert_eq!(refused, 0);
}

#[test]
fn what_is_told_by_requests_that_are_lost_is_told_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target(&listener);
    drop(listener);
    let sender = start(target);
    // As with deltas, each request reports the losses since the previous one.
    let (mut told, requests) = (0, 5 * QUEUE as u64);
    let mut tells = Vec::new();
    for _ in 0..requests {
        let dropped = sender.lost().dropped - told;
        told += dropped;
        tells.push(dropped);
        sender.send_what_tells(vec![0], Lost { dropped, refused: 0 });
    }
    flush(&sender, Duration::from_millis(100));
    let untold = sender.lost().dropped - told;
    let waiting = sender.0.lock().waiting.iter().map(|r| r.tells.dropped).sum::<u64>();
    let held = sender.0.lock().waiting.len() as u64;
    // The thread may be sending one more.
    assert!((requests - held - 1..=requests - held).contains(&(untold + waiting)), "{tells:?}");
}

#[test]
fn a_collector_that_comes_back_gets_what_the_queue_held() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (target, address) = (target(&listener), listener.local_addr().unwrap());
    drop(listener);
    let sender = start(target);
    for body in 0..5 {
        sender.send(vec![body]);
    }
    flush(&sender, Duration::from_millis(200));
    let listener = TcpListener::bind(address).unwrap();
    let collector = std::thread::spawn(move || collector(listener, &["200 OK"; 5]));
    flush(&sender, Duration::from_secs(30));
    assert_eq!(collector.join().unwrap(), [[0], [1], [2], [3], [4]]);
    assert_eq!(sender.lost(), Lost::default());
}

#[test]
fn a_request_that_cannot_be_made_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut target = target(&listener);
    target.headers = vec![("not a name".into(), "x".into())];
    let sender = start(target);
    sender.send(vec![1]);
    flush(&sender, Duration::from_secs(30));
    assert_eq!(sender.lost(), Lost { dropped: 0, refused: 1 });
}

#[test]
fn what_is_told_of_a_url_has_no_password() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for url in ["me:secret@c:1", "c://me:secret@c", "http://me:secret@", "//me:secret@c/"] {
        let target = Target { url: url.into(), ..target(&listener) };
        let (sender, told) = start_telling(target, Duration::from_secs(5));
        sender.send(vec![1]);
        flush(&sender, Duration::from_secs(30));
        let told = told.lock().unwrap();
        assert!(told.len() == 1 && !told[0].contains("secret"), "{url}: {told:?}");
    }
}

/// Accepts everything with a remark.
struct Remarks(u64);

impl Transport for Remarks {
    fn post(&self, _: &[u8]) -> Answer {
        Answer::Remarked(self.0, "too\nold".into())
    }
}

#[test]
fn what_a_collector_says_of_requests_that_it_took_is_told_once_and_what_it_lost_counted() {
    for (rejected, refused) in [(7, 3), (0, 0)] {
        let told = Told::default();
        let tell = Arc::clone(&told);
        let tell = move |why: &str| tell.lock().unwrap().push(why.into());
        let (sender, body) = Sender::over(Remarks(rejected), 1 << 20, tell);
        std::thread::spawn(body);
        let tells = Lost { dropped: 5, refused: 5 };
        (0..3).for_each(|_| sender.send_what_tells(vec![0], tells));
        assert_eq!(flush(&sender, Duration::from_secs(30)), 0);
        assert_eq!(sender.lost(), Lost { dropped: 0, refused });
        assert_eq!(*told.lock().unwrap(), ["too\\nold"]);
    }
}

/// Runs a collector: `answer` is called with each connection after its request was read.
fn played(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target(&listener);
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                if request(&stream).is_some() {
                    answer(stream);
                }
            });
        }
    });
    target
}

fn say(mut stream: &TcpStream, answer: &str) {
    // The other side may have closed the connection.
    let _ = stream.write_all(answer.as_bytes());
}

fn wait_for(what: &str, is_true: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_collector_that_wants_no_pause_gets_one() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let (sender, told) = start_telling(
        played(move |stream| {
            count.fetch_add(1, Ordering::Relaxed);
            say(&stream, "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n");
        }),
        Duration::from_secs(5),
    );
    sender.send(vec![1]);
    std::thread::sleep(Duration::from_secs(2));
    let requests = requests.load(Ordering::Relaxed);
    assert!((2..=3).contains(&requests), "{requests} requests in 2 s");
    assert_eq!(*told.lock().unwrap(), ["503 Service Unavailable"]);
}

#[test]
fn a_pause_without_end_is_cut_and_told() {
    let (sender, told) = start_telling(
        played(|stream| {
            let never = u64::MAX;
            let answer = format!("HTTP/1.1 429 No\r\nRetry-After: {never}\r\n");
            say(&stream, &(answer + "Content-Length: 0\r\n\r\n"));
        }),
        Duration::from_secs(5),
    );
    sender.send(vec![1]);
    wait_for("it is told", || told.lock().unwrap().len() == 2);
    let told = told.lock().unwrap();
    assert!(told[1].starts_with("the collector asks for a pause of 18446744073709551615 s"));
}

/// A collector that requests a pause once, and accepts everything afterwards.
fn asks_once(seconds: u64) -> (Sender, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let sender = start(played(move |stream| {
        let answer = match count.fetch_add(1, Ordering::Relaxed) {
            0 => format!("HTTP/1.1 429 No\r\nRetry-After: {seconds}\r\n"),
            _ => "HTTP/1.1 200 OK\r\n".into(),
        };
        say(&stream, &(answer + "Content-Length: 0\r\nConnection: close\r\n\r\n"));
    }));
    sender.send(vec![1]);
    wait_for("it asks for a pause", || sender.0.lock().failures == 1);
    (sender, requests)
}

#[test]
fn no_farewell_comes_before_the_time_that_a_collector_asks_for() {
    let (sender, requests) = asks_once(100);
    let start = Instant::now();
    assert_eq!(sender.farewell_within(Duration::from_secs(5)), 1);
    assert_eq!(sender.farewell(), 1);
    assert!(start.elapsed() < Duration::from_secs(2), "there is nothing to wait for");
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    let (sender, requests) = asks_once(2);
    let start = Instant::now();
    assert_eq!(sender.farewell_within(Duration::from_secs(20)), 0);
    assert!(start.elapsed() > Duration::from_secs(1), "it may have asked a moment before");
    assert_eq!(requests.load(Ordering::Relaxed), 2);
}

#[test]
fn a_farewell_brings_what_a_collector_takes_at_the_second_try() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let sender = start(played(move |stream| {
        // `farewell` is called before the first answer.
        std::thread::sleep(Duration::from_millis(300));
        let answer = ["503 Busy\r\nRetry-After: 0", "200 OK"];
        let answer = answer[count.fetch_add(1, Ordering::Relaxed).min(1)];
        say(
            &stream,
            &format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        );
    }));
    sender.send(vec![1]);
    assert_eq!(sender.farewell_within(Duration::from_secs(20)), 0);
    assert_eq!(requests.load(Ordering::Relaxed), 2);
}

#[test]
fn a_farewell_tries_twice_more_at_most() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let sender = start(played(move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        say(&stream, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }));
    sender.send(vec![1]);
    wait_for("it has failed", || sender.0.lock().failures == 1);
    assert_eq!(sender.farewell_within(Duration::from_secs(20)), 1);
    assert_eq!(requests.load(Ordering::Relaxed), 3);
}

/// The duration of a `farewell`, and the number of requests that are left.
fn farewell(sender: &Sender) -> (Duration, usize) {
    let start = Instant::now();
    let left = sender.farewell();
    (start.elapsed(), left)
}

#[test]
fn a_farewell_brings_what_waits_to_a_collector_that_is_well() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = start(target(&listener));
    let collector = std::thread::spawn(move || collector(listener, &["200 OK"; 3]));
    [1, 2, 3].into_iter().for_each(|body| sender.send(vec![body]));
    let (took, left) = farewell(&sender);
    assert_eq!(left, 0, "{took:?}");
    assert_eq!(collector.join().unwrap(), [[1], [2], [3]]);
    assert_eq!(farewell(&sender).1, 0, "there is nothing to wait for");
}

#[test]
fn a_farewell_waits_for_no_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target(&listener);
    drop(listener);
    let sender = start(target);
    sender.send(vec![1]);
    wait_for("it was refused", || sender.0.lock().failures > 0);
    sender.send(vec![2]);
    let (took, left) = farewell(&sender);
    assert!(took < ILL_PATIENCE && left == 2, "{took:?} {left}");
    let failures = sender.0.lock().failures;
    assert!(failures <= 3, "{failures} tries: once more, and once again if it came in between");
}

#[test]
fn a_farewell_to_a_black_hole_is_short() {
    let swallow = |stream: TcpStream| {
        std::thread::sleep(Duration::from_secs(60));
        drop(stream);
    };
    let (sender, _) = start_telling(played(swallow), Duration::from_secs(2));
    sender.send(vec![1]);
    let (took, left) = farewell(&sender);
    assert!(took < NEW_PATIENCE * 3 / 2 && left == 1, "it was never asked: {took:?} {left}");
    std::thread::sleep(WELL_PATIENCE);
    let (took, _) = farewell(&sender);
    assert!(took < ILL_PATIENCE * 2, "it owes an answer: {took:?}");
    wait_for("its time is over", || sender.0.lock().health == Health::Ill);
    let (took, _) = farewell(&sender);
    assert!(took < ILL_PATIENCE * 2, "it owed an answer: {took:?}");
}

#[test]
fn a_farewell_to_a_slow_collector_is_short_and_it_has_the_request() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&bodies);
    let sender = start(played(move |stream| {
        if count.fetch_add(1, Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_secs(3));
        }
        say(&stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }));
    sender.send(vec![1]);
    wait_for("it is well", || sender.0.lock().health == Health::Well);
    sender.send(vec![2]);
    let (took, left) = farewell(&sender);
    assert!(took < WELL_PATIENCE * 3 / 2 && left == 1, "{took:?} {left}");
    assert_eq!(bodies.load(Ordering::Relaxed), 2, "it has it, and has not answered");
}

/// A transport that panics in some of its posts.
struct Frail {
    posts: usize,
    is_broken: AtomicU64,
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Transport for Frail {
    fn post(&self, request: &[u8]) -> Answer {
        assert_eq!(self.is_broken.load(Ordering::Relaxed), 0, "nothing renewed it");
        if request.len() <= self.posts {
            self.is_broken.store(1, Ordering::Relaxed);
            // As a resolver that cannot start a thread.
            std::panic::panic_any("a transport's defect");
        }
        self.taken.lock().unwrap().push(request.to_vec());
        Answer::Taken(Vec::new())
    }

    fn renew(&mut self) {
        self.is_broken.store(0, Ordering::Relaxed);
    }
}

#[test]
fn a_panic_costs_a_request_and_not_the_thread() {
    let (taken, told) = (Arc::default(), Told::default());
    let frail = Frail { posts: 2, is_broken: AtomicU64::new(0), taken: Arc::clone(&taken) };
    let tell = Arc::clone(&told);
    let (sender, body) =
        Sender::over(frail, 1 << 20, move |why| tell.lock().unwrap().push(why.into()));
    std::thread::spawn(body);
    [1, 2, 3, 4].into_iter().for_each(|size| sender.send(vec![0; size]));
    assert_eq!(flush(&sender, Duration::from_secs(30)), 0);
    assert_eq!(sender.lost(), Lost { dropped: 0, refused: 2 });
    assert_eq!(taken.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(*told.lock().unwrap(), ["the sending of a request panicked"]);
}

#[test]
fn names_are_looked_up_without_a_thread() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut by_name = target(&listener);
    by_name.url = format!("http://localhost:{port}/v1/metrics");
    // A resolver with its own thread gives up after a nanosecond; the transport then reports what
    // took too long.
    let agent = |at| ureq::Agent::with_parts(at, DefaultConnector::default(), Here);
    let config = ureq::Agent::config_builder().timeout_resolve(Some(Duration::from_nanos(1)));
    let collector = std::thread::spawn(move || collector(listener, &["200 OK"]));
    let post = agent(config.build()).post(&by_name.url).content_type("application/x-protobuf");
    let error = post.header("x-key", "secret").send(&[1u8][..]).err();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(collector.join().unwrap(), [[1]]);
}

#[test]
fn a_request_larger_than_the_queue_may_be_is_counted_and_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target(&listener);
    drop(listener);
    let (sender, told) = start_with((target, 10), Duration::from_secs(5));
    sender.send(vec![0; 4]);
    sender.send(vec![0; 11]);
    assert_eq!(sender.lost(), Lost { dropped: 1, refused: 0 }, "the small one stays");
    let large = "a request of 11 bytes is given up: 10 is the most";
    assert!(told.lock().unwrap().iter().any(|line| line == large));
}

/// The time, losses and messages of a sender of one request to a collector, within `timeout`.
fn endure(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> (Duration, Lost, Vec<String>) {
    let timeout = Duration::from_secs(1);
    let (sender, told) = start_telling(played(answer), timeout);
    let start = Instant::now();
    sender.send(vec![1]);
    wait_for("there is an end", || sender.0.lock().health != Health::New);
    let told = told.lock().unwrap().clone();
    (start.elapsed(), sender.lost(), told)
}

#[test]
fn a_redirect_is_refused_and_the_other_place_hears_nothing() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = elsewhere.local_addr().unwrap();
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let (_, lost, told) = endure(move |stream| {
            let head = format!("HTTP/1.1 {status}\r\nLocation: http://{place}/v1/metrics\r\n");
            say(&stream, &(head + "Content-Length: 0\r\n\r\n"));
        });
        assert_eq!(lost, Lost { dropped: 0, refused: 1 }, "{told:?}");
        assert!(told[0].ends_with("redirects are not followed"), "{told:?}");
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "the headers are for one place");
}

#[test]
fn answers_without_end_cost_no_more_than_the_time_of_a_request() {
    let endless = |head: &'static str, more: &'static str| {
        move |mut stream: TcpStream| {
            say(&stream, head);
            let more = more.repeat(1000);
            while stream.write_all(more.as_bytes()).is_ok() {}
        }
    };
    let none = "HTTP/1.1 200 OK\r\n";
    let body = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (name, head, more, is_taken) in [
        ("headers", none, "x-more: of this\r\n", false),
        ("one header", "HTTP/1.1 200 OK\r\nx: ", "x", false),
        ("first line", "HTTP/1.1 200 ", "O", false),
        ("no HTTP", "", "hello ", false),
        ("early hints", "", "HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n", false),
        ("continue", "", "HTTP/1.1 100 Continue\r\n\r\n", false),
        ("body", body, "xxxxxxxx", true),
        ("chunks", chunked, "4\r\nabcd\r\n", true),
        ("empty chunk sizes", chunked, "0000", true),
    ] {
        let before = resident();
        let (took, lost, told) = endure(endless(head, more));
        assert!(took < Duration::from_millis(2500), "{name}: {took:?} {told:?}");
        assert_eq!((lost, told.is_empty()), (Lost::default(), is_taken), "{name}: {told:?}");
        assert!(told.len() <= 1, "{name}: {told:?}");
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 << 20, "{name}: {grown} bytes more");
    }
}

#[test]
fn collectors_that_fall_silent_cost_no_more_than_the_time_of_a_request() {
    let hold = || std::thread::sleep(Duration::from_secs(5));
    let silent = move |stream: TcpStream| {
        hold();
        drop(stream);
    };
    let half_closed = move |stream: TcpStream| {
        stream.shutdown(Shutdown::Write).unwrap();
        hold();
    };
    let deaf = move |stream: TcpStream| {
        stream.shutdown(Shutdown::Read).unwrap();
        say(&stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
        hold();
    };
    let drop_by_drop = |mut stream: TcpStream| {
        say(&stream, "HTTP/1.1 200 OK\r\nx: ");
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let took = [endure(silent).0, endure(half_closed).0, endure(deaf).0, endure(drop_by_drop).0];
    assert!(took.iter().all(|took| *took < Duration::from_millis(2500)), "{took:?}");
}

/// Resident memory of the process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
