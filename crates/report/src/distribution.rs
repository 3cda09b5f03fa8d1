// SPDX-License-Identifier: Apache-2.0
/*!
Quantiles of any number of durations, in bounded memory.

Up to [`EXACT`] durations are stored unchanged, and their quantiles are durations that occurred.
Beyond that, whole nanoseconds are counted in buckets: one for each value below 256, and 128 for
each doubling above, so that a bucket is at most 0.8 % wide and its middle at most 0.4 % off. The
smallest and the largest duration are always exact. The order of adding and merging does not change
the result.
*/

use ncclscope_operations::stats::{quantiles, to_f64, to_u64};

/// Most durations that are stored individually.
pub(crate) const EXACT: usize = 4096;
/// The binary logarithm of the number of buckets per doubling.
const PARTS: u32 = 7;

/// A distribution of durations, ns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Distribution {
    sum: f64,
    /// All durations, if there are no buckets yet.
    values: Vec<f64>,
    buckets: Option<Box<Buckets>>,
}

#[derive(Clone, Debug)]
struct Buckets {
    min: f64,
    max: f64,
    total: u64,
    /// Index of the first bucket.
    offset: usize,
    counts: Vec<u64>,
}

impl Distribution {
    pub(crate) fn add(&mut self, ns: f64) {
        self.sum += ns;
        match &mut self.buckets {
            Some(buckets) => buckets.add(ns),
            None => {
                self.values.push(ns);
                self.bound();
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Distribution) {
        self.sum += other.sum;
        match (&mut self.buckets, other.buckets) {
            (None, None) => {
                self.values.extend(other.values);
                self.bound();
            }
            (Some(buckets), None) => other.values.into_iter().for_each(|ns| buckets.add(ns)),
            (None, Some(mut buckets)) => {
                std::mem::take(&mut self.values).into_iter().for_each(|ns| buckets.add(ns));
                self.buckets = Some(buckets);
            }
            (Some(buckets), Some(others)) => buckets.merge(&others),
        }
    }

    /// The sum of the durations, ns.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.as_ref().map_or(self.values.len() as u64, |buckets| buckets.total)
    }

    /// Passes durations in whole ns and their number, ascending; if they are in buckets, the first
    /// ns of each bucket.
    pub(crate) fn ascending(&mut self, mut add: impl FnMut(u64, u64)) {
        match &self.buckets {
            Some(buckets) => (buckets.offset..)
                .zip(&buckets.counts)
                .filter(|(_, count)| **count != 0)
                .for_each(|(bucket, count)| add(first_of(bucket, PARTS), *count)),
            None => {
                self.values.sort_unstable_by(f64::total_cmp);
                self.values.iter().for_each(|ns| add(to_u64(*ns), 1));
            }
        }
    }

    fn bound(&mut self) {
        if self.values.len() > EXACT {
            let mut buckets = Box::<Buckets>::default();
            std::mem::take(&mut self.values).into_iter().for_each(|ns| buckets.add(ns));
            self.buckets = Some(buckets);
        }
    }

    /// The least duration, median, 99th percentile and greatest, by nearest rank; `None` if empty.
    pub(crate) fn quantiles(&mut self) -> Option<[f64; 4]> {
        match &self.buckets {
            Some(buckets) => Some(buckets.quantiles()),
            None => quantiles(&mut self.values),
        }
    }
}

impl Default for Buckets {
    fn default() -> Buckets {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Buckets { min, max, total: 0, offset: 0, counts: Vec::new() }
    }
}

impl Buckets {
    fn add(&mut self, ns: f64) {
        (self.min, self.max) = (self.min.min(ns), self.max.max(ns));
        self.total += 1;
        *self.count(bucket_of(to_u64(ns), PARTS)) += 1;
    }

    fn merge(&mut self, other: &Buckets) {
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
        self.total += other.total;
        for (bucket, &count) in
            (other.offset..).zip(&other.counts).filter(|(_, count)| **count != 0)
        {
            *self.count(bucket) += count;
        }
    }

    fn count(&mut self, bucket: usize) -> &mut u64 {
        if self.counts.is_empty() {
            self.offset = bucket;
        }
        if bucket < self.offset {
            self.counts.splice(0..0, std::iter::repeat_n(0, self.offset - bucket));
            self.offset = bucket;
        }
        let at = bucket - self.offset;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        &mut self.counts[at]
    }

    fn quantiles(&self) -> [f64; 4] {
        let at = |percent: u64| {
            let rank = u128::from(self.total) * u128::from(percent);
            let rank = u64::try_from(rank.div_ceil(100)).unwrap_or(u64::MAX).max(1);
            let mut passed = 0;
            let mut buckets = (self.offset..).zip(&self.counts);
            let bucket = buckets.find(|(_, count)| {
                passed += **count;
                passed >= rank
            });
            bucket.map_or(self.max, |(bucket, _)| middle(bucket).clamp(self.min, self.max))
        };
        [self.min, at(50), at(99), self.max]
    }
}

/// The bucket of a number, with `2^parts` buckets per doubling.
pub(crate) fn bucket_of(ns: u64, parts: u32) -> usize {
    let doublings = ns.checked_ilog2().unwrap_or(0).saturating_sub(parts);
    let part = usize::try_from(ns >> doublings).unwrap_or(usize::MAX);
    ((doublings as usize) << parts) + part
}

/// The first number of a bucket of [`bucket_of`].
pub(crate) fn first_of(bucket: usize, parts: u32) -> u64 {
    let doublings = (bucket >> parts).saturating_sub(1);
    let first = (bucket - (doublings << parts)) as u128;
    u64::try_from(first << doublings).unwrap_or(u64::MAX)
}

fn middle(bucket: usize) -> f64 {
    let [first, next] = [bucket, bucket + 1].map(|bucket| first_of(bucket, PARTS));
    to_f64(first + (next - first - 1) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_near_what_it_counts() {
        for ns in (0..5_000).chain((10..64).map(|bit| (1u64 << bit) - 1)) {
            for ns in [ns, ns.saturating_mul(3)] {
                let off = (middle(bucket_of(ns, PARTS)) - to_f64(ns)).abs();
                assert!(off <= to_f64(ns) * 0.004, "{ns}: {off}");
                assert!(ns >= 256 || off == 0.0, "{ns}: {off}");
            }
        }
        assert!((1..100_000).is_sorted_by_key(|ns| bucket_of(ns, PARTS)));
    }

    #[test]
    fn many_durations_have_the_quantiles_of_all_but_for_four_in_a_thousand() {
        let values: Vec<f64> =
            (0..20_000u32).map(|at| f64::from(at.wrapping_mul(2_654_435_761) >> 8) + 0.5).collect();
        let exact = quantiles(&mut values.clone()).unwrap();
        let of = |values: &[f64]| {
            let mut distribution = Distribution::default();
            values.iter().for_each(|&ns| distribution.add(ns));
            distribution
        };
        let whole = of(&values).quantiles().unwrap();
        assert_eq!((whole[0], whole[3]), (exact[0], exact[3]));
        for (bucket, exact) in whole.iter().zip(exact) {
            assert!((bucket / exact - 1.0).abs() < 0.004, "{bucket} {exact}");
        }
        for cut in [0, 1, EXACT - 1, EXACT, EXACT + 1, 19_999] {
            let (left, right) = values.split_at(cut);
            for (mut first, second) in [(of(left), of(right)), (of(right), of(left))] {
                first.merge(second);
                assert_eq!(first.quantiles(), Some(whole), "{cut}");
            }
        }
    }

    #[test]
    fn few_durations_are_exact() {
        let mut distribution = Distribution::default();
        assert_eq!(distribution.quantiles(), None);
        (0..EXACT).for_each(|at| distribution.add(to_f64(at as u64) * 1e6 + 0.25));
        let exact = [0.25, 2047e6 + 0.25, 4055e6 + 0.25, 4095e6 + 0.25];
        assert_eq!(distribution.quantiles(), Some(exact));
    }
}
