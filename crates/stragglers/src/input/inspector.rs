// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from NCCL Inspector's files with times (`NCCL_INSPECTOR_DUMP_VERBOSE=1`).

A rank arrives when its host saw the first channel of the kernel start, and ends after the time that
the GPU's timer gives. Collectives are joined by NCCL's number. Without times of starts, the work of
a rank between its collectives is unknown, and so is who is slow: such files are refused.
*/

use crate::model::{Collective, CollectiveClass, EndSync, Job, Part, Worker};
use ncclscope_findings::CommId;
use ncclscope_inspector::{Collective as Read, FileFacts, Files, Found, Member, VERBOSE};
use ncclscope_operations::ends::is_stop_end;
use ncclscope_operations::function::is_rooted;
use ncclscope_operations::hash::Map;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::timeline::role_or_size;
use ncclscope_operations::{human, positions};
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

/// The communicator whose ranks are those of the job: the widest one, if all processes have it. If
/// it has room for all, and none is as wide, the files of some do not show it.
fn world(files: &Files) -> Option<&Member> {
    let members = || files.members().map(|(_, of)| &of.member);
    let widest = members().max_by_key(|member| member.nranks)?;
    let has = |file: &FileFacts| file.members.iter().any(|of| of.member.comm == widest.comm);
    let is_only = members().all(|other| other.comm == widest.comm || other.nranks < widest.nranks);
    let has_room = widest.nranks as usize >= files.facts.len();
    (files.facts.iter().all(has) || is_only && has_room).then_some(widest)
}

/// The positions of processes, by host and process id, and a note about them.
fn positions(files: &Files) -> (HashMap<usize, u32>, String) {
    let first = |file: &FileFacts| file.members.first().map(|of| of.member.clone());
    let places = files.facts.iter().zip(0..).filter_map(|(file, at)| Some((at, first(file)?)));
    let mut places: Vec<(usize, Member)> = places.collect();
    places.sort_by_cached_key(|(at, of)| (positions::by_numbers(&of.host), of.pid, *at));
    let list = places
        .iter()
        .zip(0..)
        .map(|((_, of), rank)| (rank, format!("process {} on {}", of.pid, of.host)));
    let note = format!(
        "no communicator has all processes, so that ranks are positions: {}",
        positions::list(list)
    );
    (places.iter().map(|(at, _)| *at).zip(0..).collect(), note)
}

/// Adds the workers, and returns their positions by file and rank in each communicator.
fn workers(files: &Files, job: &mut Job) -> Result<HashMap<WorkerKey, usize>, String> {
    for (_, of) in files.members() {
        let member = &of.member;
        let role = role_or_size(member.comm_name.as_deref(), Some(member.nranks));
        job.roles.insert(member.comm.clone(), role);
        let id = CommId { comm: member.comm.clone(), name: member.comm_name.clone() };
        job.comms.insert(member.comm.clone(), id);
    }
    let world = world(files);
    let (places, note) = match world {
        Some(_) => Default::default(),
        None => positions(files),
    };
    job.notes.extend(Some(note).filter(|note| !note.is_empty()));
    let size = world.map_or(0, |of| of.nranks);
    let world = world.map(|of| &*of.comm);
    let (mut workers, mut by_rank) = (HashMap::new(), HashMap::new());
    for (file, number) in files.facts.iter().zip(0..) {
        let comms = || file.members.iter().map(|of| &*of.member.comm);
        let several = comms().collect::<BTreeSet<&str>>().len() < comms().count();
        if several && comms().any(|comm| Some(comm) != world) {
            return Err(format!(
                "cannot judge {}: its process has several ranks, and which of them is which in \
                 other communicators is unknown",
                file.path.display()
            ));
        }
        let mut of_world = file.members.iter().filter(|of| Some(&*of.member.comm) == world);
        let single = of_world.next().map(|of| of.member.rank);
        for of in &file.members {
            let member = &of.member;
            let rank = if several { Some(member.rank) } else { single };
            let rank = rank.and_then(|rank| u32::try_from(rank).ok());
            // A process without the largest communicator has a number after all ranks.
            let later = || size.saturating_add(u32::try_from(number).unwrap_or(u32::MAX));
            let rank = rank.or_else(|| places.get(&number).copied()).unwrap_or_else(later);
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
    job.unrecorded = unrecorded(files, world);
    Ok(workers)
}

/// The ranks without a file. Without a communicator of all processes their numbers are unknown: as
/// many as one communicator lacks come after those that have one.
fn unrecorded(files: &Files, world: Option<&str>) -> Vec<(u32, u32)> {
    let mut missing = files.missing();
    if let Some(world) = world {
        return missing.remove(world).map_or_else(Vec::new, |(gaps, _)| gaps);
    }
    let count = |gaps: &[(u32, u32)]| gaps.iter().map(|(first, last)| last - first + 1).sum();
    let most: u32 = missing.values().map(|(gaps, _)| count(gaps)).max().unwrap_or(0);
    let first = u32::try_from(files.facts.len()).unwrap_or(u32::MAX);
    (most > 0).then(|| (first, first.saturating_add(most - 1))).into_iter().collect()
}
