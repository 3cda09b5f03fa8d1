// SPDX-License-Identifier: Apache-2.0
//! Faults that something else in the job hid from the answer, or made it too small.

use crate::common::{ncclscope, simulate};
use crate::h100::unpack;
use serde_json::Value;
use std::path::Path;

/// The answer of `report` about recordings, which ends with this code.
fn answer(run: &Path, code: i32) -> Value {
    let out = ncclscope(&["report", "--format", "json", run.to_str().unwrap()]).ends_with(code);
    let json: Value = serde_json::from_str(&out.stdout).unwrap();
    json["answer"].clone()
}

/// The ranks at fault in a simulated job, their classes, and the cost in percent of a step.
fn found(scenario: &str) -> (Vec<u64>, Vec<String>, f64) {
    let dir = tempfile::tempdir().unwrap();
    let answer = answer(&simulate(dir.path(), "run", scenario, &[]), 0);
    let list = |key: &str| answer[key].as_array().unwrap().clone();
    let ranks = list("root_ranks").iter().map(|rank| rank.as_u64().unwrap()).collect();
    let classes = list("classes").iter().map(|class| class.as_str().unwrap().to_owned()).collect();
    (ranks, classes, 100.0 * answer["cost"]["step_share"].as_f64().unwrap_or(0.0))
}

/// Two of the three links of the ring are slow: without the fault a step takes 14.2 % as long.
#[test]
fn a_slow_interface_of_one_of_three_hosts() {
    let (ranks, classes, cost) = found(
        "seed = 7\n[job]\nranks = 3\nper_host = 1\ntp = 1\n[machine]\nnetwork_gb_s = 2.0\n\
         [[fault]]\nname = 'slow-nic'\nrank = 1\nfactor = 20.0\n",
    );
    assert_eq!((ranks, classes), (vec![1], vec!["S4".to_owned()]));
    assert!((75.0..95.0).contains(&cost), "{cost}");
}

/// Exchanges of experts have peers, and the ring over all ranks has none: a step would be 15.7 %
/// shorter.
#[test]
fn a_slow_link_of_operations_with_and_without_peers() {
    let (ranks, _, cost) = found(
        "seed = 21\n[job]\nranks = 8\ntp = 1\npp = 1\ndp = 8\nep = 2\nper_host = 2\n\
         [[fault]]\nname = 'slow-nic'\nfactor = 6.0\n",
    );
    assert!(ranks.contains(&5), "{ranks:?}");
    assert!((12.0..20.0).contains(&cost), "{cost}");
}

/// The repair of one of them alone gains nothing, that of both 32.9 %.
#[test]
fn two_ranks_that_are_equally_slow() {
    let slow = |rank: u32| format!("[[fault]]\nname = 'slow-gpu'\nrank = {rank}\nfactor = 1.5\n");
    let job = "seed = 1\n[job]\nranks = 5\nper_host = 1\ntp = 1\n".to_owned();
    let (mut ranks, classes, cost) = found(&(job + &slow(0) + &slow(4)));
    ranks.sort_unstable();
    assert_eq!((ranks, classes), (vec![0, 4], vec!["S1".to_owned()]));
    assert!((29.0..37.0).contains(&cost), "{cost}");
}

/// All ranks wait for a minute for a checkpoint; in all other steps the others wait for rank 3.
#[test]
fn a_slow_rank_of_a_job_that_writes_a_checkpoint() {
    let (ranks, classes, cost) = found(
        "seed = 1\n[job]\nranks = 8\nsteps = 20\n[[fault]]\nname = 'checkpoint'\n\
         [[fault]]\nname = 'launch-bound'\nrank = 3\nfactor = 6.0\n",
    );
    assert_eq!((ranks, classes), (vec![3], vec!["S7".to_owned()]));
    assert!(cost > 10.0, "{cost}");
}

/// Calls are numbered from the last one on: those of a file that is cut off had the numbers of
/// other calls, and the rank seemed to run them with other settings.
#[test]
fn a_slow_rank_and_a_file_that_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    unpack("../../../../xtask/evaluation/box/late2", dir.path());
    let file = dir.path().join("node0-9.nscope");
    let long = std::fs::metadata(&file).unwrap().len();
    let open = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    open.set_len(long / 10 * 9).unwrap();
    let answer = answer(dir.path(), 3);
    assert_eq!(
        (&answer["state"], &answer["classes"]),
        (&"SLOW".into(), &serde_json::json!(["S1"]))
    );
    assert_eq!(answer["root_ranks"], serde_json::json!([2]));
}

/// Its counters advanced until it ended, alone on its host, some seconds before the other rank.
#[test]
fn a_rank_that_ended_first_is_not_said_to_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = "seed = 12\n[job]\nranks = 2\nper_host = 1\ntp = 1\nsteps = 8\nhold_s = 6\n\
                    [[fault]]\nname = 'killed'\nstep = 7\n";
    let run = simulate(dir.path(), "run", scenario, &[]);
    let text = ncclscope(&["report", run.to_str().unwrap()]).ends_with(0).stdout;
    let why = text.lines().find(|line| line.starts_with("why")).unwrap();
    assert!(why.contains("rank 1 did not end in order, "), "{text}");
    assert!(!text.contains("still advance"), "{text}");
}
