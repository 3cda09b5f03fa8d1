// SPDX-License-Identifier: Apache-2.0
//! `report` of several runs: one line for each.

use crate::common::{ncclscope, recordings, simulate};
use crate::schema::follows;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Three jobs below a directory, one of them deeper, and a directory with a file that is no
/// recording. All have the same seed: as to their identity they are one job.
fn yesterday(dir: &Path) -> String {
    let job = |name: &str, args: &[&str]| {
        let args = [&["--ranks", "8", "--steps", "12", "--seed", "1"], args].concat();
        simulate(dir, name, "", &args)
    };
    job("fine", &[]);
    job("slow", &["--fault", "slow-gpu", "--rank", "2"]);
    fs::create_dir(dir.join("deep")).unwrap();
    job("deep/hung", &["--fault", "host-stuck", "--rank", "5"]);
    fs::create_dir(dir.join("broken")).unwrap();
    fs::write(dir.join("broken/node-1.nscope"), "no recording").unwrap();
    dir.to_str().unwrap().to_owned()
}

/// The rows of the table as JSON, by the last part of their directory.
fn row<'a>(listing: &'a Value, name: &str) -> &'a Value {
    let is_it = |row: &&Value| row["run"].as_str().unwrap().ends_with(name);
    listing["runs"].as_array().unwrap().iter().find(is_it).unwrap()
}

#[test]
fn runs_below_a_directory_are_a_line_each_and_a_broken_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let all = yesterday(dir.path());
    let text = ncclscope(&["report", &all]).ends_with(3).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("RUN  ") && lines.len() == 5, "{text}");
    let has =
        |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["/fine ", " FINE ", " 8 "]), "{text}");
    assert!(has(&["/slow ", " SLOW ", " S1 ", "2 (node-0001)"]), "{text}");
    assert!(has(&["/deep/hung ", " HUNG ", " H1a ", " 5 (node-0002)", " 192"]), "{text}");
    let error = "node-1.nscope: not an ncclscope recording";
    assert!(lines[4].contains("/broken") && lines[4].contains(error), "{text}");

    let json = ncclscope(&["report", &all, "--format", "json"]).ends_with(3).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    follows(&json, "runs");
    let hung = row(&json, "/hung");
    assert_eq!((&hung["state"], &hung["root_ranks"]), (&json!("HUNG"), &json!([5])));
    assert!(hung["who"].as_str().unwrap().starts_with("rank 5 (node-0002, local rank 1,"));
    let broken = row(&json, "/broken");
    assert!(broken["error"].as_str().unwrap().contains(error) && broken["state"].is_null());
    let csv = ncclscope(&["report", &all, "--format", "csv"]).ends_with(3).stdout;
    assert!(csv.starts_with("run,job,start,duration_ns,ranks,job_ranks,state,"), "{csv}");
    assert_eq!(csv.lines().count(), 5, "{csv}");
    // The first cell is what shows one of them.
    let one = ncclscope(&["report", hung["run"].as_str().unwrap()]).ends_with(0).stdout;
    assert!(one.starts_with("HUNG  since "), "{one}");
}

#[test]
fn several_runs_are_a_line_each_and_directories_of_one_run_are_one() {
    let dir = tempfile::tempdir().unwrap();
    yesterday(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let text = ncclscope(&["report", &path("fine"), &path("slow")]).ends_with(0).stdout;
    assert!(text.starts_with("RUN  ") && text.lines().count() == 3, "{text}");
    // The hosts of one run have directories of their own.
    let halves = ["halves/a", "halves/b"].map(path);
    halves.iter().for_each(|half| fs::create_dir_all(half).unwrap());
    for file in recordings(&dir.path().join("deep/hung")) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let half = &halves[usize::from(name.starts_with("node-0002"))];
        fs::copy(&file, Path::new(half).join(name)).unwrap();
    }
    let text = ncclscope(&["report", &halves[0], &halves[1]]).ends_with(0).stdout;
    assert!(text.starts_with("HUNG  since "), "{text}");
    let json = ncclscope(&["report", &path("halves"), "--format", "json"]).ends_with(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["runs"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["ranks"]), (1, &json!(8)), "{json}");
    // An option about one run.
    let error = ncclscope(&["report", "--full", &path("halves")]).ends_with(3).stderr;
    assert!(error.contains("name the directory of a run"), "{error}");
}
