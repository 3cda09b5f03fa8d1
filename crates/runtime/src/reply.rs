// SPDX-License-Identifier: Apache-2.0
//! A reply that one thread waits for, for a limited time.

use crate::sys::lock::Lock;
use crate::sys::spawn_quiet;
use crate::sys::wake::Wake;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The asking side.
#[derive(Debug)]
pub(crate) struct Reply<T>(Arc<Shared<T>>);

/// The answering side. If it is dropped without an answer, the other side stops waiting.
#[derive(Debug)]
pub(crate) struct Answer<T>(Option<Arc<Shared<T>>>);

#[derive(Debug)]
struct Shared<T> {
    value: Lock<Option<T>>,
    waits: Arc<Wake>,
}

impl<T> Reply<T> {
    /// Both sides of one answer.
    pub(crate) fn new() -> (Reply<T>, Answer<T>) {
        let shared = Arc::new(Shared { value: Lock::new(None), waits: Arc::new(Wake::new()) });
        (Reply(Arc::clone(&shared)), Answer(Some(shared)))
    }

    /// The answer, if it comes in time; `None` also if the other side was dropped.
    pub(crate) fn wait(self, patience: Duration) -> Option<T> {
        self.wait_or_keep(patience).unwrap_or(None)
    }

    /// The same; after a timeout the caller can wait again.
    ///
    /// # Errors
    /// The reply itself.
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

    /// The answer, however long it takes, without asking for the time: it may be forbidden
    /// (`clock::is_forbidden`). `None` if the other side is gone.
    pub(crate) fn wait_for_it(mut self) -> Option<T> {
        loop {
            match self.poll() {
                Some(answer) => return answer,
                None => self.0.waits.wait(None),
            }
        }
    }

    /// The answer, if there is one by now, or `None` inside if there will be none.
    fn poll(&mut self) -> Option<Option<T>> {
        // Seen so, all that the other side did has happened, for ThreadSanitizer too.
        let is_alone = Arc::get_mut(&mut self.0).is_some();
        let value = self.0.value.lock().take();
        (value.is_some() || is_alone).then_some(value)
    }
}

/// Has `body` done by a thread of ours, and waits for it as long as `patience` says (`None`: until
/// it is done): a thread of the host's may have a small stack. Where there can be no thread, it is
/// done here. `None` if it is not done in time, or panics.
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
        // First, so that the other side sees that it is alone.
        drop(shared);
        waits.wake();
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        // ThreadSanitizer does not know the fence with which the last of an `Arc` goes.
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
