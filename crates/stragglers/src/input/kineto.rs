// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from PyTorch's traces: the NCCL kernels of all ranks.

A kernel's communicator is its process group if the trace has it, else all ranks. All members of a
group run its collectives in the same order, so kernels are matched by PyTorch's sequence number, or
else by counting kernels of one kind. Traces do not contain the peer of a SendRecv kernel: such
kernels count as a collective of the group if all members have the same number of them and each time
all run at once, as in an AllToAll; else they are ignored, with a note.
*/

use super::Error;
use crate::model::{Collective, CollectiveClass, EndSync, Job, Part, Worker};
use flate2::read::MultiGzDecoder;
use ncclscope_kineto::Trace;
use ncclscope_operations::function::{Kind, is_rooted};
use ncclscope_operations::human;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tar::Archive;

/// Maximum ratio of an archive's unpacked size to its own; traces compress to a twentieth at best.
const MOST_TIMES: u64 = 100;
/// Unpacked size that any archive may have, bytes.
const LEAST_ROOM: u64 = 16 << 20;

/// Reads traces: `.json` and `.json.gz` files, and `.tar`, `.tar.gz` or `.tgz` archives of them.
///
/// # Errors
/// A file cannot be read or is not a trace, no file has an NCCL kernel, or two have the same rank.
pub fn read(paths: &[PathBuf]) -> Result<Job, Error> {
    let mut traces = Vec::new();
    for path in paths {
        if is_archive(path) {
            traces.extend(unpack(path)?);
        } else {
            traces.push(Trace::scan(path).map_err(|e| Error::new(path, e))?);
        }
    }
    job(&traces)
}

/// True if the file name is that of an archive of traces.
#[must_use]
pub fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end))
}

/// True if the file name is that of a trace.
#[must_use]
pub fn is_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".json", ".json.gz"].iter().any(|end| name.ends_with(end)) && name != "run.json"
}

/// Unpacks an archive into temporary files, because a trace may be read twice.
fn unpack(path: &Path) -> Result<Vec<Trace>, Error> {
    let error = |e: io::Error| Error::new(path, e);
    let file = ncclscope_trace::open_to_read(path).map_err(error)?;
    let packed = file.metadata().map_err(error)?.len();
    let is_plain = path.extension().is_some_and(|end| end == "tar");
    let bytes: Box<dyn Read> =
        if is_plain { Box::new(file) } else { Box::new(MultiGzDecoder::new(file)) };
    let mut left = packed.saturating_mul(MOST_TIMES).saturating_add(LEAST_ROOM);
    let mut archive = Archive::new(bytes);
    let mut traces = Vec::new();
    for entry in archive.entries().map_err(error)? {
        let mut entry = entry.map_err(error)?;
        let inside = entry.path().map_err(error)?.into_owned();
        if !entry.header().entry_type().is_file() || !is_trace(&inside) {
            continue;
        }
        let place = std::env::temp_dir();
        let no_place = |e: io::Error| Error::of_place(&place, e);
        let mut copy = tempfile::NamedTempFile::new_in(&place).map_err(no_place)?;
        let mut part = (&mut entry).take(left.saturating_add(1));
        let copied = copy_to(&mut part, &mut copy).map_err(|failed| match failed {
            CopyError::Read(e) => error(e),
            CopyError::Write(e) => no_place(e),
        })?;
        left = left.checked_sub(copied).ok_or_else(|| {
            let times = "it unpacks to more than 100 times its size: unpack it, and name the files";
            Error::new(path, times)
        })?;
        let mut trace = Trace::scan(copy.path()).map_err(|e| Error::new(&path.join(&inside), e))?;
        trace.path = path.join(inside);
        traces.push(trace);
    }
    match traces.is_empty() {
        true => Err(Error::new(path, "it has no trace (*.json, *.json.gz)")),
        false => Ok(traces),
    }
}

/// The side of a copy that failed.
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies everything and returns the number of bytes.
fn copy_to(from: &mut impl Read, to: &mut impl Write) -> Result<u64, CopyError> {
    let (mut buffer, mut copied) = (vec![0; 64 << 10], 0);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break to.flush().map(|()| copied).map_err(CopyError::Write),
            Ok(read) => {
                to.write_all(&buffer[..read]).map_err(CopyError::Write)?;
                copied += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(CopyError::Read(e)),
        }
    }
}

/// Identifies an operation on all ranks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    comm: String,
    func: &'static str,
    bytes: Option<u64>,
    seq: Option<u64>,
    /// Position among the operations with the same number; without a number, among all.
    nth: usize,
}

fn job(traces: &[Trace]) -> Result<Job, Error> {
    let mut job = Job { is_kernel_timed: true, shapes: vec![String::new()], ..Job::default() };
    let mut groups: BTreeMap<Key, Vec<Part>> = BTreeMap::new();
    let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
    let origin = traces.iter().flat_map(|t| &t.kernels).map(|k| k.start_ns).min().unwrap_or(0);
    for (trace, position) in traces.iter().zip(0u32..) {
        let rank = trace.identity.rank.map_or(position, |(rank, _)| rank);
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
    if groups.is_empty() {
        let path = traces.first().map_or_else(|| Path::new("."), |trace| &trace.path);
        let more = match traces.len() {
            0 | 1 => String::new(),
            traces => format!(", nor do the {} others", traces - 1),
        };
        let what = format!("it shows no NCCL kernel{more}: profile with CUDA activities");
        return Err(Error::new(path, what));
    }
    build(&mut job, groups, &sizes);
    Ok(job)
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
        let comm = group.map_or_else(
            || "all".to_owned(),
            |group| {
                // Group names are numbers that each process counts for itself, so that the ranks
                // identify a group.
                let ranks: Vec<String> = group.ranks.iter().map(u32::to_string).collect();
                format!("{} [{}]", group.name, ranks.join(","))
            },
        );
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

const SEND_RECV: &str = Kind::SendRecv.name();
/// The function of a kernel whose name does not contain it.
const UNKNOWN: &str = "unknown";

fn build(job: &mut Job, groups: BTreeMap<Key, Vec<Part>>, sizes: &BTreeMap<String, u32>) {
    let pairwise = pairwise(&groups);
    let mut left_out = 0;
    for (key, parts) in groups {
        if key.func == SEND_RECV && pairwise.contains(&key.comm) {
            left_out += parts.len();
            continue;
        }
        let members = sizes.get(&key.comm).copied().unwrap_or(0);
        let class =
            CollectiveClass { comm: key.comm, func: key.func.into(), bytes: key.bytes, members };
        let class = Job::intern(&mut job.classes, class);
        let may_end_apart = is_rooted(key.func) || key.func == UNKNOWN;
        let ends = if may_end_apart { EndSync::Apart } else { EndSync::Together };
        job.collectives.push(Collective {
            class,
            shape: 0,
            step: None,
            ends,
            has_ends: true,
            parts,
        });
    }
    // Without sequence numbers the keys are not in time order.
    job.collectives.sort_by(|a, b| first(a).total_cmp(&first(b)));
    if left_out > 0 {
        job.notes.push(format!(
            "{} ignored: the traces do not contain the other side",
            human::are(left_out, "SendRecv kernel")
        ));
    }
}

fn first(collective: &Collective) -> f64 {
    collective.parts.iter().map(|part| part.end).fold(f64::MAX, f64::min)
}

/// The communicators whose SendRecv kernels do not run on all members at once.
fn pairwise(groups: &BTreeMap<Key, Vec<Part>>) -> BTreeSet<String> {
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, parts) in groups.iter().filter(|(key, _)| key.func == SEND_RECV) {
        let count = most.entry(&key.comm).or_default();
        *count = parts.len().max(*count);
    }
    let apart = groups.iter().filter(|(key, parts)| {
        let last = parts.iter().map(|part| part.start).fold(f64::MIN, f64::max);
        let over = parts.iter().map(|part| part.end).fold(f64::MAX, f64::min);
        let all = most.get(key.comm.as_str()).copied();
        key.func == SEND_RECV && (last >= over || all != Some(parts.len()))
    });
    apart.map(|(key, _)| key.comm.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};

    #[test]
    fn a_small_archive_does_not_fill_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traces.tar.gz");
        let out = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::fast());
        let mut archive = tar::Builder::new(out);
        let mut header = tar::Header::new_gnu();
        header.set_size(LEAST_ROOM * 2);
        header.set_mode(0o600);
        header.set_cksum();
        archive.append_data(&mut header, "0.json", io::repeat(b' ').take(LEAST_ROOM * 2)).unwrap();
        archive.into_inner().unwrap().finish().unwrap();
        let error = unpack(&path).map(drop).unwrap_err().to_string();
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
