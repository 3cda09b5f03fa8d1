// SPDX-License-Identifier: Apache-2.0
/*!
The configuration: the values of the variables ([`ncclscope_control::table`]) and what follows from
them in this process. The environment is read once, at the first communicator.

An invalid value is reported in one line, and the default is used.
*/

mod otlp;
mod settle;

use crate::own;
use ncclscope_control::directories::{Placeholders, expand};
use ncclscope_control::quantity::MIB;
use ncclscope_control::reader::{Reader, Settings};
use ncclscope_control::releases::of_release;
use ncclscope_control::table::{self, DIR};
use ncclscope_control::text::beginning;
use ncclscope_control::value::{CudaEvents, KernelEvents, Mode, SeriesLabels, SocketDirectory};
use ncclscope_control::variable::{Get, Variable};
use ncclscope_metrics::encode::Labels;
use ncclscope_trace::{EventKind, Vendor};
use std::ffi::OsString;
use std::path::PathBuf;

pub use ncclscope_control::value::HangActions;
pub use otlp::Otlp;

/// The effective configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub(crate) settings: Settings,
    /// `NCCLSCOPE_MODE`; off if there is no room for a recording.
    pub mode: Mode,
    /// `NCCLSCOPE_DIR`, with its placeholders expanded.
    pub dir: PathBuf,
    /// The part of [`Config::dir`] that must belong to this user because it lies in a directory
    /// that all users share; `None` if a variable names the directory.
    pub private: Option<PathBuf>,
    /// `NCCLSCOPE_RING_MB`, in bytes.
    pub ring_bytes: u64,
    /// `NCCLSCOPE_LANES`: where the lanes file goes, if there is one.
    pub lanes: Option<PathBuf>,
    /// Where metrics are sent: `NCCLSCOPE_OTLP` and OpenTelemetry's own variables. `None` if they
    /// are off.
    pub otlp: Option<Otlp>,
}

impl Config {
    /// Reads the configuration. `get` returns a variable's value; `names` are all variables of the
    /// environment. Also returns one line for each variable that was not understood.
    pub fn read(
        get: &dyn Fn(&str) -> Option<OsString>,
        names: &[String],
        host: &str,
        pid: u32,
    ) -> (Config, Vec<String>) {
        let text = |name: &str| get(name)?.into_string().ok();
        let mut reader = Reader::new(&text);
        reader.check_text(names, get);
        let settings = reader.settings();
        let mode = settings.get(&table::MODE);
        let (dir, private) = directory(&mut reader, get);
        let default_ring = if mode == Mode::Trace { 1024 * MIB } else { 64 * MIB };
        let job = job_directory(&text);
        let config = Config {
            mode,
            dir: expand(&dir, Placeholders { host, pid, job: &job }),
            private,
            ring_bytes: settings.get(&table::RING_MB).unwrap_or(default_ring),
            lanes: settings.get(&table::LANES),
            otlp: Otlp::read(&mut reader),
            settings,
        };
        (config, reader.into_lines(names))
    }

    /// The value of a variable of the plugin.
    #[must_use]
    pub fn get<T>(&self, variable: &Variable<T>) -> T {
        self.settings.get(variable)
    }

    /// The directory of the control socket, if there is one.
    pub(crate) fn socket_directory(&self) -> Option<PathBuf> {
        match self.get(&table::CONTROL) {
            SocketDirectory::OfUser => Some(own::directory()),
            SocketDirectory::At(dir) => Some(dir),
            SocketDirectory::Off => None,
        }
    }

    /// The optional attributes of metrics.
    pub(crate) fn labels(&self) -> Labels {
        let SeriesLabels { rank, peer, channel } = self.get(&table::LABELS);
        Labels { rank, peer, channel }
    }

    /// The activation mask to request from NCCL.
    #[must_use]
    pub fn mask(&self, vendor: Vendor, nccl_version: u32) -> u32 {
        let bit = EventKind::KernelCh.bit();
        let has_launches = self.get(&table::CUDA_EVENTS) == CudaEvents::On;
        let launches = if has_launches { EventKind::KernelLaunch.bit() } else { 0 };
        // In RCCL this bit is ProxyDiag: an event for each step of its proxy's own diagnosis.
        let others = match vendor {
            Vendor::Nvidia => 0,
            Vendor::Amd => EventKind::KernelPhase.bit(),
        };
        let events = (self.get(&table::EVENTS) | launches) & !others;
        match self.get(&table::KERNEL) {
            KernelEvents::On => events | bit,
            KernelEvents::Off => events & !bit,
            KernelEvents::Auto if of_release(vendor, nccl_version).by_default => events,
            KernelEvents::Auto => events & !bit,
        }
    }
}

/// Maximum bytes of a job's id in a file name.
const JOB_BYTES: usize = 100;

/// The directory of recordings, with its placeholders still in it, and the part of it that must
/// belong to this user.
fn directory(
    reader: &mut Reader<'_>,
    get: &dyn Fn(&str) -> Option<OsString>,
) -> (OsString, Option<PathBuf>) {
    if let Some(dir) = get(DIR.name).filter(|dir| dir.to_str().is_none()) {
        return (dir, None);
    }
    if let Some(dir) = reader.value(&DIR).flatten() {
        return (dir.into(), None);
    }
    if let Some(dir) = get("SLURM_TMPDIR").filter(|dir| !dir.is_empty()) {
        return (dir, None);
    }
    let private = own::directory();
    (private.join("%j").into_os_string(), Some(private))
}

/// The job's id in the name of a directory: that of the user's variable, of Slurm or of torchrun,
/// unless it is `none`. All steps of a Slurm job share the directory.
fn job(get: Get<'_>) -> Option<String> {
    let names = [table::JOB.name, "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"];
    names.iter().find_map(|name| get(name).filter(|job| !matches!(job.as_str(), "" | "none")))
}

/// The job's name in a directory: its id, else the user's name.
fn job_directory(get: Get<'_>) -> String {
    let name = job(get).or_else(|| get("USER")).unwrap_or_default().replace('/', "_");
    // A file name has at most 255 bytes, and the directory's name may contain the job's name twice.
    let name = beginning(&name, JOB_BYTES);
    if matches!(name, "" | "." | "..") { "job".into() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::kind::DEFAULT_EVENTS;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    fn read(vars: &[(&str, &str)]) -> (Config, Vec<String>) {
        let vars: Vec<(String, String)> =
            vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let names: Vec<String> = vars.iter().map(|(n, _)| n.clone()).collect();
        let get = |name: &str| vars.iter().find(|(n, _)| n == name).map(|(_, v)| v.into());
        Config::read(&get, &names, "node1", 42)
    }

    #[test]
    fn defaults() {
        let (config, lines) = read(&[]);
        assert_eq!(lines, [] as [String; 0]);
        assert_eq!((config.mode, config.ring_bytes), (Mode::Flight, 64 << 20));
        assert_eq!(config.dir, own::directory().join("job"));
        assert_eq!(config.private, Some(own::directory()));
        let mask = |version| config.mask(Vendor::Nvidia, version);
        assert_eq!(mask(22809), 0x7fdf);
        for version in [22907, 23003, 23007, 23102, 23203] {
            assert_eq!(mask(version), 0x7f9f, "{version} goes without KernelCh");
        }
    }

    #[test]
    fn rccl_is_not_asked_for_its_proxys_diagnosis() {
        let (config, _) = read(&[("NCCLSCOPE_EVENTS", "all")]);
        assert_eq!(config.mask(Vendor::Nvidia, 22_809), 0xffff);
        assert_eq!(config.mask(Vendor::Amd, 22_809), 0x7fff);
        assert_eq!(config.mask(Vendor::Amd, 23_004), 0x7fbf, "nor for KernelCh");
    }

    #[test]
    fn every_bad_value_is_one_line_and_the_default_holds() {
        let (config, lines) = read(&[
            ("NCCLSCOPE_MODE", "fast"),
            ("NCCLSCOPE_EVENTS", "Coll,Kernels"),
            ("NCCLSCOPE_START", "soon"),
            ("NCCLSCOPE_CONTROL", "here"),
            ("NCCLSCOPE_SIGNAL", "dump:USR1,toggle:USR1"),
            ("NCCLSCOPE_KERNEL", "maybe"),
            ("NCCLSCOPE_CUDA_EVENTS", "some"),
            ("NCCLSCOPE_RING_MB", "lots"),
            ("NCCLSCOPE_LANES", "shm"),
            ("NCCLSCOPE_CLOCK", "sundial"),
            ("NCCLSCOPE_LOG", "paper"),
            ("NCCLSCOPE_LABELS", "colour"),
            ("NCCLSCOPE_HANG_SEC", "late"),
            ("NCCLSCOPE_HANG_ACTION", "shout"),
            ("NCCLSCOPE_MOOD", "good"),
        ]);
        assert_eq!(config, read(&[]).0);
        assert_eq!(lines.len(), 15);
        assert_eq!(
            lines[0],
            "NCCLSCOPE_MODE=fast: expected off, or flight, trace, metrics, hang (several with \
             commas); the default is used"
        );
        assert!(lines[14].contains("unknown variable NCCLSCOPE_MOOD"));
    }

    #[test]
    fn directories_expand() {
        let (config, _) = read(&[("NCCLSCOPE_DIR", "/x/%j/%h-%p-%%-%q"), ("SLURM_JOB_ID", "7")]);
        assert_eq!(config.dir, PathBuf::from("/x/7/node1-42-%-%q"));
        assert_eq!(config.private, None);
        let (config, _) = read(&[("SLURM_TMPDIR", "/scratch")]);
        assert_eq!((config.dir, config.private), (PathBuf::from("/scratch"), None));
    }

    #[test]
    fn users_and_jobs_have_directories_of_their_own() {
        let dir = |vars: &[(&str, &str)]| read(vars).0.dir;
        let own = own::directory();
        // The control sockets are in a directory named by the user id; a job whose id is the same
        // must not use it.
        let uid = crate::sys::peer::user().to_string();
        assert_eq!(dir(&[("SLURM_JOB_ID", &uid)]), own.join(&uid));
        assert_ne!(dir(&[("SLURM_JOB_ID", &uid)]), own);
        // The id that torchrun sets if it was given none.
        let user = ("USER", "ann");
        assert_eq!(dir(&[("TORCHELASTIC_RUN_ID", "none"), user]), own.join("ann"));
        assert_eq!(dir(&[("TORCHELASTIC_RUN_ID", "t1"), user]), own.join("t1"));
        for odd in ["..", ".", ""] {
            assert_eq!(dir(&[("SLURM_JOB_ID", odd)]), own.join("job"));
        }
        assert_eq!(dir(&[("SLURM_JOB_ID", "a/b")]), own.join("a_b"));
        let long = "j".repeat(99) + "öö";
        assert_eq!(dir(&[("TORCHELASTIC_RUN_ID", &long)]), own.join("j".repeat(99)));
    }

    #[test]
    fn a_directory_may_have_any_bytes_and_what_else_is_no_text_is_told() {
        let odd = OsString::from_vec(b"/x/o\xffut-%p".to_vec());
        let names: Vec<String> =
            ["NCCLSCOPE_DIR", "NCCLSCOPE_MODE", "NCCL_PROFILE_EVENT_MASK", "OTHER"]
                .map(str::to_owned)
                .into();
        let get = |name: &str| names.iter().any(|n| n == name).then(|| odd.clone());
        let (config, lines) = Config::read(&get, &names, "node1", 42);
        assert_eq!(config.dir.as_os_str().as_bytes(), b"/x/o\xffut-42");
        assert_eq!((config.mode, config.get(&table::EVENTS)), (Mode::Flight, DEFAULT_EVENTS));
        assert_eq!(
            lines,
            [
                "NCCLSCOPE_MODE: its value is not UTF-8; the default is used",
                "NCCL_PROFILE_EVENT_MASK: its value is not UTF-8; the default is used",
            ]
        );
    }

    #[test]
    fn one_line_says_which_aliases_were_taken() {
        let (config, lines) = read(&[
            ("NCCL_INSPECTOR_ENABLE", "1"),
            ("NCCL_INSPECTOR_DUMP_DIR", "/i"),
            ("NCCL_INSPECTOR_DUMP_VERBOSE", "1"),
            ("NCCL_PROFILE_EVENT_MASK", "6"),
            ("NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT", "http://c:4318"),
            ("NCCLSCOPE_EVENTS", "Coll"),
        ]);
        assert_eq!(config.get(&table::EVENTS), 2, "ours comes first");
        assert_eq!(config.dir, PathBuf::from("/i"));
        assert_eq!(config.otlp.unwrap().url, "http://c:4318/v1/metrics");
        assert_eq!(
            lines,
            [
                "variables of other profilers are used: NCCL_INSPECTOR_ENABLE as \
                 NCCLSCOPE_MODE, NCCL_INSPECTOR_DUMP_DIR as NCCLSCOPE_DIR, \
                 NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT as NCCLSCOPE_OTLP",
                "variables of other profilers are ignored: NCCL_INSPECTOR_DUMP_VERBOSE \
                 (docs/env.md)",
            ]
        );
        assert_eq!(read(&[("NCCL_PROFILER_OTEL_ENABLE", "0")]).0.mode, Mode::Off);
    }

    #[test]
    fn an_alias_whose_value_is_refused_was_not_taken() {
        for (name, value) in [
            ("NCCL_PROFILE_EVENT_MASK", "all of them"),
            ("NCCL_INSPECTOR_ENABLE", "yes"),
            ("NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT", "https://c"),
        ] {
            let (_, lines) = read(&[(name, value)]);
            assert!(lines.len() == 1 && !lines[0].contains("are used"), "{lines:?}");
        }
    }

    #[test]
    fn more_is_kept_of_a_trace() {
        assert_eq!(read(&[("NCCLSCOPE_MODE", "trace")]).0.ring_bytes, 1 << 30);
        let vars = [("NCCLSCOPE_MODE", "trace"), ("NCCLSCOPE_RING_MB", "2")];
        assert_eq!(read(&vars).0.ring_bytes, 2 << 20);
    }
}
