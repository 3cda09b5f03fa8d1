// SPDX-License-Identifier: Apache-2.0
//! Converts a version's layout to the normalised view.

use core::num::NonZeroU64;
use core::ops::RangeInclusive;

use crate::common::{InitV1, InitV4, InitV5};
use crate::descr::EventView;
use crate::net::NetData;
use crate::{EventMask, EventState, EventType};

/// The argument of a state in `recordEventState`, the same type for all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateArg {
    /// Nothing: NULL arguments, a state that has none, or an unknown state.
    None,
    /// Bytes of the transfer. States 9 and 11 from version 4; in others NCCL leaves a stale number.
    TransSize(u64),
    /// Operations the proxy thread has taken over. State 18.
    AppendedProxyOps(i32),
    /// End by the GPU's `%globaltimer`, ns; `None` where NCCL has 0. State 22 from version 4, and
    /// state 31.
    PTimer(Option<NonZeroU64>),
    /// Of a type the network plugin knows, readable during the call only. State 21 from version 4.
    NetPluginData(NetData),
    /// Progress of a proxy operation. States 0 to 7, versions 1 to 3 on NCCL up to 2.26.
    ProxyOp {
        /// Bytes transferred so far.
        trans_size: u64,
        /// Steps made so far.
        steps: i32,
    },
}

/// Consumes a descriptor's view.
///
/// It is a trait and not a closure so that the compiler inlines it separately for each event type,
/// and builds no view in memory.
pub trait Viewer {
    /// The result.
    type Out;
    /// Processes a view.
    fn see(self, view: EventView) -> Self::Out;
}

/// A [`Viewer`] that returns the view itself.
struct Whole;

impl Viewer for Whole {
    type Out = EventView;

    #[inline(always)]
    fn see(self, view: EventView) -> EventView {
        view
    }
}

/// One version of the ABI, as a type over which callbacks are generic.
pub trait Version: sealed::Sealed + Copy + 'static {
    /// The version, one of [`VERSIONS`].
    const NUMBER: u8;
    /// The event types the version defines.
    const EVENTS: EventMask = events_until(Self::NUMBER);
    /// `ncclProfilerEventDescr_vN_t`.
    type Descr: Copy;
    /// `ncclProfilerEventStateArgs_vN_t`.
    type StateArgs: Copy;
    /// Signature of `init`.
    type Init: Copy;

    /// The normalised view of a descriptor.
    ///
    /// # Safety
    /// As [`Version::show`].
    #[inline(always)]
    #[must_use]
    unsafe fn view(descr: *const Self::Descr) -> EventView {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::show(descr, Whole) }
    }

    /// Passes the normalised view of a descriptor to `viewer`. Reads the header and the arm that
    /// `type` selects, and follows no pointer in them.
    ///
    /// # Safety
    /// `descr` must point to a descriptor of this version that is aligned and readable during the
    /// call. Its header and the arm that `type` selects must be set; members that NCCL's shims do
    /// not write may hold any bytes.
    unsafe fn show<W: Viewer>(descr: *const Self::Descr, viewer: W) -> W::Out;

    /// Parent and step number if the descriptor is a ProxyStep, else `None`. ProxyStep is the most
    /// frequent event, so callers check for it first.
    ///
    /// # Safety
    /// As [`Version::show`].
    unsafe fn step(descr: *const Self::Descr) -> Option<(u64, i32)>;

    /// The handle of the parent event, or 0; reads nothing else.
    ///
    /// # Safety
    /// As [`Version::show`].
    unsafe fn parent(descr: *const Self::Descr) -> u64;

    /// The argument of `state` in `args`; [`StateArg::None`] if `args` is NULL, or if the version
    /// defines no argument for the state (`args` is then not read).
    ///
    /// # Safety
    /// If the version defines an argument for `state`, `args` must be NULL or point to state
    /// arguments of this version that are aligned and readable during the call, with the member
    /// that `state` selects set.
    unsafe fn state_arg(state: EventState, args: *const Self::StateArgs) -> StateArg;
}

mod sealed {
    /// The set of versions is closed.
    pub trait Sealed {}
}

/// The event types of a version: those with [`EventType::since`] up to it.
const fn events_until(version: u8) -> EventMask {
    let mut mask = EventMask::NONE;
    let mut i = 0;
    while i < EventType::ALL.len() {
        if EventType::ALL[i].since() <= version {
            mask = mask.with(EventType::ALL[i]);
        }
        i += 1;
    }
    mask
}

/// Reads the header and the arm that `type` selects, in the version's layout. Use it inside
/// [`Version::show`] only: it relies on that function's safety contract.
macro_rules! show {
    ($descr:ident, $viewer:ident, $($kind:ident = $arm:ident),*) => {{
        // SAFETY: the caller promises a readable, aligned descriptor, of which the header is set.
        let descr = unsafe { &*$descr };
        let bits = u64::from(descr.r#type);
        let (parent, rank) = (addr(descr.parentObj), descr.rank);
        let view = |descr| EventView { parent, rank, descr };
        match EventType::from_bits(bits) {
            Some(EventType::Group) => $viewer.see(view(Descr::Group)),
            Some(EventType::ProxyCtrl) => $viewer.see(view(Descr::ProxyCtrl)),
            $(Some(EventType::$kind) => {
                // SAFETY: `type` selects this arm, which the caller promises to be set.
                let arm = unsafe { descr.payload.$arm };
                $viewer.see(view(Descr::$kind(arm.into())))
            })*
            _ => $viewer.see(view(Descr::Unknown(bits))),
        }
    }};
}

/// Reads the member of the state arguments that the state selects; if `args` is NULL, returns
/// [`StateArg::None`] from the function. Use it inside [`Version::state_arg`] only: it relies on
/// that function's safety contract.
macro_rules! selected {
    ($args:ident.$member:ident) => {{
        if $args.is_null() {
            return StateArg::None;
        }
        // SAFETY: not NULL, so the caller promises that it is readable and aligned.
        let args = unsafe { &*$args };
        // SAFETY: the state selects this member, which the caller promises to be set.
        unsafe { args.$member }
    }};
}

/// The type of an `init`, by the name of its form.
macro_rules! init_type {
    (init_v1) => {
        InitV1
    };
    (init_v4) => {
        InitV4
    };
    (init_v5) => {
        InitV5
    };
}

/// A [`Version`] for each row of [`for_each_version`].
macro_rules! versions {
    ($(($name:ident = $number:literal, $module:ident, $table:ident, $symbol:ident, $init:ident,
        $releases:literal, [$($arms:tt)*]))*) => {
        /// The numbers of the versions.
        pub const VERSIONS: RangeInclusive<u8> = 1..=NEWEST;

        const NEWEST: u8 = {
            let mut newest = 0;
            $(assert!($number == newest + 1, "versions come in order"); newest = $number;)*
            newest
        };
        $(version! { $name, $number, $module, $init, $releases, [$($arms)*] })*
    };
}

/// The body of a [`Version`]: which event type selects which arm of the union.
macro_rules! version {
    ($name:ident, $number:literal, $module:ident, $init:ident, $releases:literal,
     [$($arms:tt)*]) => {
        #[doc = concat!("Version ", stringify!($number), ", native in NCCL ", $releases, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl sealed::Sealed for $name {}

        impl Version for $name {
            const NUMBER: u8 = $number;
            type Descr = crate::$module::EventDescr;
            type StateArgs = crate::$module::StateArgs;
            type Init = init_type!($init);

            #[inline(always)]
            unsafe fn show<W: Viewer>(descr: *const Self::Descr, viewer: W) -> W::Out {
                use crate::descr::{Descr, addr};
                show!(descr, viewer, $($arms)*)
            }

            #[inline(always)]
            unsafe fn parent(descr: *const Self::Descr) -> u64 {
                // SAFETY: the caller promises a readable, aligned descriptor with its header set.
                crate::descr::addr(unsafe { (*descr).parentObj })
            }

            #[inline(always)]
            unsafe fn step(descr: *const Self::Descr) -> Option<(u64, i32)> {
                // SAFETY: the caller promises a readable, aligned descriptor with its header set.
                let descr = unsafe { &*descr };
                if u64::from(descr.r#type) != EventType::ProxyStep.bit() {
                    return None;
                }
                // SAFETY: `type` selects this arm, which the caller promises to be set.
                let step = unsafe { descr.payload.proxyStep };
                Some((crate::descr::addr(descr.parentObj), step.step))
            }

            #[inline(always)]
            unsafe fn state_arg(state: EventState, args: *const Self::StateArgs) -> StateArg {
                // SAFETY: the caller's promise is the same.
                unsafe { Self::StateArgs::normalise::<$number>(state, args) }
            }
        }
    };
}

for_each_version!(versions);
