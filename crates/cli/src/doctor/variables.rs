// SPDX-License-Identifier: Apache-2.0
//! Environment variables that the job would inherit.

use super::check::Check;
use crate::{control, plugin};
use ncclscope_control::directories::is_private;
use ncclscope_control::doctor::problems;
use ncclscope_control::table::{CHAIN, CONTROL, LANES};
use ncclscope_control::text::shown;
use ncclscope_control::value::SocketDirectory;
use ncclscope_control::variable::{PREFIX, environment};
use ncclscope_metrics::send::environment::place;
use rustix::process::geteuid;
use std::path::Path;

pub(super) fn checks() -> Vec<Check> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let problems = problems(&names, &environment).into_iter();
    let mut checks: Vec<Check> =
        problems.map(|it| Check::warn("NCCLSCOPE_*", it.detail, it.advice)).collect();
    if checks.is_empty() {
        names.retain(|name| name.starts_with(PREFIX));
        let detail = match names.is_empty() {
            true => "none is set".into(),
            false => names.iter().map(|name| with_value(name)).collect::<Vec<_>>().join(", "),
        };
        checks.push(Check::ok("NCCLSCOPE_*", detail));
    }
    checks.extend(chained(&CHAIN.value(&environment)));
    if CONTROL.value(&environment) != SocketDirectory::Off {
        checks.extend(sockets(&control::directory()));
    }
    if LANES.find(&environment).is_some() {
        checks.extend(LANES.value(&environment).and_then(|directory| lanes(&directory)));
    }
    checks
}

/// `NAME=VALUE`; of a URL only the place, because the rest may have a password.
fn with_value(name: &str) -> String {
    let value = environment(name).unwrap_or_default();
    let value = match value.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://{}", place(&value)),
        None => value,
    };
    format!("{name}={}", shown(&value))
}

/// Warns of a directory for control sockets that the plugin would not use.
fn sockets(directory: &Path) -> Option<Check> {
    // The plugin creates a missing directory.
    let found = std::fs::symlink_metadata(directory).ok()?;
    let why = is_private(&found, geteuid().as_raw()).err()?;
    let detail = format!("{} is not used: {why}", directory.display());
    let advice = "ranks have no control socket (ls, start, stop): name another directory, or \
                  correct this one";
    Some(Check::warn(CONTROL.name, detail, advice))
}

/// Warns of a directory for lanes that the plugin would not use.
fn lanes(directory: &Path) -> Option<Check> {
    let detail = format!("{} is not a directory", directory.display());
    let advice = "a kill of a rank loses up to 80 ms of its records: name one in a tmpfs";
    (!directory.is_dir()).then(|| Check::warn(LANES.name, detail, advice))
}

/// Checks the chained plugins. The dynamic loader searches for names without a folder.
fn chained(paths: &[String]) -> Vec<Check> {
    let check = |path: &String| {
        let fault = match Path::new(path) {
            _ if !path.contains('/') => None,
            file if !file.is_file() => Some("is missing".to_owned()),
            file => plugin::fault(file),
        };
        if let Some(fault) = fault {
            let advice = "the job continues without it: correct or remove the path";
            return Check::warn(CHAIN.name, format!("{path} {fault}"), advice);
        }
        Check::ok(CHAIN.name, format!("{path} gets every callback too"))
    };
    paths.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chained_plugins_are_named() {
        let checks = chained(&["inspector".into(), "/nowhere/libprofiler.so".into()]);
        assert_eq!(checks.len(), 2);
        assert!(checks[0].advice.is_none() && checks[0].detail.starts_with("inspector "));
        assert_eq!(checks[1].detail, "/nowhere/libprofiler.so is missing");
        assert!(chained(&[]).is_empty());
        let text = &chained(&["/etc/passwd".into()])[0].detail;
        assert!(text.starts_with("/etc/passwd is not a shared library"), "{text}");
    }

    #[test]
    fn directories_that_the_plugin_does_not_use_are_named() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent");
        assert!(sockets(dir.path()).is_none() && sockets(&absent).is_none());
        assert!(lanes(dir.path()).is_none());
        assert!(lanes(&absent).unwrap().detail.ends_with("absent is not a directory"));
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let text = sockets(dir.path()).unwrap().detail;
        assert!(text.ends_with("is not used: other users can write to it (mode 777)"), "{text}");
    }
}
