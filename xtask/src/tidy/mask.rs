// SPDX-License-Identifier: Apache-2.0
//! Rust source with its comments and literals blanked, so that a search sees code alone.
//!
//! The result has the same length and the same line breaks as the source: an offset in one is an
//! offset in the other. This is a lexer of exactly the tokens that can hide others, not a parser.

use std::ops::Range;

/// Replaces every byte of a comment, string, byte string, C string or character literal by a
/// space; line breaks stay.
pub(super) fn mask(source: &str) -> String {
    let mut masked = source.as_bytes().to_vec();
    let mut at = 0;
    while at < source.len() {
        let end = hidden_end(source.as_bytes(), at);
        match end {
            Some(end) => {
                blank(&mut masked[at..end]);
                at = end;
            }
            None => at = visible_end(source.as_bytes(), at),
        }
    }
    String::from_utf8(masked).unwrap_or_default()
}

/// Offsets of `word` in `code` as a whole identifier.
pub(super) fn find_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].bytes().next_back();
        let after = code[at + word.len()..].bytes().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The range from the first opening bracket at or after `from` to just after its partner, or to
/// the end of `code` where it has none. `None` where a `;` outside brackets comes before `open`:
/// the item has no body.
pub(super) fn block(code: &str, from: usize, open: u8) -> Option<Range<usize>> {
    let bytes = code.as_bytes();
    let mut depth = 0_u32;
    let mut start = None;
    for (at, &byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            _ if byte == open && depth == 0 && start.is_none() => {
                start = Some(at);
                depth = 1;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if let (0, Some(start)) = (depth, start) {
                    return Some(start..at + 1);
                }
            }
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    start.map(|start| start..code.len())
}

/// End of the comment or literal that starts at `at`; `None` if none starts there.
pub(super) fn hidden_end(source: &[u8], at: usize) -> Option<usize> {
    let rest = &source[at..];
    match rest {
        [b'/', b'/', ..] => Some(find(source, at, b'\n')),
        [b'/', b'*', ..] => Some(block_comment_end(source, at)),
        [b'"', ..] | [b'b' | b'c', b'"', ..] => {
            Some(quoted_end(source, find(source, at, b'"') + 1, b'"'))
        }
        [b'b', b'\'', ..] => Some(quoted_end(source, at + 2, b'\'')),
        [b'\'', ..] => character_end(source, at),
        [b'r', ..] => raw_string_end(source, at + 1),
        [b'b' | b'c', b'r', ..] => raw_string_end(source, at + 2),
        _ => None,
    }
}

/// End of the visible token at `at`. Words are taken whole, so that the `r` of `for` does not start
/// a raw string.
fn visible_end(source: &[u8], at: usize) -> usize {
    let word = source[at..].iter().take_while(|&&byte| is_word(byte)).count();
    at + word.max(1)
}

fn block_comment_end(source: &[u8], start: usize) -> usize {
    let mut depth = 0_u32;
    let mut at = start;
    while at < source.len() {
        match &source[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    source.len()
}

/// The end of a literal whose text starts at `at` and which `quote` closes; `\` hides one byte.
fn quoted_end(source: &[u8], mut at: usize, quote: u8) -> usize {
    while at < source.len() {
        match source[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    source.len()
}

/// The end of the raw string whose hashes start at `at`; `None` for a raw identifier, `r#type`.
fn raw_string_end(source: &[u8], at: usize) -> Option<usize> {
    let hashes = source[at..].iter().take_while(|&&byte| byte == b'#').count();
    let text = at + hashes + 1;
    if source.get(text - 1) != Some(&b'"') {
        return None;
    }
    let mut closing = vec![b'#'; hashes + 1];
    closing[0] = b'"';
    let length = source[text..].windows(closing.len()).position(|window| window == closing);
    Some(length.map_or(source.len(), |length| text + length + closing.len()))
}

/// The end of the character literal at `at`; `None` for a lifetime or a label.
fn character_end(source: &[u8], at: usize) -> Option<usize> {
    if source.get(at + 1) == Some(&b'\\') {
        return Some(quoted_end(source, at + 1, b'\''));
    }
    // One character is one byte and the continuation bytes of its UTF-8 form.
    let continuation = source.get(at + 2..)?.iter().take_while(|&&byte| byte & 0xc0 == 0x80);
    let close = at + 2 + continuation.count();
    (source.get(close) == Some(&b'\'')).then_some(close + 1)
}

fn find(source: &[u8], from: usize, byte: u8) -> usize {
    source[from..].iter().position(|&b| b == byte).map_or(source.len(), |length| from + length)
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blanks shown as dots.
    fn dots(source: &str) -> String {
        let masked = mask(source);
        assert_eq!(masked.len(), source.len(), "{source}");
        let bytes = masked.bytes().zip(source.bytes());
        bytes.map(|(m, s)| if m == s { char::from(m) } else { '.' }).collect()
    }

    #[test]
    fn comments_nest_and_end() {
        assert_eq!(dots("a//{\nb"), "a...\nb");
        assert_eq!(dots("a/*{/*x*/}*/b"), "a...........b");
        assert_eq!(dots("a/*\n}*/b"), "a..\n...b");
        assert_eq!(dots("a/*"), "a..");
        assert_eq!(dots("a / *b"), "a / *b");
    }

    #[test]
    fn strings_of_every_kind() {
        assert_eq!(dots(r#"f("}\"{")+1"#), "f(......)+1");
        assert_eq!(dots(r##"f(r#"a"b"#)+1"##), "f(........)+1");
        assert_eq!(dots(r#"f(b"{",c"{",br"\",cr"\")"#), "f(....,....,.....,.....)");
        assert_eq!(dots(r#"r#type, for"{""#), r"r#type, for...");
        assert_eq!(dots("\"é\""), "....");
        assert_eq!(dots("\"open"), ".....");
    }

    #[test]
    fn characters_but_not_lifetimes() {
        assert_eq!(dots(r"'{' '\'' '\\' b'{' 'é'"), "... .... .... .... ....");
        assert_eq!(dots(r"'\u{1F600}'{"), "...........{");
        assert_eq!(dots("<'a,'b>(&'a str){'x: loop{}}"), "<'a,'b>(&'a str){'x: loop{}}");
        assert_eq!(dots("'"), "'");
    }

    #[test]
    fn words_are_whole() {
        let found: Vec<_> = find_word("unsafe_code unsafe{} Unsafe(unsafe)", "unsafe").collect();
        assert_eq!(found, [12, 28]);
    }

    #[test]
    fn blocks_skip_other_brackets() {
        let code = "fn f(a: [u8; 2]) -> T { { } } fn g();{}";
        assert_eq!(&code[block(code, 0, b'{').expect("a body")], "{ { } }");
        assert_eq!(block(code, 30, b'{'), None);
        assert_eq!(block("fn f() {", 0, b'{'), Some(7..8));
    }
}
