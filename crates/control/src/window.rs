// SPDX-License-Identifier: Apache-2.0
/*!
A requested recording window: its start, its end, and which operations it samples.

It is written as words of the form `NAME=VALUE`: `for=500ms`, `steps=10`, `at=1790857026.5`,
`sample=16`. `NCCLSCOPE_START`, the options of `ncclscope_start` and the `start` request use the
same words. The runtime opens and closes windows.
*/

use crate::quantity::{duration, write_duration, write_seconds};
use std::fmt;
use std::time::Duration;

/// Which operations to record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordingWindow {
    /// When it begins, `CLOCK_REALTIME` in ns. `None`: at once, or with [`WindowEnd::Steps`] at the
    /// next training step.
    pub at: Option<u64>,
    /// When it ends.
    pub end: WindowEnd,
    /// Every how many-th operation is recorded; 1 is each.
    pub sample: u32,
}

/// When a window ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowEnd {
    /// With a request to stop.
    Open,
    /// This long after it began.
    After(Duration),
    /// This many training steps after it began.
    Steps(u64),
}

impl Default for RecordingWindow {
    fn default() -> RecordingWindow {
        RecordingWindow { at: None, end: WindowEnd::Open, sample: 1 }
    }
}

impl RecordingWindow {
    /// Parses the words of a window; an empty text gives [`RecordingWindow::default`].
    ///
    /// # Errors
    /// A sentence with the invalid word and what was expected.
    pub fn parse(text: &str) -> Result<RecordingWindow, String> {
        let mut window = RecordingWindow::default();
        for word in text.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let bad = |expected: &str| format!("{word}: expected {expected}");
            match name {
                "for" => {
                    let length = duration(value).filter(|d| !d.is_zero());
                    let length = length.ok_or_else(|| bad("for=10s, for=500ms or for=2m"))?;
                    window.end = WindowEnd::After(length);
                }
                "steps" => {
                    let steps = value.parse().ok().filter(|&n| n > 0);
                    window.end = WindowEnd::Steps(steps.ok_or_else(|| bad("steps=10"))?);
                }
                "at" => {
                    let at = duration(value).and_then(|d| u64::try_from(d.as_nanos()).ok());
                    let at =
                        at.ok_or_else(|| bad("at=SECONDS since 1970, such as 1790857026.5"))?;
                    window.at = Some(at);
                }
                "sample" => {
                    let value = value.strip_prefix("1/").unwrap_or(value);
                    let sample = value.parse().ok().filter(|&n| n > 0);
                    window.sample = sample.ok_or_else(|| bad("sample=16 or sample=1/16"))?;
                }
                _ => return Err(bad("for=, steps=, at= or sample=")),
            }
        }
        Ok(window)
    }
}

/// The words that [`RecordingWindow::parse`] reads; empty for the default.
impl fmt::Display for RecordingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        match self.end {
            WindowEnd::Open => {}
            WindowEnd::After(length) => words.push(format!("for={}", write_duration(length))),
            WindowEnd::Steps(steps) => words.push(format!("steps={steps}")),
        }
        if let Some(at) = self.at {
            words.push(format!("at={}", write_seconds(Duration::from_nanos(at))));
        }
        if self.sample != 1 {
            words.push(format!("sample={}", self.sample));
        }
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood() {
        let window = |text| RecordingWindow::parse(text).unwrap();
        assert_eq!(window(""), RecordingWindow::default());
        let ms = |n| WindowEnd::After(Duration::from_millis(n));
        assert_eq!(window("for=10s").end, ms(10_000));
        assert_eq!(window("for=1.5").end, ms(1500));
        assert_eq!(
            window("steps=3 sample=1/16"),
            RecordingWindow { at: None, end: WindowEnd::Steps(3), sample: 16 }
        );
        assert_eq!(window("at=1790857026.000000001").at, Some(1_790_857_026_000_000_001));
        for bad in ["for", "for=0", "for=-1s", "for=5d", "steps=0", "sample=0", "at=soon", "x=1"] {
            let line = RecordingWindow::parse(bad).unwrap_err();
            assert!(line.starts_with(bad), "{line}");
        }
    }

    #[test]
    fn a_written_window_is_read_back() {
        let ends = [
            WindowEnd::Open,
            WindowEnd::Steps(10),
            WindowEnd::After(Duration::from_millis(1500)),
            WindowEnd::After(Duration::from_nanos(1)),
        ];
        for end in ends {
            for (at, sample) in [(None, 1), (Some(1_790_857_026_000_000_001), 16)] {
                let window = RecordingWindow { at, end, sample };
                assert_eq!(RecordingWindow::parse(&window.to_string()), Ok(window), "{window}");
            }
        }
        assert_eq!(RecordingWindow::default().to_string(), "");
    }
}
