// SPDX-License-Identifier: Apache-2.0
//! Paths and texts as words for a shell, in commands that are suggested.

use std::path::Path;

/// Paths, and the id of the chosen run, as words for a shell.
pub(crate) fn words(paths: &[impl AsRef<Path>], run: Option<&str>) -> String {
    let paths = paths.iter().map(|path| shell_path(&path.as_ref().to_string_lossy()));
    let run = run.map(|id| format!("--run {}", shell_word(id)));
    paths.chain(run).collect::<Vec<_>>().join(" ")
}

/// A path as a word for a shell that does not look like an option.
pub(crate) fn shell_path(path: &str) -> String {
    let before = if path.starts_with('-') { "./" } else { "" };
    shell_word(&format!("{before}{path}"))
}

/// A text as a word for a shell.
fn shell_word(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) {
        return path.to_owned();
    }
    if !path.chars().any(char::is_control) {
        return format!("'{}'", path.replace('\'', r"'\''"));
    }
    let escape = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("$'{}'", path.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_the_paths_of_suggested_commands() {
        for path in ["/a b/c", "it's", "$HOME `x` \"y\" \\", "a\nb 'c' \\n \u{1b}", "ä/ü"] {
            let command = format!("printf %s {}", shell_path(path));
            let out = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), path);
        }
        assert_eq!((shell_path("-x"), shell_path("-x y")), ("./-x".into(), "'./-x y'".into()));
    }
}
