// SPDX-License-Identifier: Apache-2.0
//! One Rust file for the rules: its text, its code without literals, its test parts.

use std::ops::Range;

use super::mask::{block, find_word, mask};

/// A Rust source file of the repository.
#[derive(Debug)]
pub(super) struct Source {
    /// Path from the repository root, with `/`.
    pub(super) path: String,
    /// The file as it is.
    pub(super) text: String,
    /// The file with comments and literals blanked; offsets equal those of `text`.
    pub(super) code: String,
    /// Parts of the file that only a test build compiles.
    test_parts: Vec<Range<usize>>,
}

impl Source {
    pub(super) fn new(path: &str, text: String) -> Self {
        let code = mask(&text);
        let test_parts = if is_test_file(path) || code.contains("#![cfg(test)]") {
            std::iter::once(0..code.len()).collect()
        } else {
            test_parts(&code)
        };
        Self { path: path.into(), text, code, test_parts }
    }

    /// The line number, from 1, of the byte at `offset`.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.code[..offset].bytes().filter(|&byte| byte == b'\n').count() + 1
    }

    /// Whether the byte at `offset` is only compiled into tests.
    pub(super) fn in_test(&self, offset: usize) -> bool {
        self.test_parts.iter().any(|part| part.contains(&offset))
    }

    /// Offsets of `word` as a whole identifier in the code.
    pub(super) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        find_word(&self.code, word)
    }
}

/// True if the whole file is test code, according to its path.
pub(super) fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

/// The ranges of items behind `#[cfg(test)]` and variants (`all(test, …)`), from the attribute to
/// the closing bracket.
fn test_parts(code: &str) -> Vec<Range<usize>> {
    let attributes = code.match_indices("#[cfg(").filter_map(|(start, _)| {
        let condition = block(code, start + 1, b'[')?;
        let text = &code[condition.clone()];
        let tests = find_word(text, "test").any(|at| !text[..at].ends_with("not("));
        tests.then_some((start, condition.end))
    });
    let item_end = |from| {
        let end_of_line = code[from..].find(';').map_or(code.len(), |length| from + length + 1);
        block(code, from, b'{').map_or(end_of_line, |body| body.end)
    };
    attributes.map(|(start, end)| start..item_end(end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(code: &str) -> String {
        let source = Source::new("crates/x/src/a.rs", code.into());
        let kept = source.code.char_indices().filter(|&(at, _)| !source.in_test(at));
        kept.map(|(_, character)| character).collect()
    }

    #[test]
    fn test_items_are_found() {
        assert_eq!(visible("a #[cfg(test)] mod t { b } c"), "a  c");
        assert_eq!(visible("a #[cfg(test)] mod t; c"), "a  c");
        assert_eq!(visible("a #[cfg(all(test, not(loom)))]\n#[x] fn t() { b } c"), "a  c");
        assert_eq!(visible("#![cfg(test)]\nfn t() {}"), "");
    }

    #[test]
    fn other_conditions_are_no_tests() {
        for code in ["#[cfg(not(test))] fn f() {}", "#[cfg(loom)] fn f() {}", "mod test {}"] {
            assert_eq!(visible(code), code);
        }
    }

    #[test]
    fn test_files_by_path() {
        assert!(is_test_file("crates/x/tests/a.rs") && is_test_file("crates/x/src/a/tests.rs"));
        assert!(!is_test_file("testing/rig/src/tests_of_it.rs"));
    }

    #[test]
    fn lines_count_from_one() {
        let source = Source::new("a.rs", "a\nb\n\"\n\" c".into());
        assert_eq!([0, 2, 8].map(|at| source.line(at)), [1, 2, 4]);
    }
}
