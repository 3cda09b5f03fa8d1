// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from NCCL Inspector's files with times (`NCCL_INSPECTOR_DUMP_VERBOSE=1`).

A rank arrives when its host saw the first channel of the kernel start, and ends after the time that
the GPU's timer gives. Collectives are joined by NCCL's number. Without times of starts, the work of
a rank between its collectives is unknown, and so is who is slow: such files are refused.
*/

use crate::model::{Collective, CollectiveClass, EndSync, Job, Part, Worker};
use ncclscope_findings::CommId;
use ncclscope_inspector::{Collective as Read, Files, Found, Member, VERBOSE};
use ncclscope_operations::ends::is_stop_end;
use ncclscope_operations::function::is_rooted;
use ncclscope_operations::hash::Map;
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::timeline::role_or_size;
use std::collections::{BTreeSet, HashMap};

/// Reads the job of these files, and what they lack.
///
/// # Errors
/// Why the first file cannot be read, if none can; or why the files do not show who is slow.
pub fn read(found: &Found) -> Result<(Job, Files), String> {
    let mut reader = Reader::default();
    let files = Files::read(found, |of, member, one| reader.add(of, member, one))?;
    if reader.collectives.is_empty() {
        let first = found.files.first().map_or_else(String::new, |path| path.display().to_string());
        let why = match files.members().any(|(_, of)| of.collectives > of.host_timed) {
            true => format!(
                "it has how long collectives took, and not when ranks called them, so that their \
                 own work is unknown: set {VERBOSE}; `ncclscope report` shows for which ranks the \
                 others waited"
            ),
            false => "it has no collective with a time by the GPU's timer".into(),
        };
        return Err(format!("cannot judge {first}: {why}"));
    }
    let job = reader.finish(&files)?;
    Ok((job, files))
}

/// A process has one rank of a communicator, or several: then the rank tells them apart.
type WorkerKey = (usize, i32);
/// Arrival and end of a worker's part, ns since the first one that was read.
type OwnTimes = (WorkerKey, f64, f64);

#[derive(Default)]
struct Reader {
    classes: HashMap<(CollectiveClass, String), u32>,
    collectives: Map<(u32, u64), Vec<OwnTimes>>,
    /// The first start, ns since 1970.
    origin: Option<u64>,
    left_out: usize,
}

impl Reader {
    fn add(&mut self, (file, _): (usize, usize), member: &Member, one: Read<'_>) {
        let Some(start) = one.start_ns.filter(|_| one.is_gpu_timed) else {
            self.left_out += 1;
            return;
        };
        let class = CollectiveClass {
            comm: member.comm.clone(),
            func: one.func.to_owned(),
            bytes: one.bytes,
            members: member.nranks,
        };
        let how = format!("{} {}", one.algo.unwrap_or_default(), one.proto.unwrap_or_default());
        let next = u32::try_from(self.classes.len()).unwrap_or(u32::MAX);
        let class = *self.classes.entry((class, how.trim().to_owned())).or_insert(next);
        let origin = *self.origin.get_or_insert(start);
        let since = to_f64(start.abs_diff(origin));
        let since = if start < origin { -since } else { since };
        let parts = self.collectives.entry((class, one.seq)).or_default();
        parts.push(((file, member.rank), since, since + one.ns));
    }

    fn finish(self, files: &Files) -> Result<Job, String> {
        let mut job = Job { is_kernel_timed: true, ..Job::default() };
        let workers = workers(files, &mut job)?;
        let mut classes: Vec<((CollectiveClass, String), u32)> = self.classes.into_iter().collect();
        classes.sort_unstable_by_key(|(_, number)| *number);
        let classes: Vec<(usize, usize)> = classes
            .into_iter()
            .map(|((class, how), _)| {
                (Job::intern(&mut job.classes, class), Job::intern(&mut job.shapes, how))
            })
            .collect();
        for ((class, _), parts) in self.collectives {
            let Some(&(class, shape)) = classes.get(class as usize) else { continue };
            let part = |&(key, start, end): &OwnTimes| {
                Some(Part { worker: *workers.get(&key)?, start, end })
            };
            let parts: Vec<Part> = parts.iter().filter_map(part).collect();
            let of: BTreeSet<usize> = parts.iter().map(|part| part.worker).collect();
            if of.len() < parts.len() {
                job.unmatched_replays += parts.len();
                continue;
            }
            let func = &job.classes[class].func;
            let algo = job.shapes[shape].split(' ').next().unwrap_or_default();
            job.collectives.push(Collective {
                class,
                shape,
                step: None,
                ends: if is_rooted(func) { EndSync::Apart } else { EndSync::Together },
                has_ends: is_stop_end(func, algo),
                parts,
            });
        }
        let first = |of: &Collective| of.parts.iter().map(|part| part.end).fold(f64::MAX, f64::min);
        job.collectives.sort_by(|a, b| first(a).total_cmp(&first(b)));
        if self.left_out > 0 {
            let are = human::are(self.left_out, "collective of a rank");
            job.notes.push(format!("{are} left out: when it began is unknown"));
        }
        job.notes.push("a rank arrives when its host saw its kernel start".into());
        job.notes.extend([files.damage(), files.gaps(), files.limits()].concat());
        job.notes.extend(files.dropped().map(|(_, what, _)| what));
        Ok(job)
    }
}

/// Adds the workers, and returns their positions by file and rank in each communicator.
fn workers(files: &Files, job: &mut Job) -> Result<HashMap<WorkerKey, usize>, String> {
    let members = || files.members().map(|(_, of)| &of.member);
    let world = members().max_by_key(|member| member.nranks);
    let (world, size) = (world.map(|of| of.comm.clone()), world.map_or(0, |of| of.nranks));
    for member in members() {
        let role = role_or_size(member.comm_name.as_deref(), Some(member.nranks));
        job.roles.insert(member.comm.clone(), role);
        let id = CommId { comm: member.comm.clone(), name: member.comm_name.clone() };
        job.comms.insert(member.comm.clone(), id);
    }
    let (mut workers, mut by_rank) = (HashMap::new(), HashMap::new());
    for (file, number) in files.facts.iter().zip(0..) {
        let of_world = file.members.iter().filter(|of| Some(&of.member.comm) == world.as_ref());
        let several = of_world.clone().count() > 1;
        if several && file.members.iter().any(|of| Some(&of.member.comm) != world.as_ref()) {
            return Err(format!(
                "cannot judge {}: its process has several ranks, and which of them is which in \
                 other communicators is unknown",
                file.path.display()
            ));
        }
        let single = of_world.clone().next().map(|of| of.member.rank);
        for of in &file.members {
            let member = &of.member;
            let rank = if several { Some(member.rank) } else { single };
            let rank = rank.and_then(|rank| u32::try_from(rank).ok());
            // A process without the largest communicator has a number after all ranks.
            let later = || size.saturating_add(u32::try_from(number).unwrap_or(u32::MAX));
            let rank = rank.unwrap_or_else(later);
            let at = *by_rank.entry(rank).or_insert_with(|| {
                let pid = Some(member.pid).filter(|&pid| pid != 0);
                job.workers.push(Worker { pid, ..Worker::new(rank, member.host.clone()) });
                job.workers.len() - 1
            });
            if of.dropped > 0 {
                job.gappy.insert(at);
            }
            workers.insert((number, member.rank), at);
        }
    }
    let largest = files.missing().into_iter().find(|(comm, _)| Some(*comm) == world.as_deref());
    job.unrecorded = largest.map_or_else(Vec::new, |(_, (gaps, _))| gaps);
    Ok(workers)
}
