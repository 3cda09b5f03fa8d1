// SPDX-License-Identifier: Apache-2.0
//! Standard output for text and JSON, without characters that act on a terminal.

pub(crate) use ncclscope_console::printable::in_a_line;

use crate::io::indented::Indented;
use crate::io::terminal;
use ncclscope_console::printable::Printable;
use serde::Serialize;
use serde_json::Serializer;
use std::fmt::Write as _;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Standard output. Text appears at [`Write::flush`], or when this is dropped.
pub(crate) type Screen<W = StdoutLock<'static>> = BufWriter<Shown<W>>;

/// Escapes text for the terminal behind a buffer, because JSON comes in millions of short pieces.
#[derive(Debug)]
pub(crate) struct Shown<W: Write> {
    to: W,
    /// Bytes of a character whose remaining bytes come with the next piece.
    begun: Vec<u8>,
}

/// Standard output for text and JSON.
pub(crate) fn screen() -> Screen {
    buffered(io::stdout().lock())
}

fn buffered<W: Write>(to: W) -> Screen<W> {
    BufWriter::with_capacity(64 << 10, Shown::new(to))
}

impl<W: Write> Shown<W> {
    fn new(to: W) -> Shown<W> {
        Shown { to, begun: Vec::new() }
    }

    /// Writes text that is not ASCII, or that would act on a terminal.
    fn write_other(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend(bytes);
        let mut shown = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            let _ = write!(shown, "{}", Printable(chunk.valid()));
            let invalid = chunk.invalid();
            let is_begun = |error: std::str::Utf8Error| error.error_len().is_none();
            match std::str::from_utf8(invalid) {
                Err(error) if chunks.peek().is_none() && is_begun(error) => {
                    self.begun = invalid.to_vec();
                }
                Err(_) => shown.push('\u{fffd}'),
                Ok(_) => {}
            }
        }
        self.to.write_all(shown.as_bytes())
    }
}

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
        // Most of JSON. Without a branch for each byte, the check is vectorised.
        if self.begun.is_empty() && bytes.iter().fold(true, |all, byte| all & is_plain(byte)) {
            self.to.write_all(bytes)?;
        } else {
            self.write_other(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Prints text; on a terminal in a pager if it is long.
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
    value.serialize(&mut Serializer::with_formatter(&mut out, Indented::default()))?;
    writeln!(out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_console::printable::Colour;

    fn shown(text: &[u8]) -> String {
        let mut screen = Shown::new(Vec::new());
        screen.write_all(text).unwrap();
        String::from_utf8(screen.to).unwrap()
    }

    #[test]
    fn nothing_of_others_acts_on_a_terminal() {
        let plain = "rank 3\tnode-ü\n";
        assert_eq!(shown(plain.as_bytes()), plain);
        // Only our own colours act on a terminal, even within other text.
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
        assert_eq!(shown(b"a\xc3\xc3b"), "a\u{fffd}\u{fffd}b");
        assert_eq!(in_a_line("one\ntwo\x1b"), "one\\ntwo\\u001b");
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"host\u{9b}": "a\x1b[2J\u{202e}\u{7f}\"\\\n"});
        let text = shown(serde_json::to_string_pretty(&value).unwrap().as_bytes());
        assert!(!text.contains(ncclscope_console::printable::is_active));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    /// Each write that reaches the terminal or the pipe.
    #[derive(Default)]
    struct Writes(Vec<usize>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A report of thousands of ranks has millions of numbers.
    #[test]
    fn json_is_written_in_large_pieces() {
        let rows: Vec<_> = (0..20_000).map(|n| serde_json::json!({"rank": n, "ms": 1.5})).collect();
        let mut out = buffered(Writes::default());
        rows.serialize(&mut Serializer::with_formatter(&mut out, Indented::default())).unwrap();
        out.flush().unwrap();
        let writes = &out.get_ref().to.0;
        let bytes: usize = writes.iter().sum();
        assert!(bytes > 500_000, "{bytes}");
        assert!(writes.len() <= bytes / (32 << 10), "{} writes of {bytes} bytes", writes.len());
    }

    /// A CSV writer passes on its buffer whenever it is full, perhaps within a character.
    #[test]
    fn a_character_may_come_in_pieces() {
        let text = "node-\u{fc}\u{20ac}\u{1f600}\x1b";
        let mut screen = Shown::new(Vec::new());
        for byte in text.as_bytes() {
            screen.write_all(std::slice::from_ref(byte)).unwrap();
        }
        assert_eq!(String::from_utf8(screen.to).unwrap(), "node-\u{fc}\u{20ac}\u{1f600}\\u001b");
    }
}
