// SPDX-License-Identifier: Apache-2.0
//! One rank, or several as threads of one process: joins a communicator, runs the steps of a
//! scenario and checks every result.
//!
//! The ranks meet in files beside that of `--id-file`. Exit codes: 0 fine, 1 a result is wrong, 2
//! something refused, or usage, 3 timeout.

#![expect(clippy::print_stdout, reason = "the report is for the rig, line by line")]
#![expect(clippy::print_stderr, reason = "errors are for the rig's log")]

mod link;
mod proxy;

use clap::Parser;
use rig::cuda::Cuda;
use rig::failure::Failure;
use rig::meeting::Meeting;
use rig::nccl::{Comm, Nccl};
use rig::scenario::{Pause, Rank};
use rig::step::Step;
use rig::team::Team;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rank of a job, or several as threads of one process
#[derive(Debug, Parser)]
#[command(args_override_self = true)]
struct Options {
    /// The CPU stand-in or a real libcudart
    #[arg(long, value_name = "SO")]
    cuda: PathBuf,
    #[arg(long, value_name = "SO", default_value = "libnccl.so.2")]
    nccl: PathBuf,
    /// The first rank of this process
    #[arg(long, value_name = "R")]
    rank: usize,
    /// Ranks of the job
    #[arg(long, value_name = "N")]
    nranks: usize,
    /// Where the ranks meet
    #[arg(long, value_name = "FILE")]
    id_file: PathBuf,
    /// The first device of this process
    #[arg(long, value_name = "D", default_value_t = 0)]
    device: usize,
    /// Ranks of this process: R to R+T-1 on the devices D to D+T-1
    #[arg(long, value_name = "T", default_value = "1")]
    threads: NonZeroUsize,
    /// A pause between the loading of NCCL and the first communicator
    #[arg(long, value_name = "MS", default_value_t = 0)]
    init_after_ms: u64,
    /// A pause before each step
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pause_ms: u64,
    /// Up to so much more of it
    #[arg(long, value_name = "MS", default_value_t = 0)]
    jitter_ms: u64,
    /// From which the jitter follows
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The proxy threads stop in front of a step, from 1, for so long or for ever
    #[arg(long, value_name = "STEP[:MS]", value_parser = Trouble::stop_proxy)]
    stop_proxy: Vec<Trouble>,
    /// What the process sends becomes slow in front of a step, and late
    #[arg(long, value_name = "STEP:MBPS[:DELAY_MS]", value_parser = Trouble::slow_link)]
    slow_link: Vec<Trouble>,
    /// What the process sends stalls after so many bytes more, counted in front of a step
    #[arg(long, value_name = "STEP:BYTES", value_parser = Trouble::stall_link)]
    stall_link: Vec<Trouble>,
    /// Seconds for all
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
    /// Seconds for the last step and the destroy
    #[arg(long, value_name = "S")]
    hang_s: Option<u64>,
    /// Leave the communicators as they are
    #[arg(long)]
    no_destroy: bool,
    #[arg(value_name = "STEP")]
    steps: Vec<Step>,
}

/// What goes wrong in front of a step, numbered from 1.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    step: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The proxy threads stop, for this many milliseconds or forever.
    StopProxy(Option<u64>),
    /// Megabytes a second from here on, and a delay in milliseconds.
    SlowLink(u64, u64),
    /// The number of bytes after which nothing more is sent.
    StallLink(u64),
}

impl Trouble {
    fn stop_proxy(text: &str) -> Result<Self, String> {
        Self::read(text, |numbers| match *numbers {
            [] => Some(Kind::StopProxy(None)),
            [ms] => Some(Kind::StopProxy(Some(ms))),
            _ => None,
        })
    }

    fn slow_link(text: &str) -> Result<Self, String> {
        Self::read(text, |numbers| match *numbers {
            [mbps] => Some(Kind::SlowLink(mbps, 0)),
            [mbps, delay_ms] => Some(Kind::SlowLink(mbps, delay_ms)),
            _ => None,
        })
    }

    fn stall_link(text: &str) -> Result<Self, String> {
        Self::read(text, |numbers| match *numbers {
            [bytes] => Some(Kind::StallLink(bytes)),
            _ => None,
        })
    }

    /// Reads `STEP` or `STEP:NUMBER…`.
    fn read(text: &str, kind: fn(&[u64]) -> Option<Kind>) -> Result<Self, String> {
        let numbers = text.split(':').map(str::parse).collect::<Result<Vec<u64>, _>>();
        let numbers = numbers.map_err(|error| error.to_string())?;
        let (&step, rest) = numbers.split_first().ok_or("no step")?;
        let step = usize::try_from(step).map_err(|error| error.to_string())?;
        let kind = kind(rest).ok_or("too few or too many numbers")?;
        Ok(Self { step, kind })
    }

    fn make(self) -> Result<(), String> {
        match self.kind {
            Kind::StopProxy(ms) => proxy::stop(ms)?,
            Kind::SlowLink(mbps, ms) => link::slow(mbps, Duration::from_millis(ms)),
            Kind::StallLink(bytes) => link::stall(bytes),
        }
        Ok(())
    }
}

/// Ends the process if it is not done in time: a hang is the usual symptom of a protocol error.
struct Watchdog {
    rank: usize,
    doing: Arc<Mutex<String>>,
}

impl Watchdog {
    fn start(rank: usize, timeout: Duration) -> Self {
        let watchdog = Self { rank, doing: Arc::default() };
        watchdog.limit(timeout);
        watchdog
    }

    /// The process exits after this time.
    fn limit(&self, timeout: Duration) {
        let (rank, seen) = (self.rank, self.doing.clone());
        std::thread::spawn(move || {
            std::thread::sleep(timeout);
            let doing = seen.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("rank {rank} timed out after {timeout:?} in {doing}");
            // SAFETY: no precondition. Exit handlers would wait for the threads that hang.
            unsafe { libc::_exit(3) };
        });
    }

    fn note(&self, what: impl ToString) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what.to_string();
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.rank + options.threads.get() > options.nranks {
        eprintln!("rank: no such rank");
        return ExitCode::from(2);
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(tell(options.rank, &failure)),
    }
}

/// Prints the error and returns the exit code.
fn tell(rank: usize, failure: &Failure) -> u8 {
    match failure {
        Failure::Wrong(text) => {
            println!("rank {rank} wrong result: {text}");
            1
        }
        Failure::Refused(text) => {
            eprintln!("rank {rank}: {text}");
            2
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let watchdog = Watchdog::start(options.rank, Duration::from_secs(options.timeout_s));
    watchdog.note("loading");
    let start = Instant::now();
    let cuda = Cuda::load(&options.cuda)?;
    let nccl = Nccl::new(cuda.open_nccl(&options.nccl)?)?;
    println!("rank {} nccl {} {}", options.rank, nccl.version()?, ms(start.elapsed()));
    std::thread::sleep(Duration::from_millis(options.init_after_ms));
    let threads = options.threads.get();
    if threads == 1 {
        return work(options, 0, (&cuda, &nccl), None, &watchdog);
    }
    // A process that has all ranks creates their communicators at once.
    let mut comms = vec![];
    if threads == options.nranks {
        watchdog.note("init");
        comms = nccl.init_all(threads)?;
    }
    let mut comms = comms.into_iter();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (comm, libraries, watchdog) = (comms.next(), (&cuda, &nccl), &watchdog);
            scope.spawn(move || {
                if let Err(failure) = work(options, thread, libraries, comm, watchdog) {
                    let code = tell(options.rank + thread, &failure);
                    // SAFETY: no precondition. The other threads would wait for this rank.
                    unsafe { libc::_exit(code.into()) };
                }
            });
        }
    });
    Ok(())
}

/// Runs rank number `thread` of the process, with a communicator if it already has one.
fn work<'a>(
    options: &Options,
    thread: usize,
    (cuda, nccl): (&'a Cuda, &'a Nccl),
    comm: Option<Comm<'a>>,
    watchdog: &Watchdog,
) -> Result<(), Failure> {
    let own = options.rank + thread;
    let device = i32::try_from(options.device + thread).map_err(|e| e.to_string())?;
    cuda.set_device(device)?;
    let stream = cuda.stream()?;
    let meeting = Meeting::new(options.id_file.clone(), own, options.nranks);
    let mut rank = Rank::new((own, options.nranks), cuda, nccl, &stream, meeting);
    rank.pause =
        Pause { least_ms: options.pause_ms, jitter_ms: options.jitter_ms, seed: options.seed };

    watchdog.note("init");
    let start = Instant::now();
    match comm {
        Some(comm) => {
            let members = (0..options.nranks).collect();
            rank.teams.push(Team { comm, members, rank: own });
        }
        None => rank.init(true)?,
    }
    println!("rank {own} init ok {}", ms(start.elapsed()));
    for (index, step) in options.steps.iter().enumerate() {
        watchdog.note(step);
        let troubles = [&options.stop_proxy, &options.slow_link, &options.stall_link];
        let here = troubles.into_iter().flatten().filter(|trouble| trouble.step == index + 1);
        here.copied().try_for_each(Trouble::make)?;
        if let Some(hang) = options.hang_s.filter(|_| index + 1 == options.steps.len()) {
            watchdog.limit(Duration::from_secs(hang));
        }
        rank.run(step, &mut |step, time| println!("rank {own} {step} ok {}", ms(time)))?;
    }
    if !options.no_destroy {
        watchdog.note("destroy");
        let start = Instant::now();
        while !rank.teams.is_empty() {
            rank.destroy(0)?;
        }
        println!("rank {own} destroy ok {}", ms(start.elapsed()));
    }
    watchdog.note("exit");
    Ok(())
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
