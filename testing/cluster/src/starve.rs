// SPDX-License-Identifier: Apache-2.0
//! Takes the free slots of NCCL's pool of proxy operations, as NCCL before 2.29.3 loses them on
//! aarch64: the host's thread then waits inside a call for a slot, and the proxy thread sleeps.
//!
//! The pool is a file in `/dev/shm` that the proxy and the callers of a process map
//! (`ncclProxyOpsPool`, src/include/proxy.h @v2.28.9-1). After its array of operations it has
//! `nextOps`, `nextOpsEnd`, and then for each local rank the first of its free slots, -1 for none.
//! A pool without operations has -1 in the first two, and the chain of rank 0's slots begins at 0.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often slots are taken.
const TURN: Duration = Duration::from_micros(200);

/// Starts a thread that takes them for as long as the process runs.
///
/// # Errors
/// No pool was found: the rank has not used the network yet.
pub fn start() -> Result<(), String> {
    let free = free_slots().ok_or("no pool of proxy operations: use the network first")?;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem");
    let memory = memory.map_err(|error| format!("/proc/self/mem: {error}"))?;
    std::thread::spawn(move || {
        loop {
            for &at in &free {
                // A mapping that is gone has no slots.
                drop(memory.write_at(&(-1_i32).to_ne_bytes(), at));
            }
            std::thread::sleep(TURN);
        }
    });
    Ok(())
}

/// The addresses of the first free slot of local rank 0, one for each pool.
fn free_slots() -> Option<Vec<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let memory = OpenOptions::new().read(true).open("/proc/self/mem").ok()?;
    let of_line = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let name = rest.rsplit(' ').next()?;
        let is_pool = name.starts_with("/dev/shm/nccl-") && rest.starts_with("rw");
        let address = |text| u64::from_str_radix(text, 16).ok();
        is_pool.then_some((address(start)?, address(end)?))
    };
    let ranges = maps.lines().filter_map(of_line);
    let found: Vec<u64> =
        ranges.filter_map(|(start, end)| first_free(&memory, start, end)).collect();
    (!found.is_empty()).then_some(found)
}

/// The address of the first free slot of rank 0 in the pool at `start..end`, if it is one: after
/// the operations come the two empty queues, a number of rank 0, and -1 for ranks that are not
/// here.
fn first_free(memory: &std::fs::File, start: u64, end: u64) -> Option<u64> {
    let size = usize::try_from(end - start).ok()?;
    let mut bytes = vec![0; size];
    memory.read_exact_at(&mut bytes, start).ok()?;
    let word = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    let is_head = |&at: &usize| {
        let others = (3..40).all(|i| word(at + 4 * i) == -1);
        word(at) == -1 && word(at + 4) == -1 && word(at + 8) >= -1 && others
    };
    let words = (0..size.checked_sub(41 * 4)?).step_by(4);
    let at = words.rev().find(is_head)?;
    Some(start + u64::try_from(at).ok()? + 8)
}
