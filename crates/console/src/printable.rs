// SPDX-License-Identifier: Apache-2.0
/*!
Text that a terminal may show.

Names and sentences come from recordings, processes and collectors. Characters that would act on a
terminal instead of being shown (escape sequences, other control characters, marks that reverse the
direction of text) is written as `\u001b`, which JSON reads as the same character. Newlines and tabs
pass.

The tool's own colours pass too. Until they are printed, each is a [`Colour`]: an escape character
and a random number, which text from elsewhere cannot contain.
*/

use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use unicode_width::UnicodeWidthStr;

/// The part of our colour codes after the escape character.
static OURS: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one("colour")));

/// A colour in text for a terminal, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The end of a colour.
    End,
    /// Bold text.
    Bold,
    /// Red text.
    Red,
    /// Green text.
    Green,
    /// Yellow text.
    Yellow,
}

impl Colour {
    const ALL: [Colour; 5] =
        [Colour::End, Colour::Bold, Colour::Red, Colour::Green, Colour::Yellow];

    const fn code(self) -> &'static str {
        match self {
            Colour::End => "[0m",
            Colour::Bold => "[1m",
            Colour::Red => "[31m",
            Colour::Green => "[32m",
            Colour::Yellow => "[33m",
        }
    }

    /// The text between the marks of this colour and of its end.
    pub fn paint(self, text: &str) -> String {
        format!("{self}{text}{}", Colour::End)
    }
}

/// Writes the mark of the colour, which [`Printable`] replaces by the colour code.
impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\x1b{}{}", *OURS, self.code())
    }
}

/// Text for a terminal: everything in it that is not ours is escaped.
#[derive(Debug)]
pub struct Printable<T>(pub T);

impl<T: AsRef<str>> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self.0.as_ref(), f, |colour, f| write!(f, "\x1b{}", colour.code()))
    }
}

/// Writes text with active characters escaped; `form` writes our colours.
fn write<W: fmt::Write>(
    mut rest: &str,
    to: &mut W,
    form: impl Fn(Colour, &mut W) -> fmt::Result,
) -> fmt::Result {
    while let Some(at) = rest.find(is_active) {
        let (before, active) = rest.split_at(at);
        to.write_str(before)?;
        if let Some((colour, after)) = own_colour(active) {
            form(colour, to)?;
            rest = after;
            continue;
        }
        let mut chars = active.chars();
        chars.next().map_or(Ok(()), |active| escape(active, to))?;
        rest = chars.as_str();
    }
    to.write_str(rest)
}

/// The mark of our colour at the beginning of a text, and the rest.
fn own_colour(text: &str) -> Option<(Colour, &str)> {
    let code = text.strip_prefix('\x1b')?.strip_prefix(OURS.as_str())?;
    Colour::ALL.into_iter().find_map(|one| Some((one, code.strip_prefix(one.code())?)))
}

/// Writes the character as a JSON escape; all active characters have four digits.
fn escape(active: char, to: &mut impl fmt::Write) -> fmt::Result {
    write!(to, "\\u{:04x}", u32::from(active))
}

/// The width of a text on a terminal, columns. Chinese characters, for example, take two each.
pub fn columns_of(text: &str) -> usize {
    text.width()
}

/// The lines of a paragraph of at most `columns` columns, broken between words. `first` is its
/// beginning, which may contain colours, and that beginning's width; later lines are indented by
/// `indent` columns.
pub fn lines_of(first: (&str, usize), indent: usize, text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut length) = (first.0.to_owned(), first.1);
    for word in text.split_whitespace() {
        let word_length = columns_of(word);
        if line.ends_with(' ') && length > indent && length + word_length > columns {
            lines.push(line.trim_end().to_owned());
            (line, length) = (" ".repeat(indent), indent);
        }
        line.push_str(word);
        line.push(' ');
        length += word_length + 1;
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// True if a character would act on a terminal.
pub fn is_active(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Text for a table cell, with line breaks escaped as well. Our colours stay marks, for
/// [`Printable`].
pub fn in_a_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.split_inclusive('\n') {
        let (part, end) = part.strip_suffix('\n').map_or((part, ""), |part| (part, "\\n"));
        // Writing to a string cannot fail.
        let _ = write(part, &mut line, |colour, line| write!(line, "{colour}"));
        line.push_str(end);
    }
    line
}
