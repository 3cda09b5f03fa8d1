// SPDX-License-Identifier: Apache-2.0
//! OTLP requests, read with OpenTelemetry's own schema.

use crate::sample::metrics;
use crate::skip;
use ncclscope_metrics::encode::otlp::{Export, Response, encode, parse_response};
use ncclscope_metrics::encode::{
    Attribute, Cap, Family, Kind, Labels, Limiter, Point, Value, families,
};
use serde_json::{Value as Json, json};
use std::process::Command;

/// A request as the official schema reads it, and the answer to it; `None` without a Python that
/// has the schema.
fn check(request: &[u8]) -> Option<(Json, Vec<u8>)> {
    let Some(python) = std::env::var_os("NCCLSCOPE_TEST_PYTHON") else {
        assert!(
            std::env::var("NCCLSCOPE_REQUIRE_NCCL").as_deref() != Ok("1"),
            "NCCLSCOPE_TEST_PYTHON is not set: name a Python that has opentelemetry-proto"
        );
        skip("NCCLSCOPE_TEST_PYTHON is not set");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let [path, answer] = ["request", "response"].map(|name| folder.path().join(name));
    std::fs::write(&path, request).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/encoders/check_otlp.py");
    let out = Command::new(python).arg(script).args([&path, &answer]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some((serde_json::from_slice(&out.stdout).unwrap(), std::fs::read(answer).unwrap()))
}

fn attribute(value: &Attribute) -> Json {
    match value {
        Attribute::Text(text) => json!(&**text),
        Attribute::Int(number) => json!(number),
        Attribute::Bool(yes) => json!(yes),
    }
}

/// The JSON that the schema should give for a point.
fn expected_point(point: &Point) -> Json {
    let mut all = match &point.value {
        Value::Count(count) => json!({ "type": "as_int", "value": count }),
        Value::Sum(sum) => json!({ "type": "as_double", "value": sum }),
        Value::Histogram(of) => json!({
            "count": of.count,
            "sum": of.sum,
            "scale": of.scale(),
            "zero_count": of.zero_count(),
            "offset": of.offset(),
            "buckets": of.buckets(),
            "min": of.min(),
            "max": of.max(),
        }),
    };
    let pairs = point.attributes.iter();
    all["attributes"] = pairs.map(|(name, of)| ((*name).to_owned(), attribute(of))).collect();
    all["start"] = json!(1_700_000_000_000_000_000_u64);
    all["time"] = json!(1_700_000_060_000_000_000_u64);
    all
}

fn expected_metric(family: &Family, temporality: &str) -> Json {
    let metric = family.metric;
    let kind = match metric.kind {
        Kind::Counter => "sum",
        Kind::Sum | Kind::Max => "gauge",
        Kind::Histogram => "exponential_histogram",
    };
    let mut all = json!({
        "name": metric.name,
        "unit": metric.unit,
        "description": metric.description,
        "kind": kind,
        "points": family.points.iter().map(expected_point).collect::<Vec<_>>(),
    });
    if kind != "gauge" {
        all["temporality"] = json!(temporality);
    }
    all
}

#[test]
fn the_official_schema_reads_every_figure() {
    let resource = [("service.name", "ncclscope"), ("process.pid", "42"), ("slurm.job.id", "7")];
    let resource = resource.map(|(name, value)| (name.to_owned(), value.to_owned()));
    for (delta, temporality) in [(false, "cumulative"), (true, "delta")] {
        // The cap is low enough for overflow series.
        let mut limiter = Limiter::new(Cap::points(80));
        let families = limiter.apply(families(&metrics(), Labels::ALL), delta);
        let export = Export {
            resource: &resource,
            version: "1.2.3",
            start_ns: 1_700_000_000_000_000_000,
            now_ns: 1_700_000_060_000_000_000,
            delta,
        };
        let Some((seen, answer)) = check(&encode(&families, &export)) else { return };
        let expected = json!({
            "resource": { "service.name": "ncclscope", "process.pid": 42, "slurm.job.id": "7" },
            "scope": ["ncclscope", "1.2.3"],
            "metrics": families
                .iter()
                .map(|family| expected_metric(family, temporality))
                .collect::<Vec<_>>(),
        });
        assert_eq!(seen, expected);
        assert!(seen.to_string().contains("otel.metric.overflow"));
        let partial = Response { rejected: 7, message: "too old".into() };
        assert_eq!(parse_response(&answer), Some(partial));
    }
}

#[test]
fn no_points_are_a_request_all_the_same() {
    let export = Export { resource: &[], version: "1.2.3", start_ns: 1, now_ns: 2, delta: false };
    let Some((seen, _)) = check(&encode(&[], &export)) else { return };
    let expected = json!({ "resource": {}, "scope": ["ncclscope", "1.2.3"], "metrics": [] });
    assert_eq!(seen, expected);
}
