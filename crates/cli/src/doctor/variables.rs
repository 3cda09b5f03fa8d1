// SPDX-License-Identifier: Apache-2.0
//! Environment variables that the job would inherit.

use super::check::Check;
use ncclscope_control::doctor::problems;
use ncclscope_control::table::CHAIN;
use ncclscope_control::variable::{PREFIX, environment};

pub(super) fn checks() -> Vec<Check> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let problems = problems(&names, &environment).into_iter();
    let mut checks: Vec<Check> =
        problems.map(|it| Check::warn("NCCLSCOPE_*", it.detail, it.advice)).collect();
    if checks.is_empty() {
        names.retain(|name| name.starts_with(PREFIX));
        let detail = if names.is_empty() { "none is set".into() } else { names.join(", ") };
        checks.push(Check::ok("NCCLSCOPE_*", detail));
    }
    checks.extend(chained(&CHAIN.value(&environment)));
    checks
}

/// The plugins behind ours. The loader searches for a name without a folder.
fn chained(paths: &[String]) -> Vec<Check> {
    let check = |path: &String| {
        if path.contains('/') && !std::path::Path::new(path).is_file() {
            let advice = "the job continues without it: correct or remove the path";
            return Check::warn(CHAIN.name, format!("{path} is missing"), advice);
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
    }
}
