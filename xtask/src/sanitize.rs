// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask sanitize thread|realtime`: runs the plugin's code, driven by `fake-nccl`, under a
//! sanitizer of rustc.
//!
//! `thread` finds data races. `realtime` finds callbacks that allocate, lock or wait; `fake-nccl`
//! tells it where callbacks begin and end. (AddressSanitizer needs no task: the tests run under it
//! unchanged.) Each sanitizer must first find a fault that a script plants.
//!
//! Only stable rustc is available, so that its standard library is not instrumented. The files
//! `testing/fake-nccl/sanitizers/*.supp` list the reports that are therefore suppressed.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::outcome::Outcome;
use crate::process;

#[derive(Debug)]
pub(crate) struct Sanitizer {
    name: &'static str,
    /// Flags of rustc. Optimised code takes longer to build than it saves in the plays.
    flags: &'static str,
    /// Options for all processes, besides the suppressions.
    options: (&'static str, &'static str),
    /// The script with the fault that must be found.
    planted: &'static str,
    /// Text in the sanitizer's report of that fault.
    says: &'static str,
}

const SANITIZERS: &[Sanitizer] = &[
    Sanitizer {
        name: "thread",
        flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic \
                --cfg tsan -Copt-level=0",
        options: ("TSAN_OPTIONS", "halt_on_error=1:exitcode=66"),
        planted: "races",
        says: "ThreadSanitizer: data race",
    },
    Sanitizer {
        name: "realtime",
        flags: "-Zsanitizer=realtime -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic \
                -Copt-level=0",
        options: ("RTSAN_OPTIONS", "halt_on_error=1:exitcode=66"),
        planted: "allocates",
        says: "RealtimeSanitizer: unsafe-library-call",
    },
];

/// What is played: a script, and options of `fake-nccl`.
const PLAYS: &[(&str, &[&str])] = &[
    ("allreduce", &["--ops", "200", "--threads", "4"]),
    ("sendrecv", &["--ops", "50"]),
    ("chaos", &["--ops", "2000", "--threads", "4"]),
    ("toggles", &["--ops", "200"]),
    ("twice", &["--ops", "20", "--threads", "2"]),
    ("wild", &["--ops", "20", "--threads", "2"]),
    ("unmatched", &["--ops", "20000"]),
    ("threads", &["--ops", "200", "--threads", "4"]),
    ("inits", &["--ops", "2", "--threads", "16"]),
    ("burst", &["--ops", "20000", "--threads", "2"]),
    ("allreduce", &["--ops", "20", "--end", "comms"]),
    ("allreduce", &["--ops", "20", "--end", "reload"]),
];

/// Maximum number of attempts to find the planted fault.
const PLANTED_TRIES: usize = 5;

/// The API versions whose code paths differ most.
const VERSIONS: [&str; 3] = ["1", "4", "7"];

pub(crate) fn find(name: &str) -> Result<&'static Sanitizer, String> {
    let found = SANITIZERS.iter().find(|sanitizer| sanitizer.name == name);
    found.ok_or_else(|| "expected thread or realtime".into())
}

/// Builds with the sanitizer, and plays everything unless `no_run`.
pub(crate) fn run(sanitizer: &Sanitizer, no_run: bool) -> Outcome {
    let target = format!("target/sanitize-{}", sanitizer.name);
    build(sanitizer, &target)?;
    if no_run {
        return Ok(ExitCode::SUCCESS);
    }
    find_planted(sanitizer, &target)?;
    for (script, options) in PLAYS {
        for version in VERSIONS {
            let (well, text) = play(sanitizer, &target, version, script, options)?;
            println!("v{version} {script:<10} {:<24} {}", options.join(" "), word(well));
            if !well {
                return Err(format!("v{version} {script} failed\n{text}").into());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The planted fault must be found. A race of two threads does not occur each time: if one thread
/// ended before the other began, ThreadSanitizer may have forgotten its writes.
fn find_planted(sanitizer: &Sanitizer, target: &str) -> Outcome<()> {
    let mut said = String::new();
    for _ in 0..PLANTED_TRIES {
        let (well, text) = play(sanitizer, target, "6", sanitizer.planted, &["--ops", "100"])?;
        if !well && text.contains(sanitizer.says) {
            return Ok(());
        }
        said = text;
    }
    Err(format!("the fault in `{}` is not found\n{said}", sanitizer.planted).into())
}

fn word(well: bool) -> &'static str {
    if well { "ok" } else { "FAILED" }
}

fn build(sanitizer: &Sanitizer, target: &str) -> Outcome<()> {
    let words = ["cargo", "build", "-p", "fake-nccl", "-p", "ncclscope-plugin", "--target-dir"];
    let mut cargo = process::command(&words);
    cargo.arg(target).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", sanitizer.flags);
    process::check(&mut cargo)
}

/// Plays one script. Returns whether it succeeded, and its output.
fn play(
    sanitizer: &Sanitizer,
    target: &str,
    version: &str,
    script: &str,
    options: &[&str],
) -> Outcome<(bool, String)> {
    let folder = Path::new(target).join("debug");
    let run = Path::new(target).join("run");
    // Fails the first time, when nothing is there.
    let _ = std::fs::remove_dir_all(&run);
    let (variable, value) = sanitizer.options;
    let supp =
        Path::new("testing/fake-nccl/sanitizers").join(sanitizer.name).with_extension("supp");
    let mut command = Command::new(folder.join("fake-nccl"));
    command.arg(folder.join("libnccl_profiler_ncclscope.so")).args([version, script]).args(options);
    command.env(variable, format!("{value}:suppressions={}", supp.display()));
    command.env("NCCLSCOPE_DIR", run).env("NCCLSCOPE_LOG", "stderr").stdin(Stdio::null());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let well = output.status.success() && said.ends_with("survived\n");
    Ok((well, format!("{said}{}\n{}", String::from_utf8_lossy(&output.stderr), output.status)))
}
