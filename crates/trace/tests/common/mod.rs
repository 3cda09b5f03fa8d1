// SPDX-License-Identifier: Apache-2.0
//! Lanes files as a process leaves them behind.

use ncclscope_trace::lanes_file::{Owner, RINGS, TABLE};
use ncclscope_trace::layout::LANE_STRIDE;
use ncclscope_trace::scratch::lane;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A lanes file whose first lane holds `words`.
pub(crate) fn lanes_file(path: &Path, owner: &Owner, words: &[u64]) -> File {
    let file = File::create(path).unwrap();
    file.write_all_at(&owner.encode(), 0).unwrap();
    for (i, word) in words.iter().enumerate() {
        file.write_all_at(&word.to_le_bytes(), RINGS + 8 * i as u64).unwrap();
    }
    let mut table = [0u8; LANE_STRIDE];
    table[lane::STATE] = 1;
    table[lane::HEAD] = u8::try_from(words.len()).unwrap();
    file.write_all_at(&table, TABLE).unwrap();
    file
}
