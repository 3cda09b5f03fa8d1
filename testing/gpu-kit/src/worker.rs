// SPDX-License-Identifier: Apache-2.0
//! Ranks of a job: a process with one rank, or with several as threads, that runs steps and prints
//! their times.
//!
//! A step is `NAME`, `NAME:NUMBER` or `NAME:NUMBER:NUMBER…`; `R/STEP` is a step of rank R only. For
//! each step a rank prints `RANK NAME KEY=VALUE…`. The results' values are not checked; the rig
//! does that.

mod steps;
mod threads;

use clap::Args;
use rig::cuda::{Cuda, Floats, Graph, Stream};
use rig::meeting::Meeting;
use rig::nccl::{Comm, Nccl};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::gpu::Gpu;

/// The command line.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// libcudart, or the stand-in
    #[arg(long, value_name = "SO")]
    cuda: PathBuf,
    #[arg(long, value_name = "SO")]
    nccl: PathBuf,
    /// The file by which the processes meet
    #[arg(long, value_name = "FILE")]
    meeting: PathBuf,
    /// The first rank of this process
    #[arg(long, value_name = "RANK")]
    first: usize,
    /// The job's ranks
    #[arg(long, value_name = "N")]
    ranks: usize,
    /// A device for each rank of the process
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', required = true)]
    devices: Vec<i32>,
    /// After which the process ends in any case
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
    /// What the ranks do
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
}

/// Runs the ranks of this process.
///
/// # Errors
/// An error of NCCL or CUDA, or an unknown step.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.first + options.devices.len() > options.ranks {
        return Err("no such rank".into());
    }
    let limit = Duration::from_secs(options.timeout_s);
    std::thread::spawn(move || end_after(limit));
    let cuda = Cuda::load(&options.cuda)?;
    let nccl = Nccl::new(cuda.open_nccl(&options.nccl)?)?;
    std::thread::scope(|scope| {
        let ranks = (0..options.devices.len()).map(|thread| {
            let (cuda, nccl) = (&cuda, &nccl);
            scope.spawn(move || work(options, thread, cuda, nccl))
        });
        let ranks: Vec<_> = ranks.collect();
        let ended = ranks.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked"));
        ended.collect::<Vec<_>>().into_iter().try_for_each(|ended| ended?)
    })
}

/// Ends the process after its time, or when its parent has exited: no process of the kit may
/// continue to use the GPU.
fn end_after(limit: Duration) {
    let (begin, parent) = (Instant::now(), std::os::unix::process::parent_id());
    while begin.elapsed() < limit && std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(200));
    }
    let seconds = begin.elapsed().as_secs_f64();
    // The parent may no longer read; then the line is lost.
    let _ = writeln!(std::io::stderr(), "gpu-kit: a worker's time is over after {seconds:.0} s");
    // SAFETY: no precondition. `_exit` runs no exit handlers, which would wait for what hangs.
    unsafe { libc::_exit(3) };
}

fn work(options: &Options, thread: usize, cuda: &Cuda, nccl: &Nccl) -> Result<(), String> {
    let (number, device) = (options.first + thread, options.devices[thread]);
    cuda.set_device(device)?;
    // Creates the device's context before the first step.
    let touch = cuda.floats(1)?;
    let gpu = Gpu::load(&options.cuda)?;
    let mut meeting = Meeting::new(options.meeting.clone(), number, options.ranks);
    let id = meeting.unique_id(nccl)?;
    let begin = Instant::now();
    let signed = |number: usize| i32::try_from(number).map_err(|e| e.to_string());
    let comm = nccl.init_rank(id, signed(number)?, signed(options.ranks)?, true)?;
    let mut rank = Rank {
        number,
        ranks: options.ranks,
        device,
        cuda,
        nccl,
        gpu: &gpu,
        comm: Some(comm),
        stream: cuda.stream()?,
        meeting,
        graph: None,
        buffers: None,
        held: vec![touch],
    };
    let version = nccl.version()?;
    rank.say("init", &[("version", f64::from(version)), ("ms", ms(begin.elapsed()))]);
    for step in &options.steps {
        match step.split_once('/') {
            Some((own, _)) if own.parse() != Ok(number) => {}
            Some((_, step)) => rank.step(step)?,
            None => rank.step(step)?,
        }
    }
    rank.end()
}

/// A rank and its resources.
#[derive(Debug)]
struct Rank<'a> {
    number: usize,
    ranks: usize,
    device: i32,
    cuda: &'a Cuda,
    nccl: &'a Nccl,
    gpu: &'a Gpu,
    comm: Option<Comm<'a>>,
    stream: Stream<'a>,
    meeting: Meeting,
    graph: Option<Graph<'a>>,
    /// Buffers of the operations, and the number of floats for which they have room.
    buffers: Option<(usize, Floats<'a>, Floats<'a>)>,
    /// Earlier buffers, kept because freeing one waits for the device.
    held: Vec<Floats<'a>>,
}

impl Rank<'_> {
    /// Prints the results of a step.
    fn say(&self, name: &str, values: &[(&str, f64)]) {
        let values: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
        println!("{} {name} {}", self.number, values.join(" "));
    }

    /// Destroys the communicator.
    fn end(mut self) -> Result<(), String> {
        let begin = Instant::now();
        // NCCL's destroy waits for graphs that contain its work.
        self.graph = None;
        if let Some(comm) = self.comm.take() {
            comm.destroy()?;
        }
        self.say("destroy", &[("ms", ms(begin.elapsed()))]);
        Ok(())
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
