// SPDX-License-Identifier: Apache-2.0
//! The guard around every entry: no panic reaches NCCL.

use ncclscope_abi::NcclResult;
use ncclscope_runtime::Runtime;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`. If it panics, recording ends for this process, and NCCL hears of success: an error
/// would make it unload the plugin under the feet of other communicators.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce()) -> NcclResult {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        Runtime::get().contain();
    }
    NcclResult::SUCCESS
}

/// As [`guard`] for what may leave the work to somebody else, who gets it after a panic too.
#[inline(always)]
pub(crate) fn attempt<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_panic| {
        Runtime::get().contain();
        None
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_is_contained_and_ends_the_recording() {
        let result = super::guard(|| panic!("a defect"));
        assert_eq!(result, ncclscope_abi::NcclResult::SUCCESS);
        assert!(ncclscope_recorder::gate::is_dead());
    }
}
