// SPDX-License-Identifier: Apache-2.0
//! Reads and compares the output of nccl-tests.

#[path = "../../diagnose/tests/common/others.rs"]
mod others;

use ncclscope_compare::input::nccl_tests::{is_output, read};
use ncclscope_compare::run::Measure;
use ncclscope_compare::schema::{State, Verdict};
use ncclscope_compare::{Limits, Run, compare};
use std::fmt::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// A file with this text, and its directory.
fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn runs(name: &str, text: &str) -> Vec<Run> {
    let (_dir, path) = file(name, text);
    read(&path).unwrap()
}

/// The rows of a run: function, role, size and times in us.
fn rows(run: &Run) -> Vec<(String, u64, Vec<f64>)> {
    let row = |(measure, series): (&Measure, &ncclscope_compare::run::Series)| {
        let Measure::Transfer(of) = measure else { panic!("{measure:?}") };
        let times = series.values.iter().map(|(_, ns)| ns / 1e3).collect();
        (format!("{} {}", of.func, of.role), of.bytes.unwrap(), times)
    };
    run.series.iter().map(row).collect()
}

fn row(name: &str, bytes: u64, times: &[f64]) -> (String, u64, Vec<f64>) {
    (name.to_owned(), bytes, times.to_vec())
}

const COLUMNS: &str = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong";

/// What an invocation prints before its rows.
fn head() -> String {
    format!(
        "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809\n\
         # Collective test starting: all_gather_perf\n\
         # nThread 1 nGpus 2 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 1\n\
         # Using devices\n\
         #  Rank  0 Group  0 Pid   4242 on     blue01 device  0 [0000:1b:00] GPU Model A\n\
         #  Rank  1 Group  0 Pid   4242 on     blue01 device  1 [0000:1c:00] GPU Model A\n\
         #\n\
         #                                  out-of-place                 in-place\n\
         #       {COLUMNS}\n\
         #        (B)    (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)\n"
    )
}

#[test]
fn a_row_is_a_time_out_of_place_and_one_in_place() {
    let text = format!(
        "blue01:4242:4242 [0] NCCL INFO Using network Socket\n{}\
         blue01:4242:4299 [1] NCCL INFO Connected all rings\n\
         \x20  1024   128   float   none   -1   11.50   0.09   0.04   0   10.25   0.10   0.05   0\n\
         \x20  2048   256   float   none   -1  1.2e+06  0.17  0.09  N/A   12.00  0.17  0.09  N/A\n\
         # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.0675\n",
        head()
    );
    let [run] = &runs("job.log", &text)[..] else { panic!() };
    assert_eq!(
        rows(run),
        [
            row("AllGather 2 ranks float in-place", 1024, &[10.25]),
            row("AllGather 2 ranks float in-place", 2048, &[12.0]),
            row("AllGather 2 ranks float out-of-place", 1024, &[11.5]),
            row("AllGather 2 ranks float out-of-place", 2048, &[1.2e6]),
        ]
    );
    assert_eq!((run.gpus, run.name.as_str()), (2, "job.log"));
    assert_eq!(run.notes.len(), 1, "{:?}", run.notes);
}

#[test]
fn wrong_and_broken_rows_are_left_out_and_told() {
    let text = format!(
        "{}\
         \x20  1024   128   float   none   -1   11.50   0.09   0.04   3   10.25   0.10   0.05   0\n\
         \x20  2048   256   float   none   -1 blue01: Test CUDA failure\n",
        head()
    );
    let [run] = &runs("job.log", &text)[..] else { panic!() };
    assert_eq!(rows(run), [row("AllGather 2 ranks float in-place", 1024, &[10.25])]);
    let notes = run.notes.join("\n");
    assert!(notes.contains("1 results left out: data was wrong"), "{notes}");
    assert!(notes.contains("1 rows left out: they are broken off"), "{notes}");
}

/// Older columns, without a root; the prefix of a launcher; rows of another rank.
#[test]
fn columns_are_those_of_the_header_and_rows_have_its_prefix() {
    let lines = [
        "0]<stdout>:# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5",
        "0]<stdout>:#   Rank  0 Pid     77 on     blue01 device  0 [0x07] GPU Model B",
        "0]<stdout>:#   Rank  1 Pid     78 on     blue02 device  0 [0x07] GPU Model B",
        "0]<stdout>:#  size  count  type  redop  time algbw busbw error  time algbw busbw error",
        "1]<stdout>:   8  2  float  sum  99.00  0.00  0.00  1e-07  99.00  0.00  0.00  1e-07",
        "0]<stdout>:   8  2  float  sum  65.50  0.00  0.00  1e-07  65.25  0.00  0.00  1e-07",
    ];
    let text: &str = &lines.map(|line| format!("[1,{line}\n")).concat();
    let [run] = &runs("nightly_reduce_scatter.txt", text)[..] else { panic!() };
    assert_eq!(
        rows(run),
        [
            row("ReduceScatter 2 ranks float sum in-place", 8, &[65.25]),
            row("ReduceScatter 2 ranks float sum out-of-place", 8, &[65.5]),
        ]
    );
    let notes = run.notes.join("\n");
    assert!(notes.contains("the collective of nightly_reduce_scatter.txt is that of its name"));
    let [unnamed] = &runs("job.log", text)[..] else { panic!() };
    assert!(unnamed.notes.join("\n").contains("job.log does not name the collective"));
}

#[test]
fn a_root_and_blank_columns_are_read() {
    let row_in_place = "   1024   256   float   none   1                    10.25  0.10  0.05  0\n";
    let text = head().replace("all_gather", "broadcast") + row_in_place;
    let [run] = &runs("job.log", &text)[..] else { panic!() };
    assert_eq!(rows(run), [row("Broadcast 2 ranks float root 1 in-place", 1024, &[10.25])]);
}

/// Several invocations in one log: of other collectives they are one run, else several.
fn log(invocations: usize, factor: f64) -> String {
    let mut text = String::new();
    for number in 0..invocations {
        for test in ["all_gather_perf", "all_reduce_perf"] {
            text += &head().replace("all_gather_perf", test);
            let us = (50.0 + number as f64 * 0.1) * factor;
            writeln!(text, "1024 128 float none -1 {us:.2} 0.09 0.04 0 {us:.2} 0.10 0.05 0")
                .unwrap();
            writeln!(text, "# Collective test concluded: {test}").unwrap();
        }
    }
    text
}

#[test]
fn a_log_of_several_invocations_has_several_runs() {
    let all = runs("a.log", &log(3, 1.0));
    let names: Vec<&str> = all.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["a.log 1", "a.log 2", "a.log 3"]);
    assert!(all.iter().all(|run| run.series.len() == 4 && run.gpus == 2), "{all:?}");
}

#[test]
fn logs_of_many_runs_are_compared_and_one_run_proves_nothing() {
    let verdicts = |a: &[Run], b: &[Run]| {
        let found = compare(a, b, &Limits::default());
        found.rows.iter().map(|row| row.verdict).collect::<Vec<Verdict>>()
    };
    let many = runs("a.log", &log(8, 1.0));
    assert_eq!(verdicts(&many, &runs("b.log", &log(8, 1.3))), [Verdict::Slower; 4]);
    assert_eq!(verdicts(&many, &runs("b.log", &log(8, 1.0))), [Verdict::Same; 4]);
    let one = runs("a.log", &log(1, 1.0));
    assert_eq!(verdicts(&one, &runs("b.log", &log(1, 1.3))), [Verdict::Unknown; 4]);
}

/// The programs of one collective have no results on B: they failed, or computed wrong data.
#[test]
fn what_only_the_first_side_has_is_not_the_same() {
    let (text, start) = (log(20, 1.0), "# nccl-tests version");
    let a = runs("a", &text);
    let is_whole = |part: &&str| !part.contains("all_reduce_perf");
    let left: Vec<&str> = text.split(start).filter(is_whole).collect();
    let b = runs("b", &left.join(start));
    let state = |a: &[Run], b: &[Run]| compare(a, b, &Limits::default()).answer.state;
    assert_eq!((state(&a, &a), state(&a, &b)), (State::Same, State::Unknown));
    assert_eq!(state(&b, &a), State::Same, "more is no loss");
}

#[test]
fn json_has_the_rows_of_the_text() {
    let text = concat!(
        r#"{"version":2,"start_time":"2026-01-01 00:00:00","args":["\/opt\/all_reduce_perf"],"#,
        r#""env":["A=1"],"nccl_version":22907,"config":{"warmup_iters":1,"iterations":5,"#,
        r#""devices":[{"rank":0,"hostname":"blue01"},{"rank":1,"hostname":"blue02"}]},"results":["#,
        r#"{"size":64,"count":16,"type":"float","redop":"sum","root":"    -1","#,
        r#""out_of_place":{"time":8.5,"alg_bw":1.0,"bus_bw":1.0,"nwrong":0.000000},"#,
        r#""in_place":{"time":"nan","alg_bw":1.0,"bus_bw":1.0,"nwrong":null}},"#,
        r#"{"size":128,"count":32,"type":"float","redop":"sum","root":"-1","out_of_place":null,"#,
        r#""in_place":{"cpu_time":9.5,"alg_bw":1.0,"bus_bw":1.0,"nwrong":2.0}}]}"#
    );
    let (_dir, path) = file("out.json", text);
    assert!(is_output(&path));
    let [run] = &read(&path).unwrap()[..] else { panic!() };
    assert_eq!(rows(run), [row("AllReduce 2 ranks float sum out-of-place", 64, &[8.5])]);
    assert!(run.notes.join("\n").contains("1 results left out: data was wrong"));
    let (_dir, path) = file("out.json", &text[..text.len() - 9]);
    let cut = read(&path).unwrap_err();
    assert!(cut.ends_with("out.json: it ends in the middle"), "{cut}");
}

/// With NCCL_DEBUG=INFO, NCCL writes much between the first line and the columns.
#[test]
fn a_long_log_is_known_by_its_first_line() {
    let (first, columns) = (head(), format!("# {COLUMNS}"));
    let (before, after) = first.split_once(&columns).unwrap_or((&first, ""));
    let lines = "blue01:4242:4299 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1]\n".repeat(4_000);
    let row = "1024 128 float none -1 11.50 0.09 0.04 0 10.25 0.10 0.05 0\n";
    let (_dir, path) = file("job.log", &format!("{before}{lines}{columns}{after}\n{row}"));
    assert!(is_output(&path));
    assert_eq!(read(&path).unwrap()[0].series.len(), 2);
}

#[test]
fn what_has_no_results_is_refused() {
    let (_dir, empty) = file("a.log", &head());
    assert!(is_output(&empty));
    assert!(read(&empty).unwrap_err().ends_with("a.log: it has no result of nccl-tests"));
    let (_dir, other) = file("b.log", "size of the matter\n# time algbw busbw\n\u{0}\u{1}");
    assert!(!is_output(&other));
}

/// The log of superbenchmark: 33 sizes, of which 0 B is there twice.
#[test]
fn a_log_of_others_is_read() {
    let Some(folder) = others::find("field/unread-formats") else { return };
    let log = folder.join("nccl_allreduce.log");
    assert!(is_output(&log));
    let [run] = &read(&log).unwrap()[..] else { panic!() };
    let rows = rows(run);
    let values: usize = rows.iter().map(|(.., times)| times.len()).sum();
    assert_eq!((rows.len(), values, run.gpus), (66, 68, 8));
    let last = rows.iter().find(|row| row.1 == 8_589_934_592 && row.0.ends_with("out-of-place"));
    let name = "AllReduce 8 ranks float sum out-of-place";
    assert_eq!(last, Some(&row(name, 8_589_934_592, &[63_896.0])));
}

/// A sweep over these sizes, of which some take `factor` times as long; `run` gives it some noise.
fn sweep(sizes: &[u64], run: u64, factor: impl Fn(u64) -> f64) -> Vec<Run> {
    let mut text = head();
    for &bytes in sizes {
        let us = |place: u64| {
            let noise =
                1.0 + 0.001 * to_f64((run * 7 + place + bytes.trailing_zeros() as u64) % 10);
            100.0 * noise * factor(bytes)
        };
        let (out, inside) = (us(0), us(1));
        writeln!(text, "{bytes} 1 float none -1 {out:.3} 0.1 0.1 0 {inside:.3} 0.1 0.1 0").unwrap();
    }
    runs("job.log", &text)
}

fn to_f64(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap())
}

/// The default sweep, of which the sizes from 64 MiB on take 40 % longer on side B.
#[test]
fn too_few_runs_for_the_rows_are_told_with_how_many_are_enough() {
    let sizes: Vec<u64> = (3..34).map(|log| 1 << log).collect();
    let compared = |count: u64| {
        let side = |slower: f64| {
            let factor = move |bytes| if bytes >= 64 << 20 { slower } else { 1.0 };
            (0..count).flat_map(|run| sweep(&sizes, run, factor)).collect::<Vec<Run>>()
        };
        compare(&side(1.0), &side(1.4), &Limits::default())
    };
    let five = compared(5);
    let why = "5 runs on a side prove nothing among so many rows: give 6 on each";
    assert_eq!((five.undecided(0.05), &*five.answer.what), (16, why), "{five:#?}");
    assert_eq!(five.undecided(0.5), 0);
    let six = compared(6);
    let slower = six.rows.iter().filter(|row| row.verdict == Verdict::Slower).count();
    assert_eq!((six.undecided(0.05), slower), (0, 16), "{six:#?}");
}

#[test]
fn each_size_of_a_sweep_is_a_row() {
    let sizes: Vec<u64> = (64..128).map(|mib| mib << 20).collect();
    let slow = |bytes| if bytes == 70 << 20 { 3.0 } else { 1.0 };
    let a: Vec<Run> = (0..8).flat_map(|run| sweep(&sizes, run, |_| 1.0)).collect();
    let b: Vec<Run> = (0..8).flat_map(|run| sweep(&sizes, run, slow)).collect();
    let found = compare(&a, &b, &Limits::default());
    assert_eq!(found.rows.len(), 128);
    let slower = found.rows.iter().filter(|row| row.verdict == Verdict::Slower);
    let slower: Vec<_> = slower.map(|row| (row.key.bytes, row.key.bytes_below)).collect();
    assert_eq!(slower, [(Some(70 << 20), None); 2], "{found:#?}");
}
