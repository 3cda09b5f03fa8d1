// SPDX-License-Identifier: Apache-2.0
/*!
Sends requests to a collector, behind a queue.

Whoever measures hands over encoded requests and goes on; a collector that is slow, down or in error
costs it nothing. The queue is bounded: when it is full the oldest request goes, and is counted. A
request is tried again, with longer pauses, as long as the answer may change. The way to the
collector is a [`Transport`]'s: [`Http`], or one of the caller's.
*/

use crate::http::{Http, Target};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests that wait at most.
const QUEUE: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A pause once somebody waits for the queue to be empty.
const SHORT_PAUSE: Duration = Duration::from_millis(50);

/// The way to a collector. The sending thread owns it.
pub trait Transport: Send + 'static {
    /// Brings a request there. May take its time, but not for ever.
    fn post(&self, request: &[u8]) -> Answer;
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The collector has it; what it answers, or what of that is worth reading.
    Taken(Vec<u8>),
    /// It will never take it; the text says why.
    Refused(String),
    /// To be sent again, after the pause that the collector asks for; the text says why.
    Later(Option<Duration>, String),
}

/// Requests that did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The queue was full.
    pub dropped: u64,
    /// The collector refused them for good.
    pub refused: u64,
}

/// Hands requests to the sending thread.
#[derive(Debug)]
pub struct Sender(Arc<Shared>);

struct Shared {
    queue_bytes: usize,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
    refused: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

/// A request, and what nobody learns if it does not arrive.
#[derive(Debug)]
struct Request {
    body: Vec<u8>,
    tells: Lost,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    bytes: usize,
    /// The thread has one in its hands.
    sending: bool,
    /// Somebody waits for the end: no more long pauses.
    hurry: bool,
}

impl Sender {
    /// A sender over HTTP; as [`Sender::over`].
    pub fn new(
        target: Target,
        agent: ureq::Agent,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Sender, impl FnOnce() + Send + 'static) {
        let queue_bytes = target.queue_bytes;
        Sender::over(Http::new(target, agent), queue_bytes, tell)
    }

    /// A sender, and what its thread runs, for ever. Requests of `queue_bytes` in all wait at most.
    /// `tell` hears why it goes wrong, once for each time that it goes wrong after it went well.
    pub fn over(
        transport: impl Transport,
        queue_bytes: usize,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Sender, impl FnOnce() + Send + 'static) {
        let shared = Arc::new(Shared {
            queue_bytes,
            tell: Box::new(tell),
            state: Mutex::default(),
            changed: Condvar::new(),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let body = Arc::clone(&shared);
        (Sender(shared), move || body.run(&transport))
    }

    /// Takes a request; never waits for the network.
    pub fn send(&self, request: Vec<u8>) {
        self.send_what_tells(request, Lost::default());
    }

    /// The same for a request that is the only one to tell of `tells`: if it does not arrive,
    /// [`Sender::lost`] has them once more.
    pub fn send_what_tells(&self, body: Vec<u8>, tells: Lost) {
        let mut state = self.0.lock();
        state.bytes += body.len();
        state.waiting.push_back(Request { body, tells });
        while state.waiting.len() > QUEUE || state.bytes > self.0.queue_bytes {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.bytes -= oldest.body.len();
            self.0.count_dropped(&oldest);
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// What did not arrive so far, as a running total. What was told by requests that did not
    /// arrive either is in it again.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost {
            dropped: self.0.dropped.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }

    /// Waits until everything is sent, or for `patience`; pauses are cut short. Returns how many
    /// requests are left.
    pub fn flush(&self, patience: Duration) -> usize {
        let end = Instant::now() + patience;
        let mut state = self.0.lock();
        state.hurry = true;
        self.0.changed.notify_all();
        while state.sending || !state.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.hurry = false;
        state.waiting.len() + usize::from(state.sending)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, transport: &impl Transport) {
        let (mut pause, mut told) = (FIRST_PAUSE, false);
        loop {
            let request = self.take();
            match transport.post(&request.body) {
                Answer::Taken(_) => (pause, told) = (FIRST_PAUSE, false),
                Answer::Refused(why) => {
                    self.count(Lost { dropped: 0, refused: 1 }, request.tells);
                    self.tell_once(&mut told, &why);
                }
                Answer::Later(asked, why) => {
                    self.tell_once(&mut told, &why);
                    self.put_back(request);
                    self.rest(asked.unwrap_or(pause).min(LONGEST_PAUSE));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            self.lock().sending = false;
            self.changed.notify_all();
        }
    }

    fn count_dropped(&self, request: &Request) {
        self.count(Lost { dropped: 1, refused: 0 }, request.tells);
    }

    fn count(&self, lost: Lost, untold: Lost) {
        self.dropped.fetch_add(lost.dropped + untold.dropped, Ordering::Relaxed);
        self.refused.fetch_add(lost.refused + untold.refused, Ordering::Relaxed);
    }

    fn tell_once(&self, told: &mut bool, why: &str) {
        if !std::mem::replace(told, true) {
            (self.tell)(why);
        }
    }

    /// Waits for a request.
    fn take(&self) -> Request {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                state.bytes -= request.body.len();
                state.sending = true;
                return request;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request comes first again, unless the queue is full of newer ones.
    fn put_back(&self, request: Request) {
        let mut state = self.lock();
        state.sending = false;
        let size = request.body.len();
        if state.waiting.len() < QUEUE && state.bytes + size <= self.queue_bytes {
            state.bytes += size;
            state.waiting.push_front(request);
        } else {
            self.count_dropped(&request);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits before the next try.
    fn rest(&self, pause: Duration) {
        let end = Instant::now() + pause;
        let mut state = self.lock();
        loop {
            let most = if state.hurry { SHORT_PAUSE } else { pause };
            let left = end.saturating_duration_since(Instant::now()).min(most);
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::client;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn target(listener: &TcpListener) -> Target {
        Target {
            url: format!("http://{}/v1/metrics", listener.local_addr().unwrap()),
            headers: vec![("x-key".into(), "secret".into())],
            queue_bytes: 16 << 20,
        }
    }

    fn start(target: Target) -> Sender {
        let client = client(Duration::from_secs(5), "test").build();
        let (sender, body) = Sender::new(target, ureq::Agent::new_with_config(client), |_| {});
        std::thread::spawn(body);
        sender
    }

    /// Reads one request; its head and its body.
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

    /// Answers each request with the next status; what came, in order.
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
        let answers =
            &["200 OK", "503 Busy\r\nRetry-After: 0", "200 OK", "400 Bad Request", "200 OK"];
        let collector = std::thread::spawn(move || collector(listener, answers));
        for body in [vec![1], vec![2], vec![3], vec![4]] {
            sender.send(body);
        }
        sender.flush(Duration::from_secs(30));
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
        sender.flush(Duration::from_millis(100));
        let Lost { dropped, refused } = sender.lost();
        // One more may have been in the thread's hands meanwhile.
        assert!((more as u64 - 1..=more as u64).contains(&dropped), "{dropped}");
        assert_eq!(refused, 0);
    }

    #[test]
    fn what_is_told_by_requests_that_are_lost_is_told_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = target(&listener);
        drop(listener);
        let sender = start(target);
        // As a meter with deltas does: each request tells what was lost since the one before.
        let (mut told, requests) = (0, 5 * QUEUE as u64);
        let mut tells = Vec::new();
        for _ in 0..requests {
            let dropped = sender.lost().dropped - told;
            told += dropped;
            tells.push(dropped);
            sender.send_what_tells(vec![0], Lost { dropped, refused: 0 });
        }
        sender.flush(Duration::from_millis(100));
        let untold = sender.lost().dropped - told;
        let waiting = sender.0.lock().waiting.iter().map(|r| r.tells.dropped).sum::<u64>();
        let held = sender.0.lock().waiting.len() as u64;
        // One more may be in the thread's hands.
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
        sender.flush(Duration::from_millis(200));
        let listener = TcpListener::bind(address).unwrap();
        let collector = std::thread::spawn(move || collector(listener, &["200 OK"; 5]));
        sender.flush(Duration::from_secs(30));
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
        sender.flush(Duration::from_secs(30));
        assert_eq!(sender.lost(), Lost { dropped: 0, refused: 1 });
    }
}
