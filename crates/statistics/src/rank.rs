// SPDX-License-Identifier: Apache-2.0
/*!
Two samples compared by ranks, which assumes no distribution.

- [`rank_sum`]: whether values of one sample tend to be larger (H. B. Mann, D. R. Whitney, "On a
  test of whether one of two random variables is stochastically larger than the other", 1947). Few
  independent values are counted exactly, with their ties; for many the normal approximation is
  used, with the correction for ties.
- [`shift`]: by how much (J. L. Hodges, E. L. Lehmann, "Estimates of location based on rank tests",
  1963): the median of all pairs' differences, and an interval by the same test.
*/

use crate::tails::normal;
use ncclscope_operations::stats::{count, median, to_u64};

/// Maximum number of values in both samples together for the exact test.
const EXACT: usize = 24;
/// The 97.5 % quantile of the standard normal distribution.
pub(crate) const Z_95: f64 = 1.959_963_985;

/// Two-sided p value for the hypothesis that both samples have the same distribution. An
/// `inflation` of 1 means that the values are independent.
#[must_use]
pub fn rank_sum(a: &[f64], b: &[f64], inflation: f64) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (ranks, ties) = doubled_ranks(a, b);
    let sum: usize = ranks.iter().take(a.len()).sum();
    if ranks.len() <= EXACT && inflation <= 1.0 {
        return exact(&ranks, a.len(), sum);
    }
    let (n, m, all) = (count(a.len()), count(b.len()), count(ranks.len()));
    let mean = n * (all + 1.0) / 2.0;
    let variance = n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    // Continuity correction: sums of ranks differ by at least a half.
    let off = ((count(sum) / 2.0 - mean).abs() - 0.5).max(0.0);
    (2.0 * normal(off / (variance * inflation.max(1.0)).sqrt())).min(1.0)
}

/// The least p value that [`rank_sum`] gives for so many independent values: that of samples which
/// do not overlap.
#[must_use]
pub fn least_p(n: usize, m: usize) -> f64 {
    let values = |range: std::ops::Range<usize>| range.map(count).collect::<Vec<f64>>();
    rank_sum(&values(0..n), &values(n..n + m), 1.0)
}

/// The ranks of known values; NaN where they are unknown.
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
    let known: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    let mut ranks = doubled_ranks(&known, &[]).0.into_iter();
    let mut rank = || ranks.next().map_or(f64::NAN, |doubled| count(doubled) / 2.0);
    values.iter().map(|value| if value.is_nan() { f64::NAN } else { rank() }).collect()
}

/// Twice the rank of each value of both samples (equal values get their mean rank), and the sum of
/// t^3 - t over groups of t equal values.
pub(crate) fn doubled_ranks(a: &[f64], b: &[f64]) -> (Vec<usize>, f64) {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&x, &y| all[x].total_cmp(&all[y]));
    let (mut ranks, mut ties) = (vec![0; all.len()], 0.0);
    for equal in order.chunk_by(|&x, &y| all[x].total_cmp(&all[y]).is_eq()) {
        let before = equal.first().map_or(0, |&first| {
            order.partition_point(|&other| all[other].total_cmp(&all[first]).is_lt())
        });
        for &at in equal {
            ranks[at] = 2 * before + equal.len() + 1;
        }
        let t = count(equal.len());
        ties += t * t * t - t;
    }
    (ranks, ties)
}

/// Two-sided p value of a sum of `n` of the doubled ranks if each choice of `n` is equally likely
/// (shift algorithm of Streitberg and Roehmel, 1986).
fn exact(ranks: &[usize], n: usize, sum: usize) -> f64 {
    let most: usize = ranks.iter().sum();
    // How many choices of this many ranks have that sum.
    let mut ways = vec![vec![0.0; most + 1]; n + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for chosen in (1..=n).rev() {
            for total in (rank..=most).rev() {
                ways[chosen][total] += ways[chosen - 1][total - rank];
            }
        }
    }
    let all: f64 = ways[n].iter().sum();
    let below: f64 = ways[n][..=sum].iter().sum();
    let above: f64 = ways[n][sum..].iter().sum();
    (2.0 * below.min(above) / all).min(1.0)
}

/// How much larger the values of `b` are than those of `a`, with a 95 % interval. `None` if a
/// sample is empty.
#[must_use]
pub fn shift(a: &[f64], b: &[f64], inflation: f64) -> Option<(f64, [f64; 2])> {
    let mut apart: Vec<f64> = b.iter().flat_map(|y| a.iter().map(move |x| y - x)).collect();
    let middle = median(&mut apart)?;
    let (n, m) = (count(a.len()), count(b.len()));
    let deviation = (n * m * (n + m + 1.0) / 12.0 * inflation.max(1.0)).sqrt();
    let outside = (n * m / 2.0 - Z_95 * deviation).floor().max(0.0);
    let first = to_index(outside).saturating_sub(1).min((apart.len() - 1) / 2);
    Some((middle, [apart[first], apart[apart.len() - 1 - first]]))
}

fn to_index(x: f64) -> usize {
    usize::try_from(to_u64(x)).unwrap_or(usize::MAX)
}
