// SPDX-License-Identifier: Apache-2.0
//! The tool with a recording of an overloaded plugin.

use crate::common::{Outcome, ncclscope, tool};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Plays more operations to the plugin than it has time and space for. Returns the output.
fn overload(run: &Path) -> String {
    let mut host = Command::new(built::FAKE_NCCL.path().unwrap());
    host.arg(built::PLUGIN.path().unwrap());
    host.args(["6", "burst", "--ops", "100000", "--threads", "2"]);
    host.env("NCCLSCOPE_DIR", run).env("NCCLSCOPE_RING_MB", "1");
    let text = Outcome::of(&mut host).ends_with(0).stdout;
    assert!(text.ends_with("survived\n"), "{text}");
    text
}

/// Started operations by kind, which `fake-nccl` counts by NCCL's number of the kind.
fn played(text: &str) -> BTreeMap<&'static str, u64> {
    let kinds = [("1", "Coll"), ("3", "ProxyOp"), ("4", "ProxyStep")];
    let count = |number: &str| {
        let prefix = format!("played {number} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|l| l.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    kinds.map(|(number, kind)| (kind, count(number))).into()
}

/// Replaces every number by `N`, and every run of spaces by one space.
fn shape(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        let digits = word.trim_end_matches([',', ':']);
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        out += if is_number { "N" } else { digits };
        out += &word[digits.len()..];
        out.push(' ');
    }
    out
}

#[test]
fn the_loss_is_shown_with_what_to_set() {
    let dir = tempfile::tempdir().unwrap();
    let played = played(&overload(dir.path()));
    let path = dir.path().to_str().unwrap();

    let text = shape(&ncclscope(&["report", "--full", path]).ends_with(0).stdout);
    for expected in [
        "lost N records and the oldest N: see below",
        "events dropped because their threads' lanes were full: Coll N, ProxyOp N, ProxyStep N \
         -> callbacks came faster than they could be written, and the newest were dropped: \
         NCCLSCOPE_EVENTS=default,-ProxyStep records less; a processor core for the plugin's own \
         thread (ncclscope/drain), and NCCLSCOPE_DIR on a local disk or in memory, let it write \
         faster",
        "oldest records overwritten (bounded recording): Coll N, ProxyOp N, ProxyStep N -> \
         NCCLSCOPE_RING_MB=",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }

    let mut doctor = tool();
    doctor.args(["doctor", "-o", path]);
    let text = shape(&Outcome::of(&mut doctor).stdout);
    let expected = "warn recordings events dropped because their threads' lanes were full: \
                    Coll N, ProxyOp N, ProxyStep N -> callbacks came faster";
    assert!(text.contains(expected), "{text}");

    let json = ncclscope(&["report", "--format", "json", path]).ends_with(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let lost = |cause: &str, kind: &str| json["lost"][cause][kind].as_u64().unwrap_or(0);
    for (kind, played) in played {
        let rows = json["ranks"].as_array().unwrap().iter();
        let started = rows.filter_map(|row| row["events"][kind]["started"].as_u64()).sum::<u64>();
        let dropped = lost("by_kind", kind) + lost("without_lane_by_kind", kind);
        assert!(dropped > 0 && started > 0, "{kind}: {json}");
        // The report counts overwritten records, not events: a step is one record.
        let overwritten = lost("overwritten_by_kind", kind);
        match kind {
            "ProxyStep" => assert_eq!(started + dropped + overwritten, played, "{kind}"),
            _ => assert!(started + dropped <= played, "{kind}"),
        }
    }
    let advice = json["lost"]["losses"].as_array().unwrap().iter();
    let ring =
        advice.filter_map(|loss| loss["advice"].as_str()?.strip_prefix("NCCLSCOPE_RING_MB="));
    let mib: Vec<u64> = ring.filter_map(|text| text.split(' ').next()?.parse().ok()).collect();
    assert!(matches!(mib[..], [2..=64]), "{mib:?}");
}
