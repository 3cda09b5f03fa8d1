// SPDX-License-Identifier: Apache-2.0
/*!
The configuration: environment variables, read once, at the first communicator.

A value that cannot be used is told in one line and the default holds.
*/

mod aliases;
mod hang;
mod otlp;
mod reader;
mod settle;
mod table;

use ncclscope_control::quantity;
use ncclscope_control::window::RecordingWindow;
use ncclscope_metrics::encode::Labels;
use ncclscope_operations::kernels;
use ncclscope_trace::EventKind;
use ncclscope_trace::layout::RING_LIMITS;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use crate::drain::beginning;
use crate::own;
use crate::sys::signal::{self, Wish};
pub use hang::HangActions;
pub use ncclscope_trace::kind::DEFAULT_EVENTS;
pub use otlp::Otlp;
use quantity::MIB;
use reader::Reader;
pub use table::{NOT_TAKEN, PREFIX, VARIABLES, Variable, markdown};

/// What is recorded, and how much of it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nothing: the plugin asks NCCL for no event.
    Off,
    /// A bounded recording that always holds the last minutes.
    Flight,
    /// A bounded recording with more room: every step of a run of ordinary length.
    Trace,
}

/// Whether kernel channels are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// As [`kernels::of_release`] says.
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// Where messages of the plugin go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogTo {
    /// NCCL's logger, at level INFO (`NCCL_DEBUG=INFO` shows it).
    Nccl,
    /// Standard error as well.
    Stderr,
    /// Nowhere.
    Off,
}

/// What is recorded before anybody says start or stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstWindow {
    /// What the request says.
    On(RecordingWindow),
    /// Nothing.
    Off,
}

/// The effective configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// `NCCLSCOPE_MODE`.
    pub mode: Mode,
    /// `NCCLSCOPE_DIR`, with its placeholders expanded.
    pub dir: PathBuf,
    /// What of [`Config::dir`] lies in a place that all users share, where nothing was said: it
    /// must be this user's.
    pub private: Option<PathBuf>,
    /// `NCCLSCOPE_JOB`: what the job is called.
    pub job: Option<String>,
    /// `NCCLSCOPE_COMMAND`: the recording has the command line.
    pub command: bool,
    /// `NCCLSCOPE_START`.
    pub start: FirstWindow,
    /// `NCCLSCOPE_SIGNAL`: what signals ask for.
    pub(crate) signals: Vec<(Wish, u8)>,
    /// `NCCLSCOPE_CONTROL`: the directory of the control socket, if there is one.
    pub control: Option<PathBuf>,
    /// `NCCLSCOPE_EVENTS`: NCCL's activation mask, before [`Config::kernel`].
    pub events: u32,
    /// `NCCLSCOPE_KERNEL`.
    pub kernel: Kernel,
    /// `NCCLSCOPE_CUDA_EVENTS`: events around kernel launches.
    pub cuda_events: bool,
    /// `NCCLSCOPE_RING_MB`, in bytes.
    pub ring_bytes: u64,
    /// `NCCLSCOPE_LANES`: where the lanes file goes, if there is one.
    pub lanes: Option<PathBuf>,
    /// `NCCLSCOPE_CLOCK`: the processor's counter may be used.
    pub counter: bool,
    /// `NCCLSCOPE_LOG`.
    pub log: LogTo,
    /// `NCCLSCOPE_OTLP` and what OpenTelemetry's own variables say: where metrics go.
    pub otlp: Option<Otlp>,
    /// `NCCLSCOPE_LABELS`: what tells series apart.
    pub labels: Labels,
    /// `NCCLSCOPE_HANG_SEC`: after how long an operation is stuck; `None`: never.
    pub hang_after: Option<Duration>,
    /// `NCCLSCOPE_HANG_ACTION`: what is done then.
    pub hang_actions: HangActions,
}

const DEFAULT_LANES: &str = "/dev/shm";

impl Config {
    /// Reads the configuration with `get` (a variable's value), which sees all of `names`; returns
    /// it with one line for each variable that was not understood.
    pub fn read(
        get: &dyn Fn(&str) -> Option<OsString>,
        names: &[String],
        host: &str,
        pid: u32,
    ) -> (Config, Vec<String>) {
        let text = |name: &str| get(name)?.into_string().ok();
        let mut reader = Reader::new(&text);
        reader.not_text(names, get);
        let mode = reader.value("MODE", mode, Mode::Flight);
        let (dir, private) = directory(&mut reader, get);
        let default_ring = if mode == Mode::Trace { 1024 * MIB } else { 64 * MIB };
        let config = Config {
            mode,
            dir: expand(&dir, &text, host, pid),
            private,
            job: reader.optional("JOB", |text| Ok(text.to_owned())),
            command: reader.value("COMMAND", switch, true),
            start: reader.value("START", start, FirstWindow::On(RecordingWindow::default())),
            signals: reader.value("SIGNAL", signals, Vec::new()),
            control: reader.value("CONTROL", control, Some(default_control())),
            events: reader.value("EVENTS", events, DEFAULT_EVENTS),
            kernel: reader.value("KERNEL", kernel, Kernel::Auto),
            cuda_events: reader.value("CUDA_EVENTS", switch, false),
            ring_bytes: reader.value("RING_MB", ring, default_ring),
            lanes: reader.value("LANES", lanes, Some(DEFAULT_LANES.into())),
            counter: reader.value("CLOCK", clock, true),
            log: reader.value("LOG", log, LogTo::Stderr),
            labels: reader.value("LABELS", labels, Labels::default()),
            hang_after: reader.value("HANG_SEC", hang::limit, Some(hang::DEFAULT)),
            hang_actions: reader.value("HANG_ACTION", hang::actions, HangActions::default()),
            otlp: Otlp::read(&mut reader),
        };
        reader.unknown(names);
        (config, reader.into_lines(names))
    }

    /// The activation mask to ask NCCL for.
    #[must_use]
    pub fn mask(&self, nccl_version: u32) -> u32 {
        let bit = EventKind::KernelCh.bit();
        let launches = if self.cuda_events { EventKind::KernelLaunch.bit() } else { 0 };
        let events = self.events | launches;
        match self.kernel {
            Kernel::On => events | bit,
            Kernel::Off => events & !bit,
            Kernel::Auto if kernels::of_release(nccl_version).by_default => events,
            Kernel::Auto => events & !bit,
        }
    }
}

const MODES: &str = "off, or flight, trace, metrics, hang (several with commas)";

fn mode(text: &str) -> Result<Mode, &'static str> {
    let mut mode = None;
    for word in text.split(',') {
        mode = Some(match word.trim().to_ascii_lowercase().as_str() {
            "off" if mode.is_none() => Mode::Off,
            // Metrics go wherever an endpoint is set, and the watchdog watches unless it is off,
            // whatever else is recorded.
            "flight" | "metrics" | "hang" if mode != Some(Mode::Off) => {
                mode.unwrap_or(Mode::Flight)
            }
            "trace" if mode != Some(Mode::Off) => Mode::Trace,
            _ => return Err(MODES),
        });
    }
    mode.ok_or(MODES)
}

const OWN_DIR: &str = "NCCLSCOPE_DIR";
/// Bytes of a job's id that go into a name.
const JOB_BYTES: usize = 100;

/// `NCCLSCOPE_DIR`, its placeholders still in it, or where recordings go without; and what of that
/// must be this user's.
fn directory(
    reader: &mut Reader<'_>,
    get: &dyn Fn(&str) -> Option<OsString>,
) -> (OsString, Option<PathBuf>) {
    if let Some(dir) = get(OWN_DIR).filter(|dir| dir.to_str().is_none()) {
        return (dir, None);
    }
    if let Some(dir) = reader.optional("DIR", |text| Ok(text.to_owned())) {
        return (dir.into(), None);
    }
    if let Some(dir) = get("SLURM_TMPDIR").filter(|dir| !dir.is_empty()) {
        return (dir, None);
    }
    let private = own::directory();
    (private.join("%j").into_os_string(), Some(private))
}

/// The job's id: the user's, Slurm's or torchrun's, which says `none` where it has none.
pub(crate) fn job(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let names = ["NCCLSCOPE_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"];
    names.iter().find_map(|name| get(name).filter(|job| !matches!(job.as_str(), "" | "none")))
}

/// `%h` host, `%p` process id, `%j` job id (else the user's name), `%%` a per cent sign.
fn expand(text: &OsStr, get: &dyn Fn(&str) -> Option<String>, host: &str, pid: u32) -> PathBuf {
    let job = || {
        let name = job(get).or_else(|| get("USER")).unwrap_or_default().replace('/', "_");
        // The name of a file has 255 bytes, and there may be two of them in it.
        let name = beginning(&name, JOB_BYTES);
        if matches!(name, "" | "." | "..") { "job".into() } else { name.to_owned() }
    };
    let mut out = Vec::new();
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'h') => out.extend(host.bytes()),
            Some(b'p') => out.extend(pid.to_string().bytes()),
            Some(b'j') => out.extend(job().bytes()),
            Some(b'%') | None => out.push(b'%'),
            Some(other) => out.extend([b'%', other]),
        }
    }
    OsString::from_vec(out).into()
}

fn signals(text: &str) -> Result<Vec<(Wish, u8)>, &'static str> {
    const EXPECTED: &str = "toggle:USR1, dump:USR2 or dump:RTMIN+1, or both with a comma";
    let one = |word: &str| {
        let (wish, name) = word.trim().split_once(':').ok_or(EXPECTED)?;
        let wish = match wish {
            "toggle" => Wish::Toggle,
            "dump" => Wish::Dump,
            _ => return Err(EXPECTED),
        };
        Ok((wish, signal::number(name).ok_or(EXPECTED)?))
    };
    let signals: Vec<_> = text.split(',').map(one).collect::<Result<_, _>>()?;
    match signals.as_slice() {
        [_] => Ok(signals),
        [a, b] if a.0 != b.0 && a.1 != b.1 => Ok(signals),
        _ => Err(EXPECTED),
    }
}

fn control(text: &str) -> Result<Option<PathBuf>, &'static str> {
    match text {
        "off" => Ok(None),
        // The path of a socket has 107 bytes, and the file's name is up to 24 of them.
        path if path.starts_with('/') && path.len() <= 80 => Ok(Some(path.into())),
        _ => Err("an absolute path of a directory, of 80 bytes at most, or off"),
    }
}

/// Where control sockets lie unless told otherwise: one directory a user.
#[must_use]
pub fn default_control() -> PathBuf {
    own::directory()
}

fn start(text: &str) -> Result<FirstWindow, &'static str> {
    const EXPECTED: &str = "on, off, or a window such as steps=10, for=30s, sample=1/16";
    match text {
        "on" => Ok(FirstWindow::On(RecordingWindow::default())),
        "off" => Ok(FirstWindow::Off),
        window => RecordingWindow::parse(window).map(FirstWindow::On).map_err(|_| EXPECTED),
    }
}

fn events(text: &str) -> Result<u32, &'static str> {
    const EXPECTED: &str = "a mask (79, 0x4f) or names such as default,-KernelCh,ProxyCtrl";
    if let Some(number) = quantity::number(text) {
        return u32::try_from(number).ok().filter(|n| n >> 16 == 0).ok_or(EXPECTED);
    }
    // Taking something away starts from the default, naming something from nothing.
    let mut mask = if text.starts_with('-') { DEFAULT_EVENTS } else { 0 };
    for word in text.split(',').map(str::trim) {
        let (take_away, name) = match word.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let bits = match name.to_ascii_lowercase().as_str() {
            "default" => DEFAULT_EVENTS,
            "all" => 0xffff,
            _ => EventKind::from_name(name).ok_or(EXPECTED)?.bit(),
        };
        mask = if take_away { mask & !bits } else { mask | bits };
    }
    Ok(mask)
}

fn kernel(text: &str) -> Result<Kernel, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Kernel::Auto),
        "on" | "1" => Ok(Kernel::On),
        "off" | "0" => Ok(Kernel::Off),
        _ => Err("auto, on or off"),
    }
}

/// On or off.
pub(crate) fn switch(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err("on or off"),
    }
}

fn ring(text: &str) -> Result<u64, &'static str> {
    const EXPECTED: &str = "MiB from 1 to 262144";
    quantity::mebibytes(text, &RING_LIMITS).ok_or(EXPECTED)
}

fn lanes(text: &str) -> Result<Option<PathBuf>, &'static str> {
    match text {
        "off" => Ok(None),
        path if path.starts_with('/') => Ok(Some(path.into())),
        _ => Err("an absolute path of a directory in memory (tmpfs), or off"),
    }
}

fn labels(text: &str) -> Result<Labels, &'static str> {
    let mut labels = Labels::default();
    for word in text.split(',') {
        match word.trim().to_ascii_lowercase().as_str() {
            "rank" => labels.rank = true,
            "peer" => labels.peer = true,
            "channel" => labels.channel = true,
            "none" => {}
            _ => return Err("rank, peer, channel, or several of them; or none"),
        }
    }
    Ok(labels)
}

fn clock(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "auto" | "tsc" => Ok(true),
        "monotonic" => Ok(false),
        _ => Err("auto, tsc or monotonic"),
    }
}

fn log(text: &str) -> Result<LogTo, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "nccl" => Ok(LogTo::Nccl),
        "stderr" => Ok(LogTo::Stderr),
        "off" => Ok(LogTo::Off),
        _ => Err("nccl, stderr or off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(config.mask(22809), 0x7fdf);
        for version in [23003, 23102, 23203] {
            assert_eq!(config.mask(version), 0x7f9f, "{version} goes without KernelCh");
        }
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
             commas); the default holds"
        );
        assert!(lines[14].contains("unknown variable NCCLSCOPE_MOOD"));
    }

    #[test]
    fn the_largest_ring_is_one_that_can_be_read() {
        assert_eq!(ring("262144"), Ok(*RING_LIMITS.end()));
        let refusal = ring("262145").unwrap_err();
        assert!(refusal.ends_with(&(RING_LIMITS.end() / MIB).to_string()), "{refusal}");
    }

    #[test]
    fn events_by_name_and_number() {
        assert_eq!(events("0x4f"), Ok(0x4f));
        assert_eq!(events("79"), Ok(79));
        assert_eq!(events("coll,P2p"), Ok(6));
        assert_eq!(events("-KernelCh"), Ok(DEFAULT_EVENTS & !64));
        assert_eq!(events("default,ProxyCtrl"), Ok(DEFAULT_EVENTS | 32));
        assert_eq!(events("all,-Coll"), Ok(0xfffd));
        assert!(events("65536").is_err());
        assert_eq!(read(&[("NCCL_PROFILE_EVENT_MASK", "6")]).0.events, 6);
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
        // A job whose id is the user's is not where control sockets lie.
        let uid = crate::sys::peer::user().to_string();
        assert_eq!(dir(&[("SLURM_JOB_ID", &uid)]), own.join(&uid));
        assert_ne!(dir(&[("SLURM_JOB_ID", &uid)]), default_control());
        // What torchrun says where it was given no id.
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
        assert_eq!((config.mode, config.events), (Mode::Flight, DEFAULT_EVENTS));
        assert_eq!(
            lines,
            [
                "NCCLSCOPE_MODE: its value is not UTF-8; the default holds",
                "NCCL_PROFILE_EVENT_MASK: its value is not UTF-8; the default holds",
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
        assert_eq!((config.dir, config.events), ("/i".into(), 2), "ours comes first");
        assert_eq!(config.otlp.unwrap().url, "http://c:4318/v1/metrics");
        assert_eq!(
            lines,
            [
                "variables of other profilers were taken: NCCL_INSPECTOR_ENABLE as \
                 NCCLSCOPE_MODE, NCCL_INSPECTOR_DUMP_DIR as NCCLSCOPE_DIR, \
                 NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT as NCCLSCOPE_OTLP",
                "variables of other profilers were not taken: NCCL_INSPECTOR_DUMP_VERBOSE \
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
            assert!(lines.len() == 1 && !lines[0].contains("were taken"), "{lines:?}");
        }
    }

    #[test]
    fn modes_combine() {
        assert_eq!(mode("trace,flight"), Ok(Mode::Trace));
        assert_eq!(mode("flight,metrics"), Ok(Mode::Flight));
        assert_eq!(mode("metrics,trace"), Ok(Mode::Trace));
        assert_eq!(mode("OFF"), Ok(Mode::Off));
        assert_eq!(mode("trace,metrics,hang"), Ok(Mode::Trace));
        assert!(mode("off,trace").is_err());
        assert_eq!(read(&[("NCCLSCOPE_MODE", "trace")]).0.ring_bytes, 1 << 30);
    }
}
