// SPDX-License-Identifier: Apache-2.0
//! Jobs that crashed: the first lines of `report` and the verdict of `diagnose`.

use crate::common::{ncclscope, simulate};
use crate::schema::follows;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The lines of `report` about a run, and its JSON.
fn report(run: &Path) -> (Vec<String>, Value) {
    let run = run.to_str().unwrap();
    let text = ncclscope(&["report", run]).ends_with(0).stdout;
    let json = ncclscope(&["report", "--format", "json", run]).ends_with(0).stdout;
    let json = serde_json::from_str(&json).unwrap();
    follows(&json, "report");
    (text.lines().map(str::to_owned).collect(), json)
}

/// A simulated job of 16 ranks and 12 steps.
fn job(dir: &Path, scenario: &str, args: &[&str]) -> std::path::PathBuf {
    let args = [&["--seed", "1", "--ranks", "16"], args].concat();
    simulate(dir, "run", &format!("[job]\nsteps = 12\n{scenario}"), &args)
}

/// What `ncclscope run` writes about a command that ended so.
fn ended(run: &Path, how: &Value) {
    let mut about = json!({"schema": "ncclscope.run/1", "command": ["train"], "started": "x",
        "ended": "x", "versions": {"ncclscope": "0.1.0"}});
    for (key, value) in how.as_object().unwrap() {
        about[key] = value.clone();
    }
    fs::write(run.join("run.json"), about.to_string()).unwrap();
}

#[test]
fn a_killed_rank_comes_before_the_waiting_that_it_caused() {
    let dir = tempfile::tempdir().unwrap();
    let run = job(dir.path(), "hold_s = 3\n", &["--fault", "killed", "--rank", "3"]);
    let (lines, json) = report(&run);
    assert!(lines[0].starts_with("CRASHED  at 20"), "{lines:#?}");
    assert!(
        lines[0].contains(": 1 of 16 ranks ended before the other ranks; 16 of 16 ranks waited")
    );
    let who = "who   rank 3 (node-0000, local rank 3, GPU 3, pid 10192); it ended 1.72 s or more \
               before all others of the host";
    assert_eq!(lines[1], who);
    assert!(lines[2].starts_with("why   H1b process-gone (confirmed): rank 3 ended before "));
    assert!(lines[3].starts_with("next  ncclscope diagnose "), "{lines:#?}");
    let answer = &json["answer"];
    assert_eq!((&answer["state"], &answer["root_ranks"]), (&json!("CRASHED"), &json!([3])));
    let ended = &answer["ended"];
    assert_eq!((&ended["exit_code"], &ended["first"]["ranks"]), (&Value::Null, &json!([3])));
    let text = ncclscope(&["diagnose", run.to_str().unwrap()]).ends_with(1).stdout;
    assert!(text.contains("\n  victims      15 ranks wait because of this\n"), "{text}");
    assert!(!text.contains("H3d"), "{text}");
}

#[test]
fn a_rank_that_the_others_waited_for_after_its_end_crashed_the_job() {
    let dir = tempfile::tempdir().unwrap();
    for fault in ["killed", "exit"] {
        let run = job(dir.path(), "", &["--fault", fault, "--rank", "3"]);
        let (lines, json) = report(&run);
        assert!(lines[0].contains("; 15 of 16 ranks waited in NCCL for 59.8 s"), "{lines:#?}");
        assert!(lines[1].starts_with("who   rank 3 (node-0000, "), "{lines:#?}");
        assert_eq!(json["answer"]["state"], "CRASHED", "{lines:#?}");
        fs::remove_dir_all(run).unwrap();
    }
}

#[test]
fn a_command_that_ended_with_an_error_makes_no_job_fine() {
    let dir = tempfile::tempdir().unwrap();
    let run = job(dir.path(), "", &[]);
    ended(&run, &json!({"exit_code": 1}));
    let (lines, json) = report(&run);
    assert!(lines[0].ends_with(": the command ended with exit status 1"), "{lines:#?}");
    let who = "who   CANNOT TELL who: the recordings end within ";
    assert!(lines[1].starts_with(who), "{lines:#?}");
    assert_eq!(json["answer"]["ended"]["exit_code"], 1);
    let answer = &json["answer"];
    assert_eq!((&answer["state"], &answer["root_ranks"]), (&json!("CRASHED"), &json!([])));
    let text = ncclscope(&["diagnose", run.to_str().unwrap()]).ends_with(0).stdout;
    assert!(text.contains("note: the command ended with exit status 1; no recording shows"));
    ended(&run, &json!({"exit_code": 139, "signal": 11}));
    assert!(report(&run).0[0].ends_with(": the command was ended by SIGSEGV"));
    // The user has read enough.
    ended(&run, &json!({"exit_code": 130, "asked": 2}));
    let (lines, _) = report(&run);
    assert!(lines[0].starts_with("FINE  16 ranks: nothing hangs"), "{lines:#?}");
    assert!(lines[0].ends_with("exit status 130 (SIGINT), after SIGINT was sent to it"));
    ended(&run, &json!({"exit_code": 0}));
    assert!(!report(&run).0[0].contains("exit"));
}

/// A slow rank before the crash is a second line; a hang that no death explains stays the first.
#[test]
fn what_was_before_a_crash_is_told_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = job(dir.path(), "", &["--fault", "slow-gpu", "--rank", "8"]);
    ended(&run, &json!({"exit_code": 1}));
    let (lines, json) = report(&run);
    assert!(lines[0].starts_with("CRASHED  at "), "{lines:#?}");
    let past = "past  SLOW before: S1 slow-rank (confirmed): rank 8 is slow";
    assert!(lines[3].starts_with(past), "{lines:#?}");
    assert_eq!(json["answer"]["past"], lines[3][6..]);
    fs::remove_dir_all(&run).unwrap();
    let run = job(dir.path(), "", &["--fault", "host-stuck", "--rank", "10"]);
    ended(&run, &json!({"exit_code": 1}));
    let (lines, _) = report(&run);
    assert!(lines[0].starts_with("HUNG  since 20"), "{lines:#?}");
    assert!(lines[0].ends_with(" for 59.8 s; the command ended with exit status 1"), "{lines:#?}");
    assert!(lines[1].starts_with("who   rank 10 "), "{lines:#?}");
}
