// SPDX-License-Identifier: Apache-2.0
//! `ncclscope env`: the variables, for launchers that `ncclscope run` cannot wrap.

use crate::args::{Env, Shell};
use crate::failure::Failure;
use crate::{output, plugin};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &Env) -> Result<ExitCode, Failure> {
    let mut variables = vec![("NCCL_PROFILER_PLUGIN", text(&plugin::find()?))];
    if let Some(directory) = &args.output {
        std::fs::create_dir_all(directory).map_err(|e| Failure::write(directory, &e))?;
        let directory =
            std::path::absolute(directory).map_err(|e| Failure::write(directory, &e))?;
        variables.push(("NCCLSCOPE_DIR", text(&directory)));
    }
    match args.shell {
        Shell::Bash => {
            let mut out = std::io::stdout().lock();
            for (name, value) in variables {
                writeln!(out, "export {name}={}", quote(&value))?;
            }
        }
        Shell::Json => {
            let map: serde_json::Map<_, _> =
                variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
            output::json(&serde_json::json!({"schema": "ncclscope.env/1", "variables": map}))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Quoted such that a POSIX shell reads the text back.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for text in ["/a b/c", "it's", "$HOME `x` \"y\" \\"] {
            let command = format!("printf %s {}", quote(text));
            let out = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
        }
    }
}
