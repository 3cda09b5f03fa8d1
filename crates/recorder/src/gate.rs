// SPDX-License-Identifier: Apache-2.0
//! The first load of every callback: does anything happen at all?

use crate::sync::{AtomicU8, Ordering};

static GATE: AtomicU8 = AtomicU8::new(OFF);
const OFF: u8 = 0;
const ON: u8 = 1;
const DEAD: u8 = 2;

/// True while callbacks record; then all set-up before [`open`] is seen too.
#[must_use]
#[inline(always)]
pub fn is_open() -> bool {
    GATE.load(Ordering::Acquire) == ON
}

/// Opens the gate, unless it was [`kill`]ed. Publishes all set-up before it.
pub fn open() {
    let _ = GATE.compare_exchange(OFF, ON, Ordering::Release, Ordering::Relaxed);
}

/// Closes the gate for the rest of the process: after a fork (in the child) or a contained panic.
/// Safe to call in a signal handler or an `atfork` handler.
pub fn kill() {
    GATE.store(DEAD, Ordering::Relaxed);
}

/// True after [`kill`].
#[must_use]
pub fn is_dead() -> bool {
    GATE.load(Ordering::Relaxed) == DEAD
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_killed_gate_stays_shut() {
        assert!(!super::is_open());
        super::open();
        assert!(super::is_open());
        super::kill();
        super::open();
        assert!(!super::is_open() && super::is_dead());
    }
}
