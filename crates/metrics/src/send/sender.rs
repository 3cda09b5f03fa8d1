// SPDX-License-Identifier: Apache-2.0
/*!
Sends requests to a collector, through a queue.

The caller adds encoded requests and continues; a collector that is slow, down or returns errors
costs it nothing. The queue is bounded: when it is full, the oldest request is dropped and counted.
A request is retried, with growing pauses, while the answer may still change. A [`Transport`]
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

/// Requests that wait at most.
const QUEUE: usize = 64;
/// Reasons that are distinguished until a request arrives.
const REASONS: usize = 8;

/// How long [`Sender::farewell`] waits at most: for a collector that answered the last time.
const WELL_PATIENCE: Duration = Duration::from_secs(1);
/// The same for one that was never asked.
const NEW_PATIENCE: Duration = Duration::from_millis(500);
/// The same for one that failed the last time, or owes an answer for [`WELL_PATIENCE`].
const ILL_PATIENCE: Duration = Duration::from_millis(100);

/// Requests that did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The queue was full, or the request was larger than the queue may be.
    pub dropped: u64,
    /// The collector refused them or a part of them for good, or they could not be sent.
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

/// A request, and what is lost if it does not arrive.
#[derive(Debug)]
struct Request {
    body: Vec<u8>,
    tells: Lost,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    bytes: usize,
    /// Since when the thread has one in its hands.
    sending: Option<Instant>,
    /// Goes up to end the pause that is under way.
    wakes: u64,
    /// Until when the collector asks for no request: nothing shortens that.
    asked_until: Option<Instant>,
    health: Health,
    failures: u64,
}

/// What the last attempt shows about the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    /// There was none.
    #[default]
    New,
    /// It answered.
    Well,
    /// It did not answer, or asked to wait.
    Ill,
}

impl Sender {
    /// A sender, and what its thread runs, for ever. Requests of `queue_bytes` in all wait at most.
    /// `tell` gets the reason of a failure, each once until a request arrives again.
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

    /// Takes a request; never waits for the network.
    pub fn send(&self, request: Vec<u8>) {
        self.send_what_tells(request, Lost::default());
    }

    /// The same for a request that is the only one to tell of `tells`: if it does not arrive,
    /// [`Sender::lost`] has them once more.
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

    /// What did not arrive so far, as a running total. What was reported by requests that did not
    /// arrive either is in it again.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost {
            dropped: self.0.dropped.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }

    /// The end of the process: what waits is tried at once, and once, unless the collector asks for
    /// a longer pause. Returns how many requests are left, as soon as everything is sent, a try
    /// fails, or no more can be tried; after half a second at the latest, or a second where the
    /// collector answered the last time. One that failed the last time has a tenth of a second,
    /// which is enough for it to refuse again.
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

    /// A farewell with a patience of the caller's: it can be longer than the pause that the
    /// collector asks for. After a failure there is a second try: the collector may only have been
    /// busy when the last request came.
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

    /// Waits until it is over, for `patience` at most.
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

    /// Ends the pause under way, and waits until everything is sent or a try fails. Returns how
    /// many requests are left.
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

    /// The thread is no longer sending a request. The collector asks for a pause of `asked`.
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

    /// Waits for a request. Also returns how often pauses were ended until now.
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

    /// The request comes first again, unless the queue is full of newer ones.
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

    /// Waits before the next try. A wake since the last one began ends what the collector has not
    /// asked for.
    fn rest(&self, (pause, asked): (Duration, Duration), wakes: u64) {
        let state = self.wait(self.lock(), asked, |_| false);
        let more = pause.saturating_sub(asked);
        drop(self.wait(state, more, |state| state.wakes != wakes));
    }
}

fn too_long((asked, most): (u64, u64)) -> String {
    format!("the collector asks for a pause of {asked} s: it gets about {most} s")
}
