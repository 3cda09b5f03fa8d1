// SPDX-License-Identifier: Apache-2.0
/*!
The offset between a trace's clock and a recording's.

Both are `CLOCK_REALTIME`, so that the offset is small if the trace was taken on the recording's
host and the clock was not set in between. This module does not assume that: each kernel votes for
its distance to every launch that it may belong to, and the distance with the most votes is the
offset. Training steps that are identical to the microsecond give several such distances. Then the
smallest is taken; if it is neither small nor much smaller than the next, it is called ambiguous.
*/

use std::collections::HashMap;

/// Width of a window of votes: calls are recorded a little later than PyTorch begins them, and the
/// delay varies by about this much.
const WINDOW_NS: i64 = 500_000;
/// Most kernels that vote.
const VOTERS: usize = 256;
/// Number of launches that a kernel votes for: those nearest in time.
const CANDIDATES: usize = 4096;
/// Cost of a kernel without a vote in a window: half of the mean cost of a random vote.
const ABSENT_NS: i64 = WINDOW_NS / 8;
/// Least difference, per kernel, by which votes for the right distance vary.
const CHANCE_NS: i64 = 5_000;
/// Greatest offset of clocks that count as equal.
const SMALL_NS: i64 = 1_000_000;
/// An offset that is this many times as large as another one is not its rival.
const MUCH: i64 = 10;

/// The offset of two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// The trace's clock minus the recording's, ns.
    pub ns: i64,
    /// Another offset fits about as well.
    pub is_ambiguous: bool,
}

impl Offset {
    /// The median of known distances; `distances` must not be empty.
    #[must_use]
    pub fn known(mut distances: Vec<i64>) -> Offset {
        distances.sort_unstable();
        let ns = distances.get(distances.len() / 2).copied().unwrap_or(0);
        Offset { ns, is_ambiguous: false }
    }
}

/// A distance in ns, and the index of the kernel that votes for it.
type Vote = (i64, usize);

/// The offset that most kernels vote for. `kernels` are times with the kernels' indices, `launches`
/// sorted times; `can_be` says whether a kernel may belong to a launch. Without any vote the offset
/// is 0.
pub(crate) fn vote(
    kernels: &[(i64, usize)],
    launches: &[i64],
    can_be: impl Fn(usize, usize) -> bool,
) -> Offset {
    let stride = kernels.len().div_ceil(VOTERS).max(1);
    let voters: Vec<(i64, usize)> = kernels.iter().step_by(stride).copied().collect();
    let mut votes: Vec<Vote> = Vec::new();
    for (voter, &(time, kernel)) in voters.iter().enumerate() {
        let near = launches.partition_point(|&launch| launch < time);
        let first = near.saturating_sub(CANDIDATES / 2);
        let range = first..(near + CANDIDATES / 2).min(launches.len());
        let candidates = range.filter(|&launch| can_be(kernel, launch));
        votes.extend(candidates.map(|launch| (time - launches[launch], voter)));
    }
    votes.sort_unstable();
    let peaks = peaks(&votes, voters.len());
    let most = peaks.iter().map(|peak| peak.voters).max().unwrap_or(0);
    let peaks: Vec<Sharp> =
        peaks.iter().map(|peak| sharpen(&votes[peak.from..peak.to], most)).collect();
    let Some(least) = peaks.iter().map(|peak| peak.cost_ns).min() else {
        return Offset::default();
    };
    // Costs up to this limit differ from the least only by chance.
    let limit = 2 * least + CHANCE_NS * signed(most);
    let rivals: Vec<Sharp> = peaks.into_iter().filter(|peak| peak.cost_ns <= limit).collect();
    let ns = rivals.iter().map(|peak| peak.ns).min_by_key(|ns| ns.abs()).unwrap_or(0);
    let is_near = |rival: &Sharp| rival.ns.abs() < MUCH * ns.abs();
    let has_rival = rivals.iter().any(|it| (it.ns - ns).abs() > 2 * WINDOW_NS && is_near(it));
    Offset { ns, is_ambiguous: has_rival && ns.abs() > SMALL_NS }
}

/// A window of votes.
#[derive(Clone, Copy, Debug)]
struct Peak {
    from: usize,
    to: usize,
    last: i64,
    voters: usize,
}

/// Windows that do not overlap and have at least half as many voters as the best. The right window
/// may have fewer than the best, because a recording of only a part of the trace may look like
/// another part.
fn peaks(votes: &[Vote], voters: usize) -> Vec<Peak> {
    let mut counts = vec![0u32; voters];
    let (mut distinct, mut from) = (0, 0);
    let mut windows: Vec<Peak> = Vec::new();
    for (at, &(last, voter)) in votes.iter().enumerate() {
        distinct += usize::from(counts[voter] == 0);
        counts[voter] += 1;
        while last - votes[from].0 > WINDOW_NS {
            let left = votes[from].1;
            counts[left] -= 1;
            distinct -= usize::from(counts[left] == 0);
            from += 1;
        }
        let peak = Peak { from, to: at + 1, last, voters: distinct };
        match windows.last_mut() {
            // Of overlapping windows the one with most voters is kept.
            Some(before) if before.last + WINDOW_NS > last => {
                if before.voters < distinct {
                    *before = peak;
                }
            }
            _ => windows.push(peak),
        }
    }
    let most = windows.iter().map(|peak| peak.voters).max().unwrap_or(0);
    windows.retain(|peak| peak.voters * 2 >= most);
    windows
}

/// The best distance within a window.
#[derive(Clone, Copy, Debug)]
struct Sharp {
    ns: i64,
    /// Sum over the voters of the distance of their nearest vote.
    cost_ns: i64,
}

/// The distance in a window with the least cost. `most` is the greatest number of voters of any
/// window; voters that are missing here cost [`ABSENT_NS`].
fn sharpen(votes: &[Vote], most: usize) -> Sharp {
    let mut by_voter: HashMap<usize, Vec<i64>> = HashMap::new();
    for &(distance, voter) in votes {
        by_voter.entry(voter).or_default().push(distance);
    }
    let absent = ABSENT_NS * signed(most - by_voter.len().min(most));
    let cost = |offset: i64| -> i64 {
        let nearest = |mine: &Vec<i64>| mine.iter().map(|it| (it - offset).abs()).min();
        by_voter.values().filter_map(nearest).sum::<i64>() + absent
    };
    let stride = votes.len().div_ceil(VOTERS).max(1);
    let candidates = votes.iter().step_by(stride).map(|&(ns, _)| Sharp { ns, cost_ns: cost(ns) });
    candidates.min_by_key(|it| it.cost_ns).unwrap_or(Sharp { ns: 0, cost_ns: absent })
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a distance to a cost.
#[expect(clippy::cast_precision_loss, reason = "distances stay far below 2^53")]
pub(crate) fn to_f64(ns: i64) -> f64 {
    ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: i64 = 1_700_000_000_000_000_000;

    /// Times of 40 kernels, 10 ms apart with a jitter of some ms, and their indices.
    fn kernels(jitter: i64) -> Vec<(i64, usize)> {
        let time = |i: i64| BASE + i * 10_000_000 + (i * i * i % 97) * jitter;
        (0..40).map(time).zip(0..).collect()
    }

    #[test]
    fn a_clock_that_is_hours_off_is_found_by_the_rhythm() {
        let kernels = kernels(30_000);
        let shift = 9_876_543_210_123;
        // The recording began later, ends later and lacks one launch; calls are recorded 20 to 60
        // us late.
        let launches: Vec<i64> = (5..60)
            .filter(|&i| i != 20)
            .map(|i: i64| {
                BASE + i * 10_000_000 + (i * i * i % 97) * 30_000 + i % 5 * 10_000 - shift
            })
            .collect();
        let found = vote(&kernels, &launches, |_, _| true);
        assert!(!found.is_ambiguous);
        assert!((found.ns - shift).abs() < 60_000, "{found:?}");
    }

    #[test]
    fn a_perfect_rhythm_is_ambiguous_unless_the_clocks_agree() {
        let kernels = kernels(0);
        let launches = |shift: i64| -> Vec<i64> {
            (0..80).map(|i| BASE + i * 10_000_000 - 400_000_000 - shift).collect()
        };
        let found = vote(&kernels, &launches(20_000), |_, _| true);
        assert_eq!(found, Offset { ns: 20_000, is_ambiguous: false });
        let found = vote(&kernels, &launches(3_000_000), |_, _| true);
        assert_eq!(found, Offset { ns: 3_000_000, is_ambiguous: true });
        // The next candidate is 10 ms away.
        let found = vote(&kernels, &launches(990_000), |_, _| true);
        assert_eq!(found, Offset { ns: 990_000, is_ambiguous: false });
        assert_eq!(vote(&[], &launches(0), |_, _| true), Offset::default());
    }
}
