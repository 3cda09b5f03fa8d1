// SPDX-License-Identifier: Apache-2.0
//! Merges the metrics of windows and of processes.

use crate::window::{
    Channel, CommKey, Device, ENOUGH_SENDS, Fit, LEAST_SIZES, Link, LinkLine, Metrics, Mode,
    Operations, Proxy, Rank, Waits,
};
use ncclscope_operations::stats::LinearFit;
use std::collections::BTreeMap;

impl Metrics {
    /// Removes the figures of all communicators for which `are_kept` is false. They are not added
    /// to other figures, because they were exported under their own name.
    pub fn retain_comms(&mut self, are_kept: impl Fn(&CommKey) -> bool) {
        let are_kept = |comm: &CommKey| *comm == CommKey::others() || are_kept(comm);
        self.operations.retain(|key, _| are_kept(&key.comm));
        self.links.retain(|key, _| are_kept(&key.comm));
        self.channels.retain(|key, _| are_kept(&key.comm));
        self.ranks.retain(|key, _| are_kept(&key.comm));
        self.devices.retain(|key, _| are_kept(&key.comm));
    }

    /// Adds the next window of the same process, as [`Metrics::merge`] does, except for latency and
    /// rate of a link, which come from the last windows only, so that a change is visible: the
    /// sends of the window replace the earlier ones if there are [`ENOUGH_SENDS`], else they are
    /// kept until later windows have enough.
    pub fn add_window(&mut self, next: &Metrics) {
        let fits = next.links.keys().filter_map(|key| {
            let Link { fit, gathering, .. } = self.links.get_mut(key)?;
            Some((key, (std::mem::take(fit), std::mem::take(gathering))))
        });
        let mut fits: BTreeMap<_, _> = fits.collect();
        self.merge(next);
        for key in next.links.keys() {
            let Some(link) = self.links.get_mut(key) else { continue };
            let (shown, mut gathering) = fits.remove(key).unwrap_or_default();
            gathering.merge(&std::mem::replace(&mut link.fit, shown));
            match gathering.is_enough() {
                true => (link.fit, link.gathering) = (gathering, Fit::default()),
                false => link.gathering = gathering,
            }
        }
    }

    /// Adds a later window of the same processes: counts are added, and states (`in_flight`,
    /// `oldest`) are those of the later window if it has them.
    pub fn merge(&mut self, later: &Metrics) {
        self.add(later, Rank::merge);
        add_all(&mut self.beside, &later.beside, u64::clone_from);
        self.masks_changed = later.masks_changed;
        self.findings.clone_from(&later.findings);
    }

    /// Adds the metrics of another process: counts are added, and of states the sum or the greatest
    /// is used.
    pub fn join(&mut self, other: &Metrics) {
        self.add(other, Rank::join);
        add_all(&mut self.beside, &other.beside, add_count);
        self.masks_changed += other.masks_changed;
        self.findings.extend(other.findings.clone());
    }

    fn add(&mut self, later: &Metrics, add_rank: impl Fn(&mut Rank, &Rank)) {
        add_all(&mut self.operations, &later.operations, Operations::merge);
        add_all(&mut self.links, &later.links, Link::merge);
        add_all(&mut self.channels, &later.channels, Channel::merge);
        add_all(&mut self.ranks, &later.ranks, add_rank);
        add_all(&mut self.devices, &later.devices, Device::clone_from);
        add_all(&mut self.proxies, &later.proxies, Proxy::merge);
        add_all(&mut self.lost, &later.lost, add_count);
        add_all(&mut self.exports_lost, &later.exports_lost, add_count);
        add_all(&mut self.events, &later.events, add_count);
    }
}

fn add_count(sum: &mut u64, count: &u64) {
    *sum = sum.saturating_add(*count);
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
        self.compat.kernel.merge(&other.compat.kernel);
        self.compat.kernel_bandwidth.merge(&other.compat.kernel_bandwidth);
        self.compat.proxy.merge(&other.compat.proxy);
    }
}

impl Link {
    /// Adds other transfers over the same link.
    pub fn merge(&mut self, other: &Link) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.size.merge(&other.size);
        self.seconds.merge(&other.seconds);
        self.waits.merge(&other.waits);
        self.fit.merge(&other.fit);
        self.gathering.merge(&other.gathering);
    }

    /// Latency and rate of the link, by linear regression of network times over sizes. With sends
    /// of one size, only the rate, which then includes the latency. `None` with too few sends, or
    /// if larger ones do not take longer.
    #[must_use]
    pub fn line(&self, mode: Mode) -> Option<LinkLine> {
        if self.fit.is_enough() { self.fit.line(mode) } else { None }
    }
}

impl Fit {
    /// Adds a send of `size` bytes that took `us` microseconds.
    pub fn add(&mut self, size: u32, us: f64) {
        self.all.add(f64::from(size), us);
        self.add_least(size, us);
    }

    /// Adds other sends.
    pub fn merge(&mut self, other: &Fit) {
        self.all.merge(&other.all);
        for (&size, &us) in &other.least {
            self.add_least(size, us);
        }
    }

    fn is_enough(&self) -> bool {
        self.all.count() >= ENOUGH_SENDS
    }

    /// Updates the least time of a size. Of more than [`LEAST_SIZES`] sizes those with the least
    /// hash are kept, so the choice does not depend on the order.
    fn add_least(&mut self, size: u32, us: f64) {
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

    fn line(&self, mode: Mode) -> Option<LinkLine> {
        let fit = match mode {
            Mode::Avg => self.all,
            Mode::Min => {
                let mut fit = LinearFit::default();
                self.least.iter().for_each(|(&size, &us)| fit.add(f64::from(size), us));
                fit
            }
        };
        let Some(line) = fit.line() else {
            // With sends of one size the latency cannot be separated.
            let (size, us) = fit.mean();
            let rate = (size > 0.0 && us > 0.0).then(|| size / us)?;
            return Some(LinkLine { latency_us: None, rate_mb_s: rate, r2: None });
        };
        (line.slope > 0.0).then(|| LinkLine {
            latency_us: Some(line.intercept).filter(|&us| us >= 0.0),
            // The slope is in us per byte.
            rate_mb_s: 1.0 / line.slope,
            r2: Some(line.r2),
        })
    }
}

/// A hash of a size that is unrelated to its magnitude and different for each size.
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
    /// Adds other transfers and kernels of the same channel.
    pub fn merge(&mut self, other: &Channel) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.kernels += other.kernels;
        self.kernel_seconds += other.kernel_seconds;
    }
}

impl Rank {
    /// Whether it is known what is in flight: the ends of operations are visible, or some are in
    /// flight all the same.
    pub(crate) fn shows_flight(&self) -> bool {
        self.hidden == 0 || self.in_flight > 0
    }

    /// Adds the counts of a later window, and takes its states.
    pub fn merge(&mut self, later: &Rank) {
        self.count(later);
        self.in_flight = later.in_flight;
        self.oldest = later.oldest;
        self.hidden = later.hidden;
    }

    /// Adds the rank of another process with the same key: without a hash (API v1 to v3) the keys
    /// of several ranks may be equal.
    pub fn join(&mut self, other: &Rank) {
        self.count(other);
        self.in_flight += other.in_flight;
        self.oldest = self.oldest.max(other.oldest);
        self.hidden += other.hidden;
    }

    /// Adds all but the states.
    fn count(&mut self, other: &Rank) {
        self.gap.merge(&other.gap);
        self.captured += other.captured;
        self.invisible += other.invisible;
    }
}

impl Proxy {
    /// Adds other ProxyOps of the same thread.
    pub fn merge(&mut self, other: &Proxy) {
        self.operations += other.operations;
        self.busy += other.busy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::LinkKey;
    use proptest::prelude::*;

    fn link(points: &[(u32, f64)]) -> Link {
        let mut link = Link::default();
        points.iter().for_each(|&(size, us)| link.fit.add(size, us));
        link
    }

    /// A window with `sends` sends over a link of 20 us latency and `rate` bytes per us.
    fn window(sends: u32, rate: f64) -> Metrics {
        let points = (1..=sends).map(|at| (at, 20.0 + f64::from(at) / rate));
        let mut link = link(&points.collect::<Vec<_>>());
        link.transfers = sends.into();
        Metrics { links: BTreeMap::from([(key(), link)]), ..Metrics::default() }
    }

    fn key() -> LinkKey {
        LinkKey { comm: CommKey::others(), rank: 0, peer: 1, is_send: true }
    }

    proptest! {
        #[test]
        fn least_times_are_the_same_in_any_order(
            points in proptest::collection::vec((0u32..200, 1.0..9.0f64), 0..400), cut: usize
        ) {
            let whole = link(&points).fit;
            prop_assert!(whole.least.len() <= LEAST_SIZES);
            let (left, right) = points.split_at(cut % (points.len() + 1));
            let mut merged = link(right);
            merged.merge(&link(left));
            let merged = merged.fit;
            prop_assert_eq!(&merged.least, &whole.least);
            for (size, least) in &whole.least {
                let times = points.iter().filter(|p| p.0 == *size).map(|p| p.1);
                prop_assert_eq!(*least, times.fold(f64::INFINITY, f64::min));
            }
        }
    }

    #[test]
    fn both_modes_find_rate_and_latency() {
        // 20 us and 2 GB/s; every second transfer takes 50 % longer.
        let points: Vec<(u32, f64)> = (1..=40u32)
            .map(|i| (i % 8 * 65_536, f64::from(i % 2 + 2) / 2.0))
            .map(|(size, slower)| (size, (20.0 + f64::from(size) / 2000.0) * slower))
            .collect();
        let even: Vec<(u32, f64)> = points.iter().copied().filter(|p| p.0 % 131_072 == 0).collect();
        let line = link(&even).line(Mode::Min).unwrap();
        assert!((line.rate_mb_s - 2000.0).abs() < 0.1 && line.r2 > Some(0.999), "{line:?}");
        assert!((line.latency_us.unwrap() - 20.0).abs() < 0.01, "{line:?}");
        let avg = link(&points).line(Mode::Avg).unwrap();
        assert!(avg.rate_mb_s < 2000.0 && avg.r2 < Some(0.99), "{avg:?}");
    }

    #[test]
    fn a_link_that_degrades_shows_within_two_windows_and_counts_on() {
        let mut total = Metrics::default();
        let mut rates = |sends, rate| {
            total.add_window(&window(sends, rate));
            let link = &total.links[&key()];
            let rate = |mode| link.line(mode).map(|line| line.rate_mb_s.round());
            assert_eq!(rate(Mode::Avg), rate(Mode::Min));
            (link.transfers, rate(Mode::Min))
        };
        assert_eq!(rates(8, 1000.0), (8, None), "too few");
        assert_eq!(rates(8, 1000.0), (16, Some(1000.0)), "enough in two windows");
        assert_eq!(rates(100, 1000.0), (116, Some(1000.0)));
        assert_eq!(rates(100, 200.0), (216, Some(200.0)));
        assert_eq!(rates(15, 500.0), (231, Some(200.0)), "too few");
        total.add_window(&Metrics::default());
        assert_eq!(total.links[&key()].line(Mode::Min).unwrap().rate_mb_s.round(), 200.0);
    }

    #[test]
    fn what_is_no_line_has_no_latency() {
        let link = |points: [(u32, f64); 2]| link(&points.repeat(8));
        let one_size = link([(5, 1.0), (5, 2.0)]);
        let rate = |mode| one_size.line(mode).map(|l| (l.latency_us, l.rate_mb_s.round(), l.r2));
        assert_eq!(rate(Mode::Avg), Some((None, 3.0, None)), "all that can be told");
        assert_eq!(rate(Mode::Min), Some((None, 5.0, None)));
        assert_eq!(link([(5, 2.0), (9, 1.0)]).line(Mode::Min), None);
        let steep = link([(10, 1.0), (20, 3.0)]).line(Mode::Avg).unwrap();
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
        sum.join(&window(2, 0.25));
        assert_eq!(sum.ranks[&key], Rank { in_flight: 3, oldest: 0.5, ..Rank::default() });
        assert_eq!(sum.events["Coll"], 6);
    }
}
