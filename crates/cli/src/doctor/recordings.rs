// SPDX-License-Identifier: Apache-2.0
//! Finds losses in existing recordings, so that the next ones have none.

use super::check::{Check, Status};
use crate::run_input::input::{damage, recordings_in};
use ncclscope_report::losses::Losses;
use ncclscope_trace::Recording;
use std::path::Path;

pub(super) fn checks(directory: &Path) -> Vec<Check> {
    let name = "recordings";
    // Another check reports an unreadable directory.
    let files = recordings_in(directory).unwrap_or_default();
    let mut losses = Losses::default();
    let (mut read, mut damaged) = (0, Vec::new());
    for recording in files.iter().filter_map(|file| Recording::open(file).ok()) {
        let lanes = 0..recording.lanes().len();
        let count = |lane| recording.records(lane).count() as u64;
        losses.add(&recording, || lanes.map(count).sum());
        damaged.extend(damage(&recording));
        read += 1;
    }
    let losses = losses.finish().losses;
    match (files.len(), read) {
        (0, _) => Vec::new(),
        (all, read) if read < all => {
            let advice = "`ncclscope report` names them";
            vec![Check::warn(name, format!("{} of {all} cannot be read", all - read), advice)]
        }
        (all, _) if !damaged.is_empty() => {
            let detail = format!("{} of {all}: {}", damaged.len(), damaged[0]);
            let advice = "what they lack is not known: copy them again, or record anew";
            vec![Check::warn(name, detail, advice)]
        }
        (all, _) if losses.is_empty() => vec![Check::ok(name, format!("{all}, nothing lost"))],
        _ => losses
            .into_iter()
            .map(|l| Check { name, status: Status::Warn, detail: l.what, advice: l.advice })
            .collect(),
    }
}
