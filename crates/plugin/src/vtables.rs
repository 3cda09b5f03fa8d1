// SPDX-License-Identifier: Apache-2.0
//! The exported function tables, one for each API version. There are two sets of functions for
//! them: plain, and for a chain of plugins.

use crate::callbacks::{finalize, record, start, stop};
use crate::{chain, entry, init};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use ncclscope_abi as abi;
use ncclscope_abi::older::Parents;
use ncclscope_abi::{
    CommInfo, DebugLogger, EventState, EventType, Exported, InitArgs, NcclResult, Str, Version,
};
use ncclscope_recorder::trace::EventKind;
use ncclscope_recorder::trace::kind::API_VERSIONS;
use ncclscope_runtime::sys::kernel_hold;

/// An exported table. It changes at most once, while the library is being loaded.
#[derive(Debug)]
#[repr(transparent)]
pub struct Switch<Table>(UnsafeCell<Exported<Table>>);

// SAFETY: no code reads it before the library is loaded, and none writes it afterwards.
unsafe impl<Table: Sync> Sync for Switch<Table> {}

/// The tables, and what is put into all of them for a chain.
macro_rules! tables {
    ($(($v:ident = $number:literal, $module:ident, $table:ident, $symbol:ident, $init:ident,
        $($more:tt)*))*) => {
        $(#[doc = concat!("What NCCL looks up as `", stringify!($symbol), "`.")]
        #[unsafe(no_mangle)]
        pub static $symbol: Switch<abi::$table> =
            Switch(UnsafeCell::new(Exported::new(abi::$table {
                name: init::NAME.as_ptr(),
                init: $init::<abi::$v, Alone>,
                startEvent: start::<abi::$v>,
                stopEvent: stop,
                recordEventState: record::<abi::$v>,
                finalize,
            })));)*

        /// # Safety
        /// The library is being loaded.
        unsafe fn chain() {
            $(let table = Exported::new(abi::$table {
                name: init::NAME.as_ptr(),
                init: $init::<abi::$v, Chained>,
                startEvent: chained_start::<abi::$v>,
                stopEvent: chained_stop,
                recordEventState: chained_record::<abi::$v>,
                finalize: chained_finalize::<abi::$v>,
            });
            // SAFETY: no code reads the table yet.
            unsafe { $symbol.0.get().write(table) };)*
        }
    };
}

abi::for_each_version!(tables);

// The recording and the ABI know the same versions and event types.
const _: () = {
    assert!(*API_VERSIONS.start() == *abi::VERSIONS.start() as u32);
    assert!(*API_VERSIONS.end() == *abi::VERSIONS.end() as u32);
    assert!(EventKind::ALL.len() == EventType::ALL.len());
    let mut i = 0;
    while i < EventKind::ALL.len() {
        assert!(EventKind::ALL[i].bit() as u64 == EventType::ALL[i].bit());
        assert!(EventKind::ALL[i].info().since == EventType::ALL[i].since() as u32);
        i += 1;
    }
};

/// Run by the dynamic linker, before the program that loads the library can read its tables.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    if chain::is_wanted() {
        // SAFETY: the dynamic linker is still loading the library.
        unsafe { chain() };
    }
}

/// The `init` function of a table.
trait Init {
    /// # Safety
    /// As [`init::init`].
    unsafe fn init<V: Version>(args: &InitArgs) -> NcclResult;
}

/// Calls our plugin only.
struct Alone;

impl Init for Alone {
    #[inline(always)]
    unsafe fn init<V: Version>(args: &InitArgs) -> NcclResult {
        // SAFETY: the caller's promise is the same.
        unsafe { init::init(u32::from(V::NUMBER), args, args.e_activation_mask) }
    }
}

/// Calls our plugin and the chained plugins.
struct Chained;

impl Init for Chained {
    #[inline(always)]
    unsafe fn init<V: Version>(args: &InitArgs) -> NcclResult {
        // SAFETY: the caller's promise is the same.
        unsafe { chain::init::<V>(args) }
    }
}

unsafe extern "C" fn init_v1<V: Version, I: Init>(
    context: *mut *mut c_void,
    e_activation_mask: *mut c_int,
) -> NcclResult {
    let args = InitArgs { context, e_activation_mask, comm: None };
    // SAFETY: NCCL passes pointers that are valid during the call.
    unsafe { I::init::<V>(&args) }
}

unsafe extern "C" fn init_v4<V: Version, I: Init>(
    context: *mut *mut c_void,
    e_activation_mask: *mut c_int,
    comm_name: *const c_char,
    comm_hash: u64,
    n_nodes: c_int,
    n_ranks: c_int,
    rank: c_int,
    logfn: Option<DebugLogger>,
) -> NcclResult {
    let comm_name = Str::from_ptr(comm_name);
    let comm = CommInfo { comm_id: comm_hash, comm_name, n_nodes, n_ranks, rank, logfn };
    let args = InitArgs { context, e_activation_mask, comm: Some(comm) };
    // SAFETY: NCCL passes pointers that are valid during the call.
    let result = unsafe { I::init::<V>(&args) };
    if V::NUMBER >= 7 && !e_activation_mask.is_null() {
        // SAFETY: not null, valid during the call, and accessed atomically.
        let mask = unsafe { AtomicI32::from_ptr(e_activation_mask) };
        kernel_hold::arm(mask.load(Ordering::Relaxed));
    }
    result
}

unsafe extern "C" fn init_v5<V: Version, I: Init>(
    context: *mut *mut c_void,
    comm_id: u64,
    e_activation_mask: *mut c_int,
    comm_name: *const c_char,
    n_nodes: c_int,
    n_ranks: c_int,
    rank: c_int,
    logfn: Option<DebugLogger>,
) -> NcclResult {
    // SAFETY: passes the same arguments in another order.
    unsafe {
        init_v4::<V, I>(
            context,
            e_activation_mask,
            comm_name,
            comm_id,
            n_nodes,
            n_ranks,
            rank,
            logfn,
        )
    }
}

unsafe extern "C" fn chained_start<V: Version<Descr: Parents>>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    if !handle.is_null() && !descr.is_null() {
        // SAFETY: NCCL's own pointers, and not null.
        unsafe { entry::hold_kernel_events::<V>(handle, descr) };
    }
    // SAFETY: as in `callbacks::start`.
    unsafe { chain::start::<V>(context, handle, descr) }
}

unsafe extern "C" fn chained_stop(handle: *mut c_void) -> NcclResult {
    chain::stop(handle)
}

unsafe extern "C" fn chained_record<V: Version>(
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    // SAFETY: as in `callbacks::record`.
    unsafe { chain::record::<V>(handle, state, args) }
}

unsafe extern "C" fn chained_finalize<V: Version>(context: *mut c_void) -> NcclResult {
    chain::finalize::<V>(context)
}
