// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from PyTorch's traces: the NCCL kernels of all ranks.

A kernel's communicator is its process group if the trace has it, else all ranks. All members of a
group run its collectives in the same order, so kernels are matched by PyTorch's sequence number, or
else by counting kernels of one kind. Traces do not contain the peer of a SendRecv kernel: such
kernels count as a collective of the group if all members have the same number of them and each time
all run at once, as in an AllToAll; else they are ignored, with a note.
*/

mod archive;
mod ranks;
mod sessions;

pub use archive::{is_archive, is_trace};

use super::Error;
use super::kernels::{Key, SEND_RECV, UNKNOWN, beside, build, gaps};
use crate::model::{Job, Part, Worker};
use ncclscope_kineto::Trace;
use ncclscope_kineto::facts::Group;
use ncclscope_operations::function::Kind;
use ranks::Ranks;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum number of ranks that PyTorch writes of a process group.
const LISTED_BY_PYTORCH: usize = 30;

/// The job of some traces.
#[derive(Debug)]
pub struct Traces {
    /// The job.
    pub job: Job,
    /// Why some files cannot be read, a line each; the job is that of the others.
    pub unreadable: Vec<String>,
}

/// Reads traces: `.json` and `.json.gz` files, and `.tar`, `.tar.gz`, `.tgz` or `.zip` archives of
/// them.
///
/// # Errors
/// No file is a readable trace, none has an NCCL kernel, two have the same rank, or they are of two
/// jobs.
pub fn read(paths: &[PathBuf]) -> Result<Traces, Error> {
    let (mut traces, mut failed) = (Vec::new(), Vec::new());
    for path in paths {
        let found = match is_archive(path) {
            true => archive::unpack(path),
            false => Trace::scan(path)
                .map(|trace| (vec![trace], Vec::new()))
                .map_err(|e| Error::new(path, e)),
        };
        match found {
            Ok((of, bad)) => {
                traces.extend(of);
                failed.extend(bad);
            }
            Err(error) if error.is_of_place() => return Err(error),
            Err(error) => failed.push(error),
        }
    }
    let unreadable: Vec<String> = failed.iter().map(ToString::to_string).collect();
    if let (true, Some(error)) = (traces.is_empty(), failed.into_iter().next()) {
        return Err(error);
    }
    let (traces, notes) = sessions::choose(traces)?;
    let mut job = job(&traces)?;
    job.notes.splice(0..0, notes.into_iter().chain(unreadable.iter().cloned()));
    Ok(Traces { job, unreadable })
}

fn job(traces: &[Trace]) -> Result<Job, Error> {
    let ranks = Ranks::of(traces);
    let mut job = Job {
        is_kernel_timed: true,
        is_of_traces: true,
        shapes: vec![String::new()],
        unrecorded: missing(traces, &ranks),
        ..Job::default()
    };
    let mut groups: BTreeMap<Key, Vec<Part>> = BTreeMap::new();
    let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
    let origin = traces.iter().flat_map(|t| &t.kernels).map(|k| k.start_ns).min().unwrap_or(0);
    for (trace, &rank) in traces.iter().zip(&ranks.of) {
        if let Some(other) = job.workers.iter().position(|worker| worker.rank == rank) {
            let what = format!("it is of rank {rank} as is {}", traces[other].path.display());
            return Err(Error::new(&trace.path, what));
        }
        let host = trace.identity.host.clone().unwrap_or_default();
        let worker = job.workers.len();
        job.workers.push(Worker::new(rank, host));
        let world = trace.identity.rank.map(|(_, ranks)| ranks);
        add(&mut groups, &mut sizes, trace, worker, (origin, world));
    }
    job.beside = beside(traces.iter().map(|trace| &trace.beside));
    if groups.is_empty() {
        return Err(no_kernel(traces, job.beside));
    }
    build(&mut job, groups, &sizes);
    job.notes.extend(ranks.note);
    Ok(job)
}

fn no_kernel(traces: &[Trace], beside: Option<String>) -> Error {
    let path = traces.first().map_or_else(|| Path::new("."), |trace| &trace.path);
    let more = match traces.len() {
        0 | 1 => String::new(),
        traces => format!(", nor do the {} others", traces - 1),
    };
    let why = match beside {
        Some(beside) => format!(", but communication beside NCCL, which is not judged: {beside}"),
        None => ": profile with CUDA activities".into(),
    };
    Error::new(path, format!("it shows no NCCL kernel{more}{why}"))
}

/// The ranks without a trace, as inclusive ranges: of the world, whose size the traces have, and of
/// their process groups. Empty if the rank of a trace is unknown.
fn missing(traces: &[Trace], ranks: &Ranks) -> Vec<(u32, u32)> {
    if !ranks.is_known {
        return Vec::new();
    }
    let worlds = traces.iter().filter_map(|trace| trace.identity.rank).map(|(_, world)| world);
    let listed = traces.iter().flat_map(|trace| &trace.groups).flat_map(|group| &group.ranks);
    let end = worlds.chain(listed.map(|rank| rank.saturating_add(1))).max().unwrap_or(0);
    gaps(&ranks.of.iter().copied().collect(), end)
}

/// Identifies a process group in all traces. Its name is a number that each process counts for
/// itself, so that the ranks belong to it: as many as each trace has.
fn name(group: &Group) -> String {
    let first = group.ranks.iter().take(LISTED_BY_PYTORCH);
    let ranks = first.map(u32::to_string).collect::<Vec<_>>().join(",");
    match group.is_cut || group.ranks.len() > LISTED_BY_PYTORCH {
        true => format!("{} [{ranks},... {}]", group.name, group.size),
        false => format!("{} [{ranks}]", group.name),
    }
}

fn add(
    groups: &mut BTreeMap<Key, Vec<Part>>,
    sizes: &mut BTreeMap<String, u32>,
    trace: &Trace,
    worker: usize,
    (origin, world): (i64, Option<u32>),
) {
    let mut kernels: Vec<_> = trace.kernels.iter().collect();
    kernels.sort_by_key(|kernel| kernel.start_ns);
    let mut counts: BTreeMap<(String, &str, Option<u64>), usize> = BTreeMap::new();
    for kernel in kernels {
        let facts = &kernel.facts;
        let group = facts.group.and_then(|at| trace.groups.get(at));
        let ranks = group.map(|group| group.size).filter(|&size| size > 0).or(world);
        let comm = group.map_or_else(|| "all".to_owned(), name);
        if let Some(ranks) = ranks {
            sizes.insert(comm.clone(), ranks);
        }
        let func = facts.kind.map_or(UNKNOWN, Kind::name);
        let nth = counts.entry((comm.clone(), func, facts.seq)).or_default();
        // Members of an AllToAll may send different sizes.
        let bytes = facts.bytes.filter(|_| func != SEND_RECV);
        let key = Key { comm, func, bytes, seq: facts.seq, nth: *nth };
        *nth += 1;
        let time = |ns: i64| {
            let since = ns.saturating_sub(origin);
            let size = ncclscope_operations::stats::to_f64(since.unsigned_abs());
            if since < 0 { -size } else { size }
        };
        let part = Part { worker, start: time(kernel.start_ns), end: time(kernel.end_ns) };
        groups.entry(key).or_default().push(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::{self, Read};

    #[test]
    fn a_small_archive_does_not_fill_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traces.tar.gz");
        let out = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::fast());
        let mut archive = tar::Builder::new(out);
        let mut header = tar::Header::new_gnu();
        header.set_size(archive::LEAST_ROOM * 2);
        header.set_mode(0o600);
        header.set_cksum();
        archive
            .append_data(&mut header, "0.json", io::repeat(b' ').take(archive::LEAST_ROOM * 2))
            .unwrap();
        archive.into_inner().unwrap().finish().unwrap();
        let error = archive::unpack(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains("it unpacks to more than 100 times its size"), "{error}");
    }

    #[test]
    fn an_archive_without_a_trace_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.tar");
        for names in [&[][..], &["notes.txt"]] {
            let mut archive = tar::Builder::new(std::fs::File::create(&path).unwrap());
            for name in names {
                let mut header = tar::Header::new_gnu();
                header.set_size(0);
                header.set_mode(0o600);
                archive.append_data(&mut header, name, &b""[..]).unwrap();
            }
            archive.into_inner().unwrap();
            let error = read(std::slice::from_ref(&path)).unwrap_err();
            let says =
                format!("cannot read {}: it has no trace (*.json, *.json.gz)", path.display());
            assert_eq!((error.to_string(), error.is_of_place()), (says, false));
        }
    }
}
