// SPDX-License-Identifier: Apache-2.0
/*!
Joins records to operations; ranks and tools share this code.

# What an operation is

A collective, a send, a receive, or a collective by copy engines: one Coll, P2p or CeColl event of
one rank. [`Facts`] describes it, from its start record alone. A process may have several ranks of
one communicator; each has its own communicator index, which is the key of all state here.

# How children find their parent

NCCL gives each event the handle of its parent, and a stop or a state the handle of its event.
Events are joined by handle, whatever the order in which their records are read, because the parent
and the ProxyOps and kernel channels (KernelCh) are of different threads, and each thread has its
own lane. A network step has no handle: it names the slot of its ProxyOp, which started on the same
lane. If there are an API call and a Coll for an operation, the call is the parent of the Coll. The
operations of one [group](Launched) may share a kernel.

# When it is over

NCCL stops the operation's own event when the operation is *enqueued*. It is over when all of its
children have stopped, and nothing shows that more is to come; [`ends::Signs`] is that rule, for
reports, metrics and the watchdog alike. Three facts complicate it. ProxyOps of shared memory and
peer access start and never stop, so a ProxyOp counts only if it, or another on its link, ever moved
data. The stop of a kernel is not its end for most algorithms ([`ends`]). And a kernel that has not
started has no record: whether it is outstanding follows from the other kernels of the communicator,
which run one after another ([`KernelOrder`]). If no record shows the end, an operation is neither
over nor open but unknown ([`Completion::Unseen`]), and reports and the watchdog do not call it
hung.

A reader that runs while records come must also wait: a lane is read up to 250 ms late, and a
ProxyOp may start long after its operation was enqueued. [`progress`] waits half a second to two
seconds, because it only has to find hangs; the windows of the metrics wait up to ten seconds,
because they cannot take back what they counted.

# What other processes do for it

With PXN another local rank's proxy thread runs a rank's sends. [`pxn`] assigns these ProxyOps to
their operations, among recordings that are read together.

# What losses do

An event without a record must not look like an operation that hangs. Tools draw no conclusion from
a missing kernel if any kernel record was lost. In a rank each loss is noted with its parent, so
only that operation is affected ([`progress::LostEvent`]). A child whose operation is missing is
counted, and so is a stop without a start. Kernel times that belong to another work, because NCCL's
counts differ ([`kernels`]) or its ring was overtaken ([`stamps`]), are dropped; in the first case
the kernel events are not used at all.

# What bounds memory

[`joiner`] reads a recording, decodes each record once, and passes each operation on when no more
records of it are expected. It holds the events in flight, at most 131,072 after a sweep (a million
of operations and calls that have not ended), whatever the recording's length. Traces and merging
show every event and need a whole [`Timeline`], which grows with the number of operations, not with
their bytes. [`progress`] holds the operations in flight; of more than 8,192 it keeps the oldest,
which include those that hang. The metrics' collector holds the operations that have not settled; of
more than 65,536 it keeps the newest, and counts the others.

# Modules

[`Timeline`] joins the records of one process into events with parents and children. [`operation`]
finds each operation's end, and the source of its duration. [`joiner`] does both while it reads.
[`GpuClock`] converts GPU time stamps to the host's clock. [`progress`] tracks the operations in
flight while records come.

This crate does **not** read files (that is `trace`), print, or give verdicts about why something
is slow.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod bandwidth;
pub mod channels;
pub mod comm_set;
pub mod counts;
mod doubts;
pub mod ends;
pub mod event_id;
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
pub mod positions;
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

pub use event_id::EventId;
pub use facts::{Facts, Launched};
pub use filter::{Declared, Filter, Selection};
pub use histogram::Histogram;
pub use operation::{Completion, Operation, Timing, operations};
pub use order::{KernelOrder, StreamOrder};
pub use ptimer::{GpuClock, GpuClocks};
pub use timeline::{Event, Parent, Timeline};
