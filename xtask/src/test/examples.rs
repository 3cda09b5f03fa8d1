// SPDX-License-Identifier: Apache-2.0
//! Which packages of the workspace have examples in their documentation.

use std::path::Path;
use std::{fs, io};

/// Where the packages lie.
const FOLDERS: [&str; 2] = ["crates", "testing"];

/// The names of the packages with a library that has a block of code in a comment.
///
/// # Errors
/// A folder or file that cannot be read.
pub(super) fn packages(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for package in fs::read_dir(root.join(folder))? {
            let package = package?.path();
            let Ok(manifest) = fs::read_to_string(package.join("Cargo.toml")) else { continue };
            let source = package.join("src");
            if source.join("lib.rs").exists() && has_example(&source)? {
                let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
                found.extend(name.map(|name| name.trim_matches('"').to_owned()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a file below has a line of a comment in which a block of code begins.
fn has_example(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let has = match path.is_dir() {
            true => has_example(&path)?,
            false if path.extension().is_some_and(|end| end == "rs") => {
                fs::read_to_string(&path)?.lines().any(is_fence)
            }
            false => false,
        };
        if has {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
    text.unwrap_or(line).trim_start().starts_with("```")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rig_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let found = packages(root).expect("its files");
        assert!(found.iter().any(|name| name == "rig"), "{found:?}");
        assert!(!found.iter().any(|name| name == "ncclscope-abi"), "{found:?}");
    }

    #[test]
    fn blocks_begin_in_comments() {
        assert!(["//! ```", "    /// ```rust", "```no_run"].into_iter().all(is_fence));
        assert!(!["// ```", "let text = \"```\";", "/// `code`"].into_iter().any(is_fence));
    }
}
