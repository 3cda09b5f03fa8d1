// SPDX-License-Identifier: Apache-2.0
//! Directories with several runs, copies and damage: the tool tells processes apart by their
//! identity.

use super::common::{Outcome, Run, ncclscope, recordings, simulate, tool};
use ncclscope_trace::EventKind;
use ncclscope_trace::layout::{BLOCKS, HEADER_BYTES, Header};
use scripts::{Call, Fault};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Class and ranks of each verdict, and the output.
fn diagnosed(dir: &Path, args: &[&str]) -> (Vec<Value>, String) {
    let fixed = ["diagnose", dir.to_str().unwrap(), "--format", "json"];
    let outcome = ncclscope(&[&fixed[..], args].concat());
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let verdicts = found["findings"].as_array().unwrap().iter();
    let short = verdicts.map(|v| json!([v["class"], v["root_ranks"], v["confidence"]]));
    (short.collect(), found["notes"].to_string())
}

const HOUR_LATER: &str = "[job]\nstart_s = 3600\nsteps = 4\n";
const EARLIER: &str = "[job]\nsteps = 4\n";
const STUCK_5: &[&str] = &["--seed", "1", "--fault", "host-stuck", "--rank", "5"];

#[test]
fn a_leftover_of_an_earlier_run_renumbers_no_rank() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", HOUR_LATER, STUCK_5);
    let old = simulate(dir.path(), "old", EARLIER, &["--seed", "4", "--ranks", "4"]);
    fs::copy(&recordings(&old)[0], run.join("node-0000-10000.nscope.1")).unwrap();
    let (verdicts, notes) = diagnosed(&run, &[]);
    assert_eq!(verdicts, [json!(["H1a", [5], "confirmed"])]);
    assert!(notes.contains("2 runs are here; this is the newest"), "{notes}");
    assert!(notes.contains("simulated-4") && notes.contains("(1 process)"), "{notes}");
}

#[test]
fn of_two_runs_the_newest_counts_or_the_one_that_is_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", HOUR_LATER, STUCK_5);
    let args = ["--seed", "2", "--fault", "host-stuck", "--rank", "3"];
    let old = simulate(dir.path(), "old", EARLIER, &args);
    for file in recordings(&old) {
        let name = file.file_name().unwrap().to_str().unwrap();
        fs::rename(&file, run.join(format!("{name}.1"))).unwrap();
    }
    assert_eq!(diagnosed(&run, &[]).0, [json!(["H1a", [5], "confirmed"])]);
    let chosen = diagnosed(&run, &["--run", "simulated-2"]);
    assert_eq!(chosen.0, [json!(["H1a", [3], "confirmed"])]);
    let text = run.to_str().unwrap();
    let trace = dir.path().join("t.json");
    let trace = trace.to_str().unwrap();
    for verb in [vec!["report", text], vec!["stragglers", text], vec!["export", text, "-o", trace]]
    {
        let outcome = ncclscope(&verb);
        assert!(outcome.stderr.contains("2 runs are here"), "{verb:?}: {}", outcome.stderr);
        let none = ncclscope(&[&verb[..], &["--run", "x"]].concat()).ends_with(3).stderr;
        assert!(none.contains("there is no run \"x\"") && none.contains("simulated-2"), "{none}");
    }
    let report = ncclscope(&["report", text, "--run", "simulated-2"]).ends_with(0).stdout;
    assert!(report.contains("processes   16 on"), "{report}");
    let next = format!("ncclscope diagnose {text} --run simulated-2\n");
    assert!(report.contains(&next), "{report}");
    // The notes say that the job hangs, in lines of the text's width.
    let slow = ncclscope(&["stragglers", text, "--run", "simulated-2"]).stdout;
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&slow).contains(&words(&next)), "{slow}");
}

/// Host names and process ids are the same in both runs.
#[test]
fn two_jobs_at_the_same_time_stay_two() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    let args = ["--seed", "2", "--fault", "killed", "--rank", "3"];
    let other = simulate(dir.path(), "other", EARLIER, &args);
    for file in recordings(&other) {
        let name = file.file_name().unwrap().to_str().unwrap();
        fs::rename(&file, run.join(format!("{name}.1"))).unwrap();
    }
    for (id, verdict) in [
        ("simulated-1", json!(["H1a", [5], "confirmed"])),
        ("simulated-2", json!(["H1b", [3], "confirmed"])),
    ] {
        assert_eq!(diagnosed(&run, &["--run", id]).0, [verdict], "{id}");
    }
}

#[test]
fn a_process_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    let files = recordings(&run);
    fs::hard_link(&files[2], run.join("a-link.nscope")).unwrap();
    fs::copy(&files[3], run.join("z-copy.nscope")).unwrap();
    let (verdicts, notes) = diagnosed(&run, &[]);
    assert_eq!(verdicts, [json!(["H1a", [5], "confirmed"])]);
    assert!(notes.contains("z-copy.nscope is left out: it is of the same process as"), "{notes}");
    let (text, file) = (run.to_str().unwrap(), files[2].to_str().unwrap());
    // Each verb says so on standard error, once, in the same words.
    let line = "ncclscope: z-copy.nscope is left out: it is of the same process as ";
    for format in ["text", "json", "csv", "md"] {
        let told = ncclscope(&["diagnose", text, "--format", format]).ends_with(1).stderr;
        assert_eq!(told.matches("z-copy.nscope is left out").count(), 1, "{format}: {told}");
        assert!(told.contains(line), "{format}: {told}");
    }
    let told = ncclscope(&["report", text, "--format", "json"]).stderr;
    assert!(told.contains(line), "{told}");
    let told = ncclscope(&["compare", text, text]).stderr;
    assert_eq!(told.matches(line).count(), 2, "once for each side: {told}");
    let report = ncclscope(&["stragglers", text, file]);
    assert!(report.stdout.starts_with("16 workers"), "{report:?}");
    assert_eq!(report.stderr.matches("is left out").count(), 3, "{report:?}");
}

/// Hosts whose recordings were copied 10 s before the others, or whose clocks are 10 s apart.
#[test]
fn a_living_culprit_is_not_called_dead() {
    let dir = tempfile::tempdir().unwrap();
    let stuck = ["--seed", "1", "--fault", "host-stuck", "--rank", "3"];
    let early = simulate(dir.path(), "early", "[job]\nhold_s = 60\nsteps = 4\n", &stuck);
    let late = simulate(dir.path(), "late", "[job]\nhold_s = 70\nsteps = 4\n", &stuck);
    for file in recordings(&early) {
        let name = file.file_name().unwrap();
        if name.to_str().unwrap().starts_with("node-0000") {
            fs::copy(&file, late.join(name)).unwrap();
        }
    }
    assert_eq!(diagnosed(&late, &[]).0, [json!(["H1a", [3], "confirmed"])]);
    // Late recordings of the culprit's own host: they were copied 10 s after the culprit's
    // recording.
    let late = simulate(dir.path(), "one", "[job]\nhold_s = 70\nsteps = 4\n", &stuck);
    for file in recordings(&early) {
        let name = file.file_name().unwrap();
        if name.to_str().unwrap().starts_with("node-0000-1019") {
            fs::copy(&file, late.join(name)).unwrap();
        }
    }
    assert_eq!(diagnosed(&late, &[]).0, [json!(["H1a", [3], "confirmed"])]);
    for seed in ["1", "2", "3"] {
        let clocks = "[job]\nsteps = 4\n[machine]\nclock_offset_ms = 10000.0\n";
        let stuck = ["--seed", seed, "--fault", "host-stuck", "--rank", "3"];
        let run = simulate(dir.path(), &format!("clocks-{seed}"), clocks, &stuck);
        assert_eq!(diagnosed(&run, &[]).0, [json!(["H1a", [3], "confirmed"])], "{seed}");
    }
}

/// The contents of a hole are unknown, so calls after it have other numbers than before.
#[test]
fn calls_are_not_compared_where_a_recording_has_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    for seed in ["6", "7"] {
        let run = simulate(dir.path(), seed, "", &["--seed", seed, "--fault", "healthy"]);
        let file = &recordings(&run)[5];
        let mut bytes = fs::read(file).unwrap();
        // Blocks in the middle of the file, which belong to a lane of calls.
        for at in (bytes.len() / 4..bytes.len() / 4 * 3).step_by(bytes.len() / 16) {
            bytes[at..at + 8].copy_from_slice(b"UUUUUUUU");
        }
        fs::write(file, bytes).unwrap();
        let run = run.to_str().unwrap();
        let json = ncclscope(&["diagnose", run, "--format", "json"]).stdout;
        let found: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(found["findings"], json!([]), "{seed}");
        let report = ncclscope(&["report", run]).stdout;
        assert!(!report.starts_with("HUNG"), "{report}");
    }
}

/// One rank per host: no other recording of its host shows that a killed process is dead.
#[test]
fn death_that_only_other_hosts_show_is_suspected() {
    let dir = tempfile::tempdir().unwrap();
    let killed = ["--seed", "1", "--fault", "killed", "--rank", "3"];
    let run = simulate(dir.path(), "alone", "[job]\nsteps = 4\nper_host = 1\n", &killed);
    assert_eq!(diagnosed(&run, &[]).0, [json!(["H1b", [3], "suspect"])]);
    let text = ncclscope(&["diagnose", run.to_str().unwrap()]).ends_with(1).stdout;
    assert!(text.contains("no other recording of its host goes on longer"), "{text}");
    let run = simulate(dir.path(), "shared", EARLIER, &killed);
    assert_eq!(diagnosed(&run, &[]).0, [json!(["H1b", [3], "confirmed"])]);
}

/// Two ranks: rank 0 has waited for rank 1 for `waits_ns` when the launcher kills rank 0. Rank 1
/// may have ended on its own.
fn launcher_kills(waits_ns: u64, has_raised: bool) -> Run {
    Run::new(|process| {
        process.collective(Call::ALL_REDUCE);
        process.header.closed = has_raised && process.comm.rank == 1;
        if process.comm.rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            process.now += waits_ns;
        } else if !has_raised {
            process.now += waits_ns;
        }
    })
}

#[test]
fn a_rank_that_raised_is_found_before_the_launcher_kills_the_others() {
    let run = launcher_kills(200_000_000, true);
    assert_eq!(diagnosed(run.path(), &[]).0, [json!(["H1b", [1], "confirmed"])]);
}

/// No rank waits in NCCL when the launcher kills the others.
#[test]
fn a_rank_that_ended_just_before_the_others_were_killed_is_named() {
    let works = |has_raised| {
        Run::new(move |process| {
            process.collective(Call::ALL_REDUCE);
            process.header.closed = has_raised && process.comm.rank == 1;
            process.now += if process.comm.rank == 0 { 40_000_000 } else { 0 };
        })
    };
    let run = works(true);
    let (verdicts, notes) = diagnosed(run.path(), &[]);
    assert_eq!(verdicts, [""; 0]);
    assert!(
        notes.contains("rank 1 ended in order, ") && notes.contains("if it ended by an"),
        "{notes}"
    );
    let both = works(false);
    let (_, notes) = diagnosed(both.path(), &[]);
    assert!(!notes.contains("likely cause"), "{notes}");
    // One rank is killed, and the others two seconds later.
    let dir = tempfile::tempdir().unwrap();
    let killed = ["--seed", "1", "--ranks", "16", "--fault", "killed", "--rank", "3"];
    let run = simulate(dir.path(), "run", "[job]\nsteps = 4\nhold_s = 3\n", &killed);
    let (_, notes) = diagnosed(&run, &[]);
    assert!(notes.contains("rank 3 did not end in order, 1.13 s or more before "), "{notes}");
}

#[test]
fn a_wait_below_the_limit_is_not_denied() {
    // The recordings continue for another second.
    let run = launcher_kills(200_000_000, false);
    let text = ncclscope(&["diagnose", run.text()]).ends_with(0).stdout;
    assert!(text.contains("1 of them waits in NCCL"), "{text}");
    assert!(text.contains("1 rank waits for rank 1, the longest for 1.2"), "{text}");
    // Rank 1 may have died a second before rank 0 was killed: a lower limit would not show that.
    assert!(text.contains("a rank that was killed within the last second"), "{text}");
    assert!(!text.contains("--hang-sec"), "{text}");
    let (verdicts, _) = diagnosed(run.path(), &["--hang-sec", "1"]);
    assert_eq!(verdicts, [json!(["H1a", [1], "suspect"])]);
}

/// A watchdog with another limit (`NCCLSCOPE_HANG_SEC`) may report an operation that `diagnose`
/// does not yet call a hang.
#[test]
fn what_a_watchdog_reported_is_stuck() {
    let run = Run::new(|process| {
        process.header.closed = false;
        process.collective(Call::ALL_REDUCE);
        if process.comm.rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            process.hang = Some((process.now + 100_000_000, "HANG: rank 0"));
        }
        process.now += 200_000_000;
    });
    let (verdicts, notes) = diagnosed(run.path(), &[]);
    assert_eq!(verdicts, [json!(["H1a", [1], "confirmed"])]);
    assert!(notes.contains("a watchdog reported operations"), "{notes}");
}

#[test]
fn damage_is_mentioned_by_every_verb_and_nothing_that_rests_on_it_is_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    let file = &recordings(&run)[5];
    let whole = fs::read(file).unwrap();
    let last = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let other = simulate(dir.path(), "other", EARLIER, &["--seed", "2"]);
    let verbs = Verbs::new(dir.path(), &run);
    // One byte in the last block that has contents, and the end of that block.
    let mut flipped = whole.clone();
    flipped[last - 64] ^= 0x10;
    let damaged = format!("warning: {} is damaged: ", file.display());
    for bytes in [&flipped[..], &whole[..last - 64]] {
        fs::write(file, bytes).unwrap();
        verbs.end_with_3(&damaged);
        let compared = ncclscope(&["compare", other.to_str().unwrap(), run.to_str().unwrap()]);
        assert!(compared.ends_with(3).stderr.contains(&damaged));
        let (verdicts, _) = diagnosed(&run, &[]);
        assert!(!verdicts.is_empty() && verdicts.iter().all(|v| v[2] == "suspect"), "{verdicts:?}");
    }
    let doctor = ncclscope(&["doctor", "-o", run.to_str().unwrap()]).stdout;
    assert!(doctor.contains("is damaged"), "{doctor}");
}

/// A rank whose recording lacks events still waits, and is not named as the rank that the others
/// wait for.
#[test]
fn a_rank_that_lost_events_is_not_the_cause_of_a_hang() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    for at in [6, 7, 9] {
        lose(&recordings(&run)[at], EventKind::ProxyOp);
        let (verdicts, _) = diagnosed(&run, &[]);
        assert_eq!(verdicts, [json!(["H1a", [5], "confirmed"])], "recordings up to {at}");
    }
}

/// Changes a recording as if it lacked an event that could not be written.
fn lose(recording: &Path, kind: EventKind) {
    // Offset of the header's counts of records that could not be written, by kind.
    const UNWRITTEN: usize = 1024;
    let mut bytes = fs::read(recording).unwrap();
    bytes[UNWRITTEN + 8 * kind.index()] = 1;
    Header::seal(&mut bytes[..HEADER_BYTES]);
    fs::write(recording, bytes).unwrap();
}

/// What a rank with lost events waits for is uncertain. Its calls are known if the lost events are
/// no calls; otherwise they are known only by count.
#[test]
fn ranks_that_lost_events_are_not_named_beside_the_one_that_called_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let extra = ["--seed", "1", "--ranks", "16", "--fault", "extra-op", "--rank", "12"];
    type Lacks = fn(usize) -> bool;
    let sets: [(&str, Lacks, EventKind, [&str; 2]); 6] = [
        ("none", |_| false, EventKind::ProxyOp, ["H2", "confirmed"]),
        ("first", |rank| rank < 8, EventKind::ProxyOp, ["H2", "confirmed"]),
        ("odd", |rank| rank % 2 == 1, EventKind::ProxyOp, ["H2", "suspect"]),
        ("even", |rank| rank % 2 == 0, EventKind::ProxyOp, ["H2", "suspect"]),
        ("odd-calls", |rank| rank % 2 == 1, EventKind::CollApi, ["H2", "suspect"]),
        // Rank 12 itself lost calls too, so it is not known what it called.
        ("even-calls", |rank| rank % 2 == 0, EventKind::CollApi, ["H3c", "suspect"]),
    ];
    for (name, lacks, kind, [class, confidence]) in sets {
        let run = simulate(dir.path(), name, "", &extra);
        let files = recordings(&run).into_iter().enumerate();
        files.filter(|(rank, _)| lacks(*rank)).for_each(|(_, file)| lose(&file, kind));
        let (verdicts, _) = diagnosed(&run, &[]);
        assert_eq!(verdicts, [json!([class, [12], confidence])], "{name}");
    }
}

#[test]
fn what_cannot_be_read_is_mentioned_by_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    let file = &recordings(&run)[5];
    let verbs = Verbs::new(dir.path(), &run);
    let unreadable = format!("warning: cannot read {}: ", file.display());
    // Truncated right after the header, so that the file does not show to which run it belongs.
    fs::File::options().write(true).open(file).unwrap().set_len(70_000).unwrap();
    verbs.end_with_3(&unreadable);
    // The file has wrong first bytes, is empty, or is a directory.
    for bytes in [&[7; 70_000][..], &[]] {
        fs::write(file, bytes).unwrap();
        verbs.end_with_3(&unreadable);
    }
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
    verbs.end_with_3(&unreadable);
}

/// What is left of the file has neither records nor a comparison of clocks.
#[test]
fn a_recording_of_which_the_end_is_cut_off_is_mentioned_by_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    let file = &recordings(&run)[5];
    let verbs = Verbs::new(dir.path(), &run);
    let length = fs::metadata(file).unwrap().len();
    fs::File::options().write(true).open(file).unwrap().set_len(length / 2).unwrap();
    verbs.end_with_3(&format!("warning: {} is ", file.display()));
}

/// A foreign program truncates a recording while a verb reads it. At its first warning about the
/// other files the verb has opened the recording, and it cannot continue before the test reads
/// these warnings, which do not fit into a pipe.
#[test]
fn a_recording_that_shrinks_while_it_is_read_is_mentioned() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, &["--seed", "1"]);
    let file = &recordings(&run)[0];
    let whole = fs::read(file).unwrap();
    (0..1000).for_each(|at| fs::write(run.join(format!("z-{at}.nscope")), "").unwrap());
    let damaged = format!("warning: {} is damaged: ", file.display());
    // `diagnose` prints all warnings at its end, and `merge` reads no recording of another process.
    let commands = &Verbs::new(dir.path(), &run).commands[1..];
    for words in commands.iter().filter(|words| words[0] != "merge") {
        fs::write(file, &whole).unwrap();
        let mut command = tool();
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut stderr, mut first) = (child.stderr.take().unwrap(), [0]);
        stderr.read_exact(&mut first).unwrap();
        fs::File::options().write(true).open(file).unwrap().set_len(BLOCKS).unwrap();
        let mut said = String::new();
        let said = std::thread::spawn(move || {
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        let mut out = BufReader::new(child.stdout.take().unwrap());
        if words[0] == "view" {
            out.read_line(&mut String::new()).unwrap();
            child.kill().unwrap();
        }
        out.read_to_end(&mut Vec::new()).unwrap();
        let (code, said) = (child.wait().unwrap().code(), said.join().unwrap());
        assert_eq!(code, if words[0] == "view" { None } else { Some(3) }, "{words:?}");
        let lines: Vec<&str> = said.lines().filter(|line| !line.contains("/z-")).collect();
        assert_eq!(said.matches(&damaged).count(), 1, "{words:?}: {lines:?}");
        assert!(!said.contains("panicked"), "{words:?}: {lines:?}");
    }
}

/// The command lines of all verbs that read recordings, for one run.
struct Verbs {
    commands: Vec<Vec<String>>,
    folder: PathBuf,
}

impl Verbs {
    fn new(folder: &Path, run: &Path) -> Verbs {
        let [run, trace, profile, merged] = [
            run.to_owned(),
            folder.join("t.json"),
            folder.join("profile.json"),
            folder.join("merged.json"),
        ]
        .map(|path| path.into_os_string().into_string().unwrap());
        // A profile of another job is an error, which comes after the problems of the recordings.
        fs::write(&profile, r#"{"distributedInfo": {"rank": 0}, "traceEvents": []}"#).unwrap();
        let commands = [
            vec!["diagnose", &run],
            vec!["report", &run],
            vec!["report", &run, "--format", "json"],
            vec!["stragglers", &run],
            vec!["export", &run, "-o", &trace],
            vec!["merge", "--kineto", &profile, &run, "-o", &merged],
            vec!["view", &run, "--no-open"],
        ];
        let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
        Verbs { commands: commands.into_iter().map(owned).collect(), folder: folder.into() }
    }

    /// Runs each verb, which must print each of these texts on standard error once. Returns the
    /// exit codes.
    fn codes(&self, said: &[&str]) -> Vec<Option<i32>> {
        let code = |words: &Vec<String>| {
            let (stderr, code) = self.run(words);
            for line in said {
                assert_eq!(stderr.matches(line).count(), 1, "{words:?}: {stderr}");
            }
            code
        };
        self.commands.iter().map(code).collect()
    }

    /// Each verb must end with 3, even if it finds something.
    fn end_with_3(&self, said: &str) {
        let codes = self.codes(&[said]);
        assert!(codes.iter().all(|code| *code == Some(3)), "{codes:?}");
    }

    fn run(&self, words: &[String]) -> (String, Option<i32>) {
        let said = self.folder.join("stderr");
        let mut command = tool();
        command.args(words).stdout(Stdio::piped()).stderr(fs::File::create(&said).unwrap());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        if words[0] == "view" {
            out.read_line(&mut String::new()).unwrap();
            let pid = child.id().to_string();
            assert!(Command::new("kill").arg(pid).status().unwrap().success());
        }
        out.read_to_end(&mut Vec::new()).unwrap();
        let code = child.wait().unwrap().code();
        (fs::read_to_string(said).unwrap(), code)
    }
}

/// More recordings than the process may have descriptors.
#[test]
fn the_number_of_recordings_has_no_bound() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--seed", "1", "--ranks", "128", "--steps", "1"];
    let run = simulate(dir.path(), "run", "", &args);
    let limited = "ulimit -n 96 && exec \"$0\" report --format json \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited]).arg(tool().get_program()).arg(&run);
    let outcome = Outcome::of(&mut shell).ends_with(0);
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(found["processes"].as_array().unwrap().len(), 128);
    let whole = ncclscope(&["report", run.to_str().unwrap(), "--format", "json"]).ends_with(0);
    assert_eq!(outcome.stdout, whole.stdout);
}

/// With one recording unreadable, the others still give a result, and the exit code says that one
/// is missing.
#[test]
fn an_empty_directory_among_others_is_named() {
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    for verb in ["report", "diagnose", "stragglers"] {
        for both in [[empty, run.text()], [run.text(), empty]] {
            let outcome = ncclscope(&[&[verb], &both[..]].concat()).ends_with(3);
            assert!(outcome.stderr.contains(&format!(" in {empty}: ")), "{verb}: {outcome:#?}");
            assert!(!outcome.stdout.is_empty(), "{verb}: {outcome:#?}");
        }
        let outcome = ncclscope(&[verb, empty, empty]).ends_with(3);
        assert_eq!(outcome.stdout, "", "{verb}: {outcome:#?}");
    }
}

/// All processes of containers can have id 1, so the names of their recordings have a number
/// appended.
#[test]
fn a_recording_has_one_name_in_all_verbs() {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", EARLIER, STUCK_5);
    let before = diagnosed(&run, &[]);
    let first = recordings(&run).remove(0);
    let numbered = first.with_extension("nscope.1");
    fs::rename(&first, &numbered).unwrap();
    fs::copy(&numbered, first.with_extension("nscope.bak")).unwrap();
    assert_eq!(diagnosed(&run, &[]), before);
    let trace = dir.path().join("t.json");
    fs::write(&trace, r#"{"traceEvents": []}"#).unwrap();
    let out = dir.path().join("merged");
    let [trace, numbered, out] = [&trace, &numbered, &out].map(|path| path.to_str().unwrap());
    let merged = ncclscope(&["merge", "--kineto", trace, numbered, "-o", out]);
    assert!(!merged.stderr.contains("it is not a trace"), "{merged:?}");
}
