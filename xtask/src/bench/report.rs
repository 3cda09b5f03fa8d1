// SPDX-License-Identifier: Apache-2.0
//! Compares measurements with the promised bounds: a table for people, JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::bounds::{BOUNDS, Bound, Take};
use super::runs::{Runs, Series};

/// One bound with its measurement.
#[derive(Debug)]
pub(super) struct Row {
    bound: &'static Bound,
    /// The number that is compared with the limit, if there is one.
    measured: Option<f64>,
    pub(super) verdict: Verdict,
    /// The parts of the number.
    detail: String,
}

/// The result for a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Over,
    /// Too few rounds are usable: the others lost events, or were dominated by noise.
    Invalid,
}

impl Verdict {
    const fn text(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Over => "OVER",
            Verdict::Invalid => "INVALID",
        }
    }
}

/// All bounds, compared with `runs`.
pub(super) fn rows(runs: &Runs) -> Vec<Row> {
    BOUNDS.iter().map(|bound| row(bound, runs)).collect()
}

fn row(bound: &'static Bound, runs: &Runs) -> Row {
    let figure = (bound.measure)(runs);
    let measured = match bound.take {
        Take::Median => figure.series.median(),
        Take::Worst => figure.series.max(),
    };
    let (verdict, mut detail) = verdict(&figure.series, measured, bound);
    for (unit, part) in &figure.parts {
        if let Some(median) = part.median() {
            let _ = write!(detail, "; {median:.1} {unit}");
        }
    }
    Row { bound, measured, verdict, detail: detail.trim_start_matches("; ").to_owned() }
}

/// The verdict, and how many rounds were not used.
fn verdict(series: &Series, measured: Option<f64>, bound: &Bound) -> (Verdict, String) {
    let (numbers, rounds) = series.sorted();
    let left_out = rounds - numbers.len();
    let detail = match left_out {
        0 => String::new(),
        _ => format!("{left_out} of {rounds} rounds invalid"),
    };
    let enough = match bound.take {
        Take::Median => 2 * numbers.len() > rounds,
        Take::Worst => left_out == 0,
    };
    let verdict = match measured {
        Some(_) if !enough => Verdict::Invalid,
        Some(measured) if measured <= bound.limit => Verdict::Ok,
        Some(_) => Verdict::Over,
        None => Verdict::Invalid,
    };
    (verdict, detail)
}

/// The table: bound, measured number, limit, verdict, and the parts of the number.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let head = ("what", "measured", "bound", "", "median of the rounds");
    let _ =
        writeln!(text, "{:<66} {:>12} {:>12}  {:<8} {}", head.0, head.1, head.2, head.3, head.4);
    for Row { bound: Bound { what, limit, unit, .. }, measured, verdict, detail } in rows {
        let measured = measured.map_or_else(|| "-".into(), |number| shown(number, unit));
        let (limit, verdict) = (shown(*limit, unit), verdict.text());
        let _ = writeln!(text, "{what:<66} {measured:>12} {limit:>12}  {verdict:<8} {detail}");
    }
    text.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

fn shown(number: f64, unit: &str) -> String {
    match unit {
        "x" => format!("{number:.2}x"),
        "calls" | "events" => format!("{number:.0} {unit}"),
        _ => format!("{number:.1} {unit}"),
    }
}

/// The rows as JSON, with everything that the driver printed.
pub(super) fn json(rows: &[Row], runs: &Runs, rounds: usize) -> String {
    let rows = rows.iter().map(|Row { bound, measured, verdict, detail }| {
        json!({
            "what": bound.what,
            "measured": measured,
            "bound": bound.limit,
            "unit": bound.unit,
            "verdict": verdict.text().to_lowercase(),
            "detail": detail,
        })
    });
    let runs = runs.all().map(|(load, plugin, is_valid, result)| {
        json!({"load": load, "plugin": plugin, "valid": is_valid, "result": result})
    });
    let all = json!({
        "schema": "ncclscope.bench/1",
        "rounds": rounds,
        "machine": machine(),
        "rows": rows.collect::<Vec<_>>(),
        "runs": runs.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

/// Name and number of the processors.
fn machine() -> Value {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut names = text.lines().filter_map(|line| line.strip_prefix("model name"));
    let name = names.next().and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    json!({"processor": name, "processors": count})
}

#[cfg(test)]
mod tests {
    use super::super::loads::{OFF, ONE, OURS, SIXTEEN, UNASKED};
    use super::*;

    fn runs() -> Runs {
        let mut runs = Runs::default();
        let init = |ms: f64, nulls: Value| json!({"init_ms": ms, "null_handles": nulls});
        for ms in [1.0, 1.5, 9.0] {
            runs.add(ONE, OURS, init(ms, json!({})));
        }
        for (ms, nulls) in [(1.0, json!({})), (1.0, json!({"Coll": 1})), (1.0, json!({"P2p": 2}))] {
            runs.add(SIXTEEN, OURS, init(ms, nulls));
        }
        for calls in [0, 1, 0] {
            runs.add(UNASKED, OFF, json!({"calls": calls, "null_handles": {}}));
        }
        runs
    }

    fn line(text: &str, what: &str) -> String {
        let line = text.lines().find(|line| line.starts_with(what)).expect(what);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_table_says_what_holds() {
        let text = table(&rows(&runs()));
        assert_eq!(line(&text, "init, one"), "init, one communicator 1.5 ms 2.0 ms ok");
        assert_eq!(
            line(&text, "init, 16"),
            "init, 16 communicators 1.0 ms 2.0 ms INVALID 2 of 3 rounds invalid"
        );
        assert_eq!(
            line(&text, "callbacks with"),
            "callbacks with NCCLSCOPE_MODE=off 1 calls 0 calls OVER"
        );
        assert_eq!(line(&text, "idle"), "idle processor time in 5 s - 5.0 ms INVALID");
    }

    #[test]
    fn the_json_says_the_same() {
        let runs = runs();
        let json: Value = serde_json::from_str(&json(&rows(&runs), &runs, 3)).expect("it is JSON");
        let rows = json["rows"].as_array().expect("there are rows");
        let row = rows.iter().find(|row| row["what"] == "init, one communicator").expect("a row");
        assert_eq!(row["verdict"], "ok");
        assert_eq!(row["measured"], 1.5);
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(9));
    }
}
