// SPDX-License-Identifier: Apache-2.0
//! Wraps long lines of text from other crates for a narrow terminal.

use super::width;
use ncclscope_console::printable::columns_of;

/// Maximum width of a label at the beginning of a line, columns.
const LABEL: usize = 24;
/// Minimum width of the text after a label, columns.
const ROOM: usize = 10;
/// A line with at least this many gaps of several blanks is a row of a table, and is not wrapped.
const GAPS: usize = 3;

/// The text wrapped to the terminal, if standard output is one. Further lines are aligned with the
/// text after the label, or indented.
pub(crate) fn fitted(text: &str) -> String {
    width().map_or_else(|| text.to_owned(), |width| within(text, width))
}

fn within(text: &str, width: usize) -> String {
    let mut fitted = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches('\n');
        if columns_of(content) <= width || gaps(content.trim()) >= GAPS {
            fitted.push_str(line);
            continue;
        }
        let indent = indent(content, width);
        let start = content.len() - content.trim_start().len();
        let (mut used, mut is_first) = (start, true);
        fitted.push_str(&content[..start]);
        for word in content.trim_start().split(' ') {
            let columns = columns_of(word) + usize::from(!is_first);
            if !is_first && used + columns > width && used > indent {
                fitted.truncate(fitted.trim_end().len());
                fitted.push_str(&format!("\n{}{word}", " ".repeat(indent)));
                used = indent + columns_of(word);
                continue;
            }
            fitted.push_str(if is_first { "" } else { " " });
            fitted.push_str(word);
            used += columns;
            is_first = false;
        }
        fitted.push_str(&line[content.len()..]);
    }
    fitted
}

/// Number of gaps of two blanks or more in a line.
fn gaps(line: &str) -> usize {
    line.split("  ").filter(|part| !part.trim().is_empty()).count().saturating_sub(1)
}

/// Column at which the continuation of a line begins.
fn indent(line: &str, width: usize) -> usize {
    let start = line.len() - line.trim_start().len();
    let label = line[start..].find("  ").filter(|&label| label <= LABEL).map(|label| {
        let behind = &line[start + label..];
        start + label + behind.len() - behind.trim_start().len()
    });
    label.filter(|label| label + ROOM <= width).unwrap_or_else(|| (start + 2).min(width / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_rows_do_not() {
        let text = "H1a host-stuck  rank 0 is stuck\n  evidence  rank 0 waits for rank 12\n  a  1  \
                    2  3  4  5  6  7  8  9  10  11\n\nnote: all is over\n";
        let expected = "H1a host-stuck  rank 0 is\n                stuck\n  evidence  rank 0 \
                        waits\n            for rank 12\n  a  1  2  3  4  5  6  7  8  9  10  11\n\n\
                        note: all is over\n";
        assert_eq!(within(text, 26), expected);
        assert_eq!(within(text, 80), text);
        // A word that is too long gets a line of its own; no width causes an error.
        let path = "wrote /a/long/path/host-4711.nscope there\n";
        assert_eq!(within(path, 12), "wrote\n  /a/long/path/host-4711.nscope\n  there\n");
        for width in 0..40 {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&within(text, width)), words(text), "{width}");
        }
    }
}
