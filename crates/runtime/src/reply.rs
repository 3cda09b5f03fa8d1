// SPDX-License-Identifier: Apache-2.0
//! A reply that one thread waits for, for a limited time.

use crate::sys::lock::Lock;
use crate::sys::spawn_quiet;
use crate::sys::wake::Wake;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The side that asks and waits.
#[derive(Debug)]
pub(crate) struct Reply<T>(Arc<Shared<T>>);

/// The side that answers. If it is dropped without an answer, the other side stops waiting.
#[derive(Debug)]
pub(crate) struct Answer<T>(Option<Arc<Shared<T>>>);

#[derive(Debug)]
struct Shared<T> {
    value: Lock<Option<T>>,
    waits: Arc<Wake>,
}

impl<T> Reply<T> {
    /// Both sides of a new reply.
    pub(crate) fn new() -> (Reply<T>, Answer<T>) {
        let shared = Arc::new(Shared { value: Lock::new(None), waits: Arc::new(Wake::new()) });
        (Reply(Arc::clone(&shared)), Answer(Some(shared)))
    }

    /// Waits up to `patience` for the answer; `None` if it does not come in time or the other side
    /// was dropped.
    pub(crate) fn wait(self, patience: Duration) -> Option<T> {
        self.wait_or_keep(patience).unwrap_or(None)
    }

    /// Like [`Reply::wait`], but the caller can wait again after a timeout.
    ///
    /// # Errors
    /// This reply, after a timeout.
    pub(crate) fn wait_or_keep(mut self, patience: Duration) -> Result<Option<T>, Reply<T>> {
        let until = Instant::now() + patience;
        loop {
            let answer = self.poll();
            let left = until.saturating_duration_since(Instant::now());
            match answer {
                Some(answer) => return Ok(answer),
                None if left.is_zero() => return Err(self),
                None => self.0.waits.wait(Some(left)),
            }
        }
    }

    /// Waits without a time limit, and without reading the clock, which may be forbidden
    /// (`clock::is_forbidden`). `None` if the other side was dropped.
    pub(crate) fn wait_for_it(mut self) -> Option<T> {
        loop {
            match self.poll() {
                Some(answer) => return answer,
                None => self.0.waits.wait(None),
            }
        }
    }

    /// `Some(Some(_))` if there is an answer, `Some(None)` if there will be none, `None` if it may
    /// still come.
    fn poll(&mut self) -> Option<Option<T>> {
        // Checked in this way, everything that the other side did happens before this, also for
        // ThreadSanitizer.
        let is_alone = Arc::get_mut(&mut self.0).is_some();
        let value = self.0.value.lock().take();
        (value.is_some() || is_alone).then_some(value)
    }
}

/// Runs `body` on a new thread, because a thread of the host may have a small stack, and waits for
/// up to `patience` (`None`: until it is done). If no thread can be started, runs it on the calling
/// thread. `None` if it is not done in time, or panics.
pub(crate) fn elsewhere<T: Send + 'static>(
    name: &str,
    patience: Option<Duration>,
    body: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let body = Arc::new(Lock::new(Some(body)));
    let (reply, answer) = Reply::new();
    let its = Arc::clone(&body);
    let run = move || {
        let body = its.lock().take();
        if let Some(body) = body {
            answer.give(body());
        }
    };
    if spawn_quiet(name, run).is_err() {
        let body = body.lock().take()?;
        return Some(body());
    }
    match patience {
        Some(patience) => reply.wait(patience),
        None => reply.wait_for_it(),
    }
}

impl<T> Answer<T> {
    pub(crate) fn give(self, value: T) {
        if let Some(shared) = &self.0 {
            *shared.value.lock() = Some(value);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        let waits = Arc::clone(&shared.waits);
        // Dropped first, so that the other side sees that it is alone.
        drop(shared);
        waits.wake();
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        // ThreadSanitizer does not know the fence with which the last `Arc` is dropped.
        let _ = Arc::get_mut(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn an_answer_ends_the_waiting_and_so_does_its_loss() {
        let (reply, answer) = Reply::new();
        let other = std::thread::spawn(move || answer.give(7));
        assert_eq!(reply.wait(LONG), Some(7));
        other.join().unwrap();
        let (reply, answer) = Reply::<u8>::new();
        assert_eq!(reply.wait(Duration::from_millis(5)), None, "no answer in time");
        answer.give(8);
        let (reply, answer) = Reply::<u8>::new();
        let other = std::thread::spawn(move || drop(answer));
        assert_eq!(reply.wait(LONG), None, "the other side is gone");
        other.join().unwrap();
    }

    #[test]
    fn what_is_done_elsewhere_is_waited_for() {
        let own = std::thread::current().id();
        let other = elsewhere("elsewhere", None, || std::thread::current().id());
        assert!(other.is_some_and(|other| other != own));
        let panics = || std::panic::resume_unwind(Box::new(()));
        assert_eq!(elsewhere::<()>("elsewhere", None, panics), None);
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let waits = move || receive.recv().is_ok();
        assert_eq!(elsewhere("elsewhere", Some(Duration::from_millis(5)), waits), None);
        drop(send);
    }
}
