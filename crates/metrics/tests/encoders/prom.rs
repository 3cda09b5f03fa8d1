// SPDX-License-Identifier: Apache-2.0
//! Prometheus' text format, read by promtool and by a parser of the test's own.

use crate::sample::{self, metrics};
use crate::skip;
use ncclscope_metrics::Metrics;
use ncclscope_metrics::encode::{Attribute, Cap, Family, Kind, Labels, Limiter, families, prom};
use ncclscope_metrics::encode::{METRICS, Point, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

/// The exit code and output of `promtool check metrics` for a text; `None` without promtool.
pub(crate) fn promtool(text: &str) -> Option<(i32, String)> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            let required = std::env::var("NCCLSCOPE_REQUIRE_PROM").as_deref() == Ok("1");
            assert!(!required, "promtool (Debian: prometheus) does not run: {error}");
            skip("promtool is not installed");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let words = [out.stdout, out.stderr].concat();
    Some((out.status.code().unwrap(), String::from_utf8_lossy(&words).into_owned()))
}

#[test]
fn promtool_finds_nothing() {
    let text = |labels: Labels, cap: Cap| {
        let families = Limiter::new(cap).apply(families(&metrics(), labels), false);
        prom::encode(&families, &[("job", "a \"b\"\\\n"), ("slurm.job.id", "7")])
    };
    for text in [
        text(Labels::default(), Cap::lines(1_000_000)),
        text(Labels::ALL, Cap::lines(1_000_000)),
        text(Labels::ALL, Cap::lines(250)),
    ] {
        let Some(seen) = promtool(&text) else { return };
        assert_eq!(seen, (0, String::new()), "{text}");
    }
    let (code, words) = promtool("broken{ 1\n").expect("it ran before");
    assert!(code != 0 && words.contains("error"), "{words}");
}

#[test]
fn the_text_is_as_it_was() {
    let mut few = Metrics::default();
    few.operations.extend([sample::all_reduce(0)]);
    few.lost.insert(("lane_full", "ProxyStep"), 5);
    let text = prom::encode(&families(&few, Labels::default()), &[("node", "n0")]);
    assert_eq!(text, include_str!("golden.prom"));
}

/// The samples of a text: value by name and labels.
fn parse(text: &str) -> BTreeMap<(String, BTreeMap<String, String>), String> {
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeMap::new();
        while let Some(inner) = rest.strip_prefix(['{', ',']) {
            let (label, quoted) = inner.split_once("=\"").unwrap();
            let (value, after) = unquote(quoted);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            rest = after.strip_prefix('}').unwrap_or(after);
        }
        let value = rest.strip_prefix(' ').unwrap().to_owned();
        assert!(samples.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
    }
    samples
}

/// A quoted text up to its closing quote, and what follows.
fn unquote(quoted: &str) -> (String, &str) {
    let mut text = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, &quoted[at + 1..]),
            '\\' => match chars.next().unwrap().1 {
                'n' => text.push('\n'),
                c => text.push(c),
            },
            c => text.push(c),
        }
    }
    panic!("no end: {quoted}");
}

#[test]
fn lines_are_as_many_as_the_cap_counts() {
    let all = families(&metrics(), Labels::ALL);
    for most in [250, 400, 700] {
        let limited = Limiter::new(Cap::lines(most)).apply(all.clone(), false);
        let lines = parse(&prom::encode(&limited, &[])).len();
        assert!(lines <= most && lines > most / 2, "{lines} of {most}");
    }
}

#[test]
fn every_figure_is_there() {
    let all = families(&metrics(), Labels::ALL);
    let samples = parse(&prom::encode(&all, &[]));
    for Family { metric, points } in &all {
        let name = prom::name(metric);
        for point in points {
            let labels = point.attributes.iter();
            let labels: BTreeMap<_, _> =
                labels.map(|(name, value)| (prom::label(name), value.text())).collect();
            let line = |suffix: &str| &samples[&(format!("{name}{suffix}"), labels.clone())];
            let number = match (&point.value, metric.kind) {
                (Value::Histogram(of), Kind::Histogram) => {
                    assert_eq!(line("_count"), &of.count.to_string());
                    line("_sum")
                }
                _ => line(""),
            };
            assert_eq!(number.parse(), Ok(point.value.number()), "{name}");
        }
    }
}

#[test]
fn constant_labels_give_way() {
    let few = Metrics { events: [("Coll", 1)].into(), ..Metrics::default() };
    let all = families(&few, Labels::default());
    let reserved = [("le", "1"), ("__name__", "x")];
    let twice = [("nccl.event.type", "none"), ("0 node", "n"), ("0.node", "m")];
    let constant = [&reserved[..], &twice].concat();
    let text = prom::encode(&all, &constant);
    let line = text.lines().last().unwrap();
    assert_eq!(line, "nccl_events_started_total{_0_node=\"n\",nccl_event_type=\"Coll\"} 1");
}

proptest! {
    #[test]
    fn any_text_survives_as_a_label(value in any::<String>(), constant in any::<String>()) {
        let metric = METRICS.iter().find(|metric| metric.name == "nccl.events.started").unwrap();
        let attributes = vec![("nccl.event.type", Attribute::from(value.as_str()))];
        let points = vec![Point { attributes, value: Value::Count(1) }];
        let text = prom::encode(&[Family { metric, points }], &[("node", &constant)]);
        let lines: Vec<&str> = text.split('\n').collect();
        prop_assert_eq!(lines.len(), 4, "a line was broken: {:?}", text);
        let (name, quoted) = lines[2].split_once("{node=\"").unwrap();
        let (seen_constant, rest) = unquote(quoted);
        let (seen, rest) = unquote(rest.strip_prefix(",nccl_event_type=\"").unwrap());
        prop_assert_eq!((name, rest), ("nccl_events_started_total", "} 1"));
        prop_assert_eq!((seen, seen_constant), (value, constant));
    }

    #[test]
    fn any_name_becomes_a_label(name in any::<String>()) {
        let label = prom::label(&name);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        prop_assert!(label.chars().all(is_word));
        prop_assert!(label.starts_with(|c: char| is_word(c) && !c.is_ascii_digit()));
    }
}
