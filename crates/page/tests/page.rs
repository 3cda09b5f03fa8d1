// SPDX-License-Identifier: Apache-2.0
//! Pages about recordings: their contents, and what they must never contain.

use ncclscope_answer::{Answer, Found, State};
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, Waiting, diagnose_in_detail};
use ncclscope_page::{Content, render};
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_stragglers::details::StepDetails;
use ncclscope_stragglers::input::recording;
use ncclscope_stragglers::report::StepRow;
use ncclscope_stragglers::{Details, Judging, SlowReport, analyze_in_detail};
use ncclscope_trace::Recording;
use scripts::{API, Call, Fault, Process};
use serde_json::Value;
use std::time::Duration;

/// Maximum size of a page about 4,096 ranks.
const MAX_BYTES: usize = 10 << 20;

/// The results that a page shows about a run.
struct Shown {
    report: Report,
    slow: SlowReport,
    details: Details,
    hang: Diagnosis,
    waiting: Vec<Waiting>,
}

impl Shown {
    /// The results of the tools for the recordings of two ranks.
    fn of(play: impl Fn(&mut Process)) -> Shown {
        let dir = tempfile::tempdir().unwrap();
        let paths = [0, 1].map(|rank| {
            let mut process = Process::new(rank, 2);
            play(&mut process);
            process.write(dir.path()).unwrap()
        });
        let recordings: Vec<Recording> =
            paths.iter().map(|path| Recording::open(path).unwrap()).collect();
        let (slow, details) = analyze_in_detail(&recording::job(&recordings), &Judging::default());
        let settings = InputOptions { hang: Duration::from_millis(100), ..InputOptions::default() };
        let job = ncclscope_diagnose::open(&paths, &settings).unwrap().job;
        let (hang, waiting) = diagnose_in_detail(&job, &Options::of(settings.hang));
        let mut report = ReportBuilder::default();
        recordings.iter().for_each(|recording| report.add(recording));
        Shown { report: report.finish(), slow, details, hang, waiting }
    }

    /// The results of the tools without recordings.
    fn nothing() -> Shown {
        let (slow, details) = analyze_in_detail(&recording::job(&[]), &Judging::default());
        let job = ncclscope_diagnose::Job::default();
        let (hang, waiting) = diagnose_in_detail(&job, &Options::default());
        Shown { report: ReportBuilder::default().finish(), slow, details, hang, waiting }
    }

    fn answer(&self) -> Answer {
        let Shown { report, slow, hang, .. } = self;
        Answer::of(Found { hang, slow, report }, "run1", "")
    }

    fn page(&self, input: &str) -> String {
        let answer = self.answer();
        let Shown { report, slow, details, hang, waiting } = self;
        let content =
            Content { input, answer: &answer, report, slow, details, hang, waiting, beside: None };
        render(content)
    }
}

/// The data embedded in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

#[test]
fn no_text_of_a_recording_becomes_markup() {
    let evil = "</script><script>alert(1)</script><!--";
    let shown = Shown::of(|process| {
        process.comm.name = Some(evil.into());
        process.header.host = "\"><img src=x onerror=alert(2)>".into();
        process.collective(Call::ALL_REDUCE);
        process.lose(API, ncclscope_trace::EventKind::Coll, 3);
    });
    let page = shown.page("'\"><svg onload=alert(3)>");
    // Only the page's own data and program.
    assert_eq!((count(&page, "<script"), count(&page, "</script")), (2, 2));
    for markup in ["<img", "<svg onload", "<!--", "<script>alert"] {
        assert_eq!(count(&page, markup), 0, "{markup}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    // In the data, texts are unchanged.
    let data = data(&page);
    assert_eq!(data["roles"][0]["role"], evil);
    assert_eq!(data["input"], "'\"><svg onload=alert(3)>");
}

#[test]
fn a_page_asks_for_nothing_and_runs_nothing_but_its_own_script() {
    let page = Shown::of(|process| process.collective(Call::ALL_REDUCE)).page("run1");
    for outside in ["http:", "https:", " src=", " style=", " onclick=", "@import", "javascript:"] {
        assert_eq!(count(&page, outside), 0, "{outside}");
    }
    assert_eq!(count(&page, "url(") - count(&page, "url(#"), 0);
    let (_, policy) = page.split_once("Content-Security-Policy\" content=\"").unwrap();
    let policy = policy.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
}

/// A value by a path such as `duration_ns.p50`.
fn by_path<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| &value[key])
}

#[test]
fn a_finding_says_where_since_when_and_what_to_do() {
    let shown = Shown::of(|process| {
        process.header.closed = false;
        process.collective(Call::ALL_REDUCE);
        if process.comm.rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        }
        process.now += 60_000_000_000;
    });
    let verdict = &shown.hang.findings[0];
    let (place, since) = (&verdict.help.places[0], verdict.help.since.as_ref().unwrap());
    let page = shown.page("run1");
    for line in [
        format!("<strong>Where: </strong>{place}</p>"),
        format!("<strong>Since: </strong>{since}</p>"),
        "<strong>Cost: </strong>all of the job: ".into(),
        format!("<code>ncclscope {} RUN</code>", verdict.class.verb()),
    ] {
        assert!(page.contains(&line), "{line}");
    }
}

#[test]
fn figures_are_those_of_the_report() {
    let shown = Shown::of(|process| {
        process.collective(Call::ALL_REDUCE);
        process.collective(Call { count: 1 << 12, ..Call::ALL_REDUCE });
        process.send_recv(1 - process.comm.rank, 1 << 10);
    });
    let page = shown.page("run1");
    // Parsed as other programs do, which may round the last digit.
    let report: Value =
        serde_json::from_str(&serde_json::to_string(&shown.report).unwrap()).unwrap();
    let data = data(&page);
    assert_eq!(data["report_schema"], report["schema"]);
    for key in ["roles", "sizes", "latencies", "lost", "problems", "notes", "unknowable"] {
        assert_eq!(data[key], report[key], "{key}");
    }
    assert_eq!(data["answer"], serde_json::to_value(shown.answer()).unwrap());
    let tables = data["tables"].as_array().unwrap();
    let mut compared = 0;
    for (id, rows) in [
        ("sizes", "sizes"),
        ("latencies", "latencies"),
        ("operations", "operations"),
        ("links", "peers"),
    ] {
        let table = tables.iter().find(|table| table["id"] == id).unwrap();
        let rows = report[rows].as_array().unwrap();
        assert_eq!(table["rows"].as_array().unwrap().len(), rows.len(), "{id}");
        for shown in table["rows"].as_array().unwrap() {
            let columns =
                table["columns"].as_array().unwrap().iter().zip(shown.as_array().unwrap());
            let known: Vec<(&str, &Value)> = columns
                .map(|(column, value)| (column["key"].as_str().unwrap(), value))
                .filter(|(key, _)| rows[0].get(key.split('.').next().unwrap()).is_some())
                .collect();
            let is_equal =
                |row: &Value| known.iter().all(|(key, value)| by_path(row, key) == *value);
            assert!(rows.iter().any(is_equal), "{id}: {shown} is not in {rows:?}");
            compared += known.len();
        }
    }
    assert!(compared > 40, "{compared}");
    // The charts' descriptions have the same figures.
    let busbw = shown.report.sizes.iter().find_map(|row| row.busbw_gbs).unwrap();
    let said = format!("4 MiB, {} GB/s", ncclscope_operations::human::three(busbw));
    assert!(page.contains(&said), "{said}");
}

#[test]
fn a_run_without_operations_has_a_page() {
    let page = Shown::nothing().page("empty");
    for sentence in ["CANNOT TELL", "No operation was recorded.", "No complete step was recorded."]
    {
        assert!(page.contains(sentence), "{sentence}");
    }
    assert_eq!(count(&page, "NaN") + count(&page, "inf "), 0);
    assert!(data(&page)["tables"].as_array().unwrap().is_empty());
}

#[test]
fn a_hang_shows_who_waits_for_whom() {
    let shown = Shown::of(|process| {
        process.header.closed = false;
        let fault = if process.comm.rank == 1 { Fault::Hang } else { Fault::None };
        process.collective(Call { fault, ..Call::ALL_REDUCE });
    });
    assert_eq!(shown.answer().state, State::Hung, "{:#?}", shown.hang);
    let page = shown.page("run1");
    assert!(page.contains("id=\"wait-graph\"") && page.contains("at fault"));
    let root = shown.hang.findings[0].root_ranks[0];
    assert!(page.contains(&format!("rank {root}: at fault")), "{root}");
    let table = &data(&page)["tables"][0];
    assert_eq!(table["id"], "waits");
    assert_eq!(table["rows"][0][2], "AllReduce", "{table}");
}

/// The rows of a job of 4,096 ranks in four communicators each; the rows are longer than in any
/// real job.
fn many(mut shown: Shown) -> Shown {
    let report = &mut shown.report;
    let (rank, operation) = (report.ranks[0].clone(), report.operations[0].clone());
    let peer = report.peers[0].clone();
    report.ranks.clear();
    for at in 0..4096_u32 {
        for (role, comms) in [("world", 1), ("tensor-parallel", 512), ("dp", 64), ("pp", 32)] {
            let mut row = rank.clone();
            row.rank = Some(at);
            row.host = format!("gpu-node-{:04}.cluster.example", at / 8);
            row.pid = 100_000 + at;
            row.file = format!("{}-{}.nscope", row.host, row.pid);
            row.comm = Some(format!("{:016x}", u64::from(at % comms) * 7919 + u64::from(comms)));
            row.role = Some(role.into());
            report.ranks.push(row);
        }
    }
    let comms: Vec<String> = report.ranks.iter().filter_map(|row| row.comm.clone()).collect();
    report.operations.clear();
    for (at, comm) in (0_u64..40_000).zip(comms.iter().cycle()) {
        let mut row = operation.clone();
        (row.comm, row.bytes) = (comm.clone(), Some(1 << (10 + at % 20)));
        report.operations.push(row);
    }
    // The widest possible histogram: nine decades.
    let mut latency = report.latencies[0].clone();
    let histogram = latency.with_waiting_ns.as_mut().unwrap();
    histogram.buckets = (0..480).map(|at| [1_000_000 + at, 1_000_001 + at, 1_000_000]).collect();
    latency.transfer_ns = latency.with_waiting_ns.clone();
    report.latencies = vec![latency; 20_000];
    report.peers.clear();
    for (at, comm) in (0_u32..40_000).zip(comms.iter().cycle()) {
        let mut row = peer.clone();
        (row.src, row.dst) = (Some(at % 4096), Some((at * 7 + 8) % 4096));
        row.comm = comm.clone();
        report.peers.push(row);
    }
    let step = |step: i64| StepRow {
        step,
        step_count: 1,
        cause: None,
        share: 0.5,
        waiting_share: Some(0.2),
        duration_ns: 812_500_000,
    };
    shown.slow.steps = (0..2000).map(step).collect();
    shown.details.ranks = (0..4096).collect();
    let caused = |step: usize| StepDetails {
        caused_ms: (0..4096_u16).map(|rank| f32::from(rank % 97) * 1.37).collect(),
        own_ms: vec![345.678 + f32::from(u16::try_from(step).unwrap()); 4096],
    };
    shown.details.steps = (0..2000).map(caused).collect();
    shown
}

#[test]
fn a_page_of_4096_ranks_stays_below_10_mb_and_says_what_it_leaves_out() {
    let shown = many(Shown::of(|process| process.collective(Call::ALL_REDUCE)));
    let page = shown.page("big");
    assert!(page.len() < MAX_BYTES, "{} bytes", page.len());
    let data = data(&page);
    let heat = &data["heat"];
    assert_eq!(
        (heat["cells"].as_array().unwrap().len(), &heat["ranks_per_row"]),
        (256, &16.into())
    );
    assert_eq!(data["latencies"].as_array().unwrap().len(), 60);
    let tables = data["tables"].as_array().unwrap();
    let operations = tables.iter().find(|table| table["id"] == "operations").unwrap();
    assert_eq!(operations["left_out"], 28_000);
    assert!(page.contains("28000 further rows found no room"), "the page says so");
}
