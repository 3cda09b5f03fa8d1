// SPDX-License-Identifier: Apache-2.0
/*!
Sends OTLP requests over HTTP from a thread of its own, so that a collector that is slow or down
does not stop the reading.

The queue is bounded; when it is full the oldest request goes, and is counted. A request is tried
again, with longer pauses, as long as the answer may change (OTLP specification, "OTLP/HTTP
Response").
*/

use super::target::Target;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Requests that wait at most.
const QUEUE: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Hands requests to the sending thread.
#[derive(Debug)]
pub(super) struct Sender(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    target: Target,
    agent: ureq::Agent,
    state: Mutex<State>,
    changed: Condvar,
    failed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// The thread has one in its hands.
    sending: bool,
    /// The agent ends: no more pauses.
    hurry: bool,
}

enum Answer {
    Taken,
    Refused(String),
    /// To be sent again, after the pause that the collector asks for.
    Later(Option<Duration>, String),
}

impl Sender {
    /// Starts the thread. The line says why not.
    pub(super) fn start(target: Target) -> Result<Sender, String> {
        let agent = client(&target)?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { target, agent, state, changed, failed: AtomicU64::new(0) });
        let body = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("otlp".into())
            .spawn(move || body.run())
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(Sender(shared))
    }

    /// Takes a request; never waits for the network.
    pub(super) fn send(&self, request: Vec<u8>) {
        let mut state = self.0.lock();
        state.waiting.push_back(request);
        if state.waiting.len() > QUEUE {
            state.waiting.pop_front();
            self.0.failed.fetch_add(1, Ordering::Relaxed);
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Requests that were refused, or for which there was no more room.
    pub(super) fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    /// Waits until everything is sent, or for `patience`. Returns how many requests are left.
    pub(super) fn flush(&self, patience: Duration) -> usize {
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
        state.waiting.len() + usize::from(state.sending)
    }
}

fn client(target: &Target) -> Result<ureq::Agent, String> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = &target.certificate {
        let pem =
            std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        if certificates.is_empty() {
            return Err(format!("no certificate (PEM) in {}", path.display()));
        }
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
    }
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(target.timeout))
        .http_status_as_error(false)
        .user_agent(concat!("ncclscope-agent/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls.build())
        .build();
    Ok(ureq::Agent::new_with_config(config))
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
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    self.tell_once(&mut told, &why);
                }
                Answer::Later(asked, why) => {
                    self.tell_once(&mut told, &why);
                    self.put_back(request);
                    self.rest(asked.unwrap_or(pause).min(LONGEST_PAUSE));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            self.lock().sending = false;
            self.changed.notify_all();
        }
    }

    /// One line for each time that it goes wrong after it went well.
    fn tell_once(&self, told: &mut bool, why: &str) {
        if !std::mem::replace(told, true) {
            crate::failure::warn(format_args!("cannot export to {}: {why}", self.target.url));
        }
    }

    /// Waits for a request.
    fn take(&self) -> Vec<u8> {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                state.sending = true;
                return request;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request comes first again, unless the queue is full of newer ones.
    fn put_back(&self, request: Vec<u8>) {
        let mut state = self.lock();
        if state.waiting.len() < QUEUE {
            state.waiting.push_front(request);
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits before the next try; a moment only if the agent ends.
    fn rest(&self, pause: Duration) {
        let end = Instant::now() + pause;
        let mut state = self.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if state.hurry {
                drop(state);
                return std::thread::sleep(left.min(Duration::from_millis(50)));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
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
