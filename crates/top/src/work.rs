// SPDX-License-Identifier: Apache-2.0
/*!
What a rank did in a span of time, as sums: by function and by link.

Spans can be added ([`Work::add`]), and counters at two moments subtracted ([`Work::since`]).
Nothing here is a rate yet.
*/

use std::collections::BTreeMap;

/// A communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Comm {
    /// NCCL's hash, which is the same on all ranks.
    pub hash: u64,
    /// Role or name; several communicators may have the same.
    pub name: String,
}

impl Comm {
    /// A communicator; without a name, its hash is shown.
    #[must_use]
    pub fn new(hash: u64, name: &str) -> Comm {
        let name = if name.is_empty() { format!("{:08x}", hash >> 32) } else { name.to_owned() };
        Comm { hash, name }
    }

    /// The hash in the form of all outputs; `None` if unknown.
    pub(crate) fn hash_text(&self) -> Option<String> {
        (self.hash != 0).then(|| format!("{:#x}", self.hash))
    }
}

/// A function of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionKey {
    /// The communicator.
    pub comm: Comm,
    /// NCCL's function.
    pub func: String,
    /// A send or receive.
    pub is_p2p: bool,
}

/// Sums over the operations of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Function {
    /// Number of operations that ended.
    pub count: f64,
    /// Bytes of these operations, as nccl-tests count them.
    pub bytes: f64,
    /// Number of operations with a known duration.
    pub timed: f64,
    /// The sum of these durations, s.
    pub seconds: f64,
    /// Number of operations with a known bus bandwidth.
    pub measured: f64,
    /// The sum of these bandwidths, B/s.
    pub bandwidths: f64,
}

/// One direction between two ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkKey {
    /// The communicator.
    pub comm: Comm,
    /// Rank of this process in the communicator.
    pub rank: i32,
    /// Rank of the peer in the communicator.
    pub peer: i32,
    /// This rank sends.
    pub is_send: bool,
}

/// Sums over the transfers of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Number of transfers.
    pub transfers: f64,
    /// Bytes of the transfers.
    pub bytes: f64,
    /// Their time on the network, s.
    pub seconds: f64,
}

/// What a rank did in a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// By function.
    pub functions: BTreeMap<FunctionKey, Function>,
    /// By link.
    pub links: BTreeMap<LinkKey, Link>,
}

impl Work {
    /// Adds what the rank did in another span.
    pub fn add(&mut self, other: &Work) {
        for (key, more) in &other.functions {
            self.functions.entry(key.clone()).or_default().change(more, |sum, x| sum + x);
        }
        for (key, more) in &other.links {
            self.links.entry(key.clone()).or_default().change(more, |sum, x| sum + x);
        }
    }

    /// The growth of the counters since `before`. A counter that is lower than before has
    /// restarted, and a missing one counts as zero.
    #[must_use]
    pub fn since(&self, before: &Work) -> Work {
        let mut grown = self.clone();
        for (key, function) in &mut grown.functions {
            match before.functions.get(key) {
                Some(old) if old.count <= function.count => function.change(old, grow),
                _ => {}
            }
        }
        for (key, link) in &mut grown.links {
            match before.links.get(key) {
                Some(old) if old.transfers <= link.transfers => link.change(old, grow),
                _ => {}
            }
        }
        grown.functions.retain(|_, function| function.count > 0.0);
        grown.links.retain(|_, link| link.transfers > 0.0);
        grown
    }
}

fn grow(now: f64, before: f64) -> f64 {
    (now - before).max(0.0)
}

impl Function {
    fn change(&mut self, by: &Function, how: impl Fn(f64, f64) -> f64) {
        for (field, other) in [
            (&mut self.count, by.count),
            (&mut self.bytes, by.bytes),
            (&mut self.timed, by.timed),
            (&mut self.seconds, by.seconds),
            (&mut self.measured, by.measured),
            (&mut self.bandwidths, by.bandwidths),
        ] {
            *field = how(*field, other);
        }
    }

    /// Adds other operations.
    pub fn merge(&mut self, other: &Function) {
        self.change(other, |sum, x| sum + x);
    }

    /// Mean bus bandwidth of the operations, B/s; `None` if unknown.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        (self.measured > 0.0).then(|| self.bandwidths / self.measured)
    }

    /// Mean duration of the operations, s; `None` if unknown.
    pub(crate) fn duration(&self) -> Option<f64> {
        (self.timed > 0.0).then(|| self.seconds / self.timed)
    }
}

impl Link {
    fn change(&mut self, by: &Link, how: impl Fn(f64, f64) -> f64) {
        self.transfers = how(self.transfers, by.transfers);
        self.bytes = how(self.bytes, by.bytes);
        self.seconds = how(self.seconds, by.seconds);
    }

    /// Adds other transfers.
    pub fn merge(&mut self, other: &Link) {
        self.change(other, |sum, x| sum + x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(count: f64, transfers: f64) -> Work {
        let comm = Comm::new(1, "dp");
        let key = FunctionKey { comm: comm.clone(), func: "AllReduce".into(), is_p2p: false };
        let function = Function { count, bytes: 10.0 * count, ..Function::default() };
        let link = LinkKey { comm, rank: 0, peer: 1, is_send: true };
        let of = Link { transfers, bytes: 5.0 * transfers, seconds: 0.5 };
        Work { functions: [(key, function)].into(), links: [(link, of)].into() }
    }

    #[test]
    fn spans_add_up_and_counters_have_differences() {
        let mut sum = work(2.0, 4.0);
        sum.add(&work(3.0, 1.0));
        let function = sum.functions.values().next().unwrap();
        assert_eq!((function.count, function.bytes), (5.0, 50.0));
        let grown = sum.since(&work(2.0, 4.0));
        assert_eq!(grown.functions, work(3.0, 1.0).functions);
        assert_eq!(grown.links.values().next().unwrap().bytes, 5.0);
        let again = work(1.0, 1.0).since(&sum);
        assert_eq!(again, work(1.0, 1.0), "the process began anew");
        assert_eq!(sum.since(&sum), Work::default(), "nothing happened");
    }
}
