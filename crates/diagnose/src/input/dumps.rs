// SPDX-License-Identifier: Apache-2.0
//! The dumps among the input files: Flight Recorder dumps and the output of RAS.

use super::file::{FileKind, load_dump};
use super::json::{self, Keep};
use super::{flight, pickle, ras};
use serde_json::Value;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The dumps that were read.
#[derive(Debug)]
pub(crate) struct Dumps {
    /// Dumps of the Flight Recorder.
    pub(crate) flight: flight::Dumps,
    /// The outputs of RAS.
    ras: Vec<ras::Ras>,
    /// The events of RAS, of all streams.
    monitor: Option<ras::monitor::Monitor>,
    is_flight_read: bool,
}

/// The content of a file.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    pub(crate) path: &'a Path,
    pub(crate) kind: FileKind,
    pub(crate) bytes: &'a [u8],
    /// When it was last written, ns since 1970.
    pub(crate) written_ns: Option<u64>,
}

impl Dumps {
    /// Starts without files. Flight Recorder dumps are read only if `is_flight_read`: if there are
    /// no recordings.
    pub(crate) fn new(is_flight_read: bool) -> Dumps {
        Dumps { flight: flight::Dumps::default(), ras: Vec::new(), monitor: None, is_flight_read }
    }

    /// Adds a file, if it is a dump. Returns a warning if it cannot be read.
    pub(crate) fn file(&mut self, path: &Path, kind: FileKind) -> Option<String> {
        if kind == FileKind::Pickle && !self.is_flight_read {
            return Some(not_read(path));
        }
        let bytes = match load_dump(path) {
            Ok(bytes) => bytes,
            Err(error) => return Some(cannot_read(path, &error)),
        };
        let written = std::fs::metadata(path).and_then(|metadata| metadata.modified());
        let written_ns = written.ok().and_then(since_1970);
        self.content(&Content { path, kind, bytes: &bytes, written_ns })
    }

    /// Adds the content of a file, if it is a dump. Returns a warning if it cannot be read.
    pub(crate) fn content(&mut self, content: &Content<'_>) -> Option<String> {
        let &Content { path, kind, bytes, .. } = content;
        let added = match kind {
            FileKind::Pickle if !self.is_flight_read => return Some(not_read(path)),
            FileKind::Pickle => {
                self.flight.restart();
                let entry = &mut |entry: &Value| self.flight.entry(entry);
                pickle::read_dump(bytes, entry).and_then(|value| self.flight(content, &value))
            }
            // Texts have no time: the later one in the input is the newer one.
            FileKind::RasText => {
                self.ras(ras::text::read(&String::from_utf8_lossy(bytes)));
                Ok(())
            }
            FileKind::RasMonitor => {
                let (monitor, damage) = ras::monitor::read(bytes);
                self.monitor.get_or_insert_default().add(monitor);
                damage.map_or(Ok(()), Err)
            }
            FileKind::Json => match self.parse(bytes) {
                Ok(value) if ras::is_ras(&value) => {
                    self.ras(ras::Ras::new(&value));
                    Ok(())
                }
                Ok(value) if !self.is_flight_read => {
                    return value.get("entries").map(|_| not_read(path));
                }
                Ok(value) if flight::is_dump(&value) => self.flight(content, &value),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            },
            _ => Ok(()),
        };
        added.err().map(|error| cannot_read(path, &error))
    }

    fn flight(&mut self, content: &Content<'_>, value: &Value) -> Result<(), String> {
        self.flight.add(content.path, value, content.written_ns)
    }

    /// Finds the ranks of the Flight Recorder dumps, after all were added.
    pub(crate) fn settle(&mut self, warnings: &mut Vec<String>) {
        warnings.extend(self.flight.settle());
    }

    /// Adds an output of RAS.
    pub(crate) fn ras(&mut self, new: ras::Ras) {
        self.ras.push(new);
    }

    /// The latest output of RAS, with the one before it, and with the events of RAS.
    pub(crate) fn latest_ras(&mut self) -> Option<ras::Ras> {
        let latest = ras::Ras::latest(std::mem::take(&mut self.ras));
        let Some(monitor) = self.monitor.take() else { return latest };
        Some(match latest {
            Some(ras) => ras.watched(monitor),
            None => ras::Ras::of_events(monitor),
        })
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<Value, String> {
        if !self.is_flight_read {
            return json::parse(bytes, Keep::Ras);
        }
        self.flight.restart();
        json::parse_dump(bytes, &mut |entry| self.flight.entry(entry)).or_else(|_| {
            self.flight.restart();
            json::parse(bytes, Keep::Dump)
        })
    }
}

/// Nanoseconds since 1970.
pub(crate) fn since_1970(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

pub(crate) fn cannot_read(path: &Path, error: &str) -> String {
    format!("cannot read {}: {error}", path.display())
}

fn not_read(path: &Path) -> String {
    format!(
        "{} is not read: it looks like a Flight Recorder dump, and the input has recordings or \
         tables of vectors; diagnose dumps by themselves",
        path.display()
    )
}
