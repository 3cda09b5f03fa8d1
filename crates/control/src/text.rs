// SPDX-License-Identifier: Apache-2.0
//! Shortens and cleans texts from outside, which may be long or contain control characters.

/// Most bytes of a text that are shown.
const SHOWN: usize = 200;

/// The part of an outside text that goes into a line: its first 200 bytes, with control characters
/// escaped.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        if out.len() >= SHOWN {
            return out + "...";
        }
        if char.is_control() { out.extend(char.escape_default()) } else { out.push(char) }
    }
    out
}

/// The whole text, with control characters escaped.
#[must_use]
pub fn on_one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() { out.extend(char.escape_default()) } else { out.push(char) }
    }
    out
}

/// At most the first `bytes` bytes of a text, cut between characters.
#[must_use]
pub fn beginning(text: &str, bytes: usize) -> &str {
    let fits = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    fits.and_then(|end| text.get(..end)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_short_and_stays_on_its_line() {
        assert_eq!(shown("größer"), "größer");
        assert_eq!(shown("a\nb\x1b[2J\u{85}"), "a\\nb\\u{1b}[2J\\u{85}");
        assert_eq!(on_one_line(&"ü\x1b]0;".repeat(99)), "ü\\u{1b}]0;".repeat(99));
        assert_eq!(shown(&"x".repeat(200)), "x".repeat(200));
        assert_eq!(shown(&"x".repeat(1 << 20)), "x".repeat(200) + "...");
        assert!(shown(&"\u{1}".repeat(1 << 20)).len() < 220);
    }

    #[test]
    fn a_beginning_cuts_no_character() {
        assert_eq!((beginning("größer", 3), beginning("größer", 4)), ("gr", "grö"));
        assert_eq!((beginning("ab", 9), beginning("", 9)), ("ab", ""));
    }
}
