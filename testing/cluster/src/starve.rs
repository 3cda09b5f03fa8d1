// SPDX-License-Identifier: Apache-2.0
//! Takes the free slots of NCCL's pool of proxy operations, as NCCL before 2.29.3 loses them on
//! aarch64: the host's thread then waits inside a call for a slot, and the proxy thread sleeps.
//!
//! The pool is a file in `/dev/shm` that the proxy and the callers of a process map
//! (`ncclProxyOpsPool`, src/include/proxy.h @v2.28.9-1). After its array of operations it has
//! `nextOps`, `nextOpsEnd`, and then for each local rank the first of its free slots, -1 for none;
//! 0 for ranks that are not there. A pool without operations has -1 in the first two.
//!
//! A caller takes the whole chain at once, and puts -1 in its place. It has a chain of its own from
//! then on, and comes back when that is used up (`ncclLocalOpAppend`, src/proxy.cc). Between
//! reading the first slot and taking it, it relies on no other thread to take it: only the thread
//! that calls NCCL may take slots, and only between its calls.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// Takes slots.
#[derive(Debug)]
pub struct Thief {
    /// Where the first free slot of local rank 0 is named, one for each mapping of a pool.
    free: Vec<u64>,
    memory: File,
}

impl Thief {
    /// Finds the pools of this process.
    ///
    /// # Errors
    /// No pool was found: the rank has not used the network yet.
    pub fn new() -> Result<Thief, String> {
        let free = free_slots().ok_or("no pool of proxy operations: use the network first")?;
        let memory = OpenOptions::new().write(true).open("/proc/self/mem");
        let memory = memory.map_err(|error| format!("/proc/self/mem: {error}"))?;
        Ok(Thief { free, memory })
    }

    /// Takes the slots that are free now. The thread that calls NCCL calls this, when no operation
    /// of its own is in flight.
    pub fn take(&self) {
        for &at in &self.free {
            // A mapping that is gone has no slots.
            drop(self.memory.write_at(&(-1_i32).to_ne_bytes(), at));
        }
    }
}

/// The addresses of the first free slot of local rank 0, one for each pool.
fn free_slots() -> Option<Vec<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let memory = OpenOptions::new().read(true).open("/proc/self/mem").ok()?;
    let of_line = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        // NCCL has removed the file.
        let is_pool = rest.contains(" /dev/shm/nccl-") && rest.starts_with("rw");
        let address = |text| u64::from_str_radix(text, 16).ok();
        is_pool.then_some((address(start)?, address(end)?))
    };
    let ranges = maps.lines().filter_map(of_line);
    let found: Vec<u64> =
        ranges.filter_map(|(start, end)| first_free(&memory, start, end)).collect();
    (!found.is_empty()).then_some(found)
}

/// The address of the number of rank 0's first free slot in the pool at `start..end`: after the
/// operations come the two numbers of an empty queue, that number, and 0 for other ranks. A slot
/// has been returned, and it is not the first of all, so that the number is above 0.
fn first_free(memory: &File, start: u64, end: u64) -> Option<u64> {
    let size = usize::try_from(end - start).ok()?;
    let mut bytes = vec![0; size];
    memory.read_exact_at(&mut bytes, start).ok()?;
    let word = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    let is_head = |&at: &usize| {
        let is_empty = word(at) == -1 && word(at + 4) == -1;
        is_empty && word(at + 8) > 0 && (3..40).all(|i| word(at + 4 * i) == 0)
    };
    let words = (0..size.checked_sub(41 * 4)?).step_by(4);
    let at = words.rev().find(is_head)?;
    Some(start + u64::try_from(at).ok()? + 8)
}
