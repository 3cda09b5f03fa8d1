// SPDX-License-Identifier: Apache-2.0
//! The states of a plugin in which its callbacks are stepped, and the data about them that child
//! and parent share.

use std::fmt;

/// A state of the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Phase {
    /// The normal state, after first use.
    Hot = 1,
    /// NCCL repeats itself (SendPeerWait, and the start of a receive, at every poll) and forgets to
    /// stop steps.
    Repeat,
    /// Stopped handles, and handles that never existed.
    Stale,
    /// Types and states that no version has.
    Unknown,
    /// The thread's lane has no room.
    Full,
    /// The first event of a thread.
    First,
    /// One more thread than there are lanes.
    Crowd,
    /// The last communicator is finalized.
    Finalized,
    /// `NCCLSCOPE_MODE=off`.
    Off,
}

impl Phase {
    /// All values.
    pub const ALL: [Phase; 9] = [
        Phase::Hot,
        Phase::Repeat,
        Phase::Stale,
        Phase::Unknown,
        Phase::Full,
        Phase::First,
        Phase::Crowd,
        Phase::Finalized,
        Phase::Off,
    ];

    /// The phase of a mark's number; `None` for 0, which ends a phase.
    #[must_use]
    pub fn of(number: u64) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| *phase as u64 == number)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Hot => "hot",
            Phase::Repeat => "repeat",
            Phase::Stale => "stale",
            Phase::Unknown => "unknown",
            Phase::Full => "full",
            Phase::First => "first",
            Phase::Crowd => "crowd",
            Phase::Finalized => "finalized",
            Phase::Off => "off",
        })
    }
}

/// The part that is played to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseSet {
    /// All phases but [`Phase::Off`].
    On,
    /// [`Phase::Hot`] alone.
    Hot,
    /// [`Phase::Off`] alone.
    Off,
}

impl PhaseSet {
    /// The word for it on the child's command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            PhaseSet::On => "on",
            PhaseSet::Hot => "hot",
            PhaseSet::Off => "off",
        }
    }

    /// The part of a word.
    #[must_use]
    pub fn of(word: &str) -> Option<PhaseSet> {
        [PhaseSet::On, PhaseSet::Hot, PhaseSet::Off]
            .into_iter()
            .find(|phases| phases.word() == word)
    }
}

/// C functions that no callback may enter. All other system calls show by their `syscall`
/// instruction.
pub const FORBIDDEN: [&std::ffi::CStr; 16] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"free",
    c"posix_memalign",
    c"aligned_alloc",
    c"memalign",
    c"pthread_mutex_lock",
    c"pthread_mutex_trylock",
    c"pthread_rwlock_rdlock",
    c"pthread_rwlock_wrlock",
    c"pthread_spin_lock",
    c"pthread_cond_wait",
    c"pthread_cond_signal",
    c"sem_wait",
    c"sem_post",
];

/// Addresses in the child, which it passes with each mark.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Addresses {
    /// `startEvent`, `stopEvent`, `recordEventState`.
    pub callbacks: [u64; 3],
    /// [`FORBIDDEN`], in order; 0 where the C library has none.
    pub forbidden: [u64; FORBIDDEN.len()],
}
