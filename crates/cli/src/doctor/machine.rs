// SPDX-License-Identifier: Apache-2.0
//! The directory for recordings, shared memory and the clock.

use super::check::Check;
use ncclscope_node::fresh;
use ncclscope_operations::human::bytes;
use ncclscope_trace::layout::{BLOCKS, RING_LIMITS};
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use std::fs::{File, remove_file};
use std::io::Write;
use std::path::Path;

/// Memory for a process's recording with the default ring, and for its lanes, bytes.
const PROCESS_BYTES: u64 = 160 << 20;

pub(super) fn directory(path: &Path) -> Check {
    let name = "directory";
    let advice = "choose another one with -o or NCCLSCOPE_DIR";
    // If the directory does not exist, the plugin creates it, so that its nearest ancestor must be
    // writable.
    let existing = path.ancestors().find(|p| p.exists() && !p.as_os_str().is_empty());
    let existing = existing.unwrap_or_else(|| Path::new("."));
    let probe = existing.join(format!(".ncclscope-{}", std::process::id()));
    let write = |mut file: File| file.write_all(b"x");
    let written = fresh::create(&probe).and_then(write).and_then(|()| remove_file(&probe));
    if let Err(error) = written {
        return Check::fail(
            name,
            format!("cannot write in {}: {error}", existing.display()),
            advice,
        );
    }
    let shown = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let free = statvfs(existing).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize)).unwrap_or(0);
    let detail = format!("{} is writable, {} free", shown.display(), bytes(free));
    if free < PROCESS_BYTES {
        let needed = format!("a process needs up to {}: {advice}", bytes(PROCESS_BYTES));
        return Check::warn(name, detail, needed);
    }
    Check::ok(name, detail)
}

/// The limit on the size of files (`ulimit -f`), if there is one.
pub(super) fn file_limit() -> Option<Check> {
    let limit = getrlimit(Resource::Fsize).current?;
    let (name, advice) = ("ulimit -f", "raise it in the shell or the job script that starts ranks");
    let detail = format!("files have at most {} here", bytes(limit));
    Some(match limit {
        limit if limit < BLOCKS + *RING_LIMITS.start() => {
            Check::fail(name, format!("{detail}: too few for a recording"), advice)
        }
        limit if limit < PROCESS_BYTES => {
            Check::warn(name, format!("{detail}: a recording keeps less than it may"), advice)
        }
        _ => Check::ok(name, detail),
    })
}

pub(super) fn shared_memory() -> Check {
    let name = "/dev/shm";
    let Ok(fs) = statvfs("/dev/shm") else {
        return Check::warn(name, "is not there", "NCCL needs it between processes of a node");
    };
    let size = fs.f_blocks.saturating_mul(fs.f_frsize);
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let detail = format!("{}, {} free", bytes(size), bytes(free));
    // Docker's default of 64 MiB is a frequent reason for NCCL to fail.
    if free < 64 << 20 {
        return Check::warn(name, detail, "NCCL may need more: docker run --shm-size=1g");
    }
    Check::ok(name, detail)
}

pub(super) fn clock() -> Check {
    let name = "clock";
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match std::fs::read_to_string(file).map(|text| text.trim().to_owned()) {
        Ok(source) if source == "tsc" => Check::ok(name, "the kernel trusts the TSC"),
        Ok(source) => Check::warn(
            name,
            format!("the kernel uses {source}, not the TSC"),
            "stamps may be slower or coarser: NCCLSCOPE_CLOCK=monotonic is the safe choice",
        ),
        Err(error) => Check::warn(name, format!("{file}: {error}"), "nothing: times still work"),
    }
}
