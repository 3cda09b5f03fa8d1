// SPDX-License-Identifier: Apache-2.0
/*!
Both ends of the transfers between two ranks: what the sender gave to the network, and what of it
came.

The kernel's socket buffer takes a send at once, and some networks report a send before it arrives,
so that the state of the sender alone does not show a path that loses data: the counts of both ends
do. Steps that were given, have not come, and for which the receiver has posted receives are *lost*.
If both ends have stood still for the limit, and the receiver was heard from after that, the path
between them is stalled.

The recording of a process that is killed or silent ends earlier than that of others. Its counts are
lower bounds: a sender has given at least what it shows, but what a receiver shows is compared only
with what the sender had given while the receiver was heard from.
*/

use crate::job::{Communicator, Job, Process, Vector};
use crate::state;
use ncclscope_findings::rank::Transfer;
use ncclscope_limits::{clocks, hangs};

/// One end of an edge: its counts, in steps, and its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// All steps of the transfer; `None` if unknown.
    steps: Option<u32>,
    /// Steps that the sender may fill, or for which the receiver has posted receives.
    posted: u32,
    /// Steps given to the network, or steps that have come.
    moved: u32,
    /// Steps that are complete for NCCL: sent, or taken by the receiver's GPU.
    done: u32,
    /// Its oldest step is data that has come.
    has_come: bool,
    /// When any of this last changed, ns since 1970; `None` if the input does not say it.
    changed_ns: Option<u64>,
    /// When the process was last heard from, ns since 1970.
    heard_ns: Option<u64>,
}

/// The transfers of an operation from one rank to another on one channel. An end that the input
/// does not show is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    sender: Option<End>,
    receiver: Option<End>,
    are_on_one_host: bool,
}

/// What the counts of both ends of an edge show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Steps were given to the network for longer than the limit, and have not come.
    Stalled(Lost),
    /// Everything that was given has come.
    Moved,
    /// An end is not known, or not for long enough.
    Unknown,
}

/// Steps that were lost on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Steps that the sender gave to the network.
    pub(crate) given: u32,
    /// Steps that have come.
    pub(crate) come: u32,
    /// Steps for which the receiver has posted receives.
    pub(crate) posted: u32,
    /// For how long the receiver has seen none of them come, ns.
    pub(crate) still_ns: u64,
}

impl Edge {
    /// The edge of a transfer of the member at `at`; the member at `peer` is at its other side.
    pub(crate) fn new(
        job: &Job,
        comm: &Communicator,
        (at, one): (usize, &Transfer),
        peer: usize,
    ) -> Edge {
        let [own, other] = [at, peer].map(|at| &comm.vectors[at]);
        let [here, there] = [own, other].map(|vector| &job.processes[vector.process as usize]);
        let near = End::of(one, here);
        let far = far_end(comm, (own, one), (peer, there));
        let are_on_one_host = here.host.is_some() && here.host == there.host;
        let (sender, receiver) = if one.is_send { (Some(near), far) } else { (far, Some(near)) };
        Edge { sender, receiver, are_on_one_host }
    }

    /// What the counts show, if a wait counts from the age of `hang_ns`.
    pub(crate) fn path(&self, hang_ns: u64) -> Path {
        let (Some(sender), Some(receiver)) = (self.sender, self.receiver) else {
            return Path::Unknown;
        };
        // If the two ends divide the data differently, their steps are not the same.
        if sender.steps.is_none() || sender.steps != receiver.steps {
            return Path::Unknown;
        }
        if receiver.moved > 0 && receiver.moved >= sender.moved {
            return Path::Moved;
        }
        let is_posted = sender.moved.min(receiver.posted) > receiver.moved;
        match self.still_ns().filter(|&still_ns| is_posted && still_ns >= hang_ns) {
            Some(still_ns) => Path::Stalled(Lost {
                given: sender.moved,
                come: receiver.moved,
                posted: receiver.posted,
                still_ns,
            }),
            None => Path::Unknown,
        }
    }

    /// For how long both ends are known to have stood still, ns; `None` if the receiver was not
    /// heard from after the sender's last change.
    fn still_ns(&self) -> Option<u64> {
        let (sender, receiver) = (self.sender?, self.receiver?);
        let clocks_ns = if self.are_on_one_host { 0 } else { clocks::HOSTS_NS };
        let least = sender.changed_ns?.saturating_add(hangs::HEARTBEAT_NS + clocks_ns);
        let still = |end: End| Some(end.heard_ns?.saturating_sub(end.changed_ns?));
        let both = still(sender)?.min(still(receiver)?);
        (receiver.heard_ns? >= least).then_some(both)
    }

    /// True if the sender's network has completed steps that the receiver's GPU has not taken.
    pub(crate) fn is_delivered(&self) -> bool {
        let ends = self.sender.zip(self.receiver);
        ends.is_some_and(|(sender, receiver)| sender.done > receiver.done)
    }

    /// True if the oldest step that the receiver's GPU has not taken has come.
    pub(crate) fn has_come(&self) -> bool {
        self.receiver.is_some_and(|receiver| receiver.has_come)
    }
}

impl End {
    fn of(one: &Transfer, process: &Process) -> End {
        let moved = if one.is_send { one.transmitted } else { one.ready };
        End {
            steps: Some(one.steps).filter(|&steps| steps > 0),
            posted: one.posted,
            moved: moved.max(one.done),
            done: one.done,
            has_come: !one.is_send && one.reached >= Some(2) && !one.is_only_told(),
            changed_ns: process.heard_ns.map(|heard| heard.saturating_sub(one.still_ns)),
            heard_ns: process.heard_ns,
        }
    }
}

/// The other end, at the member `peer`, of a transfer in the operation that `own` is in. A member
/// that has finished that operation has moved all of its steps. One that has left the communicator
/// may have aborted what it had not moved.
fn far_end(
    comm: &Communicator,
    (own, one): (&Vector, &Transfer),
    (peer, process): (usize, &Process),
) -> Option<End> {
    let other = &comm.vectors[peer];
    if other.has_left {
        return None;
    }
    if other.done >= own.front() && !other.is_blind {
        let steps = Some(one.steps).filter(|&steps| steps > 0);
        let all = steps.unwrap_or(u32::MAX);
        return Some(End {
            steps,
            posted: all,
            moved: all,
            done: all,
            has_come: false,
            changed_ns: other.changed_ns,
            heard_ns: process.heard_ns,
        });
    }
    if other.front() != own.front() {
        return None;
    }
    let rank = i32::try_from(own.rank).ok()?;
    let is_it =
        |it: &&Transfer| it.is_send != one.is_send && it.peer == rank && it.channel == one.channel;
    Some(End::of(state::transfers(comm, peer).iter().find(is_it)?, process))
}
