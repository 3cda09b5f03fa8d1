// SPDX-License-Identifier: Apache-2.0
//! Windows and processes add up.

use crate::window::{
    Channel, CommKey, LEAST_SIZES, Link, LinkLine, Metrics, Mode, Operations, Proxy, Rank, Waits,
};
use ncclscope_operations::stats::LinearFit;
use std::collections::BTreeMap;

impl Metrics {
    /// Forgets the figures of communicators that send no more figures, others than those that
    /// `are_kept`. What they did is no part of any other figure: it was told under their name.
    pub fn retain_comms(&mut self, are_kept: impl Fn(&CommKey) -> bool) {
        let are_kept = |comm: &CommKey| *comm == CommKey::others() || are_kept(comm);
        self.operations.retain(|key, _| are_kept(&key.comm));
        self.links.retain(|key, _| are_kept(&key.comm));
        self.channels.retain(|key, _| are_kept(&key.comm));
        self.ranks.retain(|key, _| are_kept(&key.comm));
    }

    /// Adds a later window, or another process's: what was counted adds up, and what is a state
    /// (`in_flight`, `oldest`) is the later one's where it has any.
    pub fn merge(&mut self, later: &Metrics) {
        add_all(&mut self.operations, &later.operations, Operations::merge);
        add_all(&mut self.links, &later.links, Link::merge);
        add_all(&mut self.channels, &later.channels, Channel::merge);
        add_all(&mut self.ranks, &later.ranks, Rank::merge);
        add_all(&mut self.proxies, &later.proxies, Proxy::merge);
        add_all(&mut self.lost, &later.lost, |sum, count| *sum += count);
        add_all(&mut self.exports_lost, &later.exports_lost, |sum, count| *sum += count);
        add_all(&mut self.events, &later.events, |sum, count| *sum += count);
    }
}

fn add_all<K: Ord + Clone, V: Default>(
    to: &mut BTreeMap<K, V>,
    from: &BTreeMap<K, V>,
    add: impl Fn(&mut V, &V),
) {
    for (key, value) in from {
        match to.get_mut(key) {
            Some(sum) => add(sum, value),
            None => add(to.entry(key.clone()).or_default(), value),
        }
    }
}

impl Operations {
    /// Adds other operations of the same key.
    pub fn merge(&mut self, other: &Operations) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.duration.merge(&other.duration);
        self.bus_bandwidth.merge(&other.bus_bandwidth);
        self.algo_bandwidth.merge(&other.algo_bandwidth);
        self.transfers += other.transfers;
        self.transfer_bytes += other.transfer_bytes;
        self.transfer_seconds += other.transfer_seconds;
    }
}

impl Link {
    /// Adds what else went over the link.
    pub fn merge(&mut self, other: &Link) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.size.merge(&other.size);
        self.seconds.merge(&other.seconds);
        self.waits.merge(&other.waits);
        self.fit.merge(&other.fit);
        for (&size, &us) in &other.least {
            self.add_least(size, us);
        }
    }

    /// Notes that a transfer of `size` bytes took `us` microseconds. Of more than [`LEAST_SIZES`]
    /// sizes the same ones are kept in whatever order they come: a fair draw by their hash.
    pub fn add_least(&mut self, size: u32, us: f64) {
        if let Some(least) = self.least.get_mut(&size) {
            *least = least.min(us);
            return;
        }
        if self.least.len() >= LEAST_SIZES {
            let last = self.least.keys().copied().max_by_key(|&kept| lot(kept));
            match last {
                Some(last) if lot(size) < lot(last) => self.least.remove(&last),
                _ => return,
            };
        }
        self.least.insert(size, us);
    }

    /// Latency and rate of the link, from the straight line through its network times over its
    /// sizes. `None` where there are fewer than two sizes, or larger ones do not take longer.
    #[must_use]
    pub fn line(&self, mode: Mode) -> Option<LinkLine> {
        let line = match mode {
            Mode::Avg => self.fit.line(),
            Mode::Min => {
                let mut fit = LinearFit::default();
                self.least.iter().for_each(|(&size, &us)| fit.add(f64::from(size), us));
                fit.line()
            }
        };
        let line = line.filter(|line| line.slope > 0.0)?;
        Some(LinkLine {
            latency_us: Some(line.intercept).filter(|&us| us >= 0.0),
            // The slope is in us a byte.
            rate_mb_s: 1.0 / line.slope,
            r2: line.r2,
        })
    }
}

/// A number that has nothing to do with how large a size is; no two sizes have the same.
fn lot(size: u32) -> u32 {
    let mixed = (size ^ size >> 16).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x846c_a68b);
    mixed ^ mixed >> 16
}

impl Waits {
    /// Adds other waits.
    pub fn merge(&mut self, other: &Waits) {
        self.gpu += other.gpu;
        self.peer += other.peer;
        self.network += other.network;
        self.flush += other.flush;
    }
}

impl Channel {
    /// Adds what else the channel did.
    pub fn merge(&mut self, other: &Channel) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.kernels += other.kernels;
        self.kernel_seconds += other.kernel_seconds;
    }
}

impl Rank {
    /// Adds a later window's gaps and takes over its state.
    pub fn merge(&mut self, later: &Rank) {
        self.gap.merge(&later.gap);
        self.in_flight = later.in_flight;
        self.oldest = later.oldest;
    }
}

impl Proxy {
    /// Adds what else the thread did.
    pub fn merge(&mut self, other: &Proxy) {
        self.operations += other.operations;
        self.busy += other.busy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link(points: &[(u32, f64)]) -> Link {
        let mut link = Link::default();
        for &(size, us) in points {
            link.fit.add(f64::from(size), us);
            link.add_least(size, us);
        }
        link
    }

    proptest! {
        #[test]
        fn least_times_are_the_same_in_any_order(
            points in proptest::collection::vec((0u32..200, 1.0..9.0f64), 0..400), cut: usize
        ) {
            let whole = link(&points);
            prop_assert!(whole.least.len() <= LEAST_SIZES);
            let (left, right) = points.split_at(cut % (points.len() + 1));
            let mut merged = link(right);
            merged.merge(&link(left));
            prop_assert_eq!(&merged.least, &whole.least);
            for (size, least) in &whole.least {
                let times = points.iter().filter(|p| p.0 == *size).map(|p| p.1);
                prop_assert_eq!(*least, times.fold(f64::INFINITY, f64::min));
            }
        }
    }

    #[test]
    fn both_modes_find_rate_and_latency() {
        // 20 us and 2 GB/s; every other transfer takes half as long again.
        let points: Vec<(u32, f64)> = (1..=40u32)
            .map(|i| (i % 8 * 65_536, f64::from(i % 2 + 2) / 2.0))
            .map(|(size, slower)| (size, (20.0 + f64::from(size) / 2000.0) * slower))
            .collect();
        let even: Vec<(u32, f64)> = points.iter().copied().filter(|p| p.0 % 131_072 == 0).collect();
        let line = link(&even).line(Mode::Min).unwrap();
        assert!((line.rate_mb_s - 2000.0).abs() < 0.1 && line.r2 > 0.999, "{line:?}");
        assert!((line.latency_us.unwrap() - 20.0).abs() < 0.01, "{line:?}");
        let avg = link(&points).line(Mode::Avg).unwrap();
        assert!(avg.rate_mb_s < 2000.0 && avg.r2 < 0.99, "{avg:?}");
    }

    #[test]
    fn what_is_no_line_has_no_rate() {
        assert_eq!(link(&[(5, 1.0), (5, 2.0)]).line(Mode::Avg), None);
        assert_eq!(link(&[(5, 2.0), (9, 1.0)]).line(Mode::Min), None);
        let steep = link(&[(10, 1.0), (20, 3.0)]).line(Mode::Avg).unwrap();
        assert_eq!(steep.latency_us, None);
        assert_eq!(Link::default().line(Mode::Avg), None);
    }

    #[test]
    fn sums_add_up_and_states_are_taken_over() {
        let key = crate::window::RankKey {
            comm: crate::window::CommKey { hash: 1, name: "".into(), ranks: 2, nodes: 1 },
            rank: 0,
        };
        let window = |in_flight, oldest| {
            let mut metrics = Metrics::default();
            metrics.ranks.insert(key.clone(), Rank { in_flight, oldest, ..Rank::default() });
            metrics.events.insert("Coll", 2);
            metrics.lost.insert(("lane_full", "Coll"), 3);
            metrics.proxies.insert(1, Proxy { operations: 4, busy: 0.5 });
            metrics
        };
        let mut sum = window(3, 1.0);
        sum.merge(&window(1, 0.5));
        assert_eq!(sum.ranks[&key], Rank { in_flight: 1, oldest: 0.5, ..Rank::default() });
        assert_eq!((sum.events["Coll"], sum.lost[&("lane_full", "Coll")]), (4, 6));
        assert_eq!(sum.proxies[&1], Proxy { operations: 8, busy: 1.0 });
        sum.merge(&Metrics::default());
        assert_eq!(sum.ranks[&key].in_flight, 1);
    }
}
