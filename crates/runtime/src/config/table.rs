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
        &[],
        "`off`, `flight`, `trace`, `metrics`",
        "`flight`",
        "What is recorded. `flight`: a bounded recording that always holds the last minutes. \
         `trace`: the same with room for 1 GiB. `metrics` adds nothing to them: metrics are \
         exported wherever an endpoint is set (`NCCLSCOPE_OTLP`). \
         `off`: NCCL is asked for no event.",
    ),
    plugin(
        "DIR",
        &[],
        "a directory; `%h` host, `%p` process id, `%j` job id",
        "`$SLURM_TMPDIR`, else `/tmp/ncclscope-%j`",
        "Where recordings go, one `HOST-PID.nscope` a process. Made if it is missing.",
    ),
    plugin(
        "EVENTS",
        &["NCCL_PROFILE_EVENT_MASK"],
        "names (`default,-KernelCh,ProxyCtrl`, `all`) or a mask (`0x4f`)",
        "all but `ProxyCtrl` and `KernelPhase`",
        "Which events NCCL is asked for. It adds the ancestors of what is asked for.",
    ),
    plugin(
        "KERNEL",
        &[],
        "`auto`, `on`, `off`",
        "`auto`",
        "Kernel channel events. `auto` is on, except with NCCL 2.31, where they cost 4 to 13 % \
         on 128 KiB to 4 MiB (NVIDIA/nccl#2355). Up to NCCL 2.30, destroying a communicator that \
         shares its parent's resources (`splitShare`) on an overloaded machine may crash NCCL with \
         them, whatever the profiler; `off` avoids it.",
    ),
    plugin(
        "RING_MB",
        &[],
        "1 to 1048576",
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
         in private memory, and a kill costs up to 80 ms of them.",
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
        &["NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT"],
        "a URL, `on`, `off`",
        "`off`, unless an OpenTelemetry endpoint is set",
        "Metrics are sent there by OTLP over HTTP (protobuf), from each rank. `on`: to where \
         `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` says, else to \
         `http://localhost:4318`. These two also turn it on by themselves, unless \
         `OTEL_EXPORTER_OTLP_PROTOCOL` is another than `http/protobuf`. The headers, timeout, \
         temporality, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are OpenTelemetry's too.",
    ),
    plugin(
        "WINDOW",
        &["NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC"],
        "0.1 to 86400",
        "`OTEL_METRIC_EXPORT_INTERVAL` (ms), else 60",
        "Seconds between two exports of metrics.",
    ),
    plugin(
        "LABELS",
        &[],
        "`rank`, `peer`, `channel`, or several; `none`",
        "`none`",
        "Which of them tell series of metrics apart. Each multiplies their number.",
    ),
    plugin(
        "LOG",
        &[],
        "`nccl`, `stderr`, `off`",
        "`nccl`",
        "Where the plugin's few messages go: NCCL's log at level INFO, or standard error too.",
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
        name: "BENCH_DIR",
        aliases: &[],
        values: "a directory",
        default: "`../shared/bench`",
        meaning: "The neutral load driver and the floors of `cargo xtask bench`.",
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

/// `docs/env.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Environment variables\n\nMade from the table in `crates/runtime/src/config/table.rs` \
         (`cargo run -p ncclscope-runtime --example env-docs`); do not edit.\n\nA value that \
         cannot be used is told in one line, and the default holds. An empty value is none.\n",
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
    out
}
