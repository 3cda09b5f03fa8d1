// SPDX-License-Identifier: Apache-2.0
/*!
The table of all environment variables: parser, default, aliases, help, and the rule by which
`ncclscope doctor` finds that a variable has no effect.

The plugin and the tool read variables through these items, `doctor` checks the environment against
them, and docs/env.md is generated from them. docs/howto/variable.md describes how to add one.
*/

use crate::aliases;
use crate::directories;
use crate::signal::SignalRequest;
use crate::value::{
    self, CudaEvents, FirstWindow, HANG_AFTER, HangActions, KernelEvents, LogTo, MetricsTarget,
    Mode, Parsed, PrometheusNames, SeriesLabels, SocketDirectory,
};
use crate::variable::{Alias, Declared, ReadBy, Variable};
use crate::window::RecordingWindow;
use ncclscope_trace::kind::DEFAULT_EVENTS;
use std::path::PathBuf;
use std::time::Duration;

/// Declares the variables, and lists them.
macro_rules! variables {
    ($($name:ident: $type:ty = $variable:expr;)*) => {
        $(
            #[doc = concat!("`NCCLSCOPE_", stringify!($name), "`.")]
            pub static $name: Variable<$type> =
                $variable.named(concat!("NCCLSCOPE_", stringify!($name)));
        )*

        /// The variables, in the order of the page.
        pub static VARIABLES: &[&dyn Declared] = &[$(&$name),*];
    };
}

/// What the command of `NCCLSCOPE_HANG_ACTION=exec:` has in its environment beside the process's
/// own: the event, the class, whether it is a drill, communicator, rank, process and report.
pub const HANG_COMMAND: [&str; 7] = [
    "NCCLSCOPE_HANG_EVENT",
    "NCCLSCOPE_HANG_CLASS",
    "NCCLSCOPE_HANG_DRILL",
    "NCCLSCOPE_HANG_COMM",
    "NCCLSCOPE_HANG_RANK",
    "NCCLSCOPE_HANG_PID",
    "NCCLSCOPE_HANG_REPORT",
];

const fn plugin<T>(parse: fn(&str) -> Parsed<T>, default: fn() -> T) -> Variable<T> {
    Variable::new(ReadBy::Plugin, parse, default)
}

const fn on_demand<T>(parse: fn(&str) -> Parsed<T>, default: fn() -> T) -> Variable<T> {
    Variable::new(ReadBy::PluginOnDemand, parse, default)
}

const fn tool<T>(parse: fn(&str) -> Parsed<Option<T>>) -> Variable<Option<T>> {
    Variable::new(ReadBy::Tool, parse, || None)
}

const fn tests(
    values: &'static str,
    unset: &'static str,
    meaning: &'static str,
) -> Variable<Option<String>> {
    Variable::new(ReadBy::Tests, value::any, || None).help(values, unset, meaning)
}

variables! {
    MODE: Mode = plugin(value::mode, || Mode::Flight)
        .also(&[
            Alias::translated("NCCL_INSPECTOR_ENABLE", aliases::mode),
            Alias::translated("NCCL_PROFILER_OTEL_ENABLE", aliases::mode),
        ])
        .help(
            "`off`, `flight`, `trace`, `metrics`, `hang`",
            "`flight`",
            "What is recorded. `flight`: a bounded recording that always holds the last minutes. \
             `trace`: the same with room for 1 GiB. `metrics` and `hang` mean `flight`: \
             metrics need an endpoint (`NCCLSCOPE_OTLP`), and the watchdog always runs unless \
             `NCCLSCOPE_HANG_SEC` is 0. `off`: the plugin requests no events from NCCL. For the \
             aliases 0 means `off` and 1 means `flight`.",
        );

    DIR: Option<String> = on_demand(value::any, || None)
        .also(&[Alias::translated("NCCL_INSPECTOR_DUMP_DIR", aliases::directory)])
        .help(
            "a directory; `%h` host, `%p` process id, `%j` job id",
            "`$SLURM_TMPDIR`, else `/tmp/ncclscope-UID/%j`",
            "The directory of recordings, one `HOST-PID.nscope` per process; created if missing. \
             Only the user can read it (0600, directories 0700), because a recording holds the \
             command line and variables; `chmod -R g+rX DIR` shares it with a group. The job id \
             is the first 100 bytes of `NCCLSCOPE_JOB`, else of Slurm's or torchrun's id, else of \
             the user's name. If another user can write to the default directory, the plugin \
             creates `/tmp/ncclscope-UID.NUMBER/%j` and logs that. With \
             `NCCL_INSPECTOR_PROM_DUMP=1` Inspector's variable is ignored, because it then names \
             a directory of textfiles.",
        );

    JOB: Option<String> = plugin(value::any, || None).help(
        "a name",
        "Slurm's job and step, torchrun's run id, Kubernetes' job",
        "The name of the job in recordings, metrics and control sockets.",
    );

    COMMAND: bool = plugin(value::switch, || true).help(
        "`on`, `off`",
        "`on`",
        "Whether the recording contains the first KiB of the process's command line. `off`: for \
         command lines that contain secrets.",
    );

    START: FirstWindow =
        plugin(value::first_window, || FirstWindow::On(RecordingWindow::default())).help(
            "`on`, `off`, or a window: `steps=10`, `for=30s`, `at=TIME`, `sample=1/16`",
            "`on`",
            "What is recorded until the first request to start or stop ([control.md](control.md)). \
             `off`: nothing. A window begins with the first communicator, with `steps` at the next \
             training step, with `at` at that time (seconds since 1970).",
        );

    CONTROL: SocketDirectory = plugin(value::socket_directory, || SocketDirectory::OfUser).help(
        "a directory, or `off`",
        "`/tmp/ncclscope-UID`",
        "The directory of the process's [control socket](control.md#the-socket). It is created for \
         this user alone, and not used if other users can write to it.",
    );

    SIGNAL: Vec<(SignalRequest, u8)> = plugin(value::signals, Vec::new).help(
        "`toggle:USR1`, `dump:USR2`, `dump:RTMIN+1`, or both with a comma",
        "unset",
        "What the plugin does on a signal. `toggle` stops recording or starts it again, `dump` \
         copies the recording to a new directory next to it. The plugin does not use a signal that \
         the process already handles or ignores.",
    );

    EVENTS: u32 = plugin(value::events, || DEFAULT_EVENTS)
        .also(&[Alias::same("NCCL_PROFILE_EVENT_MASK")])
        .help(
            "names (`default,-KernelCh,ProxyCtrl`, `all`) or a mask (`0x4f`)",
            "all but `ProxyCtrl` and `KernelPhase`",
            "The events that the plugin requests; NCCL adds their ancestors. `KernelCh` is not \
             requested if `NCCLSCOPE_KERNEL` is off.",
        );

    KERNEL: KernelEvents = plugin(value::kernel_events, || KernelEvents::Auto).help(
        "`auto`, `on`, `off`",
        "`auto`",
        "Kernel channel events. `auto` is on where they are reliable, [by \
         release](#kernel-channel-events-by-release). Implausible times are discarded and counted. \
         Up to 2.30, NCCL with these events and any profiler may crash when a \
         communicator that shares its parent's resources (`splitShare`) is destroyed on an \
         overloaded machine; `off` avoids it.",
    );

    CUDA_EVENTS: CudaEvents = plugin(value::cuda_events, || CudaEvents::Auto).help(
        "`auto`, `on`, `off`",
        "`auto`",
        "CUDA events around NCCL's kernel launches ([probe.md](probe.md); from NCCL 2.28 on). They \
         show how long kernels took, whether they have ended, and what a launch waits for. \
         `auto` is on for communicators within one node if kernel channel events are off, \
         because a hang could not be seen otherwise.",
    );

    RING_MB: Option<u64> = plugin(value::ring_bytes, || None).help(
        "1 to 262144",
        "64 (`trace`: 1024)",
        "MiB of records kept in a process's recording; older ones are overwritten and counted.",
    );

    LANES: Option<PathBuf> = plugin(value::lanes, || Some(directories::LANES.into())).help(
        "a directory in memory (tmpfs), or `off`",
        "`/dev/shm`",
        "The directory of the file in which records wait for the drain thread, so that a SIGKILL \
         loses nothing. With `off`, or if the directory is more than half full, a kill loses up \
         to 80 ms. The first communicator waits for this directory: do not name one whose file \
         system may hang.",
    );

    CLOCK: bool = plugin(value::clock, || true).help(
        "`auto`, `tsc`, `monotonic`",
        "`auto`",
        "The clock of time stamps. `auto` and `tsc`: the processor's counter if it is reliable, \
         else the system's clock. `monotonic`: always the system's clock.",
    );

    OTLP: MetricsTarget = on_demand(value::metrics_target, || MetricsTarget::Off)
        .also(&[
            // A switch that is off comes before an endpoint, which says where if it is on.
            Alias::translated("NCCL_PROFILER_OTEL_TELEMETRY_ENABLE", aliases::off),
            Alias::translated("NCCL_INSPECTOR_OTEL_EXPORT", aliases::off),
            Alias::same("NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT"),
            Alias::translated("NCCL_PROFILER_OTEL_TELEMETRY_ENABLE", aliases::on),
            Alias::translated("NCCL_INSPECTOR_OTEL_EXPORT", aliases::on),
        ])
        .help(
            "a URL, `on`, `off`",
            "`off`, unless an OpenTelemetry endpoint is set",
            "Each rank sends metrics to this URL by OTLP over HTTP (protobuf). `on`: to \
             `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`, else `OTEL_EXPORTER_OTLP_ENDPOINT`, else \
             `http://localhost:4318`. Either of these two variables also turns metrics on, unless \
             `OTEL_EXPORTER_OTLP_PROTOCOL` differs from `http/protobuf`, `OTEL_SDK_DISABLED` is \
             `true`, or `OTEL_METRICS_EXPORTER` has no `otlp`. OpenTelemetry's variables for \
             headers, timeout and temporality, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` \
             apply too. For the aliases 0 means `off`, whatever their endpoint, and 1 means `on`.",
        );

    WINDOW: Option<Duration> = on_demand(value::export_interval, || None)
        .also(&[
            Alias::same("NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC"),
            Alias::translated(
                "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
                aliases::export_interval,
            ),
        ])
        .help(
            "0.1 to 86400",
            "`OTEL_METRIC_EXPORT_INTERVAL` (ms), else 60",
            "Seconds between two exports of metrics. Inspector's variable is in microseconds, and \
             its -1 (export only at the end) means the longest time.",
        );

    WINDOW_EVENTS: u32 = on_demand(value::window_events, || 0).help(
        "0, or 1000 to 4294967295",
        "0: by time only",
        "Metrics are also exported after this number of events, if that is sooner.",
    );

    LABELS: SeriesLabels = plugin(value::labels, SeriesLabels::default).help(
        "`rank`, `peer`, `channel`, or several; `none`",
        "`none`",
        "Attributes that split metrics into more series. Each multiplies the number of series.",
    );

    HANG_SEC: Option<Duration> = plugin(value::hang_after, || Some(HANG_AFTER))
        .also(&[Alias::translated("NCCL_KERNEL_TIMEOUT_MS", aliases::milliseconds)])
        .help(
            "0.1 to 1000000, or 0",
            "300",
            "Seconds after which an operation in which nothing moves is reported as stuck \
             ([hang.md](hang.md)); 0: never. The default is longer than a checkpoint usually \
             takes, and shorter than the 600 s after which PyTorch ends the process.",
        );

    HANG_ACTION: HangActions = plugin(value::hang_actions, HangActions::default)
        .without_effect(|get| {
            HANG_SEC.value(get).is_none().then_some("NCCLSCOPE_HANG_SEC is 0: no hang is reported")
        })
        .help(
            "`log`, `dump`, `signal:USR2`, `exec:COMMAND` (last), or several with commas",
            "`log`",
            "What the plugin does when it reports a hang. `dump`: it copies the recording to a new \
             directory next to it. `signal`: it sends the process this signal (also `ABRT`, \
             `TERM`, `INT`, `QUIT`, `KILL`). `exec`: `sh` runs the command, with variables that \
             describe the hang ([hang.md](hang.md#what-is-done-about-it)).",
        );

    CHAIN: Vec<String> = plugin(value::list, Vec::new).help(
        "up to four files, with commas",
        "none",
        "Further profiler plugins; each gets the callbacks that it would get alone. Read when NCCL \
         loads the plugin. See [chain.md](chain.md).",
    );

    LOG: LogTo = plugin(value::log_to, || LogTo::Stderr).help(
        "`nccl`, `stderr`, `off`",
        "`stderr`",
        "Where the plugin's few messages go. `stderr`: problems and hangs go to standard error, \
         and all messages to NCCL's log, which shows them at level INFO (a hang at VERSION) and \
         may be buffered until the process exits. `nccl`: to NCCL's log alone.",
    );

    PLUGIN: Option<String> = tool(value::any).help(
        "a file",
        "next to the tool",
        "The plugin that `ncclscope run`, `env` and `plugin-path` use.",
    );

    PROM_COMPAT: Option<PrometheusNames> = tool(value::prometheus_names).help(
        "`inspector`, `mosaic`",
        "unset",
        "`ncclscope agent` exports to Prometheus under that project's names instead of ours.",
    );

    NCCL_DIR: Option<String> = tests(
        "a directory",
        "`~/.cache/ncclscope/nccl`",
        "The directory in which `cargo xtask` keeps the NCCL releases that it fetches.",
    );

    REQUIRE_NCCL: Option<String> = tests(
        "`1`",
        "unset",
        "Tests fail without a real NCCL instead of being skipped.",
    );

    REQUIRE_PROM: Option<String> = tests(
        "`1`",
        "unset",
        "The same for Prometheus (`promtool`, `prometheus`).",
    );

    REQUIRE_PTRACE: Option<String> = tests(
        "`1`",
        "unset",
        "The same for the permission to trace a process (the stepper).",
    );

    REQUIRE_NAMESPACES: Option<String> = tests(
        "`1`",
        "unset",
        "The same for the permission to mount a file system (`unshare`, `mount`).",
    );

    BENCH_DIR: Option<String> = tests(
        "a directory",
        "`../shared/bench`",
        "The neutral load driver and the floors of `cargo xtask bench`.",
    );

    TEST_TORCH_PYTHON: Option<String> = tests(
        "a file",
        "unset",
        "A Python with the newest PyTorch and HolisticTraceAnalysis, for the tests of merged \
         profiles (`cargo xtask torch`).",
    );

    REQUIRE_TMUX: Option<String> = tests(
        "`1`",
        "unset",
        "The same for tmux.",
    );

    TEST_OLD_TORCH_PYTHON: Option<String> = tests(
        "a file",
        "unset",
        "A Python with the oldest PyTorch that is tested; several with colons.",
    );

    REQUIRE_BROWSER: Option<String> = tests(
        "`1`",
        "unset",
        "The same for Chromium and a copy of the Perfetto UI.",
    );

    REQUIRE_TORCH: Option<String> = tests(
        "`1`",
        "unset",
        "The same for PyTorch.",
    );

    TEST_PYTHON: Option<String> = tests(
        "a file",
        "unset",
        "The Python with which tests check traces and metrics against the schemas of Perfetto and \
         OpenTelemetry.",
    );
}
