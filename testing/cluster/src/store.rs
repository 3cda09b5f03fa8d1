// SPDX-License-Identifier: Apache-2.0
//! The store of a replayed job: files that all ranks see, in place of a launcher's TCP store. No
//! recording lies there, and no tool of the product looks there.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a waiting rank looks.
const LOOK: Duration = Duration::from_millis(2);

/// The store at a directory.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

impl Store {
    /// The store at `directory`, which exists.
    #[must_use]
    pub fn new(directory: &Path) -> Store {
        Store(directory.to_owned())
    }

    /// Publishes `value` under `key`, in one piece.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        let (part, whole) = (self.0.join(format!(".{key}")), self.0.join(key));
        let done = std::fs::write(&part, value).and_then(|()| std::fs::rename(&part, &whole));
        done.map_err(|error| format!("{}: {error}", whole.display()))
    }

    /// The value of `key`, if it has one.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.0.join(key)).ok()
    }

    /// Waits, for ever, until `key` has a value.
    #[must_use]
    pub fn wait(&self, key: &str) -> Vec<u8> {
        loop {
            match self.get(key) {
                Some(value) => return value,
                None => std::thread::sleep(LOOK),
            }
        }
    }
}
