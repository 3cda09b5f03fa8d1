// SPDX-License-Identifier: Apache-2.0
//! The C example works with the plugin's C header.

use crate::common::{compile, operations, play, plugin};
use ncclscope_trace::{MarkKind, Recording};
use std::path::Path;
use std::process::Command;

#[test]
fn the_example_records_its_steps_and_prints_hangs() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let include = format!("-I{}", include.canonicalize().unwrap().display());
    let host = compile("example", &[&include]);
    let copies = tempfile::tempdir().unwrap();
    let played = play(Command::new(host).arg(plugin()).arg(copies.path()), &[]);
    played.survived();
    let stdout = String::from_utf8_lossy(&played.output.stdout);
    for event in ["hung", "recovered"] {
        let says = format!(r#""event":"{event}""#);
        let line = stdout.lines().find(|line| line.contains(&says));
        assert!(line.is_some_and(|line| line.contains(r#""drill":true"#)), "{event}: {stdout}");
    }
    let stderr = played.stderr();
    assert!(stderr.contains("ncclscope: cannot write /proc/nonesuch"), "{stderr}");

    let copy = std::fs::read_dir(copies.path()).unwrap().next().unwrap().unwrap().path();
    let copy = Recording::open(&copy).unwrap();
    assert_eq!(operations(&copy), 6);
    let texts = copy.marks().iter().filter(|mark| mark.what == MarkKind::Note);
    let texts: Vec<_> = texts.filter_map(|mark| copy.string(mark.name)).collect();
    assert_eq!(texts, ["warm"]);
    let steps = copy.marks().iter().filter(|mark| mark.what == MarkKind::Step);
    assert_eq!(steps.map(|mark| mark.value).collect::<Vec<_>>(), [0, 1, 2]);
}
