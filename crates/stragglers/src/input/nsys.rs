// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from Nsight Systems' SQLite exports: the NCCL kernels of all ranks.

A process is a rank, and of a process with several GPUs each GPU is one. A file has the processes of
a node, or of a rank. It has neither communicators nor sizes nor NCCL's numbers: `order` says
which kernels belong together, so that a finding is a suspicion. Ranks are those of MPI if all are
known, else positions, with a note.
*/

mod database;
mod export;
mod order;

pub use database::starts_as;

use super::Error;
use super::kernels::{DAY, UNKNOWN, beside, build, gaps};
use super::kineto::Traces;
use crate::model::{Job, Worker};
use export::{Export, Member};
use ncclscope_operations::function::Kind;
use ncclscope_operations::positions;
use order::{Joined, Line};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// True if the file name is that of an export.
#[must_use]
pub fn is_export(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".sqlite") && !name.starts_with("._")
}

/// Reads exports.
///
/// # Errors
/// No file is a readable export, none has an NCCL kernel, or they are not of one capture of one
/// job.
pub fn read(paths: &[PathBuf]) -> Result<Traces, Error> {
    let mut paths = paths.to_vec();
    paths.sort_by_cached_key(|path| positions::by_numbers(&path.to_string_lossy()));
    let (mut exports, mut failed) = (Vec::new(), Vec::new());
    for path in &paths {
        match Export::read(path) {
            Ok(export) => exports.push(export),
            Err(error) => failed.push(error),
        }
    }
    let unreadable: Vec<String> = failed.iter().map(ToString::to_string).collect();
    if let (true, Some(error)) = (exports.is_empty(), failed.into_iter().next()) {
        return Err(error);
    }
    let mut job = job(exports)?;
    job.notes.splice(0..0, unreadable.iter().cloned());
    Ok(Traces { job, unreadable })
}

fn job(exports: Vec<Export>) -> Result<Job, Error> {
    let beside = beside(exports.iter().map(|export| &export.beside));
    let (mut exports, without): (Vec<Export>, Vec<Export>) =
        exports.into_iter().partition(|export| !export.members.is_empty());
    if exports.is_empty() {
        return Err(no_kernel(&without, beside));
    }
    let mut job = Job {
        is_kernel_timed: true,
        is_of_traces: true,
        is_matched_by_time: true,
        shapes: vec![String::new()],
        beside,
        ..Job::default()
    };
    let is_one_time = on_one_time(&mut exports);
    if !is_one_time {
        let of = exports.iter().find(|export| export.epoch_ns.is_none());
        job.notes.extend(of.map(|export| {
            format!(
                "{} does not have the time of its begin: kernels are matched by their order and \
                 the distances of their ends",
                export.path.display()
            )
        }));
    }
    of_one_capture(&exports, is_one_time)?;
    job.notes.extend(
        without.iter().map(|export| {
            format!("{} is left out: it shows no NCCL kernel", export.path.display())
        }),
    );
    add_workers(&mut job, &exports);
    let ranks: Vec<u32> = job.workers.iter().map(|worker| worker.rank).collect();
    let Joined { groups, sizes, notes } = order::join(&lines(&exports), &ranks, is_one_time);
    if groups.is_empty() && job.workers.len() > 1 {
        let what = "its NCCL kernels and those of other ranks do not run at the same time: \
                    communicators are not in such files, and name all files of one job";
        return Err(Error::new(&exports[0].path, what));
    }
    build(&mut job, groups, &sizes);
    job.notes.extend(notes);
    if job.unrecorded.is_empty() {
        job.notes.push(
            "how many ranks the job has is unknown: one that was not captured may be the cause"
                .into(),
        );
    }
    job.notes.push("the files do not have the sizes of operations".into());
    Ok(job)
}

fn no_kernel(exports: &[Export], beside: Option<String>) -> Error {
    let path = exports.first().map_or_else(|| Path::new("."), |export| &export.path);
    let more = match exports.len() {
        0 | 1 => String::new(),
        files => format!(", nor do the {} others", files - 1),
    };
    let why = match beside {
        Some(beside) => format!(", but communication beside NCCL, which is not judged: {beside}"),
        None if exports.iter().any(|export| export.has_graphs) => {
            ", but whole CUDA graphs: profile with `nsys profile --trace=cuda \
             --cuda-graph-trace=node`"
                .into()
        }
        None => ": profile the ranks of a job with `nsys profile --trace=cuda`".into(),
    };
    Error::new(path, format!("it shows no NCCL kernel{more}{why}"))
}

/// Turns the times of each file into ns since 1970 if all files have their begin.
fn on_one_time(exports: &mut [Export]) -> bool {
    let is_one_time = exports.len() == 1 || exports.iter().all(|of| of.epoch_ns.is_some());
    for export in exports.iter_mut().filter(|_| is_one_time) {
        let epoch = export.epoch_ns.unwrap_or(0);
        for kernel in export.members.iter_mut().flat_map(|member| &mut member.kernels) {
            kernel.start = kernel.start.saturating_add(epoch);
            kernel.end = kernel.end.saturating_add(epoch);
        }
    }
    is_one_time
}

/// Refuses files of several captures or jobs.
fn of_one_capture(exports: &[Export], is_one_time: bool) -> Result<(), Error> {
    for (at, export) in exports.iter().enumerate() {
        for other in &exports[..at] {
            let path = other.path.display();
            let refuse = |what: String| Err(Error::new(&export.path, what));
            let is_one_host = !export.host.is_empty() && export.host == other.host;
            if let Some(pid) = shared(export, other, is_one_host) {
                return refuse(format!(
                    "it is of process {pid} as is {path}: name the files of one capture"
                ));
            }
            let ((begin, end), (begins, ends)) = (window(export), window(other));
            let gap = begin.saturating_sub(ends).max(begins.saturating_sub(end));
            if is_one_time && gap > if is_one_host { 0 } else { DAY } {
                return refuse(format!(
                    "its kernels do not run while those of {path} do: name the files of one capture"
                ));
            }
        }
    }
    Ok(())
}

/// A process that is in both files.
fn shared(one: &Export, two: &Export, is_one_host: bool) -> Option<u32> {
    let begin = |member: &Member| member.kernels.first().map(|kernel| (kernel.start, kernel.end));
    let is_same = |a: &Member, b: &Member| {
        (a.pid, a.device) == (b.pid, b.device) && (is_one_host || begin(a) == begin(b))
    };
    let of_two = |a: &&Member| two.members.iter().any(|b| is_same(a, b));
    one.members.iter().find(of_two).map(|member| member.pid)
}

/// The time from the first kernel to the last.
fn window(export: &Export) -> (i64, i64) {
    let kernels = || export.members.iter().flat_map(|member| &member.kernels);
    let begin = kernels().map(|kernel| kernel.start).min().unwrap_or(0);
    (begin, kernels().map(|kernel| kernel.end).max().unwrap_or(0))
}

fn add_workers(job: &mut Job, exports: &[Export]) {
    let members = || exports.iter().flat_map(|of| of.members.iter().map(move |it| (of, it)));
    let count = members().count();
    let ranks: BTreeSet<u32> = members().filter_map(|(_, member)| member.rank).collect();
    let is_known = ranks.len() == count;
    for ((export, member), position) in members().zip(0..) {
        let rank = member.rank.filter(|_| is_known).unwrap_or(position);
        job.workers.push(Worker {
            pid: Some(member.pid).filter(|&pid| pid != 0),
            device: Some(member.device),
            // The clock of the file.
            machine: export.path.display().to_string(),
            ..Worker::new(rank, export.host.clone())
        });
    }
    if is_known {
        job.unrecorded = gaps(&ranks, ranks.last().map_or(0, |last| last.saturating_add(1)));
        return;
    }
    let place = |((export, member), position): ((&Export, &Member), u32)| {
        let name = export.path.file_name().unwrap_or_default().to_string_lossy();
        let what = format!("process {} on GPU {} in {name}", member.pid, member.device);
        (position, what)
    };
    let places: Vec<(u32, String)> = members().zip(0..).map(place).collect();
    job.notes.push(format!(
        "ranks are positions, as the files do not have those of the job: {}",
        positions::list(places.into_iter())
    ));
}

/// The kernels of the workers, by function.
fn lines(exports: &[Export]) -> Vec<Line> {
    let origin = exports.iter().map(|export| window(export).0).min().unwrap_or(0);
    let time = |ns: i64| {
        let since = ns.saturating_sub(origin);
        let size = ncclscope_operations::stats::to_f64(since.unsigned_abs());
        if since < 0 { -size } else { size }
    };
    let mut lines = Vec::new();
    for (file, export) in exports.iter().enumerate() {
        for member in &export.members {
            let mut kernels: BTreeMap<&'static str, Vec<order::Span>> = BTreeMap::new();
            for kernel in &member.kernels {
                let func = kernel.kind.map_or(UNKNOWN, Kind::name);
                kernels.entry(func).or_default().push((time(kernel.start), time(kernel.end)));
            }
            lines.push(Line { file, kernels });
        }
    }
    lines
}
