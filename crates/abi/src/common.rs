// SPDX-License-Identifier: Apache-2.0
//! What all versions share: result code, logger, callback signatures, and the layout of the
//! function table. NCCL `src/include/plugin/nccl_profiler.h`,
//! `src/include/plugin/profiler/profiler_v*.h` and `src/include/nccl_common.h`@v2.30.7-1.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_int, c_ulong, c_void};

use crate::{EventState, Str};

/// `ncclResult_t`. A plugin only ever returns [`NcclResult::SUCCESS`]: NCCL ignores the result of
/// every callback but `init`, and each release mishandles a failing `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct NcclResult(pub c_int);

impl NcclResult {
    /// `ncclSuccess`.
    pub const SUCCESS: Self = Self(0);
}

/// A C++ `bool` in memory: one byte, which a shim may have left unset. It cannot be a Rust `bool`,
/// for which a byte other than 0 and 1 is undefined behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct CBool(pub u8);

impl CBool {
    /// Whether the byte is not 0.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for CBool {
    fn from(value: bool) -> Self {
        Self(u8::from(value))
    }
}

/// `ncclDebugLogLevel`: how loud a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct LogLevel(pub c_int);

impl LogLevel {
    /// Never printed.
    pub const NONE: Self = Self(0);
    /// Printed at `NCCL_DEBUG=VERSION` and above.
    pub const VERSION: Self = Self(1);
    /// Printed at `NCCL_DEBUG=WARN` and above; also sets what `ncclGetLastError` returns.
    pub const WARN: Self = Self(2);
    /// Printed at `NCCL_DEBUG=INFO` and above, if the subsystem is selected.
    pub const INFO: Self = Self(3);
    /// Printed at `NCCL_DEBUG=ABORT` and above.
    pub const ABORT: Self = Self(4);
    /// Printed in builds with tracing only.
    pub const TRACE: Self = Self(5);
    /// Since 2.32.
    pub const ATTN: Self = Self(6);
}

/// `ncclDebugLogSubSys`: which part of NCCL a message is from, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct LogFlags(pub c_ulong);

impl LogFlags {
    /// Initialisation.
    pub const INIT: Self = Self(1);
    /// Collectives.
    pub const COLL: Self = Self(1 << 1);
    /// Point-to-point.
    pub const P2P: Self = Self(1 << 2);
    /// Shared memory.
    pub const SHM: Self = Self(1 << 3);
    /// Network.
    pub const NET: Self = Self(1 << 4);
    /// Topology.
    pub const GRAPH: Self = Self(1 << 5);
    /// Choice of algorithm and protocol.
    pub const TUNING: Self = Self(1 << 6);
    /// Environment variables.
    pub const ENV: Self = Self(1 << 7);
    /// Allocations.
    pub const ALLOC: Self = Self(1 << 8);
    /// API calls.
    pub const CALL: Self = Self(1 << 9);
    /// Proxy threads.
    pub const PROXY: Self = Self(1 << 10);
    /// NVLink SHARP.
    pub const NVLS: Self = Self(1 << 11);
    /// Bootstrap network.
    pub const BOOTSTRAP: Self = Self(1 << 12);
    /// Buffer registration.
    pub const REG: Self = Self(1 << 13);
    /// Profiler plugins: the flag for a plugin's own messages.
    pub const PROFILE: Self = Self(1 << 14);
    /// Reliability, availability, serviceability.
    pub const RAS: Self = Self(1 << 15);
    /// Destruction of communicators.
    pub const DESTROY: Self = Self(1 << 16);
    /// Host allocations.
    pub const ALLOC_HOST: Self = Self(1 << 17);
}

/// `ncclDebugLogger_t`: prints one line by `printf` rules, so always pass `"%s"` and the message.
///
/// It takes a lock and writes to a file, so call it in `init` and `finalize` only. `file` must not
/// be NULL, because warnings print it. It is a function of libnccl: do not call it after the last
/// `finalize`.
pub type DebugLogger = unsafe extern "C" fn(
    level: LogLevel,
    flags: LogFlags,
    file: *const c_char,
    line: c_int,
    fmt: *const c_char,
    ...
);

/// `init` of versions 1 to 3: once per communicator.
pub type InitV1 =
    unsafe extern "C" fn(context: *mut *mut c_void, eActivationMask: *mut c_int) -> NcclResult;

/// `init` of version 4: the mask comes before the name, the hash after it.
pub type InitV4 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    eActivationMask: *mut c_int,
    commName: *const c_char,
    commHash: u64,
    nNodes: c_int,
    nranks: c_int,
    rank: c_int,
    logfn: Option<DebugLogger>,
) -> NcclResult;

/// `init` from version 5 on: the same arguments in another order, the hash (as `commId`) first.
pub type InitV5 = unsafe extern "C" fn(
    context: *mut *mut c_void,
    commId: u64,
    eActivationMask: *mut c_int,
    commName: *const c_char,
    nNodes: c_int,
    nranks: c_int,
    rank: c_int,
    logfn: Option<DebugLogger>,
) -> NcclResult;

/// `startEvent`: an event begins. The plugin must always write `*eHandle`, because the caller's
/// variable may be unset or stale. The descriptor is valid during the call only.
pub type StartEvent<Descr> = unsafe extern "C" fn(
    context: *mut c_void,
    eHandle: *mut *mut c_void,
    eDescr: *mut Descr,
) -> NcclResult;

/// `stopEvent`: an event ends. May come twice, with NULL, or long after its parent's.
pub type StopEvent = unsafe extern "C" fn(eHandle: *mut c_void) -> NcclResult;

/// `recordEventState`: a transition inside an event. `eStateArgs` may be NULL.
pub type RecordEventState<Args> = unsafe extern "C" fn(
    eHandle: *mut c_void,
    eState: EventState,
    eStateArgs: *mut Args,
) -> NcclResult;

/// `finalize`: a communicator is destroyed. Other events of its context may still come.
pub type Finalize = unsafe extern "C" fn(context: *mut c_void) -> NcclResult;

/// `ncclProfiler_vN_t`, the data object that NCCL looks up by the name `ncclProfiler_vN`; 48 bytes
/// in every version, which differ in the signatures only.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Profiler<Init, Descr, Args> {
    /// @0 The plugin's name, which NCCL prints.
    pub name: *const c_char,
    /// @8 See [`InitV1`], [`InitV4`], [`InitV5`].
    pub init: Init,
    /// @16 See [`StartEvent`].
    pub startEvent: StartEvent<Descr>,
    /// @24 See [`StopEvent`].
    pub stopEvent: StopEvent,
    /// @32 See [`RecordEventState`].
    pub recordEventState: RecordEventState<Args>,
    /// @40 See [`Finalize`].
    pub finalize: Finalize,
}

// SAFETY: function pointers may be shared, and so may `name`, which this type does not dereference:
// code that reads through it has its own SAFETY comment.
unsafe impl<Init: Sync, Descr, Args> Sync for Profiler<Init, Descr, Args> {}

/// A function table followed by four NULL pointers, as it is exported: forks of NCCL read more
/// members past the end of the newest version's table, and must find NULL there.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Exported<Table> {
    /// The members that NCCL reads.
    pub table: Table,
    /// The members that only forks read.
    beyond: [Option<StopEvent>; 4],
}

impl<Table> Exported<Table> {
    /// Puts the NULL pointers behind `table`.
    pub const fn new(table: Table) -> Self {
        Self { table, beyond: [None; 4] }
    }
}

/// The arguments of `init`, in one order for all versions.
#[derive(Clone, Copy, Debug)]
pub struct InitArgs {
    /// Where the plugin stores its context of the communicator. Never store NULL: NCCL from 2.28 on
    /// does not finalize a NULL context.
    pub context: *mut *mut c_void,
    /// The process-wide mask of events, to be written with relaxed atomic stores; the same address
    /// for every communicator.
    pub e_activation_mask: *mut c_int,
    /// What versions 4 and later say about the communicator.
    pub comm: Option<CommInfo>,
}

/// What versions 4 and later pass to `init` about the communicator.
#[derive(Clone, Copy, Debug)]
pub struct CommInfo {
    /// `commHash` in version 4, `commId` from version 5: the same number, equal on all ranks.
    pub comm_id: u64,
    /// The communicator's configured name; NULL if it has none. Valid during the call.
    pub comm_name: Str,
    /// How many nodes it spans.
    pub n_nodes: i32,
    /// How many ranks it has.
    pub n_ranks: i32,
    /// This rank in it.
    pub rank: i32,
    /// Prints into NCCL's log.
    pub logfn: Option<DebugLogger>,
}

/// Implements `Debug` that prints only the type's name, because its bytes may be unset.
macro_rules! opaque_debug {
    ($($ty:ident),*) => {$(
        impl core::fmt::Debug for $ty {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($ty)).finish_non_exhaustive()
            }
        }
    )*};
}
