// SPDX-License-Identifier: Apache-2.0
//! The windows of a recording: from each start mark to the next stop mark, or to the end.

pub use crate::schema::{MaskChange, Window};

use crate::processes::file_name;
use ncclscope_operations::human;
use ncclscope_trace::{MarkKind, Recording};
use std::collections::BTreeSet;

/// Maximum number of changes of the activation mask that are told one by one.
const SPANS: usize = 8;

/// Times in which NCCL's activation mask was not as the plugin requested it, in order.
#[must_use]
pub fn mask_changes(recording: &Recording) -> Vec<MaskChange> {
    let (clock, file) = (recording.tick_map(), file_name(recording));
    let mut changes: Vec<MaskChange> = Vec::new();
    for mark in recording.marks().iter().filter(|mark| mark.what == MarkKind::Mask) {
        let now = clock.realtime_ns(mark.ticks);
        if let Some(open) = changes.last_mut().filter(|change| change.end_ns.is_none()) {
            open.end_ns = Some(now);
        }
        if let Some(mask) = mark.others_mask() {
            changes.push(MaskChange { file: file.clone(), start_ns: now, end_ns: None, mask });
        }
    }
    changes
}

/// The same for all processes, as sentences, with times since the first communicator began.
#[must_use]
pub fn mask_sentences(changes: &[MaskChange], begun_ns: Option<u64>) -> Vec<String> {
    let mut changes: Vec<&MaskChange> = changes.iter().collect();
    changes.sort_by_key(|change| (change.mask, change.start_ns));
    let mut spans: Vec<(MaskChange, BTreeSet<&str>)> = Vec::new();
    for change in changes {
        // An operator's command reaches all ranks of a job at about the same time.
        let last = spans.last_mut().filter(|(span, _)| {
            span.mask == change.mask && span.end_ns.is_none_or(|end| change.start_ns <= end)
        });
        match last {
            Some((span, files)) => {
                span.end_ns = span.end_ns.zip(change.end_ns).map(|(a, b)| a.max(b));
                files.insert(&change.file);
            }
            None => spans.push((change.clone(), BTreeSet::from([&*change.file]))),
        }
    }
    spans.sort_by_key(|(span, _)| span.start_ns);
    let more = spans.len().saturating_sub(SPANS);
    let begun = begun_ns.unwrap_or(0);
    let at = |ns: u64| human::duration(ns.saturating_sub(begun) as f64);
    let said = spans.iter().take(SPANS).map(|(span, files)| {
        format!(
            "NCCL's activation mask was changed from outside to {:#x} from {} {} in {}: \
             CONTROL PROFILER_MASK of NCCL's RAS, or another library. What needs the events that \
             were off is not here.",
            span.mask,
            at(span.start_ns),
            span.end_ns.map_or_else(|| "to the end".into(), |end| format!("to {}", at(end))),
            human::count(files.len() as u64, "process"),
        )
    });
    let rest = (more > 0).then(|| format!("It was changed {} more times.", more));
    said.chain(rest).collect()
}

/// The windows of a recording, in order. If a start mark was overwritten, its window is missing.
#[must_use]
pub fn windows(recording: &Recording) -> Vec<Window> {
    let (clock, file) = (recording.tick_map(), file_name(recording));
    let mut windows: Vec<Window> = Vec::new();
    for mark in recording.marks() {
        let now = clock.realtime_ns(mark.ticks);
        let open = windows.last_mut().filter(|window| window.stop_ns.is_none());
        if let Some(open) = open.filter(|_| matches!(mark.what, MarkKind::Start | MarkKind::Stop)) {
            open.stop_ns = Some(now);
        }
        if mark.what == MarkKind::Start {
            let sample = mark.value.max(1);
            windows.push(Window { file: file.clone(), start_ns: now, stop_ns: None, sample });
        }
    }
    windows
}
