// SPDX-License-Identifier: Apache-2.0
/*!
The target of OTLP exports: `--otlp` and OpenTelemetry's own variables.

Names and rules are those of its specification, "OpenTelemetry Protocol Exporter".
*/

use http::uri::Authority;
use ncclscope_console::failure::Failure;
use ncclscope_metrics::send::environment::{
    self, Get, TEMPORALITY, TIMEOUT, milliseconds, place, signal,
};
use std::path::PathBuf;
use std::time::Duration;

/// Default port of a collector for gRPC.
const GRPC_PORT: u16 = 4317;

/// The protocol to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Protobuf in an HTTP/1.1 request.
    Http,
    Grpc,
}

/// A client's certificate and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A collector and the settings for exporting to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The URL: with a path for HTTP, without one for gRPC.
    pub(crate) url: String,
    pub(crate) protocol: Protocol,
    pub(crate) gzip: bool,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Duration,
    /// Each export has the changes since the last one; otherwise the totals since the agent
    /// started.
    pub(crate) delta: bool,
    /// Certificates (PEM) that are trusted instead of the default ones.
    pub(crate) certificate: Option<PathBuf>,
    /// The client certificate that is presented if the collector asks for one.
    pub(crate) identity: Option<Identity>,
    /// OpenTelemetry resource attributes of this agent.
    pub(crate) resource: Vec<(String, String)>,
}

/// An environment variable without surrounding blanks; `None` if it is unset or empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

impl Target {
    /// The collector given by `--otlp`, else by the environment unless that turns OpenTelemetry
    /// off; `None` if there is none.
    pub(crate) fn find(
        flag: Option<&str>,
        host: &str,
        get: Get<'_>,
    ) -> Result<Option<Target>, Failure> {
        let protocol = protocol(get)?;
        let given = match (flag, protocol) {
            (Some(url), Protocol::Http) => Some(environment::with_path(url)),
            (None, Protocol::Http) => environment::endpoint(get).map(|(_, url)| url),
            (Some(url), Protocol::Grpc) => Some(url.to_owned()),
            (None, Protocol::Grpc) => signal(get, "ENDPOINT").map(|(_, url)| url),
        };
        let is_off = flag.is_none() && environment::is_off(get);
        let Some(url) = given.filter(|_| !is_off) else { return Ok(None) };
        let url = if protocol == Protocol::Grpc { grpc_url(&url, get)? } else { url };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::usage(format!(
                "{}: expected a URL that begins with http:// or https://",
                place(&url)
            )));
        }
        let gzip = match signal(get, "COMPRESSION") {
            None => false,
            Some((name, value)) => match value.as_str() {
                "none" => false,
                "gzip" => true,
                _ => return Err(Failure::usage(format!("{name}={value}: expected gzip or none"))),
            },
        };
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
            protocol,
            gzip,
            headers: environment::headers(get),
            timeout,
            delta,
            certificate: signal(get, "CERTIFICATE").map(|(_, value)| value.into()),
            identity: identity(get)?,
            resource: resource(host, get),
        }))
    }
}

fn protocol(get: Get<'_>) -> Result<Protocol, Failure> {
    let Some((name, value)) = signal(get, "PROTOCOL") else { return Ok(Protocol::Http) };
    match value.as_str() {
        "http/protobuf" => Ok(Protocol::Http),
        "grpc" => Ok(Protocol::Grpc),
        _ => Err(Failure::usage(format!("{name}={value}: expected http/protobuf or grpc"))),
    }
}

/// Scheme, host and port. Without a scheme TLS is used, unless `OTEL_EXPORTER_OTLP_INSECURE` is
/// set.
fn grpc_url(text: &str, get: Get<'_>) -> Result<String, Failure> {
    let is_insecure = || signal(get, "INSECURE").is_some_and(|(_, v)| v == "true");
    let (scheme, rest) = match text.split_once("://") {
        Some(parts) => parts,
        None if is_insecure() => ("http", text),
        None => ("https", text),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let authority: Authority = authority
        .parse()
        .map_err(|e| Failure::usage(format!("{}: expected a URL: {e}", place(text))))?;
    let port = if authority.port().is_none() { format!(":{GRPC_PORT}") } else { String::new() };
    Ok(format!("{scheme}://{authority}{port}"))
}

fn identity(get: Get<'_>) -> Result<Option<Identity>, Failure> {
    match (signal(get, "CLIENT_CERTIFICATE"), signal(get, "CLIENT_KEY")) {
        (None, None) => Ok(None),
        (Some((_, certificate)), Some((_, key))) => {
            Ok(Some(Identity { certificate: certificate.into(), key: key.into() }))
        }
        (Some((name, _)), None) | (None, Some((name, _))) => Err(Failure::usage(format!(
            "{name}: a client needs both CLIENT_CERTIFICATE and CLIENT_KEY"
        ))),
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
    fn the_switches_of_opentelemetry_turn_it_off() {
        for switch in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_METRICS_EXPORTER", "none")] {
            let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
            assert_eq!(url(None, &[switch, base]), None);
            assert!(url(Some("http://c"), &[switch]).is_some(), "the flag means the agent");
        }
    }

    #[test]
    fn by_grpc_a_collector_has_a_host_and_a_port() {
        let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://d:1/");
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/ignored");
        let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
        assert_eq!(url(None, &[grpc]), None);
        assert_eq!(url(None, &[grpc, base]).unwrap(), "https://c:4317");
        assert_eq!(url(None, &[grpc, base, own]).unwrap(), "http://d:1");
        assert_eq!(url(Some("e"), &[grpc, own]).unwrap(), "https://e:4317");
        assert_eq!(url(Some("e:2"), &[grpc, insecure]).unwrap(), "http://e:2");
        assert_eq!(url(Some("http://[::1]"), &[grpc]).unwrap(), "http://[::1]:4317");
        for text in ["", "https://", "a b", "grpc://c"] {
            assert!(find(Some(text), &[grpc]).is_err(), "{text}");
        }
    }

    #[test]
    fn everything_else_is_read_too() {
        let target = find(
            Some("https://c"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, b=1"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/me.pem"),
                ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "/me.key"),
                ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip"),
                ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=b"),
                ("OTEL_SERVICE_NAME", "train"),
            ],
        );
        let target = target.unwrap().unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(target.headers, [pair("authorization", "Bearer x"), pair("b", "1")]);
        assert_eq!((target.timeout.as_millis(), target.delta), (2500, true));
        assert_eq!((target.protocol, target.gzip), (Protocol::Http, true));
        assert_eq!(target.certificate, Some("/ca.pem".into()));
        let identity = Identity { certificate: "/me.pem".into(), key: "/me.key".into() };
        assert_eq!(target.identity, Some(identity));
        let expected =
            [pair("team", "b"), pair("service.name", "train"), pair("host.name", "node-1")];
        assert_eq!(target.resource, expected);
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/me.key"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
        ] {
            let failure = find(Some("http://c"), &[(name, value)]).unwrap_err();
            assert!(failure.text().contains(name));
        }
        for (url, vars) in [
            ("me:secret@c:4318", &[][..]),
            ("me:secret@c d", &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]),
        ] {
            let failure = find(Some(url), vars).unwrap_err().text();
            assert!(failure.contains('c') && !failure.contains("secret"), "{failure}");
        }
    }
}
