// SPDX-License-Identifier: Apache-2.0
//! What is said of processes that ended or are stopped (H1b), and what to do, by what the input
//! shows of them.

use crate::job::{CommKind, Communicator, Job, ProcessStatus, Stop, Vector};

/// The end of the title of a verdict about processes that all have this status; `None` if the table
/// of classes has it.
pub(crate) const fn meaning(
    job: &Job,
    status: ProcessStatus,
    is_several: bool,
) -> Option<&'static str> {
    Some(match (status, is_several) {
        (ProcessStatus::Ended, false) => "gone: the process exited",
        (ProcessStatus::Ended, true) => "gone: the processes exited",
        (ProcessStatus::Stopped(by), _) => by.title(is_several),
        // None of its processes exists, so that none can be stopped.
        (ProcessStatus::Dead, false) if job.ending.is_some() => {
            "dead: its recording breaks off before the others'"
        }
        (ProcessStatus::Dead, true) if job.ending.is_some() => {
            "dead: their recordings break off before the others'"
        }
        _ => return None,
    })
}

/// What to do about processes that all have this status; `None` if the table of classes has it.
pub(crate) const fn advice(job: &Job, status: ProcessStatus) -> Option<&'static str> {
    Some(match status {
        ProcessStatus::Ended => {
            "look at the end of its log: a traceback, or an end in order after fewer steps than \
             the others (uneven batches, a skipped collective); its exit code is in the \
             launcher's log."
        }
        ProcessStatus::Stopped(Stop::Signal) => {
            "find what stopped it: a debugger (`TracerPid` in `/proc/PID/status`), a scheduler \
             that suspends jobs, or a SIGSTOP; `kill -CONT PID` lets it go on."
        }
        ProcessStatus::Stopped(Stop::Freezer) => {
            "find what froze its control group: a paused container (`docker unpause`), a \
             scheduler that suspends jobs (`cgroup.freeze`)."
        }
        ProcessStatus::Dead if job.ending.is_some() => ENDED,
        _ => return None,
    })
}

/// What to do about a process that ended without closing its recording.
pub(crate) const ENDED: &str = "look at the end of its log, at the signal or exit code in the \
    launcher's log, and at `dmesg` on its host (out of memory, segfault, Xid).";

/// The status of all of these processes; `None` if they differ.
pub(crate) fn common_status(job: &Job, processes: &[u32]) -> Option<ProcessStatus> {
    let mut statuses = processes.iter().map(|&at| job.processes[at as usize].status);
    let first = statuses.next()?;
    statuses.all(|status| status == first).then_some(first)
}

/// `made one call fewer than the others (89 of 90): …` of a process that exited, while others wait
/// in a collective that it never called.
pub(crate) fn fewer_calls(
    job: &Job,
    comm: &Communicator,
    own: &Vector,
    by: &Vector,
) -> Option<String> {
    let status = job.processes[own.process as usize].status;
    let (own, all) = (own.api.max(own.enqueued), by.front());
    let fewer = all.checked_sub(own).filter(|&fewer| fewer > 0)?;
    let is_counted = comm.kind == CommKind::Collectives && status == ProcessStatus::Ended;
    let calls = if fewer == 1 { "one call".to_owned() } else { format!("{fewer} calls") };
    // Of a command that did not fail, no rank ended with an error.
    let command = job.ending.as_ref().and_then(|ending| ending.command);
    let error = match command.is_some_and(|command| !command.has_failed()) {
        true => "",
        false => "an error, ",
    };
    is_counted.then(|| {
        format!(
            "made {calls} fewer than the others ({own} of {all}): {error}uneven batches or a \
             skipped collective"
        )
    })
}
