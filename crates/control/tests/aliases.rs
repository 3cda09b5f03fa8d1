// SPDX-License-Identifier: Apache-2.0
//! Variables of other profilers: which of our variables each one sets, and to what value.

use ncclscope_control::aliases::NOT_TAKEN;
use ncclscope_control::table::{DIR, HANG_SEC, MODE, OTLP, VARIABLES, WINDOW};
use ncclscope_control::variable::Variable;

const ENABLE: &str = "NCCL_PROFILER_OTEL_TELEMETRY_ENABLE";
const EXPORT: &str = "NCCL_INSPECTOR_OTEL_EXPORT";
const ENDPOINT: &str = "NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT";

fn environment(vars: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    let vars: Vec<(String, String)> =
        vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    move |name| vars.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
}

fn found<T>(own: &Variable<T>, vars: &[(&str, &str)]) -> Option<(&'static str, String)> {
    own.find(&environment(vars)).map(|found| (found.name, found.value))
}

/// The value that `own` gets from one variable.
fn value<T>(own: &Variable<T>, name: &str, value: &str) -> Option<String> {
    found(own, &[(name, value)]).map(|(_, value)| value)
}

#[test]
fn switches_of_the_whole_plugin() {
    for name in ["NCCL_INSPECTOR_ENABLE", "NCCL_PROFILER_OTEL_ENABLE"] {
        assert_eq!(value(&MODE, name, "0").unwrap(), "off");
        assert_eq!(value(&MODE, name, "1").unwrap(), "flight");
        assert_eq!(value(&MODE, name, ""), None);
    }
}

#[test]
fn intervals_are_seconds() {
    let interval = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
    for (us, s) in [("30000000", "30"), ("500", "0.1"), ("0", "0.1"), ("-1", "86400")] {
        assert_eq!(value(&WINDOW, interval, us).unwrap(), s);
    }
    assert_eq!(value(&WINDOW, interval, "soon").unwrap(), "soon", "which the parser refuses");
    assert_eq!(value(&HANG_SEC, "NCCL_KERNEL_TIMEOUT_MS", "2500").unwrap(), "2.5");
    assert_eq!(value(&HANG_SEC, "NCCL_KERNEL_TIMEOUT_MS", "soon").unwrap(), "soon");
}

#[test]
fn a_directory_of_textfiles_is_none_for_recordings() {
    let dir = ("NCCL_INSPECTOR_DUMP_DIR", "/logs/100%");
    assert_eq!(found(&DIR, &[dir]).unwrap().1, "/logs/100%%");
    assert_eq!(found(&DIR, &[dir, ("NCCL_INSPECTOR_PROM_DUMP", "1")]), None);
    assert!(found(&DIR, &[dir, ("NCCL_INSPECTOR_PROM_DUMP", "0")]).is_some());
}

#[test]
fn ours_comes_first_then_a_switch_that_is_off_then_where_to() {
    let own = ("NCCLSCOPE_OTLP", "http://own");
    let (off, on, url) = ((ENABLE, "0"), (EXPORT, "1"), (ENDPOINT, "http://mosaic"));
    let target = |vars: &[(&str, &str)]| found(&OTLP, vars).unwrap();
    assert_eq!(target(&[off, on, url, own]), (own.0, own.1.into()));
    assert_eq!(target(&[url, on, off]), (ENABLE, "off".into()));
    assert_eq!(target(&[on, url]), (ENDPOINT, url.1.into()));
    assert_eq!(target(&[on]), (EXPORT, "on".into()));
    assert_eq!(found(&OTLP, &[(EXPORT, "yes")]), None);
}

#[test]
fn ours_comes_first_everywhere() {
    for variable in VARIABLES.iter().filter(|variable| variable.names().len() > 1) {
        let names = variable.names();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (*name, "1")).collect();
        assert_eq!(variable.find(&environment(&all)).unwrap().name, variable.name());
        for alias in &all[1..] {
            assert_eq!(variable.find(&environment(&[*alias])).unwrap().name, alias.0);
        }
    }
}

#[test]
fn each_name_is_there_once() {
    let names = VARIABLES.iter().flat_map(|variable| variable.names());
    let mut all: Vec<&str> = names.chain(NOT_TAKEN.map(|(name, _)| name)).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}
