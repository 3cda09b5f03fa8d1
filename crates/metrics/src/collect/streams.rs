// SPDX-License-Identifier: Apache-2.0
/*!
The CUDA stream of each operation, from its API call, and the latest kernel of each stream, which
shows that an earlier kernel is over even if its stop is not its end.

Captured calls are ignored, because their kernels run on the stream on which the graph is replayed.
*/

use ncclscope_operations::hash::Map;
use ncclscope_operations::{Launched, StreamOrder};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Handle, Start};

/// Most calls that are kept; beyond that all are forgotten.
const MOST_CALLS: usize = 1 << 14;

/// The streams of a process.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The streams of calls whose operations have not settled.
    calls: Map<Handle, u64>,
    order: StreamOrder,
}

impl Streams {
    /// Takes the start of an API call.
    pub(super) fn call(&mut self, start: &Start, call: &ApiCall) {
        if call.graph || call.stream == 0 {
            return;
        }
        if self.calls.len() >= MOST_CALLS {
            self.calls.clear();
        }
        self.calls.insert(start.handle, call.stream);
    }

    /// The stream of an operation; 0 if unknown.
    pub(super) fn of(&self, operation: &Start) -> u64 {
        self.calls.get(&operation.parent).copied().unwrap_or(0)
    }

    /// Takes the start of a kernel of an operation.
    pub(super) fn kernel(&mut self, operation: &Start, stream: u64) {
        self.order.kernel(stream, Launched::of(operation));
    }

    /// Whether a later kernel of its stream has started.
    pub(super) fn is_followed(&self, operation: &Start, stream: u64) -> bool {
        self.order.is_followed(stream, Launched::of(operation))
    }

    /// Forgets the call of an operation that has settled.
    pub(super) fn forget(&mut self, operation: &Start) {
        self.calls.remove(&operation.parent);
    }
}
