// SPDX-License-Identifier: Apache-2.0
//! For how long something else may explain that an operation stands still.

use ncclscope_limits::hangs::{self, MOST_NS};

/// `factor` times the limit (both in ns), within [`MOST_NS`].
#[must_use]
pub const fn extended(limit_ns: u64, factor: u64) -> u64 {
    let most = if MOST_NS > limit_ns { MOST_NS } else { limit_ns };
    let extended = limit_ns.saturating_mul(factor);
    if extended < most { extended } else { most }
}

/// The longest time (ns) for which operations that end elsewhere excuse one that stands still.
/// After it the watchdog reports a hang.
#[must_use]
pub const fn excused(limit_ns: u64) -> u64 {
    extended(limit_ns, hangs::EXCUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excuse_ends_before_pytorch_ends_the_process() {
        const S: u64 = 1_000_000_000;
        assert_eq!([10, 300, 900].map(|limit| excused(limit * S) / S), [40, 540, 900]);
        assert_eq!(extended(30 * S, 10) / S, 300);
    }
}
