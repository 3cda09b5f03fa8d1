// SPDX-License-Identifier: Apache-2.0
/*!
Sends requests to a collector, through a queue.

The caller adds encoded requests and continues; it does not wait for a collector that is slow, down
or returns errors. The queue is bounded: when it is full, the oldest request is dropped and counted.
A request is retried, with growing pauses, while the error may be temporary. A [`Transport`]
delivers it. A transport that panics loses its request, and the thread continues.
*/

#[cfg(test)]
mod tests;

use super::pace::{LONGEST_ASKED, Pace};
use super::transport::{Answer, Transport};
use ncclscope_control::text::shown;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most requests in the queue.
const QUEUE: usize = 64;
/// Most different reasons that are reported until a request arrives.
const REASONS: usize = 8;

/// Time limit of [`Sender::farewell`] if the collector accepted or refused the last request.
const WELL_PATIENCE: Duration = Duration::from_secs(1);
/// Time limit of [`Sender::farewell`] if there was no request yet.
const NEW_PATIENCE: Duration = Duration::from_millis(500);
/// Time limit of [`Sender::farewell`] if the last request failed, or has had no answer for
/// [`WELL_PATIENCE`].
const ILL_PATIENCE: Duration = Duration::from_millis(100);

/// Requests that did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The queue was full, or the request was larger than the whole queue.
    pub dropped: u64,
    /// The collector rejected them or a part of them permanently, or they could not be sent.
    pub refused: u64,
}

/// Hands requests to the sending thread. Clones share one queue.
#[derive(Clone, Debug)]
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

/// A request, and the losses that it reports, which are counted again if it does not arrive.
#[derive(Debug)]
struct Request {
    body: Vec<u8>,
    tells: Lost,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    bytes: usize,
    /// When the thread began to send the present request; `None` if it sends none.
    sending: Option<Instant>,
    /// Incremented to end the present pause.
    wakes: u64,
    /// End of the pause that the collector requested, which is never shortened.
    asked_until: Option<Instant>,
    health: Health,
    failures: u64,
}

/// The state of the collector, from the last attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    /// There was no attempt.
    #[default]
    New,
    /// It accepted or refused the request.
    Well,
    /// It did not answer, or requested a pause.
    Ill,
}

impl Sender {
    /// A sender, and the function that its thread must run, which does not return. The queue holds
    /// at most `queue_bytes`. `tell` is called with the reason of a failure, once for each reason
    /// until a request arrives.
    pub fn over(
        mut transport: impl Transport,
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
        (Sender(shared), move || body.run(&mut transport))
    }

    /// Adds a request to the queue; does not wait for the network.
    pub fn send(&self, request: Vec<u8>) {
        self.send_what_tells(request, Lost::default());
    }

    /// As [`Sender::send`], for a request that is the only one to report the losses `tells`: if it
    /// does not arrive, [`Sender::lost`] includes them again.
    pub fn send_what_tells(&self, body: Vec<u8>, tells: Lost) {
        let request = Request { body, tells };
        let size = request.body.len();
        if size > self.0.queue_bytes {
            self.0.count_dropped(&request);
            let most = self.0.queue_bytes;
            (self.0.tell)(&format!("a request of {size} bytes is given up: {most} is the most"));
            return;
        }
        let mut state = self.0.lock();
        state.bytes += size;
        state.waiting.push_back(request);
        while state.waiting.len() > QUEUE || state.bytes > self.0.queue_bytes {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.bytes -= oldest.body.len();
            self.0.count_dropped(&oldest);
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// The running total of requests that did not arrive. Losses whose report did not arrive are
    /// counted again.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost {
            dropped: self.0.dropped.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }

    /// Called at the end of the process: ends the present pause, unless the collector requested a
    /// longer one, and waits until the queue is sent, an attempt fails, or the time limit passes.
    /// Returns the number of requests that are left. The limit is half a second if there was no
    /// attempt yet, a second if the last one succeeded, and a tenth of a second if it failed, which
    /// is enough for another refusal.
    pub fn farewell(&self) -> usize {
        let state = self.0.lock();
        let owes = state.sending.is_some_and(|since| since.elapsed() >= WELL_PATIENCE);
        let patience = match state.health {
            _ if owes => ILL_PATIENCE,
            Health::New => NEW_PATIENCE,
            Health::Well => WELL_PATIENCE,
            Health::Ill => ILL_PATIENCE,
        };
        self.0.finish(state, patience)
    }

    /// As [`Sender::farewell`] with a time limit of the caller, which may be longer than the pause
    /// that the collector requests. After a failure there is a second attempt, because the
    /// collector may only have been busy.
    pub fn farewell_within(&self, patience: Duration) -> usize {
        let end = Instant::now() + patience;
        match self.0.finish(self.0.lock(), patience) {
            0 => 0,
            _ => self.0.finish(self.0.lock(), end.saturating_duration_since(Instant::now())),
        }
    }
}

impl State {
    fn has_sent_all(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> usize {
        self.waiting.len() + usize::from(self.sending.is_some())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_over` returns true, or at most for `patience`.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        patience: Duration,
        is_over: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, patience, |state| !is_over(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the present pause, and waits until everything is sent or an attempt fails. Returns the
    /// number of requests that are left.
    fn finish(&self, mut state: MutexGuard<'_, State>, patience: Duration) -> usize {
        let asked = state.asked_until.map(|until| until.saturating_duration_since(Instant::now()));
        if asked.is_some_and(|asked| asked > patience) {
            return state.left();
        }
        state.wakes += 1;
        let failures = state.failures;
        let is_over = |state: &State| state.has_sent_all() || state.failures != failures;
        self.wait(state, patience, is_over).left()
    }

    fn run(&self, transport: &mut impl Transport) {
        let (mut pace, mut told) = (Pace::new(), BTreeSet::new());
        loop {
            let (request, wakes) = self.take();
            let posted = catch_unwind(AssertUnwindSafe(|| transport.post(&request.body)));
            let mut asked_for = Duration::ZERO;
            let pause = match posted {
                Ok(Answer::Taken(_)) => {
                    (pace, told) = (Pace::new(), BTreeSet::new());
                    None
                }
                Ok(Answer::Remarked(rejected, why)) => {
                    // The rest of the request has arrived.
                    let lost = Lost { dropped: 0, refused: u64::from(rejected > 0) };
                    self.count(lost, Lost::default());
                    pace = Pace::new();
                    self.tell_once(&mut told, why);
                    None
                }
                Ok(Answer::Refused(why)) => {
                    self.count(Lost { dropped: 0, refused: 1 }, request.tells);
                    self.tell_once(&mut told, why);
                    None
                }
                Ok(Answer::Later(asked, why)) => {
                    self.tell_once(&mut told, why);
                    if let Some(asked) = asked.filter(|&asked| asked > LONGEST_ASKED) {
                        let seconds = (asked.as_secs(), LONGEST_ASKED.as_secs());
                        self.tell_once(&mut told, too_long(seconds));
                    }
                    self.put_back(request);
                    asked_for = asked.unwrap_or_default().min(LONGEST_ASKED);
                    Some(pace.next(asked))
                }
                Err(_) => {
                    transport.renew();
                    self.count(Lost { dropped: 0, refused: 1 }, request.tells);
                    self.tell_once(&mut told, "the sending of a request panicked".into());
                    Some(pace.next(None))
                }
            };
            self.note(pause.is_some(), asked_for);
            pause.into_iter().for_each(|pause| self.rest((pause, asked_for), wakes));
        }
    }

    /// Notes the end of an attempt, and the pause `asked` that the collector requests (0: none).
    fn note(&self, has_failed: bool, asked: Duration) {
        let mut state = self.lock();
        state.sending = None;
        state.health = if has_failed { Health::Ill } else { Health::Well };
        state.failures += u64::from(has_failed);
        state.asked_until = (!asked.is_zero()).then(|| Instant::now() + asked);
        drop(state);
        self.changed.notify_all();
    }

    fn count_dropped(&self, request: &Request) {
        self.count(Lost { dropped: 1, refused: 0 }, request.tells);
    }

    fn count(&self, lost: Lost, untold: Lost) {
        self.dropped.fetch_add(lost.dropped + untold.dropped, Ordering::Relaxed);
        self.refused.fetch_add(lost.refused + untold.refused, Ordering::Relaxed);
    }

    fn tell_once(&self, told: &mut BTreeSet<String>, why: String) {
        if told.len() < REASONS && !told.contains(&why) {
            (self.tell)(&shown(&why));
            told.insert(why);
        }
    }

    /// Waits for a request. Also returns the present value of `wakes`.
    fn take(&self) -> (Request, u64) {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                state.bytes -= request.body.len();
                state.sending = Some(Instant::now());
                return (request, state.wakes);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts a request back to the front of the queue; drops it if newer ones fill the queue.
    fn put_back(&self, request: Request) {
        let mut state = self.lock();
        let size = request.body.len();
        if state.waiting.len() < QUEUE && state.bytes + size <= self.queue_bytes {
            state.bytes += size;
            state.waiting.push_front(request);
        } else {
            self.count_dropped(&request);
        }
    }

    /// Pauses before the next attempt. A change of `wakes` ends the pause, except the part that the
    /// collector requested.
    fn rest(&self, (pause, asked): (Duration, Duration), wakes: u64) {
        let state = self.wait(self.lock(), asked, |_| false);
        let more = pause.saturating_sub(asked);
        drop(self.wait(state, more, |state| state.wakes != wakes));
    }
}

fn too_long((asked, most): (u64, u64)) -> String {
    format!("the collector asks for a pause of {asked} s: it gets about {most} s")
}
