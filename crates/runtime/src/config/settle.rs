// SPDX-License-Identifier: Apache-2.0
//! Adapts a configuration to the process: limits, and the current directory.

use super::Config;
use ncclscope_control::value::Mode;
use ncclscope_trace::layout::RING_LIMITS;
use ncclscope_trace::{lanes_file, layout};

impl Config {
    /// Adapts the configuration to the process, whose files are limited to `file_limit` bytes
    /// (`None`: unlimited). Returns a line for each setting that had to be changed.
    pub(crate) fn settle(&mut self, file_limit: Option<u64>) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(limit) = file_limit {
            lines.extend(self.fit(limit));
        }
        if self.mode == Mode::Off {
            return lines;
        }
        // Absolute, because the process may change its directory, and dumps and reports lie beside
        // the recording.
        if let Ok(dir) = std::path::absolute(&self.dir) {
            self.dir = dir;
        }
        lines
    }

    /// Reduces sizes that exceed the file size limit.
    fn fit(&mut self, limit: u64) -> Option<String> {
        let what = format!("files have at most {limit} bytes here (ulimit -f)");
        let room = limit.saturating_sub(layout::BLOCKS) / layout::SEGMENT * layout::SEGMENT;
        if room < *RING_LIMITS.start() {
            // It is tried all the same, because the limit may be raised meanwhile.
            (self.ring_bytes, self.lanes) = (*RING_LIMITS.start(), None);
            return Some(format!("{what}: too few for a recording; the watchdog runs without one"));
        }
        let mut left_out = Vec::new();
        if room < self.ring_bytes {
            self.ring_bytes = room;
            left_out.push(format!("{:.1} MiB of records are kept", room as f64 / MIB));
        }
        if self.lanes.is_some() && limit < lanes_file::BYTES {
            self.lanes = None;
            left_out.push("there is no lanes file, and a SIGKILL loses up to 80 ms".into());
        }
        if left_out.is_empty() { None } else { Some(format!("{what}: {}", left_out.join("; "))) }
    }
}

const MIB: f64 = 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let dir = |name: &str| (name == "NCCLSCOPE_DIR").then(|| "run/1".into());
        Config::read(&dir, &[], "node1", 42).0
    }

    fn settled(limit: Option<u64>) -> (Config, Vec<String>) {
        let mut config = config();
        let lines = config.settle(limit);
        (config, lines)
    }

    #[test]
    fn without_a_limit_only_the_directory_becomes_absolute() {
        let (config, lines) = settled(None);
        assert_eq!(lines, [] as [String; 0]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(config, Config { dir: here.join("run/1"), ..self::config() });
        assert_eq!(settled(Some(1 << 30)), (config, Vec::new()), "one that is far away");
    }

    #[test]
    fn what_is_longer_than_files_may_be_is_left_out() {
        let least = layout::BLOCKS + RING_LIMITS.start();
        let (config, lines) = settled(Some(least));
        assert_eq!((config.ring_bytes, config.lanes), (1 << 20, None));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let (config, lines) = settled(Some(least - 1));
        assert_eq!((config.mode, config.ring_bytes, config.lanes), (Mode::Flight, 1 << 20, None));
        assert!(lines[0].ends_with("too few for a recording; the watchdog runs without one"));
        // 66 MiB are enough for the recording, but not for all lanes.
        let (config, lines) = settled(Some(66 << 20));
        assert_eq!((config.ring_bytes, config.lanes), (64 << 20, None));
        assert!(!lines[0].contains("are kept"), "{lines:?}");
    }
}
