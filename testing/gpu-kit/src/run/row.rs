// SPDX-License-Identifier: Apache-2.0
//! The result of a part, as a row of the table and of the results.

use serde_json::{Map, Value, json};

/// The verdict on a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    /// The result differs from what is expected, or the part failed.
    Differs,
    Skipped,
}

impl Verdict {
    /// The verdict's name in the results.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Differs => "differs",
            Self::Skipped => "skipped",
        }
    }
}

/// The result of a part.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) verdict: Verdict,
    /// The measurements as text, or why there are none.
    pub(super) text: String,
    /// Numbers by name; the name ends with the unit.
    pub(super) figures: Map<String, Value>,
}

impl Found {
    /// A result from measurements, and whether they are as expected.
    pub(super) fn judged(is_expected: bool, text: String) -> Self {
        let verdict = if is_expected { Verdict::Ok } else { Verdict::Differs };
        Self { verdict, text, figures: Map::new() }
    }

    pub(super) fn differs(text: String) -> Self {
        Self::judged(false, text)
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skipped, text: why.into(), figures: Map::new() }
    }

    /// Adds a number.
    pub(super) fn figure(mut self, name: impl Into<String>, value: f64) -> Self {
        self.figures.insert(name.into(), json!(value));
        self
    }

    /// Adds numbers.
    pub(super) fn figures(mut self, all: impl IntoIterator<Item = (String, f64)>) -> Self {
        self.figures.extend(all.into_iter().map(|(name, value)| (name, json!(value))));
        self
    }
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) expected: &'static str,
    pub(super) seconds: f64,
    pub(super) found: Found,
}

impl Row {
    /// The row in the results.
    pub(super) fn json(&self) -> Value {
        let Found { verdict, text, figures } = &self.found;
        let (measured, why) = match verdict {
            Verdict::Skipped => (None, Some(text)),
            _ => (Some(text), None),
        };
        json!({
            "id": self.id,
            "title": self.title,
            "expected": self.expected,
            "measured": measured,
            "verdict": verdict.word(),
            "why": why,
            "seconds": self.seconds,
            "figures": figures,
        })
    }
}

/// The rows as a Markdown table, for use in a page.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| id | part | expected | measured | verdict |\n| --- | --- | --- | --- | --- |\n",
    );
    for Row { id, title, expected, found, .. } in rows {
        let (measured, verdict) = match found.verdict {
            Verdict::Skipped => ("-", format!("skipped: {}", found.text)),
            other => (found.text.as_str(), other.word().to_owned()),
        };
        let cells = [id, title, expected, &measured, &verdict.as_str()];
        let cells: Vec<String> =
            cells.iter().map(|c| c.replace('|', "/").replace('\n', " ")).collect();
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_why_it_was_skipped_and_what_was_measured() {
        let row = |found| Row { id: "3", title: "t", expected: "e", seconds: 1.0, found };
        let skipped = row(Found::skipped("no GPU"));
        let measured = row(Found::judged(true, "5 | 6".into()).figure("a_ns", 5.0));
        assert_eq!(skipped.json()["why"], "no GPU");
        assert_eq!(skipped.json()["measured"], Value::Null);
        assert_eq!(measured.json()["figures"]["a_ns"], 5.0);
        let text = table(&[skipped, measured]);
        assert!(text.contains("| - | skipped: no GPU |\n"), "{text}");
        assert!(text.ends_with("| 3 | t | e | 5 / 6 | ok |\n"), "{text}");
    }
}
