// SPDX-License-Identifier: Apache-2.0
/*!
Network links: the transfers of a process to and from each peer, and the times that it waited.

A send waits for the GPU, then for the peer's buffer, then for the network; a receive waits for the
network (and with it for the sender), then for the flush, then for the GPU. Latency and rate come
from a straight line through the network times of sends over their sizes. With the socket transport
a send is over when the operating system has taken the data, so latency and rate describe only the
local side.
*/

use crate::stats::LinearFit;
use crate::steps::StepExt;
use ncclscope_trace::record::{ProxyOp, step_flags};
use ncclscope_trace::{Step, TickMap};
use std::collections::BTreeMap;

/// One direction between this process and a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LinkKey {
    /// Position of the communicator.
    pub comm: usize,
    /// This process's rank, as the ProxyOp reports it.
    pub rank: i32,
    /// The other rank.
    pub peer: i32,
    /// Whether this process sends.
    pub is_send: bool,
}

/// The transfers over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Steps that stopped.
    pub transfers: u64,
    /// Steps with a size, of those in `transfers`.
    pub sized: u64,
    /// Bytes of the steps with a size, and those that states of ProxyOps report.
    pub bytes: u64,
    /// The bytes come from states of ProxyOps (API v1 to v3, whose steps have no size).
    pub is_told: bool,
    /// Ticks spent in the three states of its steps (see [`crate::steps::states`]).
    waits: [u64; 3],
    /// `waits` in ns; set by [`Links::finish`].
    pub waits_ns: [f64; 3],
    /// Network time of sends (µs) as a function of their size (bytes).
    pub fit: LinearFit,
}

impl Link {
    fn add(&mut self, step: &Step, clock: &TickMap) {
        let waits = step.waits();
        self.transfers += 1;
        for (sum, wait) in self.waits.iter_mut().zip(waits) {
            *sum = sum.saturating_add(wait);
        }
        if step.has(step_flags::SIZED) {
            self.sized += 1;
            self.bytes += u64::from(step.size);
            if step.has(step_flags::IS_SEND) && step.has(step_flags::THIRD) {
                let us = clock.duration_ns(waits[2]) / 1e3;
                self.fit.add(f64::from(step.size), us);
            }
        }
    }
}

impl Link {
    fn merge(&mut self, other: &Link) {
        self.transfers += other.transfers;
        self.sized += other.sized;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.is_told |= other.is_told;
        for (sum, wait) in self.waits.iter_mut().zip(other.waits) {
            *sum = sum.saturating_add(wait);
        }
        self.fit.merge(&other.fit);
    }
}

/// The links of a process, each with a number, so that adding a step needs no lookup.
#[derive(Clone, Debug, Default)]
pub struct Links {
    numbers: BTreeMap<LinkKey, usize>,
    links: Vec<Link>,
}

impl Links {
    /// The number of the link of a ProxyOp; adds the link if it is new.
    pub fn number(&mut self, comm: usize, op: &ProxyOp) -> usize {
        self.of_key(LinkKey { comm, rank: op.rank, peer: op.peer, is_send: op.is_send })
    }

    fn of_key(&mut self, key: LinkKey) -> usize {
        *self.numbers.entry(key).or_insert_with(|| {
            self.links.push(Link::default());
            self.links.len() - 1
        })
    }

    /// Adds a step to a link. A step that did not stop is not counted.
    pub fn add(&mut self, number: usize, step: &Step, clock: &TickMap) {
        if let Some(link) = self.links.get_mut(number).filter(|_| step.has(step_flags::STOPPED)) {
            link.add(step, clock);
        }
    }

    /// Adds bytes that a state of a ProxyOp reports.
    pub fn add_told(&mut self, comm: usize, op: &ProxyOp, bytes: u64) {
        let number = self.number(comm, op);
        if let Some(link) = self.links.get_mut(number) {
            link.bytes = link.bytes.saturating_add(bytes);
            link.is_told = true;
        }
    }

    /// Adds the links of another process's proxy thread whose communicators `comm` maps to
    /// positions.
    pub(crate) fn merge(&mut self, other: &Links, comm: impl Fn(usize) -> Option<usize>) {
        for (key, link) in other.iter() {
            let Some(comm) = comm(key.comm) else { continue };
            let number = self.of_key(LinkKey { comm, ..*key });
            if let Some(own) = self.links.get_mut(number) {
                own.merge(link);
            }
        }
    }

    /// Converts the waits to ns, after all steps are added.
    pub fn finish(&mut self, clock: &TickMap) {
        for link in &mut self.links {
            link.waits_ns = link.waits.map(|ticks| clock.duration_ns(ticks));
        }
    }

    /// Whether any step went over this link.
    #[must_use]
    pub fn contains(&self, key: &LinkKey) -> bool {
        self.numbers.contains_key(key)
    }

    /// The links in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&LinkKey, &Link)> {
        self.numbers.iter().map(|(key, &number)| (key, &self.links[number]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_fitted_and_open_steps_are_not_counted() {
        let clock = TickMap::new(vec![], 1_000_000_000);
        let op = ProxyOp { rank: 1, peer: 0, is_send: true, ..ProxyOp::default() };
        let mut links = Links::default();
        let flags = step_flags::IS_SEND
            | step_flags::STOPPED
            | step_flags::FIRST
            | step_flags::THIRD
            | step_flags::SIZED;
        for size in [1000u32, 2000, 3000] {
            // 16 µs and 1 ns for each byte, in units of 16 ns.
            let end = u64::from(16_000 + size) >> 4;
            let step = Step { flags, size, end: end + 2, states: [0, 0, 2], ..Step::default() };
            let number = links.number(0, &op);
            links.add(number, &step, &clock);
        }
        links.add(0, &Step { flags: step_flags::FIRST, ..Step::default() }, &clock);
        let (key, link) = links.iter().next().unwrap();
        assert_eq!((key.rank, key.peer, key.is_send), (1, 0, true));
        assert_eq!((link.transfers, link.sized, link.bytes), (3, 3, 6000));
        let line = link.fit.line().unwrap();
        assert!((line.intercept - 16.0).abs() < 0.1, "{line:?}");
        assert!((line.slope - 1e-3).abs() < 1e-5, "{line:?}");
    }
}
