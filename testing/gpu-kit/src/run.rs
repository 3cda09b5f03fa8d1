// SPDX-License-Identifier: Apache-2.0
//! Runs the parts one after the other, each within its time. Writes results as JSON and as a table.
//!
//! The numbers 1 to 14 are the checks, in the order in which they should first run on a GPU.
//! Between them are the parts about the GPU's timer and the plugin's cost. A part that cannot run
//! on this machine says why.

mod cost;
pub(crate) mod event_costs;
mod find;
mod hangs;
mod kernels;
mod launch;
mod part;
mod python;
mod row;
mod setup;
mod smoke;
mod torch;
mod training;

use clap::Args;
use serde_json::json;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use part::Part;
use row::{Row, Verdict};
use setup::Setup;

/// Eight minutes, minus the time for starting.
const SECONDS: u64 = 470;
const PARTS: [&Part; 18] = [
    &smoke::SMOKE,
    &smoke::TIMER,
    &cost::PLUGIN,
    &kernels::DRIFT,
    &kernels::DESTROY,
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
    &training::STEP,
    &training::LATE,
    &training::STOPS,
];
/// Parts that run only if `--only` names them.
const ON_REQUEST: [&Part; 1] = [&cost::KINDS];

/// The command line.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Directory for recordings, reports and results.json
    #[arg(long, value_name = "DIR", default_value = "gpu-run")]
    out: PathBuf,
    /// NCCL, instead of the one that the kit finds
    #[arg(long, value_name = "SO")]
    nccl: Option<PathBuf>,
    /// libcudart, instead of the one that the kit finds
    #[arg(long, value_name = "SO")]
    cuda: Option<PathBuf>,
    /// Run on the CPU stand-in; needs --nccl
    #[arg(long, requires = "nccl")]
    stand_in: bool,
    /// Do only enough of each part to show that it works
    #[arg(long)]
    small: bool,
    /// Time for all parts
    #[arg(long, value_name = "S", default_value_t = SECONDS)]
    seconds: u64,
    /// Run only these parts
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = part_id)]
    only: Vec<String>,
}

fn part_id(text: &str) -> Result<String, String> {
    let is_known = PARTS.iter().chain(&ON_REQUEST).any(|part| part.id == text);
    if is_known { Ok(text.into()) } else { Err(format!("there is no part {text}")) }
}

impl Options {
    /// The options of a whole run on the stand-in.
    fn of_stand_in(nccl: PathBuf, out: PathBuf) -> Options {
        let (nccl, cuda) = (Some(nccl), None);
        Options { out, nccl, cuda, stand_in: true, small: false, seconds: SECONDS, only: vec![] }
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
        let out = std::path::absolute(&self.out).map_err(|e| e.to_string())?;
        let (stand_in, small) = (self.stand_in, self.small);
        let mut setup = Setup { bin, out, nccl, cuda, version: 0, stand_in, small };
        links(&setup).map_err(|e| format!("{}: {e}", setup.out.display()))?;
        setup.version = version(&setup)?;
        Ok(setup)
    }
}

/// Links the files that the loader looks for by name into one folder.
fn links(setup: &Setup) -> std::io::Result<()> {
    let folder = setup.out.join("lib");
    std::fs::create_dir_all(&folder)?;
    let plugin = setup.bin.join("libnccl_profiler_ncclscope.so");
    let mut links = vec![(plugin, "libnccl-profiler-ncclscope.so")];
    if setup.stand_in {
        // The stand-in is loaded as the driver under this name.
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

/// NCCL's release, as printed by a job without steps.
fn version(setup: &Setup) -> Result<u32, String> {
    let said = launch::Launch::new(setup, "version").without_plugin();
    let said = said.run(Duration::from_secs(60))?;
    let version = said.value(0, "init", "version")?;
    // A float that holds the integer that NCCL reported.
    format!("{version}").parse().map_err(|_| format!("the rank's NCCL version is {version}"))
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let begin = Instant::now();
    let setup = match options.setup() {
        Ok(setup) => setup,
        Err(error) => {
            eprintln!("gpu-kit: {error}");
            return ExitCode::from(4);
        }
    };
    let end = begin + Duration::from_secs(options.seconds);
    let is_named = |part: &&&Part| options.only.iter().any(|id| id == part.id);
    let is_asked = |part: &&&Part| options.only.is_empty() || is_named(part);
    let mut rows = Vec::new();
    let mut written = Ok(());
    for part in PARTS.iter().filter(is_asked).chain(ON_REQUEST.iter().filter(is_named)) {
        rows.push(part.perform(&setup, end));
        // Written after each part, so that an external time limit loses only the unfinished part.
        written = write(&setup, &rows, begin.elapsed());
    }
    // The folder does not exist if no process listened.
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
    fn the_checks_are_in_order_and_fit_the_time() {
        let numbers: Vec<u32> = PARTS.iter().filter_map(|part| part.id.parse().ok()).collect();
        assert_eq!(numbers, (1..=14).collect::<Vec<_>>());
        assert!(PARTS.iter().map(|part| part.seconds).sum::<u64>() <= SECONDS);
    }

    #[test]
    fn only_parts_that_there_are_can_be_chosen() {
        assert_eq!(part_id("cost"), Ok("cost".into()));
        assert_eq!(part_id("kinds"), Ok("kinds".into()));
        assert!(part_id("15").is_err());
    }
}
