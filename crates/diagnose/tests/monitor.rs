// SPDX-License-Identifier: Apache-2.0
//! Streams of events that RAS printed (`MONITOR`), of jobs of three or four processes on real NCCL:
//! healthy, with a process that was killed (SIGKILL), stopped (SIGSTOP), stopped for eight seconds,
//! or that ended in order before the others. The names of the files in `monitor` say which.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, diagnose, open, text};
use ncclscope_findings::{Confidence, FindingClass};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/monitor").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(fixture(name)).unwrap()
}

/// The diagnosis and the warnings.
fn of(paths: &[PathBuf]) -> (Diagnosis, Vec<String>) {
    let options = Options::of(Duration::from_secs(2));
    let settings = InputOptions { hang: options.hang, ..InputOptions::default() };
    let input = open(paths, &settings).unwrap();
    let mut found = diagnose(&input.job, &options);
    input.ras.unwrap().add_to(&mut found, &input.job);
    (found, input.warnings)
}

fn of_fixtures(names: &[&str]) -> Diagnosis {
    let (found, warnings) = of(&names.iter().map(|name| fixture(name)).collect::<Vec<_>>());
    assert!(warnings.is_empty(), "{warnings:?}");
    found
}

/// The diagnosis of a stream with this text, and its warnings.
fn of_text(stream: &str) -> (Diagnosis, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.txt");
    std::fs::write(&path, stream).unwrap();
    let (found, warnings) = of(&[path]);
    let named = warnings.iter().map(|text| text.replace(&dir.path().display().to_string(), "DIR"));
    (found, named.collect())
}

/// The one verdict: its title, without what it means, and its ranks.
fn gone(found: &Diagnosis) -> (String, &[u32]) {
    let [one] = &found.findings[..] else { panic!("{found:#?}") };
    assert_eq!((one.class, one.confidence()), (FindingClass::ProcessGone, Confidence::Suspect));
    let title = one.title();
    let end = "stopped, dead or cut off from the network: NCCL's RAS gets no answer";
    let who = title.strip_suffix(end).unwrap().trim_end();
    let who = who.strip_suffix(" is").or_else(|| who.strip_suffix(" are"));
    (who.unwrap().to_owned(), &one.root_ranks)
}

fn has_note(found: &Diagnosis, text: &str) -> bool {
    found.notes.iter().any(|note| note.contains(text))
}

#[test]
fn a_healthy_stream_gives_nothing() {
    for file in ["healthy-2.32.3.txt", "healthy-2.30.7.json"] {
        let found = of_fixtures(&[file]);
        assert_eq!(found.findings, [], "{file}");
        let says = "RAS's MONITOR names 4 processes: 0 considered dead, 0 more without an answer";
        assert!(has_note(&found, says), "{file}: {:?}", found.notes);
        let text = text::render(&found, None, None);
        let first = "NCCL RAS MONITOR: whether ranks wait is not visible\n\nNothing found.\n";
        assert!(text.starts_with(first), "{text}");
    }
}

#[test]
fn a_dead_process_is_named_without_a_rank() {
    for (file, who) in [
        ("killed-2.30.7.txt", "process 8350 on 127.0.0.1 (GPU 0)"),
        ("killed-2.32.3.json", "process 8382 on 127.0.0.1 (GPU 1)"),
        ("killed-lifecycle-2.32.3.txt", "process 8382 on 127.0.0.1 (GPU 1)"),
        ("killed-two-gpus-2.32.3.txt", "process 8540 on 127.0.0.1 (GPUs 0, 1)"),
        ("stopped-2.30.7.txt", "process 10222 on 127.0.0.1 (GPU 0)"),
    ] {
        let found = of_fixtures(&[file]);
        assert_eq!(gone(&found), (who.to_owned(), &[][..]), "{file}");
        let text = text::render(&found, None, None);
        assert!(!text.contains("rank 0") && !text.contains("victims"), "{text}");
    }
}

#[test]
fn the_evidence_tells_when_each_thing_was_seen() {
    let evidence = |file| of_fixtures(&[file]).findings[0].evidence[0].text.clone();
    let killed = "RAS's MONITOR: process 8350 on 127.0.0.1 (GPU 0): a connection to it was closed \
                  at 2026-11-29 19:46:30, no answer at 2026-11-29 19:46:35, considered dead at \
                  2026-11-29 19:47:30";
    assert_eq!(evidence("killed-2.30.7.txt"), killed);
    let stopped = "RAS's MONITOR: process 10222 on 127.0.0.1 (GPU 0): no answer at 2026-11-29 \
                   19:47:46, considered dead at 2026-11-29 19:48:41";
    assert_eq!(evidence("stopped-2.30.7.txt"), stopped, "its connection stays open");
}

#[test]
fn a_process_that_came_back_is_no_finding() {
    let found = of_fixtures(&["continued-2.32.3.txt"]);
    assert_eq!(found.findings, []);
    let note = "process 8415 on 127.0.0.1 (GPU 0): it answered again at 2026-11-29 19:46:42";
    assert!(has_note(&found, note), "{:?}", found.notes);
}

#[test]
fn a_process_without_an_answer_for_less_than_a_minute_is_a_note() {
    let stream = read("killed-2.30.7.txt");
    let cut = &stream[..stream.find("[2026-11-29 19:46:51]").unwrap()];
    let (found, warnings) = of_text(cut);
    assert_eq!((found.findings.len(), warnings.len()), (0, 0));
    let note = "(GPU 0): a connection to it was closed at 2026-11-29 19:46:30, no answer at";
    assert!(has_note(&found, note), "{:?}", found.notes);
}

#[test]
fn an_end_in_order_looks_like_a_death_and_is_told() {
    let found = of_fixtures(&["ended-early-2.30.7.txt"]);
    assert_eq!(gone(&found).0, "process 14225 on 127.0.0.1 (GPU 1)");
    let [ended, other] = &found.findings[0].alternatives()[..] else { panic!("{found:#?}") };
    assert!(ended.starts_with("a process that ended in order"), "{ended}");
    assert!(other.starts_with("the process that printed the events"), "{other}");
}

#[test]
fn a_process_that_was_stopped_itself_accuses_no_other() {
    let found = of_fixtures(&["printed-by-stopped-2.32.3.txt"]);
    assert_eq!(found.findings, [], "three of four are alive");
    let note = "considers 3 of 4 processes dead since 2026-11-29 19:49:39, but not process 10128 \
                on 127.0.0.1 (GPU 1): perhaps the process that printed the events was itself";
    assert!(has_note(&found, note), "{:?}", found.notes);
    let status = "printed-by-stopped-2.32.3-status-other.txt";
    let found = of_fixtures(&["printed-by-stopped-2.32.3.txt", status]);
    assert_eq!(gone(&found).1, [1], "STATUS of another process shows which it was");
}

#[test]
fn with_status_before_the_death_the_rank_is_named() {
    for (events, status, rank, who) in [
        ("killed-2.32.3.json", "killed-2.32.3-status-before.json", 1, "127.0.0.1, pid 8382"),
        ("stopped-2.30.7.txt", "stopped-2.30.7-status-before.json", 2, "127.0.0.1, pid 10222"),
    ] {
        let alone = of_fixtures(&[status]);
        assert_eq!(alone.findings, [], "{status}: all are well");
        let found = of_fixtures(&[events, status]);
        assert_eq!(gone(&found), (format!("rank {rank} ({who})"), &[rank][..]));
        let verdict = &found.findings[0];
        let [_, times, unseen] = &verdict.evidence[..] else { panic!("{verdict:#?}") };
        assert!(times.text.contains("considered dead at"), "{}", times.text);
        assert!(
            unseen.text.starts_with("that is later than all outputs of STATUS"),
            "{}",
            unseen.text
        );
        let doubts = &verdict.alternatives();
        assert!(doubts.iter().any(|it| it.starts_with("a process that ended in order")));
    }
}

#[test]
fn a_rank_that_two_outputs_show_at_work_is_only_suspected_of_what_happened_later() {
    let status = read("killed-2.32.3-status-before.json");
    let dir = tempfile::tempdir().unwrap();
    let mut paths = vec![fixture("killed-2.32.3.json")];
    for (time, launches) in [("19:46:00", 5), ("19:46:30", 9)] {
        let own = status.replace("19:46:31", time);
        let own = own.replace("\"AllReduce\": 1", &format!("\"AllReduce\": {launches}"));
        paths.push(dir.path().join(format!("status-{launches}.json")));
        std::fs::write(paths.last().unwrap(), own).unwrap();
    }
    let (found, _) = of(&paths);
    assert_eq!(gone(&found).1, [1]);
}

#[test]
fn a_dead_rank_that_had_launched_less_is_what_the_others_wait_for() {
    let status = read("killed-2.32.3-status-before.json");
    let (first, own) = status.split_once("\"pid\": 8382").unwrap();
    let launches = "\"AllReduce\": 1";
    assert!(own.contains(launches), "{own}");
    let behind = own.replacen(launches, "\"AllReduce\": 0", 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("status.json");
    std::fs::write(&path, format!("{first}\"pid\": 8382{behind}")).unwrap();
    let (found, _) = of(&[fixture("killed-2.32.3.json"), path]);
    assert_eq!(gone(&found), ("rank 1 (127.0.0.1, pid 8382)".to_owned(), &[1][..]));
    assert_eq!(found.findings[0].victims, 3);
}

#[test]
fn status_after_the_death_gives_the_verdict_and_the_events_its_time() {
    let status = "killed-2.32.3-status-after.json";
    let (alone, both) = (of_fixtures(&[status]), of_fixtures(&["killed-2.32.3.json", status]));
    let verdict = |found: &Diagnosis| {
        let [one] = &found.findings[..] else { panic!("{found:#?}") };
        (one.class, one.confidence(), one.root_ranks.clone(), one.victims)
    };
    let truth = (FindingClass::ProcessGone, Confidence::Confirmed, vec![1], 0);
    assert_eq!((verdict(&alone), verdict(&both)), (truth.clone(), truth));
    let added = both.findings[0].evidence.last().unwrap();
    assert!(added.text.ends_with("considered dead at 2026-11-29 19:47:31"), "{}", added.text);
    assert_eq!(both.findings[0].evidence.len(), alone.findings[0].evidence.len() + 1);
}

#[test]
fn a_later_status_that_shows_the_process_overrides_its_death() {
    let status = read("killed-2.32.3-status-before.json").replace("19:46:31", "19:50:00");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("status.json");
    std::fs::write(&path, status).unwrap();
    let (found, _) = of(&[fixture("killed-2.32.3.json"), path]);
    assert_eq!(found.findings, []);
    assert!(has_note(&found, "pid 8382): a connection to it was closed"), "{:?}", found.notes);
}

#[test]
fn streams_of_several_hosts_are_one() {
    let both = of_fixtures(&["killed-2.30.7.txt", "stopped-2.30.7.txt"]);
    assert_eq!(gone(&both), ("2 processes on 127.0.0.1".to_owned(), &[][..]));
    assert_eq!(both.findings[0].evidence.len(), 2);
}

#[test]
fn what_the_client_prints_around_the_events_is_no_damage() {
    let banner = "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n\
                  ================================================================\n";
    let end = "Connection closed by the NCCL job.\n";
    for file in ["killed-2.30.7.txt", "killed-2.32.3.json"] {
        let (found, warnings) = of_text(&format!("{banner}{}{end}", read(file)));
        assert_eq!((found.findings.len(), warnings), (1, Vec::new()), "{file}");
    }
    let (found, warnings) = of_text(banner);
    assert_eq!((found.findings.len(), warnings), (0, Vec::new()), "no event came");
}

#[test]
fn damage_gives_one_warning_and_the_rest_counts() {
    let text = read("killed-2.30.7.txt");
    let garbled = text
        .replace("PEER_NEW: Process 8", "PEER_NEW: Proc\u{0}ss 8")
        .replace("[2026-11-29 19:46:35] PEER_CONNECTING", "26-11-29 19:46:35] PEER_CONNECTING");
    let (found, warnings) = of_text(&garbled);
    assert_eq!(found.findings.len(), 1);
    let says = "cannot read DIR/events.txt: 1 part is no event of RAS's MONITOR or cut off, that \
                at line 9: the rest is used";
    assert_eq!(warnings, [says]);
    // The id of the process is cut.
    let cut = &text[..text.rfind("8350").unwrap() + 2];
    let (found, warnings) = of_text(cut);
    assert_eq!((found.findings.len(), warnings.len()), (0, 1), "{warnings:?}");
    assert!(warnings[0].contains("that at line 13"), "{warnings:?}");
    let json = read("killed-2.32.3.json");
    let garbled = json.replacen("\"pid\": 8382,", "\"pid\": 83", 2);
    let (found, warnings) = of_text(&garbled);
    assert_eq!((found.findings.len(), warnings.len()), (1, 1), "{warnings:?}");
    assert!(warnings[0].contains("2 parts are no event"), "{warnings:?}");
    let (found, warnings) = of_text(&json[..json.len() - 30]);
    assert_eq!((found.findings.len(), warnings.len()), (1, 1), "PEER_TIMEOUT_DEAD is whole");
    assert!(warnings[0].contains("1 part is no event"), "{warnings:?}");
}

#[test]
fn logs_of_other_programs_are_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.txt", "[2026-11-29 19:46:35] INFO: Process 7 on node a managing GPU 1\n"),
        ("b.json", r#"{"timestamp": "2026-11-29 19:46:35", "group": "A", "event": "START"}"#),
        ("c.txt", "ERROR: Unknown command MONITOR\n"),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        open(&[path], &InputOptions::default()).unwrap_err();
    }
}
