// SPDX-License-Identifier: Apache-2.0
//! The neutral driver: compiled here, run on one plugin and one load at a time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::loads::{Also, Load, Plugin, Program, Subject};
use super::observe;
use crate::outcome::Outcome;
use crate::process;

/// Variable with the folder of the driver's sources, if that is not beside the checkout.
const VARIABLE: &str = "NCCLSCOPE_BENCH_DIR";
const BESIDE: &str = "../shared/bench";
/// A plugin that calls ours while it is switched off, and a plugin to compare that with.
const SHUT: &str = "xtask/src/bench/shut.c";
/// A small driver of our own, for what the neutral one does not do.
const POLLUTION: &str = "xtask/src/bench/pollution.c";
/// The floors' `MODE`s that loads use.
const FLOORS: std::ops::RangeInclusive<u8> = 0..=3;

/// The compiled driver and floors, and the folder of our own plugin.
#[derive(Debug)]
pub(super) struct Driver {
    /// `TARGET/bench`.
    folder: PathBuf,
    /// `TARGET/dist`.
    dist: PathBuf,
}

impl Driver {
    /// Compiles what is needed into `target`/bench.
    ///
    /// # Errors
    /// If the sources are not found, or `gcc` fails, with its message.
    pub(super) fn compile(target: &Path) -> Outcome<Driver> {
        let sources = sources()?;
        let driver = Driver { folder: target.join("bench"), dist: target.join("dist") };
        std::fs::create_dir_all(&driver.folder)?;
        let words = ["gcc", "-O2", "-pthread"];
        let mut gcc = process::command(&words);
        gcc.arg(sources.join("driver.c")).arg("-o").arg(driver.program(Program::Driver));
        process::check(gcc.arg("-ldl"))?;
        let mut gcc = process::command(&["gcc", "-O2", POLLUTION, "-o"]);
        process::check(gcc.arg(driver.program(Program::Pollution)).arg("-ldl"))?;
        let library = ["gcc", "-O2", "-fPIC", "-shared"];
        for mode in FLOORS {
            let mut gcc = process::command(&library);
            gcc.arg(format!("-DMODE={mode}")).arg(sources.join("floor.c"));
            process::check(gcc.arg("-o").arg(driver.plugin(Plugin::Floor(mode))))?;
        }
        for (plugin, define) in [(Plugin::Refusing, "-DREFUSING"), (Plugin::Shut, "-DSHUT")] {
            let mut gcc = process::command(&library);
            gcc.args([define, SHUT, "-o"]).arg(driver.plugin(plugin)).arg("-ldl");
            process::check(&mut gcc)?;
        }
        Ok(driver)
    }

    fn program(&self, program: Program) -> PathBuf {
        self.folder.join(match program {
            Program::Driver => "driver",
            Program::Pollution => "pollution",
        })
    }

    fn plugin(&self, plugin: Plugin) -> PathBuf {
        match plugin {
            Plugin::Floor(mode) => self.folder.join(format!("floor-{mode}.so")),
            Plugin::Ours => self.dist.join("libnccl_profiler_ncclscope.so"),
            Plugin::Refusing => self.folder.join("refusing.so"),
            Plugin::Shut => self.folder.join("shut.so"),
        }
    }

    /// Plays `load` to `subject`. Returns what the driver printed, and under `also` what was
    /// observed besides.
    ///
    /// # Errors
    /// If the driver fails, or a callback returned an error.
    pub(super) fn run(&self, load: &Load, subject: &Subject) -> Outcome<Value> {
        let recordings = self.folder.join("recordings");
        match std::fs::remove_dir_all(&recordings) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::create_dir_all(&recordings)?,
        }
        let child = self.command(load, subject, &recordings).spawn()?;
        let idle = if load.also == Also::Idle { Some(watch(&child)?) } else { None };
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let what = format!("the driver, `{}` on {}", load.name, subject.name);
            return Err(format!("{what}: {}", output.status).into());
        }
        let mut result: Value = serde_json::from_slice(&output.stdout)?;
        if result["errors"] != 0 {
            return Err(format!("{}: a callback returned an error", subject.name).into());
        }
        let is_ours = matches!(subject.plugin, Plugin::Ours);
        match load.also {
            Also::Report if is_ours => {
                result["report"] = observe::report(&self.dist, &recordings)?;
            }
            Also::Bytes if is_ours => result["bytes"] = observe::bytes(&recordings)?.into(),
            Also::Idle => result["idle_ns"] = idle.into(),
            Also::Nothing | Also::Bytes | Also::Report => {}
        }
        Ok(result)
    }

    fn command(&self, load: &Load, subject: &Subject, recordings: &Path) -> Command {
        let mut command = Command::new(self.program(load.program));
        command.arg(self.plugin(subject.plugin)).args(load.options.split(' '));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NCCL") {
                command.env_remove(name);
            }
        }
        command.env("NCCLSCOPE_DIR", recordings).env("NCCLSCOPE_LOG", "off");
        command.env("NCCLSCOPE_BENCH_PLUGIN", self.plugin(Plugin::Ours));
        command.envs(subject.env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// Nanoseconds of processor time that the idle child took.
fn watch(child: &Child) -> Outcome<u64> {
    observe::idle(child.id()).map_err(|error| format!("the idle process: {error}").into())
}

/// The folder of the driver's sources.
fn sources() -> Outcome<PathBuf> {
    let folder = std::env::var_os(VARIABLE).map_or_else(|| BESIDE.into(), PathBuf::from);
    match ["driver.c", "floor.c"].into_iter().find(|file| !folder.join(file).is_file()) {
        None => Ok(folder),
        Some(file) => {
            let folder = folder.display();
            Err(format!("bench: no {file} in {folder}; {VARIABLE} says where the driver is").into())
        }
    }
}
