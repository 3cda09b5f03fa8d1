// SPDX-License-Identifier: Apache-2.0
//! Every environment variable, once: the parser looks here, and `docs/env.md` is made from it.

/// What all names begin with.
pub const PREFIX: &str = "NCCLSCOPE_";

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name without the prefix.
    pub name: &'static str,
    /// Names of other tools that mean the same; ours comes first.
    pub aliases: &'static [&'static str],
    /// Values it takes.
    pub values: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Who reads it.
    pub reader: Reader,
}

/// Who reads a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// The plugin, in every rank.
    Plugin,
    /// The command-line tool.
    Tool,
    /// The project's own tests.
    Tests,
}

impl Variable {
    /// The name as the user sets it.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// All names, the one that wins first.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = vec![self.full_name()];
        names.extend(self.aliases.iter().map(|&alias| alias.to_owned()));
        names
    }
}

const fn plugin(
    name: &'static str,
    aliases: &'static [&'static str],
    values: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable { name, aliases, values, default, meaning, reader: Reader::Plugin }
}

/// The variables.
pub const VARIABLES: &[Variable] = &[
    plugin(
        "MODE",
        &["NCCL_INSPECTOR_ENABLE", "NCCL_PROFILER_OTEL_ENABLE"],
        "`off`, `flight`, `trace`, `metrics`, `hang`",
        "`flight`",
        "What is recorded. `flight`: a bounded recording that always holds the last minutes. \
         `trace`: the same with room for 1 GiB. `metrics` and `hang` add nothing to them: metrics \
         are exported wherever an endpoint is set (`NCCLSCOPE_OTLP`), and the watchdog watches \
         unless `NCCLSCOPE_HANG_SEC` is 0. \
         `off`: NCCL is asked for no event. The others' 0 is `off`, their 1 is `flight`.",
    ),
    plugin(
        "DIR",
        &["NCCL_INSPECTOR_DUMP_DIR"],
        "a directory; `%h` host, `%p` process id, `%j` job id",
        "`$SLURM_TMPDIR`, else `/tmp/ncclscope-UID/%j`",
        "Where recordings go, one `HOST-PID.nscope` a process. Made if it is missing. The job id \
         is `NCCLSCOPE_JOB`, Slurm's or torchrun's, else the user's name: its first 100 bytes. The \
         default is refused where it is not a directory of this user that others cannot write to; \
         then `/tmp/ncclscope-UID.NUMBER/%j` is made, and a line says so. \
         Inspector's is not taken with `NCCL_INSPECTOR_PROM_DUMP=1`: then it is a directory of \
         textfiles.",
    ),
    plugin(
        "JOB",
        &[],
        "a name",
        "Slurm's job and step, torchrun's run id, Kubernetes' job",
        "What the job is called in recordings, metrics and control sockets.",
    ),
    plugin(
        "COMMAND",
        &[],
        "`on`, `off`",
        "`on`",
        "Whether the recording has the process's command line, its first KiB. `off`: it may hold \
         what others must not see.",
    ),
    plugin(
        "START",
        &[],
        "`on`, `off`, or a window: `steps=10`, `for=30s`, `at=TIME`, `sample=1/16`",
        "`on`",
        "What is recorded until somebody says start or stop (docs/control.md). `off`: nothing. A \
         window begins with the first communicator, with `steps` at the next training step, with \
         `at` at that time (seconds since 1970).",
    ),
    plugin(
        "CONTROL",
        &[],
        "a directory, or `off`",
        "`/tmp/ncclscope-UID`",
        "Where the process's control socket lies (docs/control.md), which `ncclscope ls`, `start`, \
         `stop`, `snapshot` and `dump` talk to. It is made for its user alone, and not used where \
         other users can write to it.",
    ),
    plugin(
        "SIGNAL",
        &[],
        "`toggle:USR1`, `dump:USR2`, `dump:RTMIN+1`, or both with a comma",
        "unset",
        "What signals to the process ask for. `toggle` stops recording or starts it again, `dump` \
         copies the recording to a new directory beside it. A signal that the process handles or \
         ignores already is left to it.",
    ),
    plugin(
        "EVENTS",
        &["NCCL_PROFILE_EVENT_MASK"],
        "names (`default,-KernelCh,ProxyCtrl`, `all`) or a mask (`0x4f`)",
        "all but `ProxyCtrl` and `KernelPhase`",
        "Which events NCCL is asked for. It adds the ancestors of what is asked for. `KernelCh` is \
         left out where `NCCLSCOPE_KERNEL` is off.",
    ),
    plugin(
        "KERNEL",
        &[],
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
    ),
    plugin(
        "CUDA_EVENTS",
        &[],
        "`on`, `off`",
        "`off`",
        "CUDA events around NCCL's kernel launches ([probe.md](probe.md); from NCCL 2.28 on): how \
         long kernels took, and what a launch waits for, also where kernel channel events are off. \
         It asks the CUDA driver that the process has loaded, three times in a launch's callbacks.",
    ),
    plugin(
        "RING_MB",
        &[],
        "1 to 262144",
        "64 (`trace`: 1024)",
        "MiB of records kept in a process's recording; older ones are overwritten and counted.",
    ),
    plugin(
        "LANES",
        &[],
        "a directory in memory (tmpfs), or `off`",
        "`/dev/shm`",
        "Where records wait for the drain thread, so that a SIGKILL loses nothing; the file goes \
         with the process. With `off`, or where the directory is more than half full, they wait \
         in private memory, and a kill costs up to 80 ms of them. The first communicator waits for \
         this directory, as it does not for any other: it must not be one that may hang.",
    ),
    plugin(
        "CLOCK",
        &[],
        "`auto`, `tsc`, `monotonic`",
        "`auto`",
        "`monotonic` stamps with the system's clock even where the processor's counter is good.",
    ),
    plugin(
        "OTLP",
        &[
            "NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT",
            "NCCL_PROFILER_OTEL_TELEMETRY_ENABLE",
            "NCCL_INSPECTOR_OTEL_EXPORT",
        ],
        "a URL, `on`, `off`",
        "`off`, unless an OpenTelemetry endpoint is set",
        "Metrics are sent there by OTLP over HTTP (protobuf), from each rank. `on`: to where \
         `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` says, else to \
         `http://localhost:4318`. These two also turn it on by themselves, unless \
         `OTEL_EXPORTER_OTLP_PROTOCOL` is another than `http/protobuf`. The headers, timeout, \
         temporality, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are OpenTelemetry's too. \
         Where this variable is not set, `OTEL_SDK_DISABLED=true` or `OTEL_METRICS_EXPORTER` \
         without `otlp` (such as `none`) mean that nothing is exported. \
         Of the others' switches 0 is `off`, whatever their endpoint, and 1 is `on`.",
    ),
    plugin(
        "WINDOW",
        &[
            "NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC",
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
        ],
        "0.1 to 86400",
        "`OTEL_METRIC_EXPORT_INTERVAL` (ms), else 60",
        "Seconds between two exports of metrics. Of OpenTelemetry's milliseconds and Inspector's \
         microseconds less than 0.1 s is 0.1 s, and of the latter -1 (at the end only) is the \
         longest.",
    ),
    plugin(
        "WINDOW_EVENTS",
        &[],
        "0, or 1000 to 4294967295",
        "0: by time only",
        "Metrics are exported after so many events, too, if that is sooner. An operation is never \
         split, and one that does not end holds up no other.",
    ),
    plugin(
        "LABELS",
        &[],
        "`rank`, `peer`, `channel`, or several; `none`",
        "`none`",
        "Which of them tell series of metrics apart. Each multiplies their number.",
    ),
    plugin(
        "HANG_SEC",
        &["NCCL_KERNEL_TIMEOUT_MS"],
        "0.1 to 1000000, or 0",
        "300",
        "Seconds after which an operation in which nothing moves is reported as stuck \
         ([hang.md](hang.md)); 0: never. The default is longer than a checkpoint usually takes, \
         and shorter than the 600 s after which PyTorch ends the process.",
    ),
    plugin(
        "HANG_ACTION",
        &[],
        "`log`, `dump`, `signal:USR2`, `exec:COMMAND` (last), or several with commas",
        "`log`",
        "What is done about it. `dump`: the recording is copied to a new directory beside it. \
         `signal`: the process gets it (also `ABRT`, `TERM`, `INT`, `QUIT`, `KILL`; one that ends \
         it comes last, after 10 s at most). `exec`: `sh` runs the command, which finds what \
         happened in `NCCLSCOPE_HANG_EVENT`, `_CLASS`, `_COMM`, `_RANK`, `_PID`, `_DRILL` and the \
         file `_REPORT`, besides the environment as it was at the first communicator.",
    ),
    plugin(
        "CHAIN",
        &[],
        "up to four files, with commas",
        "none",
        "Further profiler plugins, which get every callback as they would alone. Read when NCCL \
         loads the plugin. See [chain.md](chain.md).",
    ),
    plugin(
        "LOG",
        &[],
        "`nccl`, `stderr`, `off`",
        "`stderr`",
        "Where the plugin's few messages go. `stderr`: problems and hangs go to standard error, \
         and all to NCCL's log, which shows them at level INFO (a hang at VERSION) and may lie in \
         a buffer until the process ends. `nccl`: to NCCL's log alone.",
    ),
    Variable {
        name: "PLUGIN",
        aliases: &[],
        values: "a file",
        default: "beside the tool",
        meaning: "The plugin that `ncclscope run`, `env` and `plugin-path` use.",
        reader: Reader::Tool,
    },
    Variable {
        name: "PROM_COMPAT",
        aliases: &[],
        values: "`inspector`, `mosaic`",
        default: "unset",
        meaning: "`ncclscope agent` gives Prometheus the names of that project instead of ours.",
        reader: Reader::Tool,
    },
    Variable {
        name: "NCCL_DIR",
        aliases: &[],
        values: "a directory",
        default: "`~/.cache/ncclscope/nccl`",
        meaning: "Where `cargo xtask` keeps the NCCL releases that it fetched.",
        reader: Reader::Tests,
    },
    Variable {
        name: "REQUIRE_NCCL",
        aliases: &[],
        values: "`1`",
        default: "unset",
        meaning: "Tests that need a real NCCL fail without it instead of being skipped.",
        reader: Reader::Tests,
    },
    Variable {
        name: "REQUIRE_PROM",
        aliases: &[],
        values: "`1`",
        default: "unset",
        meaning: "Tests that need Prometheus (`promtool`, `prometheus`) fail without it instead of \
                  being skipped.",
        reader: Reader::Tests,
    },
    Variable {
        name: "REQUIRE_PTRACE",
        aliases: &[],
        values: "`1`",
        default: "unset",
        meaning: "The stepper fails where it may not trace a process instead of being skipped.",
        reader: Reader::Tests,
    },
    Variable {
        name: "REQUIRE_NAMESPACES",
        aliases: &[],
        values: "`1`",
        default: "unset",
        meaning: "Tests that need a file system of their own (`unshare`, `mount`) fail where they \
                  may not have one instead of being skipped.",
        reader: Reader::Tests,
    },
    Variable {
        name: "BENCH_DIR",
        aliases: &[],
        values: "a directory",
        default: "`../shared/bench`",
        meaning: "The neutral load driver and the floors of `cargo xtask bench`.",
        reader: Reader::Tests,
    },
    Variable {
        name: "TEST_TORCH_PYTHON",
        aliases: &[],
        values: "a file",
        default: "unset",
        meaning: "A Python with the newest PyTorch and HolisticTraceAnalysis, for the tests of \
                  merged profiles (`cargo xtask torch`).",
        reader: Reader::Tests,
    },
    Variable {
        name: "TEST_OLD_TORCH_PYTHON",
        aliases: &[],
        values: "a file",
        default: "unset",
        meaning: "A Python with the oldest PyTorch that is tested; several with colons.",
        reader: Reader::Tests,
    },
    Variable {
        name: "REQUIRE_BROWSER",
        aliases: &[],
        values: "`1`",
        default: "unset",
        meaning: "Tests that need Chromium and a copy of the Perfetto UI fail without them instead \
                  of being skipped.",
        reader: Reader::Tests,
    },
    Variable {
        name: "REQUIRE_TORCH",
        aliases: &[],
        values: "`1`",
        default: "unset",
        meaning: "Tests that need PyTorch fail without it instead of being skipped.",
        reader: Reader::Tests,
    },
    Variable {
        name: "TEST_PYTHON",
        aliases: &[],
        values: "a file",
        default: "unset",
        meaning: "The Python with which tests check traces and metrics against the schemas of \
                  Perfetto and OpenTelemetry.",
        reader: Reader::Tests,
    },
];

/// Variables of other profilers that mean nothing here, or something else; and why.
pub const NOT_TAKEN: [(&str, &str); 22] = [
    ("NCCL_INSPECTOR_COLL_POOL_SIZE", "memory is `NCCLSCOPE_RING_MB`, and in bytes"),
    ("NCCL_INSPECTOR_COMM_POOL_SIZE", "as above"),
    ("NCCL_INSPECTOR_P2P_POOL_SIZE", "as above"),
    ("NCCL_INSPECTOR_POOL_GROW", "as above"),
    ("NCCL_INSPECTOR_PROXY_OP_POOL_SIZE", "as above"),
    ("NCCL_INSPECTOR_PROXY_STEP_POOL_SIZE", "as above"),
    ("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE", "as above"),
    ("NCCL_INSPECTOR_DUMP_P2P_RING_SIZE", "as above"),
    ("NCCL_INSPECTOR_DUMP_PROXY_RING_SIZE", "as above"),
    ("NCCL_INSPECTOR_DUMP_PROXY_STEPS", "which events there are is `NCCLSCOPE_EVENTS`"),
    ("NCCL_INSPECTOR_ENABLE_P2P", "as above: `default,-P2p`"),
    ("NCCL_INSPECTOR_ENABLE_PROXY", "as above; they are on by default"),
    ("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "operations of all sizes count"),
    ("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "without a drain thread nothing would be recorded"),
    ("NCCL_INSPECTOR_DUMP_VERBOSE", "a recording always has each event with its times"),
    ("NCCL_INSPECTOR_OTEL_VERBOSE", "a series for each operation is what recordings are for"),
    (
        "NCCL_INSPECTOR_PROM_DUMP",
        "ranks write no textfiles: `ncclscope agent` does, with `NCCLSCOPE_PROM_COMPAT=inspector` \
         under Inspector's names",
    ),
    ("NCCL_INSPECTOR_PROM_DUMP_STATS", "the agent always says what was lost"),
    (
        "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING",
        "each figure says which clock it is from (`nccl.timing`)",
    ),
    (
        "NCCL_PROFILER_LINEAR_REGRESSION_MODE",
        "both lines are exported (`nccl.fit.mode`); `NCCLSCOPE_PROM_COMPAT=mosaic` gives `AVG`",
    ),
    (
        "NCCL_PROFILER_OTEL_SCALEUP_NETWORK_PCT",
        "times are measured: none is taken for a share of another",
    ),
    (
        "NCCL_PROFILER_OTEL_TELEMETRY_BATCH_TIMEOUT_MS",
        "nothing is held back for a batch; how long a request may take is \
         `OTEL_EXPORTER_OTLP_TIMEOUT`",
    ),
];

/// What NCCL does more for events; `cargo xtask event-costs` makes the table in it.
const EVENT_COSTS: &str = include_str!("event-costs.md");

/// `docs/env.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Environment variables\n\nMade from the table in `crates/runtime/src/config/table.rs` \
         (`cargo run -p ncclscope-runtime --example env-docs`); do not edit.\n\nA value that \
         cannot be used is told in one line, and the default holds. An empty value is none.\n\n\
         What stands behind \"also\" is another profiler's and means the same; ours comes first, \
         and one line in the log says which of the others were taken.\n",
    );
    for (reader, title) in [
        (Reader::Plugin, "Read by the plugin"),
        (Reader::Tool, "Read by the tool"),
        (Reader::Tests, "Read by the project's tests"),
    ] {
        out.push_str(&format!(
            "\n## {title}\n\n| variable | values | default | meaning |\n| --- | --- | --- | --- |\n"
        ));
        for v in VARIABLES.iter().filter(|v| v.reader == reader) {
            let names: Vec<String> = v.names().iter().map(|n| format!("`{n}`")).collect();
            let names = names.join(", also ");
            out.push_str(&format!("| {names} | {} | {} | {} |\n", v.values, v.default, v.meaning));
        }
    }
    out.push_str(EVENT_COSTS);
    out.push_str(
        "\n## Other profilers' variables that are not taken\n\nThey mean something else, or \
         nothing here. One line in the log names those that are set.\n\n| variable | why not \
         |\n| --- | --- |\n",
    );
    for (name, why) in NOT_TAKEN {
        out.push_str(&format!("| `{name}` | {why} |\n"));
    }
    out
}
