// SPDX-License-Identifier: Apache-2.0
/*!
What the system shows of a process that NCCL reports nothing about: which of its threads are in a
function that creates or ends a communicator, and what its sockets wait for.

NCCL's profiler interface has no event for `ncclCommInitRank…`, `Split`, `Abort` and `Destroy`, so
that a thread that hangs there looks as if it was outside NCCL. The system shows it: a return
address into such a function is on the thread's stack ([`calls()`]). The sockets ([`sockets()`])
show to whom NCCL connects, and on which interface it waits for others.

All of it is read from `/proc`: a rank looks at itself (`/proc/self`), the tool at the processes of
its user. This crate does **not** judge what it sees, stop what it looks at, or need any privilege
beyond that of a debugger of the same user.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod calls;
mod maps;
pub mod sockets;
mod symbols;

pub use calls::{Call, Calls, calls};
pub use sockets::{Sockets, sockets};
