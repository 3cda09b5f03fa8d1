// SPDX-License-Identifier: Apache-2.0
//! Where metrics are sent: OpenTelemetry's own variables, and ours, which take precedence.
//!
//! Names and rules are those of the specification, "OpenTelemetry Protocol Exporter" and
//! "Environment Variable Specification" (1.50).

use ncclscope_control::reader::Reader;
use ncclscope_control::table::{OTLP, WINDOW, WINDOW_EVENTS};
use ncclscope_control::text::shown;
use ncclscope_control::value::{EXPORT_INTERVALS, MetricsTarget};
use ncclscope_metrics::send::environment::{
    self, Get, TEMPORALITY, TIMEOUT, milliseconds, place, signal, with_path,
};
use std::time::Duration;

/// The destination, the interval, and the attributes of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Otlp {
    /// The collector's URL, path included.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// Timeout of a request.
    pub timeout: Duration,
    /// The time between two exports.
    pub interval: Duration,
    /// Events after which an export comes early; 0: never.
    pub window_events: u32,
    /// Each export has the changes since the last one; otherwise since the process started.
    pub delta: bool,
    /// `service.name` and what `OTEL_RESOURCE_ATTRIBUTES` holds.
    pub resource: Vec<(String, String)>,
}

/// The default address of a collector.
const DEFAULT_BASE: &str = "http://localhost:4318";

const INTERVAL: Duration = Duration::from_secs(60);
const EXPORT_INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";

impl Otlp {
    /// The settings of the environment; `None` if metrics are off.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Otlp> {
        let environment = reader.environment();
        let get =
            |name: &str| environment(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let url = url(&get, reader)?;
        let mut milliseconds = |found: Option<(String, String)>| {
            let (name, value) = found?;
            let parsed = milliseconds(&value);
            if parsed.is_none() {
                reader.refuse(&name, &value, "milliseconds");
            }
            parsed
        };
        let timeout = milliseconds(signal(&get, "TIMEOUT")).unwrap_or(TIMEOUT);
        let standard = get(EXPORT_INTERVAL).map(|value| (EXPORT_INTERVAL.to_owned(), value));
        let standard = milliseconds(standard).unwrap_or(INTERVAL);
        let [shortest, longest] = [EXPORT_INTERVALS.start(), EXPORT_INTERVALS.end()]
            .map(|seconds| Duration::from_secs_f64(*seconds));
        let interval = standard.clamp(shortest, longest);
        if interval != standard {
            let (ms, held) = (standard.as_millis(), interval.as_millis());
            let line = format!("{EXPORT_INTERVAL}={ms}: {held} ms is used (100 to 86400000 ms)");
            reader.tell(line);
        }
        let delta = get(TEMPORALITY).is_some_and(|value| {
            environment::is_delta(&value).unwrap_or_else(|| {
                reader.refuse(TEMPORALITY, &value, "cumulative, delta or lowmemory");
                false
            })
        });
        for (name, count) in environment::left_out(&get) {
            reader.tell(format!("{name}: {count} without a = or a name are ignored"));
        }
        if signal(&get, "COMPRESSION").is_some_and(|(_, value)| value != "none") {
            reader.tell("OTEL_EXPORTER_OTLP_COMPRESSION: requests are not compressed".into());
        }
        Some(Otlp {
            url,
            headers: environment::headers(&get),
            timeout,
            interval: reader.value(&WINDOW).flatten().unwrap_or(interval),
            window_events: reader.value(&WINDOW_EVENTS).unwrap_or_default(),
            delta,
            resource: environment::resource(&get),
        })
    }
}

fn url(get: Get<'_>, reader: &mut Reader<'_>) -> Option<String> {
    let asked = OTLP.find(reader.environment());
    let own = asked.as_ref().map(|found| found.name);
    let target = asked.and_then(|found| OTLP.parse(&found.value).ok());
    let (name, url) = match (own, target) {
        (Some(own), Some(MetricsTarget::Off)) => {
            reader.take(OTLP.name, own);
            return None;
        }
        (Some(own), Some(MetricsTarget::Url(url))) => (own, with_path(&url)),
        _ => environment::endpoint(get).or_else(|| Some((own?, with_path(DEFAULT_BASE))))?,
    };
    // Our variable turns metrics on for each rank; OpenTelemetry's may be meant for the application
    // only.
    if own.is_none() && environment::is_off(get) {
        return None;
    }
    let exporter = environment::other_exporter(get).filter(|_| own.is_none());
    let protocol = signal(get, "PROTOCOL")
        .filter(|(_, value)| name.starts_with("OTEL_") && value != "http/protobuf");
    let exporter = exporter.map(|other| (other, "otlp"));
    let other = exporter.or_else(|| protocol.map(|other| (other, "http/protobuf")));
    if let Some(((variable, value), speaks)) = other {
        reader.tell(format!(
            "{variable}={}: ranks speak {speaks} only; no metrics are exported (set \
             NCCLSCOPE_OTLP, or let `ncclscope agent` do it)",
            shown(&value)
        ));
        return None;
    }
    if !url.starts_with("http://") {
        reader.tell(format!(
            "{name} (to {}): ranks speak http:// only; no metrics are exported (for https let \
             `ncclscope agent` do it)",
            shown(place(&url))
        ));
        return None;
    }
    own.iter().for_each(|own| reader.take(OTLP.name, own));
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> (Option<Otlp>, Vec<String>) {
        let vars: Vec<(String, String)> =
            vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let get = move |name: &str| vars.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let mut reader = Reader::new(&get);
        let otlp = Otlp::read(&mut reader);
        let mut lines = reader.into_lines(&[]);
        lines.retain(|line| !line.contains("are used"));
        (otlp, lines)
    }

    fn url(vars: &[(&str, &str)]) -> Option<String> {
        read(vars).0.map(|otlp| otlp.url)
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        assert_eq!(read(&[("OTEL_SERVICE_NAME", "x")]), (None, vec![]));
        let off = [("NCCLSCOPE_OTLP", "off"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")];
        assert_eq!(read(&off), (None, vec![]));
        let off = ("NCCL_PROFILER_OTEL_TELEMETRY_ENABLE", "0");
        assert_eq!(read(&[off, ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c")]), (None, vec![]));
        assert!(read(&[off, ("NCCLSCOPE_OTLP", "http://c")]).0.is_some(), "ours comes first");
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
    fn opentelemetrys_own_switches_stop_what_its_variables_start() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let own = ("NCCLSCOPE_OTLP", "on");
        for switch in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_METRICS_EXPORTER", "none")] {
            assert_eq!(read(&[endpoint, switch]), (None, vec![]));
            assert!(read(&[endpoint, switch, own]).0.is_some(), "ours comes first");
        }
        let (none, lines) = read(&[endpoint, ("OTEL_METRICS_EXPORTER", "prometheus")]);
        assert!(none.is_none() && lines.len() == 1, "{lines:?}");
        assert!(lines[0].starts_with("OTEL_METRICS_EXPORTER=prometheus: "), "{lines:?}");
        for switch in [("OTEL_SDK_DISABLED", "1"), ("OTEL_METRICS_EXPORTER", "console, otlp")] {
            let (otlp, lines) = read(&[endpoint, switch]);
            assert!(otlp.is_some() && lines.is_empty(), "{switch:?} {lines:?}");
        }
    }

    #[test]
    fn an_interval_is_held_to_the_limits_of_windows() {
        for (ms, held) in
            [("1", 0.1), ("99", 0.1), ("100", 0.1), ("18446744073709551615", 86_400.0)]
        {
            let vars = [("NCCLSCOPE_OTLP", "on"), (EXPORT_INTERVAL, ms)];
            let (otlp, lines) = read(&vars);
            assert_eq!(otlp.unwrap().interval.as_secs_f64().to_string(), held.to_string());
            assert_eq!(lines.len(), usize::from(ms != "100"), "{lines:?}");
        }
    }

    #[test]
    fn a_header_that_is_left_out_is_told_without_its_value() {
        let (otlp, lines) = read(&[
            ("NCCLSCOPE_OTLP", "on"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer secret,x=1,,=secret"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team"),
        ]);
        assert_eq!(otlp.unwrap().headers, [("x".to_owned(), "1".to_owned())]);
        assert_eq!(
            lines,
            [
                "OTEL_EXPORTER_OTLP_HEADERS: 2 without a = or a name are ignored",
                "OTEL_RESOURCE_ATTRIBUTES: 1 without a = or a name are ignored",
            ]
        );
    }

    #[test]
    fn no_line_has_what_may_be_a_password() {
        let names = [
            "NCCLSCOPE_OTLP",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            "NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT",
        ];
        for name in names {
            for url in ["https://me:secret@c:4318", "https://c:4318/secret", "me:secret@c:4318"] {
                let (none, lines) = read(&[(name, url)]);
                assert_eq!((none, lines.len()), (None, 1), "{lines:?}");
                assert!(lines[0].contains(" (to c:4318): "), "{lines:?}");
                assert!(!lines[0].contains("secret"), "{lines:?}");
            }
        }
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
    fn windows_end_by_time_and_by_count() {
        let on = ("NCCLSCOPE_OTLP", "on");
        let standard = ("OTEL_METRIC_EXPORT_INTERVAL", "5000");
        let mosaic = ("NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC", "7");
        let inspector = ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "30000000");
        let own = ("NCCLSCOPE_WINDOW", "0.5");
        let interval = |vars: &[(&str, &str)]| read(vars).0.unwrap().interval.as_secs_f64();
        assert_eq!(interval(&[on, standard]).to_string(), "5");
        assert_eq!(interval(&[on, standard, inspector]).to_string(), "30");
        assert_eq!(interval(&[on, standard, inspector, mosaic]).to_string(), "7");
        assert_eq!(interval(&[on, standard, inspector, mosaic, own]).to_string(), "0.5");
        let events = |text| read(&[on, ("NCCLSCOPE_WINDOW_EVENTS", text)]).0.unwrap().window_events;
        assert_eq!([events("0"), events("1000"), events("50000")], [0, 1000, 50_000]);
    }

    #[test]
    fn bad_values_are_one_line_each_and_the_default_holds() {
        let (otlp, lines) = read(&[
            ("NCCLSCOPE_OTLP", "http://c"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("NCCLSCOPE_WINDOW", "0"),
            ("NCCLSCOPE_WINDOW_EVENTS", "999"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ]);
        let otlp = otlp.unwrap();
        assert_eq!((otlp.timeout, otlp.interval, otlp.delta), (TIMEOUT, INTERVAL, false));
        assert_eq!((otlp.window_events, lines.len()), (0, 5), "{lines:?}");
    }
}
