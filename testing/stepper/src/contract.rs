// SPDX-License-Identifier: Apache-2.0
//! The limits of a callback's cost, and the table of measured costs.

use crate::phase::Phase;
use crate::trace::{Call, Kind, Stepped};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Bytes of stack that a callback may use: hosts may call with small stacks. Measured: 768 if the
/// linker allocates, otherwise half of that.
pub const STACK: u64 = 2048;

/// The maximum number of instructions of a callback: about 1.3 times the measured values.
#[must_use]
pub fn bound(phase: Phase, kind: Kind) -> u64 {
    match (phase, kind.event, kind.call) {
        // From NCCL 2.31 on, kernel events are held in API calls also while nothing is recorded.
        (Phase::Off, "GroupApi" | "CollApi" | "P2pApi", Call::Start) => 110,
        (Phase::Off, ..) => 35,
        // The thread searches for a lane: at most 1,160 instructions on a quiet machine, and 157
        // for the lane of each of the six threads before it that the drain thread has not freed.
        (Phase::First, ..) => 1400 + 6 * 157,
        // The thread's first callback searches all lanes and finds none; it searches again when one
        // is released.
        (Phase::Crowd, "Group" | "GroupApi", Call::Start) => 8700,
        (Phase::Crowd, ..) => hot(kind) + 100,
        // The stop ends eight steps that are still in flight.
        (Phase::Repeat, "ProxyOp", Call::Stop) => 1100,
        // The start ends the step whose slot it takes.
        (Phase::Repeat, "ProxyStep", Call::Start) => 360,
        (Phase::Hot | Phase::Finalized, ..) => hot(kind),
        // The fast path is tried first, then the slow one.
        (Phase::Repeat | Phase::Stale | Phase::Unknown, ..) => hot(kind) + 100,
        // Lost events are noted for the watchdog.
        (Phase::Full, ..) => hot(kind) + 145,
    }
}

/// The maximum in the normal state.
fn hot(kind: Kind) -> u64 {
    match (kind.event, kind.call) {
        ("ProxyStep", Call::Stop) => 195,
        ("ProxyStep", _) => 110,
        ("null", _) => 70,
        // API v1 has names for all but one of its codes.
        ("Coll", Call::Start) => 350,
        ("ProxyOp", Call::Start) => 395,
        ("ProxyOp", Call::Stop) => 300,
        ("CeColl", Call::Start) => 290,
        // The callback also counts the call and updates the rolling hash.
        ("CollApi", Call::Start) => 300,
        (_, Call::Start) => 250,
        (_, Call::State(_)) => 120,
        (_, Call::Stop) => 80,
    }
}

/// Whether a callback may execute instructions that lock the bus: if a thread searches for a lane,
/// or if it increments shared counters, as for a lost event.
#[must_use]
pub fn may_lock(phase: Phase) -> bool {
    matches!(phase, Phase::First | Phase::Crowd | Phase::Stale | Phase::Unknown | Phase::Full)
}

/// All callbacks of one kind in one phase.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Instructions of each callback, ascending.
    pub instructions: Vec<u64>,
    /// Maximum number of instructions that lock the bus.
    pub locked: u64,
    /// Maximum number of readings of the time.
    pub clocks: u64,
    /// Maximum stack use, bytes.
    pub stack: u64,
}

impl Row {
    /// The median number of instructions; of two middle values the lower.
    #[must_use]
    pub fn median(&self) -> u64 {
        self.instructions.get(self.instructions.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    }

    /// The maximum number of instructions.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.instructions.last().copied().unwrap_or(0)
    }
}

/// The callbacks by phase and kind.
#[must_use]
pub fn rows(stepped: &[Stepped]) -> BTreeMap<(Phase, Kind), Row> {
    let mut rows: BTreeMap<_, Row> = BTreeMap::new();
    for one in stepped {
        let row = rows.entry((one.phase, one.kind)).or_default();
        row.instructions.push(one.instructions);
        row.locked = row.locked.max(one.locked);
        row.clocks = row.clocks.max(one.clocks);
        row.stack = row.stack.max(one.stack);
    }
    rows.values_mut().for_each(|row| row.instructions.sort_unstable());
    rows
}

/// One line per row, with columns separated by tabs: version, phase, kind, callbacks, median and
/// maximum of instructions, maximum of locking instructions, maximum of readings of the time, bytes
/// of stack.
#[must_use]
pub fn table(version: usize, stepped: &[Stepped]) -> String {
    let mut text = String::new();
    for ((phase, kind), row) in rows(stepped) {
        let (calls, median, max) = (row.instructions.len(), row.median(), row.max());
        let Row { locked, clocks, stack, .. } = row;
        let _ = writeln!(
            text,
            "v{version}\t{phase}\t{kind}\t{calls}\t{median}\t{max}\t{locked}\t{clocks}\t{stack}"
        );
    }
    text
}

/// Each kind of violation, once, as text.
#[must_use]
pub fn violations(stepped: &[Stepped]) -> Vec<String> {
    let mut found = Vec::new();
    for Stepped { phase, kind, instructions, stack, locked, faults, .. } in stepped {
        found.extend(faults.iter().map(|fault| format!("{phase}: {kind} {fault}")));
        let bound = bound(*phase, *kind);
        if *instructions > bound {
            found.push(format!("{phase}: {kind} takes more than {bound} instructions"));
        }
        if *locked > 0 && !may_lock(*phase) {
            found.push(format!("{phase}: {kind} locks the bus"));
        }
        if *stack > STACK {
            found.push(format!("{phase}: {kind} takes more than {STACK} bytes of stack"));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a violation is known.
///
/// FIXME: a thread's first access to the plugin's thread-local memory makes the dynamic linker
/// allocate it. When the plugin no longer does this, the contract test fails, and this exception
/// must go.
#[must_use]
pub fn is_known(violation: &str) -> bool {
    let first = violation.starts_with("first: ") || violation.starts_with("crowd: ");
    first && violation.contains("enters malloc, called by ld-linux-x86-64.so.2")
}
