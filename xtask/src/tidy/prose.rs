// SPDX-License-Identifier: Apache-2.0
//! Phrases that make pages need a second reading: chains of relative clauses, comparatives without
//! what they compare with, verbs that hide who acts. Their number in all Markdown has a limit.

use std::collections::{BTreeMap, BTreeSet};

use super::links::prose;
use super::violation::Violation;
use crate::outcome::Outcome;

/// The phrases. One with a capital counts only where a sentence begins.
const PHRASES: [&str; 11] = [
    "of which",
    "for which",
    "that of",
    "those of",
    "Of a",
    "Of the",
    "the others",
    "beside",
    "told",
    "tells",
    "alike",
];

/// The number that the pages had when they were rewritten. It may become smaller.
const LIMIT: usize = 40;

/// One violation if the pages have more phrases than the limit.
pub(super) fn check(paths: &BTreeSet<String>) -> Outcome<Vec<Violation>> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for path in paths.iter().filter(|path| path.ends_with(".md")) {
        for phrase in found(&std::fs::read_to_string(path)?) {
            *counts.entry(phrase).or_default() += 1;
        }
    }
    Ok(too_many(&counts, LIMIT).into_iter().collect())
}

fn too_many(counts: &BTreeMap<&str, usize>, limit: usize) -> Option<Violation> {
    let sum: usize = counts.values().sum();
    let each: Vec<String> = counts.iter().map(|(phrase, n)| format!("\"{phrase}\" {n}")).collect();
    let each = each.join(", ");
    let message =
        format!("{sum} phrases in Markdown that are hard to read (limit {limit}): {each}");
    (sum > limit).then(|| Violation::new("CONTRIBUTING.md", 1, message))
}

/// The phrases of a page, without code, also across the ends of lines.
fn found(text: &str) -> Vec<&'static str> {
    let words = words(text);
    let mut found = Vec::new();
    for start in 0..words.len() {
        found.extend(PHRASES.into_iter().filter(|phrase| is_at(phrase, &words[start..])));
    }
    found
}

/// The words of a page's prose. Code between backquotes is one word.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (_, line) in prose(text) {
        for (place, part) in line.split('`').enumerate() {
            if place % 2 == 1 {
                words.push("`");
            } else {
                let parts = part.split(|c: char| !c.is_alphanumeric());
                words.extend(parts.filter(|word| !word.is_empty()));
            }
        }
    }
    words
}

/// Whether the words begin with the phrase.
fn is_at(phrase: &str, words: &[&str]) -> bool {
    let parts: Vec<&str> = phrase.split(' ').collect();
    let Some(start) = words.get(..parts.len()) else { return false };
    match phrase.starts_with(char::is_uppercase) {
        true => start == parts,
        false => start.iter().zip(parts).all(|(word, part)| word.eq_ignore_ascii_case(part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_counted_in_prose() {
        let text = "Of a run, of\nwhich it `tells` that\n```\nof which\n```\nthat of others; \
                    Besides, of a run. The others";
        assert_eq!(found(text), ["Of a", "of which", "that of", "the others"]);
        assert_eq!(found("part of `x` which"), [""; 0]);
    }

    #[test]
    fn more_than_the_limit_are_a_violation() {
        let counts = BTreeMap::from([("of which", 2), ("told", 1)]);
        assert!(too_many(&counts, 3).is_none());
        let found = too_many(&counts, 2).expect("one too many").to_string();
        assert!(found.contains("3 phrases") && found.contains("\"told\" 1"), "{found}");
    }
}
