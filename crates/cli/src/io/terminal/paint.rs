// SPDX-License-Identifier: Apache-2.0
//! Adds colours to text from other crates: headings, and classes of findings.

use super::has_colour;
use ncclscope_console::printable::Colour;

/// The text with colours, if standard output has colours: headings (lines of capitals) in bold,
/// classes of findings in red, or yellow if they are only suspected.
pub(crate) fn painted(text: &str) -> String {
    if has_colour() { in_colours(text) } else { text.to_owned() }
}

fn in_colours(text: &str) -> String {
    let mut painted = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches('\n');
        let end = &line[content.len()..];
        let start = content.trim_start();
        let indent = &content[..content.len() - start.len()];
        if is_heading(content) {
            painted += &format!("{}{end}", Colour::Bold.paint(content));
        } else if let Some(class) = class_of(start) {
            let colour = if start.contains("(suspect") { Colour::Yellow } else { Colour::Red };
            let rest = &start[class.len()..];
            painted += &format!("{indent}{}{rest}{end}", colour.paint(class));
        } else {
            painted += line;
        }
    }
    painted
}

/// A line of capitals that begins at the first column.
fn is_heading(line: &str) -> bool {
    let first = line.chars().next();
    first.is_some_and(char::is_uppercase) && line.len() > 2 && !line.contains(char::is_lowercase)
}

/// The code and name at the beginning of a line: `H1b rank-absent`.
fn class_of(line: &str) -> Option<&str> {
    let mut words = line.split(' ');
    let (code, name) = (words.next()?, words.next()?);
    let mut chars = code.chars();
    let is_code = chars.next().is_some_and(|first| first.is_ascii_uppercase())
        && chars.next().is_some_and(|second| second.is_ascii_digit());
    let is_name = name.contains('-') && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    (is_code && code.len() <= 3 && is_name).then(|| &line[..=code.len() + name.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_console::printable::Printable;

    #[test]
    fn headings_and_classes_have_colours_and_names_do_not() {
        let text = "16 ranks, 2 of them wait\n\nSLOW\n  S1 slow-rank  rank 11 (confirmed)\n\
                    H1b rank-absent (suspect)  rank 3\n  rank 3 B2 b\n";
        let expected = "16 ranks, 2 of them wait\n\n\x1b[1mSLOW\x1b[0m\n  \
                        \x1b[31mS1 slow-rank\x1b[0m  rank 11 (confirmed)\n\
                        \x1b[33mH1b rank-absent\x1b[0m (suspect)  rank 3\n  rank 3 B2 b\n";
        assert_eq!(Printable(in_colours(text)).to_string(), expected);
    }
}
