// SPDX-License-Identifier: Apache-2.0
/*!
Where OTLP goes: `--otlp` and OpenTelemetry's own variables.

Names and rules are those of its specification, "OpenTelemetry Protocol Exporter".
*/

use crate::failure::Failure;
use ncclscope_otlp::environment::{self, Get, TEMPORALITY, TIMEOUT, milliseconds, signal};
use std::path::PathBuf;
use std::time::Duration;

/// A collector, and what to tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The URL, path included.
    pub(super) url: String,
    /// Headers of each request.
    pub(super) headers: Vec<(String, String)>,
    /// How long a request may take.
    pub(super) timeout: Duration,
    /// Each export tells what happened since the last one; otherwise since the agent began.
    pub(super) delta: bool,
    /// Certificates (PEM) that are trusted instead of the usual ones.
    pub(super) certificate: Option<PathBuf>,
    /// Attributes of this agent.
    pub(super) resource: Vec<(String, String)>,
}

/// A variable of the environment, without blanks around it; `None` if it is empty.
pub(super) fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

impl Target {
    /// The collector of `--otlp`, else of the environment; `None` where there is neither.
    pub(super) fn find(
        flag: Option<&str>,
        host: &str,
        get: Get<'_>,
    ) -> Result<Option<Target>, Failure> {
        let url = match (flag, environment::endpoint(get)) {
            (Some(url), _) => environment::with_path(url),
            (None, Some((_, url))) => url,
            (None, None) => return Ok(None),
        };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::usage(format!(
                "{url}: expected a URL that begins with http:// or https://"
            )));
        }
        if let Some((name, value)) = signal(get, "PROTOCOL").filter(|(_, v)| v != "http/protobuf") {
            return Err(Failure::usage(format!(
                "{name}={value}: the agent speaks http/protobuf only; set that, and the port of \
                 the collector's HTTP receiver (4318)"
            )));
        }
        if let Some((name, value)) = signal(get, "COMPRESSION").filter(|(_, v)| v != "none") {
            return Err(Failure::usage(format!(
                "{name}={value}: the agent does not compress; unset it"
            )));
        }
        let timeout = match signal(get, "TIMEOUT") {
            None => TIMEOUT,
            Some((name, value)) => milliseconds(&value)
                .ok_or_else(|| Failure::usage(format!("{name}={value}: expected milliseconds")))?,
        };
        let delta = match get(TEMPORALITY) {
            None => false,
            Some(value) => environment::is_delta(&value).ok_or_else(|| {
                let value = value.to_ascii_lowercase();
                Failure::usage(format!(
                    "{TEMPORALITY}={value}: expected cumulative, delta or lowmemory"
                ))
            })?,
        };
        Ok(Some(Target {
            url,
            headers: environment::headers(get),
            timeout,
            delta,
            certificate: signal(get, "CERTIFICATE").map(|(_, value)| value.into()),
            resource: resource(host, get),
        }))
    }
}

fn resource(host: &str, get: Get<'_>) -> Vec<(String, String)> {
    let mut resource = environment::resource(get);
    for (name, value) in [("service.name", "ncclscope"), ("host.name", host)] {
        if !resource.iter().any(|(known, _)| known == name) {
            resource.push((name.into(), value.into()));
        }
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(flag: Option<&str>, vars: &[(&str, &str)]) -> Result<Option<Target>, Failure> {
        let get = |name: &str| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Target::find(flag, "node-1", &get)
    }

    fn url(flag: Option<&str>, vars: &[(&str, &str)]) -> Option<String> {
        find(flag, vars).unwrap().map(|target| target.url)
    }

    #[test]
    fn the_flag_comes_before_the_signals_variable_and_that_before_the_common_one() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318/");
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://d/mine");
        assert_eq!(url(None, &[]), None);
        assert_eq!(url(None, &[base]).unwrap(), "https://c:4318/v1/metrics");
        assert_eq!(url(None, &[base, own]).unwrap(), "http://d/mine");
        assert_eq!(url(Some("http://e:1"), &[own]).unwrap(), "http://e:1/v1/metrics");
        assert_eq!(url(Some("http://e:1/x"), &[]).unwrap(), "http://e:1/x");
    }

    #[test]
    fn everything_else_is_read_too() {
        let target = find(
            Some("https://c"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, b=1"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
                ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=b"),
                ("OTEL_SERVICE_NAME", "train"),
            ],
        );
        let target = target.unwrap().unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(target.headers, [pair("authorization", "Bearer x"), pair("b", "1")]);
        assert_eq!((target.timeout.as_millis(), target.delta), (2500, true));
        assert_eq!(target.certificate, Some("/ca.pem".into()));
        let expected =
            [pair("team", "b"), pair("service.name", "train"), pair("host.name", "node-1")];
        assert_eq!(target.resource, expected);
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
        ] {
            let failure = find(Some("http://c"), &[(name, value)]).unwrap_err();
            assert!(failure.text().contains(name));
        }
        assert!(find(Some("c:4318"), &[]).is_err());
    }
}
