// SPDX-License-Identifier: Apache-2.0
//! The table: one row for each group of jobs.

use std::collections::BTreeMap;
use std::path::Path;

use super::answered::Answered;
use super::figures::{Figures, Part, Truth};
use super::kept;
use super::score::float;
use crate::outcome::Outcome;

/// Who made the jobs of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Our simulator: the same jobs in each run.
    Simulated,
    /// Our simulator, with choices that depend on the run's seed.
    Drawn,
    /// Real NCCL, or people who do not know this tool.
    Others,
}

/// How often a job of others counts in the last row.
const TIMES_OTHERS: u64 = 2;
/// How the last row is called.
const ALL: &str = "all, others' jobs twice";
/// Width of the names of rows.
const NAMES: usize = 33;

#[derive(Debug)]
struct Row {
    name: String,
    origin: Origin,
    figures: Figures,
    /// Why it was not run.
    not_run: Option<String>,
}

/// The rows in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    fn row(&mut self, name: &str, origin: Origin) -> &mut Row {
        let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            let (name, figures) = (name.to_owned(), Figures::default());
            self.rows.push(Row { name, origin, figures, not_run: None });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Adds a job to a row, and prints what is wrong.
    pub(super) fn add(
        &mut self,
        (row, origin): (&str, Origin),
        job: &str,
        truth: &Truth,
        said: &Answered,
    ) {
        if let Some(wrong) = self.row(row, origin).figures.add(truth, said) {
            println!("  {row}: {job}: {wrong}");
        }
    }

    /// Says why a row was not run.
    pub(super) fn leave_out(&mut self, row: &str, why: &str) {
        self.row(row, Origin::Others).not_run = Some(why.to_owned());
    }

    /// Adds the rows of a table that was filled at the same time.
    pub(super) fn append(&mut self, other: Table) {
        self.rows.extend(other.rows);
    }

    /// Prints the table.
    pub(super) fn print(&self) {
        println!("\n{}", line("jobs of", &HEAD.map(str::to_owned)));
        let mut all = Figures::default();
        for Row { name, origin, figures, not_run } in &self.rows {
            if let Some(why) = not_run {
                println!("{name:<NAMES$} not run: {why}");
                continue;
            }
            println!("{}", line(name, &cells(figures)));
            all.add_times(figures, if *origin == Origin::Others { TIMES_OTHERS } else { 1 });
        }
        println!("{}", line(ALL, &cells(&all)));
    }

    /// Keeps the rows that were run, in a file with those that were kept before.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn keep(&self, path: &Path) -> Outcome<()> {
        let mut rows = kept::read(path)?;
        for row in self.rows.iter().filter(|row| row.not_run.is_none()) {
            let columns = kept::columns(&row.figures);
            // Fewer drawn jobs say less.
            let has_more = |old: &kept::Columns| kept::jobs(old) > kept::jobs(&columns);
            if row.origin != Origin::Drawn || !rows.get(&row.name).is_some_and(has_more) {
                rows.insert(row.name.clone(), columns);
            }
        }
        kept::write(path, &rows)
    }

    /// Prints what is worse than in the file. False if something is, or if `all` must be kept and
    /// one is not.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn is_as_good_as(&self, path: &Path, all: bool) -> Outcome<bool> {
        Ok(self.is_as_good(&kept::read(path)?, all))
    }

    fn is_as_good(&self, kept: &BTreeMap<String, kept::Columns>, all: bool) -> bool {
        let mut is_good = true;
        for row in self.rows.iter().filter(|row| row.not_run.is_none()) {
            let Some(old) = kept.get(&row.name) else {
                println!("{}: not in {}: add --keep", row.name, kept::FILE);
                is_good &= !all;
                continue;
            };
            let worse = kept::worse(old, &kept::columns(&row.figures), row.origin == Origin::Drawn);
            for what in &worse {
                println!("WORSE  {}: {what}", row.name);
            }
            is_good &= worse.is_empty();
        }
        is_good
    }
}

/// The columns, and the width of each.
const HEAD: [&str; 13] = [
    "jobs", "class", "root", "extra", "1st row", "p50 %", "p90 %", "<25 %", "inside", "unsure",
    "fine", "s", "MiB",
];
const WIDTHS: [usize; 13] = [5, 9, 9, 5, 9, 6, 6, 9, 9, 9, 7, 7, 5];

fn line(name: &str, cells: &[String]) -> String {
    let mut text = format!("{name:<NAMES$}");
    for (at, cell) in cells.iter().enumerate() {
        let width = WIDTHS.get(at).copied().unwrap_or_default();
        text += &format!(" {cell:>width$}");
    }
    text
}

/// The cells of a row; the last one has the false alarms for each 1,000 healthy jobs, by class.
fn cells(of: &Figures) -> Vec<String> {
    let share = |part: Part| match part.of {
        0 => "-".to_owned(),
        all => format!("{}/{all}", part.is),
    };
    let percent =
        |error: Option<f64>| error.map_or_else(|| "-".into(), |it| format!("{:.1}", 100.0 * it));
    let alarms = of.alarms.iter().map(|(class, count)| {
        format!("{class} {:.1}", 1000.0 * float(*count) / float(of.healthy.max(1)))
    });
    let alarms: Vec<String> = alarms.collect();
    let alarms = match (of.healthy, alarms.is_empty()) {
        (0, _) => String::new(),
        (healthy, true) => format!("no false alarm in {healthy}"),
        (_, false) => format!("false alarms: {}", alarms.join(", ")),
    };
    vec![
        of.jobs.to_string(),
        share(of.class),
        share(of.root),
        of.extra.to_string(),
        share(of.first_row),
        percent(of.error(50)),
        percent(of.error(90)),
        share(of.near()),
        share(of.inside),
        share(of.cannot_tell),
        share(of.fine),
        format!("{:.1}", of.spent.seconds),
        (of.spent.peak_kib / 1024).to_string(),
        alarms,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: (&str, Origin) = ("healthy", Origin::Simulated);

    fn with_alarms(count: usize) -> Table {
        let mut table = Table::default();
        for at in 0..4 {
            let mut said = Answered { state: Some("FINE".into()), ..Answered::default() };
            if at < count {
                let list = serde_json::json!({"findings": [{"class": "S1", "root_ranks": [1]}]});
                let verbs =
                    super::super::answered::Verbs { stragglers: list, ..Default::default() };
                said.findings = Answered::read(&verbs, said.spent).expect("a known class").findings;
            }
            table.add(HEALTHY, "job", &Truth::default(), &said);
        }
        table
    }

    #[test]
    fn a_row_that_gets_worse_fails_and_a_better_one_does_not() {
        let kept = |table: &Table| {
            table.rows.iter().map(|row| (row.name.clone(), kept::columns(&row.figures))).collect()
        };
        let [none, one, two] = [0, 1, 2].map(with_alarms);
        assert!(one.is_as_good(&kept(&one), true) && none.is_as_good(&kept(&one), true));
        assert!(!two.is_as_good(&kept(&one), true));
        assert!(one.is_as_good(&BTreeMap::new(), false) && !one.is_as_good(&BTreeMap::new(), true));
    }

    #[test]
    fn a_row_that_was_not_run_is_not_compared() {
        let mut table = with_alarms(0);
        table.leave_out("others", "../shared is missing");
        let kept = |table: &Table| -> BTreeMap<String, kept::Columns> {
            let ran = table.rows.iter().filter(|row| row.not_run.is_none());
            ran.map(|row| (row.name.clone(), kept::columns(&row.figures))).collect()
        };
        assert!(table.is_as_good(&kept(&table), true));
    }

    #[test]
    fn cells_say_what_there_is() {
        let row = &with_alarms(1).rows[0].figures;
        let cells = cells(row);
        assert_eq!(cells[0], "4");
        assert_eq!(cells[1], "-");
        assert_eq!(cells[HEAD.len()], "false alarms: S1 250.0");
        assert_eq!(HEAD.len(), WIDTHS.len());
    }
}
