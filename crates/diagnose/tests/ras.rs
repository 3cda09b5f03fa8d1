// SPDX-License-Identifier: Apache-2.0
//! Outputs of NCCL's RAS as NCCL writes them, of jobs that run and of jobs that do not. Outputs of
//! others, with their truth, are in `../shared/data/field`.

#[path = "common/others.rs"]
mod others;

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, HiddenWhy, NoEnd, Options, diagnose, open};
use ncclscope_findings::{Confidence, Doubt, FindingClass};
use serde_json::{Value, json};
use std::path::PathBuf;

fn of(paths: &[PathBuf]) -> Diagnosis {
    let input = open(paths, &InputOptions::default()).unwrap();
    assert!(input.warnings.is_empty(), "{:?}", input.warnings);
    let mut found = diagnose(&input.job, &Options::default());
    input.ras.unwrap().add_to(&mut found, &input.job);
    found
}

/// The diagnosis of outputs of others; prints a line if they are not there.
fn of_others(files: &[&str]) -> Option<Diagnosis> {
    let shared = others::find("field")?;
    Some(of(&files.iter().map(|file| shared.join(file)).collect::<Vec<_>>()))
}

fn found(diagnosis: &Diagnosis) -> Vec<(FindingClass, Vec<u32>, Confidence)> {
    let of = diagnosis.findings.iter();
    of.map(|one| (one.class, one.root_ranks.clone(), one.confidence())).collect()
}

#[test]
fn outputs_of_others_give_their_truth() {
    let gone = [(FindingClass::ProcessGone, vec![1], Confidence::Suspect)];
    for file in ["ray_dead_2_28_9.json", "ray_dead_comma_fixed.json"] {
        let file = format!("ras-2.28-missing-comma/{file}");
        let Some(diagnosis) = of_others(&[&file]) else { return };
        assert_eq!(found(&diagnosis)[..], gone[..], "{file}");
    }
    let late = [(FindingClass::HostStuck, vec![3])];
    for file in ["ray_multicomm.json", "nc-ok.json"] {
        let Some(diagnosis) = of_others(&[&format!("ras-multi-communicator/{file}")]) else {
            return;
        };
        let found: Vec<_> =
            found(&diagnosis).into_iter().map(|(class, ranks, _)| (class, ranks)).collect();
        assert_eq!(found, late, "{file}");
    }
    let [now, later] = ["ras-running-job/running.json", "ras-running-job/running-30s-later.json"];
    for one in [now, later, "ras-running-job/issue1911.json"] {
        let Some(diagnosis) = of_others(&[one]) else { return };
        assert!(found(&diagnosis).iter().all(|(.., sure)| *sure == Confidence::Suspect), "{one}");
    }
    for both in [[now, later], [later, now]] {
        let Some(diagnosis) = of_others(&both) else { return };
        assert_eq!(found(&diagnosis), [], "{:#?}", diagnosis.notes);
        assert!(diagnosis.notes.iter().any(|note| note.starts_with("all ranks have launched")));
    }
}

/// An output at a time, with the launches of AllReduce and AllGather of each rank of four.
fn output(time: &str, counts: [(u64, u64); 4]) -> Value {
    let rank = |((reduces, gathers), rank): ((u64, u64), usize)| {
        json!({"rank": rank, "host": "a", "pid": 100 + rank, "cuda_dev": rank,
            "status": {"async_error": 0},
            "collective_counts": {"AllReduce": reduces, "AllGather": gathers}})
    };
    let ranks: Vec<Value> = counts.into_iter().zip(0..).map(rank).collect();
    json!({"nccl_version": "2.32.3", "timestamp": time, "communicators": [
        {"hash": "0xabc", "size": 4, "ranks_count": 4, "missing_ranks_count": 0, "ranks": ranks}]})
}

fn of_outputs(outputs: &[Value]) -> Diagnosis {
    let dir = tempfile::tempdir().unwrap();
    let write = |(output, at): (&Value, u32)| {
        let path = dir.path().join(format!("ras-{at}.json"));
        std::fs::write(&path, output.to_string()).unwrap();
        path
    };
    of(&outputs.iter().zip(0..).map(write).collect::<Vec<_>>())
}

#[test]
fn two_outputs_decide_what_one_suspects() {
    let behind = [(50, 0), (49, 0), (50, 0), (50, 0)];
    let [first, second] = ["2026-11-29 10:00:00", "2026-11-29 10:00:30"];
    let late = |sure| vec![(FindingClass::HostStuck, vec![1], sure)];
    let one = of_outputs(&[output(first, behind)]);
    assert_eq!(found(&one), late(Confidence::Suspect));
    assert!(one.notes.iter().any(|note| note.ends_with("give two, some seconds apart")));
    let stands = of_outputs(&[output(first, behind), output(second, behind)]);
    assert_eq!(found(&stands), late(Confidence::Suspect));
    // RAS does not show ends: rank 1 may wait for the end of what it launched last.
    let [finding] = &stands.findings[..] else { panic!("{stands:#?}") };
    assert!(finding.alternatives().iter().any(|it| it.contains("RAS does not show ends")));
    assert!(finding.evidence.iter().all(|it| !it.text.contains("complete")), "{finding:#?}");
    let goes_on = [(90, 0), (89, 0), (90, 0), (90, 0)];
    assert_eq!(found(&of_outputs(&[output(first, behind), output(second, goes_on)])), []);
}

#[test]
fn ranks_that_are_ahead_in_different_functions_made_different_calls() {
    let same_sum = of_outputs(&[output("t", [(5, 3), (4, 4), (5, 3), (5, 3)])]);
    assert_eq!(same_sum.findings[0].class, FindingClass::CallMismatch, "{same_sum:#?}");
    assert_eq!(same_sum.findings[0].root_ranks, [1]);
    let other_sum = of_outputs(&[output("t", [(6, 3), (4, 4), (6, 3), (6, 3)])]);
    assert_eq!(other_sum.findings[0].class, FindingClass::CallMismatch, "{other_sum:#?}");
}

#[test]
fn texts_of_others_give_their_truth() {
    for (file, class, ranks) in [
        ("ras_text_incomplete.txt", FindingClass::ProcessGone, vec![21]),
        ("ras_text_straggler_launch.txt", FindingClass::HostStuck, vec![7]),
    ] {
        let Some(diagnosis) = of_others(&[&format!("ras-text/{file}")]) else { return };
        assert_eq!(found(&diagnosis), [(class, ranks, Confidence::Suspect)], "{file}");
    }
    let Some(diagnosis) = of_others(&["ras-text/ras_text_mismatch_2_26.txt"]) else { return };
    assert!(found(&diagnosis).iter().all(|(.., sure)| *sure == Confidence::Suspect));
}

/// A text about four ranks with these lines in its part for one communicator.
fn text(kind: &str, lines: &str) -> String {
    format!(
        "NCCL version 2.27.7 compiled with CUDA 12.9\n\nCommunicators... (0.00s)\n=============\n\n\
         Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    \
         #  in group  per comm  per node  per comm  in group\n    \
         0         1         2         2         4         4   RUNNING  {kind}\n\n\
         #0-0 (00000000000abc00) {kind}\n{lines}"
    )
}

fn of_texts(texts: &[String]) -> Diagnosis {
    let dir = tempfile::tempdir().unwrap();
    let write = |(text, at): (&String, u32)| {
        let path = dir.path().join(format!("ras-{at}.txt"));
        std::fs::write(&path, text).unwrap();
        path
    };
    of(&texts.iter().zip(0..).map(write).collect::<Vec<_>>())
}

#[test]
fn the_text_form_is_read() {
    let late = |launched: u32, others: u32| {
        text(
            "MISMATCH",
            &format!(
                "  Communicator ranks have different AllReduce operation counts\n  \
                 3 ranks have launched up to operation {others}\n  \
                 Rank 2 has launched up to operation {launched} -- GPU 0 managed by process 77 on \
                 node b\n"
            ),
        )
    };
    let of_late = |sure| vec![(FindingClass::HostStuck, vec![2], sure)];
    let one = of_texts(&[late(6, 9)]);
    assert_eq!(found(&one), of_late(Confidence::Suspect));
    assert_eq!((one.ranks, one.findings[0].victims), (4, 3), "ranks without a name count, too");
    let doubts = one.findings[0].doubts.iter().filter(|it| **it == Doubt::OneOutput);
    assert_eq!(doubts.count(), 1);
    assert_eq!(found(&of_texts(&[late(6, 9), late(6, 9)])), of_late(Confidence::Suspect));
    assert_eq!(found(&of_texts(&[late(6, 9), late(7, 9)])), []);
    let none = "  Communicator ranks have different AllReduce operation counts\n  \
                Rank 1 has not launched any operations -- GPU 1 managed by process 7 on node a\n  \
                3 ranks have launched up to operation 1\n";
    let found_none = found(&of_texts(&[text("MISMATCH", none)]));
    assert_eq!(found_none, [(FindingClass::HostStuck, vec![1], Confidence::Suspect)]);
    let gone = "  Missing communicator data from 1 rank\n  \
                Rank 3 -- GPU 1 managed by process 78 on node b\n";
    let found_gone = found(&of_texts(&[text("INCOMPLETE", gone)]));
    assert_eq!(found_gone, [(FindingClass::ProcessGone, vec![3], Confidence::Suspect)]);
    // Of two communicators, ranks that are not named may be of other processes.
    let group = |hash: &str| late(6, 9).rsplit_once("#0-0").unwrap().1.replace("abc00", hash);
    let two = format!("{}#0-1{}", late(6, 9), group("def00"));
    assert_eq!(of_texts(&[two]).ranks, 7, "three of each, and the one that both name");
    let unnamed = "  Communicator ranks have different AllReduce operation counts\n  \
                   2 ranks have launched up to operation 5\n  \
                   2 ranks have launched up to operation 4\n";
    let unnamed = of_texts(&[text("MISMATCH", unnamed)]);
    assert_eq!(found(&unnamed), []);
    assert!(unnamed.notes.iter().any(|note| note.contains("ncclras -v")), "{:?}", unnamed.notes);
    let error = "  Asynchronous error on 1 rank\n  \
                 Rank 1 reported Remote process exited or there was a network error -- GPU 1 \
                 managed by process 7 on node a\n";
    let notes = of_texts(&[text("ERROR", error)]).notes;
    assert!(notes.iter().any(|note| note.contains("ncclRemoteError")), "{notes:?}");
}

#[test]
fn an_asynchronous_error_is_told() {
    let mut output = output("t", [(5, 0); 4]);
    output["communicators"][0]["ranks"][1]["status"]["async_error"] = json!(6);
    let notes = of_outputs(&[output]).notes;
    let says =
        "NCCL reports error 6 (ncclRemoteError) on rank 1 of communicator 0xabc (a, pid 101)";
    assert!(notes.iter().any(|note| note.starts_with(says)), "{notes:#?}");
}

/// A member of a communicator: process `at` of four on each host, and its launches of AllReduce.
fn member((rank, at): (usize, usize), launched: u64, status: &Value) -> Value {
    json!({"rank": rank, "host": format!("10.0.0.{}", 9 + at / 4), "pid": 1000 + at,
        "cuda_dev": at % 4, "status": status, "collective_counts": {"AllReduce": launched}})
}

fn communicator(hash: &str, size: usize, ranks: &[Value], missing: &[Value]) -> Value {
    json!({"hash": hash, "size": size, "ranks_count": ranks.len(),
        "missing_ranks_count": missing.len(), "ranks": ranks, "missing_ranks": missing})
}

fn with(time: &str, comms: &[Value]) -> Value {
    json!({"nccl_version": "2.32.3", "timestamp": time, "communicators": comms})
}

const TIMES: [&str; 2] = ["2026-11-29 10:00:00", "2026-11-29 10:10:00"];

#[test]
fn a_rank_that_left_a_communicator_is_a_note() {
    let of = |time: &str, launched: u64, is_silent: bool| {
        let world: Vec<Value> =
            (0..4).map(|at| member((at, at), launched, &json!({"init_state": 0}))).collect();
        let there: Vec<Value> = (0..3).map(|at| member((at, at), 10, &json!({}))).collect();
        let status = json!({"unresponsive": is_silent, "considered_dead": false});
        let gone = [member((3, 3), 0, &status)];
        with(time, &[communicator("0xb", 4, &world, &[]), communicator("0xa", 4, &there, &gone)])
    };
    let healthy = of_outputs(&[of(TIMES[0], 5000, false), of(TIMES[1], 9000, false)]);
    assert_eq!((found(&healthy), healthy.ranks, &healthy.silent_ranks[..]), (vec![], 4, &[][..]));
    let notes = healthy.notes.join("\n");
    let says = "RAS: rank 3 of communicator 0xa (10.0.0.9, pid 1003) answers, and has left it or";
    assert!(notes.contains(says) && !notes.contains("one output"), "{notes}");
    let one = of_outputs(&[of(TIMES[0], 5000, false)]);
    assert_eq!((found(&one), &one.silent_ranks[..]), (vec![], &[][..]));
    // One that does not answer has not left.
    let silent = of_outputs(&[of(TIMES[0], 5000, true), of(TIMES[1], 9000, true)]);
    assert_eq!(found(&silent)[0].1, [3], "{silent:#?}");
    let doubts = silent.findings[0].alternatives().join("\n");
    assert!(!doubts.contains("one output of RAS"), "{doubts}");
}

#[test]
fn that_nothing_is_launched_for_long_is_not_called_well() {
    let same = [(500, 0); 4];
    let still = of_outputs(&[output(TIMES[0], same), output(TIMES[1], same)]);
    let hidden = still.hidden.as_ref().expect("it may hang");
    assert_eq!(hidden.why, HiddenWhy::NoEnd(NoEnd::Launches));
    assert_eq!(
        hidden.text,
        "NOT VISIBLE: RAS counts launches, not ends (record the job, or dump its ranks); the last \
         operation of 4 of 4 ranks shows no end, and they have called nothing for 10 min 0 s"
    );
    assert!(!still.notes.iter().any(|note| note.contains("no rank waits")), "{:?}", still.notes);
    // In less than the limit an operation may take its time, and one rank that goes on is enough.
    let soon = of_outputs(&[output(TIMES[0], same), output("2026-11-29 10:00:10", same)]);
    assert_eq!((soon.hidden.is_none(), found(&soon)), (true, vec![]));
    assert!(soon.notes.iter().any(|note| note.contains("no rank is seen to wait in NCCL")));
    let new = of_outputs(&[output(TIMES[0], same), output(TIMES[1], [(501, 0); 4])]);
    assert!(new.hidden.is_none() && new.findings.is_empty());
    assert!(of_outputs(&[output(TIMES[0], same)]).hidden.is_none());
}

#[test]
fn what_ras_calls_a_mismatch_or_an_error_is_told() {
    let notes = |status: Value, of: usize| {
        let ranks = (0..4).map(|at| {
            let well = json!({"init_state": 0, "async_error": 0, "abort_flag": false});
            member((at, at), 5, if at >= of { &status } else { &well })
        });
        let all = with("t", &[communicator("0xa", 4, &ranks.collect::<Vec<_>>(), &[])]);
        of_outputs(&[all]).notes.join("\n")
    };
    let says = |status: Value, of, text: &str| {
        let notes = notes(status, of);
        assert!(notes.contains(text), "{notes}");
    };
    let rank = "rank 3 of communicator 0xa (10.0.0.9, pid 1003)";
    let unlike =
        |status: &str| format!("RAS: the status of {rank} is {status}, unlike other ranks");
    says(json!({"abort_flag": true}), 3, &unlike("ABORT"));
    says(json!({"init_state": 7}), 3, &unlike("INIT"));
    says(json!({"destroy_flag": true}), 3, &unlike("FINALIZE"));
    let all = "RAS: the status of all ranks of communicator 0xa is INIT\n";
    says(json!({"init_state": 7}), 0, all);
    let some = "RAS: the status of ranks 2-3 of communicator 0xa is ABORT, unlike other ranks";
    says(json!({"abort_flag": true}), 2, some);
    let error = format!("NCCL reports error 2 (ncclSystemError) on {rank}");
    says(json!({"init_state": 2}), 3, &error);
    // What goes on is no error.
    assert!(!notes(json!({"async_error": 7}), 0).contains("NCCL reports"));
    let lines = "  Communicator ranks have different status\n  7 ranks have status RUNNING\n  \
                 Rank 3 has status ABORT -- GPU 3 managed by process 1003 on node 10.0.0.9\n";
    let of_text = of_texts(&[text("MISMATCH", lines)]).notes.join("\n");
    let says = "RAS: the status of rank 3 of communicator 00000000000abc00 (10.0.0.9, pid 1003) is \
                ABORT, unlike other ranks";
    assert!(of_text.contains(says), "{of_text}");
}

#[test]
fn without_a_communicator_of_all_processes_ranks_are_positions() {
    let of = |time: &str, has_world: bool| {
        let well = json!({});
        let launched = |at: usize| 100 - u64::from(at == 5);
        let tensor = |first: usize| {
            let ranks =
                (0..4).map(|rank| member((rank, first + rank), launched(first + rank), &well));
            communicator(&format!("0xt{first}"), 4, &ranks.collect::<Vec<_>>(), &[])
        };
        let data = |at: usize| {
            let ranks = [member((0, at), 20, &well), member((1, at + 4), 20, &well)];
            communicator(&format!("0xd{at}"), 2, &ranks, &[])
        };
        // In the world the ranks are in another order than the hosts.
        let world = || (0..8).map(|rank| member((rank, 7 - rank), 9, &well)).collect::<Vec<_>>();
        let mut comms: Vec<Value> = (0..4).map(data).chain([tensor(4), tensor(0)]).collect();
        if has_world {
            comms.push(communicator("0xw", 8, &world(), &[]));
        }
        with(time, &comms)
    };
    let late = |rank| vec![(FindingClass::HostStuck, vec![rank], Confidence::Suspect)];
    let positions = of_outputs(&TIMES.map(|time| of(time, false)));
    assert_eq!(found(&positions), late(5), "{positions:#?}");
    let note = "no communicator has all processes, so that ranks are positions: 0 is process 1000 \
                on 10.0.0.9 (GPU 0), 1 is process 1001 on 10.0.0.9 (GPU 1), ";
    assert!(positions.notes.iter().any(|one| one.starts_with(note)), "{:?}", positions.notes);
    assert!(positions.findings[0].title().contains("rank 5 (10.0.0.10, pid 1005)"));
    let known = of_outputs(&TIMES.map(|time| of(time, true)));
    assert_eq!(found(&known), late(2));
    assert!(!known.notes.iter().any(|note| note.contains("positions")), "{:?}", known.notes);
}
