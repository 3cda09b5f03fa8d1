// SPDX-License-Identifier: Apache-2.0
//! Flight Recorder dumps whose groups are not one plain list of collectives: coalesced calls,
//! groups that were never called or were created again, names that no entry shows.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Input, Options, diagnose};
use ncclscope_findings::{Confidence, FindingClass};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

const START_S: u64 = 1_790_000_000;

/// What PyTorch's recorder keeps in one rank of a job in which each group has all ranks.
#[derive(Clone, Default)]
struct Recorder {
    rank: usize,
    /// By id.
    names: BTreeMap<u64, String>,
    /// Collectives, and sends and receives, that were called, by id.
    called: BTreeMap<u64, (u64, u64)>,
    /// Enqueued and completed numbers, by id.
    status: BTreeMap<u64, (u64, u64)>,
    entries: Vec<Value>,
    second: u64,
}

impl Recorder {
    fn new(rank: usize, names: &[&str]) -> Recorder {
        let names = (0..).zip(names.iter().map(|&name| name.to_owned())).collect();
        Recorder { rank, names, ..Recorder::default() }
    }

    /// A second passes before the next call.
    fn record(&mut self, id: u64, function: &str, is_p2p: bool, is_done: bool) {
        let &(collective, p2p) = self.called.get(&id).unwrap_or(&(0, 0));
        let state = if is_done { "completed" } else { "scheduled" };
        let line = 100 + self.entries.len();
        self.entries.push(json!({"record_id": self.entries.len(), "pg_id": id,
            "process_group": [self.names[&id], "group"], "collective_seq_id": collective,
            "p2p_seq_id": p2p, "profiling_name": format!("nccl:{function}"), "state": state,
            "time_created_ns": (START_S + self.second) * 1_000_000_000, "timeout_ms": 600_000,
            "input_sizes": [[4]], "input_dtypes": ["Float"], "is_p2p": is_p2p,
            "frames": [{"name": "step", "filename": "train.py", "line": line}]}));
    }

    fn end(&mut self, id: u64, number: u64, is_done: bool) {
        let status = self.status.entry(id).or_default();
        *status = (number, if is_done { number } else { status.1 });
        self.second += 1;
    }

    fn all_reduce(&mut self, id: u64, is_done: bool) {
        self.called.entry(id).or_default().0 += 1;
        self.record(id, "all_reduce", false, is_done);
        self.end(id, self.called[&id].0, is_done);
    }

    /// An AllGather of unequal sizes.
    fn coalesced(&mut self, id: u64, is_done: bool) {
        self.called.entry(id).or_default().0 += 1;
        self.record(id, "_broadcast_oop", false, false);
        self.record(id, "_broadcast_oop", false, false);
        self.record(id, "ALLGATHER_coalesced", false, is_done);
        self.end(id, self.called[&id].0, is_done);
    }

    /// `batch_isend_irecv`; `peer` is an arrow and a rank.
    fn batch(&mut self, id: u64, peers: &[(&str, usize)], is_done: bool) {
        self.called.entry(id).or_default().1 += 1;
        for (arrow, peer) in peers {
            let function = if *arrow == "->" { "send" } else { "recv" };
            self.record(id, &format!("{function} {}{arrow}{peer}", self.rank), true, false);
        }
        self.record(id, "coalesced", false, is_done);
        self.end(id, self.called[&id].1, is_done);
    }

    /// Keeps the latest entries.
    fn keep(&mut self, entries: usize) {
        self.entries.drain(..self.entries.len().saturating_sub(entries));
    }

    fn dump(&self, ranks: usize) -> Value {
        let all: Vec<usize> = (0..ranks).collect();
        let group =
            |name: &String| json!({"name": name, "desc": "group", "ranks": format!("{all:?}")});
        let groups: Map<String, Value> =
            self.names.values().map(|name| (name.clone(), group(name))).collect();
        let status = |(id, (called, done)): (&u64, &(u64, u64))| {
            let status = json!({"last_enqueued_collective": called, "last_started_collective": -1,
                "last_completed_collective": done});
            (id.to_string(), status)
        };
        let status: Map<String, Value> = self.status.iter().map(status).collect();
        json!({"version": "2.10", "entries": self.entries, "pg_config": groups,
            "pg_status": status})
    }
}

/// The diagnosis of dumps that were written so long after the start, and the warnings.
fn of(dumps: &[Value], after_s: u64) -> (Diagnosis, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    for (rank, dump) in dumps.iter().enumerate() {
        let path = dir.path().join(format!("_dump_{rank}"));
        std::fs::write(&path, dump.to_string()).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(START_S + after_s)).unwrap();
    }
    let input = open(dir.path()).unwrap();
    (diagnose(&input.job, &Options::default()), input.warnings)
}

fn open(path: &Path) -> Result<Input, String> {
    ncclscope_diagnose::open(&[path.to_owned()], &InputOptions::default())
}

/// The diagnosis of the ranks' dumps a day later.
fn of_all(ranks: &[Recorder]) -> Diagnosis {
    let dumps: Vec<Value> = ranks.iter().map(|one| one.dump(ranks.len())).collect();
    of(&dumps, 86_400).0
}

fn found(diagnosis: &Diagnosis) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
    let verdicts = diagnosis.findings.iter();
    verdicts.map(|one| (one.class, one.confidence(), one.root_ranks.clone())).collect()
}

fn stuck(rank: u32) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
    vec![(FindingClass::HostStuck, Confidence::Confirmed, vec![rank])]
}

/// A pipeline of three ranks; rank 2 is stuck before its third receive, or none is.
fn pipeline(is_stuck: bool) -> Vec<Recorder> {
    let mut ranks: Vec<Recorder> = (0..3).map(|rank| Recorder::new(rank, &["0"])).collect();
    ranks.iter_mut().for_each(|rank| rank.all_reduce(0, true));
    for step in 0..3 {
        let is_done = step < 2 || !is_stuck;
        ranks[0].batch(0, &[("->", 1)], true);
        ranks[1].batch(0, &[("<-", 0)], true);
        ranks[1].batch(0, &[("->", 2)], is_done);
        if is_done {
            ranks[2].batch(0, &[("<-", 1)], true);
        }
    }
    ranks
}

#[test]
fn the_end_of_a_batch_of_sends_is_no_collective() {
    let diagnosis = of_all(&pipeline(true));
    assert_eq!(found(&diagnosis), stuck(2), "{diagnosis:#?}");
    let diagnosis = of_all(&pipeline(false));
    assert_eq!((found(&diagnosis), diagnosis.waiting_ranks), (vec![], 0), "{diagnosis:#?}");
}

/// The ring of rank 1 begins with the end of its batch in flight.
#[test]
fn the_end_of_a_batch_that_the_ring_has_cut_is_no_collective() {
    let mut ranks = pipeline(true);
    ranks[0].batch(0, &[("->", 1)], false);
    ranks[1].batch(0, &[("<-", 0)], false);
    ranks[1].keep(3);
    assert_eq!(ranks[1].entries[0]["profiling_name"], "nccl:coalesced");
    let diagnosis = of_all(&ranks);
    let doubtful = |one: &(_, Confidence, _)| one.1 == Confidence::Suspect;
    assert!(found(&diagnosis).iter().all(doubtful), "{diagnosis:#?}");
}

/// PyTorch numbers single sends and collectives apart: a coalesced AllGather after a send is no
/// batch.
#[test]
fn the_end_of_a_coalesced_collective_after_a_send_is_one() {
    let mut ranks: Vec<Recorder> = (0..3).map(|rank| Recorder::new(rank, &["0"])).collect();
    for rank in &mut ranks {
        rank.all_reduce(0, true);
        rank.called.insert(0, (1, 1));
        let next = (rank.rank + 1) % 3;
        rank.record(0, &format!("send {}->{next}", rank.rank), true, true);
        if rank.rank != 1 {
            // As before 2.7, without its parts.
            rank.called.insert(0, (2, 1));
            rank.record(0, "ALLGATHER_coalesced", false, false);
            rank.end(0, 2, false);
        }
    }
    let diagnosis = of_all(&ranks);
    assert_eq!(found(&diagnosis), stuck(1), "{diagnosis:#?}");
}

/// Ranks that have completed a coalesced AllGather and then call AllReduces; rank 2 has not called
/// the last.
#[test]
fn the_parts_of_a_coalesced_call_end_with_it() {
    let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, &["0"])).collect();
    for rank in &mut ranks {
        rank.coalesced(0, true);
        (0..800).for_each(|_| rank.all_reduce(0, true));
        if rank.rank != 2 {
            rank.all_reduce(0, false);
        }
    }
    let dumps: Vec<Value> = ranks.iter().map(|rank| rank.dump(4)).collect();
    let (diagnosis, _) = of(&dumps, 803);
    assert_eq!(found(&diagnosis), [], "of a running job: {diagnosis:#?}");
    let (diagnosis, _) = of(&dumps, 860);
    assert_eq!(found(&diagnosis), stuck(2), "{diagnosis:#?}");
    let texts: Vec<&str> = diagnosis.findings[0].evidence.iter().map(|one| &*one.text).collect();
    assert!(texts.contains(&"ranks 0-1, 3 wait at train.py:903 in step"), "{texts:#?}");
    assert!(texts.contains(&"rank 2 called last at train.py:902 in step"), "{texts:#?}");
}

/// One that does not end: its parts are in flight like it.
#[test]
fn a_coalesced_call_in_flight_is_compared_with_its_parts() {
    let mut ranks: Vec<Recorder> = (0..3).map(|rank| Recorder::new(rank, &["0"])).collect();
    for rank in &mut ranks {
        rank.coalesced(0, false);
    }
    ranks[1].entries[0]["profiling_name"] = json!("nccl:reduce");
    let diagnosis = of_all(&ranks);
    let class = FindingClass::CallMismatch;
    assert_eq!(found(&diagnosis), [(class, Confidence::Confirmed, vec![1])], "{diagnosis:#?}");
}

/// Rank 2's GPU does not end a receive that rank 1 has sent, and both wait for one another's next.
/// The dumps do not show that rank 1's send is over.
#[test]
fn a_circle_of_sends_of_which_one_may_be_over_is_only_a_suspicion() {
    let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, &["0", "1"])).collect();
    ranks.iter_mut().for_each(|rank| rank.all_reduce(0, true));
    ranks[1].batch(1, &[("->", 2)], true);
    ranks[2].batch(1, &[("<-", 1)], false);
    ranks[1].batch(1, &[("<-", 2)], false);
    ranks[2].batch(1, &[("->", 1)], false);
    for (rank, peer) in [(2, ("->", 3)), (3, ("<-", 2)), (0, ("<-", 1))] {
        ranks[rank].batch(1, &[peer], false);
    }
    let diagnosis = of_all(&ranks);
    assert!(!diagnosis.findings.is_empty(), "{diagnosis:#?}");
    assert!(diagnosis.findings.iter().all(|one| one.confidence() == Confidence::Suspect));
}

/// Ranks 2 and 3 are in a send and its receive, and have not called what the others wait in.
#[test]
fn a_late_rank_in_a_send_is_only_a_suspect() {
    let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, &["0", "1"])).collect();
    for rank in &mut ranks {
        rank.all_reduce(0, true);
        match rank.rank {
            2 => rank.batch(1, &[("->", 3)], false),
            3 => rank.batch(1, &[("<-", 2)], false),
            _ => rank.all_reduce(0, false),
        }
    }
    let diagnosis = of_all(&ranks);
    let class = FindingClass::HostStuck;
    assert_eq!(found(&diagnosis), [(class, Confidence::Suspect, vec![2, 3])], "{diagnosis:#?}");
    let others = &diagnosis.findings[0].alternatives();
    assert!(others[0].starts_with("it waits in a send or receive"), "{others:?}");
}

/// Rank 2 has not called AllReduce 3 of the default group, and its ring has no entry of the group;
/// group 2 was created and never called.
#[test]
fn a_group_that_was_never_called_does_not_hide_the_culprit() {
    for names in [&["0", "1"][..], &["0", "1", "2"], &["0", "5", "12"]] {
        let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, names)).collect();
        for rank in &mut ranks {
            for step in 0..3 {
                (0..20).for_each(|_| rank.all_reduce(1, true));
                if step < 2 || rank.rank != 2 {
                    rank.all_reduce(0, step < 2);
                }
            }
            rank.keep(10);
        }
        let diagnosis = of_all(&ranks);
        assert_eq!(found(&diagnosis), stuck(2), "{names:?}: {diagnosis:#?}");
        assert_eq!(diagnosis.notes.iter().filter(|note| note.contains("left out")).count(), 0);
    }
}

/// Ranks wait in the first collective of a group. A rank that has called nothing of it, and calls
/// of other groups, holds them up.
#[test]
fn a_member_that_has_called_nothing_of_a_group_is_late() {
    let mut ranks: Vec<Recorder> = (0..3).map(|rank| Recorder::new(rank, &["0", "1"])).collect();
    for rank in &mut ranks {
        (0..5).for_each(|_| rank.all_reduce(0, true));
        if rank.rank != 1 {
            rank.all_reduce(1, false);
        }
    }
    assert_eq!(found(&of_all(&ranks)), stuck(1));
    // As written by a rank that has called nothing at all.
    let mut dumps: Vec<Value> = ranks.iter().map(|rank| rank.dump(3)).collect();
    dumps[1]["pg_status"] = json!({});
    dumps[1].as_object_mut().unwrap().remove("entries");
    for rank in [0, 2] {
        dumps[rank]["entries"].as_array_mut().unwrap().drain(..5);
        dumps[rank]["pg_status"].as_object_mut().unwrap().remove("0");
    }
    let (diagnosis, _) = of(&dumps, 86_400);
    assert_eq!(found(&diagnosis), stuck(1), "{diagnosis:#?}");
}

/// Names from the ranks of a group have no order. Rank 2's ring has nothing of the group that the
/// others wait in.
#[test]
fn numbers_without_a_name_are_those_that_agree_with_other_members() {
    let names = ["0", "f3a9c1", "07be24", "9d11e0"];
    let ranks = |calls: [u64; 3]| {
        let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, &names)).collect();
        for rank in &mut ranks {
            for (id, calls) in (1..).zip(calls) {
                (0..calls).for_each(|_| rank.all_reduce(id, true));
            }
            if rank.rank != 2 {
                rank.all_reduce(1, false);
            }
            (0..3).for_each(|_| rank.all_reduce(0, true));
            rank.keep(if rank.rank == 2 { 2 } else { 4 });
        }
        of_all(&ranks)
    };
    assert_eq!(found(&ranks([30, 20, 10])), stuck(2));
    // Two have the same numbers.
    let diagnosis = ranks([20, 20, 10]);
    let class = FindingClass::NotRecorded;
    assert_eq!(found(&diagnosis), [(class, Confidence::Suspect, vec![2])], "{diagnosis:#?}");
    let text = &diagnosis.findings[0].evidence[0].text;
    assert!(text.contains("input from rank 2 does not show how far it is in"), "{text}");
}

/// `destroy_process_group` and `init_process_group`: the name is the same, the id is another.
#[test]
fn of_a_group_that_was_created_again_the_latest_counts() {
    for (old, new) in [(0, 1), (9, 10)] {
        let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, &[])).collect();
        for rank in &mut ranks {
            rank.names = BTreeMap::from([(old, "0".to_owned())]);
            (0..100).for_each(|_| rank.all_reduce(old, true));
            rank.names = BTreeMap::from([(new, "0".to_owned())]);
            (0..5).for_each(|_| rank.all_reduce(new, true));
            if rank.rank != 2 {
                rank.all_reduce(new, false);
            }
        }
        let diagnosis = of_all(&ranks);
        assert_eq!(found(&diagnosis), stuck(2), "{old} and {new}: {diagnosis:#?}");
        assert_eq!(diagnosis.findings[0].op.as_ref().and_then(|op| op.number), Some(6));
        // The ring has nothing of the old ones.
        ranks.iter_mut().for_each(|rank| rank.keep(4));
        assert_eq!(found(&of_all(&ranks)), stuck(2), "{old} and {new}");
    }
}

/// Rank 2's ring has nothing of the default group, which it called four times as the old one.
#[test]
fn numbers_of_a_group_that_was_created_again_are_found_by_other_members() {
    let mut ranks: Vec<Recorder> = (0..4).map(|rank| Recorder::new(rank, &["0", "1"])).collect();
    for rank in &mut ranks {
        (0..4).for_each(|_| rank.all_reduce(0, true));
        (0..70).for_each(|_| rank.all_reduce(1, true));
        rank.names = BTreeMap::from([(2, "0".to_owned()), (3, "1".to_owned())]);
        (0..7).for_each(|_| rank.all_reduce(2, true));
        (0..50).for_each(|_| rank.all_reduce(3, true));
        if rank.rank != 2 {
            rank.all_reduce(2, false);
        }
        rank.keep(9);
    }
    let diagnosis = of_all(&ranks);
    assert_eq!(found(&diagnosis), stuck(2), "{diagnosis:#?}");
    assert_eq!(diagnosis.findings[0].op.as_ref().and_then(|op| op.number), Some(8));
}

/// The first versions have neither `pg_config` nor `process_group`.
#[test]
fn operations_without_a_group_are_refused() {
    let mut rank = Recorder::new(0, &["0"]);
    rank.all_reduce(0, false);
    let mut dump = rank.dump(2);
    for key in ["pg_config", "pg_status"] {
        dump.as_object_mut().unwrap().remove(key);
    }
    dump["entries"][0].as_object_mut().unwrap().remove("process_group");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("_dump_0"), dump.to_string()).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(error.contains("name no process group"), "{error}");
    // Beside dumps of the job it is a warning.
    let (diagnosis, warnings) = of(&[rank.dump(2), dump], 86_400);
    assert_eq!((warnings.len(), &diagnosis.silent_ranks[..]), (1, &[1][..]), "{warnings:?}");
}
