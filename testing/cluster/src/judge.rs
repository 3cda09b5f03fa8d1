// SPDX-License-Identifier: Apache-2.0
//! Compares the first lines of a report with the truth of a scenario.

use crate::look::{Look, Named};
use crate::scenario::Truth;
use serde_json::Value;
use std::collections::BTreeSet;
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

/// Whether the other tools name what the report does, by the class of its first cause and all of
/// its ranks: `yes`, or what they name; `-` if none was asked. Of a slow job they need not name
/// anything.
#[must_use]
pub fn agreement(report: &Look, others: &[Named]) -> String {
    let class = report.answer["causes"][0]["name"].as_str();
    let ranks = report.answer["root_ranks"].as_array().into_iter().flatten();
    let ranks: BTreeSet<u64> = ranks.filter_map(Value::as_u64).collect();
    let is_slow = report.answer["state"] == "SLOW";
    let other = |named: &Named| {
        let is_part = named.ranks.as_ref().is_none_or(|other| other.is_subset(&ranks));
        if is_slow && named.classes.is_empty() && is_part {
            return None;
        }
        // A watchdog need not know a class.
        let knows_all = named.ranks.is_some();
        let has_class = match class {
            Some(class) if knows_all => named.classes.contains(class),
            Some(class) => named.classes.iter().all(|other| other == class),
            None => named.classes.is_empty(),
        };
        let has_ranks = named.ranks.as_ref().is_none_or(|other| *other == ranks);
        let classes: Vec<&str> = named.classes.iter().map(String::as_str).collect();
        let classes = if classes.is_empty() { "none".to_owned() } else { classes.join(" ") };
        let of = named.ranks.as_ref().map_or_else(String::new, |ranks| {
            let ranks: Vec<String> = ranks.iter().map(u64::to_string).collect();
            format!(" [{}]", ranks.join(" "))
        });
        (!has_class || !has_ranks).then(|| format!("{}: {classes}{of}", named.tool))
    };
    let differ: Vec<String> = others.iter().filter_map(other).collect();
    match (others.is_empty(), differ.is_empty()) {
        (true, _) => "-".into(),
        (false, true) => "yes".into(),
        (false, false) => differ.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::slice;

    fn truth() -> Truth {
        Truth {
            states: vec!["HUNG".into()],
            classes: vec!["N3".into()],
            ranks: vec![vec![0, 1]],
            says: vec!["node1".into()],
            never: vec!["NVLink".into()],
            half: vec!["P1".into()],
            cost: None,
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

    #[test]
    fn tools_agree_by_class_and_ranks() {
        let report = |answer| Look { answer, ..Look::default() };
        let causes = json!([{"name": "call-not-enqueued"}]);
        let hung = report(json!({"classes": ["H1d"], "root_ranks": [1], "causes": causes}));
        let named = |tool, class: &[&str], ranks: Option<&[u64]>| Named {
            tool,
            classes: class.iter().map(|&class| class.to_owned()).collect(),
            ranks: ranks.map(|ranks| ranks.iter().copied().collect()),
        };
        assert_eq!(agreement(&hung, &[]), "-");
        let (top, why) =
            (named("top", &["call-not-enqueued"], Some(&[1])), named("why", &[], None));
        assert_eq!(agreement(&hung, &[top.clone(), why]), "yes");
        let others = [
            named("top", &["call-not-enqueued"], Some(&[0])),
            named("why", &["call-not-enqueued", "proxy-stalled"], None),
        ];
        assert_eq!(
            agreement(&hung, &others),
            "top: call-not-enqueued [0], why: call-not-enqueued proxy-stalled"
        );
        let silent = named("top", &[], Some(&[]));
        assert_eq!(agreement(&hung, slice::from_ref(&silent)), "top: none []");
        let fine = report(json!({"classes": [], "root_ranks": []}));
        assert_eq!(agreement(&fine, &[silent]), "yes");
        assert_eq!(agreement(&fine, slice::from_ref(&top)), "top: call-not-enqueued [1]");
        let causes = json!([{"name": "short-of-cpu"}]);
        let slow = json!({
            "state": "SLOW", "classes": ["S8"], "root_ranks": [1], "causes": causes,
        });
        let marked = [named("diagnose", &[], Some(&[])), named("top", &[], Some(&[1]))];
        assert_eq!(agreement(&report(slow.clone()), &marked), "yes");
        let differ = agreement(&report(slow), &[named("top", &[], Some(&[0])), top]);
        assert_eq!(differ, "top: none [0], top: call-not-enqueued [1]");
    }
}
