// SPDX-License-Identifier: Apache-2.0
//! The tokens of a function, and how many ways lead through it.

use super::mask::hidden_end;

/// Operators of several characters, the longest first.
const OPERATORS: [&str; 23] = [
    "..=", "<<=", ">>=", "::", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "..", "+=", "-=",
    "*=", "/=", "%=", "^=", "&=", "|=", "<<", ">>",
];

/// The words, literals, brackets and operators of Rust source; comments are none.
pub(super) fn tokens(source: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let hidden = hidden_end(rest.as_bytes(), 0);
        let end = hidden.unwrap_or_else(|| visible_end(rest, first));
        let (token, after) = rest.split_at(end);
        let is_comment = token.starts_with("//") || token.starts_with("/*");
        if !is_comment && !first.is_whitespace() {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

/// The length of the word, operator or character that `text` begins with.
fn visible_end(text: &str, first: char) -> usize {
    let word = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let operator = OPERATORS.iter().find(|operator| text.starts_with(**operator));
    match operator {
        _ if word > 0 => word,
        Some(operator) => operator.len(),
        None => first.len_utf8(),
    }
}

/// The cyclomatic complexity: one more than the conditions, loops, arms and `?`.
pub(super) fn complexity(tokens: &[&str]) -> usize {
    let is_branch = |at: &usize| match tokens[*at] {
        "if" | "while" | "for" | "=>" | "?" => true,
        "&&" | "||" => *at > 0 && ends_value(tokens[*at - 1]),
        _ => false,
    };
    1 + (0..tokens.len()).filter(is_branch).count()
}

/// Whether a value may end with the token, so that `||` after it is no closure, and `&&` no
/// reference.
fn ends_value(token: &str) -> bool {
    let last = token.chars().next_back();
    !matches!(token, "return" | "move" | "in" | "else" | "match" | "if" | "while")
        && last
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '}' | '"' | '?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_operators_are_one_token_and_comments_none() {
        let source = "let a = b\"x y\" .. 1_0; // c\n/* d */ 'e' ..= r#\"f\"# && é::g";
        let expected = [
            "let", "a", "=", "b\"x y\"", "..", "1_0", ";", "'e'", "..=", "r#\"f\"#", "&&", "é",
            "::", "g",
        ];
        assert_eq!(tokens(source), expected);
    }

    #[test]
    fn branches_add_to_the_complexity() {
        let of = |source| complexity(&tokens(source));
        assert_eq!(of("fn f() { g(|| 1, &&2, a.map(|| 3)); let b = || 4; return &&c }"), 1);
        assert_eq!(of("fn f() { if a && b() || c[0] { d? } }"), 5);
        assert_eq!(of("fn f() { for a in b { while c {} } match d { 1 => 2, _ => 3 } }"), 5);
    }
}
