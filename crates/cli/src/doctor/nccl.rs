// SPDX-License-Identifier: Apache-2.0
//! Finds libnccl and librccl, and describes what a release reports to a profiler.

use super::check::Check;
use super::graphs;
use ncclscope_control::releases;
use ncclscope_control::table::{CUDA_EVENTS, KERNEL};
use ncclscope_control::value::{CudaEvents, KernelEvents};
use ncclscope_control::variable::environment;
use ncclscope_findings::{KnownFault, known_faults};
use ncclscope_node::nccl::{LIBRARIES, Release};
use ncclscope_trace::Vendor;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A libnccl or librccl, and the release that it contains.
pub(super) struct Library {
    path: PathBuf,
    /// The user named it: it must be one.
    is_named: bool,
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
    let is_named = given.is_some();
    let library = |path: PathBuf| Library { release: Release::of(&path), is_named, path };
    paths.into_iter().map(library).collect()
}

/// The first release that this version was not tested with.
const UNKNOWN: u32 = 23_300;

/// One check for each library.
pub(super) fn checks(libraries: &[Library]) -> Vec<Check> {
    if libraries.is_empty() {
        return vec![Check::warn(
            "NCCL",
            "no libnccl.so.2 or librccl.so.1 in LD_LIBRARY_PATH, Python's packages or the system's \
             folders",
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
            let advice = "is it NVIDIA's libnccl.so.2, or AMD's librccl.so.1?";
            return vec![match library.is_named {
                true => Check::fail("NCCL", detail, advice),
                false => Check::warn("NCCL", detail, advice),
            }];
        }
        Err(error) => {
            let detail = format!("{shown}: {error}");
            return vec![Check::fail("NCCL", detail, "name a readable library with --nccl")];
        }
    };
    let text = match release.vendor {
        Vendor::Nvidia => release.text.clone(),
        Vendor::Amd => release.name(),
    };
    match release.api() {
        None => vec![Check::fail(
            "NCCL",
            format!("{text} at {shown} has no profiler interface"),
            format!("use {} 2.23 or later", release.vendor.library()),
        )],
        Some(api) => {
            let detail = format!("{text} at {shown}: profiler API v{api}");
            let row = releases::of_release(release.vendor, release.number());
            let graphs = graphs::check(row, KERNEL.value(&environment));
            let (events, ras) = match release.vendor {
                Vendor::Nvidia => (kernel_events(api, row), ras(release.number())),
                Vendor::Amd => (kernel_events_of_rccl(row), None),
            };
            let is_newer = release.vendor == Vendor::Nvidia && release.number() >= UNKNOWN;
            let nccl = if is_newer {
                let detail = format!("{detail}, as far as this ncclscope knows");
                Check::warn("NCCL", detail, "it is newer: look for a newer ncclscope")
            } else {
                Check::ok("NCCL", detail)
            };
            let checks = [nccl, events].into_iter().chain(graphs);
            checks.chain(ras).chain(faults(release)).collect()
        }
    }
}

/// The known faults of a release: a warning for each that needs nothing else than this machine.
fn faults(release: &Release) -> Vec<Check> {
    if release.vendor == Vendor::Amd {
        return Vec::new();
    }
    let name = "known faults";
    let is_arm = cfg!(target_arch = "aarch64");
    let number = release.text.split(['+', '-']).next().unwrap_or_default();
    let all: Vec<_> = known_faults(release.number(), is_arm).collect();
    let (sure, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.needs.is_empty());
    let warn = |fault: &KnownFault| Check::warn(name, fault.sentence(number), fault.workaround);
    let note = |fault: &KnownFault| Check::ok(name, fault.sentence(number));
    sure.into_iter().map(warn).chain(others.into_iter().map(note)).collect()
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

/// What is lost without kernel events.
const BLIND: &str =
    "without them no duration is the GPU's, and operations within a node show no end";

/// Kernel events of a release of RCCL, with which no CUDA events replace them.
fn kernel_events_of_rccl(row: &releases::Release) -> Check {
    let is_on = match KERNEL.value(&environment) {
        KernelEvents::On => true,
        KernelEvents::Off => false,
        KernelEvents::Auto => row.by_default,
    };
    let name = "kernel events";
    if is_on {
        let detail = format!("on: {}; HIP tells the unit of their times", row.reason);
        return Check::ok(name, detail);
    }
    if row.by_default {
        return Check::warn(name, format!("NCCLSCOPE_KERNEL is off: {BLIND}"), "unset it");
    }
    Check::ok(name, format!("off: {}; {BLIND} (docs/rccl.md)", row.reason))
}

/// The cost of kernel events with a release of NCCL, and what cannot be seen without them.
fn kernel_events(api: u32, release: &releases::Release) -> Check {
    let name = "kernel events";
    let is_off = KERNEL.value(&environment) == KernelEvents::Off;
    let lacks_them = is_off || !release.by_default && api >= 4;
    // KernelLaunch events begin with API v5.
    if lacks_them && api >= 5 && CUDA_EVENTS.value(&environment) != CudaEvents::Off {
        let why = if is_off { "NCCLSCOPE_KERNEL is off" } else { release.reason };
        let instead = "CUDA events time operations within a node and show that they end";
        return Check::ok(name, format!("off: {why}; {instead}"));
    }
    match api {
        _ if is_off => Check::warn(name, format!("NCCLSCOPE_KERNEL is off: {BLIND}"), "unset it"),
        1 | 2 => Check::warn(name, format!("this release has none: {BLIND}"), "use NCCL 2.27"),
        3 => Check::warn(
            name,
            "this release gives no GPU time stamps: durations are by the host's clock",
            "use NCCL 2.27 or later",
        ),
        _ if !release.by_default => Check::warn(
            name,
            format!("off by default: {}; {BLIND}", release.reason),
            "unset NCCLSCOPE_CUDA_EVENTS: CUDA events time kernels instead",
        ),
        _ => Check::ok(name, format!("on, with GPU time stamps: {}", release.reason)),
    }
}

/// All libnccl and librccl files in the usual places, without duplicates by links.
fn libraries() -> BTreeSet<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    folders.extend(python_folders());
    let system = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/opt/rocm/lib",
    ];
    folders.extend(system.map(PathBuf::from));
    let files = folders.iter().flat_map(|folder| LIBRARIES.map(|name| folder.join(name)));
    files.filter_map(|file| file.canonicalize().ok()).collect()
}

/// The folders of Python's `nvidia-nccl-*` wheels, and of PyTorch's libraries, with AMD's RCCL.
///
/// Python is isolated and starts in `/`, because the current directory may be of someone else: with
/// `-c` alone it imports from there, and a relative element of `PATH` finds programs there.
fn python_folders() -> Vec<PathBuf> {
    let script = "import site, sysconfig; \
                  print(*site.getsitepackages(), site.getusersitepackages(), \
                  sysconfig.get_paths()['purelib'], sep='\\n')";
    let mut python = Command::new("python3");
    python.args(["-I", "-c", script]).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
    let python = python.output();
    let text = python.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let below = ["nvidia/nccl/lib", "torch/lib"];
    text.lines().flat_map(|line| below.map(|folder| Path::new(line).join(folder))).collect()
}
