// SPDX-License-Identifier: Apache-2.0
//! Runs with more recordings than a process may open files.

use super::common::{Outcome, ncclscope, tool};
use std::path::Path;
use std::process::Command;

/// Runs the tool in a shell that may open `files` files.
fn limited(files: u32, args: &[&str]) -> Outcome {
    let tool = tool();
    let mut command = Command::new("sh");
    for (name, value) in tool.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
    Outcome::of(command.args(["-c", &script]).arg(tool.get_program()).args(args))
}

/// A run of 24 ranks.
fn simulate(place: &Path, fault: &str) -> String {
    let run = place.join(fault).to_str().unwrap().to_owned();
    let args = ["simulate", "-o", &run, "--ranks", "24", "--steps", "4", "--fault", fault];
    ncclscope(&args).ends_with(0);
    run
}

#[test]
fn a_low_limit_of_open_files_changes_no_answer() {
    let place = tempfile::tempdir().unwrap();
    for fault in ["host-stuck", "healthy"] {
        let run = simulate(place.path(), fault);
        let verbs: [&[&str]; 5] = [
            &["report", &run],
            &["diagnose", &run],
            &["stragglers", &run],
            &["compare", &run, &run],
            &["export", &run, "-o", "-", "--to", "chrome"],
        ];
        for verb in verbs {
            let usual = ncclscope(verb);
            assert!(matches!(usual.code, Some(0 | 1)), "{verb:?}: {}", usual.stderr);
            let few = limited(16, verb);
            assert_eq!((few.code, &few.stderr), (usual.code, &usual.stderr), "{verb:?}");
            assert!(few.stdout == usual.stdout, "{verb:?}: {}", few.stdout);
        }
    }
}

#[test]
fn a_limit_that_is_too_low_is_one_error() {
    let place = tempfile::tempdir().unwrap();
    let run = simulate(place.path(), "healthy");
    for verb in ["report", "diagnose", "stragglers"] {
        let outcome = limited(8, &[verb, &run]).ends_with(4);
        assert_eq!(outcome.stdout, "");
        let says = "can be opened, and reading takes 8: raise the limit with `ulimit -n 1024`\n";
        assert!(outcome.stderr.ends_with(says), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}
