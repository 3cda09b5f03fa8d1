// SPDX-License-Identifier: Apache-2.0
/*!
Tests that each verb decodes the records of a recording once, and does not iterate over its events
once per communicator.

The reader counts the blocks that the process decodes, and the timelines the passes over them. Each
verb therefore runs in its own process: this program again, with one test, [`one_verb`],
and the verb's command line in a variable.
*/

use super::run;
use crate::args::CommandLine;
use clap::Parser;
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, open};
use ncclscope_findings::Confidence;
use ncclscope_findings::rank::Pending;
use ncclscope_simulate::{Fault, JobShape, Planted, Scenario};
use ncclscope_trace::layout::{BLOCKS, SEGMENT};
use ncclscope_trace::record::GroupApi;
use ncclscope_trace::{Comm, Detail, EventKind, Handle, Recording, State};
use scripts::{API, Call, EPOCH_NS, Process};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const LINE: &str = "ONE_VERB_OF_NCCLSCOPE";
const SAYS: &str = "blocks decoded:";
const SAYS_PASSES: &str = "passes over events:";

/// Not a test itself: the other tests start it in a process of its own.
#[test]
fn one_verb() {
    let Ok(line) = std::env::var(LINE) else { return };
    let words = ["ncclscope"].into_iter().chain(line.lines());
    let outcome = run(CommandLine::parse_from(words));
    assert!(outcome.is_ok(), "{outcome:?}");
    eprintln!("\n{SAYS} {}", ncclscope_trace::reader::decoded_blocks());
    eprintln!("{SAYS_PASSES} {}", ncclscope_operations::timeline::passes());
}

/// Number of blocks that a verb decodes.
fn decoded(words: &[&str]) -> u64 {
    count(words, SAYS)
}

/// A number that a verb prints after `says`.
fn count(words: &[&str], says: &str) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "cmd::tests::one_verb", "--nocapture"]).env(LINE, words.join("\n"));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {text}");
    let said = text.lines().find_map(|line| line.strip_prefix(says));
    said.unwrap_or_else(|| panic!("{words:?}: {text}")).trim().parse().unwrap()
}

/// Number of blocks with records of threads in the recordings of a directory.
fn blocks(directory: &Path) -> u64 {
    let files = crate::run_input::input::recordings_in(directory).unwrap();
    let recordings = files.iter().map(|file| Recording::open(file).unwrap());
    let in_one = |recording: Recording| recording.lanes().iter().map(|l| l.blocks() as u64).sum();
    recordings.map(|recording| -> u64 { in_one(recording) }).sum()
}

fn simulate(job: JobShape, fault: &[Fault], directory: &Path) {
    let fault = fault.iter().copied().map(Planted::new).collect();
    let scenario = Scenario { job, fault, ..Scenario::default() };
    ncclscope_simulate::run(&scenario, directory).unwrap();
}

#[test]
fn verbs_decode_a_job_that_hangs_once() {
    let dir = tempfile::tempdir().unwrap();
    let job = JobShape { ranks: 8, steps: 6, hold_s: 40, ..JobShape::default() };
    simulate(job, &[Fault::from_name("in-launch").unwrap()], dir.path());
    let (run, all) = (dir.path().to_str().unwrap(), blocks(dir.path()));
    assert!(all > 8, "{all}");
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (one, chrome, tar) = (out("a.pftrace"), out("a.json"), out("a.tar"));
    for words in [
        &["report", run][..],
        &["diagnose", run],
        &["stragglers", run],
        &["export", run, "-o", &one],
        &["export", run, "-o", &chrome],
        &["export", run, "-o", &tar],
        &["export", run, "--per-rank", "-o", run],
    ] {
        assert_eq!(decoded(words), all, "{words:?}");
    }
    let page = out("a.html");
    for words in [&["compare", run, run][..], &["compare", run, run, "--html", &page]] {
        assert_eq!(decoded(words), 2 * all, "each side once: {words:?}");
    }
    assert_eq!(decoded(&["doctor", "-o", run]), 0, "nothing was lost");
}

#[test]
fn verbs_decode_what_is_left_of_an_overwritten_recording_once() {
    let dir = tempfile::tempdir().unwrap();
    let job = JobShape { ranks: 4, steps: 700, ring_mib: 1, ..JobShape::default() };
    simulate(job, &[], dir.path());
    let (run, all) = (dir.path().to_str().unwrap(), blocks(dir.path()));
    for words in [&["report", run][..], &["stragglers", run], &["doctor", "-o", run]] {
        assert_eq!(decoded(words), all, "{words:?}");
    }
}

/// The report reads a long recording as a stream; the answer is derived from its end.
#[test]
fn report_decodes_a_long_recording_and_its_end_and_finds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let job = JobShape { ranks: 2, steps: 8_000, ring_mib: 64, ..JobShape::default() };
    simulate(job, &[Fault::SlowGpu], dir.path());
    let (run, all) = (dir.path().to_str().unwrap(), blocks(dir.path()));
    let count = decoded(&["report", run]);
    assert!(all < count && count < 2 * all, "{count} of {all}");
    // All of it is read, so that no damage goes unnoticed.
    let input = crate::run_input::input::Input::open(&[dir.path().into()], None).unwrap();
    let (all, hang) = (crate::run_input::narrow::Narrowed::default(), Options::default().hang);
    let notes =
        crate::cmd::report::assessment::Assessment::of(&input, (&all, &[]), hang).hang.notes;
    assert!(notes.iter().all(|note| !note.contains("unnoticed")), "{notes:?}");
    let notes = open(&[dir.path().into()], &InputOptions::default()).unwrap().job.notes;
    assert!(notes.iter().any(|note| note.contains("unnoticed")), "{notes:?}");
}

#[test]
fn diagnose_decodes_the_end_of_a_recording_and_finds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let job = JobShape { ranks: 4, steps: 2000, hold_s: 40, ..JobShape::default() };
    simulate(job, &[Fault::from_name("host-stuck").unwrap()], dir.path());
    let run = dir.path().to_str().unwrap();
    let (end, all) = (decoded(&["diagnose", run]), blocks(dir.path()));
    assert!(end < all / 2, "{end} of {all}");
    let truth = std::fs::read_to_string(dir.path().join("truth.json")).unwrap();
    let truth: serde_json::Value = serde_json::from_str(&truth).unwrap();
    let input = open(&[dir.path().into()], &InputOptions::default()).unwrap();
    let found = diagnose(&input.job, &Options::default()).findings;
    let [found] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(truth["verdicts"][0]["root_ranks"], json!(found.root_ranks));
    assert_eq!(truth["verdicts"][0]["class"], found.class.code());
}

/// The planted class and ranks, those found first, their confidence, and the damage.
fn planted_and_found(directory: &Path) -> (Value, Value, Confidence, Vec<String>) {
    let truth = std::fs::read_to_string(directory.join("truth.json")).unwrap();
    let truth: Value = serde_json::from_str(&truth).unwrap();
    let planted = &truth["verdicts"][0];
    let planted = json!([planted["class"], planted["root_ranks"]]);
    let input = open(&[directory.into()], &InputOptions::default()).unwrap();
    let found = diagnose(&input.job, &Options::default()).findings.remove(0);
    let class = json!([found.class.code(), found.root_ranks]);
    (planted, class, found.confidence(), input.job.damaged)
}

fn simulate_unmatched_send(ring_mib: u32, directory: &Path) {
    let job = JobShape { ranks: 4, pp: 4, per_host: 1, microbatches: 8, ..JobShape::default() };
    let job = JobShape { tp: 1, steps: 600, hold_s: 40, ring_mib, ..job };
    simulate(job, &[Fault::from_name("p2p-unmatched").unwrap()], directory);
}

/// The end of a recording contains the number of earlier sends and receives, even if they were
/// overwritten.
#[test]
fn diagnose_knows_all_sends_and_receives_from_the_end_of_a_recording() {
    for ring_mib in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        simulate_unmatched_send(ring_mib, dir.path());
        let (mut ends, mut is_overwritten) = (0, true);
        for file in crate::run_input::input::recordings_in(dir.path()).unwrap() {
            let end = Recording::open_end(&file, 2).unwrap();
            assert!(!end.is_whole(), "{}", file.display());
            ends += end.lanes().iter().map(|lane| lane.blocks() as u64).sum::<u64>();
            is_overwritten &= end.header().overwritten[EventKind::P2p.index()] != 0;
        }
        assert_eq!(is_overwritten, ring_mib == 1);
        let (read, all) =
            (decoded(&["diagnose", dir.path().to_str().unwrap()]), blocks(dir.path()));
        assert!(read <= ends && ends < all, "{read} of {ends} of {all}");
        let (planted, found, confidence, damaged) = planted_and_found(dir.path());
        assert_eq!((found, confidence, damaged), (planted, Confidence::Confirmed, vec![]));
    }
}

/// If a recording's end lacks these numbers because it is damaged, the earlier sends and receives
/// are counted: their blocks are decoded once, without the network steps, which are most of a
/// recording. Damage among them makes the count useless, and is reported.
#[test]
fn diagnose_counts_sends_and_receives_that_the_end_does_not_tell() {
    let dir = tempfile::tempdir().unwrap();
    simulate_unmatched_send(0, dir.path());
    for path in crate::run_input::input::recordings_in(dir.path()).unwrap() {
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut firsts = Vec::new();
        let len = file.metadata().unwrap().len();
        for at in (0..).map(|at| BLOCKS + at * SEGMENT).take_while(|&at| at < len) {
            let mut head = [0; 24];
            file.read_exact_at(&mut head, at).unwrap();
            let number = u64::from_le_bytes(head[16..].try_into().unwrap());
            firsts.extend(head.starts_with(b"NSB1").then_some((number, at)));
        }
        firsts.sort_unstable();
        let (_, counts) = firsts[firsts.len() - 2];
        file.write_all_at(&[0x5a; 8], counts + 70).unwrap();
        let end = Recording::open_end(&path, 2).unwrap();
        assert!(!end.has_hole() && end.pairs_before().is_none());
    }
    let (read, all) = (decoded(&["diagnose", dir.path().to_str().unwrap()]), blocks(dir.path()));
    assert!(all / 4 < read && read < all * 3 / 4, "{read} of {all}");
    let (_, _, confidence, damaged) = planted_and_found(dir.path());
    assert_eq!((confidence, damaged.len()), (Confidence::Suspect, 4), "{damaged:?}");
    assert_eq!(damaged[0].matches("torn block at byte").count(), 1, "{damaged:?}");
}

/// Two consecutive traces of one rank.
#[test]
fn traces_of_a_rank_read_its_recording_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(path("run")).unwrap();
    for rank in 0..2 {
        let mut process = Process::new(rank, 2);
        process.collective(Call::ALL_REDUCE);
        process.write(Path::new(&path("run"))).unwrap();
        for part in 0..2 {
            let event = json!({"ph": "X", "ts": 0, "dur": 60_000_000, "pid": 1, "tid": 1,
                "name": "PyTorch Profiler (0)", "cat": "Trace"});
            let trace = json!({"distributedInfo": {"rank": rank, "world_size": 2},
                "host_name": format!("node-{rank}"), "baseTimeNanoseconds": EPOCH_NS,
                "traceEvents": [event]});
            std::fs::write(path(&format!("{rank}-{part}.json")), trace.to_string()).unwrap();
        }
    }
    let traces = ["0-0.json", "0-1.json", "1-0.json", "1-1.json"].map(path);
    let (run, out) = (path("run"), path("out"));
    let traces = traces.iter().map(String::as_str);
    let words: Vec<&str> =
        ["merge", "--kineto"].into_iter().chain(traces).chain([&run, "-o", &out]).collect();
    assert_eq!(decoded(&words), blocks(Path::new(&run)));
}

/// Whether a call has not returned is found in the pass that reads everything else.
#[test]
fn a_call_that_does_not_return_costs_no_second_look() {
    for (is_ending, expected) in [(true, Pending::Inside), (false, Pending::OpenGroup)] {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::new(0, 2);
        process.collective(Call::ALL_REDUCE);
        let detail = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
        let group = process.start(API, Handle::NULL, detail);
        if is_ending {
            process.state(API, group, State::GROUP_END_API_START, 0);
        }
        process.write(dir.path()).unwrap();
        let input = open(&[dir.path().into()], &InputOptions::default()).unwrap();
        assert_eq!(input.job.processes[0].entered, Some(expected));
        let words = ["diagnose", dir.path().to_str().unwrap()];
        assert_eq!(decoded(&words), blocks(dir.path()));
    }
}

/// The result of `stragglers` depends on the identities of the processes, never on the order of
/// files.
#[test]
fn the_order_of_recordings_does_not_matter_to_stragglers() {
    let dir = tempfile::tempdir().unwrap();
    let job = JobShape { ranks: 8, per_host: 4, steps: 12, ..JobShape::default() };
    simulate(job, &[Fault::SlowGpu], dir.path());
    let mut files = crate::run_input::input::recordings_in(dir.path()).unwrap();
    let report = |files: &[std::path::PathBuf]| {
        let recordings: Vec<Recording> =
            files.iter().map(|file| Recording::open(file).unwrap()).collect();
        let job = ncclscope_stragglers::input::recording::job(&recordings);
        let report = ncclscope_stragglers::analyze(&job, &ncclscope_stragglers::Limits::default());
        serde_json::to_string(&report).unwrap()
    };
    let expected = report(&files);
    assert!(expected.contains("\"S1\""), "the planted rank");
    // Several permutations from a linear congruential generator.
    let mut state = 1_u64;
    for _ in 0..6 {
        for at in (1..files.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            files.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
        }
        assert!(report(&files) == expected, "{files:?}");
    }
}

/// With the same number of events, 2,000 communicators need as many passes over the events as 20.
#[test]
fn verbs_do_not_go_over_all_events_for_each_communicator() {
    let dir = tempfile::tempdir().unwrap();
    let passes = |comms: u16| {
        let folder = dir.path().join(comms.to_string());
        std::fs::create_dir(&folder).unwrap();
        let mut process = Process::new(0, 2);
        let first = process.comm.clone();
        let comm = |index: u16| {
            let hash = first.hash + u64::from(index);
            Comm { index, hash, name: Some(format!("c{index}")), ..first.clone() }
        };
        for index in 0..comms {
            process.comm = comm(index);
            let call = Call { channels: 1, steps: 1, ..Call::ALL_REDUCE };
            (0..2000 / comms).for_each(|_| process.collective(call));
        }
        process.other_comms = (0..comms - 1).map(comm).collect();
        process.write(&folder).unwrap();
        let (run, out) = (folder.to_str().unwrap(), folder.join("out.json"));
        let verbs = [
            &["report", run, "--format", "json"][..],
            &["export", run, "-o", out.to_str().unwrap()],
            &["stragglers", run],
            &["diagnose", run],
        ];
        verbs.map(|words| (words[0].to_owned(), count(words, SAYS_PASSES)))
    };
    let (few, many) = (passes(20), passes(2000));
    assert!(few.iter().all(|(_, passes)| *passes > 0), "{few:?}");
    assert_eq!(few, many);
}

#[test]
fn a_report_takes_small_pages() {
    let are_off = || rustix::thread::transparent_huge_pages_are_disabled().unwrap();
    assert!(!are_off());
    super::use_small_pages();
    assert!(are_off());
}
