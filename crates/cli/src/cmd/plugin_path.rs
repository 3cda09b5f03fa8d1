// SPDX-License-Identifier: Apache-2.0
//! `ncclscope plugin-path`: prints the plugin's path, or links it under the default names of NCCL
//! and RCCL.

use crate::args::PluginPathArgs;
use crate::plugin;
use crate::plugin::loading::{self, DEFAULT, DEFAULT_OF_RCCL};
use ncclscope_console::failure::Failure;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(args: &PluginPathArgs) -> Result<ExitCode, Failure> {
    let plugin = plugin::find()?;
    let path = match &args.link {
        Some(folder) => {
            link(&plugin, folder, DEFAULT_OF_RCCL)?;
            link(&plugin, folder, DEFAULT)?
        }
        None => plugin,
    };
    writeln!(std::io::stdout(), "{}", path.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Creates a link; does not replace another plugin's file.
fn link(plugin: &Path, folder: &Path, name: &str) -> Result<PathBuf, Failure> {
    let failed = |e: std::io::Error| Failure::write(folder, &e);
    std::fs::create_dir_all(folder).map_err(failed)?;
    let link = std::path::absolute(folder).map_err(failed)?.join(name);
    let is_ours = |target: PathBuf| {
        let name = target.file_name().unwrap_or_default().to_owned();
        target == *plugin || name == plugin::NAME || name == plugin::CARGO_NAME
    };
    let is_there = std::fs::symlink_metadata(&link).is_ok();
    if is_there && !std::fs::read_link(&link).is_ok_and(is_ours) {
        return Err(Failure::environment(format!(
            "{} exists and is not a link to ncclscope: remove it, or choose another folder",
            link.display()
        )));
    }
    loading::link(plugin, &link).map_err(failed)?;
    Ok(link)
}
