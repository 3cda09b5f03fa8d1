// SPDX-License-Identifier: Apache-2.0
/*!
On which CUDA stream an operation runs, as its API call says, and which streams went on to later
kernels: these show that a kernel whose stop is not its end is over.

A captured call says nothing: its kernel runs where its graph is replayed.
*/

use ncclscope_operations::hash::Map;
use ncclscope_operations::{Launched, StreamOrder};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Handle, Start};

/// Calls that are kept; at more, all are forgotten.
const MOST_CALLS: usize = 1 << 14;

/// The streams of a process.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Of the calls whose operations have not settled.
    calls: Map<Handle, u64>,
    order: StreamOrder,
}

impl Streams {
    /// A call started.
    pub(super) fn call(&mut self, start: &Start, call: &ApiCall) {
        if call.graph || call.stream == 0 {
            return;
        }
        if self.calls.len() >= MOST_CALLS {
            self.calls.clear();
        }
        self.calls.insert(start.handle, call.stream);
    }

    /// The stream of an operation; 0 unknown.
    pub(super) fn of(&self, operation: &Start) -> u64 {
        self.calls.get(&operation.parent).copied().unwrap_or(0)
    }

    /// A kernel of the operation was seen.
    pub(super) fn kernel(&mut self, operation: &Start, stream: u64) {
        self.order.kernel(stream, Launched::of(operation));
    }

    /// Whether a later kernel of its stream has started.
    pub(super) fn is_followed(&self, operation: &Start, stream: u64) -> bool {
        self.order.is_followed(stream, Launched::of(operation))
    }

    /// The operation has settled.
    pub(super) fn forget(&mut self, operation: &Start) {
        self.calls.remove(&operation.parent);
    }
}
