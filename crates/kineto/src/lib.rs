// SPDX-License-Identifier: Apache-2.0
/*!
Writes recordings into PyTorch's own profiles: traces that Kineto wrote as Chrome JSON.

[`Trace::scan`] reads a trace once; apart from the trace's NCCL kernels and their CPU operations it
needs constant memory. [`identity::choose`] finds the recording of the same process. [`join()`]
pairs the kernels with the launches of the recording, each at most once, and returns the key of each
pair and its confidence. [`write()`] copies the trace byte for byte, with the tracks of the
recording after its last event; [`merged`] writes those of several ranks as one.

This crate does **not** read recordings (that is `trace`), join records to operations (that is
`operations`), or print (that is `cli`).
*/
#![forbid(unsafe_code)]

mod align;
mod args;
pub mod beside;
mod event;
pub mod facts;
pub mod file;
pub mod identity;
pub mod join;
pub mod json;
pub mod merged;
pub mod offset;
pub mod rank;
pub mod trace;
pub mod write;

pub use join::join;
pub use rank::Rank;
pub use trace::Trace;
pub use write::write;
