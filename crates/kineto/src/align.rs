// SPDX-License-Identifier: Apache-2.0
/*!
Pairs two sequences of times in order, with the smallest total distance.

Both sequences may have elements that the other lacks, at the ends and in between. An unpaired
kernel costs as much as the greatest allowed distance, so that as many kernels as possible are
paired; an unpaired launch costs nothing.
*/

use ncclscope_operations::stats::to_f64;

/// Number of launches before, and after, the nearest one in time that are candidates for a kernel.
pub(crate) const REACH: usize = 48;

/// The best decision for a kernel, if only launches up to a given one are available.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The launch is not used.
    PassLaunch,
    Pair,
    /// The kernel is not paired.
    PassKernel,
}

/// The decisions for a kernel, for each launch from `first` on.
struct Row {
    first: usize,
    steps: Vec<Step>,
}

/// The least cost of all kernels so far, for each last launch that they may use, from `first` on.
#[derive(Default)]
struct Costs {
    first: usize,
    costs: Vec<f64>,
}

impl Costs {
    /// The least cost with launches below `end`; `alone` if the row has none of these.
    fn up_to(&self, end: usize, alone: f64) -> f64 {
        let last = end.saturating_sub(self.first).min(self.costs.len());
        last.checked_sub(1).map_or(alone, |last| self.costs[last])
    }
}

/// Pairs of indices of `kernels` and `launches`, both sorted times in ns. `distance` returns the
/// distance of a kernel and a launch, or `None` if they cannot be a pair; `limit` is greater than
/// any distance.
pub(crate) fn align(
    kernels: &[i64],
    launches: &[i64],
    limit: f64,
    distance: impl Fn(usize, usize) -> Option<f64>,
) -> Vec<(usize, usize)> {
    if launches.is_empty() {
        return Vec::new();
    }
    let mut rows: Vec<Row> = Vec::with_capacity(kernels.len());
    let mut before = Costs::default();
    for (kernel, &time) in kernels.iter().enumerate() {
        let near = launches.partition_point(|&launch| launch < time);
        let first = near.saturating_sub(REACH).min(launches.len() - 1);
        let end = (near + REACH).min(launches.len());
        // The cost if all earlier kernels are unpaired.
        let alone = limit * to_f64(kernel as u64);
        let mut costs: Vec<f64> = Vec::with_capacity(end - first);
        let mut steps = Vec::with_capacity(end - first);
        for launch in first..end {
            let mut best = (before.up_to(launch + 1, alone) + limit, Step::PassKernel);
            if let Some(distance) = distance(kernel, launch) {
                let cost = before.up_to(launch, alone) + distance;
                if cost < best.0 {
                    best = (cost, Step::Pair);
                }
            }
            if let Some(&cost) = costs.last()
                && cost <= best.0
            {
                best = (cost, Step::PassLaunch);
            }
            costs.push(best.0);
            steps.push(best.1);
        }
        rows.push(Row { first, steps });
        before = Costs { first, costs };
    }
    trace_back(&rows, launches.len())
}

fn trace_back(rows: &[Row], launches: usize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut end = launches;
    for (kernel, row) in rows.iter().enumerate().rev() {
        let Some(mut at) = end.checked_sub(row.first + 1) else { continue };
        at = at.min(row.steps.len() - 1);
        while at > 0 && row.steps[at] == Step::PassLaunch {
            at -= 1;
        }
        if row.steps[at] == Step::Pair {
            end = row.first + at;
            pairs.push((kernel, end));
        } else {
            end = row.first + at + 1;
        }
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(kernels: &[i64], launches: &[i64]) -> Vec<(usize, usize)> {
        align(kernels, launches, 50.0, |kernel, launch| {
            let distance = i32::try_from((kernels[kernel] - launches[launch]).abs()).unwrap();
            (distance < 50).then(|| distance.into())
        })
    }

    #[test]
    fn jitter_wider_than_the_gaps_keeps_the_order() {
        let launches: Vec<i64> = (0..200).map(|i| i * 10).collect();
        let mut kernels: Vec<i64> = launches.iter().map(|t| t + (t * 7919) % 23 - 11).collect();
        kernels.sort_unstable();
        let expected: Vec<(usize, usize)> = (0..200).map(|i| (i, i)).collect();
        assert_eq!(pairs(&kernels, &launches), expected);
    }

    #[test]
    fn what_one_side_lacks_is_left_out() {
        let kernels = [100, 200, 300, 1000, 1100];
        let launches = [0, 101, 299, 302, 999, 1201];
        assert_eq!(pairs(&kernels, &launches), [(0, 1), (2, 2), (3, 4)]);
        assert_eq!(pairs(&kernels, &[]), []);
        assert_eq!(pairs(&[], &launches), []);
        assert_eq!(pairs(&[5000], &launches), []);
    }

    #[test]
    fn no_launch_is_used_twice() {
        assert_eq!(pairs(&[10, 11, 12], &[11]), [(1, 0)]);
        assert_eq!(pairs(&[10, 14, 18], &[9, 19]), [(0, 0), (2, 1)]);
    }
}
