// SPDX-License-Identifier: Apache-2.0
//! Exports of Nsight Systems in the shapes that people have: a file for a node or for each rank,
//! several GPUs in a process, captures that begin apart, and files that are no such export.

use ncclscope_findings::Confidence;
use ncclscope_stragglers::input::nsys;
use ncclscope_stragglers::report::StepRow;
use ncclscope_stragglers::{Limits, SlowReport, analyze};
use rusqlite::{Connection, params};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Begin of the captures, ns since 1970.
const EPOCH: i64 = 1_784_597_271_426_118_694;
const ALL_REDUCE: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
const ALL_GATHER: &str = "ncclDevKernel_AllGather_RING_LL";
const STEPS: i64 = 14;

/// A file under construction, with the tables that `nsys export` makes.
struct Export {
    path: PathBuf,
    database: Connection,
}

impl Export {
    fn bare(folder: &Path, name: &str, tables: &str) -> Export {
        let path = folder.join(name);
        let database = Connection::open(&path).unwrap();
        database.execute_batch(tables).unwrap();
        Export { path, database }
    }

    fn new(folder: &Path, name: &str) -> Export {
        let tables = "
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
                deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
                correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
                shortName INTEGER NOT NULL);
            INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL'),
                (2, 'void gemm<float>(float*)'), (3, 'ncclDevKernel_AllGather_RING_LL'),
                (4, 'ncclDevKernel_SendRecv'), (5, 'deep_ep::dispatch');";
        Export::bare(folder, name, tables)
    }

    fn host(self, host: &str) -> Export {
        self.run("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT NOT NULL, value TEXT NOT NULL)");
        let row = "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', ?1)";
        self.database.execute(row, [host]).unwrap();
        self
    }

    fn epoch(self, ns: i64) -> Export {
        self.run("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT)");
        let row = "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?1, '2026')";
        self.database.execute(row, [ns]).unwrap();
        self
    }

    fn run(&self, sql: &str) {
        self.database.execute_batch(sql).unwrap();
    }

    fn kernel(&self, name: &str, (pid, device): (i64, i64), (start, end): (i64, i64)) {
        let process = (1 << 56) | (pid << 24);
        let row = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT ?1, ?2, ?3, 1, 7, 0, ?4, id, id
            FROM StringIds WHERE value = ?5";
        self.database.execute(row, params![start, end, device, process, name]).unwrap();
    }

    /// The kernels of a rank: an AllReduce at the end of each of these steps.
    fn rank(&self, of: Rank) {
        self.run("BEGIN");
        for step in of.steps.0..of.steps.1 {
            // Ends of one collective are some microseconds apart.
            let end = end(step) - of.behind + of.place.0 * 7_919 % 5_000;
            self.kernel("void gemm<float>(float*)", of.place, (end - 30_000_000, end - 9_500_000));
            self.kernel(of.func, of.place, (end - of.wait, end));
        }
        self.run("COMMIT");
    }
}

/// End of a step's collective, ns: steps differ, as they do.
fn end(step: i64) -> i64 {
    40_000_000 * (step + 1) + (step * step * 7_919) % 900_000
}

/// A rank that waits for others at the end of each step.
#[derive(Clone, Copy)]
struct Rank {
    func: &'static str,
    place: (i64, i64),
    wait: i64,
    steps: (i64, i64),
    /// How much later than the job's the clock of the file began, ns.
    behind: i64,
}

impl Rank {
    fn new(pid: i64, wait: i64) -> Rank {
        Rank { func: ALL_REDUCE, place: (pid, 0), wait, steps: (0, STEPS), behind: 0 }
    }

    /// One of those who wait, each a little longer than the one before, or the late one.
    fn nth(nth: i64, late: i64) -> Rank {
        Rank::new(100 + nth, if nth == late { 1_000_000 } else { 9_000_000 - 300_000 * nth })
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn judged(paths: &[PathBuf]) -> SlowReport {
    analyze(&nsys::read(paths).unwrap().job, &Limits::default())
}

fn refused(paths: &[PathBuf]) -> String {
    nsys::read(paths).map(drop).unwrap_err().to_string()
}

fn has(lines: &[String], part: &str) -> bool {
    lines.iter().any(|line| line.contains(part))
}

#[test]
fn the_late_process_of_a_node_is_named() {
    let folder = folder();
    let file = Export::new(folder.path(), "node.sqlite").host("n0").epoch(EPOCH);
    (0..8).for_each(|nth| file.rank(Rank::nth(nth, 5)));
    let report = judged(std::slice::from_ref(&file.path));
    let [finding] = &report.findings[..] else { panic!("{report:#?}") };
    assert_eq!((report.workers, &finding.root_ranks[..]), (8, &[5][..]));
    // It waits for 1 ms of a step of 40 ms, and the others for 6.9 to 9 ms.
    assert!(finding.lost_share.is_some_and(|share| (0.1..0.25).contains(&share)), "{finding:#?}");
    let place = &finding.help.places[0];
    assert_eq!((place.pid, place.device, place.host.as_deref()), (Some(105), Some(0), Some("n0")));
    assert_eq!(
        finding.confidence(),
        Confidence::Suspect,
        "kernels are matched by time: {finding:#?}"
    );
    assert!(has(&report.notes, "ranks are positions"), "{:?}", report.notes);
    assert!(has(&report.notes, "5 is process 105 on GPU 0 in "), "{:?}", report.notes);
    assert!(has(&report.notes, "how many ranks the job has is unknown"), "{:?}", report.notes);
    assert!(has(&report.notes, "do not have the sizes"), "{:?}", report.notes);
}

#[test]
fn each_gpu_of_a_process_is_a_rank() {
    let folder = folder();
    let file = Export::new(folder.path(), "one.sqlite");
    (0..4).for_each(|nth| file.rank(Rank { place: (77, nth), ..Rank::nth(nth, 2) }));
    let report = judged(std::slice::from_ref(&file.path));
    assert_eq!((report.workers, &report.findings[0].root_ranks[..]), (4, &[2][..]));
    let place = &report.findings[0].help.places;
    // Without the host's name a place is not known, but the note has it.
    assert!(has(&report.notes, "2 is process 77 on GPU 2 in "), "{place:?} {:?}", report.notes);
}

#[test]
fn ranks_are_those_of_mpi_if_all_are_known() {
    let folder = folder();
    let file = Export::new(folder.path(), "mpi.sqlite");
    (0..4).for_each(|nth| file.rank(Rank::nth(nth, 2)));
    file.run("CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL)");
    for (pid, rank) in [(100, 7), (101, 6), (102, 5), (103, 4)] {
        let thread = (1_i64 << 56) | (pid << 24) | pid;
        let row = "INSERT INTO MPI_RANKS VALUES (?1, ?2)";
        file.database.execute(row, params![thread, rank]).unwrap();
    }
    let report = judged(std::slice::from_ref(&file.path));
    assert_eq!(report.findings[0].root_ranks, [5]);
    // Ranks 0 to 3 were not captured.
    assert!(has(&report.notes, "no trace of ranks 0-3"), "{:?}", report.notes);
    assert!(!has(&report.notes, "positions"), "{:?}", report.notes);
}

#[test]
fn files_of_several_nodes_have_one_time() {
    let folder = folder();
    // The second begins 3 s later, and its host's clock is 20 ms ahead.
    let write = |node: i64| {
        let (name, host) = (format!("n{node}.sqlite"), format!("n{node}"));
        let begin = EPOCH + node * 3_020_000_000;
        let file = Export::new(folder.path(), &name).host(&host).epoch(begin);
        for nth in 4 * node..4 * (node + 1) {
            file.rank(Rank { behind: node * 3_000_000_000, ..Rank::nth(nth, 6) });
        }
        file.path
    };
    let report = judged(&[write(0), write(1)]);
    assert_eq!((report.workers, &report.findings[0].root_ranks[..]), (8, &[6][..]));
    assert_eq!(report.findings[0].help.places[0].host.as_deref(), Some("n1"));
    assert!(report.clock.max_residual_ns < 5_000, "{:?}", report.clock);
}

#[test]
fn a_file_for_each_rank_without_a_begin_is_matched_by_order() {
    let folder = folder();
    let write = |nth: i64| {
        let file = Export::new(folder.path(), &format!("rank{nth}.sqlite"));
        file.rank(Rank { behind: nth * 1_234_567, ..Rank::nth(nth, 3) });
        file.path
    };
    let report = judged(&(0..12).map(write).collect::<Vec<_>>());
    assert_eq!((report.workers, &report.findings[0].root_ranks[..]), (12, &[3][..]));
    assert!(has(&report.notes, "does not have the time of its begin"), "{:?}", report.notes);
    assert!(has(&report.notes, "10 is process 110 "), "{:?}", report.notes);
}

#[test]
fn a_capture_that_begins_later_is_moved_to_its_place() {
    let folder = folder();
    for (begin, name) in [(EPOCH, "with"), (0, "without")] {
        let write = |nth: i64| {
            let mut file = Export::new(folder.path(), &format!("{name}{nth}.sqlite"));
            if begin > 0 {
                file = file.epoch(begin + 2_000_000 * nth).host(&format!("n{nth}"));
            }
            let steps = if nth == 1 { (3, 30) } else { (0, 30) };
            file.rank(Rank { steps, ..Rank::nth(nth, 2) });
            file.path
        };
        let report = judged(&(0..4).map(write).collect::<Vec<_>>());
        assert_eq!(report.findings[0].root_ranks, [2], "{name}: {report:#?}");
        assert_eq!(report.collectives, 30);
        assert!(report.clock.max_residual_ns < 5_000, "{:?}", report.clock);
    }
}

#[test]
fn ranks_that_do_not_run_together_are_not_compared() {
    let folder = folder();
    let file = Export::new(folder.path(), "groups.sqlite");
    // Two groups, of which the second is half a step behind, and an AllGather of all.
    for nth in 0..8 {
        let rank = Rank::nth(nth % 4, if nth < 4 { 9 } else { 1 });
        file.rank(Rank {
            place: (100 + nth, 0),
            behind: if nth < 4 { 0 } else { -20_000_000 },
            ..rank
        });
    }
    let job = nsys::read(std::slice::from_ref(&file.path)).unwrap().job;
    let comms: Vec<&str> = job.classes.iter().map(|class| class.comm.as_str()).collect();
    assert_eq!(comms, ["[0,1,2,3]", "[4,5,6,7]"]);
    let report = analyze(&job, &Limits::default());
    let is_of = |step: &&StepRow| report.root_of(step).is_some_and(|it| it.rank == Some(5));
    assert!(report.steps.iter().filter(is_of).count() > 10, "{report:#?}");
    // With one that runs with none of them, the function serves more communicators than are seen.
    file.rank(Rank { place: (200, 0), behind: -7_000_000, ..Rank::nth(8, 9) });
    let error = refused(std::slice::from_ref(&file.path));
    assert!(error.contains("do not run at the same time"), "{error}");
    // None has a partner.
    let file = Export::new(folder.path(), "apart.sqlite");
    (0..3).for_each(|nth| file.rank(Rank { behind: nth * -12_000_000, ..Rank::nth(nth, 2) }));
    let error = refused(std::slice::from_ref(&file.path));
    assert!(error.contains("do not run at the same time"), "{error}");
}

#[test]
fn several_functions_are_matched_each_for_itself() {
    let folder = folder();
    let file = Export::new(folder.path(), "two.sqlite");
    for nth in 0..4 {
        file.rank(Rank::nth(nth, 2));
        let gather = Rank { func: ALL_GATHER, behind: 20_000_000, ..Rank::nth(nth, 2) };
        file.rank(Rank { wait: gather.wait / 10, ..gather });
    }
    let report = judged(std::slice::from_ref(&file.path));
    assert_eq!((report.collectives, &report.findings[0].root_ranks[..]), (28, &[2][..]));
}

#[test]
fn files_of_two_captures_are_refused() {
    let folder = folder();
    let write = |name: &str, begin: i64, pid: i64| {
        let file = Export::new(folder.path(), name).host("n0").epoch(begin);
        (0..2).for_each(|nth| file.rank(Rank { place: (pid + nth, 0), ..Rank::nth(nth, 1) }));
        file.path
    };
    let one = write("a.sqlite", EPOCH, 100);
    let says = |with: PathBuf, says: &str| {
        let error = refused(&[one.clone(), with]);
        assert!(
            error.contains(says) && error.ends_with("name the files of one capture"),
            "{error}"
        );
    };
    says(write("b.sqlite", EPOCH + 60_000_000_000, 100), "it is of process 100 as is ");
    says(write("c.sqlite", EPOCH + 60_000_000_000, 200), "its kernels do not run while those of ");
    let copy = folder.path().join("copy.sqlite");
    fs::copy(&one, &copy).unwrap();
    says(copy, "it is of process 100 as is ");
}

#[test]
fn what_is_no_export_is_refused_in_one_line() {
    let folder = folder();
    let strings = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);";
    let columns = "start INTEGER, end INTEGER, shortName INTEGER";
    let kernels =
        |columns: &str| format!("{strings} CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns});");
    let cases = [
        (strings.to_owned(), "no table CUPTI_ACTIVITY_KIND_KERNEL: profile with `nsys profile"),
        (
            format!("{strings} CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER);"),
            "--cuda-graph-trace=node",
        ),
        (kernels(columns)[strings.len()..].to_owned(), "no table StringIds: export all tables"),
        (kernels(columns), "its table CUPTI_ACTIVITY_KIND_KERNEL has no column globalPid: export"),
        (
            kernels("start INTEGER, end INTEGER, globalPid INTEGER, deviceId INTEGER"),
            "no column shortName",
        ),
        (
            // A view is not read.
            format!(
                "{strings} CREATE TABLE t (x); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS
                 SELECT 1 AS start, 2 AS end, 3 AS globalPid, 0 AS deviceId, 1 AS shortName FROM t;"
            ),
            "no table CUPTI_ACTIVITY_KIND_KERNEL",
        ),
    ];
    for (at, (tables, says)) in cases.into_iter().enumerate() {
        let file = Export::bare(folder.path(), &format!("{at}.sqlite"), &tables);
        let error = refused(std::slice::from_ref(&file.path));
        let begin = format!("cannot read {}: it", file.path.display());
        assert!(error.starts_with(&begin) && error.contains(says), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
    let file = Export::new(folder.path(), "none.sqlite");
    file.kernel("void gemm<float>(float*)", (1, 0), (1, 2));
    let error = refused(std::slice::from_ref(&file.path));
    assert!(error.contains("it shows no NCCL kernel: profile the ranks"), "{error}");
    file.kernel("deep_ep::dispatch", (1, 0), (1, 2));
    let error = refused(std::slice::from_ref(&file.path));
    assert!(error.contains("is not judged: 1 kernel of DeepEP"), "{error}");
    file.run("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x', shortName = 1");
    let error = refused(std::slice::from_ref(&file.path));
    assert!(error.contains("it is no export of Nsight Systems ("), "{error}");
}

#[test]
fn a_file_that_is_cut_off_does_not_hide_the_others() {
    let folder = folder();
    let write = |nth: i64| {
        let file = Export::new(folder.path(), &format!("rank{nth}.sqlite"));
        file.rank(Rank::nth(nth, 3));
        file.path
    };
    let paths: Vec<PathBuf> = (0..5).map(write).collect();
    let bytes = fs::read(&paths[4]).unwrap();
    for length in [0, 10, 16, 100, 4096, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&paths[4], &bytes[..length]).unwrap();
        let read = nsys::read(&paths).unwrap();
        assert_eq!((read.job.workers.len(), read.unreadable.len()), (4, 1), "{length}");
        assert_eq!(analyze(&read.job, &Limits::default()).findings[0].root_ranks, [3]);
        let begin = format!("cannot read {}: it ", paths[4].display());
        assert!(refused(&paths[4..]).starts_with(&begin), "{}", refused(&paths[4..]));
    }
    // Any byte may be another one: an answer or an error, and no panic.
    for at in (0..bytes.len()).step_by(bytes.len() / 400 + 1) {
        let mut forged = bytes.clone();
        forged[at] ^= 0xff;
        fs::write(&paths[4], forged).unwrap();
        drop(nsys::read(&paths));
    }
}
