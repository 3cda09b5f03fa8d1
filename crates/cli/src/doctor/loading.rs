// SPDX-License-Identifier: Apache-2.0
//! Whether NCCL would find the plugin that `NCCL_PROFILER_PLUGIN` names, release by release.

use super::check::Check;
use super::nccl::Library;
use crate::plugin;
use crate::plugin::loading::{LIBRARY_PATH, Loading, PLUGIN, is_static};
use ncclscope_node::nccl::Release;
use std::path::Path;

/// Advice that sets both variables for every release.
const MEND: &str = "use `ncclscope run`, or `eval \"$(ncclscope env)\"`";

/// Checks what `ncclscope run` and `env` would set for the plugin at `path`.
pub(super) fn own(path: &Path) -> Check {
    let name = "loading";
    match Loading::of(path) {
        Ok(Loading { plugin, folder: Some(folder), .. }) => Check::ok(
            name,
            format!("run and env set {PLUGIN}={}, {}", plugin.display(), folder.display()),
        ),
        Ok(_) => Check::warn(
            name,
            "run and env name the plugin by its path, which NCCL 2.27.3 does not load",
            "put it into a folder of its own, without `:`, `;` or `$` in its path",
        ),
        Err(failure) => Check::fail(name, failure.text(), "move the plugin"),
    }
}

/// Problems of the variable's present value, for each library that the job may load.
pub(super) fn checks(libraries: &[Library]) -> Vec<Check> {
    let Ok(value) = std::env::var(PLUGIN) else { return vec![] };
    let folders = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
    let is_there = |name: &str| match name.contains('/') {
        true => Path::new(name).is_file(),
        // The folder of the plugin may also contain the tool, which has the short name.
        false => std::env::split_paths(&folders).any(|folder| {
            let file = folder.join(name);
            file.is_file() && plugin::fault(&file).is_none()
        }),
    };
    if let Some(check) = value_alone(&value) {
        return vec![check];
    }
    if is_there(&value)
        && value.contains('/')
        && let Some(fault) = plugin::fault(Path::new(&value))
    {
        return vec![Check::fail(PLUGIN, format!("{value} {fault}"), MEND)];
    }
    let releases: Vec<&Release> = libraries.iter().filter_map(Library::release).collect();
    let wrong = releases.iter().filter_map(|release| of_release(&value, release, is_there));
    let wrong: Vec<Check> = wrong.collect();
    if !wrong.is_empty() {
        return wrong;
    }
    // Without a known release, checks what most of them do.
    if releases.is_empty() && !is_there(&value) {
        return vec![absent(&value, &value)];
    }
    vec![Check::ok(PLUGIN, value)]
}

/// Problems for which no release loads the plugin.
fn value_alone(value: &str) -> Option<Check> {
    if value.eq_ignore_ascii_case("none") {
        let advice = "`ncclscope run` sets it anew; elsewhere use `ncclscope env`";
        return Some(Check::warn(PLUGIN, "is none: NCCL loads no profiler", advice));
    }
    if is_static(value) {
        let detail = format!("is {value}, which NCCL takes for STATIC_PLUGIN");
        return Some(Check::warn(PLUGIN, detail, MEND));
    }
    None
}

/// The problem with one release, if any.
fn of_release(value: &str, release: &Release, is_there: impl Fn(&str) -> bool) -> Option<Check> {
    let asks = release.asks_for(Some(value));
    if release.api().is_none() || asks.iter().any(|name| is_there(name)) {
        return None;
    }
    let text = release.name();
    if value.contains('/') && !release.takes_paths() {
        let detail = format!("is a path, and {text} would load {}", asks.join(", "));
        return Some(Check::fail(PLUGIN, detail, MEND));
    }
    let is_short = !value.contains('/') && !value.contains(".so");
    if is_short && asks.iter().all(|name| name == value) {
        let detail = format!("is a short name, and {text} adds no prefix");
        return Some(Check::fail(PLUGIN, detail, MEND));
    }
    Some(absent(value, &asks.join(" or ")))
}

fn absent(value: &str, asks: &str) -> Check {
    if value.contains('/') {
        return Check::fail(PLUGIN, format!("{value} is missing"), MEND);
    }
    // The dynamic loader searches further folders, which may contain the file.
    Check::warn(PLUGIN, format!("{asks} is in no folder of {LIBRARY_PATH}"), MEND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn a_path_is_right_for_all_but_one_release() {
        let says = |release: &str, value: &str, is_there: bool| {
            let release = Release::parse(release).unwrap();
            let there = |name: &str| is_there && name == value;
            of_release(value, &release, there).map(|check| (check.status, check.detail))
        };
        assert_eq!(says("2.27.7", "/a/libx.so", true), None);
        let (status, text) = says("2.27.3", "/a/libx.so", true).unwrap();
        assert_eq!(status, Status::Fail);
        assert!(text.ends_with("would load libnccl-profiler-/a/libx.so.so"), "{text}");
        let missing = says("2.27.7", "/a/libx.so", false).unwrap();
        assert_eq!(missing, (Status::Fail, "/a/libx.so is missing".into()));
        assert_eq!(says("2.27.3", "libx.so", true), None);
        let (status, text) = says("2.25.1", "ncclscope", false).unwrap();
        let name = "is a short name, and NCCL 2.25.1 adds no prefix";
        assert_eq!((status, &*text), (Status::Fail, name));
        let (status, text) = says("2.30.7", "x", false).unwrap();
        assert_eq!(status, Status::Warn);
        assert!(text.starts_with("x or libnccl-profiler-x.so is in no folder"), "{text}");
    }

    #[test]
    fn words_that_load_nothing() {
        let says = |value: &str| value_alone(value).map(|check| check.detail);
        assert!(says("NONE").unwrap().contains("no profiler"));
        assert!(says("static").unwrap().contains("STATIC_PLUGIN"));
        assert_eq!(says("/x/lib.so"), None);
    }
}
