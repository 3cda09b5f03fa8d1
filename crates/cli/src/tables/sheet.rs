// SPDX-License-Identifier: Apache-2.0
/*!
Tables for other programs: CSV for spreadsheets and data frames, and Markdown for issues and wikis.

Cells may hold names from recordings. A spreadsheet runs a cell that begins with `=`, `+`, `-` or
`@` as a formula, so such text gets a quotation mark in front. In Markdown, characters that would be
markup are escaped.
*/

use crate::io::output;
use ncclscope_console::failure::Failure;
use ncclscope_findings::Help;
use serde::Serialize;
use serde_json::Value;

/// A row of a table of findings: a finding, and the host and process of its first rank.
#[derive(Serialize)]
pub(crate) struct LocatedRow<'a, T> {
    #[serde(flatten)]
    finding: &'a T,
    host: Option<&'a str>,
    pid: Option<u32>,
}

impl<'a, T> LocatedRow<'a, T> {
    pub(crate) fn of(finding: &'a T, help: &'a Help) -> LocatedRow<'a, T> {
        let first = help.places.first();
        let host = first.and_then(|place| place.host.as_deref());
        LocatedRow { finding, host, pid: first.and_then(|place| place.pid) }
    }
}

/// A table of texts with named columns.
#[derive(Debug)]
pub(crate) struct Sheet {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Sheet {
    pub(crate) fn new(columns: Vec<String>) -> Sheet {
        Sheet { columns, rows: Vec::new() }
    }

    /// A table of these fields of the rows' JSON. A dot in a name selects a nested field, and
    /// becomes a `_` in the column's name.
    pub(crate) fn of(rows: &[impl Serialize], fields: &[&str]) -> Result<Sheet, Failure> {
        let mut sheet = Sheet::new(fields.iter().map(|field| field.replace('.', "_")).collect());
        for row in rows {
            let value = serde_json::to_value(row)
                .map_err(|error| Failure::environment(format!("cannot write a row: {error}")))?;
            let cell = |field: &&str| {
                field.split('.').try_fold(&value, |value, name| value.get(name)).map(text)
            };
            sheet.row(fields.iter().map(|field| cell(field).unwrap_or_default()).collect());
        }
        Ok(sheet)
    }

    /// Adds a row, one cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints the table as CSV, with the column names first (RFC 4180, but with line feeds).
    pub(crate) fn print_csv(&self) -> Result<(), Failure> {
        let failed = |error: csv::Error| Failure::environment(format!("cannot write CSV: {error}"));
        let mut out = csv::Writer::from_writer(output::screen());
        out.write_record(&self.columns).map_err(failed)?;
        for row in &self.rows {
            out.write_record(row.iter().map(|cell| harmless(cell))).map_err(failed)?;
        }
        Ok(out.flush()?)
    }

    /// The table in GitHub's Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", " --- |".repeat(self.columns.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.columns) + &rule + &rows
    }
}

/// A JSON value as a cell.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // In a list, a communicator is written as its hash.
        Value::Object(fields) if fields.contains_key("comm") => text(&fields["comm"]),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// A cell that no spreadsheet interprets as a formula.
fn harmless(cell: &str) -> String {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let is_number = || cell.parse::<f64>().is_ok();
    // A single dash stands for an unknown value.
    if is_formula && cell != "-" && !is_number() { format!("'{cell}") } else { cell.to_owned() }
}

/// Text with Markdown's markup escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => escaped.push(' '),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '#' | '&' | '@' => {
                escaped.extend(['\\', c]);
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_become_text_and_numbers_stay() {
        for (cell, expected) in [
            ("=1+1", "'=1+1"),
            ("+cmd", "'+cmd"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-", "-"),
            ("-1.5e-7", "-1.5e-7"),
            ("AllReduce", "AllReduce"),
        ] {
            assert_eq!(harmless(cell), expected);
        }
    }

    #[test]
    fn markdown_sees_no_markup_in_cells() {
        let mut sheet = Sheet::new(vec!["a".into(), "b".into()]);
        sheet.row(vec!["x|y\nz".into(), "<b>_1_</b>".into()]);
        assert_eq!(
            sheet.markdown(),
            "| a | b |\n| --- | --- |\n| x\\|y z | \\<b\\>\\_1\\_\\</b\\> |\n"
        );
    }

    #[test]
    fn fields_of_rows_become_columns() {
        let rows = [serde_json::json!({"a": {"b": 1}, "c": [1, 2], "d": null})];
        let sheet = Sheet::of(&rows, &["a.b", "c", "d", "e.f"]).unwrap();
        assert_eq!(sheet.columns, ["a_b", "c", "d", "e_f"]);
        assert_eq!(sheet.rows, [["1", "1 2", "", ""]]);
    }
}
