// SPDX-License-Identifier: Apache-2.0
/*!
From records to operations: what ranks and tools share.

# What an operation is

A collective, a send, a receive, or a collective by copy engines: one Coll, P2p or CeColl event of
one rank. [`Facts`] describes it, from its start record alone. A process may be several ranks of one
communicator; each of them has a communicator index of its own, by which everything here is kept.

# How children find their parent

NCCL gives each event the handle of its parent, and a stop or a state the handle of its event. So
events are joined by handle, in whatever order their records are read: the parent is one thread's,
the ProxyOps and kernel channels (KernelCh) are another's, and each thread has a lane of its own. A
network step has no handle: it names the slot of its ProxyOp, which started on the same lane. Where
the operation came by two events (API call and Coll), the parent of the Coll is the call. The
operations of one [group](Launched) may share a kernel.

# When it is over

NCCL stops the operation's own event when the operation is *enqueued*. It is over when all of its
children have stopped, and nothing shows that more is to come; [`ends::Signs`] is that rule, for
reports, metrics and the watchdog alike. Three things make it long. ProxyOps of shared memory and
peer access start and never stop, so that one counts only where it, or its link, ever moved. The
stop of a kernel is not its end for most algorithms ([`ends`]). And a kernel that has not started
has no record: that it is outstanding follows from the kernels of the same communicator, which run
one after another ([`KernelOrder`]). Where nothing shows the end, an operation is neither over nor
open: it is not known ([`Completion::Unseen`]), and no report and no watchdog calls it stuck.

A reader that runs while records come must also wait: a lane is read up to 250 ms late, and a
ProxyOp may start long after its operation was enqueued. [`progress`] waits half a second to two
seconds, for it only tells what is stuck; the windows of the metrics wait up to ten, for what they
count as over stays counted.

# What other processes do for it

With PXN another local rank's proxy thread runs a rank's sends. [`pxn`] gives these ProxyOps back to
the operations that they belong to, in recordings that are read together.

# What losses do

An event without a record must not look like an operation that hangs. A missing kernel says nothing
where any kernel record was lost; in a rank, where each loss is noted with its parent, nothing of
that operation ([`progress::LostEvent`]). A child whose operation is missing is counted, and so is a
stop without a start. Kernels whose times are another work's, after NCCL's counts part ([`kernels`])
or its ring was overtaken ([`stamps`]), lose their times, and after the former they say nothing.

# What bounds memory

[`joiner`] reads a recording and hands each operation over when nothing more is expected of it: it
holds what is in flight, at most 131,072 events after a sweep, whatever the recording's length. It
also decodes each record once. Traces and merging show every event, and take a whole [`Timeline`],
which grows with the recording's operations, though not with what they
moved. [`progress`] holds what is in flight, of more than 8,192 operations the oldest: what hangs is
among them. The metrics' collector holds what has not settled, of more than 65,536 operations the
newest, and counts the others.

# Modules

[`Timeline`] joins the records of one process into events with parents and children.
[`operation`] finds each operation's end and where its duration is known from. [`joiner`] does both
while it reads. [`GpuClock`] places GPU time stamps on the host's clock. [`progress`] keeps track of
what is in flight while records come.

This crate does **not** read files (that is `trace`), print, or give verdicts about why something
is slow.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod bandwidth;
pub mod comm_set;
pub mod counts;
mod doubts;
pub mod ends;
pub mod facts;
pub mod filter;
pub mod function;
pub mod hash;
pub mod histogram;
mod hull;
pub mod human;
pub mod joiner;
pub mod kernels;
pub mod launches;
pub mod operation;
pub mod order;
pub mod parallel;
pub mod peers;
pub mod progress;
pub mod ptimer;
pub mod pxn;
mod read;
pub mod stamps;
pub mod stats;
pub mod steps;
pub mod threads;
pub mod timeline;
pub mod tracks;

pub use facts::{Facts, Launched};
pub use filter::{Declared, Filter, Selection};
pub use histogram::Histogram;
pub use operation::{Completion, Operation, Timing, operations};
pub use order::{KernelOrder, StreamOrder};
pub use ptimer::{GpuClock, GpuClocks};
pub use read::Whole;
pub use timeline::{Event, EventId, Parent, Timeline};
