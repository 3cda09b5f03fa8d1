// SPDX-License-Identifier: Apache-2.0
//! A library without an example of code in its documentation says `doctest = false`: rustdoc reads
//! all of it for seconds to find that there is none. One with an example does not say so.

use std::collections::BTreeSet;
use std::{fs, io};

use super::violation::Violation;

const MANIFEST: &str = "Cargo.toml";
const NONE: &str = "doctest = false";
/// What rustdoc compiles: blocks without a language, and these.
const RUST: [&str; 6] =
    ["rust", "no_run", "should_panic", "compile_fail", "ignore", "standalone_crate"];

/// Compares the manifests with the sources among `paths`.
pub(super) fn check(paths: &BTreeSet<String>) -> io::Result<Vec<Violation>> {
    let mut found = Vec::new();
    for path in paths {
        let Some(folder) = path.strip_suffix("src/lib.rs") else { continue };
        let manifest = format!("{folder}{MANIFEST}");
        let says_none = fs::read_to_string(&manifest)?.lines().any(|line| line == NONE);
        let source = format!("{folder}src/");
        let is_library = |path: &&String| {
            path.starts_with(&source) && path.ends_with(".rs") && !path.contains("/src/bin/")
        };
        let mut example = None;
        for path in paths.iter().filter(is_library) {
            if has_example(&fs::read_to_string(path)?) {
                example = Some(path);
                break;
            }
        }
        found.extend(violation(&manifest, says_none, example.map(String::as_str)));
    }
    Ok(found)
}

fn violation(manifest: &str, says_none: bool, example: Option<&str>) -> Option<Violation> {
    let text = match (says_none, example) {
        (true, Some(path)) => format!("`{NONE}` leaves the example in {path} untested"),
        (false, None) => format!("no comment has an example: say `{NONE}` under `[lib]`"),
        _ => return None,
    };
    Some(Violation::new(manifest, 1, text))
}

/// Whether a block of Rust begins in a comment that documents an item.
fn has_example(source: &str) -> bool {
    let mut is_inside = false;
    source.lines().any(|line| {
        let line = line.trim_start();
        let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).unwrap_or(line);
        let Some(language) = text.trim().strip_prefix("```") else { return false };
        is_inside = !is_inside;
        let language = language.split(',').next().unwrap_or(language);
        is_inside && (language.is_empty() || RUST.contains(&language))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_blocks_of_rust_in_comments() {
        for source in ["//! Text\n//! ```\n", "    /// ```no_run\n", "/*!\n```rust\nx();\n```\n*/"]
        {
            assert!(has_example(source), "{source}");
        }
        for source in ["// ```\n", "//! ```text\n//! a\n//! ```\n", "let text = \"```\";\n"] {
            assert!(!has_example(source), "{source}");
        }
    }

    #[test]
    fn manifests_say_what_the_sources_have() {
        let says = |says_none, example| {
            violation("a/Cargo.toml", says_none, example).map(|violation| violation.to_string())
        };
        assert_eq!((says(true, None), says(false, Some("a/src/lib.rs"))), (None, None));
        let untested = says(true, Some("a/src/b.rs")).expect("an example that is not tested");
        assert!(untested.contains("the example in a/src/b.rs"), "{untested}");
        assert!(says(false, None).expect("none").contains("`doctest = false`"));
    }
}
