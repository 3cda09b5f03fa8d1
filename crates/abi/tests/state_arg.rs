// SPDX-License-Identifier: Apache-2.0
//! State arguments are read only for states that define them, whatever NCCL passes for others.

use std::num::NonZeroU64;
use std::ptr;

use ncclscope_abi::net::NetData;
use ncclscope_abi::{EventState, StateArg, V3, V4, V6, V7, Version, for_each_version};

/// Two words, which is the size of the larger union. The first holds a number too large for 32
/// bits, over garbage in the second.
static WORDS: [u64; 2] = [0x0000_0007_0000_0042, 0xa5a5_a5a5_0000_0003];

fn state_arg<V: Version>(state: i32, args: *const u64) -> StateArg {
    // SAFETY: `args` is NULL, or leads to WORDS, which is larger and as aligned as any version's
    // arguments, or to nothing that the state lets anyone read.
    unsafe { V::state_arg(EventState(state), args.cast()) }
}

/// The expected state argument for versions up to 3 if NCCL passes [`WORDS`].
fn early(state: i32) -> StateArg {
    match state {
        0..=7 => StateArg::ProxyOp { trans_size: 0x0007_0000_0042, steps: 3 },
        18 => StateArg::AppendedProxyOps(0x42),
        _ => StateArg::None,
    }
}

/// The expected state argument for versions from 4 on if NCCL passes [`WORDS`].
fn late(state: i32, version: u8) -> StateArg {
    match state {
        9 | 11 => StateArg::TransSize(0x0007_0000_0042),
        18 => StateArg::AppendedProxyOps(0x42),
        21 => StateArg::NetPluginData(NetData(ptr::without_provenance(0x0007_0000_0042))),
        22 => StateArg::PTimer(NonZeroU64::new(0x0007_0000_0042)),
        31 if version == 7 => StateArg::PTimer(NonZeroU64::new(0x0007_0000_0042)),
        _ => StateArg::None,
    }
}

/// Runs a test that is generic over the version for each version.
macro_rules! check_all {
    ($check:ident $(($v:ident = $($row:tt)*))*) => {
        $($check::<ncclscope_abi::$v>();)*
    };
}

/// All states, and some numbers below and above the known ones.
const STATES: std::ops::Range<i32> = -2..100;

#[test]
fn each_state_yields_what_it_defines_and_nothing_else() {
    fn check<V: Version>() {
        for state in STATES {
            let expected = if V::NUMBER < 4 { early(state) } else { late(state, V::NUMBER) };
            let arg = state_arg::<V>(state, WORDS.as_ptr());
            assert_eq!(arg, expected, "v{}, state {state}", V::NUMBER);
        }
    }
    for_each_version!(check_all, check);
}

#[test]
fn null_arguments_are_none_in_every_state() {
    fn check<V: Version>() {
        for state in STATES {
            assert_eq!(state_arg::<V>(state, ptr::null()), StateArg::None);
        }
    }
    for_each_version!(check_all, check);
}

#[test]
fn states_without_arguments_are_not_looked_up() {
    // A pointer that must not be dereferenced; for these states NCCL may pass a pointer to
    // uninitialised memory.
    let wild = ptr::without_provenance(8);
    for state in [8, 10, 12, 13, 19, 20, 23, 24, 25, 99] {
        assert_eq!(state_arg::<V3>(state, wild), StateArg::None);
        assert_eq!(state_arg::<V4>(state, wild), StateArg::None);
        assert_eq!(state_arg::<V7>(state, wild), StateArg::None);
    }
    assert_eq!(state_arg::<V3>(9, wild), StateArg::None);
    assert_eq!(state_arg::<V6>(31, wild), StateArg::None);
}

#[test]
fn no_gpu_time_is_told_from_time_zero() {
    let zero = [0_u64; 2];
    assert_eq!(state_arg::<V4>(22, zero.as_ptr()), StateArg::PTimer(None));
    assert_eq!(state_arg::<V7>(31, zero.as_ptr()), StateArg::PTimer(None));
    assert_eq!(state_arg::<V7>(9, zero.as_ptr()), StateArg::TransSize(0));
}
