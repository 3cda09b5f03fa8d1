// SPDX-License-Identifier: Apache-2.0
//! The message before a large trace is written: its size, and what the viewer can open.

use crate::args::TraceFormat;
use ncclscope_console::failure::{tell, warn};
use ncclscope_operations::human::bytes;
use ncclscope_views::Shown;
use ncclscope_views::size::{Kind, UI_MAX, estimate, most};

/// Minimum size of a trace that is announced, bytes.
const LARGE: u64 = 64 << 20;

/// Prints how large the trace will be, if it will be large. `is_packed`: it is compressed.
pub(crate) fn foretell(shown: Shown<'_>, format: TraceFormat, is_packed: bool) {
    let kind = if format == TraceFormat::Chrome { Kind::Chrome } else { Kind::Pftrace };
    if most(shown.recordings, kind) < LARGE {
        return;
    }
    let size = estimate(shown.recordings, kind);
    if let Some(line) = announcement(size, shown.filter.is_some(), is_packed) {
        tell(line);
    }
    if let Some(line) = advice(size, kind) {
        warn(line);
    }
}

/// The message, if the trace is large. `is_filtered`: a filter may leave out more than recordings.
fn announcement(size: u64, is_filtered: bool, is_packed: bool) -> Option<String> {
    let most = if is_filtered { "at most " } else { "" };
    let end = if is_packed { " before compression" } else { "" };
    let size = (size >= LARGE).then(|| bytes(rounded(size)))?;
    Some(format!("the trace will have {most}about {size}{end}"))
}

/// A size rounded to the two digits that an estimate has.
fn rounded(size: u64) -> u64 {
    let unit = 1 << (size.max(1).ilog2().saturating_sub(4));
    size / unit * unit
}

fn advice(size: u64, kind: Kind) -> Option<String> {
    if size <= UI_MAX {
        return None;
    }
    let format = match kind {
        Kind::Chrome => "Perfetto's format is a third as large (--to pftrace); ",
        Kind::Pftrace => "",
    };
    Some(format!(
        "Perfetto's UI opens about {} in a browser: {format}choose a part with --rank, --steps, \
         --role or --events, write a file for each rank (--per-rank) and open a few, or open the \
         whole with Perfetto's `trace_processor_shell --httpd FILE` beside the UI",
        bytes(rounded(UI_MAX))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_traces_are_announced_and_too_large_ones_come_with_advice() {
        assert_eq!(announcement(LARGE - 1, false, true), None);
        let line = announcement(100 << 20, true, false);
        assert_eq!(line.as_deref(), Some("the trace will have at most about 100 MiB"));
        let line = announcement(2_640_000_000, false, true);
        assert_eq!(line.as_deref(), Some("the trace will have about 2.38 GiB before compression"));
        assert_eq!(advice(UI_MAX, Kind::Pftrace), None);
        let text = advice(UI_MAX + 1, Kind::Pftrace).unwrap();
        assert!(text.contains("--per-rank") && !text.contains("--to pftrace"), "{text}");
        assert!(advice(UI_MAX + 1, Kind::Chrome).unwrap().contains("--to pftrace"));
    }
}
