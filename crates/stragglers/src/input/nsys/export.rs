// SPDX-License-Identifier: Apache-2.0
/*!
What an export has about NCCL: the kernels of each process and GPU, and whose they are.

NVIDIA documents the tables for each release (Nsight Systems' Analysis Guide, "SQLite Schema
Reference"). All rows of the table of kernels are read once; those of NCCL are kept.
*/

use super::database::Database;
use crate::input::Error;
use ncclscope_kineto::beside::library;
use ncclscope_kineto::facts::kind_of_kernel;
use ncclscope_operations::function::Kind;
use rusqlite::Row;
use rusqlite::types::ValueRef;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const STRINGS: &str = "StringIds";
const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
const START_TIME: &str = "TARGET_INFO_SESSION_START_TIME";
const SYSTEM: &str = "TARGET_INFO_SYSTEM_ENV";
const MPI_RANKS: &str = "MPI_RANKS";
/// A process in a `globalPid` or `globalTid`: the hardware, the virtual machine, and the number of
/// the process; the last 24 bits are a thread's.
const PROCESS: i64 = !0xff_ffff;
/// The columns with a kernel's name, the best first.
const NAMES: [&str; 2] = ["shortName", "demangledName"];

/// A NCCL kernel, ns of the file's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) kind: Option<Kind>,
}

/// A process on one GPU.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) device: u32,
    /// Its rank in the job, as MPI gave it.
    pub(super) rank: Option<u32>,
    /// Its NCCL kernels, by start.
    pub(super) kernels: Vec<Kernel>,
}

/// The NCCL content of a file.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) path: PathBuf,
    /// Host name; empty if it is not there.
    pub(super) host: String,
    /// Time 0 of the file, ns since 1970.
    pub(super) epoch_ns: Option<i64>,
    pub(super) members: Vec<Member>,
    /// Number of kernels that communicate beside NCCL, by the name of their library.
    pub(super) beside: BTreeMap<&'static str, u64>,
    /// Whole CUDA graphs were recorded in place of their kernels.
    pub(super) has_graphs: bool,
}

/// What a kernel is, by its name.
enum Named {
    Nccl(Option<Kind>),
    Beside(&'static str),
}

impl Export {
    /// Reads a file.
    ///
    /// # Errors
    /// It is damaged, or lacks what names the NCCL kernels.
    pub(super) fn read(path: &Path) -> Result<Export, Error> {
        let database = Database::open(path)?;
        let name = name_column(&database)?;
        let named = named(&database, name)?;
        let (mut members, mut beside) = (BTreeMap::new(), BTreeMap::new());
        let query = format!("SELECT {name}, start, \"end\", globalPid, deviceId FROM {KERNELS}");
        database.read(&query, &[], |row| match named.get(&row.get(0)?) {
            Some(Named::Nccl(kind)) => add(&mut members, row, *kind),
            Some(Named::Beside(of)) => {
                *beside.entry(*of).or_default() += 1;
                Ok(())
            }
            None => Ok(()),
        })?;
        let ranks = mpi_ranks(&database)?;
        let member = |((process, device), mut kernels): ((i64, u32), Vec<Kernel>)| {
            kernels.sort_by_key(|kernel: &Kernel| kernel.start);
            // 24 bits.
            let pid = u32::try_from((process >> 24) & 0xff_ffff).unwrap_or(0);
            Member { pid, device, rank: ranks.get(&process).copied(), kernels }
        };
        Ok(Export {
            path: path.into(),
            host: host(&database)?,
            epoch_ns: epoch_ns(&database)?,
            members: members.into_iter().map(member).collect(),
            beside,
            has_graphs: !database.columns(GRAPHS)?.is_empty(),
        })
    }
}

fn add(
    members: &mut BTreeMap<(i64, u32), Vec<Kernel>>,
    row: &Row<'_>,
    kind: Option<Kind>,
) -> rusqlite::Result<()> {
    // The end is missing if the capture ended first.
    let (start, end): (i64, Option<i64>) = (row.get(1)?, row.get(2)?);
    if let Some(end) = end.filter(|&end| end >= start) {
        let process: i64 = row.get(3)?;
        let kernels = members.entry((process & PROCESS, row.get(4)?)).or_default();
        kernels.push(Kernel { start, end, kind });
    }
    Ok(())
}

/// The column that has the names of kernels.
///
/// # Errors
/// A table or column that is needed is missing.
fn name_column(database: &Database) -> Result<&'static str, Error> {
    let kernels = database.columns(KERNELS)?;
    let strings = database.columns(STRINGS)?;
    if kernels.is_empty() {
        let mut how = "profile with `nsys profile --trace=cuda`, and export all tables with \
                       `nsys export --type sqlite`";
        if !database.columns(GRAPHS)?.is_empty() {
            how = "it has whole CUDA graphs instead: profile with `nsys profile --trace=cuda \
                   --cuda-graph-trace=node`";
        }
        return Err(database.error(format!("it has no table {KERNELS}: {how}")));
    }
    let missing = |table: &str, column: &str| {
        let how = "export the report again with `nsys export --type sqlite` of a newer release";
        database.error(format!("its table {table} has no column {column}: {how}"))
    };
    if strings.is_empty() {
        let how = "export all tables with `nsys export --type sqlite`";
        return Err(database.error(format!("it has no table {STRINGS}: {how}")));
    }
    let needed = ["start", "end", "globalPid", "deviceId"].map(|column| (KERNELS, column));
    for (table, column) in needed.into_iter().chain([(STRINGS, "id"), (STRINGS, "value")]) {
        if !if table == KERNELS { &kernels } else { &strings }.contains(column) {
            return Err(missing(table, column));
        }
    }
    let name = NAMES.into_iter().find(|name| kernels.contains(*name));
    name.ok_or_else(|| missing(KERNELS, NAMES[0]))
}

/// The names of kernels that communicate, by their number. Of other strings none is read: the
/// output of the profiled programs may be one of them.
fn named(database: &Database, name: &str) -> Result<HashMap<i64, Named>, Error> {
    let mut named = HashMap::new();
    let query =
        format!("SELECT id, value FROM {STRINGS} WHERE id IN (SELECT {name} FROM {KERNELS})");
    database.read(&query, &[], |row| {
        let ValueRef::Text(text) = row.get_ref(1)? else { return Ok(()) };
        let text = String::from_utf8_lossy(text);
        if text.starts_with("nccl") {
            named.insert(row.get(0)?, Named::Nccl(kind_of_kernel(&text)));
        } else if let Some(of) = library(&text) {
            named.insert(row.get(0)?, Named::Beside(of));
        }
        Ok(())
    })?;
    Ok(named)
}

fn has(columns: &BTreeSet<String>, needed: &[&str]) -> bool {
    needed.iter().all(|column| columns.contains(*column))
}

fn epoch_ns(database: &Database) -> Result<Option<i64>, Error> {
    let mut epoch = None;
    if has(&database.columns(START_TIME)?, &["utcEpochNs"]) {
        database.read(&format!("SELECT utcEpochNs FROM {START_TIME}"), &[], |row| {
            epoch = epoch.or(row.get(0)?);
            Ok(())
        })?;
    }
    Ok(epoch)
}

/// The host's name. The table also has the environment of the profiled program, which is not read.
fn host(database: &Database) -> Result<String, Error> {
    let mut host = String::new();
    if has(&database.columns(SYSTEM)?, &["name", "value"]) {
        let query = format!("SELECT value FROM {SYSTEM} WHERE name = 'Hostname' LIMIT 1");
        database.read(&query, &[], |row| {
            host = row.get::<_, Option<String>>(0)?.unwrap_or_default();
            Ok(())
        })?;
    }
    Ok(host)
}

/// The ranks that MPI gave to processes; a process with several has none.
fn mpi_ranks(database: &Database) -> Result<HashMap<i64, u32>, Error> {
    let (mut ranks, mut unclear) = (HashMap::new(), BTreeSet::new());
    if has(&database.columns(MPI_RANKS)?, &["globalTid", "rank"]) {
        database.read(&format!("SELECT globalTid, rank FROM {MPI_RANKS}"), &[], |row| {
            let (thread, rank): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (process, rank) = (thread & PROCESS, u32::try_from(rank).unwrap_or(u32::MAX));
            if *ranks.entry(process).or_insert(rank) != rank {
                unclear.insert(process);
            }
            Ok(())
        })?;
    }
    ranks.retain(|process, rank| !unclear.contains(process) && *rank != u32::MAX);
    Ok(ranks)
}
