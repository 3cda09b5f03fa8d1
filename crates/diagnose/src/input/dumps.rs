// SPDX-License-Identifier: Apache-2.0
//! The dumps among the input files: Flight Recorder dumps and the output of RAS.

use super::file::load_dump;
use super::json::{self, Keep};
use super::{flight, pickle, ras};
use serde_json::Value;
use std::path::Path;

/// The dumps that were read.
#[derive(Debug)]
pub(super) struct Dumps {
    /// Dumps of the Flight Recorder.
    pub(super) flight: flight::Dumps,
    pub(super) ras: Option<ras::Ras>,
    is_flight_read: bool,
}

impl Dumps {
    /// Starts without files. Flight Recorder dumps are read only if `is_flight_read`: if there are
    /// no recordings.
    pub(super) fn new(is_flight_read: bool) -> Dumps {
        Dumps { flight: flight::Dumps::default(), ras: None, is_flight_read }
    }

    /// Adds a pickle.
    pub(super) fn pickle(&mut self, path: &Path, warnings: &mut Vec<String>) {
        if !self.is_flight_read {
            warnings.push(not_read(path));
            return;
        }
        self.flight.restart();
        let dump = load_dump(path)
            .and_then(|bytes| pickle::read_dump(&bytes, &mut |entry| self.flight.entry(entry)));
        let added = dump.and_then(|value| self.flight.add(path, &value));
        warnings.extend(added.err().map(|error| cannot_read(path, &error)));
    }

    /// Finds the ranks of the Flight Recorder dumps, after all were added.
    pub(super) fn settle(&mut self, warnings: &mut Vec<String>) {
        warnings.extend(self.flight.settle());
    }

    /// Adds the text of RAS. Texts have no time: the later one in the input is the newer one.
    pub(super) fn ras_text(&mut self, path: &Path, warnings: &mut Vec<String>) {
        match load_dump(path) {
            Ok(bytes) => self.ras(ras::text::read(&String::from_utf8_lossy(&bytes))),
            Err(error) => warnings.push(cannot_read(path, &error)),
        }
    }

    /// Adds an output of RAS.
    pub(super) fn ras(&mut self, new: ras::Ras) {
        self.ras = Some(match self.ras.take() {
            Some(known) => known.join(new),
            None => new,
        });
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

    /// Adds a JSON file, if it is a dump.
    pub(super) fn json(&mut self, path: &Path, warnings: &mut Vec<String>) {
        match load_dump(path).and_then(|bytes| self.parse(&bytes)) {
            Ok(value) if ras::is_ras(&value) => self.ras(ras::Ras::new(&value)),
            Ok(value) if !self.is_flight_read => {
                if value.get("entries").is_some() {
                    warnings.push(not_read(path));
                }
            }
            Ok(value) if flight::is_dump(&value) => {
                let added = self.flight.add(path, &value);
                warnings.extend(added.err().map(|error| cannot_read(path, &error)));
            }
            Ok(_) => {}
            Err(error) => warnings.push(cannot_read(path, &error)),
        }
    }
}

fn cannot_read(path: &Path, error: &str) -> String {
    format!("cannot read {}: {error}", path.display())
}

fn not_read(path: &Path) -> String {
    format!(
        "{} is not read: it looks like a Flight Recorder dump, and the input has recordings or \
         tables of vectors; diagnose dumps by themselves",
        path.display()
    )
}
