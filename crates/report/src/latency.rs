// SPDX-License-Identifier: Apache-2.0
/*!
Histograms of durations for each role, function and size, over all communicators.

They are the sums of the rows' buckets ([`crate::buckets`]).
*/

use crate::buckets::{Buckets, PARTS};
use crate::distribution::first_of;
use crate::schema::{Histogram, LatencyRow, OperationRow};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The sum of the durations of several rows.
#[derive(Debug, Default)]
struct Sum {
    ends: Option<[u64; 2]>,
    counts: BTreeMap<u16, u64>,
}

impl Sum {
    fn add(&mut self, buckets: &Buckets) {
        let Some([min, max]) = buckets.ends else { return };
        let ends = self.ends.get_or_insert([min, max]);
        *ends = [ends[0].min(min), ends[1].max(max)];
        for &(bucket, count) in &buckets.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
    }

    fn finish(self) -> Option<Histogram> {
        let [min, max] = self.ends?;
        let count = self.counts.values().sum();
        let at = |percent| {
            let bucket = usize::from(at(&self.counts, count, percent));
            let [from, to] = span(bucket);
            (from + (to - from - 1) / 2).clamp(min, max)
        };
        let [p50, p90, p99] = [50, 90, 99].map(at);
        let buckets = self.counts.iter().map(|(bucket, count)| {
            let [from, to] = span(usize::from(*bucket));
            [from, to, *count]
        });
        Some(Histogram { count, min, p50, p90, p99, max, buckets: buckets.collect() })
    }
}

/// The bucket with this percentile, by nearest rank.
fn at(counts: &BTreeMap<u16, u64>, all: u64, percent: u64) -> u16 {
    let rank = (u128::from(all) * u128::from(percent)).div_ceil(100).max(1);
    let mut passed = 0;
    let mut reached = counts.iter().find(|(_, count)| {
        passed += u128::from(**count);
        passed >= rank
    });
    reached.take().map_or(0, |(bucket, _)| *bucket)
}

/// The first nanosecond of a bucket and of the next one.
fn span(bucket: usize) -> [u64; 2] {
    [bucket, bucket + 1].map(|bucket| first_of(bucket, PARTS))
}

/// Role, function, size.
type Key<'a> = (&'a str, &'a str, Option<u64>);

/// The latencies of rows with their roles, those with the most time first.
pub(crate) fn latencies<'a>(
    rows: impl Iterator<Item = (&'a str, &'a OperationRow)>,
) -> Vec<LatencyRow> {
    let mut groups: BTreeMap<Key<'_>, (u64, [Sum; 2])> = BTreeMap::new();
    for (role, row) in rows {
        let (total, [all, transfers]) = groups.entry((role, &row.func, row.bytes)).or_default();
        *total = total.saturating_add(row.total_ns.unwrap_or(0));
        all.add(&row.latency.with_waiting);
        transfers.add(&row.latency.transfer);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (total, _))| Reverse(*total));
    let row = |((role, func, bytes), (_, [all, transfers])): (Key<'_>, (u64, [Sum; 2]))| {
        let (with_waiting_ns, transfer_ns) = (all.finish(), transfers.finish());
        LatencyRow { role: role.into(), func: func.into(), bytes, with_waiting_ns, transfer_ns }
    };
    groups.into_iter().map(row).filter(|row| row.with_waiting_ns.is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::{Distribution, EXACT};

    fn of(values: impl Iterator<Item = f64>) -> Buckets {
        let mut distribution = Distribution::default();
        values.for_each(|ns| distribution.add(ns));
        Buckets::of(&mut distribution)
    }

    #[test]
    fn a_histogram_has_all_durations_in_their_buckets() {
        let mut sum = Sum::default();
        sum.add(&of((1..=100).map(|at| f64::from(at) * 1000.0)));
        sum.add(&of([7.0, 7.4, 2e9].into_iter()));
        sum.add(&Buckets::default());
        let all = sum.finish().unwrap();
        assert_eq!((all.count, all.min, all.max), (103, 7, 2_000_000_000));
        assert_eq!(all.buckets[0], [7, 8, 2], "whole nanoseconds");
        assert_eq!(all.buckets.iter().map(|[.., count]| count).sum::<u64>(), 103);
        for (percentile, exact) in [(all.p50, 50e3), (all.p90, 91e3), (all.p99, 100e3)] {
            let off = (percentile as f64 / exact - 1.0).abs();
            assert!(off < 0.04, "{percentile} {exact}");
        }
        for [from, to, _] in all.buckets {
            assert!(from < to && (to - from) * 16 <= from.max(16), "{from} {to}");
        }
    }

    #[test]
    fn many_durations_have_the_same_histogram_as_few() {
        let value = |at: usize| ((at % EXACT) * 977 + 3) as f64;
        let few = of((0..EXACT).map(value));
        let many = of((0..3 * EXACT).map(value));
        let thrice: Vec<_> =
            few.counts.iter().map(|(bucket, count)| (*bucket, 3 * count)).collect();
        assert_eq!((many.ends, many.counts), (few.ends, thrice));
        assert!(Sum::default().finish().is_none());
    }
}
