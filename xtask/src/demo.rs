// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask demo`: the product on a real NCCL, from the build to a report.
//!
//! Builds, fetches an NCCL wheel, runs a job of two ranks under `ncclscope run` on the CPU stand-in
//! (or on a GPU), and writes a Perfetto trace beside the recordings.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

use crate::nccl::{self, Release};
use crate::outcome::Outcome;
use crate::{build, process};

/// The default release: the newest with API v5.
const RELEASE: &str = "2.28.9";

/// The steps of the ranks; counts are numbers of floats.
const STEPS: &[&str] = &[
    "allreduce:256",
    "allreduce:16384",
    "allreduce:262144",
    "allreduce:1048576",
    "allgather:262144",
    "reducescatter:262144",
    "broadcast:262144",
    "sendrecv:262144",
    "group:4x65536",
];

/// The demo's default folder.
const FOLDER: &str = "target/demo";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// An empty folder for the recordings and the trace [default: target/demo, emptied first]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// NCCL's version
    #[arg(long, value_name = "VERSION", default_value = RELEASE, value_parser = nccl::version)]
    nccl: String,
    /// Use the GPU, not the stand-in
    #[arg(long)]
    gpu: bool,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let folder = prepare(options)?;
    let release = Release::new(&options.nccl, 12)?;
    let tools = build::products(build::Profile::Release)?;
    let nccl = release.fetch()?;
    let ncclscope = tools.join("ncclscope");

    let mut command = Command::new(&ncclscope);
    command.arg("run").arg("-o").arg(&folder).arg("--").arg(tools.join("job"));
    command.arg("--nccl").arg(&nccl);
    if options.gpu {
        command.arg("--cuda").arg(libcudart()?);
    }
    let status = process::status(command.args(STEPS))?;
    if !status.success() {
        return Ok(process::exit_code(status));
    }
    let trace = folder.join("trace.pftrace");
    let mut export = Command::new(&ncclscope);
    export.arg("export").arg(&folder).args(["--to", "pftrace", "-o"]).arg(&trace);
    process::check(&mut export)?;
    println!("\nPerfetto trace (open it at ui.perfetto.dev): {}", trace.display());
    println!("again: {} report {}", ncclscope.display(), folder.display());
    Ok(ExitCode::SUCCESS)
}

/// Prepares the folder. The demo's own one is emptied; one that the user names must be empty, so
/// that no files are lost or mixed in.
fn prepare(options: &Options) -> Outcome<PathBuf> {
    let folder = options.output.clone().unwrap_or_else(|| FOLDER.into());
    let used = std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some());
    if used && options.output.is_some() {
        let text = format!("{} is not empty: name another folder", folder.display());
        return Err(text.into());
    }
    if used {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(folder)
}

/// The real CUDA runtime, searched where NVIDIA's wheels and toolkit install it.
fn libcudart() -> Outcome<PathBuf> {
    const LOOK: &str = "
import glob, site, sys
folders = site.getsitepackages() + [site.getusersitepackages()] + sys.path
found = [f for folder in folders for f in glob.glob(folder + '/nvidia/*/lib/libcudart.so.1*')]
print((found + glob.glob('/usr/local/cuda*/lib64/libcudart.so.1*') + [''])[0])
";
    let path = process::stdout(process::command(&["python3", "-c", LOOK]).env("LC_ALL", "C"))?;
    match path.trim() {
        "" => Err("--gpu needs libcudart.so.12 or .13 (the CUDA toolkit, or a PyPI wheel of it); \
                   none was found"
            .into()),
        path => Ok(Path::new(path).to_owned()),
    }
}
