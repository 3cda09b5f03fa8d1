// SPDX-License-Identifier: Apache-2.0
//! The text of nccl-tests: its columns are those that its header names, which differ between
//! versions.

use super::made::{Invocation, Made, Row, function, version};

/// Reads a log line by line.
#[derive(Debug, Default)]
pub(super) struct Log {
    invocation: Invocation,
    /// The function that a line before the invocation names.
    announced: Option<&'static str>,
    columns: Option<Columns>,
    /// Number of rows that are not whole.
    pub(super) broken: usize,
}

/// The columns after a prefix of the launcher that the header has, too.
#[derive(Debug)]
struct Columns {
    prefix: String,
    names: Vec<String>,
}

/// Whether a line names the columns.
pub(super) fn is_header(line: &str) -> bool {
    Columns::of(line).is_some()
}

impl Columns {
    fn of(line: &str) -> Option<Columns> {
        let (prefix, text) = line.split_once('#').unwrap_or(("", line));
        let names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let begins = ["size", "count", "type"].iter().zip(&names).all(|(a, b)| a == b);
        let has = |name: &str| names.iter().any(|known| known == name);
        let is_header = begins && (has("time") || has("cputime")) && has("algbw") && has("busbw");
        is_header.then(|| Columns { prefix: prefix.trim().to_owned(), names })
    }

    /// The position of a name among the columns from `from` on.
    fn at(&self, from: usize, is_one: impl Fn(&str) -> bool) -> Option<usize> {
        let found = self.names.iter().skip(from).position(|name| is_one(name));
        found.map(|at| at + from)
    }

    /// The results of a row; `None` if the line is no row, an error if the row is not whole.
    fn rows(&self, line: &str) -> Option<Result<Vec<Row>, ()>> {
        let line = line.trim_start();
        let text = line.strip_prefix(&self.prefix)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let bytes = words.first()?.parse().ok()?;
        words.get(1)?.parse::<u64>().ok()?;
        Some(self.results(bytes, &words).ok_or(()))
    }

    fn results(&self, bytes: u64, words: &[&str]) -> Option<Vec<Row>> {
        let first = self.at(0, is_time)?;
        let second = self.at(first + 1, is_time);
        // A timestamp is two words.
        let is_stamped = self.names.last().is_some_and(|name| name == "timestamp");
        let all = self.names.len() + usize::from(is_stamped);
        let mut blocks = vec![(first, first, "out-of-place")];
        blocks.extend(second.map(|second| (second, second, "in-place")));
        if words.len() != all {
            // Only in place: the columns before are blank.
            let second = second.filter(|second| words.len() + (second - first) == all)?;
            blocks = vec![(first, second, "in-place")];
        }
        let text = |name: &str| {
            let at = self.at(0, |known| known == name).filter(|&at| at < first);
            at.and_then(|at| words.get(at)).map_or("", |word| word)
        };
        let redop = Some(text("redop")).filter(|&redop| redop != "none").unwrap_or_default();
        let root = Some(text("root")).filter(|&root| !root.is_empty() && root != "-1");
        let row = |&(at, names, place): &(usize, usize, &'static str)| {
            let wrong = self.at(names, |name| ["#wrong", "wrong"].contains(&name));
            let wrong = wrong.and_then(|wrong| words.get(at + (wrong - names)));
            let us: f64 = words.get(at)?.parse().ok()?;
            Some(Row {
                bytes,
                datatype: text("type").to_owned(),
                redop: redop.to_owned(),
                root: root.map_or_else(String::new, |root| format!("root {root}")),
                place,
                us,
                // `N/A` if data was not checked.
                is_wrong: wrong.and_then(|word| word.parse().ok()).is_some_and(|n: f64| n != 0.0),
            })
        };
        let rows = blocks.iter().map(row).collect::<Option<Vec<Row>>>()?;
        rows.iter().all(|row| row.us.is_finite() && row.us >= 0.0).then_some(rows)
    }
}

fn is_time(name: &str) -> bool {
    ["time", "cputime"].contains(&name)
}

impl Log {
    pub(super) fn line(&mut self, line: &str, made: &mut Made) {
        if let Some(columns) = Columns::of(line) {
            if self.columns.is_some() {
                // No line before began an invocation.
                self.begin(made);
            }
            self.columns = Some(columns);
            return;
        }
        let rows = self.columns.as_ref().and_then(|columns| columns.rows(line));
        match rows {
            Some(Ok(rows)) => rows.iter().for_each(|row| made.add(&self.invocation, row)),
            Some(Err(())) => self.broken += 1,
            None => self.other(line, made),
        }
    }

    /// A line that is neither a row nor the names of columns.
    fn other(&mut self, line: &str, made: &mut Made) {
        let after = |key: &str| line.split_once(key).map(|(_, rest)| rest.trim());
        if let Some(options) = after("# nThread ") {
            self.begin(made);
            self.invocation.facts.push(("nccl-tests options", format!("nThread {options}")));
        } else if let Some(rank) = after("#  Rank ").or_else(|| after("#   Rank ")) {
            self.rank(rank);
        } else if let Some(rest) = after("# nccl-tests version ") {
            self.begin(made);
            let mut words = rest.split_whitespace();
            let fact = words.next().map(|version| ("nccl-tests", version.to_owned()));
            self.invocation.facts.extend(fact);
            let library = words.find_map(|word| word.strip_prefix("nccl-library="));
            let nccl = library.and_then(version).map(|version| ("nccl", version));
            self.invocation.facts.extend(nccl);
        } else if line.contains("_perf") && !line.contains("concluded") {
            let words = line.split(|c: char| c.is_whitespace() || c == '/');
            let program = words.filter(|word| word.contains("_perf")).find_map(function);
            self.announced = program.or(self.announced);
            if self.columns.is_none() {
                self.invocation.func = self.announced;
            }
        }
    }

    /// Begins an invocation, unless the current one has no columns yet.
    fn begin(&mut self, made: &mut Made) {
        if self.columns.take().is_some() {
            self.invocation = Invocation::default();
        }
        self.invocation.func = self.announced.or(self.invocation.func);
        made.is_new = true;
    }

    /// A line such as `#  Rank  3 Group  0 Pid   1949 on node-1 device  3 [0000:5d:00] NVIDIA`.
    fn rank(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let rank = words.next().and_then(|rank| rank.parse::<u32>().ok());
        let Some(rank) = rank else { return };
        self.invocation.ranks = self.invocation.ranks.max(rank.saturating_add(1));
        if let Some(host) = words.skip_while(|word| *word != "on").nth(1) {
            *self.invocation.hosts.entry(host.to_owned()).or_default() += 1;
        }
    }
}
