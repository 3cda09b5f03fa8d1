// SPDX-License-Identifier: Apache-2.0
/*!
Writes a tar file with one trace for each process, for jobs whose merged trace would be too large. A
manifest declares the machine of each trace (perfetto.dev, "Trace manifest format").

Arrows do not work between the files of an archive, so there are none between processes.
*/

use crate::packets::Numbers;
use crate::pftrace::{Written, process};
use crate::step_index::StepIndex;
use crate::timelines::Shown;
use ncclscope_operations::Timeline;
use ncclscope_trace::Recording;
use serde_json::json;
use std::io::{self, Write};
use tar::{Builder, EntryType, Header};

/// Writes the recordings of a run as an archive, with one process's trace in memory at a time.
///
/// # Errors
/// An error of `out`.
pub fn write<'r>(shown: impl Into<Shown<'r>>, out: &mut impl Write) -> io::Result<Written> {
    let shown = shown.into();
    let recordings = shown.recordings;
    let mut archive = Builder::new(out);
    add(&mut archive, "perfetto_manifest.json", manifest(recordings).as_bytes())?;
    let (no_steps, mut numbers) = (StepIndex::default(), Numbers::default());
    let mut written = Written::default();
    for (index, recording) in recordings.iter().enumerate() {
        let mut trace = Vec::new();
        let timeline = Timeline::read(recording, true);
        let shown = (&timeline, &shown.selection(index));
        written.add(process(&no_steps, &mut numbers, shown, &mut trace)?);
        add(&mut archive, &file_name(index, recording), &trace)?;
    }
    archive.finish()?;
    Ok(written)
}

/// A file name for a process's trace: its place in the run, its host and its number.
#[must_use]
pub fn file_name(index: usize, recording: &Recording) -> String {
    let header = recording.header();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    // A name in a tar has at most 100 bytes.
    let host: String = header.host.chars().take(60).map(plain).collect();
    format!("{index:05}-{host}-{}.pftrace", header.pid)
}

/// The manifest as JSON. Perfetto expects the first key at the very beginning of the file.
fn manifest(recordings: &[Recording]) -> String {
    let names = recordings.iter().enumerate().map(|(at, recording)| file_name(at, recording));
    let mut inner = json!({"version": 1});
    // All clocks are declared equal to CLOCK_REALTIME, by which Perfetto aligns machines.
    if let Some(first) = recordings.first() {
        inner["trace_time"] = json!({"clock": "BOOTTIME", "file": file_name(0, first)});
    }
    let files = names.zip(recordings).map(|(path, recording)| {
        let host = &recording.header().host;
        let name = if host.is_empty() { "unknown" } else { host };
        json!({"path": path, "machine": {"name": name}})
    });
    inner["files"] = files.collect();
    json!({"perfetto_manifest": inner}).to_string()
}

/// Adds a file to the archive.
fn add(archive: &mut Builder<impl Write>, name: &str, contents: &[u8]) -> io::Result<()> {
    // Without owner and time, so that the same recordings give the same archive.
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(contents.len() as u64);
    archive.append_data(&mut header, name, contents)
}
