// SPDX-License-Identifier: Apache-2.0
/*!
Text that a terminal may show.

Names and sentences come from recordings, processes and collectors. What would act on a terminal
instead of being shown (escape sequences, other control characters, marks that reverse the direction
of text) is written as `\u001b`, which JSON reads as the same character. Newlines, tabs and our own
colours pass.
*/

use std::fmt::{self, Write as _};

/// All colours that we use, and their end.
const COLOURS: [&str; 5] = ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"];

/// Text of which nothing acts on a terminal.
pub(crate) struct Printable<T>(pub(crate) T);

impl<T: AsRef<str>> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_ref();
        while let Some(at) = rest.find(is_active) {
            let (before, active) = rest.split_at(at);
            f.write_str(before)?;
            if let Some(colour) = COLOURS.iter().find(|colour| active.starts_with(**colour)) {
                f.write_str(colour)?;
                rest = active.strip_prefix(colour).unwrap_or_default();
                continue;
            }
            let mut chars = active.chars();
            chars.next().map_or(Ok(()), |active| escape(active, f))?;
            rest = chars.as_str();
        }
        f.write_str(rest)
    }
}

/// The character as JSON escapes it. All that are active have four digits.
fn escape(active: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "\\u{:04x}", u32::from(active))
}

/// Whether a character would act on a terminal.
pub(crate) fn is_active(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Text in which a line break does not begin a line either: for a cell of a table.
pub(crate) fn in_a_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.split_inclusive('\n') {
        let (part, end) = part.strip_suffix('\n').map_or((part, ""), |part| (part, "\\n"));
        // Writing to a string cannot fail.
        let _ = write!(line, "{}{end}", Printable(part));
    }
    line
}
