// SPDX-License-Identifier: Apache-2.0
//! Compares the first five lines of `ncclscope report` with what was planted.

use std::collections::BTreeSet;

use serde_json::Value;

use super::score::Cause;

/// Number of lines that are checked.
const LINES: usize = 5;
/// Maximum number of ranks of a cause that the lines name one by one.
const NAMED: usize = 2;
/// The expected line if ranks made different calls and do not wait.
const NONE_WAITS: &str = "CANNOT TELL  no rank waits, and ranks made different calls";
/// Maximum number of lines of the report.
const SCREEN: usize = 60;

/// The mistake in a report's text or its JSON `answer`; `None` if both are right.
pub(super) fn mistake(
    text: &str,
    answer: &Value,
    planted: &[Cause],
    hangs: bool,
) -> Option<String> {
    let first: Vec<&str> = text.lines().take(LINES).collect();
    let head = first.join("\n");
    let is_gone = |cause: &Cause| cause.class.code() == "H1b";
    let state = match planted {
        [] => "FINE",
        // The others waited for a process that had ended; a stopped one exists.
        _ if planted.iter().all(is_gone) && head.starts_with("CRASHED") => "CRASHED",
        _ if hangs => "HUNG",
        _ => "SLOW",
    };
    // Ranks that made different calls need not wait for one another.
    let is_mismatch = |cause: &Cause| matches!(cause.class.code(), "H2" | "H2b");
    let is_over = hangs && planted.iter().all(is_mismatch) && head.starts_with(NONE_WAITS);
    if !head.starts_with(state) && !is_over {
        return Some(format!("the report says {:?} for {state}", first.first()));
    }
    if text.lines().count() > SCREEN {
        return Some(format!("the report has {} lines", text.lines().count()));
    }
    let ranks: BTreeSet<u64> = planted.iter().flat_map(|cause| cause.ranks.clone()).collect();
    let said: BTreeSet<u64> =
        answer["root_ranks"].as_array()?.iter().filter_map(Value::as_u64).collect();
    if ranks != said {
        return Some(format!("the report names ranks {said:?} for {ranks:?}"));
    }
    let is_named = |cause: &Cause| head.contains(cause.class.code());
    if let Some(cause) = planted.iter().find(|cause| !is_named(cause)) {
        return Some(format!("the report does not say {}", cause.class.code()));
    }
    let missing = |rank: &&u64| !head.contains(&format!("rank {rank} "));
    let unnamed = ranks.iter().find(missing).filter(|_| ranks.len() <= NAMED);
    unnamed.map(|rank| format!("the report's first lines do not name rank {rank}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_wrong_state_class_or_rank_is_a_mistake() {
        let planted = [Cause { class: "H1a".parse().expect("a class"), ranks: [10].into() }];
        let text = "HUNG  since x\nwho   rank 10 (n)\nwhy   H1a host-stuck\n";
        let answer = |ranks: &[u64]| json!({"root_ranks": ranks});
        let wrong = |text: &str, ranks: &[u64]| mistake(text, &answer(ranks), &planted, true);
        assert_eq!(wrong(text, &[10]), None);
        assert!(wrong(text, &[1]).is_some());
        assert!(wrong(&text.replace("HUNG", "SLOW"), &[10]).is_some());
        assert!(wrong(&text.replace("H1a", "H1b"), &[10]).is_some());
        assert!(wrong(&text.replace("rank 10", "rank 1"), &[10]).is_some());
        assert!(wrong(&(text.to_owned() + &"x\n".repeat(SCREEN)), &[10]).is_some());
        assert_eq!(mistake("FINE  x", &answer(&[]), &[], false), None);
        let planted = [Cause { class: "H2".parse().expect("a class"), ranks: [10].into() }];
        let text = format!("{NONE_WAITS}: x\nwho   rank 10 (n)\nwhy   H2 call-mismatch\n");
        assert_eq!(mistake(&text, &answer(&[10]), &planted, true), None);
        assert!(mistake(&text, &answer(&[10]), &planted, false).is_some());
    }
}
