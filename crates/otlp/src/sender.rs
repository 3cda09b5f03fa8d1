// SPDX-License-Identifier: Apache-2.0
/*!
Sends requests to a collector over HTTP, behind a queue.

Whoever measures hands over encoded requests and goes on; a collector that is slow, down or in error
costs it nothing. The queue is bounded: when it is full the oldest request goes, and is counted. A
request is tried again, with longer pauses, as long as the answer may change (OTLP specification
1.9, "OTLP/HTTP Response").
*/

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

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    /// The collector's URL, path included.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// Bytes of requests that wait at most.
    pub queue_bytes: usize,
}

/// An HTTP client for a [`Sender`], for its builder to add to.
#[must_use]
pub fn client(
    timeout: Duration,
    user_agent: &str,
) -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .user_agent(user_agent)
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
    target: Target,
    agent: ureq::Agent,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
    refused: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("target", &self.target).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The thread has one in its hands.
    sending: bool,
    /// Somebody waits for the end: no more long pauses.
    hurry: bool,
}

/// What became of a request.
enum Answer {
    Taken,
    Refused(String),
    /// To be sent again, after the pause that the collector asks for.
    Later(Option<Duration>, String),
}

impl Sender {
    /// A sender, and what its thread runs, for ever. `tell` hears why it goes wrong, once for each
    /// time that it goes wrong after it went well.
    pub fn new(
        target: Target,
        agent: ureq::Agent,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Sender, impl FnOnce() + Send + 'static) {
        let shared = Arc::new(Shared {
            target,
            agent,
            tell: Box::new(tell),
            state: Mutex::default(),
            changed: Condvar::new(),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let body = Arc::clone(&shared);
        (Sender(shared), move || body.run())
    }

    /// Takes a request; never waits for the network.
    pub fn send(&self, request: Vec<u8>) {
        let mut state = self.0.lock();
        state.bytes += request.len();
        state.waiting.push_back(request);
        while state.waiting.len() > QUEUE || state.bytes > self.0.target.queue_bytes {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.bytes -= oldest.len();
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// What did not arrive so far.
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

    fn run(&self) {
        let (mut pause, mut told) = (FIRST_PAUSE, false);
        loop {
            let request = self.take();
            match self.post(&request) {
                Answer::Taken => (pause, told) = (FIRST_PAUSE, false),
                Answer::Refused(why) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
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

    fn tell_once(&self, told: &mut bool, why: &str) {
        if !std::mem::replace(told, true) {
            (self.tell)(why);
        }
    }

    /// Waits for a request.
    fn take(&self) -> Vec<u8> {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                state.bytes -= request.len();
                state.sending = true;
                return request;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request comes first again, unless the queue is full of newer ones.
    fn put_back(&self, request: Vec<u8>) {
        let mut state = self.lock();
        state.sending = false;
        if state.waiting.len() < QUEUE && state.bytes + request.len() <= self.target.queue_bytes {
            state.bytes += request.len();
            state.waiting.push_front(request);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
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

    fn post(&self, request: &[u8]) -> Answer {
        let mut post = self.agent.post(&self.target.url).content_type("application/x-protobuf");
        for (name, value) in &self.target.headers {
            post = post.header(name, value);
        }
        let answer = match post.send(request) {
            Ok(answer) => answer,
            // What the URL or the headers make impossible stays so.
            Err(error @ (ureq::Error::BadUri(_) | ureq::Error::Http(_))) => {
                return Answer::Refused(error.to_string());
            }
            Err(error) => return Answer::Later(None, error.to_string()),
        };
        let status = answer.status();
        match status.as_u16() {
            200..=299 => Answer::Taken,
            429 | 502 | 503 | 504 => {
                let after = answer.headers().get("retry-after");
                let seconds = after.and_then(|value| value.to_str().ok()?.parse().ok());
                Answer::Later(seconds.map(Duration::from_secs), status.to_string())
            }
            _ => Answer::Refused(status.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
