// SPDX-License-Identifier: Apache-2.0
//! Every verb names a recording with a damaged header, and no verb trusts it.

use crate::common::{recordings, simulate, tool};
use ncclscope_trace::layout::HEADER_BYTES;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

const SEED: &[&str] = &["--seed", "1"];

/// One bit of each part of the header: first bytes, version, closed, shared lanes, process id,
/// process bits, clock, segments, ticks, next block, definitions, mask, copy, freezes, checksum,
/// seal, host, counters by kind, lanes file, the last byte.
const BITS: [(usize, u8); 22] = [
    (3, 1),
    (8, 1),
    (10, 2),
    (16, 1),
    (20, 1),
    (24, 4),
    (28, 1),
    (28, 64),
    (32, 1),
    (36, 2),
    (43, 32),
    (48, 1),
    (56, 8),
    (64, 2),
    (136, 1),
    (228, 1),
    (248, 16),
    (252, 1),
    (260, 1),
    (512 + 8, 1),
    (2570, 1),
    (HEADER_BYTES - 1, 128),
];

fn output(verb: &[&str], run: &Path) -> Output {
    tool().args(verb).arg(run).output().unwrap()
}

/// The confirmed results of a verb: class and ranks. Asserts that it ends with one of these codes.
fn confirmed(verb: &[&str], run: &Path, codes: &[i32]) -> BTreeSet<String> {
    let output = output(verb, run);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{verb:?}: {said}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = found["findings"].as_array().into_iter().flatten();
    let sure = all.filter(|it| it["confidence"] == "confirmed");
    let sure = sure.map(|it| json!([it["class"], it["root_ranks"], it["edge"]]));
    // A report has this in its text.
    let answer = &found["answer"];
    let is_sure = answer["why"].as_str().is_some_and(|why| why.contains("confirmed"));
    let answer = is_sure.then(|| json!([answer["classes"], answer["root_ranks"]]));
    sure.chain(answer).map(|it| it.to_string()).collect()
}

/// With any one bit of a rank's header flipped, no verb confirms more than without the damage.
#[track_caller]
fn nothing_new_is_confirmed(args: &[&str], verbs: &[&[&str]], ranks: &[usize]) {
    let dir = tempfile::tempdir().unwrap();
    let run = simulate(dir.path(), "run", "", &[SEED, args].concat());
    let files = recordings(&run);
    for verb in verbs {
        let intact = confirmed(verb, &run, &[0, 1]);
        assert!(!intact.is_empty(), "{verb:?} finds the fault");
        for &rank in ranks {
            let whole = fs::read(&files[rank]).unwrap();
            for (byte, bit) in BITS {
                let mut damaged = whole.clone();
                damaged[byte] ^= bit;
                fs::write(&files[rank], damaged).unwrap();
                let now = confirmed(verb, &run, &[3]);
                let new: Vec<&String> = now.difference(&intact).collect();
                assert!(new.is_empty(), "{verb:?}, rank {rank}, byte {byte}, bit {bit}: {new:?}");
            }
            fs::write(&files[rank], whole).unwrap();
        }
    }
}

#[test]
fn a_flipped_bit_of_a_header_confirms_no_cause_of_a_hang() {
    let args = ["--ranks", "8", "--steps", "4", "--fault", "host-stuck", "--rank", "5"];
    let verbs: [&[&str]; 2] = [&["diagnose", "--format", "json"], &["report", "--format", "json"]];
    nothing_new_is_confirmed(&args, &verbs, &[2, 5]);
}

#[test]
fn a_flipped_bit_of_a_header_makes_no_rank_slow() {
    let args = ["--ranks", "16", "--fault", "slow-gpu"];
    let verbs: [&[&str]; 1] = [&["stragglers", "--format", "json"]];
    nothing_new_is_confirmed(&args, &verbs, &[2, 8]);
}

#[test]
fn a_damaged_header_is_named_by_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let args = [SEED, &["--ranks", "4", "--steps", "2"]].concat();
    let run = simulate(dir.path(), "run", "", &args);
    let file = &recordings(&run)[2];
    let mut bytes = fs::read(file).unwrap();
    bytes[28] ^= 4;
    fs::write(file, bytes).unwrap();
    let line = format!(
        "cannot read {}: corrupt header: it contradicts its checksum\n",
        file.file_name().unwrap().to_str().unwrap()
    );
    let trace = dir.path().join("trace.json");
    let to = ["export", "-o", trace.to_str().unwrap()];
    for verb in [&["report"][..], &["diagnose"], &["stragglers"], &to] {
        let output = output(verb, &run);
        let said =
            String::from_utf8(output.stderr).unwrap().replace(&format!("{}/", run.display()), "");
        assert!(said.contains(&line), "{verb:?}: {said}");
        assert_eq!(output.status.code(), Some(3), "{verb:?}: {said}");
    }
}
