// SPDX-License-Identifier: Apache-2.0
/*!
The statistics of a comparison. None of them assumes a distribution.

- [`rank_sum`]: whether values of one sample tend to be larger (H. B. Mann, D. R. Whitney, "On a
  test of whether one of two random variables is stochastically larger than the other", 1947). Few
  independent values are counted exactly, with their ties; for many the normal approximation is
  used, with the correction for ties.
- [`shift`]: by how much (J. L. Hodges, E. L. Lehmann, "Estimates of location based on rank tests",
  1963): the median of all pairs' differences, and an interval by the same test.
- [`adjusted`]: p values of many tests (Y. Benjamini, Y. Hochberg, "Controlling the false discovery
  rate", 1995).
- [`inflation`]: values that follow one another in time are alike, so that they say less than as
  many independent ones. The variance of the test's statistic grows by (1 + r) / (1 - r), where r is
  the correlation of neighbours, as for a first-order autoregressive series.
*/

use ncclscope_operations::stats;
pub(crate) use ncclscope_operations::stats::count;

/// Maximum number of values in both samples together for the exact test.
const EXACT: usize = 24;
/// The 97.5 % quantile of the standard normal distribution.
const Z_95: f64 = 1.959_963_985;
/// Maximum correlation of neighbours that is used; a stronger one is a trend.
const STRONGEST: f64 = 0.8;

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
    (2.0 * upper_tail(off / (variance * inflation.max(1.0)).sqrt())).min(1.0)
}

/// The least p value that [`rank_sum`] gives for so many independent values: that of samples which
/// do not overlap.
pub(crate) fn least_p(n: usize, m: usize) -> f64 {
    let values = |range: std::ops::Range<usize>| range.map(count).collect::<Vec<f64>>();
    rank_sum(&values(0..n), &values(n..n + m), 1.0)
}

/// Twice the rank of each value of both samples (equal values get their mean rank), and the sum of
/// t^3 - t over groups of t equal values.
fn doubled_ranks(a: &[f64], b: &[f64]) -> (Vec<usize>, f64) {
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

/// The share of a standard normal distribution above `z`, by the continued fraction of the error
/// function for large `z` and its series for small.
fn upper_tail(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z > 3.0 {
        let fraction = (1..=60).rev().fold(z, |below, k| z + f64::from(k) / below);
        return density / fraction;
    }
    // 1/2 - density * (z + z^3/3 + z^5/(3*5) + ...)
    let (mut term, mut sum) = (z, z);
    for k in 1..=60 {
        term *= z * z / f64::from(2 * k + 1);
        sum += term;
    }
    (0.5 - density * sum).max(0.0)
}

/// How much larger the values of `b` are than those of `a`, with a 95 % interval. `None` if a
/// sample is empty.
#[must_use]
pub fn shift(a: &[f64], b: &[f64], inflation: f64) -> Option<(f64, [f64; 2])> {
    let mut apart: Vec<f64> = b.iter().flat_map(|y| a.iter().map(move |x| y - x)).collect();
    let middle = stats::median(&mut apart)?;
    let (n, m) = (count(a.len()), count(b.len()));
    let deviation = (n * m * (n + m + 1.0) / 12.0 * inflation.max(1.0)).sqrt();
    let outside = (n * m / 2.0 - Z_95 * deviation).floor().max(0.0);
    let first = to_index(outside).saturating_sub(1).min((apart.len() - 1) / 2);
    Some((middle, [apart[first], apart[apart.len() - 1 - first]]))
}

/// Factor by which the variance of values in time order exceeds that of independent values, over
/// several series; at least 1.
#[must_use]
pub fn inflation<'a>(series: impl IntoIterator<Item = &'a [f64]>) -> f64 {
    let (mut near, mut own) = (0.0, 0.0);
    for values in series {
        let (ranks, _) = doubled_ranks(values, &[]);
        let middle = count(values.len()) + 1.0;
        let off: Vec<f64> = ranks.iter().map(|&rank| count(rank) - middle).collect();
        near += off.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        own += off.iter().map(|off| off * off).sum::<f64>();
    }
    let r = if own > 0.0 { (near / own).clamp(0.0, STRONGEST) } else { 0.0 };
    (1.0 + r) / (1.0 - r)
}

/// The adjusted p values: each is the expected share of false ones if it and all smaller ones are
/// accepted.
#[must_use]
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&x, &y| p[y].total_cmp(&p[x]));
    let (all, mut least, mut adjusted) = (count(p.len()), 1.0, vec![1.0; p.len()]);
    for (place, at) in (1..=p.len()).rev().zip(order) {
        least = f64::min(least, p[at] * all / count(place));
        adjusted[at] = least;
    }
    adjusted
}

/// The median (for an even number of values, the mean of the middle two); `None` without values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    stats::median(&mut values.to_vec())
}

fn to_index(x: f64) -> usize {
    usize::try_from(ncclscope_operations::stats::to_u64(x)).unwrap_or(usize::MAX)
}
