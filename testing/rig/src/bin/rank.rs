// SPDX-License-Identifier: Apache-2.0
//! One rank: joins a communicator, does the steps of a scenario and checks every result.
//!
//! ```text
//! rank --cuda SO [--nccl SO] --rank R --nranks N --id-file FILE [--device D]
//!      [--timeout-s S] [--no-destroy] STEP…
//! ```
//! `--cuda` is the CPU stand-in or a real libcudart. Rank 0 writes NCCL's unique id to FILE, the
//! others wait for it. Exit codes: 0 fine, 1 a result is wrong, 2 something refused, 3 timeout.

#![expect(clippy::print_stdout, reason = "the report is for the rig, line by line")]
#![expect(clippy::print_stderr, reason = "errors are for the rig's log")]

use rig::cuda::Cuda;
use rig::nccl::{Nccl, UniqueId};
use rig::scenario::{Failure, Rank, Step};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long ranks wait for rank 0's unique id.
const ID_TIMEOUT: Duration = Duration::from_secs(60);

/// The command line.
struct Options {
    cuda: PathBuf,
    nccl: PathBuf,
    rank: usize,
    nranks: usize,
    id_file: PathBuf,
    device: i32,
    timeout: Duration,
    destroy: bool,
    steps: Vec<Step>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        fn value<T: FromStr>(name: &str, text: Option<String>) -> Result<T, String> {
            let text = text.ok_or_else(|| format!("{name} needs a value"))?;
            text.parse().map_err(|_| format!("{name}: bad value {text}"))
        }
        let (mut cuda, mut rank, mut nranks, mut id_file) = (None, None, None, None);
        let (mut nccl, mut device) = (PathBuf::from("libnccl.so.2"), 0);
        let (mut timeout, mut destroy, mut steps) = (120, true, Vec::new());
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--cuda" => cuda = Some(value(&arg, args.next())?),
                "--nccl" => nccl = value(&arg, args.next())?,
                "--rank" => rank = Some(value(&arg, args.next())?),
                "--nranks" => nranks = Some(value(&arg, args.next())?),
                "--id-file" => id_file = Some(value(&arg, args.next())?),
                "--device" => device = value(&arg, args.next())?,
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
            timeout: Duration::from_secs(timeout),
            destroy,
            steps,
        };
        if options.rank < options.nranks { Ok(options) } else { Err("no such rank".into()) }
    }
}

/// Ends the process if it is not done in time: a hang is the usual symptom of a protocol error.
struct Watchdog {
    doing: Arc<Mutex<String>>,
}

impl Watchdog {
    fn start(rank: usize, timeout: Duration) -> Self {
        let doing = Arc::new(Mutex::new(String::new()));
        let seen = doing.clone();
        std::thread::spawn(move || {
            std::thread::sleep(timeout);
            let doing = seen.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("rank {rank} timed out after {timeout:?} in {doing}");
            // SAFETY: no precondition. Exit handlers would wait for the threads that hang.
            unsafe { libc::_exit(3) };
        });
        Self { doing }
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
        Err(Failure::Wrong(text)) => {
            println!("rank {} wrong result: {text}", options.rank);
            ExitCode::from(1)
        }
        Err(Failure::Refused(text)) => {
            eprintln!("rank {}: {text}", options.rank);
            ExitCode::from(2)
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
    cuda.set_device(options.device)?;

    watchdog.note("init");
    let start = Instant::now();
    let id = exchange_id(&nccl, options)?;
    let number = |n: usize| i32::try_from(n).map_err(|e| e.to_string());
    let comm = nccl.init_rank(id, number(options.rank)?, number(options.nranks)?)?;
    println!("rank {} init ok {}", options.rank, ms(start.elapsed()));

    let stream = cuda.stream()?;
    let mut rank = Rank {
        rank: options.rank,
        nranks: options.nranks,
        cuda: &cuda,
        comm: &comm,
        stream: &stream,
        id_file: options.id_file.clone(),
        steps: 0,
    };
    for step in &options.steps {
        watchdog.note(step);
        rank.run(step, &mut |step, time| {
            println!("rank {} {step} ok {}", options.rank, ms(time));
        })?;
    }
    if options.destroy {
        watchdog.note("destroy");
        let start = Instant::now();
        comm.destroy()?;
        println!("rank {} destroy ok {}", options.rank, ms(start.elapsed()));
    }
    watchdog.note("exit");
    Ok(())
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Rank 0 makes the unique id and leaves it in the file, whole or not at all; the others read it.
fn exchange_id(nccl: &Nccl, options: &Options) -> Result<UniqueId, String> {
    if options.rank == 0 {
        let id = nccl.unique_id()?;
        let whole = options.id_file.with_extension("tmp");
        let done = std::fs::write(&whole, id.0);
        done.and_then(|()| std::fs::rename(&whole, &options.id_file))
            .map_err(|e| format!("{}: {e}", options.id_file.display()))?;
        return Ok(id);
    }
    let start = Instant::now();
    loop {
        if let Some(id) = read_id(&options.id_file) {
            return Ok(id);
        }
        if start.elapsed() > ID_TIMEOUT {
            return Err(format!("{}: no unique id", options.id_file.display()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read_id(path: &Path) -> Option<UniqueId> {
    Some(UniqueId(std::fs::read(path).ok()?.try_into().ok()?))
}
