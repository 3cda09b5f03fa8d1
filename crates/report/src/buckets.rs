// SPDX-License-Identifier: Apache-2.0
/*!
Durations in buckets that look equally wide on a logarithmic axis: one nanosecond below 32 ns, and
above that a sixteenth of their power of two. They are computed once per row from the row's
distributions.
*/

use crate::distribution::{Distribution, bucket_of};
use ncclscope_operations::stats::to_u64;

/// The binary logarithm of the number of buckets per doubling.
pub(crate) const PARTS: u32 = 4;

/// The durations of a row by bucket: the buckets that are not empty, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    /// The least and the greatest duration, ns; `None` if there are none.
    pub(crate) ends: Option<[u64; 2]>,
    pub(crate) counts: Vec<(u16, u64)>,
}

/// The latencies of a row: durations including the wait for later ranks, and transfers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency {
    pub(crate) with_waiting: Buckets,
    pub(crate) transfer: Buckets,
}

impl Buckets {
    pub(crate) fn of(distribution: &mut Distribution) -> Buckets {
        let mut buckets = Buckets::default();
        let Some([min, .., max]) = distribution.quantiles() else { return buckets };
        buckets.ends = Some([to_u64(min), to_u64(max)]);
        distribution.ascending(|ns, count| {
            let bucket = u16::try_from(bucket_of(ns, PARTS)).unwrap_or(u16::MAX);
            match buckets.counts.last_mut() {
                Some((last, sum)) if *last == bucket => *sum += count,
                _ => buckets.counts.push((bucket, count)),
            }
        });
        buckets
    }
}

impl Latency {
    /// From the durations with waiting, or if there are none, the known durations; and from the
    /// transfers.
    pub(crate) fn of(
        durations: Option<&mut Distribution>,
        with_waiting: &mut Distribution,
        transfer: Option<&mut Distribution>,
    ) -> Latency {
        let all = match durations {
            Some(durations) if with_waiting.count() == 0 => durations,
            _ => with_waiting,
        };
        let transfer = transfer.map(Buckets::of).unwrap_or_default();
        Latency { with_waiting: Buckets::of(all), transfer }
    }
}
