// SPDX-License-Identifier: Apache-2.0
//! The first five lines of `report`: the state of the job, the ranks at fault, and why.

use crate::common::{Run, ncclscope, simulate};
use crate::h100::unpack;
use crate::schema::follows;
use scripts::Call;
use serde_json::{Value, json};

const SMALL: [&str; 4] = ["--seed", "1", "--steps", "12"];

/// The lines of `report` about a simulated job, and its JSON.
fn report(args: &[&str]) -> (Vec<String>, Value) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a job");
    let out = out.to_str().unwrap();
    let ranks = if args.contains(&"--ranks") { &[][..] } else { &["--ranks", "16"] };
    ncclscope(&[&["simulate", "-o", out], &SMALL[..], ranks, args].concat()).ends_with(0);
    let text = ncclscope(&["report", out]).ends_with(0).stdout;
    let json = ncclscope(&["report", "--format", "json", out]).ends_with(0).stdout;
    let json = serde_json::from_str(&json).unwrap();
    follows(&json, "report");
    (text.lines().map(str::to_owned).collect(), json)
}

#[test]
fn a_hang_is_the_first_word_with_its_rank_cause_and_cost() {
    let (lines, json) = report(&["--fault", "host-stuck", "--rank", "10"]);
    assert!(lines[0].starts_with("HUNG  since 20"), "{lines:#?}");
    assert!(lines[0].contains("15 of 16 ranks wait in NCCL for 59.8 s"), "{lines:#?}");
    assert_eq!(lines[1], "who   rank 10 (node-0002, local rank 2, GPU 2, pid 10640)");
    let why = "why   H1a host-stuck (confirmed): rank 10 stopped calling NCCL: ";
    assert!(lines[2].starts_with(why), "{lines:#?}");
    assert_eq!(lines[3], "cost  all of the job: 384 GPU-hours a day");
    let next = lines[4].strip_prefix("next  ncclscope diagnose '").unwrap();
    assert!(next.ends_with("/a job'"), "a name that a shell must not split: {next}");
    assert!(lines.len() <= 60, "{}", lines.len());

    let answer = &json["answer"];
    assert_eq!(answer["state"], "HUNG");
    assert_eq!(answer["classes"], json!(["H1a"]));
    assert_eq!(answer["root_ranks"], json!([10]));
    let place =
        json!({"rank": 10, "host": "node-0002", "pid": 10640, "local_rank": 2, "device": 2});
    assert_eq!(answer["where"], json!([place]));
    assert_eq!(
        answer["cost"],
        json!({"step_share": 1.0, "gpu_hours_per_day": 384.0, "is_most": false, "interval": null})
    );
    let since = answer["since"].as_str().unwrap();
    assert!(lines[0].contains(since), "{since}");
}

/// Late ranks that the answer does not name first are no contradiction, and the report says so.
#[test]
fn other_late_ranks_than_the_answers_are_explained() {
    for (faults, root, why) in [
        (&["slow-gpu"][..], 10, None),
        (&["slow-nic"], 13, Some("these came last to collectives, whatever delayed them; the ")),
        (&["host-stuck", "slow-gpu"], 5, Some("these came last to collectives that completed; ")),
        (&["jitter"], -1, Some("ranks wait for one another in every job; none of these is slow")),
    ] {
        let args: Vec<&str> = faults.iter().flat_map(|fault| ["--fault", fault]).collect();
        let (lines, json) = report(&args);
        let roots = if root < 0 { json!([]) } else { json!([root]) };
        assert_eq!(json["answer"]["root_ranks"], roots, "{faults:?}");
        let is_first = json["late_ranks"][0]["rank"] == root;
        assert_eq!(is_first, why.is_none(), "{faults:?}: {lines:#?}");
        let heading = lines.iter().position(|line| line.starts_with("LATE RANKS")).unwrap();
        let below = lines[heading + 1].trim();
        match why {
            Some(why) => assert!(below.starts_with(why), "{faults:?}: {lines:#?}"),
            None => assert!(below.starts_with("rank 10 "), "{faults:?}: {lines:#?}"),
        }
        assert!(lines.len() <= 60, "{faults:?}: {}", lines.len());
    }
}

/// The ranks take turns on one GPU: while rank 1 has it, data waits for rank 0, which is true and
/// costs little. The cause that costs most comes first, with its rank. That they share the GPU
/// makes both suspicions.
#[test]
fn the_late_rank_of_a_training_on_a_gpu_comes_before_what_costs_less() {
    let dir = tempfile::tempdir().unwrap();
    unpack("late", dir.path());
    let dir = dir.path().to_str().unwrap();
    let text = ncclscope(&["report", dir]).ends_with(0).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("SLOW  since 2026-11-26T15:16:46Z, from the first"), "{text}");
    let who = "who   rank 1 (vm, GPU 0, pid 1027); also rank 0 (vm, GPU 0, pid 1026)";
    assert_eq!(lines[1], who);
    assert!(lines[2].starts_with("why   S1 slow-rank (suspected): "), "{text}");
    assert!(lines[2].ends_with("; also N5 gpu-not-consuming (suspected), rank 0"), "{text}");
    assert_eq!(lines[3], "cost  85.6 % of each step (84.6 to 86.6 %): 41 GPU-hours a day");
}

#[test]
fn a_slow_rank_is_named_with_what_it_costs() {
    let (lines, json) = report(&["--fault", "slow-gpu", "--rank", "8"]);
    let since = json["answer"]["since"].as_str().unwrap();
    let first = "from the first recorded step on: 16 ranks make progress, but";
    let first = format!("SLOW  since {since}, {first}");
    assert!(since.starts_with("20") && lines[0].starts_with(&first), "{lines:#?}");
    assert!(lines[1].starts_with("who   rank 8 (node-0002,"), "{lines:#?}");
    assert!(lines[2].starts_with("why   S1 slow-rank (confirmed): rank 8 is slow"), "{lines:#?}");
    let share = json["answer"]["cost"]["step_share"].as_f64().unwrap();
    assert!(lines[3].starts_with(&format!("cost  {:.1} % of each step (", 100.0 * share)));
    let hours = json["answer"]["cost"]["gpu_hours_per_day"].as_f64().unwrap();
    assert!((hours - 24.0 * 16.0 * share).abs() < 1e-6, "{hours}");
    assert!(lines[4].starts_with("next  ncclscope stragglers "), "{lines:#?}");
}

#[test]
fn slow_since_the_middle_of_the_run_has_that_time() {
    let (lines, json) = report(&["--fault", "drift"]);
    let since = json["answer"]["since"].as_str().unwrap();
    let first = format!("SLOW  since {since}: 16 ranks make progress, but");
    assert!(lines[0].starts_with(&first), "{lines:#?}");
}

#[test]
fn a_link_is_named_with_both_ends() {
    let (lines, json) = report(&["--fault", "slow-link"]);
    let roots = &json["answer"]["root_ranks"];
    assert!(lines[1].starts_with("who   the link from rank "), "{lines:#?}");
    for place in json["answer"]["where"].as_array().unwrap() {
        let name = format!("rank {} ({},", place["rank"], place["host"].as_str().unwrap());
        assert!(lines[1].contains(&name), "{roots} {lines:#?}");
    }
    assert!(lines[2].contains("x slower"), "{lines:#?}");
}

/// Who is at fault for which of several causes.
#[test]
fn the_worst_cause_has_its_own_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("two.toml");
    let text = "seed = 13\n[job]\nranks = 16\nsteps = 12\n[[fault]]\nname = \"slow-gpu\"\n\
                rank = 5\nfactor = 3.0\n[[fault]]\nname = \"slow-link\"\nrank = 2\n";
    std::fs::write(&scenario, text).unwrap();
    let (lines, json) = report(&[scenario.to_str().unwrap()]);
    assert!(lines[1].starts_with("who   rank 5 (node-0001, local rank 1,"), "{lines:#?}");
    assert!(lines[1].ends_with("; also ranks 2, 6 on node-0000, node-0001"), "{lines:#?}");
    let causes = &json["answer"]["causes"];
    assert_eq!((&causes[0]["class"], &causes[0]["root_ranks"]), (&json!("S1"), &json!([5])));
    assert_eq!((&causes[1]["class"], &causes[1]["edge"]), (&json!("S3"), &json!([2, 6])));
}

/// The suggested command finds what the report has found.
#[test]
fn the_next_command_has_the_limit_of_the_hang() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let fault = ["--fault", "host-stuck", "--rank", "3", "--ranks", "8", "--steps", "4"];
    ncclscope(&[&["simulate", "-o", out], &fault[..]].concat()).ends_with(0);
    let text = ncclscope(&["report", out, "--hang-sec", "2.5"]).ends_with(0).stdout;
    assert!(text.contains(&format!("\nnext  ncclscope diagnose --hang-sec 2.5 {out}\n")), "{text}");
}

/// Two pairs of ranks with a link in each direction: the links of a pair share both interfaces, so
/// one of the two is slow.
#[test]
fn in_a_small_job_a_slow_interface_is_one_of_two() {
    let (lines, _) = report(&["--fault", "slow-nic", "--ranks", "4"]);
    assert!(lines[0].starts_with("SLOW  since 20"), "{lines:#?}");
    assert!(lines[1].starts_with("who   rank 1 (node-0000, "), "{lines:#?}");
    assert!(lines[1].contains("; rank 3 (node-0001, "), "{lines:#?}");
    assert!(lines[2].starts_with("why   S4 slow-nic (suspected, "), "{lines:#?}");
}

#[test]
fn a_small_job_that_is_fine_says_what_is_not_judged() {
    let (lines, _) = report(&["--fault", "slow-nvlink", "--ranks", "4"]);
    let expected = "FINE  4 ranks: nothing hangs, and no rank, link or GPU slows them down; not \
                    judged, because too few are alike: 2 communicators within nodes";
    assert_eq!(lines[0], expected, "{lines:#?}");
}

/// In a ring of whole hosts no GPU both receives from a host and sends to another, so that a GPU
/// that makes each step 69 % longer does not show.
#[test]
fn a_job_whose_gpus_cannot_be_judged_is_not_said_to_have_no_slow_gpu() {
    let ring = ["--tp", "1", "--pp", "1", "--fault", "slow-kernels"];
    for (ranks, what, few) in [
        ("2", "rank or link", "; too few are alike: 2 communicators within nodes"),
        ("3", "rank", "; too few are alike: 3 links"),
        ("16", "rank or link", ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a job");
        let run = out.to_str().unwrap();
        let job = ["simulate", "-o", run, "--seed", "1", "--ranks", ranks];
        ncclscope(&[&job[..], &ring].concat()).ends_with(0);
        let text = ncclscope(&["report", run]).ends_with(0).stdout;
        let more = format!("not judged: {ranks} GPUs inside collectives{few}");
        let expected = format!("FINE  {ranks} ranks: nothing hangs, and no {what} slows them down");
        assert_eq!(text.lines().next().unwrap(), format!("{expected}; {more}"));
        let text = ncclscope(&["stragglers", run]).ends_with(0).stdout;
        assert!(text.contains(&format!("\nSLOW\n  nothing; {more}\n")), "{text}");
        let json = ncclscope(&["stragglers", run, "--format", "json"]).ends_with(0).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        follows(&json, "stragglers");
        assert_eq!(json["unjudged"]["gpus"].to_string(), ranks);
    }
}

/// Of six ranks one is alone on its host, so that all links between hosts end there. Its card makes
/// a step six times as long, and nothing in the run shows that.
#[test]
fn a_link_that_takes_most_of_a_step_and_is_not_judged_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let lines = |fault: &str| {
        let scenario = format!(
            "seed = 1\n[job]\nranks = 6\nper_host = 5\ntp = 1\npp = 3\ndp = 2\nep = 2\n\
             steps = 16\nmicrobatches = 16\n[machine]\nnetwork_gb_s = 3.0\nforward_us = 300\n\
             {fault}"
        );
        let run = simulate(dir.path(), "run", &scenario, &[]);
        let text = ncclscope(&["report", run.to_str().unwrap()]).ends_with(0).stdout;
        std::fs::remove_dir_all(run).unwrap();
        text.lines().take(3).map(str::to_owned).collect::<Vec<_>>()
    };
    let slow = lines("[[fault]]\nname = 'slow-nic'\nfactor = 8.0\nrank = 5\n");
    assert!(slow[0].starts_with("CANNOT TELL  nothing hangs"), "{slow:#?}");
    let link = "why   rank 5 to 4 is on the wire for 79 % of a step, at 0.375 GB/s; too few links \
                are like it to judge that: compare it with a run known to be good";
    assert_eq!(slow[1], link);
    assert!(slow[2].starts_with("next  ncclscope stragglers --why-not "), "{slow:#?}");
    // The network of the healthy job takes as much of a step.
    let healthy = lines("");
    assert!(healthy[1].contains(" 75 % of a step, at 2.98 GB/s;"), "{healthy:#?}");
}

#[test]
fn one_end_of_a_link_is_at_fault() {
    let (lines, json) = report(&["--fault", "receiver-not-ready", "--rank", "4"]);
    assert_eq!(json["answer"]["root_ranks"], json!([4]));
    assert!(lines[1].starts_with("who   rank 4 (node-0001,"), "{lines:#?}");
}

#[test]
fn a_healthy_job_is_fine_and_too_few_steps_cannot_tell() {
    let (lines, json) = report(&[]);
    assert!(lines[0].starts_with("FINE  16 ranks: nothing hangs"), "{lines:#?}");
    assert_eq!((&json["answer"]["classes"], &json["answer"]["cost"]), (&json!([]), &Value::Null));
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let text = ncclscope(&["report", run.text()]).ends_with(0).stdout;
    assert!(
        text.starts_with(
            "CANNOT TELL  nothing hangs; whether a part of the job is slow is not shown"
        ),
        "{text}"
    );
    assert!(text.contains("\nwhy   1 step is too few to call a rank slow"), "{text}");
}

#[test]
fn one_screen_whatever_the_number_of_ranks() {
    let (small, json) = report(&["--fault", "exit"]);
    assert!(small.len() <= 60, "{small:#?}");
    let roles = json["roles"].as_array().unwrap();
    assert!(roles.iter().any(|row| row["role"] == "tp" && row["func"] == "AllReduce"), "{roles:?}");
    // The sums of roles are those of their operations.
    let total = |rows: &Value| -> u64 {
        rows.as_array().unwrap().iter().filter_map(|row| row["total_ns"].as_u64()).sum()
    };
    assert_eq!(total(&json["roles"]), total(&json["operations"]));
    let count = |rows: &Value| -> u64 {
        rows.as_array().unwrap().iter().filter_map(|row| row["count"].as_u64()).sum()
    };
    assert_eq!(count(&json["sizes"]), count(&json["operations"]));
    // All sections are full.
    let (large, _) = report(&["--ranks", "64", "--fault", "p2p-unmatched"]);
    assert!((56..=60).contains(&large.len()), "{large:#?}");
}

/// The job of `xtask/evaluation/box/alltoall2.toml`, from the folder of the H100's jobs.
const ALL_TO_ALL: &str = "../../../../xtask/evaluation/box/alltoall2";

/// Each rank sends to itself, too. From then on NCCL 2.28.9 gave AllReduces of 0.6 ms other times,
/// up to 348 ms, and no kernel showed that rank 1 was late.
#[test]
fn a_job_whose_kernel_times_are_of_other_kernels_is_not_fine() {
    let dir = tempfile::tempdir().unwrap();
    unpack(ALL_TO_ALL, dir.path());
    let run = dir.path().to_str().unwrap();
    let text = ncclscope(&["report", run]).ends_with(0).stdout;
    assert!(text.starts_with("CANNOT TELL"), "{text}");
    assert!(text.contains("has no kernel times"), "{text}");
    let lost = "kernel times of 586 events belong to other kernels, and are not used";
    assert!(text.contains(lost), "{text}");
    assert!(text.contains("(after a rank's sends to itself"), "{text}");
    let json = ncclscope(&["report", "--format", "json", run]).ends_with(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    for row in json["operations"].as_array().unwrap() {
        assert_eq!(row["timings"].get("kernel"), None, "{row}");
        let longest = row["duration_ns"]["max"].as_u64().unwrap_or(0);
        assert!(longest < 100_000_000, "{row}");
    }
    let json = ncclscope(&["stragglers", "--format", "json", run]).ends_with(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["findings"], json!([]));
    let quiet = json["quiet"].as_array().unwrap();
    let why = "which rank the others wait for is not said, nor which operations became slower: ";
    assert!(quiet.iter().any(|text| text.as_str().unwrap().starts_with(why)), "{quiet:?}");
}
