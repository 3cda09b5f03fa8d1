// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask gpu-kit`: packs what a bare x86-64 machine with a GPU needs to measure the plugin,
//! and `cargo xtask event-costs`, which uses the same programs on the CPU stand-in.
//!
//! The kit is a folder, and the same as a tar archive: programs and the plugin without debug
//! information, and `scripts/gpu-check`, which runs everything (docs/gpu.md). NCCL and the CUDA
//! runtime are searched on the machine on which it runs. With `--dry-run` the packed kit is
//! unpacked elsewhere and run on the stand-in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

use crate::nccl::{self, Release};
use crate::outcome::Outcome;
use crate::{build, process};

/// Files of the target folder that are part of the kit.
const FILES: &[&str] = &[
    "gpu-kit",
    "ncclscope",
    "job",
    "rank",
    "libnccl_profiler_ncclscope.so",
    // For the dry run; beside `job`, so that `job` finds it.
    "libcpu_cuda.so",
];
const SCRIPT: &str = "scripts/gpu-check";
/// The instructions.
const PAGE: &str = "docs/gpu.md";
const FOLDER: &str = "target/gpu-kit";
const ARCHIVE: &str = "target/gpu-kit.tar.gz";
/// Maximum size of the kit: at most 64 MiB can be sent to a lent machine, including the rest of the
/// tree.
const LIMIT_MIB: u64 = 60;
/// The release for the dry run: the newest, whose kernel events begin at once.
const DRY_RUN: &str = "2.32.3";
/// The releases of the table in docs/env.md: each one that changed the cost of events.
const RELEASES: &[&str] =
    &["2.23.4", "2.26.5", "2.27.7", "2.28.9", "2.29.7", "2.30.3", "2.30.7", "2.31.2", "2.32.3"];

/// What `cargo xtask gpu-kit` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Unpack the kit elsewhere, and run it on the stand-in
    #[arg(long)]
    dry_run: bool,
    /// Only what shows that the kit works
    #[arg(long, requires = "dry_run")]
    small: bool,
    /// NCCL's version for the dry run
    #[arg(long, value_name = "VERSION", default_value = DRY_RUN, value_parser = nccl::version)]
    nccl: String,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let release = Release::new(&options.nccl, 12)?;
    pack(&build::products(build::Profile::Dist)?)?;
    if options.dry_run { dry_run(options, &release.fetch()?) } else { Ok(ExitCode::SUCCESS) }
}

/// Makes the folder and the archive.
fn pack(built: &Path) -> Outcome<()> {
    let folder = Path::new(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for file in FILES {
        let to = folder.join(file);
        process::check(Command::new("strip").arg("-o").arg(&to).arg(built.join(file)))?;
        println!("{file}: {} KiB, needs GLIBC {}", to.metadata()?.len() >> 10, glibc(&to)?);
    }
    fs::copy(PAGE, folder.join("README.md"))?;
    let script = folder.join("gpu-check");
    fs::copy(SCRIPT, &script)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    process::check(&mut process::command(&["tar", "-czf", ARCHIVE, "-C", "target", "gpu-kit"]))?;
    let sizes = [size(folder)?, Path::new(ARCHIVE).metadata()?.len()];
    let [folder_mib, archive_mib] = sizes.map(|bytes| bytes.div_ceil(1 << 20));
    println!("{FOLDER}: {folder_mib} MiB; {ARCHIVE}: {archive_mib} MiB");
    if folder_mib > LIMIT_MIB {
        return Err(format!("the kit must not be larger than {LIMIT_MIB} MiB").into());
    }
    Ok(())
}

fn size(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// The newest glibc version that a file requires.
fn glibc(file: &Path) -> Outcome<String> {
    let symbols = process::stdout(Command::new("objdump").arg("-T").arg(file))?;
    Ok(newest(&symbols).map_or_else(|| "?".into(), |(major, minor)| format!("{major}.{minor}")))
}

fn newest(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let mut numbers = rest[..end].split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

/// Unpacks the kit outside of the project, and runs it like a user.
fn dry_run(options: &Options, library: &Path) -> Outcome {
    let elsewhere = std::env::temp_dir().join(format!("gpu-kit-{}", std::process::id()));
    fs::create_dir_all(&elsewhere)?;
    let unpacked =
        process::check(Command::new("tar").args(["-xzf", ARCHIVE, "-C"]).arg(&elsewhere));
    let out = PathBuf::from(FOLDER).with_file_name("gpu-kit-run");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let mut command = Command::new(elsewhere.join("gpu-kit/gpu-check"));
    command.arg("--stand-in").arg("--nccl").arg(library).arg("--out").arg(&out);
    command.args(options.small.then_some("--small"));
    let status = unpacked.and_then(|()| process::status(&mut command));
    fs::remove_dir_all(&elsewhere)?;
    Ok(process::exit_code(status?))
}

/// Counts the work that events cause in NCCL, and prints the table of docs/env.md.
pub(crate) fn event_costs(versions: &[String]) -> Outcome {
    let named: Vec<&str> = versions.iter().map(String::as_str).collect();
    let versions = if named.is_empty() { RELEASES } else { &named };
    let releases = versions.iter().map(|version| Release::new(version, 12));
    let releases = releases.collect::<Result<Vec<_>, _>>()?;
    nccl::fetch_all(&releases)?;
    let libraries = releases.iter().map(Release::library).collect::<Outcome<Vec<_>>>()?;
    let mut command = Command::new(build::products(build::Profile::Release)?.join("gpu-kit"));
    let status = process::status(command.arg("event-costs").args(libraries))?;
    Ok(process::exit_code(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parsed = |words| crate::options::<Options>(words);
        let options = parsed("--dry-run --small --nccl 2.28.9").expect("all are known");
        assert!(options.dry_run && options.small);
        assert_eq!(options.nccl, "2.28.9");
        for wrong in ["--nccl", "--small", "--nonesuch", "x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_newest_version_of_the_c_library_is_found() {
        let symbols =
            "0 DF *UND* 0 (GLIBC_2.2.5) malloc\n0 DF *UND* 0 (GLIBC_2.34) x\n(GLIBC_2.9) y";
        assert_eq!(newest(symbols), Some((2, 34)));
        assert_eq!(newest("none"), None);
    }
}
