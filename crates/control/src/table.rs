// SPDX-License-Identifier: Apache-2.0
/*!
Every environment variable, once: parser, default, aliases, help, and the rule by which `ncclscope
doctor` finds it without effect.

The plugin and the tool read variables through these items, `doctor` checks the environment against
them, and docs/env.md is made of them. docs/howto/variable.md says how to add one.
*/

use crate::aliases;
use crate::directories;
use crate::signal::SignalRequest;
use crate::value::{
    self, FirstWindow, HANG_AFTER, HangActions, KernelEvents, LogTo, MetricsTarget, Mode, Parsed,
    PrometheusNames, SeriesLabels, SocketDirectory,
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
             `trace`: the same with room for 1 GiB. `metrics` and `hang` add nothing to them: \
             metrics are exported wherever an endpoint is set (`NCCLSCOPE_OTLP`), and the watchdog \
             watches unless `NCCLSCOPE_HANG_SEC` is 0. `off`: NCCL is asked for no event. The \
             others' 0 is `off`, their 1 is `flight`.",
        );

    DIR: Option<String> = on_demand(value::any, || None)
        .also(&[Alias::translated("NCCL_INSPECTOR_DUMP_DIR", aliases::directory)])
        .help(
            "a directory; `%h` host, `%p` process id, `%j` job id",
            "`$SLURM_TMPDIR`, else `/tmp/ncclscope-UID/%j`",
            "Where recordings go, one `HOST-PID.nscope` a process. Made if it is missing. The job \
             id is `NCCLSCOPE_JOB`, Slurm's or torchrun's, else the user's name: its first 100 \
             bytes. The default is refused where it is not a directory of this user that others \
             cannot write to; then `/tmp/ncclscope-UID.NUMBER/%j` is made, and a line says so. \
             Inspector's is not taken with `NCCL_INSPECTOR_PROM_DUMP=1`: then it is a directory of \
             textfiles.",
        );

    JOB: Option<String> = plugin(value::any, || None).help(
        "a name",
        "Slurm's job and step, torchrun's run id, Kubernetes' job",
        "What the job is called in recordings, metrics and control sockets.",
    );

    COMMAND: bool = plugin(value::switch, || true).help(
        "`on`, `off`",
        "`on`",
        "Whether the recording has the process's command line, its first KiB. `off`: it may hold \
         what others must not see.",
    );

    START: FirstWindow =
        plugin(value::first_window, || FirstWindow::On(RecordingWindow::default())).help(
            "`on`, `off`, or a window: `steps=10`, `for=30s`, `at=TIME`, `sample=1/16`",
            "`on`",
            "What is recorded until the first request to start or stop (docs/control.md). `off`: \
             nothing. A window begins with the first communicator, with `steps` at the next \
             training step, with `at` at that time (seconds since 1970).",
        );

    CONTROL: SocketDirectory = plugin(value::socket_directory, || SocketDirectory::OfUser).help(
        "a directory, or `off`",
        "`/tmp/ncclscope-UID`",
        "Where the process's control socket lies (docs/control.md), which `ncclscope ls`, `start`, \
         `stop`, `snapshot` and `dump` talk to. It is made for its user alone, and not used where \
         other users can write to it.",
    );

    SIGNAL: Vec<(SignalRequest, u8)> = plugin(value::signals, Vec::new).help(
        "`toggle:USR1`, `dump:USR2`, `dump:RTMIN+1`, or both with a comma",
        "unset",
        "What signals to the process ask for. `toggle` stops recording or starts it again, `dump` \
         copies the recording to a new directory beside it. A signal that the process handles or \
         ignores already is left to it.",
    );

    EVENTS: u32 = plugin(value::events, || DEFAULT_EVENTS)
        .also(&[Alias::same("NCCL_PROFILE_EVENT_MASK")])
        .help(
            "names (`default,-KernelCh,ProxyCtrl`, `all`) or a mask (`0x4f`)",
            "all but `ProxyCtrl` and `KernelPhase`",
            "Which events NCCL is asked for. It adds the ancestors of what is asked for. \
             `KernelCh` is left out where `NCCLSCOPE_KERNEL` is off.",
        );

    KERNEL: KernelEvents = plugin(value::kernel_events, || KernelEvents::Auto).help(
        "`auto`, `on`, `off`",
        "`auto`",
        "Kernel channel events. `auto` is on up to NCCL 2.30, but for 2.30.3, which may crash with \
         them (NVIDIA/nccl#2112). It is off from 2.31 on: after a Broadcast these releases give \
         each kernel the times of another one, or none (NVIDIA/nccl#2368), and may crash when a \
         communicator is destroyed; 2.31 pays 4 to 13 % for them on 128 KiB to 4 MiB \
         (NVIDIA/nccl#2355). With `on`, times after a Broadcast are not believed, and counted. The \
         same goes for 2.29 and 2.30 after broadcasts from several roots in one group (an uneven \
         all_gather of PyTorch), which NCCL_ALLGATHERV_ENABLE=0 avoids. Up to 2.30, destroying a \
         communicator that shares its parent's resources (`splitShare`) on an overloaded machine \
         may crash NCCL with them, whatever the profiler; `off` avoids it.",
    );

    CUDA_EVENTS: bool = plugin(value::switch, || false).help(
        "`on`, `off`",
        "`off`",
        "CUDA events around NCCL's kernel launches ([probe.md](probe.md); from NCCL 2.28 on): how \
         long kernels took, and what a launch waits for, also where kernel channel events are off. \
         It asks the CUDA driver that the process has loaded, three times in a launch's callbacks.",
    );

    RING_MB: Option<u64> = plugin(value::ring_bytes, || None).help(
        "1 to 262144",
        "64 (`trace`: 1024)",
        "MiB of records kept in a process's recording; older ones are overwritten and counted.",
    );

    LANES: Option<PathBuf> = plugin(value::lanes, || Some(directories::LANES.into())).help(
        "a directory in memory (tmpfs), or `off`",
        "`/dev/shm`",
        "Where records wait for the drain thread, so that a SIGKILL loses nothing; the file goes \
         with the process. With `off`, or where the directory is more than half full, they wait \
         in private memory, and a kill costs up to 80 ms of them. The first communicator waits for \
         this directory, as it does not for any other: it must not be one that may hang.",
    );

    CLOCK: bool = plugin(value::clock, || true).help(
        "`auto`, `tsc`, `monotonic`",
        "`auto`",
        "`monotonic` stamps with the system's clock even where the processor's counter is good.",
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
            "Metrics are sent there by OTLP over HTTP (protobuf), from each rank. `on`: to where \
             `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` says, else to \
             `http://localhost:4318`. These two also turn it on by themselves, unless \
             `OTEL_EXPORTER_OTLP_PROTOCOL` is another than `http/protobuf`. The headers, timeout, \
             temporality, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are OpenTelemetry's \
             too. Where this variable is not set, `OTEL_SDK_DISABLED=true` or \
             `OTEL_METRICS_EXPORTER` without `otlp` (such as `none`) mean that nothing is \
             exported. Of the others' switches 0 is `off`, whatever their endpoint, and 1 is `on`.",
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
            "Seconds between two exports of metrics. Of OpenTelemetry's milliseconds and \
             Inspector's microseconds less than 0.1 s is 0.1 s, and of the latter -1 (at the end \
             only) is the longest.",
        );

    WINDOW_EVENTS: u32 = on_demand(value::window_events, || 0).help(
        "0, or 1000 to 4294967295",
        "0: by time only",
        "Metrics are exported after so many events, too, if that is sooner. An operation is never \
         split, and one that does not end holds up no other.",
    );

    LABELS: SeriesLabels = plugin(value::labels, SeriesLabels::default).help(
        "`rank`, `peer`, `channel`, or several; `none`",
        "`none`",
        "Which of them tell series of metrics apart. Each multiplies their number.",
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
            "What is done about it. `dump`: the recording is copied to a new directory beside it. \
             `signal`: the process gets it (also `ABRT`, `TERM`, `INT`, `QUIT`, `KILL`; one that \
             ends it comes last, after 10 s at most). `exec`: `sh` runs the command, which finds \
             what happened in `NCCLSCOPE_HANG_EVENT`, `_CLASS`, `_COMM`, `_RANK`, `_PID`, `_DRILL` \
             and the file `_REPORT`, besides the environment as it was at the first communicator.",
        );

    CHAIN: Vec<String> = plugin(value::list, Vec::new).help(
        "up to four files, with commas",
        "none",
        "Further profiler plugins, which get every callback as they would alone. Read when NCCL \
         loads the plugin. See [chain.md](chain.md).",
    );

    LOG: LogTo = plugin(value::log_to, || LogTo::Stderr).help(
        "`nccl`, `stderr`, `off`",
        "`stderr`",
        "Where the plugin's few messages go. `stderr`: problems and hangs go to standard error, \
         and all to NCCL's log, which shows them at level INFO (a hang at VERSION) and may lie in \
         a buffer until the process ends. `nccl`: to NCCL's log alone.",
    );

    PLUGIN: Option<String> = tool(value::any).help(
        "a file",
        "beside the tool",
        "The plugin that `ncclscope run`, `env` and `plugin-path` use.",
    );

    PROM_COMPAT: Option<PrometheusNames> = tool(value::prometheus_names).help(
        "`inspector`, `mosaic`",
        "unset",
        "`ncclscope agent` gives Prometheus the names of that project instead of ours.",
    );

    NCCL_DIR: Option<String> = tests(
        "a directory",
        "`~/.cache/ncclscope/nccl`",
        "Where `cargo xtask` keeps the NCCL releases that it fetched.",
    );

    REQUIRE_NCCL: Option<String> = tests(
        "`1`",
        "unset",
        "Tests that need a real NCCL fail without it instead of being skipped.",
    );

    REQUIRE_PROM: Option<String> = tests(
        "`1`",
        "unset",
        "Tests that need Prometheus (`promtool`, `prometheus`) fail without it instead of being \
         skipped.",
    );

    REQUIRE_PTRACE: Option<String> = tests(
        "`1`",
        "unset",
        "The stepper fails where it may not trace a process instead of being skipped.",
    );

    REQUIRE_NAMESPACES: Option<String> = tests(
        "`1`",
        "unset",
        "Tests that need a file system of their own (`unshare`, `mount`) fail where they may not \
         have one instead of being skipped.",
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

    TEST_OLD_TORCH_PYTHON: Option<String> = tests(
        "a file",
        "unset",
        "A Python with the oldest PyTorch that is tested; several with colons.",
    );

    REQUIRE_BROWSER: Option<String> = tests(
        "`1`",
        "unset",
        "Tests that need Chromium and a copy of the Perfetto UI fail without them instead of being \
         skipped.",
    );

    REQUIRE_TORCH: Option<String> = tests(
        "`1`",
        "unset",
        "Tests that need PyTorch fail without it instead of being skipped.",
    );

    TEST_PYTHON: Option<String> = tests(
        "a file",
        "unset",
        "The Python with which tests check traces and metrics against the schemas of Perfetto and \
         OpenTelemetry.",
    );
}
