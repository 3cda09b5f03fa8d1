// SPDX-License-Identifier: Apache-2.0
//! Facts about a recorded process from its recording: its place in the job and its command.

use super::Process;
use ncclscope_answer::RankLocation;
use ncclscope_control::message::{Boundary, Recorded};
use ncclscope_operations::human;
use ncclscope_trace::{Identity, Recording};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Unit of `st_blocks` in `stat(2)`, bytes.
const STAT_BLOCK: u64 = 512;

/// Facts about a process; `None` if unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// The identity in its recording.
    pub(crate) identity: Identity,
    /// Disk space of the recording, bytes.
    pub(crate) bytes: Option<u64>,
}

impl About {
    /// Reads the newest definitions of the process's recording.
    pub(crate) fn of(process: &Process) -> About {
        let path = process.status.recording.as_path();
        if path == Path::new("") {
            return About::default();
        }
        let bytes = std::fs::metadata(path).ok().map(|file| file.blocks() * STAT_BLOCK);
        // A recording in another container cannot be opened here.
        let identity = Recording::open_end(path, 1).map(|it| it.identity().clone());
        About { identity: identity.unwrap_or_default(), bytes }
    }
}

/// Text such as `rank 3 (node-1, local rank 3, GPU 3, pid 4711), job 88, mode flight`.
pub(crate) fn name(process: &Process, about: &About) -> String {
    let Identity { rank, host, local_rank, device, .. } = &about.identity;
    let (pid, status) = (process.pid, &process.status);
    let place = RankLocation {
        rank: rank.unwrap_or(0),
        host: host.clone(),
        pid: Some(pid),
        local_rank: local_rank.map(u64::from),
        device: device.map(u64::from),
    };
    let mut parts = vec![match rank {
        Some(_) => place.to_string(),
        None => match host {
            Some(host) => format!("pid {pid} ({host})"),
            None => format!("pid {pid}"),
        },
    }];
    let facts = [("job", &status.job), ("mode", &status.mode)];
    let known = facts.into_iter().filter(|(_, value)| !value.is_empty());
    parts.extend(known.map(|(what, value)| format!("{what} {value}")));
    parts.join(", ")
}

/// What a process records and until when, as the end of a sentence.
pub(crate) fn records(process: &Process) -> String {
    let status = &process.status;
    let window = &status.window;
    let what = match window.sample {
        0 | 1 => "records".to_owned(),
        every => format!("records one of {every} operations"),
    };
    let until = end(window.ends);
    match (status.recorded, window.begins.map(begin)) {
        (Recorded::No, _) => "does not record".into(),
        (Recorded::Yes, None) => format!("{what} {until}"),
        (Recorded::Yes, Some(from)) => format!("records; its next window is {from}, {until}"),
        (Recorded::Waiting, Some(from)) => format!("{what} {from}, {until}"),
        (Recorded::Waiting, None) => "waits for its window".into(),
    }
}

fn begin(at: Boundary) -> String {
    match at {
        Boundary::Time(ns) => format!("from {}", time(ns)),
        Boundary::Step(step) => format!("from step {step} on"),
        Boundary::Steps(_) => "from the next training step on".into(),
    }
}

fn end(at: Option<Boundary>) -> String {
    match at {
        None => "until it is stopped".into(),
        Some(Boundary::Time(ns)) => format!("until {}", time(ns)),
        Some(Boundary::Step(step)) => format!("until step {step} begins"),
        Some(Boundary::Steps(steps)) => format!("for {}", human::count(steps, "step")),
    }
}

/// A time of day, and the time until or since then.
fn time(ns: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let away = u128::from(ns).saturating_sub(now);
    let at = ncclscope_answer::Moment::from_ns(ns).rfc3339();
    match u64::try_from(away).unwrap_or(0) {
        0 => at,
        away => {
            format!("{at} (in {})", human::duration(ncclscope_operations::stats::to_f64(away)))
        }
    }
}

/// A warning for a process that has reported no training step, whose window of steps may never
/// begin.
pub(crate) fn without_steps(process: &Process) -> Option<String> {
    let window = &process.status.window;
    let needs = [window.begins, window.ends].into_iter().flatten();
    let needs_steps = { needs }.any(|at| matches!(at, Boundary::Steps(_) | Boundary::Step(_)));
    if !needs_steps || process.status.step.is_some() {
        return None;
    }
    let meanwhile = match process.status.recorded {
        Recorded::Yes => "until then it records everything",
        Recorded::No | Recorded::Waiting => "until then it records nothing",
    };
    Some(format!(
        "process {} has not reported any training step yet: the window needs the job to call \
         ncclscope.set_step (or ncclscope_set_step in C); {meanwhile}. To record by time instead: \
         ncclscope start --pid {} --for 10s",
        process.pid, process.pid
    ))
}
