// SPDX-License-Identifier: Apache-2.0
//! Rules on the content of a file: licence line, module page, `unsafe`, banned calls.

use super::mask::{block, find_word};
use super::source::{Source, is_test_file};
use super::violation::Violation;

/// The licence line without the comment sign.
const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0";

/// Prefixes of the paths in which `unsafe` is allowed.
const UNSAFE_PATHS: &[&str] = &[
    "crates/abi/",
    "crates/recorder/",
    "crates/plugin/",
    "crates/runtime/src/sys",
    "testing/cpu-cuda/",
    "testing/rig/",
    "testing/fake-nccl/",
    "testing/gpu-kit/",
    "testing/stepper/",
];

/// Crates whose roots must forbid `unsafe`.
const FORBID_UNSAFE: &[&str] = &[
    "crates/agent/",
    "crates/console/",
    "crates/node/",
    "crates/answer/",
    "crates/page/",
    "crates/top/",
    "crates/compare/",
    "crates/control/",
    "crates/findings/",
    "crates/limits/",
    "crates/trace/",
    "crates/metrics/",
    "crates/operations/",
    "crates/protobuf/",
    "crates/report/",
    "crates/views/",
    "crates/kineto/",
    "crates/diagnose/",
    "crates/stragglers/",
    "crates/simulate/",
    "crates/cli/",
    "xtask/",
];

/// Code that runs inside the job: it must not panic.
const NO_PANIC: &[&str] = &[
    "crates/abi/src/",
    "crates/control/src/",
    "crates/findings/src/",
    "crates/trace/src/",
    "crates/recorder/src/",
    "crates/metrics/src/",
    "crates/operations/src/",
    "crates/protobuf/src/",
    "crates/runtime/src/",
    "crates/plugin/src/",
];

/// Checks that the licence line is the first line, or the second after a `#!` line.
pub(super) fn licence(path: &str, text: &str) -> Option<Violation> {
    let comment = if path.ends_with(".rs") { "//" } else { "#" };
    let expected = format!("{comment} {LICENCE}");
    let line = text.lines().find(|line| !line.starts_with("#!/"));
    let missing = line != Some(expected.as_str());
    missing.then(|| Violation::new(path, 1, format!("the first line must be `{expected}`")))
}

/// Checks all rules on one Rust file.
pub(super) fn check(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut at = |offset, message: String| {
        found.push(Violation::new(&source.path, source.line(offset), message));
    };
    if lacks_page(source) {
        at(0, "a module starts with a `//!` page: what it owns and what it does not".into());
    }
    if is_root_without_forbid(source) {
        at(0, "this crate's root must say `#![forbid(unsafe_code)]`".into());
    }
    if !starts_with_any(&source.path, UNSAFE_PATHS) {
        for offset in source.words("unsafe") {
            at(offset, format!("`unsafe` is allowed only under {}", UNSAFE_PATHS.join(", ")));
        }
    }
    for name in ["todo", "unimplemented"] {
        for offset in
            source.words(name).filter(|at| source.code[at + name.len()..].starts_with('!'))
        {
            at(offset, format!("`{name}!`: no stubs; finish it or leave it out"));
        }
    }
    for (offset, _) in source.code.match_indices("#[ignore") {
        at(offset, "`#[ignore]`: a test that does not run tests nothing".into());
    }
    for offset in doctests(&source.text) {
        at(offset, "no runner runs doctests: write a test, or mark the block `text`".into());
    }
    if starts_with_any(&source.path, NO_PANIC) {
        for offset in panicking_calls(source) {
            at(offset, "no `unwrap` or `expect` inside a job: handle it and count it".into());
        }
    }
    if source.path.starts_with("crates/recorder/src/") && !source.path.ends_with("src/sync.rs") {
        for offset in uses_of_sync(source) {
            at(offset, "`std::sync` only in src/sync.rs, where loom takes its place".into());
        }
    }
    found
}

/// True if a module file has no `//!` page. Tests need none.
fn lacks_page(source: &Source) -> bool {
    let is_module = source.path.contains("/src/") && !is_test_file(&source.path);
    is_module && !source.text.lines().any(|line| line.starts_with("//!") || line.starts_with("/*!"))
}

fn is_root_without_forbid(source: &Source) -> bool {
    let is_root = FORBID_UNSAFE.iter().any(|krate| {
        source.path.strip_prefix(krate).is_some_and(|file| {
            matches!(file, "src/lib.rs" | "src/main.rs") || file.starts_with("src/bin/")
        })
    });
    is_root && !source.code.contains("#![forbid(unsafe_code)]")
}

/// Offsets of the blocks in doc comments that rustdoc takes for Rust code.
fn doctests(text: &str) -> Vec<usize> {
    let (mut found, mut offset) = (Vec::new(), 0);
    let (mut in_page, mut in_block) = (false, false);
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        in_page |= trimmed.starts_with("/*!") || trimmed.starts_with("/**");
        let doc = trimmed.strip_prefix("//!").or_else(|| trimmed.strip_prefix("///"));
        let fence = doc.or_else(|| in_page.then_some(trimmed)).map(str::trim_start);
        if let Some(language) = fence.and_then(|line| line.strip_prefix("```")) {
            let language = language.split(',').next().unwrap_or_default();
            let is_rust = ["", "rust", "no_run", "ignore", "should_panic", "compile_fail"];
            if !in_block && is_rust.contains(&language) {
                found.push(offset);
            }
            in_block = !in_block;
        }
        in_page &= !trimmed.ends_with("*/");
        offset += line.len();
    }
    found
}

/// Offsets of `.unwrap(` and `.expect(` outside of tests; `#[expect(…)]` has no dot.
fn panicking_calls(source: &Source) -> impl Iterator<Item = usize> + '_ {
    ["unwrap", "expect"].into_iter().flat_map(|name| source.words(name).collect::<Vec<_>>()).filter(
        |&at| {
            let before = source.code[..at].trim_end();
            (before.ends_with('.') || before.ends_with("::")) && !source.in_test(at)
        },
    )
}

/// Offsets of `std::sync` and `core::sync` outside of tests, also inside `use std::{…}`.
fn uses_of_sync(source: &Source) -> impl Iterator<Item = usize> + '_ {
    let roots = ["std", "core"].into_iter().flat_map(|root| {
        source.words(root).map(move |at| (at, at + root.len())).collect::<Vec<_>>()
    });
    roots.filter(|&(at, end)| !source.in_test(at) && imports_sync(&source.code[end..])).map(|x| x.0)
}

/// True if the text after `std` continues with `::sync` or `::{…, sync…}`.
fn imports_sync(rest: &str) -> bool {
    let Some(rest) = rest.trim_start().strip_prefix("::").map(str::trim_start) else {
        return false;
    };
    let is_sync = |path: &str| find_word(path, "sync").next() == Some(0);
    if !rest.starts_with('{') {
        return is_sync(rest);
    }
    let group = block(rest, 0, b'{').map_or("", |group| &rest[group]);
    top_level_items(group).into_iter().any(is_sync)
}

/// The items of `{a, b::{c, d}}` that are not inside an inner brace.
fn top_level_items(group: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => {}
            _ => continue,
        }
        if depth <= 1 {
            items.push(group[start..at].trim());
            start = at + 1;
        }
    }
    items
}

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "//! Page.\n";
    const NO_LINES: [usize; 0] = [];

    /// The line numbers, not counting the module page, at which `code` in `path` breaks a rule.
    fn lines(path: &str, code: &str) -> Vec<usize> {
        let found = check(&Source::new(path, format!("{PAGE}{code}")));
        found.iter().map(|violation| violation.line - 1).collect()
    }

    #[test]
    fn licence_is_first_or_after_the_interpreter() {
        assert!(licence("a.rs", "// SPDX-License-Identifier: Apache-2.0\n").is_none());
        assert!(licence("a.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n").is_none());
        assert!(licence("a.rs", "\n// SPDX-License-Identifier: Apache-2.0\n").is_some());
        assert!(licence("a.rs", "// SPDX-License-Identifier: MIT\n").is_some());
        assert!(licence("Cargo.toml", "").is_some());
    }

    #[test]
    fn modules_have_pages() {
        let check = |path: &str, text: &str| check(&Source::new(path, text.into())).len();
        assert_eq!(check("crates/plugin/src/a.rs", "// SPDX\nmod x {\n    //! inner\n}"), 1);
        assert_eq!(check("crates/plugin/src/a.rs", "// SPDX\n#![expect(\n    x\n)]\n//! Page"), 0);
        assert_eq!(check("crates/plugin/src/a.rs", "// SPDX\n/*!\nPage.\n*/"), 0);
        assert_eq!(check("crates/plugin/src/a/tests.rs", ""), 0);
        assert_eq!(check("crates/plugin/tests/a.rs", ""), 0);
    }

    #[test]
    fn unsafe_only_where_listed() {
        let code = "// unsafe\nlet s = \"unsafe\";\nunsafe_op();\nunsafe { f() }";
        assert_eq!(lines("crates/views/src/a.rs", code), [4]);
        assert_eq!(lines("crates/runtime/src/drain.rs", code), [4]);
        assert_eq!(lines("crates/runtime/src/sys/mod.rs", code), NO_LINES);
        assert_eq!(lines("crates/runtime/src/sys.rs", code), NO_LINES);
        assert_eq!(lines("crates/abi/tests/layout.rs", code), NO_LINES);
    }

    #[test]
    fn forbidding_crates_say_so_in_each_root() {
        assert_eq!(lines("crates/cli/src/main.rs", ""), [0]);
        assert_eq!(lines("crates/cli/src/main.rs", "// #![forbid(unsafe_code)]"), [0]);
        assert_eq!(lines("crates/cli/src/main.rs", "#![forbid(unsafe_code)]"), NO_LINES);
        assert_eq!(lines("crates/cli/src/args.rs", ""), NO_LINES);
        assert_eq!(lines("crates/abi/src/lib.rs", ""), NO_LINES);
    }

    #[test]
    fn stubs_and_ignored_tests() {
        let code = "todo!()\nunimplemented!(\"x\")\n#[ignore]\n#[ignore = \"slow\"]\nlet todo = 1;";
        assert_eq!(lines("crates/cli/src/a.rs", code), [1, 2, 3, 4]);
    }

    #[test]
    fn no_doctests() {
        let page = "//! ```text\n//! ```\n//! ```no_run\n//! ```\n/*!\n```sh\n```\n```\n```\n*/\n";
        let code = format!("{page}/// ```rust,ignore\n/// ```\nlet text = \"\n```\n\";");
        assert_eq!(lines("crates/cli/src/a.rs", &code), [3, 8, 11]);
    }

    #[test]
    fn no_panicking_calls_in_process() {
        let code = "#[expect(lint)]\na.unwrap();\na\n  .expect(\"\");\na.map(Option::unwrap);\n\
                    a.unwrap_or(0);\n#[cfg(test)] mod t { fn f() { a.unwrap() } }";
        assert_eq!(lines("crates/runtime/src/a.rs", code), [2, 5, 4]);
        assert_eq!(lines("crates/plugin/build.rs", code), NO_LINES);
        assert_eq!(lines("crates/cli/src/a.rs", code), NO_LINES);
    }

    #[test]
    fn sync_only_through_the_shim() {
        let code = "use std::sync::Arc;\nuse std::{cell::Cell, sync::{Arc, Mutex}};\n\
                    core::sync::atomic::fence();\nuse std::{io, a::{sync}};\nuse crate::sync;\n\
                    use std::sync_x;\n#[cfg(test)] mod t { use std::sync::Arc; }";
        let mut found = lines("crates/recorder/src/a.rs", code);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
        assert_eq!(lines("crates/recorder/src/sync.rs", code), NO_LINES);
        assert_eq!(lines("crates/runtime/src/a.rs", code), NO_LINES);
    }
}
