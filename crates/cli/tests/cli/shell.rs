// SPDX-License-Identifier: Apache-2.0
//! Completions and manual pages.

use crate::common::{Outcome, ncclscope};
use std::process::Command;

#[test]
fn bash_completes_verbs_and_options() {
    let script = ncclscope(&["completions", "bash"]).ends_with(0).stdout;
    let ask = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (words, last) = (words.join("\" \""), words.len() - 1);
        let ask = format!(
            "{script}\nCOMP_WORDS=(\"{words}\"); COMP_CWORD={last}; \
             _ncclscope ncclscope \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\""
        );
        Outcome::of(Command::new("bash").args(["-c", &ask])).ends_with(0).stdout
    };
    assert_eq!(ask("ncclscope snap"), "snapshot\n");
    assert!(ask("ncclscope report --").contains("--full"));
    assert_eq!(ask("ncclscope report --format "), "text json csv md\n");
}

#[test]
fn each_shell_has_a_script() {
    for (shell, word) in [("zsh", "#compdef ncclscope"), ("fish", "complete -c ncclscope")] {
        let script = ncclscope(&["completions", shell]).ends_with(0).stdout;
        assert!(script.contains(word) && script.contains("stragglers"), "{shell}");
    }
    ncclscope(&["completions", "cmd.exe"]).ends_with(2);
}

#[test]
fn each_verb_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("man1");
    ncclscope(&["man", place.to_str().unwrap()]).ends_with(0);
    let page = |name: &str| std::fs::read_to_string(place.join(name)).unwrap();
    assert!(page("ncclscope.1").contains("ncclscope\\-stragglers(1)"));
    let report = page("ncclscope-report.1");
    assert!(report.contains("\\-\\-hang\\-sec") && report.contains("Print a report"), "{report}");
    let pages = std::fs::read_dir(&place).unwrap().count();
    let help = ncclscope(&["--help"]).ends_with(0).stdout;
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs = verbs.take_while(|line| !line.is_empty());
    let verbs = verbs.filter(|line| line.starts_with("  ") && !line.starts_with("   ")).count();
    // `help` has no manual page, and the tool itself has one.
    assert_eq!(pages, verbs);
    let unwritable = ncclscope(&["man", "/proc/x"]).ends_with(4).stderr;
    assert!(unwritable.contains("cannot write /proc/x"), "{unwritable}");
}
