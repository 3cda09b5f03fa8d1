// SPDX-License-Identifier: Apache-2.0
//! Reads whole files, and the beginnings of JSON files.

use super::json::without_ok;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum size of a dump that is read, bytes. In memory a dump takes several times its file size.
pub(super) const MAX_DUMP: u64 = 256 << 20;
/// Number of bytes of a JSON file that are searched for one of [`DUMP_KEYS`].
const BEGINNING: u64 = 64 << 10;
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

pub(super) fn load(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Reads a dump of at most [`MAX_DUMP`] bytes.
pub(super) fn load_dump(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > MAX_DUMP {
        return Err(format!("it is larger than {} MiB", MAX_DUMP >> 20));
    }
    load(path)
}

/// True if the beginning of a JSON file has a key of a dump. Traces and reports have none.
pub(super) fn is_json_dump(file: File) -> bool {
    let mut beginning = Vec::new();
    if file.take(BEGINNING).read_to_end(&mut beginning).is_err() {
        return false;
    }
    let mut json = serde_json::Deserializer::from_slice(without_ok(&beginning));
    let mut is_dump = false;
    // The visitor stops at the key, and the beginning of a file is rarely valid JSON, so that
    // errors are expected.
    let _stopped = json.deserialize_map(DumpKey { is_found: &mut is_dump });
    is_dump
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
