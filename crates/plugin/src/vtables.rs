// SPDX-License-Identifier: Apache-2.0
//! The exported function tables, one for each version of the API.

use crate::{entry, init};
use core::ffi::{c_char, c_int, c_void};
use ncclscope_abi::{
    CommInfo, DebugLogger, EventState, Exported, InitArgs, NcclProfilerV1, NcclProfilerV2,
    NcclProfilerV3, NcclProfilerV4, NcclProfilerV5, NcclProfilerV6, NcclProfilerV7, NcclResult,
    Str, V1, V2, V3, V4, V5, V6, V7, Version,
};

/// A table whose `init` is the given function, and the rest that of version `$v`.
macro_rules! table {
    ($symbol:ident, $table:ident, $v:ident, $init:ident) => {
        #[doc = concat!("What NCCL looks up as `", stringify!($symbol), "`.")]
        #[unsafe(no_mangle)]
        pub static $symbol: Exported<$table> = Exported::new($table {
            name: init::NAME.as_ptr(),
            init: $init::<$v>,
            startEvent: start::<$v>,
            stopEvent: stop,
            recordEventState: record::<$v>,
            finalize,
        });
    };
}

table!(ncclProfiler_v1, NcclProfilerV1, V1, init_v1);
table!(ncclProfiler_v2, NcclProfilerV2, V2, init_v1);
table!(ncclProfiler_v3, NcclProfilerV3, V3, init_v1);
table!(ncclProfiler_v4, NcclProfilerV4, V4, init_v4);
table!(ncclProfiler_v5, NcclProfilerV5, V5, init_v5);
table!(ncclProfiler_v6, NcclProfilerV6, V6, init_v5);
table!(ncclProfiler_v7, NcclProfilerV7, V7, init_v5);

unsafe extern "C" fn init_v1<V: Version>(
    context: *mut *mut c_void,
    e_activation_mask: *mut c_int,
) -> NcclResult {
    let args = InitArgs { context, e_activation_mask, comm: None };
    // SAFETY: NCCL passes pointers that are valid during the call.
    unsafe { init::init(u32::from(V::NUMBER), &args) }
}

unsafe extern "C" fn init_v4<V: Version>(
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
    unsafe { init::init(u32::from(V::NUMBER), &args) }
}

unsafe extern "C" fn init_v5<V: Version>(
    context: *mut *mut c_void,
    comm_id: u64,
    e_activation_mask: *mut c_int,
    comm_name: *const c_char,
    n_nodes: c_int,
    n_ranks: c_int,
    rank: c_int,
    logfn: Option<DebugLogger>,
) -> NcclResult {
    // SAFETY: the same arguments in another order.
    unsafe {
        init_v4::<V>(context, e_activation_mask, comm_name, comm_id, n_nodes, n_ranks, rank, logfn)
    }
}

unsafe extern "C" fn start<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: NCCL passes a slot for the handle, and a descriptor of the version it looked up with
    // the header and the arm that its type selects set.
    unsafe { entry::start::<V>(context, handle, descr) }
}

unsafe extern "C" fn stop(handle: *mut c_void) -> NcclResult {
    entry::stop(handle)
}

unsafe extern "C" fn record<V: Version>(
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    // SAFETY: NCCL passes null, or arguments of the version it looked up with the member set that
    // the state selects.
    unsafe { entry::record::<V>(handle, state, args) }
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    entry::finalize(context)
}
