// SPDX-License-Identifier: Apache-2.0
//! Limits on the tokens and the complexity of a function outside tests: lines alone reward packing.

use std::collections::BTreeSet;

use super::size::{Function, functions};
use super::source::Source;
use super::tokens::{complexity, tokens};
use super::violation::Violation;

/// Maximum number of tokens of a function.
const TOKENS_MAX: usize = 600;
/// Maximum cyclomatic complexity of a function.
const COMPLEXITY_MAX: usize = 25;

/// A function that is over a limit, with the most tokens and complexity that it may have.
struct Kept(&'static str, &'static str, usize, usize);

/// The functions that are over a limit. The list and its numbers may only become smaller.
const KEPT: &[Kept] = &[
    Kept("crates/agent/src/agent.rs", "run", 659, 18),
    Kept("crates/cli/src/cmd/compare.rs", "run", 667, 23),
    Kept("crates/cli/src/cmd/diagnose.rs", "run", 847, 28),
    Kept("crates/cli/src/cmd/stragglers.rs", "read", 665, 25),
    Kept("crates/cli/src/cmd/stragglers.rs", "run", 603, 27),
    Kept("crates/cli/src/run_input/input.rs", "open_all", 631, 13),
    Kept("crates/compare/src/rows.rs", "compare", 681, 6),
    Kept("crates/compare/src/rows.rs", "judge", 468, 29),
    Kept("crates/diagnose/src/classify.rs", "desync_verdict", 786, 16),
    Kept("crates/diagnose/src/classify.rs", "evidence_lines", 620, 12),
    Kept("crates/diagnose/src/classify.rs", "verdicts", 805, 14),
    Kept("crates/diagnose/src/classify/cycle.rs", "cycle_verdict", 773, 15),
    Kept("crates/diagnose/src/classify/cycle.rs", "other_order", 631, 9),
    Kept("crates/diagnose/src/classify/differs.rs", "differs_verdict", 747, 11),
    Kept("crates/diagnose/src/ended_first.rs", "verdict", 651, 10),
    Kept("crates/diagnose/src/input/pickle.rs", "container", 361, 26),
    Kept("crates/diagnose/src/input/pickle.rs", "step", 306, 27),
    Kept("crates/diagnose/src/input/ras/fill.rs", "fill", 626, 10),
    Kept("crates/diagnose/src/input/recording.rs", "fill_counts", 855, 21),
    Kept("crates/diagnose/src/recorded/awaited.rs", "awaited", 622, 10),
    Kept("crates/diagnose/src/settings.rs", "steps_differ", 664, 13),
    Kept("crates/diagnose/src/text.rs", "one", 618, 18),
    Kept("crates/metrics/src/collect/settle.rs", "add", 671, 11),
    Kept("crates/metrics/src/collect/settle.rs", "look", 647, 20),
    Kept("crates/metrics/src/encode/point.rs", "fill", 762, 21),
    Kept("crates/operations/src/progress/ops.rs", "look", 662, 23),
    Kept("crates/findings/src/serial.rs", "serialize", 423, 29),
    Kept("crates/page/src/latency.rs", "chart", 628, 4),
    Kept("crates/process/src/symbols.rs", "read", 497, 37),
    Kept("crates/report/src/groups.rs", "finish", 746, 15),
    Kept("crates/report/src/rows.rs", "row", 880, 11),
    Kept("crates/report/src/unknowable.rs", "add", 733, 11),
    Kept("crates/runtime/src/watchdog/detect.rs", "suspects", 691, 11),
    Kept("crates/runtime/src/watchdog/mod.rs", "look", 642, 11),
    Kept("crates/runtime/src/watchdog/report.rs", "tell_op", 610, 5),
    Kept("crates/simulate/src/inject.rs", "fits", 401, 38),
    Kept("crates/simulate/src/inject.rs", "slow", 657, 21),
    Kept("crates/simulate/src/model/solve.rs", "collective", 607, 4),
    Kept("crates/stragglers/src/clock.rs", "fit", 695, 6),
    Kept("crates/stragglers/src/input/inspector.rs", "workers", 649, 10),
    Kept("crates/stragglers/src/report.rs", "analyze_in_detail", 673, 10),
    Kept("crates/stragglers/src/steps.rs", "marked", 621, 6),
    Kept("crates/stragglers/src/steps.rs", "repeating", 660, 5),
    Kept("crates/top/src/judge.rs", "flags", 832, 19),
    Kept("crates/top/src/view/paint.rs", "table", 751, 8),
    Kept("crates/trace/src/lanes_file.rs", "adopt", 399, 29),
    Kept("crates/trace/src/layout.rs", "decode", 708, 10),
    Kept("crates/trace/src/layout.rs", "encode", 667, 5),
    Kept("testing/cluster/src/bin/client.rs", "word", 573, 46),
    Kept("testing/cluster/src/program.rs", "word", 338, 27),
    Kept("testing/cpu-cuda/src/device.rs", "attribute", 182, 26),
    Kept("testing/cpu-cuda/src/player/fake.rs", "add_rank", 628, 7),
    Kept("testing/cpu-cuda/src/player/faults.rs", "kind", 342, 30),
    Kept("testing/gpu-kit/src/run/cost.rs", "graphs", 716, 15),
    Kept("testing/rig/src/scenario.rs", "run", 768, 55),
    Kept("testing/rig/src/step.rs", "fmt", 488, 32),
    Kept("testing/rig/src/step.rs", "from_str", 671, 64),
];

/// Functions of a file that are over a limit and not kept, or that need no row any more.
pub(super) fn check(source: &Source) -> Vec<Violation> {
    judge(source, KEPT)
}

/// Rows for files that are gone.
pub(super) fn gone(paths: &BTreeSet<String>) -> Vec<Violation> {
    let gone = KEPT.iter().filter(|Kept(path, ..)| !paths.contains(*path));
    gone.map(Kept::is_stale).collect()
}

impl Kept {
    fn is_for(&self, path: &str, name: &str) -> bool {
        self.0 == path && self.1 == name
    }

    fn is_stale(&self) -> Violation {
        let Kept(path, name, ..) = self;
        let message = format!("`{name}` is within the limits: delete its row in tidy/large.rs");
        Violation::new(path, 1, message)
    }
}

fn judge(source: &Source, kept: &[Kept]) -> Vec<Violation> {
    let (mut found, mut large) = (Vec::new(), BTreeSet::new());
    for Function { name, line, text, .. } in functions(source).into_iter().filter(|f| !f.is_test) {
        let tokens = tokens(text);
        let (count, paths) = (tokens.len(), complexity(&tokens));
        if count <= TOKENS_MAX && paths <= COMPLEXITY_MAX {
            continue;
        }
        let row = kept.iter().find(|row| row.is_for(&source.path, &name));
        let (most, most_paths) = row.map_or((TOKENS_MAX, COMPLEXITY_MAX), |row| (row.2, row.3));
        if count > most || paths > most_paths {
            let message = format!(
                "function `{name}` of {count} tokens (limit {most}), complexity {paths} (limit \
                 {most_paths})"
            );
            found.push(Violation::new(&source.path, line, message));
        }
        large.insert(name);
    }
    let stale = kept.iter().filter(|row| row.0 == source.path && !large.contains(row.1));
    found.extend(stale.map(Kept::is_stale));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of `tokens` tokens and this complexity.
    fn function(tokens: usize, complexity: usize) -> String {
        let branches = "if a {} ".repeat(complexity - 1);
        format!("fn f() {{ {branches}{} }}\n", "; ".repeat(tokens - 6 - 4 * (complexity - 1)))
    }

    fn judged(code: String, kept: &[Kept]) -> Vec<String> {
        let found = judge(&Source::new("crates/x/src/a.rs", code), kept);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limits_are_inclusive() {
        assert!(judged(function(TOKENS_MAX, COMPLEXITY_MAX), &[]).is_empty());
        let found = judged(function(TOKENS_MAX + 1, 1), &[]);
        assert!(found[0].contains("`f` of 601 tokens (limit 600)"), "{found:?}");
        let found = judged(function(200, COMPLEXITY_MAX + 1), &[]);
        assert!(found[0].contains("complexity 26 (limit 25)"), "{found:?}");
        let test = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(900, 1));
        assert!(judged(test, &[]).is_empty());
    }

    #[test]
    fn kept_functions_may_only_become_smaller() {
        let kept = [Kept("crates/x/src/a.rs", "f", 700, 30)];
        assert!(judged(function(700, 30), &kept).is_empty());
        assert!(judged(function(610, 1), &kept).is_empty());
        assert_eq!(judged(function(701, 30), &kept).len(), 1);
        assert_eq!(judged(function(700, 31), &kept).len(), 1);
        let found = judged(function(TOKENS_MAX, 1), &kept);
        assert!(found[0].contains("`f` is within the limits: delete its row"), "{found:?}");
    }

    #[test]
    fn rows_of_files_that_are_gone_are_found() {
        assert_eq!(gone(&BTreeSet::new()).len(), KEPT.len());
    }
}
