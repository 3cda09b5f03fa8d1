// SPDX-License-Identifier: Apache-2.0
//! Outputs of NCCL's RAS as NCCL writes them, of jobs that run and of jobs that do not. Outputs of
//! others, with their truth, are in `../shared/data/field`.

#[path = "common/others.rs"]
mod others;

use ncclscope_diagnose::input::{self, InputOptions};
use ncclscope_diagnose::{Diagnosis, Options, diagnose};
use ncclscope_findings::{Confidence, FindingClass};
use serde_json::{Value, json};
use std::path::PathBuf;

fn of(paths: &[PathBuf]) -> Diagnosis {
    let input = input::open(paths, &InputOptions::default()).unwrap();
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
    of.map(|one| (one.class, one.root_ranks.clone(), one.confidence)).collect()
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
    assert_eq!(found(&stands), late(Confidence::Confirmed));
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
    let doubts = one.findings[0].alternatives.iter().filter(|it| it.contains("one output of RAS"));
    assert_eq!(doubts.count(), 1);
    assert_eq!(found(&of_texts(&[late(6, 9), late(6, 9)])), of_late(Confidence::Confirmed));
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
