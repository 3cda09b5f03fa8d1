// SPDX-License-Identifier: Apache-2.0
//! What `ncclscope doctor` looks at: the plugin, NCCL, the machine, and recordings.

mod graphs;
mod loading;
mod machine;
mod nccl;
mod recordings;
mod variables;

use crate::args::Doctor;
use crate::nccl::find_all;
use crate::plugin;
use ncclscope_control::table::DIR;
use ncclscope_trace::kind::API_VERSIONS;
use serde::Serialize;
use std::path::PathBuf;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// It works, with a limit that is worth knowing.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    /// What.
    pub(crate) name: &'static str,
    /// How it came out.
    pub(crate) status: Status,
    /// What was found.
    pub(crate) detail: String,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, detail: detail.into(), advice: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Check {
        let advice = Some(advice.into());
        Check { name, status: Status::Warn, detail: detail.into(), advice }
    }

    fn fail(name: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { status: Status::Fail, ..Check::warn(name, detail, advice) }
    }
}

/// Looks at everything.
pub(crate) fn checks(args: &Doctor) -> Vec<Check> {
    let mut checks = plugin_checks();
    let libraries = nccl::find(args.nccl.as_deref());
    checks.extend(nccl::checks(&libraries));
    let from_env = || std::env::var_os(DIR.name).map(PathBuf::from);
    let directory = args.output.clone().or_else(from_env).unwrap_or_else(|| ".".into());
    checks.push(machine::directory(&directory));
    checks.push(machine::shared_memory());
    checks.push(machine::clock());
    checks.extend(recordings::checks(&directory));
    checks.extend(variables::checks());
    checks.extend(loading::checks(&libraries));
    checks
}

fn plugin_checks() -> Vec<Check> {
    let path = match plugin::find() {
        Ok(path) => path,
        Err(failure) => {
            return vec![Check::fail("plugin", failure.text(), "install the plugin anew")];
        }
    };
    let mut checks = vec![Check::ok("plugin", path.display().to_string())];
    checks.push(loading::own(&path));
    let names: Vec<String> =
        API_VERSIONS.map(|version| format!("ncclProfiler_v{version}")).collect();
    let patterns: Vec<Vec<u8>> = names.iter().map(|name| format!("\0{name}\0").into()).collect();
    match find_all(&path, &patterns) {
        Err(error) => checks.push(Check::fail(
            "plugin symbols",
            format!("cannot read it: {error}"),
            "make it readable for the job's user",
        )),
        Ok(found) => {
            let missing: Vec<&str> = names
                .iter()
                .zip(&found)
                .filter(|(_, found)| found.is_none())
                .map(|(name, _)| name.as_str())
                .collect();
            checks.push(if missing.is_empty() {
                let (first, last) = (API_VERSIONS.start(), API_VERSIONS.end());
                let detail = format!("ncclProfiler_v{first} to ncclProfiler_v{last}");
                Check::ok("plugin symbols", detail)
            } else {
                let detail = format!("lacks {}", missing.join(", "));
                Check::fail("plugin symbols", detail, "this is not ncclscope's plugin: reinstall")
            });
        }
    }
    checks
}
