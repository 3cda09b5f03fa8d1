// SPDX-License-Identifier: Apache-2.0
//! Names of other projects.

use crate::prom::promtool;
use crate::sample::{all_reduce, histogram, metrics};
use ncclscope_analyze::Timing;
use ncclscope_analyze::metrics::{Metrics, OperationKey, Operations};
use ncclscope_export::metrics::compat::{Process, inspector, mosaic};

fn process() -> Process {
    Process {
        version: "v5.1".into(),
        slurm_job_id: "7".into(),
        node: "n0".into(),
        gpu: "GPU0".into(),
        gpu_uuid: "GPU-1".into(),
        local_rank: "0".into(),
    }
}

/// The exit code is 3 where promtool finds another project's names odd; the text is sound.
fn is_sound(text: &str) {
    if let Some((code, words)) = promtool(text) {
        assert!([0, 3].contains(&code) && !words.contains("error while"), "{words}\n{text}");
    }
}

#[test]
fn inspector_has_its_four_gauges() {
    let mut metrics = metrics();
    let (key, _) = all_reduce(0);
    let send = OperationKey {
        func: "Send".into(),
        is_p2p: true,
        algo: "".into(),
        proto: "".into(),
        timing: Timing::Proxy,
        ..key
    };
    let of = Operations {
        count: 1,
        bytes: 5 << 20,
        duration: histogram(&[0.001]),
        bus_bandwidth: histogram(&[5e9]),
        ..Operations::default()
    };
    metrics.operations.insert(send, of);
    let text = inspector(&[(process(), &metrics)], 1000);
    assert_eq!(text, include_str!("golden.inspector.prom"));
    is_sound(&text);
    assert_eq!(inspector(&[(process(), &Metrics::default())], 1000), "");
}

#[test]
fn inspector_knows_gpus_apart_and_what_is_unknown() {
    let metrics = metrics();
    let other = Process { gpu: "GPU1".into(), ..Process::default() };
    let text = inspector(&[(process(), &metrics), (other, &metrics)], 1000);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("nccl_bus")).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().any(|line| line.contains("gpu=\"GPU0\"")));
    assert!(lines.iter().any(|line| {
        line.contains("node=\"unknown\",gpu=\"GPU1\"") && line.contains("message_size=\"4-5MB\"")
    }));
    is_sound(&text);
}

#[test]
fn mosaic_has_its_names() {
    let mut metrics = metrics();
    metrics.operations.retain(|key, _| key.rank == 0);
    // A receive counts at its sender.
    let (key, of) = all_reduce(0);
    metrics.operations.insert(OperationKey { func: "Recv".into(), is_p2p: true, ..key }, of);
    metrics.links.retain(|key, _| key.rank == 0);
    metrics.channels.retain(|key, _| key.rank == 0);
    let text = mosaic(&[(process(), &metrics)], 1000);
    assert_eq!(text, include_str!("golden.mosaic.prom"));
    is_sound(&text);
    assert_eq!(mosaic(&[], 1000), "");
}

#[test]
fn the_cap_holds_here_too() {
    let metrics = metrics();
    for text in [inspector, mosaic].map(|write| write(&[(process(), &metrics)], 1)) {
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let [_, over] = samples[..] else { panic!("{text}") };
        let (name, count) = over.split_once(' ').unwrap();
        assert_eq!(name, "ncclscope_series_over_cap");
        assert!(count.parse::<u32>().unwrap() > 0);
        is_sound(&text);
    }
}
