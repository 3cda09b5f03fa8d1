// SPDX-License-Identifier: Apache-2.0
/*!
The values of environment variables, and their parsers: each takes a text and returns a value, or
what it expected instead.

[`crate::table`] assigns a parser to each variable. Windows, signals and quantities are also used
elsewhere and have their parsers in modules of their own.
*/

use crate::quantity;
use crate::signal::{self, SignalRequest};
use crate::window::RecordingWindow;
use ncclscope_trace::EventKind;
use ncclscope_trace::kind::{ALL_EVENTS, DEFAULT_EVENTS};
use ncclscope_trace::layout::RING_LIMITS;
use std::path::PathBuf;
use std::time::Duration;

/// A parsed value, or the expected form as text.
pub type Parsed<T> = Result<T, &'static str>;

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

impl Mode {
    /// The word for it in `NCCLSCOPE_MODE` and in lists.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Flight => "flight",
            Mode::Trace => "trace",
        }
    }
}

/// Whether kernel channels are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelEvents {
    /// If [`crate::releases`] enables them for the NCCL release.
    Auto,
    /// Recorded.
    On,
    /// Not recorded.
    Off,
}

/// Whether CUDA events are recorded around kernel launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CudaEvents {
    /// Around the launches of communicators whose operations otherwise show no end.
    #[default]
    Auto,
    /// Around all launches.
    On,
    /// Around none.
    Off,
}

impl CudaEvents {
    /// The value as the variable has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CudaEvents::Auto => "auto",
            CudaEvents::On => "on",
            CudaEvents::Off => "off",
        }
    }
}

/// Where the plugin writes its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogTo {
    /// NCCL's logger, at level INFO (`NCCL_DEBUG=INFO` shows it).
    Nccl,
    /// Standard error as well.
    Stderr,
    /// Nowhere.
    Off,
}

/// What is recorded before the first request to start or stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstWindow {
    /// The operations of this window.
    On(RecordingWindow),
    /// Nothing.
    Off,
}

/// Where the control socket lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketDirectory {
    /// In the user's own directory, [`crate::directories::of_user`].
    OfUser,
    /// In this directory.
    At(PathBuf),
    /// There is no socket.
    Off,
}

/// Where metrics go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsTarget {
    /// Nowhere.
    Off,
    /// To the endpoint in OpenTelemetry's variables, else to this host.
    On,
    /// To this URL.
    Url(String),
}

/// The optional attributes of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeriesLabels {
    /// The rank.
    pub rank: bool,
    /// The peer's rank.
    pub peer: bool,
    /// The channel.
    pub channel: bool,
}

/// The project whose metric names the Prometheus output uses instead of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrometheusNames {
    /// NVIDIA's Inspector.
    Inspector,
    /// Open Mosaic's profiler.
    Mosaic,
}

/// What the watchdog does when an operation hangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HangActions {
    /// The report goes to the log.
    pub log: bool,
    /// The recording is copied.
    pub dump: bool,
    /// A shell command is run.
    pub exec: Option<String>,
    /// The process gets this signal.
    pub signal: Option<u8>,
}

impl Default for HangActions {
    fn default() -> HangActions {
        HangActions { log: true, dump: false, exec: None, signal: None }
    }
}

/// The default age at which an operation counts as hung. It is longer than normal pauses of a
/// training job (a checkpoint, an evaluation) and shorter than the 600 s after which PyTorch's own
/// watchdog ends the process.
pub const HANG_AFTER: Duration = Duration::from_secs(300);
/// The shortest and the longest time between two exports of metrics, in seconds.
pub const EXPORT_INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

pub(crate) fn any(text: &str) -> Parsed<Option<String>> {
    Ok(Some(text.to_owned()))
}

pub(crate) fn mode(text: &str) -> Parsed<Mode> {
    const EXPECTED: &str = "off, or flight, trace, metrics, hang (several with commas)";
    let mut mode = None;
    for word in text.split(',') {
        mode = Some(match word.trim().to_ascii_lowercase().as_str() {
            off if is_off(off) && mode.is_none() => Mode::Off,
            // In every mode but `off`, metrics are exported if an endpoint is set and the watchdog
            // runs unless it is off.
            "flight" | "metrics" | "hang" if mode != Some(Mode::Off) => {
                mode.unwrap_or(Mode::Flight)
            }
            "trace" if mode != Some(Mode::Off) => Mode::Trace,
            _ => return Err(EXPECTED),
        });
    }
    mode.ok_or(EXPECTED)
}

fn is_on(text: &str) -> bool {
    text.eq_ignore_ascii_case("on") || text == "1"
}

fn is_off(text: &str) -> bool {
    text.eq_ignore_ascii_case("off") || text == "0"
}

pub(crate) fn switch(text: &str) -> Parsed<bool> {
    if is_on(text) || is_off(text) { Ok(is_on(text)) } else { Err("on or off") }
}

pub(crate) fn first_window(text: &str) -> Parsed<FirstWindow> {
    const EXPECTED: &str = "on, off, or a window such as steps=10, for=30s, sample=1/16";
    match text {
        on if is_on(on) => Ok(FirstWindow::On(RecordingWindow::default())),
        off if is_off(off) => Ok(FirstWindow::Off),
        window => RecordingWindow::parse(window).map(FirstWindow::On).map_err(|_| EXPECTED),
    }
}

pub(crate) fn signals(text: &str) -> Parsed<Vec<(SignalRequest, u8)>> {
    const EXPECTED: &str = "toggle:USR1, dump:USR2 or dump:RTMIN+1, or both with a comma";
    let one = |word: &str| {
        let (request, name) = word.trim().split_once(':').ok_or(EXPECTED)?;
        let request = match request {
            "toggle" => SignalRequest::Toggle,
            "dump" => SignalRequest::Dump,
            _ => return Err(EXPECTED),
        };
        Ok((request, signal::number(name).ok_or(EXPECTED)?))
    };
    let signals: Vec<_> = text.split(',').map(one).collect::<Result<_, _>>()?;
    match signals.as_slice() {
        [_] => Ok(signals),
        [a, b] if a.0 != b.0 && a.1 != b.1 => Ok(signals),
        _ => Err(EXPECTED),
    }
}

pub(crate) fn socket_directory(text: &str) -> Parsed<SocketDirectory> {
    match text {
        off if is_off(off) => Ok(SocketDirectory::Off),
        // A socket's path has at most 107 bytes, of which the file name takes up to 24.
        path if path.starts_with('/') && path.len() <= 80 => Ok(SocketDirectory::At(path.into())),
        _ => Err("an absolute path of a directory, of 80 bytes at most, or off"),
    }
}

pub(crate) fn events(text: &str) -> Parsed<u32> {
    const EXPECTED: &str = "a mask (79, 0x4f) or names such as default,-KernelCh,ProxyCtrl";
    if let Some(number) = quantity::number(text) {
        return u32::try_from(number).ok().filter(|n| n & !ALL_EVENTS == 0).ok_or(EXPECTED);
    }
    // A list that begins with `-` starts from the default events, any other list from none.
    let mut mask = if text.starts_with('-') { DEFAULT_EVENTS } else { 0 };
    for word in text.split(',').map(str::trim) {
        let (take_away, name) = match word.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let bits = match name.to_ascii_lowercase().as_str() {
            "default" => DEFAULT_EVENTS,
            "all" => ALL_EVENTS,
            _ => EventKind::from_name(name).ok_or(EXPECTED)?.bit(),
        };
        mask = if take_away { mask & !bits } else { mask | bits };
    }
    Ok(mask)
}

pub(crate) fn kernel_events(text: &str) -> Parsed<KernelEvents> {
    match text {
        on if is_on(on) => Ok(KernelEvents::On),
        off if is_off(off) => Ok(KernelEvents::Off),
        auto if auto.eq_ignore_ascii_case("auto") => Ok(KernelEvents::Auto),
        _ => Err("auto, on or off"),
    }
}

pub(crate) fn cuda_events(text: &str) -> Parsed<CudaEvents> {
    kernel_events(text).map(|value| match value {
        KernelEvents::Auto => CudaEvents::Auto,
        KernelEvents::On => CudaEvents::On,
        KernelEvents::Off => CudaEvents::Off,
    })
}

pub(crate) fn ring_bytes(text: &str) -> Parsed<Option<u64>> {
    quantity::mebibytes(text, &RING_LIMITS).map(Some).ok_or("MiB from 1 to 262144")
}

pub(crate) fn lanes(text: &str) -> Parsed<Option<PathBuf>> {
    match text {
        off if is_off(off) => Ok(None),
        path if path.starts_with('/') => Ok(Some(path.into())),
        _ => Err("an absolute path of a directory in memory (tmpfs), or off"),
    }
}

pub(crate) fn clock(text: &str) -> Parsed<bool> {
    match text.to_ascii_lowercase().as_str() {
        "auto" | "tsc" => Ok(true),
        "monotonic" => Ok(false),
        _ => Err("auto, tsc or monotonic"),
    }
}

pub(crate) fn metrics_target(text: &str) -> Parsed<MetricsTarget> {
    Ok(match text {
        off if is_off(off) => MetricsTarget::Off,
        on if is_on(on) => MetricsTarget::On,
        url => MetricsTarget::Url(url.to_owned()),
    })
}

pub(crate) fn export_interval(text: &str) -> Parsed<Option<Duration>> {
    quantity::seconds(text, EXPORT_INTERVALS).map(Some).ok_or("seconds from 0.1 to 86400")
}

pub(crate) fn window_events(text: &str) -> Parsed<u32> {
    let count = text.parse().ok().filter(|&count: &u32| count == 0 || count >= 1000);
    count.ok_or("events, 0 or from 1000")
}

pub(crate) fn labels(text: &str) -> Parsed<SeriesLabels> {
    let mut labels = SeriesLabels::default();
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

/// Parses the hang threshold in seconds; `None` switches the watchdog off.
pub(crate) fn hang_after(text: &str) -> Parsed<Option<Duration>> {
    const EXPECTED: &str = "seconds from 0.1 to 1000000, or 0 for never";
    if text.parse() == Ok(0.0) {
        return Ok(None);
    }
    quantity::seconds(text, 0.1..=1e6).map(Some).ok_or(EXPECTED)
}

/// Parses words separated by commas. `exec:` takes the rest of the text, so its command may contain
/// commas.
pub(crate) fn hang_actions(text: &str) -> Parsed<HangActions> {
    const EXPECTED: &str = "log, dump, signal:USR2, exec:COMMAND (last), or several with commas";
    let mut actions = HangActions { log: false, ..HangActions::default() };
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(command) = rest.trim_start().strip_prefix("exec:") {
            let command = command.trim();
            actions.exec = Some(command.to_owned()).filter(|command| !command.is_empty());
            return if actions.exec.is_some() { Ok(actions) } else { Err(EXPECTED) };
        }
        let (word, after) = rest.split_once(',').unwrap_or((rest, ""));
        match word.trim() {
            "log" => actions.log = true,
            "dump" => actions.dump = true,
            word => {
                let name = word.strip_prefix("signal:").ok_or(EXPECTED)?;
                actions.signal = Some(signal::number_to_send(name).ok_or(EXPECTED)?);
            }
        }
        rest = after;
    }
    Ok(actions)
}

/// Parses names separated by commas.
pub(crate) fn list(text: &str) -> Parsed<Vec<String>> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(names.map(str::to_owned).collect())
}

pub(crate) fn log_to(text: &str) -> Parsed<LogTo> {
    match text.to_ascii_lowercase().as_str() {
        "nccl" => Ok(LogTo::Nccl),
        "stderr" => Ok(LogTo::Stderr),
        off if is_off(off) => Ok(LogTo::Off),
        _ => Err("nccl, stderr or off"),
    }
}

pub(crate) fn prometheus_names(text: &str) -> Parsed<Option<PrometheusNames>> {
    match text {
        "inspector" => Ok(Some(PrometheusNames::Inspector)),
        "mosaic" => Ok(Some(PrometheusNames::Mosaic)),
        _ => Err("inspector or mosaic"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_combine() {
        assert_eq!(mode("trace,flight"), Ok(Mode::Trace));
        assert_eq!(mode("flight,metrics"), Ok(Mode::Flight));
        assert_eq!(mode("metrics,trace"), Ok(Mode::Trace));
        assert_eq!(mode("OFF"), Ok(Mode::Off));
        assert_eq!(mode("trace,metrics,hang"), Ok(Mode::Trace));
        assert!(mode("off,trace").is_err());
    }

    #[test]
    fn off_is_one_word_of_all_variables() {
        for text in ["off", "OFF", "0"] {
            assert_eq!(mode(text), Ok(Mode::Off));
            assert_eq!(switch(text), Ok(false));
            assert_eq!(first_window(text), Ok(FirstWindow::Off));
            assert_eq!(socket_directory(text), Ok(SocketDirectory::Off));
            assert_eq!(kernel_events(text), Ok(KernelEvents::Off));
            assert_eq!(cuda_events(text), Ok(CudaEvents::Off));
            assert_eq!(lanes(text), Ok(None));
            assert_eq!(metrics_target(text), Ok(MetricsTarget::Off));
            assert_eq!(log_to(text), Ok(LogTo::Off));
        }
        assert_eq!(metrics_target("ON"), Ok(MetricsTarget::On));
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
    }

    #[test]
    fn the_largest_ring_is_one_that_can_be_read() {
        assert_eq!(ring_bytes("262144"), Ok(Some(*RING_LIMITS.end())));
        let refusal = ring_bytes("262145").unwrap_err();
        assert!(refusal.ends_with(&(RING_LIMITS.end() / quantity::MIB).to_string()), "{refusal}");
    }

    #[test]
    fn limits_of_hangs() {
        assert_eq!(hang_after("0"), Ok(None));
        assert_eq!(hang_after("0.5"), Ok(Some(Duration::from_millis(500))));
        assert_eq!(hang_after("600"), Ok(Some(Duration::from_secs(600))));
        for bad in ["-1", "soon", "0.01", "NaN", "inf", "1e9", ""] {
            assert!(hang_after(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hang_actions_combine_and_a_command_comes_last() {
        let all = hang_actions("log, dump,signal:USR2,exec:py-spy dump -p $PID, now").unwrap();
        assert!(all.log && all.dump && all.signal == Some(12));
        assert_eq!(all.exec.as_deref(), Some("py-spy dump -p $PID, now"));
        assert!(!hang_actions("dump").unwrap().log);
        assert_eq!(hang_actions("signal:SIGABRT").unwrap().signal, Some(6));
        for bad in ["shout", "exec:", "signal:HUP", "log,,dump"] {
            assert!(hang_actions(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn signals_differ() {
        let both = signals("toggle:USR1,dump:RTMIN+1").unwrap();
        assert_eq!(both, [(SignalRequest::Toggle, 10), (SignalRequest::Dump, 35)]);
        for bad in ["USR1", "toggle:KILL", "dump:USR1,toggle:USR1", "dump:USR1,dump:USR2"] {
            assert!(signals(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_has_no_empty_names() {
        assert_eq!(list("a, /b/c.so,").unwrap(), ["a", "/b/c.so"]);
        assert!(list(" , ").unwrap().is_empty());
    }
}
