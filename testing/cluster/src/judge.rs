// SPDX-License-Identifier: Apache-2.0
//! Compares the first lines of a report with the truth of a scenario.

use crate::look::Look;
use crate::scenario::Truth;
use serde_json::Value;
use std::fmt;

/// Where the first five lines lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the cause.
    Yes,
    /// Half way: the state is right or unknown, and nothing wrong is named.
    Half,
    /// To something else.
    Misleading,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Yes => "yes",
            Verdict::Half => "half",
            Verdict::Misleading => "misleading",
        })
    }
}

/// Judges a look, with the reason why it is not right.
#[must_use]
pub fn judge(truth: &Truth, look: &Look) -> (Verdict, String) {
    let lines = look.lines.join("\n");
    if let Some(text) = truth.never.iter().find(|text| lines.contains(*text)) {
        return (Verdict::Misleading, format!("says {text}"));
    }
    let answer = &look.answer;
    let state = answer["state"].as_str().unwrap_or_default();
    // The tool's refusal to answer, as a state.
    let state = if answer.is_null() { "NOTHING" } else { state };
    if !truth.states.iter().any(|right| right == state) {
        let is_open = ["UNKNOWN", "NOTHING"].contains(&state);
        let verdict = if is_open { Verdict::Half } else { Verdict::Misleading };
        return (verdict, format!("state {state}"));
    }
    let class = answer["classes"][0].as_str().unwrap_or("none");
    if !truth.classes.is_empty() && !truth.classes.iter().any(|right| right == class) {
        let is_half = class == "none" || truth.half.iter().any(|half| half == class);
        let verdict = if is_half { Verdict::Half } else { Verdict::Misleading };
        return (verdict, format!("class {class}"));
    }
    let ranks = answer["root_ranks"].as_array().into_iter().flatten();
    let ranks: Vec<u32> =
        ranks.filter_map(Value::as_u64).filter_map(|rank| rank.try_into().ok()).collect();
    if !truth.ranks.is_empty() && !truth.ranks.contains(&ranks) {
        let is_part = truth.ranks.iter().any(|right| right.iter().any(|it| ranks.contains(it)));
        let verdict = if is_part || ranks.is_empty() { Verdict::Half } else { Verdict::Misleading };
        return (verdict, format!("ranks {ranks:?}"));
    }
    match truth.says.iter().find(|text| !lines.contains(*text)) {
        Some(text) => (Verdict::Half, format!("does not say {text}")),
        None => (Verdict::Yes, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn truth() -> Truth {
        Truth {
            states: vec!["HUNG".into()],
            classes: vec!["N3".into()],
            ranks: vec![vec![0, 1]],
            says: vec!["node1".into()],
            never: vec!["NVLink".into()],
            half: vec!["P1".into()],
        }
    }

    #[test]
    fn the_first_lines_are_compared_with_the_truth() {
        let look = |state: &str, class: &str, ranks: &[u32], line: &str| Look {
            lines: vec![line.to_owned()],
            answer: json!({"state": state, "classes": [class], "root_ranks": ranks}),
        };
        let of = |look: &Look| judge(&truth(), look).0;
        assert_eq!(of(&look("HUNG", "N3", &[0, 1], "on node1")), Verdict::Yes);
        assert_eq!(of(&look("HUNG", "N3", &[0, 1], "on node2")), Verdict::Half);
        assert_eq!(of(&look("HUNG", "N3", &[1], "on node1")), Verdict::Half);
        assert_eq!(of(&look("HUNG", "N3", &[2], "on node1")), Verdict::Misleading);
        assert_eq!(of(&look("HUNG", "P1", &[0, 1], "on node1")), Verdict::Half);
        assert_eq!(of(&look("HUNG", "H3c", &[0, 1], "on node1")), Verdict::Misleading);
        assert_eq!(of(&look("SLOW", "N3", &[0, 1], "on node1")), Verdict::Misleading);
        assert_eq!(of(&look("UNKNOWN", "N3", &[], "")), Verdict::Half);
        assert_eq!(of(&look("HUNG", "N3", &[0, 1], "node1 NVLink")), Verdict::Misleading);
        assert_eq!(of(&Look::default()), Verdict::Half);
    }
}
