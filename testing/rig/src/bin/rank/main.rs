// SPDX-License-Identifier: Apache-2.0
//! One rank, or several as threads of one process: joins a communicator, runs the steps of a
//! scenario and checks every result.
//!
//! ```text
//! rank --cuda SO [--nccl SO] --rank R --nranks N --id-file FILE [--device D] [--threads T]
//!      [--timeout-s S] [--no-destroy] [--pause-ms MS] [--jitter-ms MS] [--seed N]
//!      [--stop-proxy STEP[:MS]] [--slow-link STEP:MBPS[:DELAY_MS]]
//!      [--stall-link STEP:BYTES] [--hang-s S] STEP…
//! ```
//! `--cuda` is the CPU stand-in or a real libcudart. The ranks meet in files beside FILE. With
//! `--threads` the process has the ranks R to R+T-1 on the devices D to D+T-1. Each step follows a
//! pause plus a random jitter. Before step number STEP, from 1, the proxy threads stop for MS
//! milliseconds or forever ([`proxy`]), or the process's outgoing link becomes slow, with a delay
//! of DELAY_MS milliseconds, or stalls after BYTES more ([`link`]). With `--hang-s` the last step
//! and the destroy may take at most S seconds. Exit codes: 0 success, 1 a result is wrong, 2 an
//! error of CUDA, NCCL or the system, 3 timeout.

#![expect(clippy::print_stdout, reason = "the report is for the rig, line by line")]
#![expect(clippy::print_stderr, reason = "errors are for the rig's log")]

mod link;
mod proxy;

use rig::cuda::Cuda;
use rig::meeting::Meeting;
use rig::nccl::{Comm, Nccl};
use rig::scenario::{Failure, Pause, Rank};
use rig::step::Step;
use rig::team::Team;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The command line.
struct Options {
    cuda: PathBuf,
    nccl: PathBuf,
    rank: usize,
    nranks: usize,
    id_file: PathBuf,
    device: usize,
    threads: usize,
    pause: Pause,
    troubles: Vec<(usize, Trouble)>,
    timeout: Duration,
    hang: Option<Duration>,
    destroy: bool,
    steps: Vec<Step>,
}

/// A fault before a step.
#[derive(Clone, Copy)]
enum Trouble {
    /// The proxy threads stop, for this many milliseconds or forever.
    StopProxy(Option<u64>),
    /// Megabytes a second from here on, and a delay in milliseconds.
    SlowLink(u64, u64),
    /// The number of bytes after which nothing more is sent.
    StallLink(u64),
}

impl Trouble {
    /// Parses the value `STEP` or `STEP:NUMBER…` of the option `name`.
    fn parse(name: &str, text: &str) -> Option<(usize, Self)> {
        let numbers = text.split(':').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let (&step, numbers) = numbers.split_first()?;
        let trouble = match (name, numbers) {
            ("--stop-proxy", []) => Self::StopProxy(None),
            ("--stop-proxy", &[ms]) => Self::StopProxy(Some(ms)),
            ("--slow-link", &[mbps]) => Self::SlowLink(mbps, 0),
            ("--slow-link", &[mbps, delay_ms]) => Self::SlowLink(mbps, delay_ms),
            ("--stall-link", &[bytes]) => Self::StallLink(bytes),
            _ => return None,
        };
        Some((usize::try_from(step).ok()?, trouble))
    }

    fn make(self) -> Result<(), String> {
        match self {
            Self::StopProxy(ms) => proxy::stop(ms)?,
            Self::SlowLink(mbps, ms) => link::slow(mbps, Duration::from_millis(ms)),
            Self::StallLink(bytes) => link::stall(bytes),
        }
        Ok(())
    }
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        fn value<T: FromStr>(name: &str, text: Option<String>) -> Result<T, String> {
            let text = text.ok_or_else(|| format!("{name} needs a value"))?;
            text.parse().map_err(|_| format!("{name}: bad value {text}"))
        }
        let (mut cuda, mut rank, mut nranks, mut id_file) = (None, None, None, None);
        let (mut nccl, mut device) = (PathBuf::from("libnccl.so.2"), 0);
        let (mut threads, mut pause) = (1, Pause::default());
        let (mut timeout, mut destroy, mut steps) = (120, true, Vec::new());
        let (mut troubles, mut hang) = (Vec::new(), None);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--cuda" => cuda = Some(value(&arg, args.next())?),
                "--nccl" => nccl = value(&arg, args.next())?,
                "--rank" => rank = Some(value(&arg, args.next())?),
                "--nranks" => nranks = Some(value(&arg, args.next())?),
                "--id-file" => id_file = Some(value(&arg, args.next())?),
                "--device" => device = value(&arg, args.next())?,
                "--threads" => threads = value(&arg, args.next())?,
                "--pause-ms" => pause.least_ms = value(&arg, args.next())?,
                "--jitter-ms" => pause.jitter_ms = value(&arg, args.next())?,
                "--seed" => pause.seed = value(&arg, args.next())?,
                "--stop-proxy" | "--slow-link" | "--stall-link" => {
                    let text: String = value(&arg, args.next())?;
                    let trouble = Trouble::parse(&arg, &text);
                    troubles.push(trouble.ok_or_else(|| format!("{arg}: bad value {text}"))?);
                }
                "--hang-s" => hang = Some(Duration::from_secs(value(&arg, args.next())?)),
                "--timeout-s" => timeout = value(&arg, args.next())?,
                "--no-destroy" => destroy = false,
                option if option.starts_with('-') => return Err(format!("unknown {option}")),
                step => steps.push(step.parse()?),
            }
        }
        let options = Self {
            cuda: cuda.ok_or("--cuda is missing")?,
            nccl,
            rank: rank.ok_or("--rank is missing")?,
            nranks: nranks.ok_or("--nranks is missing")?,
            id_file: id_file.ok_or("--id-file is missing")?,
            device,
            threads,
            pause,
            troubles,
            timeout: Duration::from_secs(timeout),
            hang,
            destroy,
            steps,
        };
        let known = threads > 0 && options.rank + threads <= options.nranks;
        if known { Ok(options) } else { Err("no such rank".into()) }
    }
}

/// Exits the process if it is not done in time: a hang is the usual symptom of a protocol error.
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
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("rank: {text}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(tell(options.rank, &failure)),
    }
}

/// Prints the error; returns the exit code.
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
    let watchdog = Watchdog::start(options.rank, options.timeout);
    watchdog.note("loading");
    let start = Instant::now();
    let cuda = Cuda::load(&options.cuda)?;
    let nccl = Nccl::new(cuda.open_nccl(&options.nccl)?)?;
    println!("rank {} nccl {} {}", options.rank, nccl.version()?, ms(start.elapsed()));
    if options.threads == 1 {
        return work(options, 0, (&cuda, &nccl), None, &watchdog);
    }
    // A process with all ranks creates the communicators at once.
    let mut comms = vec![];
    if options.threads == options.nranks {
        watchdog.note("init");
        comms = nccl.init_all(options.threads)?;
    }
    let mut comms = comms.into_iter();
    std::thread::scope(|scope| {
        for thread in 0..options.threads {
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
    rank.pause = options.pause;

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
        let here = options.troubles.iter().filter(|(at, _)| *at == index + 1);
        here.map(|(_, trouble)| *trouble).try_for_each(Trouble::make)?;
        if let Some(hang) = options.hang.filter(|_| index + 1 == options.steps.len()) {
            watchdog.limit(hang);
        }
        rank.run(step, &mut |step, time| println!("rank {own} {step} ok {}", ms(time)))?;
    }
    if options.destroy {
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
