// SPDX-License-Identifier: Apache-2.0
//! A source of readings, and the pictures made from them.

use crate::io::output::in_a_line;
use ncclscope_console::failure::Failure;
use ncclscope_top::{Patience, Picture, Reading, Stragglers, judge};
use std::time::{Duration, Instant};

/// Where readings come from.
pub(super) trait Source: Send {
    /// The next reading. An operation in flight for longer than `limit` counts as stalled.
    fn read(&mut self, limit: Duration) -> Result<Reading, Failure>;

    /// True if some ranks have started so recently that they are not in the reading yet.
    fn is_beginning(&self) -> bool {
        false
    }

    /// True if enough was read for rates.
    fn has_rates(&self) -> bool;
}

/// A source, and what was learnt from its readings.
pub(super) struct Watch {
    source: Box<dyn Source>,
    patience: Patience,
    stragglers: Stragglers,
    hang_s: f64,
    read_at: Option<Instant>,
}

impl Watch {
    /// A watch without readings. An operation in flight for less than `stall` is never stalled; one
    /// in flight for `hang` is hung.
    pub(super) fn new(source: Box<dyn Source>, stall: Duration, hang: Duration) -> Watch {
        let (least, hang_s) = (stall.as_secs_f64(), hang.as_secs_f64());
        let patience = Patience::new(least.min(hang_s), hang_s);
        Watch { source, patience, stragglers: Stragglers::default(), hang_s, read_at: None }
    }

    /// True if some ranks are not in the picture yet.
    pub(super) fn is_beginning(&self) -> bool {
        self.source.is_beginning()
    }

    pub(super) fn has_rates(&self) -> bool {
        self.source.has_rates()
    }

    pub(super) fn look(&mut self) -> Result<Picture, Failure> {
        let reading = self.source.read(Duration::from_secs_f64(self.patience.limit_s()))?;
        let before = self.read_at.replace(Instant::now());
        let elapsed = before.map_or(0.0, |at| at.elapsed().as_secs_f64());
        self.patience.learn(&reading, elapsed);
        let mut picture = judge(&reading, self.patience.limit_s(), self.hang_s);
        self.stragglers.learn(&reading);
        self.stragglers.mark(&mut picture);
        Ok(picture)
    }

    /// True if the readings are too few to tell whether a rank is slow.
    pub(super) fn is_too_early(&self) -> bool {
        self.stragglers.is_too_early()
    }
}

/// Text of a process, without characters that act on a terminal.
pub(super) fn printable(text: &str) -> String {
    // Colour codes in a process's text are escaped, too.
    in_a_line(text).replace('\t', "\\t").replace('\x1b', "\\u001b")
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_acts_on_the_terminal_not_even_colours() {
        assert_eq!(printable("a\tb\nc\x1b[31m\x1b[2J"), "a\\tb\\nc\\u001b[31m\\u001b[2J");
    }
}
