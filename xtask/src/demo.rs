// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask demo`: the product on a real NCCL, from nothing to a report.
//!
//! Builds, fetches an NCCL wheel, runs a job of two ranks under `ncclscope run` on the CPU stand-in
//! (or on a GPU), and writes a Perfetto trace beside the recordings.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::nccl::Release;
use crate::{Outcome, Usage, build, process};

/// The release that the demo uses unless told otherwise: the newest with API v5.
const RELEASE: &str = "2.28.9";

/// What the ranks do: counts are floats.
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

struct Options {
    folder: PathBuf,
    given: bool,
    version: String,
    gpu: bool,
}

fn parse(args: &[String]) -> Result<Options, Usage> {
    let mut options =
        Options { folder: "target/demo".into(), given: false, version: RELEASE.into(), gpu: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| Usage(format!("{arg} needs a value")));
        match arg.as_str() {
            "-o" | "--output" => (options.folder, options.given) = (value()?.into(), true),
            "--nccl" => options.version.clone_from(value()?),
            "--gpu" => options.gpu = true,
            _ => return Err(Usage(format!("demo: unknown argument `{arg}`"))),
        }
    }
    Ok(options)
}

/// Runs the task.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = parse(args)?;
    prepare(&options)?;
    let release = Release::new(&options.version, 12)?;
    let tools = build::products(build::Profile::Release)?;
    let nccl = release.fetch()?;
    let ncclscope = tools.join("ncclscope");
    let folder = options.folder.as_os_str();

    let mut command = Command::new(&ncclscope);
    command.arg("run").arg("-o").arg(folder).arg("--").arg(tools.join("job"));
    command.arg("--nccl").arg(&nccl);
    if options.gpu {
        command.arg("--cuda").arg(libcudart()?);
    }
    let status = process::status(command.args(STEPS))?;
    if !status.success() {
        return Ok(process::exit_code(status));
    }
    let trace = options.folder.join("trace.pftrace");
    let mut export = Command::new(&ncclscope);
    export.arg("export").arg(folder).args(["--to", "pftrace", "-o"]).arg(&trace);
    process::check(&mut export)?;
    println!("\nPerfetto trace (open it at ui.perfetto.dev): {}", trace.display());
    println!("again: {} report {}", ncclscope.display(), options.folder.display());
    Ok(ExitCode::SUCCESS)
}

/// The demo's own folder is emptied; one that the user names must be empty, so that nothing of
/// theirs is lost or mixed in.
fn prepare(options: &Options) -> Outcome<()> {
    let folder = &options.folder;
    let used = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if used && options.given {
        let text = format!("{} is not empty: name another folder", folder.display());
        return Err(text.into());
    }
    if used {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// The real CUDA runtime: where NVIDIA's wheels and its toolkit put it.
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
