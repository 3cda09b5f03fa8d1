// SPDX-License-Identifier: Apache-2.0
//! `ncclscope env`: prints the environment variables, for launchers that `ncclscope run` cannot
//! wrap.

use crate::args::{EnvArgs, Shell};
use crate::io::output;
use crate::plugin::loading::{LIBRARY_PATH, Loading};
use ncclscope_console::failure::Failure;
use ncclscope_control::table::DIR;
use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

pub(crate) fn run(args: &EnvArgs) -> Result<ExitCode, Failure> {
    let loading = Loading::find()?;
    let mut variables = loading.variables();
    if let Some(directory) = &args.output {
        std::fs::create_dir_all(directory).map_err(|e| Failure::write(directory, &e))?;
        let directory =
            std::path::absolute(directory).map_err(|e| Failure::write(directory, &e))?;
        variables.push((DIR.name, directory.into()));
    }
    match args.shell {
        Shell::Bash => {
            let mut out = std::io::stdout().lock();
            for (name, value) in &variables {
                // The variables may be read by another shell, on another machine.
                let value = match (&loading.folder, *name) {
                    (Some(folder), LIBRARY_PATH) => {
                        let rest = format!("\"${{{name}:+:${name}}}\"");
                        quote(&text(folder.as_os_str())) + &rest
                    }
                    _ => quote(&text(value)),
                };
                writeln!(out, "export {name}={value}")?;
            }
        }
        Shell::Json => {
            let map: serde_json::Map<_, _> = variables
                .iter()
                .map(|(name, value)| ((*name).into(), text(value).into()))
                .collect();
            output::json(&serde_json::json!({"schema": "ncclscope.env/1", "variables": map}))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}

/// Quotes a text for a POSIX shell.
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
