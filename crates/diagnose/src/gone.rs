// SPDX-License-Identifier: Apache-2.0
//! What is said of processes that ended or are stopped (H1b), and what to do, by what the input
//! shows of them.

use crate::job::{CommKind, Communicator, Job, Process, ProcessStatus, Stop, Vector, how_stopped};
use ncclscope_findings::How;

/// What is known of processes that all have this status.
pub(crate) const fn how(job: &Job, status: ProcessStatus) -> How {
    match status {
        ProcessStatus::Ended => How::Exited,
        ProcessStatus::Stopped(by) => How::Stopped(by),
        // None of its processes exists, so that none can be stopped.
        ProcessStatus::Dead if job.ending.is_some() => How::BrokenOff,
        _ => How::OfClass,
    }
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
        ProcessStatus::Stopped(Stop::Before) => {
            "find what stopped it: a debugger, a scheduler that suspends jobs, a paused container, \
             or a SIGSTOP; `scancel` lets a stopped process go on before it ends it."
        }
        ProcessStatus::Stopped(Stop::Unanswering) => {
            "look whether the process exists and its state (`ps -o stat,wchan -p PID`: T is \
             stopped), at the end of its log, and whether its host answers."
        }
        ProcessStatus::Dead if job.ending.is_some() => ENDED,
        _ => return None,
    })
}

/// What to do about a process that ended without closing its recording.
pub(crate) const ENDED: &str = "look at the end of its log, at the signal or exit code in the \
    launcher's log, and at `dmesg` on its host (out of memory, segfault, Xid).";

/// How the process of `own`, which others wait for, is gone, as the end of a sentence.
pub(crate) fn evidence(job: &Job, comm: &Communicator, own: &Vector, by: &Vector) -> String {
    match job.processes[own.process as usize].status {
        ProcessStatus::Ended => {
            let status = job.processes[own.process as usize].exit_status;
            let how = status.map_or_else(
                || "not by a signal".to_owned(),
                |status| format!("with status {status}"),
            );
            let fewer = fewer_calls(job, comm, own, by);
            let and = fewer.map_or_else(String::new, |fewer| format!("; it {fewer}"));
            format!("exited, {how}{and}")
        }
        ProcessStatus::Stopped(by) => how_stopped(by).into(),
        _ => "has written no record since".into(),
    }
}

/// The status of all of these processes; `None` if they differ.
pub(crate) fn common_status(job: &Job, processes: &[u32]) -> Option<ProcessStatus> {
    let mut statuses = processes.iter().map(|&at| job.processes[at as usize].status);
    let first = statuses.next()?;
    statuses.all(|status| status == first).then_some(first)
}

/// `made one call fewer than the other ranks (89 of 90): …` of a process that exited, while others
/// wait in a collective that it never called.
pub(crate) fn fewer_calls(
    job: &Job,
    comm: &Communicator,
    own: &Vector,
    by: &Vector,
) -> Option<String> {
    let Process { status, exit_status, .. } = job.processes[own.process as usize];
    let (own, all) = (own.api.max(own.enqueued), by.front());
    let fewer = all.checked_sub(own).filter(|&fewer| fewer > 0)?;
    let is_counted = comm.kind == CommKind::Collectives && status == ProcessStatus::Ended;
    let calls = if fewer == 1 { "one call".to_owned() } else { format!("{fewer} calls") };
    // Of a command that did not fail, no rank ended with an error.
    let command = job.ending.as_ref().and_then(|ending| ending.command);
    let is_fine = exit_status.map(|status| status == 0);
    let is_fine = is_fine.or_else(|| Some(!command?.has_failed()));
    let error = match is_fine == Some(true) {
        true => "",
        false => "an error, ",
    };
    is_counted.then(|| {
        format!(
            "made {calls} fewer than the other ranks ({own} of {all}): {error}uneven batches or a \
             skipped collective"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::{CommandEnd, Ending};

    /// A job in which the process of rank 1 has this status, and has made one call fewer.
    fn job(status: ProcessStatus, ending: Option<Ending>) -> (Job, Communicator) {
        let process = |status| Process { status, ..Process::default() };
        let processes = vec![process(ProcessStatus::Running), process(status)];
        let vector = |process: u32, api| Vector {
            process,
            rank: process,
            api,
            enqueued: api,
            done: 89,
            ..Vector::default()
        };
        let comm = Communicator {
            nranks: 2,
            vectors: vec![vector(0, 90), vector(1, 89)],
            ..Communicator::default()
        };
        (Job { processes, ending, ..Job::default() }, comm)
    }

    #[test]
    fn a_call_fewer_is_told_and_an_error_only_where_the_command_may_have_failed() {
        let said = |status, ending| {
            let (job, comm) = job(status, ending);
            evidence(&job, &comm, &comm.vectors[1], &comm.vectors[0])
        };
        let fewer =
            "exited, not by a signal; it made one call fewer than the other ranks (89 of 90): ";
        let why = "uneven batches or a skipped collective";
        assert_eq!(said(ProcessStatus::Ended, None), format!("{fewer}an error, {why}"));
        let command = |exit_code| {
            let command = CommandEnd { exit_code, ..CommandEnd::default() };
            Some(Ending { command: Some(command), ..Ending::default() })
        };
        assert_eq!(said(ProcessStatus::Ended, command(0)), format!("{fewer}{why}"));
        assert_eq!(said(ProcessStatus::Ended, command(1)), format!("{fewer}an error, {why}"));
        assert_eq!(said(ProcessStatus::Dead, None), "has written no record since");
        let status = |status| {
            let (mut job, comm) = job(ProcessStatus::Ended, command(1));
            job.processes[1].exit_status = Some(status);
            evidence(&job, &comm, &comm.vectors[1], &comm.vectors[0])
        };
        let fewer = "it made one call fewer than the other ranks (89 of 90): ";
        assert_eq!(status(1), format!("exited, with status 1; {fewer}an error, {why}"));
        assert_eq!(status(0), format!("exited, with status 0; {fewer}{why}"), "that of others");
    }

    #[test]
    fn what_to_do_follows_what_is_known_of_the_process() {
        let advice = |status, ending| advice(&job(status, ending).0, status).unwrap_or("the table");
        let stopped = advice(ProcessStatus::Stopped(Stop::Signal), None);
        assert!(stopped.contains("kill -CONT") && !stopped.contains("dmesg"), "{stopped}");
        let ended = advice(ProcessStatus::Ended, None);
        assert!(ended.contains("traceback") && !ended.contains("dmesg"), "{ended}");
        assert_eq!(advice(ProcessStatus::Dead, None), "the table", "it may be stopped");
        assert_eq!(advice(ProcessStatus::Dead, Some(Ending::default())), ENDED);
        let dead = how(&job(ProcessStatus::Dead, None).0, ProcessStatus::Dead);
        assert_eq!(dead, How::OfClass);
    }
}
