// SPDX-License-Identifier: Apache-2.0
/*!
Files that are not recordings, by their content or name: what they are, and what reads them.

[`FORMATS`] is the only place that knows the files of other tools. A verb refuses those that it does
not read before it opens anything ([`refuse`]).
*/

use ncclscope_compare::input::nccl_tests;
use ncclscope_console::failure::Failure;
use ncclscope_stragglers::input::kineto::is_archive;
use ncclscope_stragglers::input::nsys;
use ncclscope_trace::names::is_recording_path;
use ncclscope_trace::open_to_read;
use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file in which `ncclscope run` describes a run, in its directory.
pub(crate) const ABOUT_RUN: &str = "run.json";
/// Size of the start of a file that shows what it is, bytes.
const START: u64 = 64 << 10;

/// Size of the start of our own JSON that shows what it is, bytes.
const OWN_START: u64 = 256;

/// The name and the start of a file.
struct Start {
    name: String,
    bytes: Vec<u8>,
}

impl Start {
    fn of(path: &Path) -> Option<Start> {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        open_to_read(path).ok()?.take(START).read_to_end(&mut bytes).ok()?;
        Some(Start { name, bytes })
    }

    fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    fn begins(&self, with: &[u8]) -> bool {
        self.bytes.trim_ascii_start().starts_with(with)
    }

    fn has_any(&self, parts: &[&str]) -> bool {
        let text = self.text();
        parts.iter().any(|part| text.contains(part))
    }

    fn ends(&self, with: &[&str]) -> bool {
        with.iter().any(|end| self.name.ends_with(end))
    }
}

/// A kind of file.
struct Format {
    /// What the file is, after "is".
    what: &'static str,
    /// What reads or shows it.
    reader: &'static str,
    /// The verbs that take such a file, or say more about it than its reader.
    verbs: &'static [&'static str],
    is_one: fn(&Start) -> bool,
}

/// The kinds, of which the first that fits counts.
const FORMATS: [Format; 19] = [
    Format {
        what: "NCCL Inspector's JSON",
        reader: "`ncclscope report`, `compare` and `stragglers` read it",
        verbs: &["report", "compare", "stragglers"],
        is_one: |start| ncclscope_inspector::starts_as(&start.bytes),
    },
    Format {
        what: "output of nccl-tests",
        reader: "`ncclscope compare` reads it",
        verbs: &["compare"],
        is_one: |start| nccl_tests::starts_as(&start.bytes),
    },
    Format {
        what: "metrics as Prometheus text",
        reader: "Prometheus reads it, through node_exporter's textfile collector; of NCCL \
                 Inspector, `ncclscope report` reads the JSON (without NCCL_INSPECTOR_PROM_DUMP)",
        verbs: &[],
        is_one: |start| {
            start.begins(b"# HELP ")
                || start.begins(b"# TYPE ")
                || start.has_any(&["nccl_bus_bandwidth_gbs{", "nccl_p2p_bus_bandwidth_gbs{"])
        },
    },
    Format {
        what: "a trace of NCCL's example profiler",
        reader: "Perfetto (ui.perfetto.dev) and chrome://tracing show it",
        verbs: &[],
        is_one: |start| {
            let kinds = ["GROUP_API", "COLL_API", "P2P_API", "KERNEL_LAUNCH", "GROUP", "PROXY"];
            let cats = kinds.map(|kind| format!("\"cat\": \"{kind}\""));
            start.begins(b"[") && start.has_any(&cats.each_ref().map(String::as_str))
        },
    },
    Format {
        what: "a report of Nsight Systems",
        reader: "nsys-ui and `nsys stats` read it, and `ncclscope stragglers` what `nsys export \
                 --type sqlite` makes of it",
        verbs: &[],
        is_one: |start| start.ends(&[".nsys-rep", ".qdrep", ".qdstrm"]),
    },
    Format {
        what: "an SQLite database, as `nsys export` writes",
        reader: "`ncclscope stragglers` reads that of Nsight Systems, sqlite3 any",
        verbs: &["stragglers"],
        is_one: |start| nsys::starts_as(&start.bytes),
    },
    Format {
        what: "a report of Nsight Compute",
        reader: "ncu-ui and `ncu --import` read it",
        verbs: &[],
        is_one: |start| start.ends(&[".ncu-rep"]),
    },
    Format {
        what: "a topology of NCCL (NCCL_TOPO_DUMP_FILE)",
        reader: "NCCL reads it, with NCCL_TOPO_FILE",
        verbs: &[],
        is_one: |start| start.begins(b"<") && start.has_any(&["<system version="]),
    },
    Format {
        what: "graphs of NCCL (NCCL_GRAPH_DUMP_FILE)",
        reader: "NCCL reads it, with NCCL_GRAPH_FILE",
        verbs: &[],
        is_one: |start| start.begins(b"<") && start.has_any(&["<graphs version="]),
    },
    Format {
        what: "text of ncclras",
        reader: "`ncclscope diagnose` reads it; `-f json` (from NCCL 2.28.7 on) says more",
        verbs: &["diagnose"],
        is_one: |start| {
            start.begins(b"NCCL version ") && start.has_any(&["\nJob summary", "\nCommunicators"])
        },
    },
    // It may also have the configuration of process groups, as a dump has.
    Format {
        what: "a trace of PyTorch's profiler",
        reader: "`ncclscope stragglers` and `merge` read it",
        verbs: &["stragglers", "merge", "view"],
        is_one: |start| {
            let has_head = || start.has_any(&["\"schemaVersion\"", "\"traceEvents\""]);
            let keys = ["\"deviceProperties\"", "\"distributedInfo\""];
            start.begins(b"{") && has_head() && start.has_any(&keys)
        },
    },
    Format {
        what: "output of ncclras",
        reader: "`ncclscope diagnose` reads it",
        verbs: &["diagnose"],
        is_one: |start| {
            start.begins(b"{") && start.has_any(&["\"communicators_count\""]) && is_of_nccl(start)
        },
    },
    Format {
        what: "events of `ncclras -m`",
        reader: "`ncclscope diagnose` reads it",
        verbs: &["diagnose"],
        is_one: |start| start.has_any(&["] PEER_NEW: ", "] PEER_DEAD: ", "\"event\": \"PEER_"]),
    },
    Format {
        what: "a dump of PyTorch's Flight Recorder",
        reader: "`ncclscope diagnose` reads it",
        verbs: &["diagnose"],
        is_one: |start| start.begins(b"{") && start.has_any(&["\"pg_config\"", "\"pg_status\""]),
    },
    Format {
        what: "a log that NCCL writes with NCCL_DEBUG",
        reader: "it is for people, and no command reads it",
        verbs: &[],
        is_one: |start| {
            let is_text = !start.bytes.contains(&0);
            is_text && start.has_any(&[" NCCL INFO ", " NCCL WARN ", " NCCL TRACE "])
        },
    },
    Format {
        what: "an execution trace of PyTorch or Chakra",
        reader: "simulators such as ASTRA-sim read it",
        verbs: &[],
        is_one: |start| {
            let has_nodes =
                || start.has_any(&["\"nodes\""]) && start.has_any(&["\"schema\": \"1."]);
            start.ends(&[".et"]) || start.begins(b"{") && has_nodes()
        },
    },
    Format {
        what: "a trace in Chrome's format without a header",
        reader: "Perfetto (ui.perfetto.dev) and chrome://tracing show it",
        verbs: &["view"],
        is_one: |start| start.begins(b"[") && start.has_any(&["\"ph\":"]),
    },
    Format {
        what: "a Parquet file",
        reader: "`ncclscope stragglers` reads it, if it is a table of operations",
        verbs: &["stragglers"],
        is_one: |start| start.bytes.starts_with(b"PAR1"),
    },
    Format {
        what: "a table of vectors",
        reader: "`ncclscope diagnose` reads it",
        verbs: &["diagnose"],
        is_one: |start| start.bytes.starts_with(b"NCCLVECT"),
    },
];

fn is_of_nccl(start: &Start) -> bool {
    start.has_any(&["\"nccl_version\""])
}

fn format(path: &Path) -> Option<&'static Format> {
    // Of thousands of recordings that are named, none is read for this.
    if is_recording_path(path) {
        return None;
    }
    let start = Start::of(path)?;
    if start.bytes.starts_with(b"NCCLSCOP") || own_json(path).is_some() {
        return None;
    }
    FORMATS.iter().find(|format| (format.is_one)(&start))
}

/// Refuses the first named file that is of another tool or verb, and says what reads it.
pub(crate) fn refuse<'a>(
    verb: &str,
    paths: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    for path in paths {
        if let Some(Format { what, reader, verbs, .. }) = format(path)
            && !verbs.contains(&verb)
        {
            return Err(Failure::input(format!("{} is {what}: {reader}", path.display())));
        }
    }
    Ok(())
}

/// What the first file of these directories that another verb or tool reads is, as the end of an
/// error; empty if there is none.
pub(crate) fn hint(directories: &[PathBuf]) -> String {
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok());
    let mut files: Vec<PathBuf> = entries.flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().find_map(|file| reader(file)).map_or_else(String::new, |text| format!("; {text}"))
}

/// What reads a file of a directory without recordings, as the end of a sentence.
pub(crate) fn reader(file: &Path) -> Option<String> {
    let named = |format: &Format| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        format!("{name} is {}: {}", format.what, format.reader)
    };
    by_name(file).or_else(|| format(file).map(named)).or_else(|| saved_report(file))
}

/// What a JSON file of ncclscope is, by its start; `None` if it is another file.
pub(crate) fn own_json(path: &Path) -> Option<String> {
    let mut start = Vec::new();
    open_to_read(path).ok()?.take(OWN_START).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start);
    let key = start.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"schema\"")?;
    let value = key.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let schema = value.split('"').next().filter(|schema| schema.starts_with("ncclscope."))?;
    let what = match schema.split('/').next()? {
        "ncclscope.report" => "a saved report",
        "ncclscope.run" => "the description of a run",
        "ncclscope.truth" => "the truth about a simulated job",
        _ => "JSON that ncclscope printed",
    };
    Some(format!("{what} ({schema})"))
}

/// True if a file is an SQLite database, by its first bytes.
pub(crate) fn is_sqlite(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_to_read(path).and_then(|file| file.take(OWN_START).read_to_end(&mut start));
    read.is_ok() && nsys::starts_as(&start)
}

/// The verb that reads a file with such a name.
fn by_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_string_lossy();
    let is = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let place = file.parent().unwrap_or(file).display();
    // Python's pickles of protocol 2 and later begin with this byte.
    if name.ends_with(|end: char| end.is_ascii_digit()) && starts_with(file, 0x80) {
        return Some(format!(
            "{name} looks like a dump of PyTorch's Flight Recorder, which `ncclscope diagnose \
             {place}` reads"
        ));
    }
    if is(&[".pt.trace.json", ".json.gz", ".parquet"]) {
        return Some(format!("`ncclscope stragglers {}` reads {name}", file.display()));
    }
    if is_archive(file) {
        return Some(format!(
            "`ncclscope stragglers {}` reads PyTorch's traces in {name}",
            file.display()
        ));
    }
    is(&[".pftrace", ".perfetto-trace"])
        .then(|| format!("`ncclscope view {}` shows {name}", file.display()))
}

fn saved_report(file: &Path) -> Option<String> {
    let is_json = file.extension().is_some_and(|end| end == "json");
    (is_json && starts_with(file, b'{')).then(|| "compare reads saved reports".into())
}

fn starts_with(file: &Path, byte: u8) -> bool {
    let mut first = [0];
    let read = open_to_read(file).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == [byte]
}
