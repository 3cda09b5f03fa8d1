// SPDX-License-Identifier: Apache-2.0
//! Measures the speed and size of exports: makes the recordings of a job of pairs of ranks and
//! exports them.
//!
//! `cargo run --release -p ncclscope-views --example trace-speed [EVENTS [DIR]]`

use ncclscope_trace::Recording;
use ncclscope_views::{chrome, pftrace};
use scripts::{Call, Process};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Processes of the job, two to a communicator.
const PROCESSES: u64 = 8;
/// An AllReduce over two channels with 32 steps per ProxyOp: 3 + 1 + 1 + 1 + 4 + 2 events and 128
/// steps.
const CALL: Call = Call { steps: 32, ..Call::ALL_REDUCE };
const EVENTS: u64 = 140;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let events: u64 = args.next().map_or(Ok(10_000_000), |text| text.parse())?;
    let format = args.next().unwrap_or_else(|| "pftrace".into());
    let dir = tempfile::tempdir()?;
    let calls = events.div_ceil(PROCESSES * EVENTS);
    let files: Vec<PathBuf> =
        (0..PROCESSES).map(|at| record(at, calls, dir.path())).collect::<io::Result<_>>()?;
    let recordings: Vec<Recording> =
        files.iter().map(|file| Recording::open(file)).collect::<Result<_, _>>()?;
    let path = dir.path().join(&format);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    let (began, cpu) = (Instant::now(), cpu_ms()?);
    let slices = match &*format {
        "pftrace" => pftrace::write(&recordings, &mut file)?.slices,
        "chrome" => chrome::write(&recordings, &mut file)?.slices,
        _ => return Err("the format is pftrace or chrome".into()),
    };
    file.flush()?;
    let (took, cpu) = (began.elapsed().as_millis(), cpu_ms()? - cpu);
    let (events, bytes) = (calls * PROCESSES * EVENTS, std::fs::metadata(&path)?.len());
    writeln!(
        io::stdout(),
        "{format}: {events} events of {PROCESSES} processes in {took} ms ({cpu} ms of CPU), {} \
         events/s; {slices} slices, {} MB, {} bytes a slice; {} MB of memory at most",
        u128::from(events) * 1_000 / took.max(1),
        bytes / 1_000_000,
        bytes / slices.max(1),
        peak_mb()?
    )?;
    Ok(())
}

/// Processor time of this process so far, in all threads: fields 14 and 15 of its `stat`, in
/// hundredths of a second.
fn cpu_ms() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    let used: Vec<u64> = fields.skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(used.iter().sum::<u64>() * 10)
}

/// Peak memory of this process, including the making of the recordings.
fn peak_mb() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1_000)
}

/// Writes the recording of the process at position `at`; neighbours are the ranks of a pair.
fn record(at: u64, calls: u64, dir: &Path) -> io::Result<PathBuf> {
    let mut process = Process::new(i32::try_from(at % 2).unwrap_or(0), 2);
    process.comm.hash += at / 2;
    process.header.pid += u32::try_from(at).unwrap_or(0);
    process.header.host = format!("node-{at}");
    for _ in 0..calls {
        process.collective(CALL);
    }
    process.write(dir)
}
