// SPDX-License-Identifier: Apache-2.0
/*!
Other profilers' variables that mean what one of ours means: Open Mosaic's (`NCCL_PROFILER_OTEL_*`),
NVIDIA's Inspector's (`NCCL_INSPECTOR_*`, its README in NVIDIA/nccl@3254c695), its example plugin's.

Which ones is the table's to say ([`super::VARIABLES`]); here are their values in our words. Ours
comes first wherever both are set.
*/

use super::table::{NOT_TAKEN, VARIABLES};

/// A variable's value.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Mosaic's switch and Inspector's for metrics by OTLP: 0 off, 1 on.
const SWITCHES: [&str; 2] = ["NCCL_PROFILER_OTEL_TELEMETRY_ENABLE", "NCCL_INSPECTOR_OTEL_EXPORT"];
/// Mosaic's collector.
const ENDPOINT: &str = "NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT";
/// The longest window, s: what is left goes at the end of the process.
const AT_THE_END: &str = "86400";

/// A variable that is set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Its name: ours or an alias.
    pub(super) name: String,
    /// Its value in our words.
    pub(super) value: String,
}

/// Our variable `own` (without the prefix), or else its first alias that is set.
pub(super) fn find(own: &str, get: Get<'_>) -> Option<Found> {
    let variable = VARIABLES.iter().find(|variable| variable.name == own)?;
    let get = |name: &str| get(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
    if own == "OTLP" {
        return target(variable.full_name(), &get);
    }
    variable.names().into_iter().find_map(|name| {
        let value = get(&name)?;
        let value = in_our_words(&name, value, &get)?;
        Some(Found { name, value })
    })
}

/// Where metrics go. A switch that is off comes before an endpoint, which says where if it is on.
fn target(own: String, get: Get<'_>) -> Option<Found> {
    let found = |name: &str, value: String| Some(Found { name: name.to_owned(), value });
    let switch = |is: &str| SWITCHES.into_iter().find(|name| get(name).is_some_and(|v| v == is));
    if let Some(value) = get(&own) {
        return found(&own, value);
    }
    if let Some(name) = switch("0") {
        return found(name, "off".into());
    }
    match get(ENDPOINT) {
        Some(url) => found(ENDPOINT, url),
        None => found(switch("1")?, "on".into()),
    }
}

/// A variable's value as ours would say it; `None` where it says nothing of the kind.
fn in_our_words(name: &str, value: String, get: Get<'_>) -> Option<String> {
    let is_on = |name: &str| get(name).is_some_and(|value| value == "1");
    Some(match (name, value.as_str()) {
        ("NCCL_INSPECTOR_ENABLE" | "NCCL_PROFILER_OTEL_ENABLE", "0") => "off".into(),
        ("NCCL_INSPECTOR_ENABLE" | "NCCL_PROFILER_OTEL_ENABLE", "1") => "flight".into(),
        // Then it is the node exporter's directory, where recordings have no business.
        ("NCCL_INSPECTOR_DUMP_DIR", _) if is_on("NCCL_INSPECTOR_PROM_DUMP") => return None,
        // It has no placeholders there.
        ("NCCL_INSPECTOR_DUMP_DIR", path) => path.replace('%', "%%"),
        ("NCCL_KERNEL_TIMEOUT_MS", ms) => match ms.parse::<u32>() {
            Ok(ms) => (f64::from(ms) / 1e3).to_string(),
            Err(_) => value,
        },
        ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "-1") => AT_THE_END.into(),
        ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", us) => match us.parse::<u32>() {
            // 0 is as often as possible.
            Ok(us) => (f64::from(us) / 1e6).max(super::otlp::LEAST_WINDOW).to_string(),
            Err(_) => value,
        },
        _ => value,
    })
}

/// True for a name that one of our variables has besides its own.
pub(super) fn is_one(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.aliases.contains(&name))
}

/// One line about the aliases that were `used` (alias and our name), one about what is set in
/// vain.
pub(super) fn lines(used: &[(String, String)], names: &[String]) -> Vec<String> {
    let used: Vec<String> = used.iter().map(|(alias, own)| format!("{alias} as {own}")).collect();
    let vain = names.iter().filter(|name| NOT_TAKEN.iter().any(|(not, _)| not == name));
    let mut vain: Vec<&str> = vain.map(String::as_str).collect();
    vain.sort_unstable();
    let mut lines = Vec::new();
    if !used.is_empty() {
        lines.push(format!("variables of other profilers were taken: {}", used.join(", ")));
    }
    if !vain.is_empty() {
        let vain = vain.join(", ");
        lines.push(format!("variables of other profilers were not taken: {vain} (docs/env.md)"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(own: &str, vars: &[(&str, &str)]) -> Option<(String, String)> {
        let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        find(own, &get).map(|found| (found.name, found.value))
    }

    /// The value that `own` gets from one variable.
    fn value(own: &str, name: &str, value: &str) -> Option<String> {
        found(own, &[(name, value)]).map(|(_, value)| value)
    }

    #[test]
    fn switches_of_the_whole_plugin() {
        for name in ["NCCL_INSPECTOR_ENABLE", "NCCL_PROFILER_OTEL_ENABLE"] {
            assert_eq!(value("MODE", name, "0").unwrap(), "off");
            assert_eq!(value("MODE", name, "1").unwrap(), "flight");
            assert_eq!(value("MODE", name, ""), None);
        }
    }

    #[test]
    fn intervals_are_seconds() {
        let interval = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
        let cases = [("30000000", "30"), ("500", "0.1"), ("0", "0.1"), ("-1", "86400")];
        for (us, seconds) in cases {
            assert_eq!(value("WINDOW", interval, us).unwrap(), seconds);
        }
        assert_eq!(value("WINDOW", interval, "soon").unwrap(), "soon");
        assert_eq!(value("HANG_SEC", "NCCL_KERNEL_TIMEOUT_MS", "1500").unwrap(), "1.5");
        assert_eq!(value("HANG_SEC", "NCCL_KERNEL_TIMEOUT_MS", "0").unwrap(), "0");
        let seconds = "NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC";
        assert_eq!(value("WINDOW", seconds, "5").unwrap(), "5");
    }

    #[test]
    fn a_directory_of_textfiles_is_none_for_recordings() {
        let dir = ("NCCL_INSPECTOR_DUMP_DIR", "/logs/100%");
        assert_eq!(found("DIR", &[dir]).unwrap().1, "/logs/100%%");
        assert_eq!(found("DIR", &[dir, ("NCCL_INSPECTOR_PROM_DUMP", "1")]), None);
        assert!(found("DIR", &[dir, ("NCCL_INSPECTOR_PROM_DUMP", "0")]).is_some());
    }

    #[test]
    fn ours_comes_first_then_a_switch_that_is_off_then_where_to() {
        let own = ("NCCLSCOPE_OTLP", "http://own");
        let (off, on) = ((SWITCHES[0], "0"), (SWITCHES[1], "1"));
        let url = (ENDPOINT, "http://mosaic");
        let target = |vars: &[(&str, &str)]| found("OTLP", vars).unwrap();
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(target(&[off, on, url, own]), pair(own));
        assert_eq!(target(&[url, on, off]), pair((SWITCHES[0], "off")));
        assert_eq!(target(&[on, url]), pair(url));
        assert_eq!(target(&[on]), pair((SWITCHES[1], "on")));
        assert_eq!(found("OTLP", &[(SWITCHES[1], "yes")]), None);
    }

    #[test]
    fn ours_comes_first_everywhere() {
        for variable in VARIABLES.iter().filter(|variable| !variable.aliases.is_empty()) {
            let names = variable.names();
            let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
            assert_eq!(found(variable.name, &all).unwrap().0, variable.full_name());
            for alias in &all[1..] {
                assert_eq!(found(variable.name, &[*alias]).unwrap().0, alias.0);
            }
        }
    }

    #[test]
    fn each_name_is_either_taken_or_not() {
        let aliases = VARIABLES.iter().flat_map(|variable| variable.aliases);
        let mut all: Vec<&str> = aliases.copied().chain(NOT_TAKEN.map(|(name, _)| name)).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(SWITCHES.iter().chain([&ENDPOINT]).all(|name| all.contains(name)));
    }
}
