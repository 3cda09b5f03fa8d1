// SPDX-License-Identifier: Apache-2.0
//! Reads whole files, and the beginnings of JSON files.

use super::json::without_ok;
use super::{pickle, ras};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Maximum size of a dump that is read, bytes. In memory a dump takes several times its file size.
pub(crate) const MAX_DUMP: u64 = 256 << 20;
/// Number of bytes of a JSON file that are searched for one of [`DUMP_KEYS`].
pub(crate) const BEGINNING: usize = 64 << 10;
/// Keys of the outermost object of a Flight Recorder dump and of RAS's output.
const DUMP_KEYS: [&str; 8] = [
    "version",
    "entries",
    "pg_config",
    "pg_status",
    "nccl_comm_state",
    "comm_lib_version",
    "nccl_version",
    "communicators",
];

/// Number of bytes that tell the kind of a file.
pub(crate) const FIRST: usize = 512;
/// Where a tar file says that it is one.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// What a file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Recording,
    Vectors,
    Pickle,
    Json,
    RasText,
    RasMonitor,
    Archive,
    Other,
}

pub(crate) fn load(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Reads a dump of at most [`MAX_DUMP`] bytes.
pub(crate) fn load_dump(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > MAX_DUMP {
        return Err(too_large());
    }
    load(path)
}

/// What is said of a dump of more than [`MAX_DUMP`] bytes.
pub(crate) fn too_large() -> String {
    format!("it is larger than {} MiB", MAX_DUMP >> 20)
}

/// True if the beginning of a JSON file has a key of a dump. Traces and reports have none.
pub(crate) fn is_json_dump(file: impl Read) -> bool {
    let mut beginning = Vec::new();
    if file.take(BEGINNING as u64).read_to_end(&mut beginning).is_err() {
        return false;
    }
    let mut json = serde_json::Deserializer::from_slice(without_ok(&beginning));
    let mut is_dump = false;
    // The visitor stops at the key, and the beginning of a file is rarely valid JSON, so that
    // errors are expected.
    let _stopped = json.deserialize_map(DumpKey { is_found: &mut is_dump });
    is_dump
}

/// The kind of a file by its first [`FIRST`] bytes.
pub(crate) fn file_kind(first: &[u8]) -> FileKind {
    if first.starts_with(&ncclscope_trace::layout::MAGIC) {
        FileKind::Recording
    } else if ncclscope_trace::vectors::is_table(first) {
        FileKind::Vectors
    } else if is_archive(first) {
        FileKind::Archive
    } else if pickle::looks_like(first) {
        FileKind::Pickle
    } else if ras::monitor::is_monitor(first) {
        FileKind::RasMonitor
    } else if without_ok(first).iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        FileKind::Json
    } else if first.starts_with(ras::text::BEGINNING) {
        FileKind::RasText
    } else {
        FileKind::Other
    }
}

/// True if a file with these first bytes is an archive.
fn is_archive(first: &[u8]) -> bool {
    is_gzip(first) || is_zip(first) || is_tar(first)
}

fn is_gzip(first: &[u8]) -> bool {
    first.starts_with(&[0x1f, 0x8b, 8])
}

/// True if a file with these first bytes is a zip file.
pub(crate) fn is_zip(first: &[u8]) -> bool {
    first.starts_with(b"PK\x03\x04")
}

/// True if a file with these first bytes is a tar file.
pub(crate) fn is_tar(first: &[u8]) -> bool {
    first.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1))
}

/// Looks for a key of a dump; keeps no values.
struct DumpKey<'a> {
    is_found: &'a mut bool,
}

impl<'de> Visitor<'de> for DumpKey<'_> {
    type Value = ();

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if DUMP_KEYS.contains(&key.as_str()) {
                *self.is_found = true;
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}
