// SPDX-License-Identifier: Apache-2.0
//! Ranks that files do not have: positions, in the order of the numbers in the files' names.

use crate::human;

/// Maximum number of ranks whose places a note lists.
const LISTED: usize = 16;

/// A name in parts, such that `rank10` comes after `rank9`.
#[must_use]
pub fn by_numbers(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0_u64)];
    let mut is_number = false;
    for letter in name.chars() {
        let digit = letter.to_digit(10).map(u64::from);
        if is_number && digit.is_none() {
            parts.push((String::new(), 0));
        }
        is_number = digit.is_some();
        let Some((text, number)) = parts.last_mut() else { continue };
        match digit {
            Some(digit) => *number = number.saturating_mul(10).saturating_add(digit),
            None => text.push(letter),
        }
    }
    parts
}

/// Lists which position is what: `0 is process 7 on GPU 0 in a.sqlite, 1 is ...`.
#[must_use]
pub fn list(places: impl Iterator<Item = (u32, String)>) -> String {
    let mut listed: Vec<String> = places.map(|(at, what)| format!("{at} is {what}")).collect();
    let more = listed.len().saturating_sub(LISTED);
    if more > 0 {
        listed.truncate(LISTED);
        listed.push(human::count(more, "more rank"));
    }
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_the_order_of_their_numbers() {
        let mut names = ["r10.sqlite", "r9.sqlite", "q.2/r1.sqlite", "q.10/r0.sqlite"];
        names.sort_by_cached_key(|name| by_numbers(name));
        assert_eq!(names, ["q.2/r1.sqlite", "q.10/r0.sqlite", "r9.sqlite", "r10.sqlite"]);
    }
}
