// SPDX-License-Identifier: Apache-2.0
//! Metrics under the names of other projects.

use crate::prom::promtool;
use crate::sample::{all_reduce, histogram, metrics};
use ncclscope_metrics::encode::compat::{Process, inspector, mosaic};
use ncclscope_metrics::{Compat, Metrics, OperationKey, Operations};
use ncclscope_operations::Timing;

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

/// Asserts that promtool accepts the text. Exit code 3 means only that promtool finds another
/// project's names odd.
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
        compat: Compat {
            kernel: histogram(&[0.001]),
            kernel_bandwidth: histogram(&[5e9]),
            ..Compat::default()
        },
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
    // A receive is counted at its sender.
    let (key, of) = all_reduce(0);
    metrics.operations.insert(OperationKey { func: "Recv".into(), is_p2p: true, ..key }, of);
    metrics.links.retain(|key, _| key.rank == 0);
    metrics.channels.retain(|key, _| key.rank == 0);
    let text = mosaic(&[(process(), &metrics)], 1000);
    assert_eq!(text, include_str!("golden.mosaic.prom"));
    is_sound(&text);
    assert_eq!(mosaic(&[], 1000), "");
}

/// The series of a metric: labels without `le`, and the counts up to each bound, in order.
fn buckets(text: &str, name: &str) -> Vec<(String, Vec<(f64, u64)>)> {
    let mut series: Vec<(String, Vec<(f64, u64)>)> = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(&format!("{name}_bucket{{")) else { continue };
        let (labels, rest) = rest.split_once(",le=\"").unwrap();
        let (le, count) = rest.split_once("\"} ").unwrap();
        let at = (le.replace("+Inf", "inf").parse().unwrap(), count.parse().unwrap());
        match series.last_mut() {
            Some((last, counts)) if last == labels => counts.push(at),
            _ => series.push((labels.to_owned(), vec![at])),
        }
    }
    series
}

#[test]
fn mosaics_histograms_have_buckets() {
    let metrics = metrics();
    let text = mosaic(&[(process(), &metrics)], 100_000);
    let histograms = text.lines().filter_map(|line| line.strip_suffix(" histogram"));
    let names: Vec<_> = histograms.map(|line| line.trim_start_matches("# TYPE ")).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        for (labels, counts) in buckets(&text, name) {
            assert!(counts.len() > 10 && counts.is_sorted(), "{name} {labels} {counts:?}");
            let count = format!("{name}_count{{{labels}}} {}\n", counts.last().unwrap().1);
            assert!(text.contains(&count), "{count}");
        }
    }
    // Durations of 2, 4 and 8 ms by the proxy, and a latency of 10 us.
    let up_to = |name, us| {
        let (_, counts) = buckets(&text, name).swap_remove(0);
        counts.into_iter().filter(|(le, _)| *le <= us).map(|(_, count)| count).max()
    };
    let time = "nccl_profiler_collective_time_microseconds";
    assert_eq!([900.0, 3907.0, 16e3].map(|us| up_to(time, us).unwrap()), [0, 1, 3]);
    let latency = "nccl_profiler_rank_latency_microseconds";
    assert_eq!([8.0, 16.0].map(|us| up_to(latency, us).unwrap()), [0, 1]);
}

#[test]
fn a_channel_has_its_peer_and_the_latency_of_its_link() {
    let text = mosaic(&[(process(), &metrics())], 100_000);
    let has = |name: &str, label: &str| {
        text.lines().any(|line| line.starts_with(name) && line.contains(label))
    };
    let latency = "nccl_profiler_transfer_latency_microseconds_sum";
    assert!(has(latency, r#"source_rank="1",dest_rank="2",channel="1"} 10"#), "{text}");
    assert!(has("nccl_profiler_transfer_size_bytes", "dest_rank=\"2\""), "{text}");
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
