// SPDX-License-Identifier: Apache-2.0
/*!
The plugin's few messages.

A line goes into a queue, and a short-lived thread prints it: if NCCL's logger waits for a full
pipe, only that thread waits with it. The line goes through the logger of a live communicator, whose
NCCL stays loaded for that time. The same thread releases that NCCL. If the host has closed NCCL in
between, the release unloads it, and may wait for a thread that is loading a library.
*/

use crate::library::Library;
use crate::sys;
use crate::sys::lock::Lock;
use ncclscope_control::text::on_one_line;
use ncclscope_control::value::LogTo;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The severity of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Shown on request only.
    Info,
    /// Something differs from the user's request.
    Problem,
    /// The job does not progress.
    Hang,
}

/// Maximum number of waiting lines; further ones are counted.
const LINES: usize = 1024;
/// How long a new thread may take until it prints its first line.
const THREAD_PATIENCE: Duration = Duration::from_millis(500);

/// Writes a line; may block.
type Print = dyn Fn(Severity, &str) + Send + Sync;

/// Writes one line to NCCL's log; the plugin implements it, because it knows the C signature.
pub struct Logger(Box<Print>);

impl Logger {
    /// A logger of the communicator's NCCL.
    #[must_use]
    pub fn new(print: impl Fn(Severity, &str) + Send + Sync + 'static) -> Logger {
        Logger(Box::new(print))
    }

    /// Writes a line at once, during `init` of the communicator that lends the logger.
    pub fn say(&self, severity: Severity, line: &str) {
        (self.0)(severity, line);
    }
}

impl core::fmt::Debug for Logger {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Logger").finish_non_exhaustive()
    }
}

/// A communicator's access to the log.
#[derive(Debug)]
struct CommLogger {
    /// NCCL's logger; `None` for API v1 to v3, which have none.
    logger: Option<Logger>,
    nccl: Arc<Library>,
}

/// The waiting lines, and the loggers that can print them.
#[derive(Debug)]
pub(crate) struct Log {
    inner: Lock<LogState>,
}

#[derive(Debug)]
struct LogState {
    to: LogTo,
    comm_loggers: Vec<(u16, Arc<CommLogger>)>,
    /// Loggers of destroyed communicators, which the log's thread releases.
    gone: Vec<Arc<CommLogger>>,
    lines: VecDeque<(Severity, String)>,
    dropped: u64,
    /// A thread is printing lines.
    is_speaking: bool,
    /// That thread is inside a logger.
    has_entered: bool,
}

impl Log {
    pub(crate) const fn new() -> Log {
        Log {
            inner: Lock::new(LogState {
                to: LogTo::Stderr,
                comm_loggers: Vec::new(),
                gone: Vec::new(),
                lines: VecDeque::new(),
                dropped: 0,
                is_speaking: false,
                has_entered: false,
            }),
        }
    }

    /// True if no thread holds the lock of the queue of lines now.
    pub(crate) fn is_free(&self) -> bool {
        self.inner.is_free()
    }

    pub(crate) fn send_to(&self, to: LogTo) {
        self.inner.lock().to = to;
    }

    /// Adds a communicator of this NCCL, which may have a logger.
    pub(crate) fn join(&self, comm: u16, nccl: Arc<Library>, logger: Option<Logger>) {
        self.inner.lock().comm_loggers.push((comm, Arc::new(CommLogger { logger, nccl })));
    }

    /// Removes a finalized communicator: its logger prints no further line.
    pub(crate) fn leave(&'static self, comm: u16) {
        let mut inner = self.inner.lock();
        let gone = inner.comm_loggers.extract_if(.., |(of, _)| *of == comm);
        let gone: Vec<_> = gone.map(|(_, logger_of_comm)| logger_of_comm).collect();
        // Only the last communicator of an NCCL releases it.
        inner.gone.extend(
            gone.into_iter().filter(|logger_of_comm| Library::is_held_by(&logger_of_comm.nccl)),
        );
        drop(inner);
        self.speak();
    }

    /// Queues a line until [`Log::speak`]. It may have names of others: nothing in it acts on a
    /// terminal.
    pub(crate) fn say(&self, severity: Severity, line: &str) {
        let mut inner = self.inner.lock();
        if inner.to == LogTo::Off {
            return;
        }
        if inner.lines.len() >= LINES {
            inner.dropped += 1;
            return;
        }
        inner.lines.push_back((severity, on_one_line(line)));
    }

    /// Starts a thread that prints the waiting lines, releases destroyed loggers, and ends.
    pub(crate) fn speak(&'static self) {
        let mut inner = self.inner.lock();
        if inner.is_speaking || (inner.lines.is_empty() && inner.gone.is_empty()) {
            return;
        }
        inner.is_speaking = true;
        drop(inner);
        let body = || {
            let _ = std::panic::catch_unwind(|| while self.say_one() {});
        };
        if sys::spawn_quiet("ncclscope/log", body).is_err() {
            // No thread could be started: the lines wait for the next call.
            self.inner.lock().is_speaking = false;
        }
    }

    /// Prints the waiting lines and waits until they are printed: `patience` while a logger is
    /// printing a line, longer for the thread to reach the first one.
    pub(crate) fn flush(&'static self, patience: Duration) {
        let (mut within, mut without) = (None, None);
        self.speak();
        while let Some(has_entered) = self.is_busy() {
            let is_over = match has_entered {
                true => is_over(&mut within, patience),
                false => is_over(&mut without, THREAD_PATIENCE),
            };
            if is_over {
                return;
            }
            crate::sys::wake::pause(Duration::from_micros(200));
        }
    }

    /// While lines are being printed: `Some(true)` if a logger is printing one. `None` if none are
    /// being printed.
    fn is_busy(&self) -> Option<bool> {
        let inner = self.inner.lock();
        inner.is_speaking.then_some(inner.has_entered)
    }

    /// Prints the oldest waiting line; false if there is none.
    fn say_one(&self) -> bool {
        let mut inner = self.inner.lock();
        let gone = std::mem::take(&mut inner.gone);
        let Some((severity, line)) = inner.next_line() else {
            inner.is_speaking = false;
            drop(inner);
            drop(gone);
            return false;
        };
        let mut comm_loggers = inner.comm_loggers.iter().map(|(_, logger_of_comm)| logger_of_comm);
        let logger_of_comm =
            comm_loggers.find(|logger_of_comm| logger_of_comm.logger.is_some()).map(Arc::clone);
        let to = inner.to;
        inner.has_entered = true;
        drop(inner);
        if let Some(logger) =
            logger_of_comm.as_ref().and_then(|logger_of_comm| logger_of_comm.logger.as_ref())
        {
            logger.say(severity, &format!("ncclscope: {line}"));
        }
        drop((logger_of_comm, gone));
        if to == LogTo::Stderr && severity != Severity::Info {
            sys::write_stderr(&format!("ncclscope: {line}\n"));
        }
        self.inner.lock().has_entered = false;
        true
    }
}

impl LogState {
    fn next_line(&mut self) -> Option<(Severity, String)> {
        if let Some(line) = self.lines.pop_front() {
            return Some(line);
        }
        let dropped = std::mem::take(&mut self.dropped);
        (dropped > 0).then(|| {
            (Severity::Problem, format!("{dropped} further lines: the log did not take them"))
        })
    }
}

/// True once `patience` has passed since the first call.
pub(crate) fn is_over(until: &mut Option<Instant>, patience: Duration) -> bool {
    let now = Instant::now();
    now >= *until.get_or_insert(now + patience)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Libraries;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    const SHORT: Duration = Duration::from_millis(20);

    fn leaked() -> &'static Log {
        Box::leak(Box::new(Log::new()))
    }

    fn join(log: &Log, comm: u16, print: impl Fn(&str) + Send + Sync + 'static) {
        let logger = Logger::new(move |_, line| print(line));
        log.join(comm, Libraries::new(|| {}).of(0), Some(logger));
    }

    #[test]
    fn lines_go_through_a_communicator_that_is_alive() {
        let log = leaked();
        let (send, said) = channel();
        for comm in [1, 2] {
            let send = Mutex::new(send.clone());
            let print = move |line: &str| send.lock().unwrap().send((comm, line.to_owned()));
            join(log, comm, move |line| drop(print(line)));
        }
        log.say(Severity::Info, "a");
        log.flush(Duration::from_secs(5));
        log.leave(1);
        log.say(Severity::Info, "b");
        log.flush(Duration::from_secs(5));
        log.leave(2);
        log.say(Severity::Info, "c");
        log.flush(Duration::from_secs(5));
        let said: Vec<_> = said.try_iter().collect();
        let line = |comm, text: &str| (comm, format!("ncclscope: {text}"));
        assert_eq!(said, [line(1, "a"), line(2, "b")], "where none is alive, none is asked");
    }

    #[test]
    fn a_logger_that_waits_keeps_only_its_thread() {
        let log = leaked();
        let (go, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        join(log, 1, move |_| assert!(gate.lock().unwrap().recv().is_err()));
        log.say(Severity::Info, "a");
        let begin = Instant::now();
        log.flush(SHORT);
        for _ in 0..2 * LINES {
            log.say(Severity::Info, "b");
        }
        log.leave(1);
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(log.is_busy(), Some(true));
        let inner = log.inner.lock();
        assert_eq!((inner.lines.len(), inner.dropped), (LINES, LINES as u64));
        drop(inner);
        drop(go);
        log.flush(Duration::from_secs(5));
        assert_eq!(log.is_busy(), None);
    }
}
