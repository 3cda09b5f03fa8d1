// SPDX-License-Identifier: Apache-2.0
//! Plays a script in another process, and compares its output with the recording.

pub(crate) use fake_nccl::build::{allocator, plugin};
use ncclscope_trace::record::{Detail, Step, step_flags};
use ncclscope_trace::{EventKind, Handle, Record, Recording, Start, State};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Communicator index of foreign contexts.
pub(crate) const NO_COMM: u16 = u16::MAX;
/// Index in [`Played::counts`] of types that are no known kind.
pub(crate) const OTHER: usize = fake_nccl::log::OTHER;

/// A played script and its output.
pub(crate) struct Played {
    /// The standard output of the process.
    pub(crate) text: String,
    /// The callbacks, as `fake_nccl::log` writes them; empty without `--log`.
    pub(crate) log: Vec<Vec<String>>,
    /// Starts by kind: how many, and how many of them got a null handle.
    pub(crate) counts: [(u64, u64); fake_nccl::log::KINDS],
    /// Number of stops and states of handles that are not null.
    pub(crate) ends: u64,
    pub(crate) recording: Recording,
    _dir: TempDir,
}

/// Runs `check` for each version in parallel: for scripts that mostly wait.
pub(crate) fn at_once(check: fn(usize)) {
    std::thread::scope(|scope| {
        for version in fake_nccl::VERSIONS {
            scope.spawn(move || check(version));
        }
    });
}

/// A process that plays `script` into a recording under `run`.
pub(crate) fn command(version: usize, script: &str, run: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-nccl"));
    command.arg(plugin()).args([&version.to_string(), script]).args(options);
    command.env("NCCLSCOPE_DIR", run).env("NCCLSCOPE_LOG", "stderr");
    command
}

/// Plays `script`; with `keep`, logs each callback. The process must survive.
pub(crate) fn play(version: usize, script: &str, keep: bool, options: &[&str]) -> Played {
    play_with(version, script, keep, options, &[])
}

/// As [`play`], with further environment variables.
pub(crate) fn play_with(
    version: usize,
    script: &str,
    keep: bool,
    options: &[&str],
    env: &[(&str, &str)],
) -> Played {
    let dir = tempfile::tempdir().unwrap();
    let (run, log) = (dir.path().join("run"), dir.path().join("log"));
    let mut command = command(version, script, &run, options);
    command.envs(env.iter().copied());
    if keep {
        command.arg("--log").arg(&log);
    }
    let name = format!("v{version} {script} {options:?}");
    let text = survive(&mut command, &name);
    let recording = only(&run, &name);
    let header = recording.header();
    assert_eq!(recording.problems(), &[] as &[String], "{name}");
    assert!(header.closed, "{name}");
    assert_eq!((header.panics, header.garbage_words), (0, 0), "{name}");
    let log = if keep { std::fs::read_to_string(&log).unwrap() } else { String::new() };
    let log = log.lines().map(|l| l.split(' ').map(str::to_owned).collect()).collect();
    let (counts, ends) = counts(&text);
    Played { text, log, counts, ends, recording, _dir: dir }
}

/// Runs a process that must survive; returns its output.
pub(crate) fn survive(command: &mut Command, name: &str) -> String {
    let output: Output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.ends_with("survived\n"), "{name}: {output:?}");
    text
}

/// The one recording under `run`.
pub(crate) fn only(run: &Path, name: &str) -> Recording {
    let mut files: Vec<_> = std::fs::read_dir(run).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|file| !file.to_string_lossy().contains(".hang-"));
    assert_eq!(files.len(), 1, "{name}: one process, one file");
    Recording::open(&files[0]).unwrap()
}

fn counts(text: &str) -> ([(u64, u64); fake_nccl::log::KINDS], u64) {
    let (mut counts, mut ends) = ([(0, 0); fake_nccl::log::KINDS], 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["played", kind, starts, refused] => {
                counts[kind.parse::<usize>().unwrap()] =
                    (starts.parse().unwrap(), refused.parse().unwrap());
            }
            ["ends", count] => ends = count.parse().unwrap(),
            _ => {}
        }
    }
    (counts, ends)
}

/// The contents of a recording.
#[derive(Default)]
pub(crate) struct Found {
    /// Start records by handle.
    pub(crate) events: HashMap<Handle, Start>,
    /// Steps, each with its ProxyOp.
    pub(crate) steps: Vec<(Handle, Step)>,
    /// Number of stops of each handle.
    pub(crate) stops: HashMap<Handle, usize>,
    /// State records: handle, state, small argument, argument.
    pub(crate) states: Vec<(Handle, State, u32, u64)>,
    pub(crate) orphans: usize,
    /// Stops and states of handles whose kind bits are those of a kind that NCCL does not have yet.
    pub(crate) of_later_kinds: u64,
}

impl Found {
    /// Reads all lanes. Fails for a handle that started twice, and for a step without its
    /// operation.
    pub(crate) fn read(recording: &Recording) -> Found {
        let found = Found::read_end(recording);
        assert_eq!(found.orphans, 0, "steps without their operation");
        found
    }

    /// As [`Found::read`], if only the end of the recording exists: steps without their operation
    /// are counted.
    pub(crate) fn read_end(recording: &Recording) -> Found {
        let mut found = Found::default();
        for lane in 0..recording.lanes().len() {
            let mut ops: HashMap<u32, Handle> = HashMap::new();
            for record in recording.records(lane) {
                match record {
                    Record::Start(start) => {
                        if start.handle.kind() == EventKind::ProxyOp {
                            ops.insert(start.handle.op_ref(), start.handle);
                        }
                        let before = found.events.insert(start.handle, start);
                        assert!(before.is_none(), "{:?} started twice", start.handle);
                    }
                    Record::Stop { handle, .. } => *found.stops.entry(handle).or_default() += 1,
                    Record::State { handle, state, small, arg, .. } => {
                        found.states.push((handle, state, small, arg));
                    }
                    Record::Step(step) => match ops.get(&step.op_ref) {
                        Some(&op) => found.steps.push((op, step)),
                        None => found.orphans += 1,
                    },
                    Record::Unknown { .. } => found.of_later_kinds += 1,
                    Record::ClockSync(_)
                    | Record::Mark(_)
                    | Record::Heartbeat(_)
                    | Record::PairCount(_) => {}
                }
            }
        }
        found
    }

    /// Recorded events by kind; kinds without any are left out.
    pub(crate) fn kinds(&self) -> BTreeMap<EventKind, usize> {
        let mut kinds = BTreeMap::new();
        for handle in self.events.keys() {
            *kinds.entry(handle.kind()).or_default() += 1;
        }
        if !self.steps.is_empty() {
            kinds.insert(EventKind::ProxyStep, self.steps.len());
        }
        kinds
    }

    /// The fields of all events of a kind.
    pub(crate) fn all(&self, kind: EventKind) -> Vec<&Start> {
        let mut all: Vec<&Start> =
            self.events.values().filter(|s| s.handle.kind() == kind).collect();
        all.sort_by_key(|s| s.ticks);
        all
    }

    /// Number of stops, states and states of steps.
    fn ends(&self) -> u64 {
        let stops: usize = self.stops.values().sum();
        let marks = |s: &Step| {
            let flags = [step_flags::STOPPED, step_flags::FIRST, step_flags::SECOND];
            let seen = flags.into_iter().chain([step_flags::THIRD]).filter(|&f| s.has(f)).count();
            seen as u64 + u64::from(s.repeats)
        };
        let steps: u64 = self.steps.iter().map(|(_, s)| marks(s)).sum();
        (stops + self.states.len()) as u64 + steps + self.of_later_kinds
    }
}

/// Every callback is accounted for: recorded, lost, stale, unknown or refused. `folded` is the
/// number of states and starts of steps that change nothing: uncounted repeats.
#[derive(Clone, Copy, Default)]
pub(crate) struct Folded {
    /// Steps that were started again.
    pub(crate) starts: u64,
    /// Repeated states of steps.
    pub(crate) states: u64,
}

/// Compares the counts of a recording with those of the log.
pub(crate) fn balance(played: &Played, found: &Found, folded: Folded) {
    let header = played.recording.header();
    let lanes = played.recording.lanes();
    let (mut lost_ends, mut late) = (0, 0);
    let kinds = found.kinds();
    for kind in EventKind::ALL {
        let k = kind.index();
        let lost: u64 = lanes.iter().map(|l| l.header.lost[k]).sum();
        lost_ends += lanes.iter().map(|l| l.header.lost_ends[k]).sum::<u64>();
        let lost = lost + header.without_memory()[k] + header.unwritten[k];
        let recorded = kinds.get(&kind).copied().unwrap_or(0) as u64;
        let again = if kind == EventKind::ProxyStep { folded.starts } else { 0 };
        let (starts, refused) = played.counts[k];
        assert_eq!(header.overwritten[k], 0, "{kind}: the ring is large enough");
        assert_eq!(recorded + lost + again, starts, "{kind}: recorded {recorded}, lost {lost}");
        // A step is recorded when it ends, and can still be lost then, although NCCL has its
        // handle.
        if kind == EventKind::ProxyStep {
            late = lost.saturating_sub(refused);
        }
        let with_handle = if kind == EventKind::ProxyStep { late } else { 0 };
        assert_eq!(lost, refused + with_handle, "{kind}: what is lost has no handle");
    }
    let (unknown, refused) = played.counts[OTHER];
    assert_eq!(unknown, refused, "an unknown type has no handle");
    let unknown_states = header.unknown_events - unknown;
    let told = found.ends() + header.stale + unknown_states + lost_ends + folded.states;
    let parts = (found.ends(), header.stale, unknown_states, lost_ends);
    // The states and the stop of such a step are lost with it, at most five.
    let range = played.ends.saturating_sub(5 * late)..=played.ends;
    assert!(
        range.contains(&told),
        "{told} of {range:?}; recorded, stale, unknown, lost: {parts:?}"
    );
}

/// Compares each start with the log (kind, communicator, parent), and each step.
pub(crate) fn faithful(played: &Played, found: &Found) {
    let hex = |word: &String| u64::from_str_radix(word, 16).unwrap();
    let mut comms: HashMap<u64, u16> = HashMap::new();
    let mut steps: HashSet<(Handle, u32)> = HashSet::new();
    let mut events = 0;
    for line in &played.log {
        if line[0] == "init" {
            comms.insert(hex(&line[2]), comm_index(played, hex(&line[2]), hex(&line[3])));
        }
        if line[0] != "start" || hex(&line[3]) == 0 {
            continue;
        }
        let (bit, handle, parent) = (hex(&line[2]), Handle(hex(&line[3])), Handle(hex(&line[4])));
        assert_eq!(u64::from(handle.kind().bit()), bit, "{line:?}");
        if handle.kind() == EventKind::ProxyStep {
            steps.insert((parent, line[6].parse::<i32>().unwrap().cast_unsigned()));
            continue;
        }
        events += 1;
        let start = found.events.get(&handle).unwrap_or_else(|| panic!("{line:?} not recorded"));
        let has_parent =
            !matches!(start.detail, Detail::Group | Detail::ProxyCtrl | Detail::GroupApi(_));
        assert!(!has_parent || start.parent == parent, "{line:?}: {start:?}");
        let comm = comms.get(&hex(&line[5])).copied().unwrap_or(NO_COMM);
        if let Detail::ProxyOp(op) = start.detail {
            let foreign = comm == NO_COMM || op.pid != played.recording.header().pid;
            assert_eq!(op.foreign, foreign, "{line:?}: {start:?}");
        }
        assert_eq!(start.comm, comm, "{line:?}: {start:?}");
    }
    assert_eq!(found.events.len(), events, "nothing is recorded that was not played");
    let recorded: HashSet<_> = found.steps.iter().map(|(op, s)| (*op, s.step)).collect();
    assert_eq!(recorded.len(), found.steps.len(), "a step is one record");
    assert_eq!(recorded, steps, "steps lead to their operations");
}

/// A context's communicator, which the recording must have by its hash if the version has it.
fn comm_index(played: &Played, context: u64, hash: u64) -> u16 {
    let index = u16::try_from(context & 0xffff).unwrap();
    let comm = played.recording.comms().iter().find(|c| c.index == index).expect("it is defined");
    assert!(comm.api_version < 4 || comm.hash == hash, "{comm:?} is not {hash:x}");
    index
}

/// Plays a script, compares everything, and expects no losses.
pub(crate) fn exact(
    version: usize,
    script: &str,
    options: &[&str],
    folded: Folded,
) -> (Played, Found) {
    let played = play(version, script, true, options);
    let found = Found::read(&played.recording);
    balance(&played, &found, folded);
    faithful(&played, &found);
    (played, found)
}
