// SPDX-License-Identifier: Apache-2.0
//! Standard output: text and JSON of which nothing acts on a terminal.

pub(crate) use crate::printable::in_a_line;

use crate::printable::Printable;
use crate::terminal;
use serde::Serialize;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Standard output. What is written appears at [`Write::flush`], or when it is dropped.
#[derive(Debug)]
pub(crate) struct Screen<W: Write = StdoutLock<'static>>(BufWriter<W>);

/// Standard output for text and JSON.
pub(crate) fn screen() -> Screen {
    Screen(BufWriter::with_capacity(64 << 10, io::stdout().lock()))
}

impl<W: Write> Write for Screen<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Most of JSON, which comes in millions of short pieces.
        if bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t')) {
            self.0.write_all(bytes)?;
            return Ok(bytes.len());
        }
        for chunk in bytes.utf8_chunks() {
            write!(self.0, "{}", Printable(chunk.valid()))?;
            if !chunk.invalid().is_empty() {
                self.0.write_all("\u{fffd}".as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints text, on a terminal in a pager if it is long.
pub(crate) fn text(text: &str) -> io::Result<()> {
    if terminal::page(text) {
        return Ok(());
    }
    let mut out = screen();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a value as indented JSON with a newline.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = screen();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printable::Colour;

    fn shown(text: &[u8]) -> String {
        let mut screen = Screen(BufWriter::new(Vec::new()));
        screen.write_all(text).unwrap();
        String::from_utf8(screen.0.into_inner().unwrap()).unwrap()
    }

    #[test]
    fn nothing_of_others_acts_on_a_terminal() {
        let plain = "rank 3\tnode-ü\n";
        assert_eq!(shown(plain.as_bytes()), plain);
        // Only our own colours act, also if they were in a line of their own.
        let ours = Colour::Bold.paint("report");
        assert_eq!(shown(ours.as_bytes()), "\x1b[1mreport\x1b[0m");
        assert_eq!(shown(in_a_line(&ours).as_bytes()), "\x1b[1mreport\x1b[0m");
        for (hostile, expected) in [
            ("\x1b]52;c;eA==\x07", "\\u001b]52;c;eA==\\u0007"),
            ("\x1b[2J\x1b[31mx", "\\u001b[2J\\u001b[31mx"),
            ("\x1b0123456789abcdef[31mx", "\\u001b0123456789abcdef[31mx"),
            ("a\r\u{9b}2J\u{7f}", "a\\u000d\\u009b2J\\u007f"),
            ("\u{202e}cod\u{2069}", "\\u202ecod\\u2069"),
        ] {
            assert_eq!(shown(hostile.as_bytes()), expected);
        }
        assert_eq!(shown(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(in_a_line("one\ntwo\x1b"), "one\\ntwo\\u001b");
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"host\u{9b}": "a\x1b[2J\u{202e}\u{7f}\"\\\n"});
        let text = shown(serde_json::to_string_pretty(&value).unwrap().as_bytes());
        assert!(!text.contains(crate::printable::is_active));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
