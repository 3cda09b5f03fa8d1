// SPDX-License-Identifier: Apache-2.0
//! Finds libnccl, and describes what a release reports to a profiler.

use super::check::Check;
use super::graphs;
use crate::nccl::{LIBRARY, Release};
use ncclscope_control::releases;
use ncclscope_control::table::{CUDA_EVENTS, KERNEL};
use ncclscope_control::value::{CudaEvents, KernelEvents};
use ncclscope_control::variable::environment;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A libnccl and the release that it contains.
pub(super) struct Library {
    path: PathBuf,
    release: io::Result<Option<Release>>,
}

impl Library {
    pub(super) fn release(&self) -> Option<&Release> {
        self.release.as_ref().ok()?.as_ref()
    }
}

/// The given library, or all that are found.
pub(super) fn find(given: Option<&Path>) -> Vec<Library> {
    let paths = given.map_or_else(libraries, |path| BTreeSet::from([path.to_owned()]));
    paths.into_iter().map(|path| Library { release: Release::of(&path), path }).collect()
}

/// One check for each library.
pub(super) fn checks(libraries: &[Library]) -> Vec<Check> {
    if libraries.is_empty() {
        return vec![Check::warn(
            "NCCL",
            format!("no {LIBRARY} in LD_LIBRARY_PATH, Python's packages or the system's folders"),
            "name the one that the job loads with --nccl",
        )];
    }
    libraries.iter().flat_map(check).collect()
}

fn check(library: &Library) -> Vec<Check> {
    let shown = library.path.display();
    let release = match &library.release {
        Ok(Some(release)) => release,
        Ok(None) => {
            let detail = format!("{shown} does not report its version");
            return vec![Check::warn("NCCL", detail, "is it NVIDIA's libnccl.so.2?")];
        }
        Err(error) => {
            let detail = format!("{shown}: {error}");
            return vec![Check::fail("NCCL", detail, "name a readable library with --nccl")];
        }
    };
    let text = &release.text;
    match release.api() {
        None => vec![Check::fail(
            "NCCL",
            format!("{text} at {shown} has no profiler interface"),
            "use NCCL 2.23 or later",
        )],
        Some(api) => {
            let detail = format!("{text} at {shown}: profiler API v{api}");
            let graphs = graphs::check(release.number(), KERNEL.value(&environment));
            let events = kernel_events(api, releases::of_release(release.number()));
            let ras = ras(release.number());
            [Check::ok("NCCL", detail), events].into_iter().chain(graphs).chain(ras).collect()
        }
    }
}

/// What NCCL's RAS does to a profiler, from 2.31 on (docs/ras.md).
fn ras(release: u32) -> Option<Check> {
    let can_set_mask = release >= 23_100 && std::env::var("NCCL_RAS_ENABLE").as_deref() != Ok("0");
    can_set_mask.then(|| {
        let detail = "`ncclras CONTROL PROFILER_MASK none` ends the recording of a whole job until \
                      `all`; ncclscope says when, and keeps `all` from turning kernel events on, \
                      by which NCCL would crash";
        Check::ok("NCCL's RAS", detail)
    })
}

/// The cost of kernel events with a release, and what cannot be seen without them.
fn kernel_events(api: u32, release: &releases::Release) -> Check {
    let name = "kernel events";
    let blind = "without them no duration is the GPU's, and operations within a node show no end";
    let is_off = KERNEL.value(&environment) == KernelEvents::Off;
    let lacks_them = is_off || !release.by_default && api >= 4;
    // KernelLaunch events begin with API v5.
    if lacks_them && api >= 5 && CUDA_EVENTS.value(&environment) != CudaEvents::Off {
        let why = if is_off { "NCCLSCOPE_KERNEL is off" } else { release.reason };
        let instead = "CUDA events time operations within a node and show that they end";
        return Check::ok(name, format!("off: {why}; {instead}"));
    }
    match api {
        _ if is_off => Check::warn(name, format!("NCCLSCOPE_KERNEL is off: {blind}"), "unset it"),
        1 | 2 => Check::warn(name, format!("this release has none: {blind}"), "use NCCL 2.27"),
        3 => Check::warn(
            name,
            "this release gives no GPU time stamps: durations are by the host's clock",
            "use NCCL 2.27 or later",
        ),
        _ if !release.by_default => Check::warn(
            name,
            format!("off by default: {}; {blind}", release.reason),
            "unset NCCLSCOPE_CUDA_EVENTS: CUDA events time kernels instead",
        ),
        _ => Check::ok(name, format!("on, with GPU time stamps: {}", release.reason)),
    }
}

/// All libnccl files in the usual places, without duplicates by links.
fn libraries() -> BTreeSet<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    folders.extend(python_folders());
    let system =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];
    folders.extend(system.map(PathBuf::from));
    let files = folders.into_iter().map(|folder| folder.join(LIBRARY));
    files.filter_map(|file| file.canonicalize().ok()).collect()
}

/// The folders of Python's `nvidia-nccl-*` wheels.
fn python_folders() -> Vec<PathBuf> {
    let script = "import site, sysconfig; \
                  print(*site.getsitepackages(), site.getusersitepackages(), \
                  sysconfig.get_paths()['purelib'], sep='\\n')";
    let python = Command::new("python3").args(["-c", script]).stderr(Stdio::null()).output();
    let text = python.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(|line| Path::new(line).join("nvidia/nccl/lib")).collect()
}
