// SPDX-License-Identifier: Apache-2.0
//! The description of an operation from its start record, which reports, metrics and the watchdog
//! share.

use crate::bandwidth::size_bytes;
use crate::ends::{is_stop_end, sends_own_first};
use ncclscope_trace::record::Coll;
use ncclscope_trace::{Alignment, Detail, EventKind, Handle, Start, StrId};

/// Threads of a warp.
const WARP: u32 = 32;

/// The description of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `Coll`, `P2p` or `CeColl`.
    pub kind: EventKind,
    /// NCCL function name.
    pub func: StrId,
    /// NCCL datatype name.
    pub datatype: StrId,
    /// Elements of that datatype.
    pub count: u64,
    /// Algorithm; none for P2p and CeColl.
    pub algo: StrId,
    /// Protocol; none for P2p and CeColl.
    pub proto: StrId,
    /// Root rank (collectives).
    pub root: i32,
    /// The other rank (P2p).
    pub peer: Option<i32>,
    /// NCCL's sequence number, per communicator and function.
    pub seq: Option<u64>,
    /// Number of channels that NCCL announces; 0 if unknown.
    pub channels: u16,
    /// Least number of channels on which its kernel should be recorded; 0 if unknown.
    pub wanted: u16,
    /// Its kernel is a symmetric kernel, for which NCCL reports no channels.
    pub symmetric: bool,
    /// Threads of a block of its kernel; 0 if unknown.
    pub threads: u32,
    /// Variant of its kernel, if NCCL names one (API v7).
    pub variant: StrId,
    /// Alignment of its buffers.
    pub alignment: Alignment,
}

impl Facts {
    /// A description with nothing but the kind of event.
    #[must_use]
    pub const fn unknown(kind: EventKind) -> Facts {
        Facts {
            kind,
            func: StrId::NONE,
            datatype: StrId::NONE,
            count: 0,
            algo: StrId::NONE,
            proto: StrId::NONE,
            root: 0,
            peer: None,
            seq: None,
            channels: 0,
            wanted: 0,
            symmetric: false,
            threads: 0,
            variant: StrId::NONE,
            alignment: Alignment::of(0),
        }
    }

    /// Whether events of a kind are operations.
    #[must_use]
    pub const fn is_operation(kind: EventKind) -> bool {
        matches!(kind, EventKind::Coll | EventKind::P2p | EventKind::CeColl)
    }

    /// The description of the operation that starts; `None` if the event is not an operation.
    #[must_use]
    pub fn of(detail: &Detail) -> Option<Facts> {
        let none = Facts::unknown(detail.kind());
        Some(match *detail {
            Detail::Coll(c) => Facts {
                func: c.func,
                datatype: c.datatype,
                count: c.count,
                algo: c.algo,
                proto: c.proto,
                root: c.root,
                seq: Some(c.seq),
                channels: channels(&c),
                wanted: if c.symmetric { 0 } else { channels(&c) },
                symmetric: c.symmetric,
                threads: u32::from(c.warps) * WARP,
                variant: c.variant,
                alignment: c.alignment,
                ..none
            },
            Detail::P2p(p) => Facts {
                func: p.func,
                datatype: p.datatype,
                count: p.count,
                peer: Some(p.peer),
                channels: p.channels.into(),
                alignment: p.alignment,
                // A small send uses fewer channels than NCCL announces.
                wanted: 1,
                ..none
            },
            Detail::CeColl(c) => Facts {
                func: c.func,
                datatype: c.datatype,
                count: c.count,
                root: c.root,
                seq: Some(c.seq),
                alignment: c.alignment,
                ..none
            },
            _ => return None,
        })
    }

    /// Whether it is a send or receive.
    #[must_use]
    pub const fn is_p2p(&self) -> bool {
        self.peer.is_some()
    }

    /// Whether it is a copy-engine collective, which has no kernel.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.kind == EventKind::CeColl
    }

    /// Whether it certainly has a kernel; `rank` is this rank. An operation without data, or with
    /// this rank as peer, may have none.
    #[must_use]
    pub fn has_kernel(&self, rank: Option<i32>) -> bool {
        let is_own = self.peer.is_some() && self.peer == rank;
        self.wanted != 0 && self.count != 0 && !is_own
    }

    /// Whether the stop of its kernel is not its end; `name` gives the text of a string.
    pub fn stops_early<T: AsRef<str>>(&self, name: impl Fn(StrId) -> T) -> bool {
        let is_end = || is_stop_end(name(self.func).as_ref(), name(self.algo).as_ref());
        self.is_p2p() || !self.is_copy() && !self.symmetric && !is_end()
    }

    /// Whether the first data that the rank sends is its own; `name` gives the text of a string.
    pub fn sends_own_first<T: AsRef<str>>(&self, name: impl Fn(StrId) -> T) -> bool {
        sends_own_first(name(self.func).as_ref(), name(self.algo).as_ref())
    }

    /// Its size in bytes as nccl-tests define it; `None` if the datatype is unknown, or the number
    /// of ranks is unknown and matters.
    pub fn bytes<T: AsRef<str>>(
        &self,
        name: impl Fn(StrId) -> T,
        ranks: Option<u32>,
    ) -> Option<u64> {
        size_bytes(name(self.func).as_ref(), name(self.datatype).as_ref(), self.count, ranks)
    }
}

/// When an operation was enqueued, and with which others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launched {
    /// Its start, in ticks.
    pub start: u64,
    /// Its group: the operations of one group may share a kernel.
    pub group: Handle,
}

impl Launched {
    /// Takes both from the start of an operation.
    #[must_use]
    pub fn of(start: &Start) -> Launched {
        let group = match start.detail {
            Detail::Coll(coll) => coll.group,
            Detail::P2p(p2p) => p2p.group,
            _ => Handle::NULL,
        };
        // Up to API v4 the group is the parent.
        let group = if group.is_null() { start.parent } else { group };
        Launched { start: start.ticks, group }
    }

    /// Whether this operation started later than `other`, and in another kernel.
    #[must_use]
    pub fn follows(self, other: Launched) -> bool {
        self.start > other.start && self.is_apart(other)
    }

    /// Whether two operations cannot share a kernel.
    #[must_use]
    pub fn is_apart(self, other: Launched) -> bool {
        self.group.is_null() || self.group != other.group
    }
}

/// Number of channels that NCCL announces for a collective.
fn channels(coll: &Coll) -> u16 {
    u16::from(coll.channels) + if coll.more_channels { 256 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::record::{CeColl, Coll, P2p};

    #[test]
    fn an_operation_is_described_by_its_start() {
        let names = ["", "AllGather", "ncclFloat32", "TREE"];
        let name = |id: StrId| names[usize::from(id.0)];
        let coll = Coll {
            func: StrId(1),
            datatype: StrId(2),
            count: 10,
            algo: StrId(3),
            channels: 4,
            ..Coll::default()
        };
        let facts = Facts::of(&Detail::Coll(coll)).unwrap();
        assert_eq!(facts.bytes(name, Some(8)), Some(320));
        assert!(facts.stops_early(name) && facts.has_kernel(None) && facts.wanted == 4);
        let symmetric = Facts::of(&Detail::Coll(Coll { symmetric: true, ..coll })).unwrap();
        assert!(!symmetric.stops_early(name) && !symmetric.has_kernel(None));
        assert_eq!((symmetric.wanted, symmetric.channels), (0, 4));
        let send = P2p { peer: 3, count: 1, ..P2p::default() };
        let send = Facts::of(&Detail::P2p(send)).unwrap();
        assert!(send.stops_early(name) && send.has_kernel(Some(2)) && !send.has_kernel(Some(3)));
        let copy = Facts::of(&Detail::CeColl(CeColl::default()));
        assert!(copy.is_some_and(|copy| copy.is_copy() && !copy.stops_early(name)));
        assert_eq!(Facts::of(&Detail::Group), None);
    }
}
