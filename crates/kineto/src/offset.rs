// SPDX-License-Identifier: Apache-2.0
/*!
The offset between a trace's clock and a recording's.

Both are `CLOCK_REALTIME`, so that the offset is small if the trace was taken on the recording's
host and the clock was not set in between. This module does not assume that: each kernel votes for
its distance to every launch that it may be, and the distance with the most votes is the offset.
Training steps that are identical to the microsecond give several such distances. Then the smallest
is taken; if it is neither small nor much smaller than the next, it is called ambiguous.
*/

use std::collections::HashMap;

/// Calls are recorded a little later than PyTorch begins them; the delay varies by about this.
const WINDOW_NS: i64 = 500_000;
/// Kernels that vote.
const VOTERS: usize = 256;
/// Launches that a kernel votes for: those nearest in time.
const CANDIDATES: usize = 4096;
/// What a voter without a vote costs: half of what one costs that votes at random.
const ABSENT_NS: i64 = WINDOW_NS / 8;
/// How much votes for the right distance differ by, for each voter, at least.
const CHANCE_NS: i64 = 5_000;
/// An offset of clocks that agree.
const SMALL_NS: i64 = 1_000_000;
/// An offset that many times as large as another one is no rival of it.
const MUCH: i64 = 10;

/// The offset of two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// The trace's clock less the recording's, ns.
    pub ns: i64,
    /// Another one explains as much.
    pub is_ambiguous: bool,
}

impl Offset {
    /// The median of known distances, of which there is at least one.
    #[must_use]
    pub fn known(mut distances: Vec<i64>) -> Offset {
        distances.sort_unstable();
        let ns = distances.get(distances.len() / 2).copied().unwrap_or(0);
        Offset { ns, is_ambiguous: false }
    }
}

/// A distance that a kernel votes for.
type Vote = (i64, usize);

/// The offset that most kernels speak for. `kernels` are times with the kernels' numbers,
/// `launches` sorted times; `can_be` says which may be one. Without any vote the clocks are taken
/// as equal.
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
    // What is as good as the best, but for chance.
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

/// The windows with at least half as many voters as the best has, apart from each other. A
/// recording of part of the trace has fewer than a likeness of the whole elsewhere in it.
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
            // Of windows that overlap, the best.
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
    /// How far the votes are from it, one of each voter.
    cost_ns: i64,
}

/// The distance within a window that is nearest to a vote of each voter; there are up to `most`.
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

/// For costs.
#[expect(clippy::cast_precision_loss, reason = "distances stay far below 2^53")]
pub(crate) fn to_f64(ns: i64) -> f64 {
    ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: i64 = 1_700_000_000_000_000_000;

    /// Times of 40 kernels, 10 ms apart but for a jitter of some ms, as numbers from 0 on.
    fn kernels(jitter: i64) -> Vec<(i64, usize)> {
        let time = |i: i64| BASE + i * 10_000_000 + (i * i * i % 97) * jitter;
        (0..40).map(time).zip(0..).collect()
    }

    #[test]
    fn a_clock_that_is_hours_off_is_found_by_the_rhythm() {
        let kernels = kernels(30_000);
        let shift = 9_876_543_210_123;
        // The recording began later, goes on longer and lacks one; calls come 20 to 60 us later.
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
        // Ten milliseconds is the next one.
        let found = vote(&kernels, &launches(990_000), |_, _| true);
        assert_eq!(found, Offset { ns: 990_000, is_ambiguous: false });
        assert_eq!(vote(&[], &launches(0), |_, _| true), Offset::default());
    }
}
