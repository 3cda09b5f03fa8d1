// SPDX-License-Identifier: Apache-2.0
/*!
Processes of this machine that should record a job and have no recording yet.

NCCL loads the plugin at the end of `ncclCommInit…`: nothing is recorded of a job that hangs before
its first communicator. What can be seen then is in `/proc`: a process belongs to a run if its
`NCCLSCOPE_DIR` leads there; its launcher's variables give its rank; and a rank that waits in
`ncclCommInit…` for others has loaded NCCL and holds the sockets on which NCCL expects them. Other
machines, and processes of other users, cannot be seen.
*/

use crate::files::{host_name, recordings_in};
use crate::nccl::{Release, is_library};
use ncclscope_control::directories::above_placeholders;
use ncclscope_control::launcher::JobPosition;
use ncclscope_control::table::{DIR, MODE};
use ncclscope_control::value::Mode;
use ncclscope_operations::human::{count, list_of_ranges};
use ncclscope_process::{Call, Sockets, calls, sockets};
use ncclscope_trace::names::{is_recording_path, pid_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long processes may record nothing before that is reported; programs need time to load.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of ranks that are named one by one.
const NAMED: usize = 16;
/// NCCL's variable for its interfaces.
const IFNAME: &str = "NCCL_SOCKET_IFNAME";

/// A process without a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    name: String,
    place: JobPosition,
    /// The file of NCCL's library, if it has loaded it.
    nccl: Option<PathBuf>,
    /// What it was started with to choose NCCL's interfaces.
    interfaces: Option<String>,
    /// The function in which it creates a communicator, if the system shows it.
    call: Option<Call>,
    sockets: Sockets,
    is_stopped: bool,
}

/// The processes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unrecorded {
    /// The processes without a recording, by rank; without ranks, by process id.
    processes: Vec<Process>,
    /// The ranks of processes that record.
    recorded: BTreeSet<u32>,
}

impl Unrecorded {
    /// The processes whose recordings belong to one of these directories.
    pub fn find(directories: &[PathBuf]) -> Unrecorded {
        if directories.is_empty() {
            return Unrecorded::default();
        }
        let directories: Vec<PathBuf> = directories.iter().map(|path| real(path)).collect();
        let files = directories.iter().flat_map(|path| recordings_in(path).unwrap_or_default());
        let host = host_name();
        let with_recording: BTreeSet<u32> = files.filter_map(|file| pid_of(&file, &host)).collect();
        let (mut recorded, mut others) = (Vec::new(), Vec::new());
        for pid in numbers(Path::new("/proc")) {
            let Some(environment) = environment(pid) else { continue };
            if !records_into(pid, &environment, &directories) {
                continue;
            }
            let place = JobPosition::of(|name| environment.get(name).cloned());
            // In a container, host name and process id differ from those in the file's name.
            let of = if with_recording.contains(&pid) || holds_recording(pid) {
                &mut recorded
            } else {
                &mut others
            };
            of.extend(process(pid, place, environment.get(IFNAME).cloned()));
        }
        let mut found = Unrecorded::among(&recorded, others);
        // Not at those that record: a look at a process that computes takes a while.
        found.processes.iter_mut().for_each(Process::look);
        found
    }

    /// The ranks among `others` that have no recording, in a run in which `recorded` have one.
    fn among(recorded: &[Process], mut others: Vec<Process>) -> Unrecorded {
        // A rank's children, such as data loaders, have its variables and libraries. A launcher
        // such as torchrun has loaded NCCL, too.
        others.retain(|one| {
            recorded.iter().all(|other| other.pid != one.parent && other.parent != one.pid)
        });
        let recorded: BTreeSet<u32> = recorded.iter().filter_map(|one| one.place.rank).collect();
        let mut processes = one_for_each_rank(others);
        let is_other = |rank: Option<u32>| match rank {
            Some(rank) => !recorded.contains(&rank),
            None => recorded.is_empty(),
        };
        processes.retain(|one| is_other(one.place.rank));
        Unrecorded { processes, recorded }
    }

    /// What these processes do, one line each; `None` if there are none.
    pub fn lines(&self) -> Option<Vec<String>> {
        if self.processes.is_empty() {
            return None;
        }
        let size = self.processes.iter().filter_map(|one| one.place.world_size).max();
        let of = size.map_or_else(String::new, |size| format!(" of the job's {size}"));
        let (count, are) = match self.processes.len() {
            1 => ("1 process".to_owned(), "is"),
            many => (format!("{many} processes"), "are"),
        };
        let mut lines = vec![format!(
            "{count}{of} {are} on this machine without a recording, which begins with the first \
             communicator"
        )];
        let mut versions = BTreeMap::new();
        lines.extend(self.processes.iter().take(NAMED).map(|one| one.text(&mut versions)));
        let more = self.processes.len().saturating_sub(NAMED);
        if more > 0 {
            lines.push(format!("{more} more are not listed"));
        }
        let missing = size.map(|size| self.missing(size)).unwrap_or_default();
        if !missing.is_empty() {
            let s = if matches!(missing[..], [(first, last)] if first == last) { "" } else { "s" };
            lines.push(format!(
                "rank{s} {} of {} cannot be seen here: not started, on another machine, or of \
                 another user",
                list_of_ranges(&missing, NAMED),
                size.unwrap_or_default()
            ));
        }
        Some(lines)
    }

    /// The ranks without a process on this machine, as ranges, because a job may claim any size.
    fn missing(&self, size: u32) -> Vec<(u32, u32)> {
        let mut here: BTreeSet<u32> =
            self.processes.iter().filter_map(|one| one.place.rank).collect();
        if here.is_empty() {
            return Vec::new();
        }
        here.extend(&self.recorded);
        let mut gaps = Vec::new();
        let mut next = 0;
        for rank in here.range(..size).copied().chain([size]) {
            if next < rank {
                gaps.push((next, rank - 1));
            }
            next = rank.saturating_add(1);
        }
        gaps
    }
}

impl Process {
    /// What it does, with the versions of libraries that are known so far.
    fn text(&self, versions: &mut BTreeMap<PathBuf, Option<String>>) -> String {
        let who = match self.place.rank {
            Some(rank) => format!("rank {rank} ({}, pid {})", self.name, self.pid),
            None => format!("{} (pid {})", self.name, self.pid),
        };
        let does = match (&self.nccl, &self.call, self.sockets.listening.len()) {
            _ if self.is_stopped => "is stopped, by a signal (SIGSTOP) or a debugger".to_owned(),
            (None, ..) => "has not loaded NCCL".to_owned(),
            (Some(library), Some(call), _) => {
                let version = versions.entry(library.clone()).or_insert_with(|| version(library));
                self.stands_in(call.function, version.as_deref())
            }
            (_, None, 0) => "has loaded NCCL, and does not wait in ncclCommInit for other ranks: \
                             it holds no listening socket"
                .to_owned(),
            (_, None, many) => format!(
                "has loaded NCCL; it holds {}, as a rank that waits in ncclCommInit does, and as \
                 NCCL's RAS does in a rank that does something else",
                count(many, "listening socket")
            ),
        };
        format!("{who} {does}")
    }

    /// Looks at its threads, if it has loaded NCCL, and at its sockets.
    fn look(&mut self) {
        let directory = PathBuf::from(format!("/proc/{}", self.pid));
        if self.nccl.is_some() {
            self.call = calls(&directory).calls.into_iter().next();
        }
        self.sockets = sockets(&directory);
    }

    /// That it stands in a function, to whom it connects, where it waits, and with which NCCL.
    fn stands_in(&self, function: &str, version: Option<&str>) -> String {
        let mut text = format!("is in {function}, its first communicator");
        if !self.sockets.connecting.is_empty() {
            let to = list(self.sockets.connecting.iter());
            text += &format!("; it connects to {to}, without an answer");
        }
        let own = self.sockets.own_addresses();
        if !own.is_empty() {
            text += &format!("; it waits for others at {}", list(own.iter()));
        }
        let interfaces = self.interfaces.iter();
        interfaces.for_each(|names| text += &format!(" ({IFNAME}={names})"));
        version.iter().for_each(|version| text += &format!("; its NCCL is {version}"));
        text
    }
}

/// The version of a library.
fn version(library: &Path) -> Option<String> {
    Some(Release::of(library).ok()??.text)
}

fn list<T: std::fmt::Display>(all: impl Iterator<Item = T>) -> String {
    all.take(NAMED).map(|one| one.to_string()).collect::<Vec<_>>().join(", ")
}

/// Notices processes that record nothing for too long, and reports them once.
#[derive(Debug, Default)]
pub struct Patience {
    since: BTreeMap<u32, Instant>,
    told: BTreeSet<u32>,
}

impl Patience {
    /// The lines about the processes, if all of them have recorded nothing for a while and some of
    /// them were not reported yet.
    pub fn look(&mut self, found: &Unrecorded, now: Instant) -> Option<Vec<String>> {
        let pids: BTreeSet<u32> = found.processes.iter().map(|one| one.pid).collect();
        self.since.retain(|pid, _| pids.contains(pid));
        for &pid in &pids {
            self.since.entry(pid).or_insert(now);
        }
        let has_waited = |since: &Instant| now.duration_since(*since) >= PATIENCE;
        if !self.since.values().all(has_waited) || pids.is_subset(&self.told) {
            return None;
        }
        self.told = pids;
        found.lines()
    }
}

/// For each rank the process that has NCCL loaded, else the one started last, because scripts start
/// programs. Processes without a rank count only if no process has one.
fn one_for_each_rank(all: Vec<Process>) -> Vec<Process> {
    let has_ranks = all.iter().any(|one| one.place.rank.is_some());
    let with_nccl: BTreeSet<u32> =
        all.iter().filter(|one| one.nccl.is_some()).map(|one| one.pid).collect();
    let mut best: BTreeMap<u32, Process> = BTreeMap::new();
    for one in all {
        match one.place.rank {
            None if has_ranks || one.nccl.is_none() || with_nccl.contains(&one.parent) => {}
            None => {
                best.insert(one.pid, one);
            }
            Some(rank) => {
                let known = best.get(&rank);
                let is_better =
                    known.is_none_or(|known| match (known.nccl.is_some(), one.nccl.is_some()) {
                        (true, true) => one.pid < known.pid,
                        (false, false) => one.pid > known.pid,
                        (known, _) => !known,
                    });
                if is_better {
                    best.insert(rank, one);
                }
            }
        }
    }
    best.into_values().collect()
}

fn process(pid: u32, place: JobPosition, interfaces: Option<String>) -> Option<Process> {
    let of = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let stat = String::from_utf8_lossy(&fs::read(of("stat")).ok()?).into_owned();
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let (state, parent) = (fields.next()?.bytes().next()?, fields.next()?.parse().ok()?);
    if matches!(state, b'Z' | b'X') {
        return None;
    }
    let maps = fs::read(of("maps")).ok()?;
    let library = files(&maps).find(|file| is_nccl(file));
    // In a container the path leads elsewhere.
    let in_root = |file: &Path| Some(of("root").join(file.strip_prefix("/").ok()?));
    let nccl = library.map(|file| in_root(file).unwrap_or_else(|| file.to_owned()));
    Some(Process {
        pid,
        parent,
        name: fs::read_to_string(of("comm")).unwrap_or_default().trim_end().to_owned(),
        place,
        nccl,
        interfaces,
        call: None,
        sockets: Sockets::default(),
        is_stopped: matches!(state, b'T' | b't'),
    })
}

/// The files that a process has mapped, from its `maps` (`proc_pid_maps(5)`).
pub fn files(maps: &[u8]) -> impl Iterator<Item = &Path> + Clone {
    maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|&byte| byte == b'/')?;
        Some(Path::new(OsStr::from_bytes(&line[at..])))
    })
}

/// True if the file is NCCL's library, or RCCL's.
pub fn is_nccl(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_library(&name.to_string_lossy()))
}

/// True if the process has a recording open, under any name.
fn holds_recording(pid: u32) -> bool {
    open_files(pid).any(|file| is_recording_path(&file))
}

fn open_files(pid: u32) -> impl Iterator<Item = PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|file| fs::read_link(file.path()).ok())
}

/// The environment with which a process was started; `None` if it is not readable.
fn environment(pid: u32) -> Option<HashMap<String, String>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let pair = |entry: &[u8]| {
        let entry = String::from_utf8_lossy(entry);
        entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    Some(bytes.split(|&byte| byte == 0).filter_map(pair).collect())
}

/// True if `NCCLSCOPE_DIR` of the process is one of the directories, is inside one, or has
/// placeholders from which one of them may result.
fn records_into(pid: u32, environment: &HashMap<String, String>, to: &[PathBuf]) -> bool {
    let is_off = |mode: &String| MODE.parse(mode.trim()) == Ok(Mode::Off);
    if environment.get(MODE.name).is_some_and(is_off) {
        return false;
    }
    let Some(set) = environment.get(DIR.name).filter(|set| !set.is_empty()) else { return false };
    let set = Path::new(set);
    let own = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let fixed = own.join(above_placeholders(set));
    let has_placeholders = above_placeholders(set) != set;
    let path = real(&fixed);
    // `/%h`, for example, may result in any directory.
    let may_be = |to: &Path| has_placeholders && path.parent().is_some() && to.starts_with(&path);
    to.iter().any(|to| path.starts_with(to) || may_be(to))
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// The entries of a directory whose names are numbers.
fn numbers(directory: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: u32, rank: Option<u32>, has_nccl: bool, listening: usize) -> Process {
        let place = JobPosition { rank, world_size: Some(6), ..JobPosition::default() };
        let (name, is_stopped) = ("python3".to_owned(), false);
        let socket = |port: usize| format!("10.0.0.2:{}", port + 1).parse().unwrap();
        let listening = (0..listening).map(socket).collect();
        let sockets = Sockets { listening, ..Sockets::default() };
        let nccl = has_nccl.then(|| "/nowhere/libnccl.so.2".into());
        let (call, interfaces) = (None, None);
        Process { pid, parent: 1, name, place, nccl, interfaces, call, sockets, is_stopped }
    }

    #[test]
    fn each_rank_is_told_with_what_it_does() {
        let stopped = Process { is_stopped: true, ..one(11, Some(3), true, 2) };
        let all = vec![
            one(5, Some(0), false, 0),
            one(7, Some(0), true, 2),
            one(8, Some(0), true, 0),
            one(9, Some(1), false, 0),
            one(10, Some(2), true, 0),
            stopped,
            one(4, None, true, 0),
        ];
        let processes = one_for_each_rank(all);
        let found = Unrecorded { processes, recorded: [4].into() };
        assert_eq!(
            found.lines().unwrap(),
            [
                "4 processes of the job's 6 are on this machine without a recording, which begins \
                 with the first communicator",
                "rank 0 (python3, pid 7) has loaded NCCL; it holds 2 listening sockets, as a rank \
                 that waits in ncclCommInit does, and as NCCL's RAS does in a rank that does \
                 something else",
                "rank 1 (python3, pid 9) has not loaded NCCL",
                "rank 2 (python3, pid 10) has loaded NCCL, and does not wait in ncclCommInit for \
                 other ranks: it holds no listening socket",
                "rank 3 (python3, pid 11) is stopped, by a signal (SIGSTOP) or a debugger",
                "rank 5 of 6 cannot be seen here: not started, on another machine, or of another \
                 user",
            ]
        );
        assert_eq!(Unrecorded::default().lines(), None);
    }

    #[test]
    fn a_rank_in_its_first_communicator_is_told_with_its_sockets() {
        let mut process = one(7, Some(1), true, 2);
        process.call = Some(Call { tid: 7, function: "ncclCommInitRank" });
        process.sockets.connecting = ["10.0.0.3:99".parse().unwrap()].into();
        process.interfaces = Some("docker0".into());
        let mut versions =
            [("/nowhere/libnccl.so.2".into(), Some("2.27.7+cuda12.9".into()))].into();
        assert_eq!(
            process.text(&mut versions),
            "rank 1 (python3, pid 7) is in ncclCommInitRank, its first communicator; it connects \
             to 10.0.0.3:99, without an answer; it waits for others at 10.0.0.2 \
             (NCCL_SOCKET_IFNAME=docker0); its NCCL is 2.27.7+cuda12.9"
        );
        process.call = None;
        assert!(process.text(&mut versions).contains("; it holds 2 listening sockets, as "));
    }

    #[test]
    fn a_job_may_claim_any_size() {
        let place =
            JobPosition { rank: Some(7), world_size: Some(u32::MAX), ..JobPosition::default() };
        let processes = vec![Process { place, ..one(1, None, true, 2) }];
        let found = Unrecorded { processes, recorded: [9, u32::MAX].into() };
        let lines = found.lines().unwrap();
        assert!(lines[2].starts_with("ranks 0-6, 8, 10-4294967294 of 4294967295 "), "{lines:?}");
    }

    #[test]
    fn what_a_process_starts_is_no_rank() {
        let loader = Process { parent: 7, ..one(8, None, true, 0) };
        let found = one_for_each_rank(vec![one(6, None, false, 0), one(7, None, true, 2), loader]);
        assert_eq!(found, [one(7, None, true, 2)]);
    }

    /// As observed with torchrun, whose agent has loaded NCCL with PyTorch and listens for its
    /// store.
    #[test]
    fn what_starts_ranks_is_no_rank() {
        let agent = one(5, None, true, 2);
        let rank = |pid, rank| Process { parent: 5, ..one(pid, rank, true, 1) };
        for recorded in [[rank(6, Some(0)), rank(7, Some(1))], [rank(6, None), rank(7, None)]] {
            assert_eq!(Unrecorded::among(&recorded, vec![agent.clone()]).lines(), None);
        }
        // Started through another process, such as a shell.
        let far = [Process { parent: 9, ..one(6, Some(0), true, 1) }];
        assert_eq!(Unrecorded::among(&far, vec![agent.clone()]).lines(), None);
        let found = Unrecorded::among(&[rank(6, Some(0))], vec![agent, rank(7, Some(1))]);
        let pids: Vec<u32> = found.processes.iter().map(|one| one.pid).collect();
        assert_eq!(pids, [7], "a rank that does not record yet");
    }

    #[test]
    fn processes_are_told_once_when_they_have_had_their_time() {
        let found = |pids: &[u32]| Unrecorded {
            processes: pids.iter().map(|&pid| one(pid, Some(pid), true, 2)).collect(),
            ..Unrecorded::default()
        };
        let (mut patience, begin) = (Patience::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(patience.look(&found(&[]), at(0)), None);
        assert_eq!(patience.look(&found(&[1]), at(0)), None);
        assert_eq!(patience.look(&found(&[1, 2]), at(20)), None);
        assert_eq!(patience.look(&found(&[1, 2]), at(40)), None, "2 has come late");
        assert!(patience.look(&found(&[1, 2]), at(50)).is_some());
        assert_eq!(patience.look(&found(&[1, 2]), at(60)), None, "it was said");
        assert_eq!(patience.look(&found(&[2]), at(70)), None, "1 records");
    }

    #[test]
    fn a_process_is_of_a_run_by_its_directory() {
        let place = tempfile::tempdir().unwrap();
        let to = [real(place.path())];
        let set = |path: String| HashMap::from([(DIR.name.to_owned(), path)]);
        let path = |end: &str| format!("{}{end}", place.path().display());
        let pid = std::process::id();
        assert!(records_into(pid, &set(path("")), &to));
        assert!(records_into(pid, &set(path("/job/%h")), &to));
        assert!(!records_into(pid, &set(path("-other")), &to));
        assert!(!records_into(pid, &HashMap::new(), &to));
        let below = [real(place.path()).join("n7")];
        assert!(records_into(pid, &set(path("/%h")), &below));
        assert!(!records_into(pid, &set(path("")), &below));
        let names = ["h-7.nscope", "h-8.nscope.1", "h-a-7.nscope", "x"];
        let pids = names.map(|name| pid_of(Path::new(name), "h"));
        assert_eq!(pids, [Some(7), Some(8), None, None]);
    }

    /// A rank in a container: its recording has the container's host name and process id.
    #[test]
    fn a_process_that_holds_a_recording_of_another_name_is_recorded() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pod-1-1.nscope");
        fs::write(&file, []).unwrap();
        let found = |stdin: fs::File| {
            let mut rank = std::process::Command::new("sleep");
            rank.arg("60").env(DIR.name, place.path()).stdin(stdin);
            let mut rank = rank.env("RANK", "5").env("WORLD_SIZE", "8").spawn().unwrap();
            // Its environment can be read once it has become another program.
            while fs::read_to_string(format!("/proc/{}/comm", rank.id())).unwrap() != "sleep\n" {
                std::thread::yield_now();
            }
            let found = Unrecorded::find(&[place.path().to_owned()]);
            rank.kill().and_then(|()| rank.wait()).unwrap();
            (found.processes.iter().filter_map(|one| one.place.rank).collect(), found.recorded)
        };
        let silent: (Vec<u32>, _) = found(fs::File::open("/dev/null").unwrap());
        assert_eq!(silent, (vec![5], BTreeSet::new()));
        assert_eq!(found(fs::File::open(file).unwrap()), (vec![], [5].into()));
    }
}
