// SPDX-License-Identifier: Apache-2.0
//! Limits on the length of a line, a function and a file.

use super::mask::block;
use super::source::Source;
use super::violation::Violation;

/// Maximum length of a line of a Rust file, characters.
const LINE_CHARACTERS_MAX: usize = 100;
/// Maximum length of a function, lines from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum length of a Rust file, lines.
const FILE_LINES_MAX: usize = 800;

pub(super) fn check(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let length = line.chars().count();
        if length > LINE_CHARACTERS_MAX {
            let message = format!("line of {length} characters (limit {LINE_CHARACTERS_MAX})");
            found.push(Violation::new(&source.path, index + 1, message));
        }
    }
    for function in functions(source) {
        if function.lines > FUNCTION_LINES_MAX {
            let Function { name, lines, .. } = function;
            let message =
                format!("function `{name}` of {lines} lines (limit {FUNCTION_LINES_MAX})");
            found.push(Violation::new(&source.path, function.line, message));
        }
    }
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        let message = format!("file of {lines} lines (limit {FILE_LINES_MAX})");
        found.push(Violation::new(&source.path, 1, message));
    }
    found
}

/// A function with a body.
#[derive(Debug)]
pub(super) struct Function<'s> {
    pub(super) name: String,
    /// Line of its `fn`, from 1.
    pub(super) line: usize,
    /// Lines from its `fn` to its closing brace, both included.
    lines: usize,
    /// From its `fn` to its closing brace.
    pub(super) text: &'s str,
    /// Only compiled into tests.
    pub(super) is_test: bool,
}

/// Every function with a body, nested ones and those of macros included.
pub(super) fn functions(source: &Source) -> Vec<Function<'_>> {
    let declared = source.words("fn").filter_map(|at| {
        let name: String = source.code[at + 2..]
            .trim_start()
            .chars()
            .take_while(|&c| c.is_alphanumeric() || c == '_' || c == '$' || c == '#')
            .collect();
        // `fn(u8) -> u8` is a type, not a function.
        if name.is_empty() {
            return None;
        }
        let body = block(&source.code, at, b'{')?;
        let line = source.line(at);
        let lines = source.line(body.end - 1) - line + 1;
        let (text, is_test) = (&source.text[at..body.end], source.in_test(at));
        Some(Function { name, line, lines, text, is_test })
    });
    declared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(code: &str) -> Vec<(String, usize, usize)> {
        let source = Source::new("a.rs", code.into());
        functions(&source).into_iter().map(|f| (f.name, f.line, f.lines)).collect()
    }

    #[test]
    fn braces_in_literals_and_comments_do_not_count() {
        let code =
            "fn a() {\n  // }\n  let s = \"}\\\"}\";\n  let c = '}';\n  /* } */\n}\nfn b() {}";
        assert_eq!(measured(code), [("a".into(), 1, 6), ("b".into(), 7, 1)]);
        let raw = "fn a<'x>(s: &'x str) {\n  r#\"\n}\"}\n\"#;\n}";
        assert_eq!(measured(raw), [("a".into(), 1, 5)]);
    }

    #[test]
    fn signatures_of_many_lines_count() {
        let code = "\npub(crate) const unsafe extern \"C\" fn a<T>(\n  x: [u8; 2],\n) -> T\n\
                    where\n  T: Copy,\n{\n}";
        assert_eq!(measured(code), [("a".into(), 2, 7)]);
    }

    #[test]
    fn declarations_and_types_are_not_functions() {
        assert!(measured("trait T { fn a(&self); }").is_empty());
        assert!(measured("type F = fn(u8) -> u8;\nstruct S { f: fn() }").is_empty());
        assert!(measured("extern \"C\" { fn close(fd: i32) -> i32; }").is_empty());
    }

    #[test]
    fn nested_and_macro_functions_count() {
        let nested = measured("fn a() {\n  fn b() {\n  }\n}");
        assert_eq!(nested, [("a".into(), 1, 4), ("b".into(), 2, 2)]);
        assert_eq!(measured("macro_rules! m { ($n:ident) => { fn $n() {\n} } }").len(), 1);
    }

    #[test]
    fn limits_are_inclusive() {
        let function = |lines: usize| format!("fn a() {{\n{}}}\n", "\n".repeat(lines - 2));
        let count = |text: String| check(&Source::new("a.rs", text)).len();
        assert_eq!((count(function(70)), count(function(71))), (0, 1));
        assert_eq!((count("é".repeat(100)), count("é".repeat(101))), (0, 1));
        assert_eq!((count("\n".repeat(800)), count("\n".repeat(801))), (0, 1));
    }
}
