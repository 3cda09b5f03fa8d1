// SPDX-License-Identifier: Apache-2.0
//! The parts, one after the other, each within its time; results as JSON and as a table.
//!
//! The numbers 1 to 12 are the checks in the order in which a first GPU should see them; between
//! them stand the GPU's timer and the plugin's cost. A part that cannot be done here says why.

mod cost;
pub(crate) mod event_costs;
mod find;
mod hangs;
mod kernels;
mod launch;
mod row;
mod smoke;
mod torch;

use serde_json::json;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use row::{Found, Row, Verdict};

/// One part.
pub(super) struct Part {
    /// Its number or name.
    id: &'static str,
    title: &'static str,
    /// What a GPU that does as NCCL's source says will show.
    expected: &'static str,
    /// Seconds that it may take.
    seconds: u64,
    run: fn(&Setup, Duration) -> Result<Found, String>,
}

/// Eight minutes, less what starting takes.
const SECONDS: u64 = 470;
/// A part is not begun with less than this share of its time.
const LEAST_SHARE: f64 = 0.4;

const PARTS: [&Part; 14] = [
    &smoke::SMOKE,
    &smoke::TIMER,
    &cost::PLUGIN,
    &kernels::DRIFT,
    &kernels::EARLY_STOP,
    &hangs::LATE_PEER,
    &hangs::RUN_AHEAD,
    &cost::QUEUE,
    &cost::GRAPHS,
    &cost::PROBE,
    &hangs::STUCK,
    &kernels::OVERRUN,
    &torch::TORCH,
    &hangs::ONE_PROCESS,
];

/// What all parts share.
#[derive(Debug)]
pub(super) struct Setup {
    /// The kit's programs.
    bin: PathBuf,
    /// Where recordings and results go.
    out: PathBuf,
    nccl: PathBuf,
    cuda: PathBuf,
    /// Such as 23007.
    version: u32,
    /// On the CPU stand-in: a dry run, whose times say nothing of a GPU.
    stand_in: bool,
    /// As little as shows that a part works.
    small: bool,
}

impl Setup {
    /// A number for a GPU, and one for a small run.
    fn scale<T>(&self, full: T, small: T) -> T {
        if self.small { small } else { full }
    }

    /// Whether one process may have both ranks here.
    fn has_threads(&self) -> bool {
        self.stand_in || self.version >= 23003
    }

    fn without_threads(&self) -> Found {
        let text = "one GPU for two ranks of a process needs NCCL 2.30.3 or later";
        Found::skipped(format!("{text}, this is {}", self.version))
    }

    /// A folder with what the loader must find by name.
    fn library_path(&self) -> String {
        let own = self.out.join("lib").display().to_string();
        match std::env::var("LD_LIBRARY_PATH") {
            Ok(path) if !path.is_empty() => format!("{own}:{path}"),
            _ => own,
        }
    }

    /// Control sockets: their names must be short.
    fn control(&self) -> PathBuf {
        std::env::temp_dir().join(format!("gpu-kit-{}", std::process::id()))
    }

    /// Runs the tool and returns what it prints, whatever its exit status.
    ///
    /// # Errors
    /// It cannot be started.
    fn tool(&self, args: &[&str], path: &Path) -> Result<String, String> {
        let mut command = Command::new(self.bin.join("ncclscope"));
        command.args(args).arg(path).stdin(Stdio::null());
        command.env("NCCLSCOPE_CONTROL", self.control());
        let output = command.output().map_err(|e| format!("ncclscope: {e}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The command line.
#[derive(Debug, Default)]
struct Options {
    out: Option<PathBuf>,
    nccl: Option<PathBuf>,
    cuda: Option<PathBuf>,
    stand_in: bool,
    small: bool,
    seconds: Option<u64>,
    only: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--out" => options.out = Some(value()?.into()),
                "--nccl" => options.nccl = Some(value()?.into()),
                "--cuda" => options.cuda = Some(value()?.into()),
                "--stand-in" => options.stand_in = true,
                "--small" => options.small = true,
                "--seconds" => {
                    let seconds = value()?.parse().map_err(|_| format!("{arg}: no number"))?;
                    options.seconds = Some(seconds);
                }
                "--only" => options.only = value()?.split(',').map(String::from).collect(),
                _ => return Err(format!("unknown argument {arg}")),
            }
        }
        let unknown = options.only.iter().find(|id| PARTS.iter().all(|part| part.id != **id));
        match unknown {
            Some(id) => Err(format!("there is no part {id}")),
            None => Ok(options),
        }
    }

    fn setup(&self) -> Result<Setup, String> {
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let bin = own.parent().map(Path::to_owned).unwrap_or_default();
        let found = |name: &str| find::library(name).ok_or_else(|| format!("no {name} is found"));
        let nccl = self.nccl.clone().map_or_else(|| found("libnccl.so.2"), Ok)?;
        let stand_in = || bin.join("libcpu_cuda.so");
        let cuda = match &self.cuda {
            Some(cuda) => cuda.clone(),
            None if self.stand_in => stand_in(),
            None => found("libcudart.so.1")?,
        };
        let out = std::path::absolute(self.out.clone().unwrap_or_else(|| "gpu-run".into()));
        let out = out.map_err(|e| e.to_string())?;
        let (stand_in, small) = (self.stand_in, self.small);
        let mut setup = Setup { bin, out, nccl, cuda, version: 0, stand_in, small };
        links(&setup).map_err(|e| format!("{}: {e}", setup.out.display()))?;
        setup.version = version(&setup)?;
        Ok(setup)
    }
}

/// Puts what the loader looks for by name into one folder.
fn links(setup: &Setup) -> std::io::Result<()> {
    let folder = setup.out.join("lib");
    std::fs::create_dir_all(&folder)?;
    let plugin = setup.bin.join("libnccl_profiler_ncclscope.so");
    let mut links = vec![(plugin, "libnccl-profiler-ncclscope.so")];
    if setup.stand_in {
        // The driver is what is loaded under this name.
        links.push((setup.cuda.clone(), "libcuda.so.1"));
    }
    for (file, name) in links {
        let link = folder.join(name);
        if !link.is_symlink() {
            symlink(file, link)?;
        }
    }
    Ok(())
}

/// The release, of a job that does nothing.
fn version(setup: &Setup) -> Result<u32, String> {
    let said = launch::Launch::new(setup, "version").without_plugin();
    let said = said.run(Duration::from_secs(60))?;
    let version = said.value(0, "init", "version")?;
    // An integer that NCCL told.
    Ok(format!("{version}").parse().unwrap_or(0))
}

/// Runs the parts.
pub(crate) fn run(args: &[String]) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("gpu-kit: {error}");
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    let setup = match options.setup() {
        Ok(setup) => setup,
        Err(error) => {
            eprintln!("gpu-kit: {error}");
            return ExitCode::from(4);
        }
    };
    let end = begin + Duration::from_secs(options.seconds.unwrap_or(SECONDS));
    let is_asked =
        |part: &&&Part| options.only.is_empty() || options.only.contains(&part.id.into());
    let mut rows = Vec::new();
    let mut written = Ok(());
    for part in PARTS.iter().filter(is_asked) {
        rows.push(one(&setup, part, end));
        // After each part: what a limit from outside cuts off is lost, and no more.
        written = write(&setup, &rows, begin.elapsed());
    }
    // It is not there where nothing listened.
    let _ = std::fs::remove_dir_all(setup.control());
    show(&setup, &rows, begin.elapsed());
    match written {
        Ok(()) if rows.iter().any(|row| row.found.verdict == Verdict::Differs) => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-kit: {error}");
            ExitCode::from(4)
        }
    }
}

/// One part within its time.
fn one(setup: &Setup, part: &Part, end: Instant) -> Row {
    let begin = Instant::now();
    let left = end.saturating_duration_since(begin);
    let wanted = Duration::from_secs(part.seconds);
    let found = if left < wanted.mul_f64(LEAST_SHARE) {
        Found::skipped(format!("{} s are left of the time for all parts", left.as_secs()))
    } else {
        eprintln!("gpu-kit: {} {} (up to {} s)", part.id, part.title, part.seconds);
        let found = (part.run)(setup, wanted.min(left));
        found.unwrap_or_else(|error| Found::differs(format!("it failed: {error}")))
    };
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!("gpu-kit: {} {} after {seconds:.1} s", part.id, found.verdict.word());
    let (id, title, expected) = (part.id, part.title, part.expected);
    Row { id, title, expected, seconds, found }
}

fn write(setup: &Setup, rows: &[Row], elapsed: Duration) -> Result<(), String> {
    let host = find::output("uname", &["-srm"]);
    let machine = json!({
        "gpu": find::gpu(),
        "system": host,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "nccl": setup.nccl,
        "nccl_version": setup.version,
        "cuda": setup.cuda,
        "stand_in": setup.stand_in,
        "small": setup.small,
    });
    let results = json!({
        "schema": "ncclscope.gpu-kit/1",
        "machine": machine,
        "seconds": elapsed.as_secs_f64(),
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    });
    let file = setup.out.join("results.json");
    std::fs::write(&file, format!("{results:#}\n")).map_err(|e| format!("{}: {e}", file.display()))
}

fn show(setup: &Setup, rows: &[Row], elapsed: Duration) {
    let gpu = find::gpu().unwrap_or_else(|| "no GPU".into());
    let on = if setup.stand_in { "the CPU stand-in (times say nothing of a GPU)" } else { &gpu };
    println!("NCCL {} on {on}; {:.0} s\n", setup.version, elapsed.as_secs_f64());
    print!("{}", row::table(rows));
    println!("\n{}", setup.out.join("results.json").display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twelve_checks_are_in_order_and_fit_the_time() {
        let numbers: Vec<u32> = PARTS.iter().filter_map(|part| part.id.parse().ok()).collect();
        assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
        assert!(PARTS.iter().map(|part| part.seconds).sum::<u64>() <= SECONDS);
    }

    #[test]
    fn unknown_parts_and_arguments_are_usage_errors() {
        let parse = |words: &str| {
            Options::parse(&words.split_whitespace().map(String::from).collect::<Vec<_>>())
        };
        assert_eq!(parse("--only 1,cost").unwrap().only, ["1", "cost"]);
        for wrong in ["--only 13", "--nonesuch", "--seconds x", "--out"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
