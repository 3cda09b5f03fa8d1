// SPDX-License-Identifier: Apache-2.0
//! `ncclscope ls`: the recorded processes of this host.

use super::asked;
use crate::args::{LsArgs, TableFormat};
use crate::control::{self, About, Process, at_once};
use crate::io::output;
use crate::tables::table::{Align, Table};
use ncclscope_answer::Moment;
use ncclscope_console::failure::{Failure, tell, warn};
use ncclscope_control::message::{Boundary, WindowState};
use ncclscope_operations::human;
use ncclscope_trace::identity::nccl_version;
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

/// `ls --format json`.
#[derive(Serialize)]
struct Listing<'a> {
    schema: &'static str,
    processes: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    /// `yes`, `no` or `waiting`.
    recorded: &'a str,
    job: Option<&'a str>,
    nccl_version: Option<String>,
    step: Option<u64>,
    comms: Vec<Comm>,
    /// Number of communicators beyond those listed.
    more_comms: u64,
    recording: Cow<'a, str>,
    /// Disk space of the recording, bytes.
    recording_bytes: Option<u64>,
    rank: Option<u32>,
    local_rank: Option<u32>,
    world_size: Option<u32>,
    host: Option<&'a str>,
    /// CUDA device.
    device: Option<u32>,
    command: Option<&'a str>,
    mode: Option<&'a str>,
    window: Window,
}

#[derive(Serialize)]
struct Comm {
    comm: String,
    comm_rank: Option<i32>,
    nranks: Option<u32>,
}

/// The open or requested window: each boundary is a time, `step 17` or `steps 3`.
#[derive(Serialize)]
struct Window {
    begins: Option<String>,
    ends: Option<String>,
    sample: u32,
    /// The window as text, such as `from next step, for 3 steps`.
    #[serde(skip)]
    text: String,
}

pub(crate) fn list(args: &LsArgs) -> Result<ExitCode, Failure> {
    let (found, problems) = asked(&[])?;
    problems.iter().for_each(|(pid, why)| warn(format_args!("process {pid}: {why}")));
    let about = at_once(&found, About::of);
    let rows = found.iter().zip(&about).map(|(process, about)| Row::of(process, about));
    let mut rows: Vec<Row<'_>> = rows.collect();
    rows.sort_by(|a, b| (a.job, a.rank, a.pid).cmp(&(b.job, b.rank, b.pid)));
    let is_empty = rows.is_empty();
    match args.format {
        TableFormat::Json => {
            output::json(&Listing { schema: "ncclscope.processes/2", processes: rows })?;
        }
        TableFormat::Csv => table(&rows).sheet().print_csv()?,
        TableFormat::Md => output::text(&table(&rows).sheet().markdown())?,
        TableFormat::Text if is_empty => {}
        TableFormat::Text => {
            let mut out = output::screen();
            let lines = table(&rows).lines("");
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            out.flush()?;
        }
    }
    if !is_empty {
        return Ok(ExitCode::SUCCESS);
    }
    if !problems.is_empty() {
        tell("no process of this user answers");
    } else {
        let dir = control::directory();
        tell(format_args!(
            "no process of this user is recorded (there is no socket in {})",
            dir.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::new(&[
        ("JOB", Align::Left),
        ("RANK", Align::Right),
        ("HOST", Align::Left),
        ("PID", Align::Right),
        ("GPU", Align::Right),
        ("RECORDED", Align::Left),
        ("WINDOW", Align::Left),
        ("STEP", Align::Right),
        ("SIZE", Align::Right),
        ("COMMUNICATORS", Align::Left),
        ("COMMAND", Align::Left),
        ("RECORDING", Align::Left),
    ]);
    let number = |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
    let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
    for row in rows {
        table.row(vec![
            text(row.job),
            number(row.rank.map(u64::from)),
            text(row.host),
            row.pid.to_string(),
            number(row.device.map(u64::from)),
            row.recorded.to_owned(),
            row.window.text.clone(),
            number(row.step),
            row.recording_bytes.map_or_else(|| "-".into(), human::bytes),
            row.comms_text(),
            text(row.command),
            row.recording.clone().into_owned(),
        ]);
    }
    table
}

impl Row<'_> {
    fn of<'a>(process: &'a Process, about: &'a About) -> Row<'a> {
        let status = &process.status;
        let identity = &about.identity;
        let comms = status.comms.iter().map(|member| Comm {
            comm: format!("{:#x}", member.hash),
            comm_rank: Some(member.rank).filter(|&rank| rank >= 0),
            // NCCL 2.23 to 2.26 do not report the number of ranks.
            nranks: Some(member.ranks).filter(|&ranks| ranks > 0),
        });
        Row {
            pid: process.pid,
            recorded: status.recorded.word(),
            job: Some(status.job.as_str()).filter(|job| !job.is_empty()),
            nccl_version: identity.nccl.clone().or_else(|| nccl_version(status.nccl_version)),
            step: status.step,
            comms: comms.collect(),
            more_comms: status.more_comms,
            recording: status.recording.to_string_lossy(),
            recording_bytes: about.bytes,
            rank: identity.rank,
            local_rank: identity.local_rank,
            world_size: identity.world_size,
            host: identity.host.as_deref(),
            device: identity.device,
            command: identity.command.as_deref(),
            mode: Some(status.mode.as_str()).filter(|mode| !mode.is_empty()),
            window: Window::of(&status.window),
        }
    }

    fn comms_text(&self) -> String {
        let Some(first) = self.comms.first() else { return "-".into() };
        let more = self.comms.len() as u64 - 1 + self.more_comms;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let of = first.nranks.map(|ranks| format!(" of {ranks}")).unwrap_or_default();
        let rank = first.comm_rank.map(|rank| format!(" rank {rank}{of}")).unwrap_or_default();
        format!("{}{rank}{more}", first.comm)
    }
}

impl Window {
    fn of(state: &WindowState) -> Window {
        let at = |boundary: Boundary| match boundary {
            Boundary::Time(ns) => Moment::from_ns(ns).rfc3339(),
            Boundary::Step(step) => format!("step {step}"),
            Boundary::Steps(0) => "next step".into(),
            Boundary::Steps(steps) => human::count(steps, "step"),
        };
        let (begins, ends) = (state.begins.map(at), state.ends.map(at));
        let until = if matches!(state.ends, Some(Boundary::Steps(_))) { "for" } else { "until" };
        let mut parts = Vec::new();
        parts.extend(begins.as_ref().map(|at| format!("from {at}")));
        parts.extend(ends.as_ref().map(|at| format!("{until} {at}")));
        parts.extend((state.sample > 1).then(|| format!("1 of {}", state.sample)));
        let text = if parts.is_empty() { "-".into() } else { parts.join(", ") };
        Window { begins, ends, sample: state.sample, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_control::message::{CommMember, ProcessStatus, Recorded};

    fn process(member: CommMember, window: WindowState) -> Process {
        let status = ProcessStatus {
            pid: 1,
            recorded: Recorded::Yes,
            job: String::new(),
            nccl_version: 0,
            step: None,
            comms: vec![member],
            more_comms: 1,
            recording: "".into(),
            mode: String::new(),
            window,
        };
        Process::new(1, status)
    }

    #[test]
    fn an_unknown_number_of_ranks_is_left_out() {
        let text = |ranks| {
            let member = CommMember { hash: 0x1f, rank: 3, ranks };
            Row::of(&process(member, WindowState::default()), &About::default()).comms_text()
        };
        assert_eq!(text(0), "0x1f rank 3 and 1 more");
        assert_eq!(text(8), "0x1f rank 3 of 8 and 1 more");
    }

    #[test]
    fn a_window_reads_as_a_phrase() {
        let text = |begins, ends, sample| Window::of(&WindowState { begins, ends, sample }).text;
        assert_eq!(text(None, None, 1), "-");
        let (next, steps) = (Some(Boundary::Steps(0)), Some(Boundary::Steps(1)));
        assert_eq!(text(next, steps, 16), "from next step, for 1 step, 1 of 16");
        assert_eq!(text(None, Some(Boundary::Time(0)), 1), "until 1970-01-01T00:00:00Z");
        assert_eq!(text(None, Some(Boundary::Step(7)), 1), "until step 7");
    }
}
