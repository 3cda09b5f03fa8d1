// SPDX-License-Identifier: Apache-2.0
//! OpenTelemetry's variables, by its specification ("OpenTelemetry Protocol Exporter" and
//! "Environment Variable Specification", 1.50). The caller passes the environment: a function from
//! a name to a value that is trimmed and not empty.

use percent_encoding::percent_decode_str;
use std::time::Duration;

/// The default time limit of a request.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The variable with the temporality that a collector prefers; see [`is_delta`].
pub const TEMPORALITY: &str = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";

/// The variable that names the exporters of metrics.
const EXPORTER: &str = "OTEL_METRICS_EXPORTER";

/// The environment: returns a variable's value, or `None` if it is not set.
pub type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Full name and value of a variable of the exporter, such as `TIMEOUT`: the one for metrics, else
/// the one for all signals.
#[must_use]
pub fn signal(get: Get<'_>, name: &str) -> Option<(String, String)> {
    let names =
        [format!("OTEL_EXPORTER_OTLP_METRICS_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
    names.into_iter().find_map(|name| get(&name).map(|value| (name, value)))
}

/// The URL for metrics with its path, and the variable that sets it: the one for metrics unchanged,
/// else the one for all signals with the path of metrics appended.
#[must_use]
pub fn endpoint(get: Get<'_>) -> Option<(&'static str, String)> {
    const OWN: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
    const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    get(OWN).map(|url| (OWN, url)).or_else(|| {
        let base = get(BASE)?;
        Some((BASE, format!("{}/v1/metrics", base.trim_end_matches('/'))))
    })
}

/// Appends the path of metrics to a URL that has no path.
#[must_use]
pub fn with_path(url: &str) -> String {
    let after_host = url.split_once("://").map_or(url, |(_, rest)| rest);
    match after_host.split_once('/') {
        Some((_, path)) if !path.is_empty() => url.to_owned(),
        _ => format!("{}/v1/metrics", url.trim_end_matches('/')),
    }
}

/// Host and port of a URL, for messages. Other parts of a collector's URL may be secret (a
/// password, a key in the path or the query).
#[must_use]
pub fn place(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let port = place.rsplit_once(':').map_or("", |(_, port)| port);
    // Otherwise it is a user name and a password with a slash in it.
    let is_port = port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit());
    if is_port { place } else { "a URL without a place" }
}

/// Headers for each request.
#[must_use]
pub fn headers(get: Get<'_>) -> Vec<(String, String)> {
    signal(get, "HEADERS").map(|(_, value)| pairs(&value)).unwrap_or_default()
}

/// Attributes of the resource: `OTEL_RESOURCE_ATTRIBUTES`, in which `OTEL_SERVICE_NAME` replaces
/// `service.name`.
#[must_use]
pub fn resource(get: Get<'_>) -> Vec<(String, String)> {
    let mut resource = get("OTEL_RESOURCE_ATTRIBUTES").map(|v| pairs(&v)).unwrap_or_default();
    if let Some(service) = get("OTEL_SERVICE_NAME") {
        resource.retain(|(name, _)| name != "service.name");
        resource.push(("service.name".into(), service));
    }
    resource
}

/// Parses a positive number of milliseconds.
#[must_use]
pub fn milliseconds(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|&ms| ms > 0).map(Duration::from_millis)
}

/// Whether a value of [`TEMPORALITY`] requests deltas since the last export and not cumulative
/// totals; `None` if the value is invalid.
#[must_use]
pub fn is_delta(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "cumulative" => Some(false),
        "delta" | "lowmemory" => Some(true),
        _ => None,
    }
}

/// Whether a variable of OpenTelemetry switches all metrics off.
#[must_use]
pub fn is_off(get: Get<'_>) -> bool {
    let is = |name: &str, off: &str| get(name).is_some_and(|v| v.eq_ignore_ascii_case(off));
    is("OTEL_SDK_DISABLED", "true") || is(EXPORTER, "none")
}

/// The variable that names the exporters of metrics, with its value, if OTLP is not among them;
/// else `None`.
#[must_use]
pub fn other_exporter(get: Get<'_>) -> Option<(String, String)> {
    let value = get(EXPORTER)?;
    let is_otlp = value.split(',').any(|name| name.trim() == "otlp");
    (!is_otlp).then(|| (EXPORTER.to_owned(), value))
}

/// Variables of which [`headers`] or [`resource`] ignore invalid parts, with the number of these.
#[must_use]
pub fn left_out(get: Get<'_>) -> Vec<(String, usize)> {
    const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
    let resource = get(RESOURCE).map(|value| (RESOURCE.to_owned(), value));
    let all = signal(get, "HEADERS").into_iter().chain(resource);
    let counted = all.map(|(name, value)| {
        let parts = value.split(',').filter(|part| !part.trim().is_empty());
        (name, parts.filter(|part| pair(part).is_none()).count())
    });
    counted.filter(|&(_, count)| count > 0).collect()
}

/// Parses `name=value,…`, percent-encoded, as in W3C Baggage. Parts without a name or without `=`
/// are ignored.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(pair);
    let decode = |value| percent_decode_str(value).decode_utf8_lossy().into_owned();
    pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect()
}

fn pair(part: &str) -> Option<(&str, &str)> {
    let (name, value) = part.split_once('=')?;
    let name = name.trim();
    (!name.is_empty()).then(|| (name, value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_no_secrets() {
        assert_eq!(place("http://me:secret@[::1]:4318/v1/metrics"), "[::1]:4318");
        assert_eq!(place("https://[::1]/secret"), "[::1]");
        assert_eq!(place("http://collector?key=secret@y"), "collector");
        assert_eq!(place("me:secret@collector:4317"), "collector:4317");
        assert_eq!(place("http://me:sec/ret@collector"), "a URL without a place");
    }
}
