// SPDX-License-Identifier: Apache-2.0
//! Where metrics go: OpenTelemetry's own variables, and ours before them.
//!
//! Names and rules are those of the specification, "OpenTelemetry Protocol Exporter" and
//! "Environment Variable Specification" (1.50).

use ncclscope_otlp::environment::{
    self, Get, TEMPORALITY, TIMEOUT, milliseconds, signal, with_path,
};
use std::time::Duration;

/// Where to, how often, and what to say of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Otlp {
    /// The collector's URL, path included.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// How long a request may take.
    pub timeout: Duration,
    /// Between two exports.
    pub interval: Duration,
    /// Each export tells what happened since the last one; otherwise since the process began.
    pub delta: bool,
    /// `service.name` and what `OTEL_RESOURCE_ATTRIBUTES` holds.
    pub resource: Vec<(String, String)>,
}

/// Where a collector listens unless told otherwise.
const DEFAULT_BASE: &str = "http://localhost:4318";

const INTERVAL: Duration = Duration::from_secs(60);

impl Otlp {
    /// What the environment says; `None` where metrics go nowhere. A line is added to `lines` for
    /// each variable that was not understood.
    pub(super) fn read(get: Get<'_>, lines: &mut Vec<String>) -> Option<Otlp> {
        let get = |name: &str| get(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        // Mosaic's switches, which are on unless they are 0.
        let switches = ["NCCL_PROFILER_OTEL_ENABLE", "NCCL_PROFILER_OTEL_TELEMETRY_ENABLE"];
        if switches.iter().any(|name| get(name).is_some_and(|value| value == "0")) {
            return None;
        }
        let url = url(&get, lines)?;
        let mut understand = |found: Option<(String, String)>, parse: Parse, expected: &str| {
            let (name, value) = found?;
            let parsed = parse(&value);
            if parsed.is_none() {
                lines.push(format!("{name}={value}: expected {expected}; the default holds"));
            }
            parsed
        };
        let timeout = understand(signal(&get, "TIMEOUT"), milliseconds, "milliseconds");
        let name = |name: &str| get(name).map(|value| (name.to_owned(), value));
        let interval = understand(name("NCCLSCOPE_WINDOW"), seconds, "seconds")
            .or_else(|| {
                let seed = "NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC";
                understand(name(seed), seconds, "seconds")
            })
            .or_else(|| {
                understand(name("OTEL_METRIC_EXPORT_INTERVAL"), milliseconds, "milliseconds")
            });
        let delta = get(TEMPORALITY).is_some_and(|value| {
            environment::is_delta(&value).unwrap_or_else(|| {
                lines.push(format!(
                    "{TEMPORALITY}={value}: expected cumulative, delta or lowmemory; cumulative \
                     holds"
                ));
                false
            })
        });
        if signal(&get, "COMPRESSION").is_some_and(|(_, value)| value != "none") {
            lines.push("OTEL_EXPORTER_OTLP_COMPRESSION: requests are not compressed".into());
        }
        let (headers, resource) = (environment::headers(&get), environment::resource(&get));
        let (timeout, interval) = (timeout.unwrap_or(TIMEOUT), interval.unwrap_or(INTERVAL));
        Some(Otlp { url, headers, timeout, interval, delta, resource })
    }
}

type Parse = fn(&str) -> Option<Duration>;

fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.1..=86_400.0).contains(s))?;
    Some(Duration::from_secs_f64(seconds))
}

fn url(get: Get<'_>, lines: &mut Vec<String>) -> Option<String> {
    let ours = ["NCCLSCOPE_OTLP", "NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT"];
    let find = |names: &[&'static str]| names.iter().find_map(|&name| Some((name, get(name)?)));
    let (name, url) = match find(&ours) {
        Some((_, value)) if value == "off" || value == "0" => return None,
        Some((name, value)) if value != "on" && value != "1" => (name, with_path(&value)),
        asked => environment::endpoint(get).or_else(|| {
            let (name, _) = asked?;
            Some((name, with_path(DEFAULT_BASE)))
        })?,
    };
    let protocol = signal(get, "PROTOCOL");
    // Who names our variable means it; the others may be meant for somebody else.
    if let Some((protocol, value)) = protocol.filter(|_| name.starts_with("OTEL_"))
        && value != "http/protobuf"
    {
        lines.push(format!(
            "{protocol}={value}: ranks speak http/protobuf only; no metrics are exported (set \
             NCCLSCOPE_OTLP, or let `ncclscope agent` do it)"
        ));
        return None;
    }
    if !url.starts_with("http://") {
        lines.push(format!(
            "{name}={url}: ranks speak http:// only; no metrics are exported (for https let \
             `ncclscope agent` do it)"
        ));
        return None;
    }
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> (Option<Otlp>, Vec<String>) {
        let vars: Vec<(String, String)> =
            vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let get = move |name: &str| vars.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let mut lines = Vec::new();
        (Otlp::read(&get, &mut lines), lines)
    }

    fn url(vars: &[(&str, &str)]) -> Option<String> {
        read(vars).0.map(|otlp| otlp.url)
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        assert_eq!(read(&[("OTEL_SERVICE_NAME", "x")]), (None, vec![]));
        let off = [("NCCLSCOPE_OTLP", "off"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")];
        assert_eq!(read(&off), (None, vec![]));
        let off = [("NCCL_PROFILER_OTEL_TELEMETRY_ENABLE", "0"), ("NCCLSCOPE_OTLP", "http://c")];
        assert_eq!(read(&off), (None, vec![]));
    }

    #[test]
    fn endpoints_get_the_path_that_they_need() {
        let base = "OTEL_EXPORTER_OTLP_ENDPOINT";
        assert_eq!(url(&[(base, "http://c:4318/")]).unwrap(), "http://c:4318/v1/metrics");
        assert_eq!(url(&[(base, "http://c/otlp")]).unwrap(), "http://c/otlp/v1/metrics");
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://d:1/mine");
        assert_eq!(url(&[(base, "http://c:4318"), own]).unwrap(), "http://d:1/mine");
        assert_eq!(url(&[("NCCLSCOPE_OTLP", "http://e:2"), own]).unwrap(), "http://e:2/v1/metrics");
        assert_eq!(url(&[("NCCLSCOPE_OTLP", "http://e:2/x")]).unwrap(), "http://e:2/x");
        assert_eq!(url(&[("NCCLSCOPE_OTLP", "1"), own]).unwrap(), "http://d:1/mine");
        assert_eq!(url(&[("NCCLSCOPE_OTLP", "on")]).unwrap(), "http://localhost:4318/v1/metrics");
    }

    #[test]
    fn what_a_rank_cannot_speak_is_one_line() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        let (none, lines) = read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert!(none.is_none() && lines.len() == 1 && lines[0].contains("agent"), "{lines:?}");
        let (none, lines) = read(&[("NCCLSCOPE_OTLP", "https://c")]);
        assert!(
            none.is_none() && lines.len() == 1 && lines[0].contains("http:// only"),
            "{lines:?}"
        );
    }

    #[test]
    fn everything_else_is_read_too() {
        let (otlp, lines) = read(&[
            ("NCCLSCOPE_OTLP", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=b"),
            ("OTEL_SERVICE_NAME", "train"),
        ]);
        let otlp = otlp.unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(otlp.headers, [pair("api-key", "a b"), pair("x", "1")]);
        assert_eq!((otlp.timeout.as_millis(), otlp.interval.as_secs()), (2500, 5));
        assert!(otlp.delta && lines.is_empty(), "{lines:?}");
        assert_eq!(otlp.resource, [pair("team", "b"), pair("service.name", "train")]);
    }

    #[test]
    fn bad_values_are_one_line_each_and_the_default_holds() {
        let (otlp, lines) = read(&[
            ("NCCLSCOPE_OTLP", "http://c"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("NCCLSCOPE_WINDOW", "0"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ]);
        let otlp = otlp.unwrap();
        assert_eq!((otlp.timeout, otlp.interval, otlp.delta), (TIMEOUT, INTERVAL, false));
        assert_eq!(lines.len(), 4, "{lines:?}");
    }
}
