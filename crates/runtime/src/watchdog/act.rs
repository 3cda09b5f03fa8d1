// SPDX-License-Identifier: Apache-2.0
//! What is done about a hang: a copy, a command, a signal, the application's own function.
//!
//! All of it happens on a thread of its own: a full disk or an application that waits for its
//! interpreter's lock keeps nobody from recording. One thing is done after the other, so that a
//! hang is told of before its end is; only commands go on beside what comes next.

use super::{Hang, Happened};
use crate::config::HangActions;
use crate::runtime::{Refusal, Runtime};
use crate::sys::lock::Lock;
use crate::sys::{self, exec};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What waits at most: more means that nothing of it works.
const MOST: usize = 16;
/// Commands that run at once.
const COMMANDS: usize = 4;
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static QUEUE: Lock<Queue> = Lock::new(Queue { works: VecDeque::new(), is_running: false });

/// Told of each hang: JSON in one line.
pub type OnHang = Box<dyn Fn(&str) + Send + Sync>;

static LISTENER: Lock<Option<Arc<OnHang>>> = Lock::new(None);

/// From now on `listener` is told of hangs and of their ends; `None`: nobody. A call that is under
/// way goes on.
pub fn listen(listener: Option<OnHang>) {
    *LISTENER.lock() = listener.map(Arc::new);
}

/// One thing that happened, and what is to be done about it.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) hang: Hang,
    pub(crate) actions: HangActions,
    pub(crate) recording: PathBuf,
    /// How many the process had before.
    pub(crate) number: u32,
}

/// What is to be done, in its order.
struct Queue {
    works: VecDeque<Work>,
    /// A thread takes from it.
    is_running: bool,
}

/// Does the work, after what is to be done already. A line if it cannot be done.
pub(crate) fn begin(runtime: &'static Runtime, work: Work) -> Result<(), String> {
    let mut queue = QUEUE.lock();
    if queue.works.len() >= MOST {
        return Err("earlier actions for a hang have not ended: nothing more is done".into());
    }
    queue.works.push_back(work);
    if std::mem::replace(&mut queue.is_running, true) {
        return Ok(());
    }
    drop(queue);
    sys::spawn_quiet("ncclscope/hang", move || work_off(runtime)).map(drop).map_err(|error| {
        let mut queue = QUEUE.lock();
        (queue.works, queue.is_running) = (VecDeque::new(), false);
        format!("no thread for the actions of a hang: {error}")
    })
}

/// The thread's body.
fn work_off(runtime: &'static Runtime) {
    loop {
        let mut queue = QUEUE.lock();
        let Some(work) = queue.works.pop_front() else {
            queue.is_running = false;
            return;
        };
        drop(queue);
        let work = std::panic::AssertUnwindSafe(|| work.run(runtime));
        let _ = std::panic::catch_unwind(work);
    }
}

/// Waits for a command's end beside everything else.
fn reap(child: exec::Child) {
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let wait = move || {
        child.wait();
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    };
    // Without a thread it stays as a zombie, and counts for good.
    let _ = sys::spawn_quiet("ncclscope/command", wait);
}

impl Work {
    fn run(&self, runtime: &'static Runtime) {
        let Work { hang, actions, recording, .. } = self;
        let is_new = hang.happened == Happened::Hung;
        if is_new && actions.dump {
            runtime.tell_of(&runtime.dump(None));
        }
        if let Some(command) = &actions.exec {
            match self.exec(command, recording) {
                Ok(child) => reap(child),
                Err(error) => {
                    let line = format!("cannot run the command for a hang: {error}");
                    runtime.tell_of(&Err(Refusal::System(line)));
                }
            }
        }
        if is_new && let Some(signal) = actions.signal {
            sys::signal::send_to_self(signal);
        }
        let listener = LISTENER.lock().clone();
        listener.iter().for_each(|listener| listener(&hang.json()));
    }

    /// Runs the command, with the report in a file.
    fn exec(&self, command: &str, recording: &Path) -> std::io::Result<exec::Child> {
        if RUNNING.load(Ordering::Relaxed) >= COMMANDS {
            return Err(std::io::Error::other("earlier ones have not ended"));
        }
        let hang = &self.hang;
        let file = report_file(recording, self.number);
        let mut text = hang.lines().join("\n");
        text.push('\n');
        std::fs::write(&file, text)?;
        let drill = if hang.drill { "1" } else { "0" };
        let more = [
            format!("NCCLSCOPE_HANG_EVENT={}", hang.happened.name()),
            format!("NCCLSCOPE_HANG_CLASS={}", hang.class),
            format!("NCCLSCOPE_HANG_DRILL={drill}"),
            format!("NCCLSCOPE_HANG_COMM={:#x}", hang.comm),
            format!("NCCLSCOPE_HANG_RANK={}", hang.rank),
            format!("NCCLSCOPE_HANG_PID={}", sys::pid()),
            format!("NCCLSCOPE_HANG_REPORT={}", file.display()),
        ];
        exec::shell(command, &more)
    }
}

/// Beside the recording: `HOST-PID.hang-NUMBER.txt`.
fn report_file(recording: &Path, number: u32) -> PathBuf {
    let name = recording.file_stem().unwrap_or_default().to_string_lossy();
    recording.with_file_name(format!("{name}.hang-{number:03}.txt"))
}
