// SPDX-License-Identifier: Apache-2.0
/*!
A sample of the transfers of links as each end shows them: when the sender gave data to the network,
when the receiver was ready for it, and when it came.

Both ends keep the same operations without asking each other: those whose number's hash is small.
The limit of the hash is halved whenever there are too many.
*/

use super::comm_id::LinkId;
use crate::model::Transfer;
use ncclscope_operations::steps::StepExt;
use ncclscope_trace::{Step, TickMap};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Steps that are kept of an operation on a channel: those behind the first show what the network
/// does when it has data to send.
pub(super) const STEPS: usize = 8;
/// Operations that are kept of a link's channel in a job of [`FEW_RANKS`], and at least.
const OPERATIONS: [usize; 2] = [64, 4];
/// Larger jobs keep fewer operations of each link, so that the memory does not grow: 24 bytes for
/// each of [`STEPS`] at both ends.
const FEW_RANKS: usize = 256;

/// One end of a transfer. Times are those of the process: ticks while it is read, then ns since
/// 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    bytes: u32,
    /// NCCL's number of the step within its operation.
    step: u16,
    /// It follows an idle time; a receiver does not know that.
    is_first: bool,
    /// For a receiver: when it was ready.
    ready: u64,
    /// When a sender gave the data to the network, or when a receiver had it.
    at: u64,
}

impl End {
    /// The end that a completed step shows, if it is not far from the first of its operation;
    /// `is_first` if it follows an idle time.
    pub(super) fn of(step: &Step, (is_send, is_first): (bool, bool)) -> Option<End> {
        let (ready, at) = match (is_send, step.state_ticks()) {
            (true, [.., sent]) => (sent?, sent?),
            (false, [ready, flush, gpu]) => {
                (ready?, flush.or(gpu).unwrap_or_else(|| step.end_ticks()))
            }
        };
        let number = step.step.try_into().ok()?;
        Some(End { step: number, bytes: step.size, is_first, ready, at })
    }

    /// The same, with ns instead of ticks.
    pub(super) fn in_ns(self, clock: &TickMap) -> End {
        let [ready, at] = [self.ready, self.at].map(|ticks| clock.realtime_ns(ticks));
        End { ready, at, ..self }
    }
}

/// A link's transfers for collectives, or those for sends and receives.
type Key = (LinkId, bool);

/// The samples of links at one or both of their ends.
#[derive(Debug, Default)]
pub(super) struct Samples {
    sent: BTreeMap<Key, Sample>,
    received: BTreeMap<Key, Sample>,
}

/// The sample of one end of a link's channel.
#[derive(Debug, Default)]
struct Sample {
    /// Only operations whose hashes begin with so many zero bits are kept.
    zeros: u32,
    /// Hash and ends of each, in the order of the hashes.
    operations: Vec<(u64, Box<[End]>)>,
}

impl Samples {
    /// Adds the first transfers of an operation of a function with a sequence number; of sends and
    /// receives, `number` says which one of the link it is. A job of so many processes has a bound.
    pub(super) fn add(
        &mut self,
        key: Key,
        (is_send, ends): (bool, impl Iterator<Item = End>),
        operation: (&str, u64),
        processes: usize,
    ) {
        let samples = if is_send { &mut self.sent } else { &mut self.received };
        let [most, least] = OPERATIONS;
        let most = (most * FEW_RANKS / processes.max(1)).clamp(least, most);
        samples.entry(key).or_default().add(hash(operation), ends, most);
    }

    /// Leaves out sends and receives, which cannot be matched by counting if some are missing.
    pub(super) fn without_p2p(&mut self) {
        self.sent.retain(|(_, is_collective), _| *is_collective);
        self.received.retain(|(_, is_collective), _| *is_collective);
    }

    /// Adds the samples of another process.
    pub(super) fn merge(&mut self, other: Samples) {
        self.sent.extend(other.sent);
        self.received.extend(other.received);
    }

    /// The transfers of a link that both samples show, and whether each follows an idle time;
    /// `since` converts a time to the job's.
    pub(super) fn of(&self, link: LinkId, since: impl Fn(u64) -> f64) -> Vec<(Transfer, bool)> {
        let both = [true, false].into_iter().filter_map(|is_collective| {
            let key = (link, is_collective);
            self.sent.get(&key).zip(self.received.get(&key))
        });
        both.flat_map(|(sent, received)| sent.join(received, &since)).collect()
    }
}

impl Sample {
    /// Adds an operation; of several with one number the first.
    fn add(&mut self, hash: u64, ends: impl Iterator<Item = End>, most: usize) {
        if hash.leading_zeros() < self.zeros {
            return;
        }
        let Err(at) = self.find(hash) else { return };
        let ends: Box<[End]> = ends.collect();
        if ends.is_empty() {
            return;
        }
        self.operations.insert(at, (hash, ends));
        while self.operations.len() > most {
            self.zeros += 1;
            let zeros = self.zeros;
            self.operations.retain(|(hash, _)| hash.leading_zeros() >= zeros);
        }
    }

    /// Where an operation is, or would be.
    fn find(&self, hash: u64) -> Result<usize, usize> {
        self.operations.binary_search_by_key(&hash, |(hash, _)| *hash)
    }

    /// The transfers of a sender's sample that a receiver's sample shows, too.
    fn join(&self, received: &Sample, since: impl Fn(u64) -> f64) -> Vec<(Transfer, bool)> {
        let mut transfers = Vec::new();
        for (hash, sent) in &self.operations {
            let Ok(at) = received.find(*hash) else { continue };
            let received = &received.operations[at].1;
            for (at, came) in received.iter().enumerate() {
                let Some(given) = sent.iter().find(|end| end.step == came.step) else { continue };
                let before = at.checked_sub(1).map_or(0, |before| received[before].at);
                let transfer = Transfer {
                    bytes: given.bytes.max(came.bytes),
                    given: since(given.at),
                    ready: since(came.ready.max(before)),
                    came: since(came.at),
                };
                transfers.push((transfer, given.is_first));
            }
        }
        transfers
    }
}

/// The hash of an operation, the same at all ranks: `DefaultHasher` has no random key.
fn hash(operation: (&str, u64)) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(operation)
}

#[cfg(test)]
mod tests {
    use super::super::comm_id::CommKey;
    use super::*;

    fn ends(seq: u64) -> impl Iterator<Item = End> {
        let end = move |step: u16| {
            let ns = 1000 * seq + u64::from(step);
            End { step, bytes: 8, is_first: step == 0, ready: ns, at: ns }
        };
        (0..3).map(end)
    }

    #[test]
    fn both_ends_keep_the_same_operations() {
        let link = (CommKey::default(), 0, 1, 0);
        let mut samples = Samples::default();
        let add = |samples: &mut Samples, is_send, seq| {
            samples.add((link, true), (is_send, ends(seq)), ("AllReduce", seq), 1);
        };
        (0..10_000).for_each(|seq| add(&mut samples, true, seq));
        // The receiver's recording begins later, and ends earlier.
        (3_000..9_000).for_each(|seq| add(&mut samples, false, seq));
        let both = samples.of(link, ncclscope_operations::stats::to_f64);
        let operations = both.len() / 3;
        assert!((16..=64).contains(&operations), "{operations}");
        assert!(both.iter().all(|(it, is_first)| (it.given % 1000.0 == 0.0) == *is_first));
        assert!(both.iter().all(|(it, _)| it.given == it.came && (3e6..9e6).contains(&it.given)));
        // Of the second step on, the receiver is ready when it has the one before, or later.
        assert!(both.iter().all(|(it, _)| it.ready == it.came));
    }

    #[test]
    fn sends_are_left_out_where_they_cannot_be_counted() {
        let link = (CommKey::default(), 0, 1, 0);
        let mut samples = Samples::default();
        for is_send in [true, false] {
            samples.add((link, false), (is_send, ends(1)), ("", 1), 1);
        }
        assert_eq!(samples.of(link, |_| 0.0).len(), 3);
        samples.without_p2p();
        assert_eq!(samples.of(link, |_| 0.0).len(), 0);
    }
}
