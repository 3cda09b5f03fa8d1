// SPDX-License-Identifier: Apache-2.0
//! The checks of `ncclscope doctor`: the plugin, NCCL, the machine, and recordings.

mod check;
mod graphs;
mod library;
mod loading;
mod machine;
mod nccl;
mod recordings;
mod variables;

use crate::args::DoctorArgs;
use crate::plugin;
use ncclscope_control::table::DIR;
use ncclscope_node::nccl::find_all;
use ncclscope_trace::kind::API_VERSIONS;
use std::path::PathBuf;

pub(crate) use check::{Check, Status};

pub(crate) fn checks(args: &DoctorArgs) -> Vec<Check> {
    let mut checks = plugin_checks();
    let libraries = nccl::find(args.nccl.as_deref());
    checks.extend(nccl::checks(&libraries));
    let from_env = || std::env::var_os(DIR.name).map(PathBuf::from);
    let directory = args.output.clone().or_else(from_env).unwrap_or_else(|| ".".into());
    checks.push(machine::directory(&directory));
    checks.extend(machine::file_limit());
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
    checks.extend(library::check(&path));
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
