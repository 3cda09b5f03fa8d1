// SPDX-License-Identifier: Apache-2.0
//! Slow links and interfaces of healthy ranks, and slow paths inside nodes.

use crate::pipeline::{Shape, play};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_stragglers::input::table::job;
use ncclscope_stragglers::model::{
    Collective, CollectiveClass, EndSync, Job, LinkTraffic, Part, Worker,
};
use ncclscope_stragglers::time_blocks::TimeBlocks;
use ncclscope_stragglers::{Limits, Pace, SlowReport, analyze};

/// A healthy job of so many replicas, which takes some seconds, with this traffic.
fn report(replicas: u32, edges: Vec<LinkTraffic>) -> SlowReport {
    let shape = Shape { dp: replicas, pp: 1, microbatches: 4 };
    let time = |_, _, is_forward| if is_forward { 0.1 } else { 0.2 };
    let rows: Vec<_> = (0..16).flat_map(|step| play(shape, step, &time).0).collect();
    analyze(&Job { edges, ..job(&rows) }, &Limits::default())
}

/// The traffic from each of these ranks to each other one, at `factor` times the usual cost.
fn mesh(comm: &str, ranks: &[usize], factor: impl Fn(usize, usize) -> f64) -> Vec<LinkTraffic> {
    let pairs = ranks.iter().flat_map(|&src| ranks.iter().map(move |&dst| (src, dst)));
    let edge = |(src, dst): (usize, usize)| LinkTraffic {
        comm: comm.into(),
        src,
        dst,
        channel: 0,
        transfers: 1_000,
        bytes: 1 << 30,
        wire_ns: 1e9 * factor(src, dst),
        pace: Pace::default(),
        blocks: TimeBlocks::default(),
        sample: Vec::new(),
        is_first: false,
    };
    pairs.filter(|(src, dst)| src != dst).map(edge).collect()
}

fn found(report: &SlowReport) -> Vec<(FindingClass, Vec<u32>, Confidence)> {
    report.findings.iter().map(|f| (f.class, f.root_ranks.clone(), f.confidence())).collect()
}

/// In a mesh of three, two links of six do not touch a slow interface, in one of four half of them.
#[test]
fn a_slow_interface_of_a_small_mesh_is_found() {
    for ranks in 3..=4_u32 {
        let all: Vec<usize> = (0..ranks as usize).collect();
        for slow in 0..ranks {
            let edges = |factor: f64| {
                // Healthy links differ by a third.
                let usual = |src, dst| 1.0 + (src * 7 + dst * 5) as f64 % 3.0 / 6.0;
                let is_slow = |src, dst| [src, dst].contains(&(slow as usize));
                let slow = |src, dst| if is_slow(src, dst) { factor } else { 1.0 };
                mesh("ep", &all, |src, dst| usual(src, dst) * slow(src, dst))
            };
            // The spread of few links is not known.
            let sure = if ranks == 3 { Confidence::Suspect } else { Confidence::Confirmed };
            assert_eq!(
                found(&report(ranks, edges(6.0))),
                [(FindingClass::SlowNic, vec![slow], sure)]
            );
            for healthy in [1.0, 1.2] {
                let report = report(ranks, edges(healthy));
                assert_eq!((found(&report), report.unjudged.links), (vec![], 0));
            }
        }
    }
}

/// Half of the links of the mesh and of the ring touch the slow interface.
#[test]
fn an_interface_that_makes_half_of_all_links_slow_is_found() {
    let all: Vec<usize> = (0..4).collect();
    let edges = mesh("ep", &all, |src, dst| if [src, dst].contains(&2) { 6.0 } else { 1.0 });
    let is_next = |edge: &&LinkTraffic| edge.dst == (edge.src + 1) % 4;
    let ring = edges.iter().filter(is_next).map(|edge| LinkTraffic {
        comm: "dp".into(),
        bytes: 8 * edge.bytes,
        wire_ns: 8.0 * edge.wire_ns,
        ..edge.clone()
    });
    let report = report(4, edges.iter().cloned().chain(ring).collect());
    assert_eq!(found(&report), [(FindingClass::SlowNic, vec![2], Confidence::Confirmed)]);
}

/// Meshes that are each too small to show a usual link do so together. The ring of all ranks has
/// the slow interface, too.
#[test]
fn small_meshes_are_compared_with_one_another() {
    for slow in [None, Some(5)] {
        let factor =
            |src, dst| if slow.is_some_and(|slow| [src, dst].contains(&slow)) { 6.0 } else { 1.0 };
        let groups: Vec<Vec<usize>> = (0..4).map(|of| (4 * of..4 * of + 4).collect()).collect();
        let all: Vec<usize> = (0..16).collect();
        let meshes = groups.iter().enumerate();
        let mut edges: Vec<LinkTraffic> =
            meshes.flat_map(|(at, group)| mesh(&format!("ep{at}"), group, factor)).collect();
        let ring = mesh("dp", &all, factor).into_iter();
        edges.extend(ring.filter(|edge| edge.dst == (edge.src + 1) % 16));
        let report = report(16, edges);
        let nic = slow.map(|_| (FindingClass::SlowNic, vec![5], Confidence::Confirmed));
        assert_eq!(found(&report), nic.into_iter().collect::<Vec<_>>());
        assert_eq!(report.unjudged.links, 0);
    }
}

/// A collective of two ranks that begin and end it together.
fn together(class: usize, step: u32, workers: [usize; 2], [start, end]: [f64; 2]) -> Collective {
    Collective {
        class,
        shape: 0,
        step: Some(step.into()),
        ends: EndSync::Together,
        has_ends: true,
        parts: workers.map(|worker| Part { worker, start, end }).into(),
    }
}

/// Twelve steps of 20 ms of two ranks, with two collectives each, which are slower from the sixth
/// step on.
fn short_run(factor: f64) -> Job {
    let workers = [Worker::new(0, "a"), Worker::new(1, "b")].into();
    let mut job = Job { is_kernel_timed: true, workers, ..Job::default() };
    job.shapes.push(String::new());
    for (class, func) in ["AllReduce", "AllGather"].into_iter().enumerate() {
        let (comm, bytes) = ("dp".to_owned(), Some(1 << 20));
        job.classes.push(CollectiveClass { comm, func: func.into(), bytes, members: 2 });
        for step in 0..12_u32 {
            let start = 2e7 * f64::from(step) + 1e7 * class as f64;
            let end = start + if step < 6 { 1e6 } else { 1e6 * factor };
            job.collectives.push(together(class, step, [0, 1], [start, end]));
        }
    }
    job
}

#[test]
fn a_short_run_shows_that_transfers_became_slower() {
    let of = |factor| found(&analyze(&short_run(factor), &Limits::default()));
    assert_eq!(of(6.0), [(FindingClass::TransfersSlowed, vec![], Confidence::Confirmed)]);
    assert_eq!(of(1.1), [], "1 % of a step does not matter");
}

/// Some steps of 20 ms of 64 pairs of ranks with one collective each. It takes from 1 to 1.5 ms by
/// chance, and 1 ms longer in the last half of the steps in the first `slow` pairs.
fn pairs_of_ranks(slow: usize, steps: u32) -> Job {
    let workers = (0..128).map(|rank| Worker::new(rank, format!("node{rank}"))).collect();
    let shapes = vec![String::new()];
    let mut job = Job { is_kernel_timed: true, workers, shapes, ..Job::default() };
    for pair in 0..64 {
        let (comm, func) = (format!("dp{pair}"), "ReduceScatter".to_owned());
        job.networked.insert(comm.clone());
        job.classes.push(CollectiveClass { comm, func, bytes: Some(1 << 25), members: 2 });
        for step in 0..steps {
            let start = 2e7 * f64::from(step);
            let chance = (97 * u32::try_from(pair).unwrap() + step).wrapping_mul(0x9e37_79b1) >> 22;
            let longer = if step >= steps / 2 && pair < slow { 1e6 } else { 0.0 };
            let end = start + 1e6 + 500.0 * f64::from(chance) + longer;
            job.collectives.push(together(pair, step, [2 * pair, 2 * pair + 1], [start, end]));
        }
    }
    job
}

/// In a healthy job of 8,192 ranks whose computing times vary by 15 %, 16 of 32 communicators were
/// slower in the last three steps than in the first three.
#[test]
fn chance_in_many_communicators_is_no_slower_network() {
    let of = |slow, steps| found(&analyze(&pairs_of_ranks(slow, steps), &Limits::default()));
    for steps in [6, 18, 60] {
        assert_eq!(of(0, steps), [], "{steps}");
    }
    let slower = [(FindingClass::TransfersSlowed, vec![], Confidence::Confirmed)];
    assert_eq!(of(64, 18), slower);
    assert_eq!(of(60, 18), slower);
    assert_eq!(of(4, 60), slower);
}

/// 40 steps of 100 ms of eight nodes with two ranks each. In each step each node has two
/// collectives of 1 ms, or of 6 ms in the slow nodes.
fn nodes(slow: &[usize]) -> Job {
    let workers = (0..16).map(|rank| Worker::new(rank, format!("node{}", rank / 2))).collect();
    let shapes = vec![String::new()];
    let mut job = Job { is_kernel_timed: true, workers, shapes, ..Job::default() };
    for func in ["AllReduce", "AllGather"] {
        let class = |node: u32| CollectiveClass {
            comm: format!("tp{node}"),
            func: func.into(),
            bytes: Some(1 << 20),
            members: 2,
        };
        job.classes.extend((0..8).map(class));
    }
    for step in 0..40 {
        for class in 0..16 {
            let node = class % 8;
            let start = f64::from(step) * 1e8 + if class < 8 { 0.0 } else { 1e7 };
            let end = start + if slow.contains(&node) { 6e6 } else { 1e6 };
            job.collectives.push(together(class, step, [2 * node, 2 * node + 1], [start, end]));
        }
    }
    job
}

#[test]
fn slow_paths_inside_several_nodes_are_told_apart() {
    let of = |slow: &[usize]| {
        let report = analyze(&nodes(slow), &Limits::default());
        assert!(report.findings.iter().all(|of| of.class == FindingClass::SlowNodePath));
        report.findings.into_iter().map(|of| of.root_ranks).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), [[0; 0]; 0]);
    assert_eq!(of(&[1]), [[2, 3]]);
    assert_eq!(of(&[1, 5]), [[2, 3], [10, 11]]);
}
