// SPDX-License-Identifier: Apache-2.0
//! `ncclscope stragglers`: its output and its exit codes.

use crate::common::{Outcome, Run, ncclscope, simulate, tool};
use crate::others::find;
use crate::schema::follows;
use ncclscope_answer::Moment;
use ncclscope_trace::{Mark, MarkKind, define::StrId};
use scripts::Call;
use serde_json::Value;
use std::process::Command;

/// Twelve steps of two ranks that arrive together.
fn healthy() -> Run {
    Run::new(|p| {
        for step in 0..12 {
            let (ticks, name) = (p.now, StrId::NONE);
            p.marks.push(Mark { ticks, what: MarkKind::Step, name, value: step });
            p.now += 20_000_000;
            p.collective(Call::ALL_REDUCE);
        }
    })
}

const SECOND: u64 = 1_000_000_000;

fn json(run: &str, code: i32) -> Value {
    let args = ["stragglers", run, "--format", "json"];
    serde_json::from_str(&ncclscope(&args).ends_with(code).stdout).unwrap()
}

#[test]
fn ranks_that_arrive_together_have_no_findings() {
    let run = healthy();
    let report = json(run.text(), 0);
    assert_eq!(report["schema"], "ncclscope.stragglers/3");
    assert_eq!(report["findings"], Value::Array(vec![]));
    assert_eq!(report["steps"].as_array().unwrap().len(), 12);
    assert!(report["clock"]["max_residual_ns"].as_u64().unwrap() < 100_000, "{report}");
    let text = ncclscope(&["stragglers", run.text()]).ends_with(0).stdout;
    assert!(text.contains("12 steps (from marks)") && text.contains("SLOW\n  nothing"), "{text}");
}

/// In JSON a communicator has its hash and, in another field, the application's name, as in
/// `report`. In text, one column has both.
#[test]
fn a_communicator_is_its_hash_and_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let run = run.to_str().unwrap();
    ncclscope(&["simulate", "-o", run, "--fault", "slow-link", "--seed", "2"]).ends_with(0);
    let report = json(run, 1);
    let hashed = |of: &Value| {
        let comm = of["comm"].as_str().unwrap();
        comm.starts_with("0x") && !comm.contains(' ') && of["comm_name"].is_null()
    };
    let comms = report["findings"][0]["comms"].as_array().unwrap();
    assert!(!comms.is_empty() && comms.iter().all(hashed), "{report}");
    let arrivers = report["last_arrivers"].as_array().unwrap();
    assert!(!arrivers.is_empty() && arrivers.iter().all(hashed), "{report}");
    let csv = ncclscope(&["stragglers", run, "--format", "csv"]).ends_with(1).stdout;
    assert!(csv.contains(&format!(",{},", comms[0]["comm"].as_str().unwrap())), "{csv}");
}

/// Each rule says what it saw of a rank, and which limit decided; a rule that is switched off finds
/// nothing, and the report says so.
#[test]
fn rules_say_why_they_report_nothing_and_can_be_switched_off() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let run = run.to_str().unwrap();
    ncclscope(&["simulate", "-o", run, "--fault", "slow-gpu", "--seed", "1"]).ends_with(0);
    let slow = json(run, 1)["findings"][0]["root_ranks"][0].as_u64().unwrap();
    let other = if slow == 0 { 1 } else { 0 };
    let asked = |rank: u64| {
        let rank = rank.to_string();
        let args = ["stragglers", run, "--format", "json", "--why-not", "--rank", &rank];
        let report: Value = serde_json::from_str(&ncclscope(&args).stdout).unwrap();
        follows(&report, "stragglers");
        report["why_not"].as_array().unwrap().clone()
    };
    let outcomes = |seen: &[Value], name: &str| -> Vec<String> {
        let of = seen.iter().filter(|one| one["rule"] == name);
        of.map(|one| one["outcome"].as_str().unwrap().to_owned()).collect()
    };
    let [of_slow, of_other] = [slow, other].map(asked);
    assert!(outcomes(&of_slow, "slow-rank").contains(&"found".into()), "{of_slow:#?}");
    let of_other_rank = outcomes(&of_other, "slow-rank");
    assert!(of_other_rank.contains(&"not".into()) && !of_other_rank.contains(&"found".into()));
    for rule in ["slow-rank", "slow-link", "slowed-transfers", "slow-gpu", "changed-algorithm"] {
        assert!(!outcomes(&of_other, rule).is_empty(), "{rule}: {of_other:#?}");
    }
    let is_of = |one: &Value| {
        let ranks = one["ranks"].as_array().unwrap();
        ranks.is_empty() || ranks.contains(&other.into())
    };
    assert!(of_other.iter().all(is_of));
    let text = ncclscope(&["stragglers", run, "--why-not"]).ends_with(1).stdout;
    assert!(text.contains("WHY NOT MORE") && text.contains("costs less than 2.0 % of a step"));
    let without = ncclscope(&["stragglers", run, "--without", "slow-rank"]).ends_with(0).stdout;
    assert!(without.contains("slow-rank is switched off"), "{without}");
    assert!(
        ncclscope(&["stragglers", run, "--without", "slow"])
            .ends_with(2)
            .stderr
            .contains("slow-gpu")
    );
    let rules = ncclscope(&["stragglers", "--list-rules"]).ends_with(0).stdout;
    assert!(rules.contains("slow-link (S3, S4)"), "{rules}");
    assert_eq!(json(run, 1).get("why_not"), None);
}

/// Class, ranks and link of findings or of the planted faults.
fn essence(findings: &Value) -> Vec<[String; 3]> {
    let findings = findings.as_array().unwrap().iter();
    let mut all: Vec<[String; 3]> = findings
        .map(|f| [&f["class"], &f["root_ranks"], &f["edge"]].map(ToString::to_string))
        .collect();
    // A link names both ranks; a truth may name one end as the root.
    all.iter_mut().filter(|f| f[2] != "null").for_each(|f| f[1].clear());
    all
}

/// The findings in a simulated job of 16 ranks are the planted faults and nothing else.
#[track_caller]
fn finds_what_was_planted(fault: &str, code: i32) {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let run = run.to_str().unwrap();
    ncclscope(&["simulate", "-o", run, "--seed", "1", "--fault", fault]).ends_with(0);
    let truth = std::fs::read(directory.path().join("run/truth.json")).unwrap();
    let truth: Value = serde_json::from_slice(&truth).unwrap();
    let report = json(run, code);
    follows(&report, "stragglers");
    assert_eq!(essence(&report["findings"]), essence(&truth["slow"]), "{fault}");
    // Each finding starts when its fault was planted: not earlier, except for clock offsets, nor
    // much later.
    for finding in report["findings"].as_array().unwrap().iter().filter(|it| it["class"] != "N5") {
        let since = Moment::parse_ns(finding["since"].as_str().unwrap()).unwrap() / SECOND;
        let planted = truth["injected_ns"].as_u64().unwrap() / SECOND;
        assert!((planted - 1..planted + 30).contains(&since), "{fault}: {finding:#}");
    }
}

#[test]
fn slow_ranks_and_hosts_of_a_simulated_job_are_named() {
    for fault in ["slow-gpu", "launch-bound", "long-last-stage"] {
        finds_what_was_planted(fault, 1);
    }
}

#[test]
fn slow_links_and_changes_of_a_simulated_job_are_named() {
    for fault in ["slow-link", "slow-nic", "slow-nvlink", "drift", "algo-change"] {
        finds_what_was_planted(fault, 1);
    }
}

/// A GPU that is slow inside collectives, in a pipeline whose stages are nodes: the ranks of its
/// node are suspects, and no link out of it makes a finding that names a healthy rank.
#[test]
fn a_link_out_of_a_slow_node_is_not_blamed() {
    let directory = tempfile::tempdir().unwrap();
    for seed in ["1", "3", "5"] {
        let run = directory.path().join(seed);
        let run = run.to_str().unwrap();
        let job = ["--ranks", "16", "--tp", "1", "--pp", "4", "--fault", "slow-kernels"];
        ncclscope(&[&["simulate", "-o", run, "--seed", seed], &job[..]].concat()).ends_with(0);
        let report = json(run, 1);
        let findings = report["findings"].as_array().unwrap();
        let classes: Vec<&Value> = findings.iter().map(|finding| &finding["class"]).collect();
        assert_eq!(classes, ["S5"], "seed {seed}: {report:#}");
        let truth = std::fs::read(directory.path().join(seed).join("truth.json")).unwrap();
        let truth: Value = serde_json::from_slice(&truth).unwrap();
        let slow = &truth["slow"][0]["root_ranks"][0];
        let suspects = findings[0]["root_ranks"].as_array().unwrap();
        assert!(suspects.contains(slow), "seed {seed}: {slow} {suspects:?}");
    }
}

/// A GPU fills its send buffers more slowly than the network, which has a long latency, takes them:
/// sends complete as rarely as they are made, but are on the network no longer than others.
#[test]
fn the_link_out_of_a_slow_gpu_of_a_pipeline_is_suspect_at_most() {
    let scenario = "seed = 1\n[job]\nranks = 8\nper_host = 3\ntp = 1\npp = 4\ndp = 2\nsteps = 16\n\
                    microbatches = 16\n[machine]\nnetwork_gb_s = 12.5\nforward_us = 500\n\
                    network_ns = 50000\n[[fault]]\nname = 'slow-kernels'\nfactor = 6.0\nrank = 2\n";
    let directory = tempfile::tempdir().unwrap();
    let run = simulate(directory.path(), "run", scenario, &[]);
    let report = json(run.to_str().unwrap(), 1);
    let [found] = &report["findings"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!((&found["class"], &found["edge"]), (&Value::from("S3"), &Value::from(vec![2, 4])));
    assert_eq!(found["confidence"], "suspect");
    let title = "the link from rank 2 to rank 4, or a GPU at one end, is slow";
    assert_eq!(found["title"], title);
}

/// The first cause of the waiting is the finding, whatever it is about.
#[test]
fn the_waiting_belongs_to_the_finding() {
    let directory = tempfile::tempdir().unwrap();
    let first_cause = |fault: &str| {
        let run = directory.path().join(fault);
        let run = run.to_str().unwrap();
        ncclscope(&["simulate", "-o", run, "--seed", "1", "--fault", fault]).ends_with(0);
        let text = ncclscope(&["stragglers", run]).stdout;
        let table = text.split_once("CAUSES OF THE WAITING").unwrap().1;
        table.lines().nth(2).unwrap().trim().to_owned()
    };
    for (fault, name, class) in [
        ("slow-gpu", "rank ", "S1"),
        ("slow-link", "link from rank ", "S3"),
        ("slow-nic", "rank", "S4"),
        ("long-last-stage", "stage 1", "S1"),
        ("drift", "transfers of ", "S2"),
    ] {
        let row = first_cause(fault);
        assert!(row.starts_with(name) && row.ends_with(class), "{fault}: {row}");
    }
    let healthy = first_cause("healthy");
    assert!(healthy.starts_with("further ranks") || healthy.starts_with("usual"), "{healthy}");
}

/// In each step most waiting leads to the last stage. Only the slow rank is slower than its peers.
#[test]
fn a_slow_rank_in_a_pipeline_is_the_first_cause() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let run = run.to_str().unwrap();
    let job = ["simulate", "--ranks", "128", "--pp", "8", "--steps", "12", "--seed", "1"];
    ncclscope(&[&job[..], &["--fault", "slow-gpu", "-o", run]].concat()).ends_with(0);
    let report = ncclscope(&["stragglers", run, "--format", "json"]).ends_with(1).stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    let cause = &report["causes"][0];
    assert_eq!((&cause["finding"], &cause["root"]), (&"S1".into(), &report["findings"][0]["root"]));
    assert_eq!(cause["share"], report["findings"][0]["share"]);
    let parts = report["causes"].as_array().unwrap().iter().map(|of| of["share"].as_f64().unwrap());
    let sum = parts.sum::<f64>() + report["usual_share"].as_f64().unwrap();
    assert!((0.98..1.0001).contains(&sum), "{sum}");
}

#[test]
fn a_host_that_launches_slowly_is_shown_by_times_with_units() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().to_str().unwrap();
    ncclscope(&["simulate", "-o", run, "--seed", "1", "--fault", "launch-bound"]).ends_with(0);
    let text = ncclscope(&["stragglers", run]).ends_with(1).stdout;
    let line = text.lines().find(|line| line.contains("its kernels start ")).unwrap();
    assert!(line.contains("start at once, the others' "), "{line}");
    assert!(line.contains(" ms after they are enqueued: its GPU has nothing else to do"), "{line}");
}

/// The mean duration of a step.
fn step_ns(report: &Value) -> f64 {
    let steps = report["steps"].as_array().unwrap();
    let sum: f64 = steps.iter().map(|step| step["duration_ns"].as_f64().unwrap()).sum();
    sum / steps.len() as f64
}

/// The cost of a finding is how much longer steps are than in the same job without the fault.
#[test]
fn a_finding_costs_what_the_healthy_job_would_save() {
    let directory = tempfile::tempdir().unwrap();
    let simulated = |fault: &str, code| {
        let run = directory.path().join(fault);
        let run = run.to_str().unwrap();
        ncclscope(&["simulate", "-o", run, "--fault", fault, "--seed", "3"]).ends_with(0);
        json(run, code)
    };
    let healthy = step_ns(&simulated("healthy", 0));
    let faults =
        ["slow-gpu", "slow-kernels", "slow-link", "slow-nic", "slow-nvlink", "long-last-stage"];
    for fault in faults {
        let report = simulated(fault, 1);
        let slower = 1.0 - healthy / step_ns(&report);
        let cost = &report["findings"][0]["cost"];
        let share = cost["step_share"].as_f64().unwrap();
        let said = format!("{fault}: {slower} of a step, found {cost}");
        assert!((share / slower - 1.0).abs() < 0.25, "{said}");
        let [low, high] = [0, 1].map(|end| cost["interval"][end].as_f64().unwrap());
        assert!((low..=high).contains(&slower), "{said}");
        assert_eq!(cost["is_most"], false, "{said}");
    }
}

#[test]
fn healthy_simulated_jobs_are_left_alone() {
    for fault in ["healthy", "jitter", "clocks", "checkpoint"] {
        finds_what_was_planted(fault, 0);
    }
}

/// Data of a receive arrives, and a buffer for a send comes free, long before their turn. An inner
/// stage sends twice as much as an outer one, and its GPU works while the proxy sends the rest.
#[test]
fn a_pipeline_that_waits_for_its_network_has_no_slow_gpu() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = [
        "ranks = 6\ntp = 1\npp = 2\ndp = 3\nper_host = 1\n[machine]\nforward_us = 500\n",
        "ranks = 3\ntp = 1\npp = 3\nper_host = 1\nsteps = 13\nmicrobatches = 2\n\
         [machine]\nnetwork_gb_s = 1.25\nforward_us = 2000\njitter = 0.0\n",
        "ranks = 8\ntp = 2\npp = 4\nper_host = 4\nsteps = 30\n\
         [machine]\nnetwork_gb_s = 6.0\nforward_us = 500\njitter = 0.0\n",
    ];
    for (number, job) in jobs.iter().enumerate() {
        let [file, run] =
            ["toml", "run"].map(|end| directory.path().join(format!("{number}.{end}")));
        std::fs::write(&file, format!("[job]\n{job}")).unwrap();
        let (file, run) = (file.to_str().unwrap(), run.to_str().unwrap());
        ncclscope(&["simulate", file, "-o", run, "--seed", "1"]).ends_with(0);
        assert_eq!(json(run, 0)["findings"], Value::Array(vec![]), "{job}");
    }
}

/// A rank whose operations were overwritten must not look as if it had worked on its own.
#[test]
fn recordings_that_were_too_small_make_no_rank_slow() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let run = run.to_str().unwrap();
    let args = ["--ranks", "64", "--seed", "1", "--fault", "ring-overflow"];
    ncclscope(&[&["simulate", "-o", run][..], &args].concat()).ends_with(0);
    let report = json(run, 0);
    assert!(report["steps"].as_array().unwrap().len() >= 10, "{}", report["steps"]);
    assert!(report["notes"].to_string().contains("overwritten"), "{}", report["notes"]);
}

/// A recording that cannot be read may contain the actual cause.
#[test]
fn a_recording_that_cannot_be_read_takes_precedence_over_findings() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let run = run.to_str().unwrap();
    ncclscope(&["simulate", "-o", run, "--seed", "1", "--fault", "slow-gpu"]).ends_with(0);
    assert_ne!(json(run, 1)["findings"], Value::Array(vec![]));
    std::fs::write(directory.path().join("run/node-0-1.nscope"), "no recording").unwrap();
    assert_ne!(json(run, 3)["findings"], Value::Array(vec![]));
}

#[test]
fn bad_input_gets_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let fifo = |name: &str| {
        assert!(Command::new("mkfifo").arg(path(name)).status().unwrap().success());
        path(name)
    };
    std::fs::write(path("a.parquet"), "not a table").unwrap();
    std::fs::write(path("a.json"), "{\"traceEvents\": []}").unwrap();
    std::fs::write(path("b.json"), "{\"traceEv").unwrap();
    std::fs::write(path("a.tar.gz"), "not compressed").unwrap();
    let (table, trace) = (path("a.parquet"), path("a.json"));
    for (args, code, what) in [
        (vec!["missing"], 3, "cannot read missing"),
        (vec![&table], 3, "cannot read"),
        (vec![&trace], 3, "no NCCL kernel"),
        (vec![&path("b.json")], 3, "cannot read"),
        (vec![&path("a.tar.gz")], 3, "cannot read"),
        (vec![&fifo("f.parquet")], 3, "not an ordinary file"),
        (vec![&fifo("f.json")], 3, "not an ordinary file"),
        (vec![&fifo("f.tar.gz")], 3, "not an ordinary file"),
        (vec![&table, &trace], 2, "cannot be read together"),
        (vec![&table, &table], 2, "one .parquet file"),
        (vec![&trace, "--threshold", "0"], 2, "expected a percentage"),
    ] {
        let args: Vec<&str> = std::iter::once("stragglers").chain(args.iter().copied()).collect();
        let outcome = ncclscope(&args).ends_with(code);
        assert!(outcome.stderr.contains(what), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
}

/// Other files in a directory, which the verb does not read, are named by each verb that reads
/// directories.
#[test]
fn what_is_left_out_of_a_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let said = |verb: &str, of: &str| ncclscope(&[verb, &path(of)]).stderr;
    ncclscope(&["simulate", "-o", &path("run"), "--ranks", "4", "--steps", "2"]).ends_with(0);
    let is_read = |verb: &str| !said(verb, "run").contains("not read");
    assert!(["report", "diagnose", "stragglers"].into_iter().all(is_read));
    for name in ["run/a.tar.gz", "run/b.zip", "run/r0.pt.trace.json"] {
        std::fs::write(path(name), "{}").unwrap();
    }
    let archives = "run/a.tar.gz and 1 more file are not read: to read an archive, unpack it";
    for verb in ["report", "diagnose", "stragglers"] {
        assert!(said(verb, "run").contains(archives), "{verb}: {}", said(verb, "run"));
    }
    let alone = "is not read: of a directory, files of one kind are; name it alone";
    let trace = format!("run/r0.pt.trace.json {alone}");
    assert!(said("stragglers", "run").contains(&trace), "{}", said("stragglers", "run"));
    assert!(!said("report", "run").contains("trace.json"), "report reads no traces");
    // An archive beside a trace.
    std::fs::create_dir(path("traces")).unwrap();
    std::fs::write(path("traces/a.json"), "{\"traceEvents\": []}").unwrap();
    std::fs::write(path("traces/a.tgz"), "").unwrap();
    let beside = said("stragglers", "traces");
    assert!(beside.contains(&format!("traces/a.tgz {alone}")), "{beside}");
    // With the archive alone: the verb that reads it is named.
    std::fs::remove_file(path("traces/a.json")).unwrap();
    let only = said("report", "traces");
    assert!(only.contains("traces/a.tgz` reads PyTorch's traces in a.tgz"), "{only}");
}

/// A missing directory for the archive's traces is not reported as damaged input: the archive may
/// be intact.
#[test]
fn an_archive_needs_a_place_for_its_traces() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::write(place.join("a.json"), "{\"traceEvents\": []}").unwrap();
    let archive = place.join("a.tar");
    let packed =
        Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(place).arg("a.json").status();
    assert!(packed.unwrap().success());
    let mut stragglers = tool();
    stragglers.arg("stragglers").arg(&archive);
    let sound = Outcome::of(&mut stragglers).ends_with(3);
    assert!(sound.stderr.contains("a.tar/a.json: it shows no NCCL kernel"), "{}", sound.stderr);
    let outcome = Outcome::of(stragglers.env("TMPDIR", "/nonexistent")).ends_with(4);
    assert!(outcome.stderr.contains("cannot write in /nonexistent (TMPDIR): "), "{outcome:?}");
}

/// The forms of shared/data/field/kineto-folder-forms, and traces of half the ranks.
#[test]
fn real_traces_in_the_forms_that_people_have() {
    let Some(place) = find("field/kineto-missing-ranks") else { return };
    let half = json(place.to_str().unwrap(), 1);
    assert_eq!(half["findings"][0]["confidence"], "suspect", "{half}");
    let missing = "ranks 4-7 may be the cause: no trace of 4 of 8 ranks";
    assert!(half["quiet"][0].as_str().unwrap().ends_with(missing), "{half}");
    let text = ncclscope(&["stragglers", place.to_str().unwrap()]).stdout;
    assert!(text.contains(missing) && !text.contains("within the limits"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for rank in 0..8 {
        let below = if rank < 4 { "" } else { "the-other-half/" };
        let bytes = std::fs::read(place.join(format!("{below}rank{rank}.json"))).unwrap();
        std::fs::create_dir(path(&format!("rank{rank}"))).unwrap();
        std::fs::write(path(&format!("rank{rank}/trace.json")), bytes).unwrap();
    }
    std::fs::write(path("rank0/._trace.json"), "\0\x05\x16\x07").unwrap();
    std::fs::write(path("rank0/args.json"), "{\"schema\": \"ncclscope.run/1\"}").unwrap();
    let whole = json(folder.path().to_str().unwrap(), 1);
    assert_eq!(whole["findings"][0]["root_ranks"], serde_json::json!([7]), "{whole}");
    assert_eq!((&whole["workers"], &whole["quiet"]), (&8.into(), &Value::Array(vec![])));
    assert_eq!(whole["steps"][3]["cause"], 0);
    assert_eq!(whole["causes"][0]["root"]["rank"], 7);
    std::fs::write(path("rank5/trace.json"), "{\"traceEvents\": [{\"ph\": ").unwrap();
    let cut = ncclscope(&["stragglers", folder.path().to_str().unwrap()]).ends_with(3);
    assert!(cut.stderr.contains("rank5/trace.json: it is cut off"), "{}", cut.stderr);
    assert!(cut.stdout.contains("7 workers") && cut.stdout.contains("rank 5 may be the cause"));
}

#[test]
fn the_last_arrivers_of_a_real_job() {
    let Some(path) = find("kineto/dlrm_kineto.tar.gz") else { return };
    let args = ["stragglers", path.to_str().unwrap(), "--format", "json"];
    let report: Value = serde_json::from_str(&ncclscope(&args).ends_with(0).stdout).unwrap();
    let rows = report["last_arrivers"].as_array().unwrap().iter();
    let last: Vec<u64> = rows.map(|row| row["last"]["rank"].as_u64().unwrap()).collect();
    assert_eq!(last, [7, 7, 7, 7, 7, 5, 5, 4]);
}

/// Links are not judged for a part of the recorded time, but a communicator between hosts still has
/// links.
#[test]
fn a_part_of_the_time_does_not_turn_a_slow_link_into_a_slow_node() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let fault = ["--ranks", "16", "--seed", "3", "--fault", "slow-link"];
    ncclscope(&[&["simulate", "-o", path], &fault[..]].concat()).ends_with(0);
    let found = |options: &[&str]| {
        let args = [&["stragglers", path, "--format", "json"], options].concat();
        let report: Value = serde_json::from_str(&ncclscope(&args).stdout).unwrap();
        report["findings"].as_array().unwrap().clone()
    };
    let all = found(&[]);
    assert_eq!((&all[0]["class"], &all[0]["lost_share"]), (&"S3".into(), &Value::Null));
    for part in [["--steps", "0-9"], ["--from", "+0.1s"]] {
        assert!(found(&part).iter().all(|one| one["class"] != "S5"), "{part:?}");
    }
}
