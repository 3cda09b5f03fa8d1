// SPDX-License-Identifier: Apache-2.0
/*!
One tar of a trace for each process, for jobs whose merged trace would be too large, with a manifest
that tells Perfetto which machine each is of (perfetto.dev, "Trace manifest format").

Arrows between processes do not work over the files of an archive, so there are none.
*/

use crate::pftrace::{Exporter, Written};
use ncclscope_trace::Recording;
use serde_json::json;
use std::io::{self, Write};

/// Of a tar: everything is padded to blocks.
const BLOCK: usize = 512;

/// Writes the recordings of a run as an archive, with one process's trace in memory at a time.
///
/// # Errors
/// Those of `out`; [`io::ErrorKind::InvalidInput`] for a trace of 8 GiB or more.
pub fn write(recordings: &[Recording], out: &mut impl Write) -> io::Result<Written> {
    member(out, "perfetto_manifest.json", manifest(recordings).as_bytes())?;
    let mut exporter = Exporter::new(&[]);
    let mut written = Written::default();
    for (index, recording) in recordings.iter().enumerate() {
        let mut trace = Vec::new();
        written.add(exporter.process(recording, &mut trace)?);
        member(out, &file_name(index, recording), &trace)?;
    }
    // Two empty blocks end a tar.
    out.write_all(&[0; 2 * BLOCK])?;
    Ok(written)
}

/// A file name for a process's trace: its place in the run, its host and its number.
#[must_use]
pub fn file_name(index: usize, recording: &Recording) -> String {
    let header = recording.header();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    // A name in a tar has 100 bytes at most.
    let host: String = header.host.chars().take(60).map(plain).collect();
    format!("{index:05}-{host}-{}.pftrace", header.pid)
}

/// Perfetto looks for the first key at the very beginning.
fn manifest(recordings: &[Recording]) -> String {
    let names = recordings.iter().enumerate().map(|(at, recording)| file_name(at, recording));
    let mut inner = json!({"version": 1});
    // All clocks are declared equal to CLOCK_REALTIME, by which Perfetto brings machines together.
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

/// A file of the archive, in POSIX's ustar form.
fn member(out: &mut impl Write, name: &str, contents: &[u8]) -> io::Result<()> {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    let size = format!("{:011o}", contents.len());
    if size.len() != 11 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a trace of 8 GiB or more"));
    }
    put(0, name);
    put(100, "0000644"); // mode
    put(108, "0000000"); // user
    put(116, "0000000"); // group
    put(124, &size);
    put(136, "00000000000"); // time: the same archive from the same recordings
    put(148, "        "); // the checksum counts as spaces
    put(156, "0"); // a file
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.write_all(&header)?;
    out.write_all(contents)?;
    out.write_all(&[0; BLOCK][..contents.len().next_multiple_of(BLOCK) - contents.len()])
}
