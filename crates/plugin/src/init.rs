// SPDX-License-Identifier: Apache-2.0
//! `init` of all versions: it never fails.

use crate::guard::guard;
use core::ffi::{c_int, c_void};
use ncclscope_abi::{DebugLogger, InitArgs, LogFlags, LogLevel, NcclResult};
use ncclscope_runtime::sys::shield::Shield;
use ncclscope_runtime::{ActivationMask, CommInfo, Logger, Runtime, Severity};
use std::ffi::CString;

/// The plugin's name, which NCCL prints.
pub(crate) const NAME: &core::ffi::CStr = c"ncclscope";

/// Initialises a communicator. `nccl` is NCCL's activation mask, which is the one in `args` unless
/// plugins are chained.
///
/// # Safety
/// - `args.context` is null or valid to write to.
/// - `args.e_activation_mask` and `nccl` are null, or point to integers that are only accessed
///   atomically and stay valid until the communicator is finalized.
/// - The name in `args.comm` is null or a string.
pub(crate) unsafe fn init(api_version: u32, args: &InitArgs, nccl: *mut c_int) -> NcclResult {
    if !args.context.is_null() {
        // NCCL gets a context that is not null, whatever happens below.
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { args.context.write(to_pointer(u64::MAX)) };
    }
    let _shield = Shield::raise_against_all();
    guard(|| {
        let logger = args.comm.and_then(|comm| comm.logfn).map(logger);
        // SAFETY: the caller's promise is the same.
        let info = unsafe { comm_info(api_version, args) };
        // SAFETY: by the caller's promise.
        let active = unsafe { ActivationMask::new(args.e_activation_mask, nccl) };
        let context = Runtime::get().attach(info, nccl.addr(), active, logger);
        if !args.context.is_null() {
            // SAFETY: as above.
            unsafe { args.context.write(to_pointer(context)) };
        }
    })
}

/// # Safety
/// The name in `args.comm` is null or a string.
unsafe fn comm_info(api_version: u32, args: &InitArgs) -> CommInfo {
    let Some(comm) = args.comm else {
        return CommInfo { hash: 0, name: None, nodes: 0, ranks: 0, rank: -1, api_version };
    };
    // SAFETY: the caller's promise is the same; the name is read during the call only.
    let name = unsafe { comm.comm_name.to_cstr() };
    CommInfo {
        hash: comm.comm_id,
        name: name.map(|n| n.to_string_lossy().into_owned()).filter(|n| !n.is_empty()),
        nodes: u32::try_from(comm.n_nodes).unwrap_or(0),
        ranks: u32::try_from(comm.n_ranks).unwrap_or(0),
        rank: comm.rank,
        api_version,
    }
}

/// A logger that writes to NCCL's log at level INFO, and hangs at level VERSION, which every
/// `NCCL_DEBUG` shows. A warning would become the user's `ncclGetLastError`.
pub(crate) fn logger(print: DebugLogger) -> Logger {
    let say = move |severity, line: &str| {
        let Ok(line) = CString::new(line) else { return };
        let level = match severity {
            Severity::Info | Severity::Problem => LogLevel::INFO,
            Severity::Hang => LogLevel::VERSION,
        };
        let flags = LogFlags(LogFlags::INIT.0 | LogFlags::PROFILE.0);
        // SAFETY: NCCL's `printf`-like logger, with a format that takes one string; the runtime
        // calls it only while its communicator lives, and keeps NCCL loaded meanwhile.
        unsafe { print(level, flags, NAME.as_ptr(), 0, c"%s".as_ptr(), line.as_ptr()) };
    };
    Logger::new(say)
}

/// A context as a pointer, which NCCL expects; it is never dereferenced.
#[expect(clippy::cast_possible_truncation, reason = "`abi` compiles for 64-bit machines only")]
fn to_pointer(context: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(context as usize)
}
