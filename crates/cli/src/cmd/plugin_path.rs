// SPDX-License-Identifier: Apache-2.0
//! `ncclscope plugin-path`: where the plugin is, and a link to it by NCCL's default name.

use crate::args::PluginPath as Args;
use crate::failure::Failure;
use crate::{loading, plugin};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What NCCL loads where `NCCL_PROFILER_PLUGIN` is unset, each release from 2.23 on.
const DEFAULT: &str = "libnccl-profiler.so";

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let plugin = plugin::find()?;
    let path = match &args.link {
        Some(folder) => link(&plugin, folder)?,
        None => plugin,
    };
    writeln!(std::io::stdout(), "{}", path.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the link; another plugin's file is left as it is.
fn link(plugin: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    let failed = |e: std::io::Error| Failure::write(folder, &e);
    std::fs::create_dir_all(folder).map_err(failed)?;
    let link = std::path::absolute(folder).map_err(failed)?.join(DEFAULT);
    let is_ours = |target: PathBuf| {
        let name = target.file_name().unwrap_or_default().to_owned();
        target == *plugin || name == plugin::NAME || name == plugin::CARGO_NAME
    };
    let is_there = std::fs::symlink_metadata(&link).is_ok();
    if is_there && !std::fs::read_link(&link).is_ok_and(is_ours) {
        return Err(Failure::environment(format!(
            "{} is there and is not a link to ncclscope: remove it, or choose another folder",
            link.display()
        )));
    }
    loading::link(plugin, &link).map_err(failed)?;
    Ok(link)
}
