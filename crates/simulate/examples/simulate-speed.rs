// SPDX-License-Identifier: Apache-2.0
//! Measures how long large jobs take to simulate: `cargo run --release -p ncclscope-simulate
//! --example simulate-speed [RANKS]`. Recordings are written to a directory that is removed at the
//! end.

use ncclscope_simulate::{Fault, Planted, Scenario, run};
use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let ranks = std::env::args().nth(1).map_or(Ok(1_024), |ranks| ranks.parse())?;
    let dir = std::env::temp_dir().join(format!("simulate-speed-{}", std::process::id()));
    for (ranks, fault, counters) in [
        (ranks, Fault::Healthy, false),
        (ranks, Fault::SenderGpuStuck, false),
        (131_072, Fault::HostStuck, true),
    ] {
        let mut scenario = Scenario { fault: vec![Planted::new(fault)], ..Scenario::default() };
        scenario.job.ranks = ranks;
        scenario.counters = counters;
        let started = Instant::now();
        let summary = run(&scenario, &dir)?;
        let elapsed = started.elapsed();
        let bytes = bytes_on_disk(&dir)?;
        std::fs::remove_dir_all(&dir)?;
        let mut out = std::io::stdout().lock();
        std::io::Write::write_fmt(
            &mut out,
            format_args!(
                "{ranks} ranks, {}: {:.1} s, {} MiB on disk, {} operations\n",
                fault.name(),
                elapsed.as_secs_f64(),
                bytes >> 20,
                summary.operations
            ),
        )?;
    }
    Ok(())
}

/// Size on disk: recordings are sparse files.
fn bytes_on_disk(dir: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.blocks() * 512)).sum()
}
