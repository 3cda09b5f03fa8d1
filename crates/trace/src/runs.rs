// SPDX-License-Identifier: Apache-2.0
/*!
Groups recordings by run and by process, and finds the rank of each process.

A directory may hold several runs: a requeue, a second job, what an earlier job left. Only the
identity of the processes and their communicators distinguish them, not names or order of files.

1. Of several recordings of one process (a copy, a link, a dump), the one that ends last is used.
2. Processes that share a communicator are of one run. NCCL's hash of it may repeat
   (`NCCL_COMM_ID`), but no two processes have one rank of it.
3. Groups without a common communicator are of one run if nothing is against it: another job,
   launch or world size, a rank that both have, or times that do not overlap. If no launcher says
   that they belong together, by a job, a launch or their ranks, groups that have communicators of
   their own are different runs, and so are those with different releases of NCCL.
*/

use crate::error::Error;
use crate::identity::{Identity, ProcessId};
use crate::reader::Recording;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Greatest difference of hosts' clocks plus that of the start times of a run's processes, ns.
const BETWEEN_HOSTS_NS: u64 = 60_000_000_000;
/// Greatest difference of the start times of a run's processes on one host, ns.
const ON_HOST_NS: u64 = 1_000_000_000;
/// A run that ends this long after another one began counts as concurrent, ns. Less may be a
/// difference of the hosts' clocks.
const BESIDE_NS: u64 = 10_000_000_000;
/// Most runs that a line names, and most files with a line each.
const NAMED: usize = 8;

/// The reason in the line about a nameless recording.
pub const NAMELESS: &str =
    "is left out: it is damaged, and nothing is left that says which process it is of";

/// The facts of a recording that decide which run it belongs to.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// The recording.
    pub path: PathBuf,
    /// The process.
    pub identity: Identity,
    /// Its communicators: hash (0 if unknown), number of ranks, its rank, and ticks of its `init`.
    pub comms: Vec<(u64, u32, i32, u64)>,
    /// The first recorded time, ns since 1970; 0 if unknown.
    pub begin_ns: u64,
    /// The latest recorded time, ns since 1970; 0 if unknown.
    pub end_ns: u64,
    /// It is a copy that was made while recording continued.
    pub is_copy: bool,
    /// It is damaged, as far as that is known before all of it is read.
    pub is_damaged: bool,
    /// It is damaged, and nothing in it identifies its run.
    pub is_nameless: bool,
}

/// The recordings of one run, and its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Its id, which the user gives to choose it.
    pub id: String,
    /// Indices of its recordings, one for each process, in the order of processes.
    pub members: Vec<usize>,
    /// Its first recorded time, ns since 1970.
    pub begin_ns: u64,
    /// Its latest recorded time, ns since 1970.
    pub end_ns: u64,
}

/// Recordings by run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// The runs, the newest last.
    pub runs: Vec<Run>,
    /// Indices of recordings that are left out because their process has another one, each with the
    /// index of that one.
    pub repeated: Vec<(usize, usize)>,
    /// Indices of recordings that cannot be assigned to a run; empty if all recordings are of that
    /// kind.
    pub nameless: Vec<usize>,
}

impl ProcessFacts {
    /// The facts of a recording.
    #[must_use]
    pub fn of(recording: &Recording) -> ProcessFacts {
        let (clock, last) = (recording.tick_map(), recording.last_ticks());
        let comms = recording.comms().iter();
        let first = comms.clone().map(|comm| comm.ticks);
        let first = first.chain(recording.heartbeats().first().map(|beat| beat.ticks()));
        let first = first.chain(recording.marks().first().map(|mark| mark.ticks)).min();
        let is_damaged = !recording.damage().is_empty();
        let ns = |ticks| if recording.has_clock() { clock.realtime_ns(ticks) } else { 0 };
        ProcessFacts {
            path: recording.path().to_owned(),
            identity: recording.identity().clone(),
            comms: comms.map(|comm| (comm.hash, comm.ranks, comm.rank, comm.ticks)).collect(),
            begin_ns: ns(first.unwrap_or(last)),
            end_ns: ns(last),
            is_copy: recording.is_copy(),
            is_damaged,
            is_nameless: is_damaged
                && recording.comms().is_empty()
                && recording.identity().nonce.is_none(),
        }
    }

    /// A key that is different for each process. Without a nonce, processes in containers may share
    /// host name and process id, so the communicators are part of the key.
    fn process(&self) -> (ProcessId, Vec<(u64, u32, i32, u64)>) {
        let is_known = self.identity.nonce.is_some();
        (self.identity.process(), if is_known { Vec::new() } else { self.comms.clone() })
    }
}

impl Recording {
    /// Returns the recording if it has any content.
    ///
    /// # Errors
    /// [`Error::NothingLeft`] if it is damaged and has no communicator, no record and no heartbeat,
    /// so that its run is unknown.
    pub fn with_content(self) -> Result<Recording, Error> {
        let mut lanes = self.lanes().iter();
        let has_records = lanes.any(|lane| lane.blocks() + lane.recovered() > 0);
        let says_something =
            has_records || !self.comms().is_empty() || !self.heartbeats().is_empty();
        match says_something || self.damage().is_empty() {
            true => Ok(self),
            false => Err(Error::NothingLeft { whose: self.identity().whose() }),
        }
    }
}

impl Runs {
    /// Groups recordings by run.
    #[must_use]
    pub fn split(all: &[ProcessFacts]) -> Runs {
        let (mut processes, repeated) = distinct(all);
        let mut nameless: Vec<usize> =
            processes.iter().copied().filter(|&at| all[at].is_nameless).collect();
        if nameless.len() == processes.len() {
            nameless.clear();
        }
        processes.retain(|at| !nameless.contains(at));
        let mut groups = by_communicator(all, &processes);
        groups
            .sort_by_key(|group| group.members.first().map(|&at| (group.begin, all[at].process())));
        let mut runs: Vec<Group> = Vec::new();
        for group in groups {
            match runs.iter_mut().rev().find(|run| run.fits(&group)) {
                Some(run) => run.take(group),
                None => runs.push(group),
            }
        }
        let mut runs: Vec<Run> = runs.into_iter().map(|group| group.run(all)).collect();
        number_equal_ids(&mut runs);
        Runs { runs, repeated, nameless }
    }

    /// The run that the user chose, else the newest, or a larger one that is concurrent with it.
    /// `None` if there are no recordings.
    ///
    /// # Errors
    /// One sentence, if there is no run with that id.
    pub fn choose(&self, id: Option<&str>) -> Result<Option<&Run>, String> {
        let Some(id) = id else { return Ok(self.main()) };
        let found = self.runs.iter().find(|run| run.id == id);
        let missing = || format!("there is no run {id:?} here, but {}", self.names(None));
        found.map(Some).ok_or_else(missing)
    }

    /// The run with most processes among the newest and those concurrent with it; of equal ones the
    /// newest.
    fn main(&self) -> Option<&Run> {
        let newest = self.runs.last()?;
        let goes_on = |run: &&Run| run.end_ns > newest.begin_ns.saturating_add(BESIDE_NS);
        let beside = self.runs.iter().filter(goes_on);
        beside.chain([newest]).max_by_key(|run| (run.members.len(), run.begin_ns))
    }

    /// Lines about the recordings that are left out because their process has another one.
    #[must_use]
    pub fn copies(&self, all: &[ProcessFacts]) -> Vec<String> {
        let mut notes = Vec::new();
        for &(at, kept) in self.repeated.iter().take(NAMED) {
            let paths = [at, kept].map(|at| all[at].path.as_path());
            // Files of the same name are shown with their directories.
            let [at, kept] = match name(paths[0]) == name(paths[1]) {
                true => paths.map(|path| path.display().to_string()),
                false => paths.map(name),
            };
            notes.push(format!("{at} is left out: it is of the same process as {kept}"));
        }
        if self.repeated.len() > NAMED {
            let more = self.repeated.len() - NAMED;
            notes.push(format!("{more} more recordings are left out, of the same processes"));
        }
        notes
    }

    /// Lines about the recordings and runs that are left out, but for [`Runs::nameless`] ones,
    /// which are damaged.
    #[must_use]
    pub fn notes(&self, all: &[ProcessFacts], chosen: &Run) -> Vec<String> {
        let mut notes = self.copies(all);
        if self.runs.len() > 1 {
            let is = |run: Option<&Run>| run.is_some_and(|run| run.id == chosen.id);
            let which = match (is(self.runs.last()), is(self.main())) {
                (true, _) => "the newest, ",
                (false, true) => "the largest of those that go on at the same time, ",
                (false, false) => "",
            };
            notes.push(format!(
                "{} runs are here; this is {}{:?}; choose with --run ID: {}",
                self.runs.len(),
                which,
                chosen.id,
                self.names(Some(chosen))
            ));
        }
        notes
    }

    /// Names the runs other than `this`, the newest first.
    fn names(&self, this: Option<&Run>) -> String {
        let others = || self.runs.iter().rev().filter(|run| Some(*run) != this);
        let one = |run: &Run| {
            let count = run.members.len();
            format!("{:?} ({count} process{})", run.id, if count == 1 { "" } else { "es" })
        };
        let shown: Vec<String> = others().take(NAMED).map(one).collect();
        match others().count() - shown.len() {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }
}

/// The rank in the job of each process of a run: from its launcher, else its rank in the
/// communicator of all processes, else the lowest free rank, in the order of processes.
#[must_use]
pub fn ranks(run: &[&ProcessFacts]) -> Vec<u32> {
    let world = world(run);
    let mut ranks: Vec<Option<u32>> = run.iter().map(|one| one.identity.rank).collect();
    let mut taken: BTreeSet<u32> = ranks.iter().flatten().copied().collect();
    for (at, rank) in world {
        if ranks[at].is_none() && taken.insert(rank) {
            ranks[at] = Some(rank);
        }
    }
    let mut rest: Vec<usize> = (0..run.len()).filter(|&at| ranks[at].is_none()).collect();
    rest.sort_by_cached_key(|&at| run[at].process());
    let mut free = (0..).filter(|rank| !taken.contains(rank));
    for at in rest {
        ranks[at] = free.next();
    }
    ranks.into_iter().map(|rank| rank.unwrap_or(u32::MAX)).collect()
}

/// Index and rank of the members of the communicator of all processes; empty if there is none, or
/// if its ranks contradict those of a launcher.
fn world(run: &[&ProcessFacts]) -> BTreeMap<usize, u32> {
    let mut comms: BTreeMap<(u32, u64), BTreeMap<usize, u32>> = BTreeMap::new();
    for (at, one) in run.iter().enumerate() {
        for &(hash, nranks, rank, _) in &one.comms {
            if let Ok(rank) = u32::try_from(rank) {
                comms.entry((nranks, hash)).or_default().entry(at).or_insert(rank);
            }
        }
    }
    let is_world = |(nranks, _): &(u32, u64), members: &BTreeMap<usize, u32>| {
        let ranks: BTreeSet<u32> = members.values().copied().collect();
        let agrees = |(&at, rank): (&usize, &u32)| run[at].identity.rank.is_none_or(|r| r == *rank);
        *nranks as usize >= run.len() && ranks.len() == members.len() && members.iter().all(agrees)
    };
    let found = comms.into_iter().rev().find(|(key, members)| is_world(key, members));
    found.map(|(_, members)| members).unwrap_or_default()
}

/// The index of one recording for each process, in the order of processes; and the other
/// recordings, each with the index that replaces it.
fn distinct(all: &[ProcessFacts]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let mut by_process: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, one) in all.iter().enumerate() {
        by_process.entry(one.process()).or_default().push(at);
    }
    let (mut kept, mut repeated) = (Vec::new(), Vec::new());
    for same in by_process.into_values() {
        let length = |&at: &usize| (all[at].end_ns, !all[at].is_damaged, !all[at].is_copy);
        // Of equal ones the first by path.
        let best = same.iter().copied().reduce(|best, at| {
            let is_better = length(&at)
                .cmp(&length(&best))
                .then_with(|| all[best].path.cmp(&all[at].path))
                .is_gt();
            if is_better { at } else { best }
        });
        kept.extend(best);
        let others = same.iter().filter(|&&at| Some(at) != best);
        repeated.extend(others.zip(best.into_iter().cycle()).map(|(&at, best)| (at, best)));
    }
    repeated.sort_by(|a, b| all[a.0].path.cmp(&all[b.0].path));
    (kept, repeated)
}

/// Processes of one run.
#[derive(Default)]
struct Group {
    members: Vec<usize>,
    jobs: BTreeSet<String>,
    launches: BTreeSet<String>,
    worlds: BTreeSet<u32>,
    ranks: BTreeSet<u32>,
    machines: BTreeSet<String>,
    /// The releases of NCCL.
    releases: BTreeSet<String>,
    /// Its processes had a communicator with others.
    has_met: bool,
    /// All communicators of its processes are known, by hash, and some have others in them.
    has_graph: bool,
    begin: u64,
    end: u64,
}

impl Group {
    fn add(&mut self, at: usize, one: &ProcessFacts) {
        let identity = &one.identity;
        self.jobs.extend(identity.job.clone());
        self.launches.extend(identity.run.clone());
        self.worlds.extend(identity.world_size);
        self.ranks.extend(identity.rank);
        self.machines.insert(identity.machine().to_owned());
        self.releases.extend(identity.nccl.clone());
        self.has_met |= one.comms.iter().any(|&(_, ranks, ..)| ranks > 1);
        // What is damaged may lack the communicator with the others.
        let is_known = !one.is_damaged && one.comms.iter().all(|&(hash, ..)| hash != 0);
        let is_first = self.members.is_empty();
        self.has_graph = self.has_met && is_known && (self.has_graph || is_first);
        // 0: unknown.
        self.begin = match (self.begin, one.begin_ns) {
            (0, begin) | (begin, 0) => begin,
            (known, begin) => known.min(begin),
        };
        self.end = self.end.max(one.end_ns);
        self.members.push(at);
    }

    /// Whether nothing shows that `other` is of another run.
    fn fits(&self, other: &Group) -> bool {
        fn agree<T: Ord>(a: &BTreeSet<T>, b: &BTreeSet<T>) -> bool {
            a.is_empty() || b.is_empty() || !a.is_disjoint(b)
        }
        let is_one_host = !self.machines.is_disjoint(&other.machines);
        // Of one run, processes that all met their peers ran at the same time.
        let slack = match (is_one_host, self.has_met && other.has_met) {
            (true, true) => 0,
            (true, false) => ON_HOST_NS,
            (false, _) => BETWEEN_HOSTS_NS,
        };
        let is_one_launch = !self.launches.is_disjoint(&other.launches)
            && !self.ranks.is_empty()
            && !other.ranks.is_empty();
        let may_be = agree(&self.jobs, &other.jobs)
            && agree(&self.launches, &other.launches)
            && agree(&self.worlds, &other.worlds)
            && self.ranks.is_disjoint(&other.ranks);
        let has_ids =
            !self.launches.is_disjoint(&other.launches) || !self.jobs.is_disjoint(&other.jobs);
        let has_ranks = !self.ranks.is_empty() && !other.ranks.is_empty();
        let is_apart = self.has_graph && other.has_graph && !has_ranks
            || !agree(&self.releases, &other.releases);
        if is_apart && !has_ids {
            return false;
        }
        // One launch starts each rank once, and a rank may be gone before others have met.
        if may_be && is_one_launch {
            return true;
        }
        may_be
            && other.begin <= self.end.saturating_add(slack)
            && self.begin <= other.end.saturating_add(slack)
    }

    fn take(&mut self, other: Group) {
        self.members.extend(other.members);
        self.jobs.extend(other.jobs);
        self.launches.extend(other.launches);
        self.worlds.extend(other.worlds);
        self.ranks.extend(other.ranks);
        self.machines.extend(other.machines);
        self.releases.extend(other.releases);
        self.has_met |= other.has_met;
        self.has_graph |= other.has_graph;
        self.begin = self.begin.min(other.begin);
        self.end = self.end.max(other.end);
    }

    fn run(mut self, all: &[ProcessFacts]) -> Run {
        self.members.sort_by_cached_key(|&at| all[at].process());
        let one = |of: BTreeSet<String>| if of.len() == 1 { of.into_iter().next() } else { None };
        let comms = self.members.iter().flat_map(|&at| &all[at].comms);
        let comms = comms.filter(|comm| comm.0 != 0);
        let widest = comms.max_by_key(|comm| (comm.1, std::cmp::Reverse(comm.0)));
        let first = self.members.first().map(|&at| name(&all[at].path));
        let id = one(self.launches)
            .or_else(|| one(self.jobs))
            .or_else(|| widest.map(|comm| format!("{:#x}", comm.0)))
            .or(first);
        Run {
            id: id.unwrap_or_default(),
            members: self.members,
            begin_ns: self.begin,
            end_ns: self.end,
        }
    }
}

/// Groups of processes with common communicators.
fn by_communicator(all: &[ProcessFacts], processes: &[usize]) -> Vec<Group> {
    let mut order: Vec<usize> = processes.to_vec();
    // A process with an unknown time belongs to the others of its communicators.
    order.sort_by_cached_key(|&at| (all[at].begin_ns == 0, all[at].begin_ns, all[at].process()));
    // The latest communicator of a hash: who is in it, and the ranks that are taken.
    let mut latest: HashMap<u64, (usize, BTreeSet<i32>)> = HashMap::new();
    let mut leaders: Vec<usize> = (0..all.len()).collect();
    for at in order {
        let mut own: BTreeMap<u64, BTreeSet<i32>> = BTreeMap::new();
        for &(hash, _, rank, _) in all[at].comms.iter().filter(|comm| comm.0 != 0) {
            own.entry(hash).or_default().insert(rank);
        }
        for (hash, ranks) in own {
            match latest.get_mut(&hash) {
                Some((other, taken)) if taken.is_disjoint(&ranks) => {
                    taken.extend(ranks);
                    let (a, b) = (leader(&mut leaders, at), leader(&mut leaders, *other));
                    leaders[a] = b;
                }
                _ => {
                    latest.insert(hash, (at, ranks));
                }
            }
        }
    }
    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for &at in processes {
        let of = leader(&mut leaders, at);
        groups.entry(of).or_default().add(at, &all[at]);
    }
    groups.into_values().collect()
}

/// The representative of a group in the union-find forest; shortens the path to it.
fn leader(leaders: &mut [usize], mut at: usize) -> usize {
    while leaders[at] != at {
        leaders[at] = leaders[leaders[at]];
        at = leaders[at];
    }
    at
}

/// Appends `#1`, `#2` and so on, from the oldest, to ids that several runs have.
fn number_equal_ids(runs: &mut [Run]) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for run in runs.iter() {
        *counts.entry(run.id.clone()).or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    let mut given: HashMap<String, usize> = HashMap::new();
    for run in runs.iter_mut().filter(|run| counts.contains_key(&run.id)) {
        let number = given.entry(run.id.clone()).or_default();
        *number += 1;
        run.id = format!("{}#{number}", run.id);
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Rank `rank` of a launch that began at second `at` and ran for a minute.
    fn process(run: Option<&str>, rank: u32, at: u64) -> ProcessFacts {
        let mut identity = Identity { pid: Some(100 + rank), ..Identity::default() };
        identity.set("host", "node");
        identity.set("nonce", &format!("{at:04x}{rank:04x}"));
        identity.set("rank", &rank.to_string());
        identity.run = run.map(str::to_owned);
        ProcessFacts {
            path: format!("node-{}.nscope{at}", 100 + rank).into(),
            identity,
            comms: vec![(0x1000 + at, 4, rank.cast_signed(), 1)],
            begin_ns: at * SECOND,
            end_ns: (at + 60) * SECOND,
            is_copy: false,
            is_damaged: false,
            is_nameless: false,
        }
    }

    fn launch(run: Option<&str>, at: u64) -> Vec<ProcessFacts> {
        (0..4).map(|rank| process(run, rank, at)).collect()
    }

    fn sizes(runs: &Runs) -> Vec<(&str, usize)> {
        runs.runs.iter().map(|run| (run.id.as_str(), run.members.len())).collect()
    }

    #[test]
    fn a_requeue_in_the_same_directory_is_another_run() {
        let all = [launch(Some("7/0"), 100), launch(Some("7/1"), 170)].concat();
        let runs = Runs::split(&all);
        assert_eq!(sizes(&runs), [("7/0", 4), ("7/1", 4)]);
        let newest = runs.choose(None).unwrap().unwrap();
        assert_eq!((newest.id.as_str(), &newest.members[..]), ("7/1", &[4, 5, 6, 7][..]));
        let notes = runs.notes(&all, newest);
        let others = "; choose with --run ID: \"7/0\" (4 processes)";
        assert_eq!(notes, [format!("2 runs are here; this is the newest, \"7/1\"{others}")]);
        assert_eq!(runs.choose(Some("7/0")).unwrap().unwrap().members, [0, 1, 2, 3]);
        let missing = runs.choose(Some("8")).unwrap_err();
        assert!(missing.contains("\"8\"") && missing.contains("\"7/0\""), "{missing}");
    }

    #[test]
    fn a_process_with_an_unknown_time_makes_no_run_older() {
        for unknown in [0, 2] {
            let mut all = [launch(Some("7/0"), 100), launch(Some("7/1"), 170)].concat();
            (all[4 + unknown].begin_ns, all[4 + unknown].end_ns) = (0, 0);
            let runs = Runs::split(&all);
            assert_eq!(sizes(&runs), [("7/0", 4), ("7/1", 4)]);
            assert_eq!(runs.choose(None).unwrap().unwrap().id, "7/1");
        }
    }

    #[test]
    fn a_small_run_that_begins_later_does_not_hide_the_job_that_goes_on() {
        let mut all = [launch(Some("job"), 100), launch(Some("small"), 120)].concat();
        all.truncate(6);
        let runs = Runs::split(&all);
        let chosen = |runs: &Runs| runs.choose(None).unwrap().unwrap().id.clone();
        assert_eq!(chosen(&runs), "job");
        let notes = runs.notes(&all, runs.choose(None).unwrap().unwrap());
        assert!(
            notes[0].contains("this is the largest of those that go on at the same time, \"job\"")
        );
        // A run of the same size is a requeue, whose clock may be behind.
        let all = [launch(Some("job"), 100), launch(Some("again"), 120)].concat();
        assert_eq!(chosen(&Runs::split(&all)), "again");
        let mut all = [launch(Some("job"), 100), launch(Some("smaller"), 155)].concat();
        all.pop();
        assert_eq!(chosen(&Runs::split(&all)), "smaller", "the job was nearly over");
    }

    #[test]
    fn without_a_launcher_communicators_and_ranks_tell_runs_apart() {
        let all = [launch(None, 100), launch(None, 110)].concat();
        assert_eq!(sizes(&Runs::split(&all)), [("0x1064", 4), ("0x106e", 4)]);
        // NCCL before 2.28 gives no hash, and NCCL_COMM_ID always the same.
        for hash in [0, 5] {
            let mut same = all.clone();
            same.iter_mut().for_each(|one| one.comms[0].0 = hash);
            let runs = Runs::split(&same);
            let members: Vec<&[usize]> = runs.runs.iter().map(|run| &run.members[..]).collect();
            assert_eq!(members, [[0, 1, 2, 3], [4, 5, 6, 7]], "{hash}");
            assert_ne!(runs.runs[0].id, runs.runs[1].id);
        }
    }

    /// A script that runs one program after another, without a launcher that sets ranks.
    #[test]
    fn programs_that_follow_one_another_at_once_are_runs_of_their_own() {
        let mut all = [launch(None, 100), launch(None, 161), launch(None, 222)].concat();
        for one in &mut all {
            one.identity.rank = None;
            one.end_ns += SECOND - 1;
        }
        assert_eq!(sizes(&Runs::split(&all)), [("0x1064", 4), ("0x10a1", 4), ("0x10de", 4)]);
        // A process that met none may be one of the first run that started late.
        all.truncate(5);
        all[4].comms.clear();
        assert_eq!(sizes(&Runs::split(&all)), [("0x1064", 5)]);
    }

    #[test]
    fn one_leftover_of_yesterday_is_no_member() {
        let mut all = launch(None, 100_000);
        let gone = all.remove(2);
        let mut old = process(None, 2, 100);
        old.comms.clear();
        all.push(old);
        assert_eq!(sizes(&Runs::split(&all)).iter().map(|run| run.1).collect::<Vec<_>>(), [1, 3]);
        // A process that started with the others and has no communicator is a member.
        all[3] = ProcessFacts { comms: Vec::new(), ..gone };
        assert_eq!(sizes(&Runs::split(&all)), [("0x196a0", 4)]);
    }

    #[test]
    fn what_is_of_no_known_process_is_no_run_beside_others() {
        let mut all = launch(Some("job"), 100);
        let lost = ProcessFacts {
            path: "lost.nscope".into(),
            is_nameless: true,
            ..ProcessFacts::default()
        };
        all.insert(1, lost.clone());
        let runs = Runs::split(&all);
        assert_eq!((sizes(&runs), &runs.nameless), (vec![("job", 4)], &vec![1]));
        assert_eq!(runs.notes(&all, &runs.runs[0]), [""; 0]);
        // A single nameless recording is shown.
        let runs = Runs::split(&[lost]);
        assert_eq!((runs.runs.len(), runs.nameless.len()), (1, 0));
    }

    /// A rank dies, and others of the same launch create their communicator only later.
    #[test]
    fn ranks_of_one_launch_are_one_run_whenever_they_met() {
        let mut all = [launch(Some("7/0"), 100), launch(Some("7/0"), 170)].concat();
        all.retain(|one| (one.identity.rank < Some(2)) == (one.begin_ns == 100 * SECOND));
        assert_eq!(sizes(&Runs::split(&all)), [("7/0", 4)]);
        all.iter_mut().for_each(|one| one.identity.run = None);
        assert_eq!(Runs::split(&all).runs.len(), 2);
    }

    #[test]
    fn groups_of_one_job_without_a_common_communicator_are_one_run() {
        let mut all = launch(Some("j"), 100);
        all[2].comms[0].0 = 9;
        all[3].comms[0].0 = 9;
        all[3].identity.set("host", "other");
        assert_eq!(sizes(&Runs::split(&all)), [("j", 4)]);
        all[2].identity.job = Some("b".into());
        all[0].identity.job = Some("a".into());
        assert_eq!(Runs::split(&all).runs.len(), 2);
    }

    /// Two programs that a user starts on one machine, without a launcher that sets ranks.
    #[test]
    fn communicators_of_their_own_are_two_runs_if_no_launcher_joins_them() {
        let two = |change: fn(&mut ProcessFacts)| {
            let mut all = launch(None, 100);
            all.truncate(4);
            for (at, one) in all.iter_mut().enumerate() {
                one.identity.rank = None;
                if at >= 2 {
                    one.comms[0].0 = 9;
                }
                change(one);
            }
            sizes(&Runs::split(&all)).into_iter().map(|run| run.1).collect::<Vec<_>>()
        };
        assert_eq!(two(|_| {}), [2, 2]);
        assert_eq!(two(|one| one.identity.job = Some("7".into())), [4], "a job id");
        assert_eq!(two(|one| one.identity.rank = one.identity.pid), [4], "told ranks");
        assert_eq!(two(|one| one.is_damaged = true), [4], "what is damaged shows nothing");
        // NCCL gives no hash, so that nothing tells the groups apart.
        assert_eq!(two(|one| one.comms[0].0 = 0), [4]);
        let release = |one: &mut ProcessFacts| {
            let minor = if one.comms[0].0 == 9 { 28 } else { 32 };
            one.identity.nccl = Some(format!("2.{minor}.3"));
            one.identity.rank = one.identity.pid;
        };
        assert_eq!(two(release), [2, 2], "two releases of NCCL");
        // A process that met none may be of either.
        assert_eq!(
            two(|one| if one.comms[0].0 == 9 {
                one.comms.clear()
            }),
            [4]
        );
    }

    #[test]
    fn a_process_counts_once_with_its_longest_recording() {
        let mut all = launch(None, 100);
        let mut dump = all[1].clone();
        (dump.path, dump.is_copy) = ("dump-1/node-101.nscope".into(), true);
        dump.end_ns -= SECOND;
        all.insert(0, dump);
        all.push(ProcessFacts { path: "z.nscope".into(), ..all[4].clone() });
        let runs = Runs::split(&all);
        assert_eq!((runs.runs.len(), &runs.repeated[..]), (1, &[(0, 2), (5, 4)][..]));
        let notes = runs.notes(&all, &runs.runs[0]);
        assert_eq!(
            notes[1],
            "z.nscope is left out: it is of the same process as node-103.nscope100"
        );
        // Of two that end together, the one that is not damaged.
        all[4].is_damaged = true;
        assert_eq!(Runs::split(&all).repeated, [(0, 2), (4, 5)]);
        // Processes in containers may share host name and process id, and here have no nonce.
        for one in &mut all {
            one.identity.set("nonce", "");
            one.identity.pid = Some(1);
        }
        assert_eq!(Runs::split(&all).runs[0].members.len(), 4);
    }

    #[test]
    fn a_told_rank_is_kept_and_the_others_follow_the_communicator_of_all() {
        let all = launch(None, 100);
        let mut shuffled: Vec<ProcessFacts> = [2, 0, 3, 1].map(|at| all[at].clone()).into();
        let of = |all: &[ProcessFacts]| ranks(&all.iter().collect::<Vec<_>>());
        assert_eq!(of(&shuffled), [2, 0, 3, 1]);
        shuffled[0].identity.rank = None;
        assert_eq!(of(&shuffled), [2, 0, 3, 1]);
        shuffled[2].identity.rank = Some(1);
        assert_eq!(of(&shuffled), [2, 0, 1, 1], "two launchers");
        // The communicator's ranks are not the job's, so the free ranks are given in the order of
        // processes.
        let mut other = all;
        for one in &mut other {
            one.identity.rank = one.identity.rank.filter(|&rank| rank == 1).map(|_| 0);
        }
        assert_eq!(of(&other), [1, 0, 2, 3]);
    }
}
