// SPDX-License-Identifier: Apache-2.0
//! Recordings, and everything that the tool's verbs derive from them.

use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, recorded_job, text};
use ncclscope_report::ReportBuilder;
use ncclscope_simulate::{Fault, JobShape, Planted, Scenario};
use ncclscope_stragglers::{Limits, analyze, input};
use ncclscope_trace::layout::{
    BLOCKS, DEFINITIONS, HEADER_BYTES, HEARTBEATS, Header, LANE_TABLE, SEGMENT,
};
use ncclscope_trace::{Follower, Recording};

pub(super) const TARGET: Target =
    Target { name: "recording", samples, mutate, read, inputs: 100, found: &[695, 1303] };

fn samples() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for fault in ["host-stuck", "in-launch"] {
        let Ok(folder) = tempfile::tempdir() else { continue };
        let fault = Fault::from_name(fault).map(Planted::new).into_iter().collect();
        let job = JobShape { ranks: 2, steps: 3, hold_s: 40, ..JobShape::default() };
        let scenario = Scenario { job, fault, ..Scenario::default() };
        if ncclscope_simulate::run(&scenario, folder.path()).is_err() {
            continue;
        }
        let files = std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
        let recordings =
            files.filter(|file| file.path().extension().is_some_and(|e| e == "nscope"));
        all.extend(recordings.filter_map(|file| std::fs::read(file.path()).ok()));
    }
    all
}

/// Changes a part, and corrects its checksum.
fn mutate(random: &mut Random, data: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        match random.below(12) {
            0 => mutate::any(random, data),
            1 | 2 => {
                mutate::bytes(random, data, 8..HEADER_BYTES);
                // Usually corrects the checksum: otherwise the reader rejects the header without
                // looking at the rest.
                if let Some(page) = data.get_mut(..HEADER_BYTES).filter(|_| random.below(8) != 0) {
                    Header::seal(page);
                }
            }
            3 => {
                let at = place(LANE_TABLE) + 1280 * random.below(4);
                mutate::bytes(random, data, at..at + 1280);
            }
            4..=6 => definition(random, data),
            7 => block(random, data, place(HEARTBEATS)),
            _ => block(random, data, place(BLOCKS)),
        }
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn word(data: &[u8], at: usize) -> usize {
    let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
    usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
}

/// Changes the body of a definition: `tag:u8 length:u32 body crc:u32`.
fn definition(random: &mut Random, data: &mut [u8]) {
    let mut all = Vec::new();
    let mut at = place(DEFINITIONS);
    while data.get(at).is_some_and(|&tag| tag != 0) {
        let end = at.saturating_add(5).saturating_add(word(data, at + 1));
        if end + 4 > data.len().min(place(HEARTBEATS)) {
            break;
        }
        all.push(at..end);
        at = end + 4;
    }
    if all.is_empty() {
        return;
    }
    let one = random.of(&all).clone();
    mutate::bytes(random, data, one.start + 5..one.end);
    let crc = crc32fast::hash(&data[one.clone()]).to_le_bytes();
    data[one.end..one.end + 4].copy_from_slice(&crc);
}

/// Changes the header or the payload of a block: `magic:u32 crc:u32 len:u32 ...`.
fn block(random: &mut Random, data: &mut [u8], ring: usize) {
    let mut all = Vec::new();
    let mut at = ring;
    while data.get(at..at + 4) == Some(b"NSB1") {
        let end = at.saturating_add(word(data, at + 8));
        if end > data.len().min(ring + place(SEGMENT)) || end < at + 64 {
            break;
        }
        all.push(at..end);
        at = end;
    }
    if all.is_empty() {
        return;
    }
    let one = random.of(&all).clone();
    let from = if random.below(3) == 0 { one.start + 12 } else { one.start + 64 };
    mutate::bytes(random, data, from.min(one.end)..one.end);
    let crc = crc32fast::hash(&data[one.start + 8..one.end]).to_le_bytes();
    data[one.start + 4..one.start + 8].copy_from_slice(&crc);
}

fn read(data: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = folder.path().join("h-1.nscope");
    let Ok(()) = std::fs::write(&path, data) else { return false };
    if let Ok(mut follower) = Follower::open(&path) {
        let _ = follower.poll(drop);
    }
    let Ok(opened) = Recording::open(&path) else { return false };
    let mut report = ReportBuilder::default();
    report.add(&opened);
    let _ = serde_json::to_string(&report.finish());
    let _ = serde_json::to_string(&analyze(&input::recording::job(&[opened]), &Limits::default()));
    if let Ok(job) = recorded_job(&[path], &InputOptions::default(), &mut Vec::new()) {
        let _ = text::render(&diagnose(&job, &Options::default()), None, None);
    }
    true
}
