// SPDX-License-Identifier: Apache-2.0
//! The windows of a recording: from each start mark to the next stop mark, or to the end.

pub use crate::schema::Window;

use crate::processes::file_name;
use ncclscope_trace::{MarkKind, Recording};

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
