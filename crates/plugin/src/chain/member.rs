// SPDX-License-Identifier: Apache-2.0
//! A chained profiler plugin: how it is loaded, and the arguments of its calls.

use super::rule;
use crate::init::NAME;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use ncclscope_abi::common::{InitV1, InitV4, InitV5};
use ncclscope_abi::{CommInfo, EventState, NcclResult};
use std::ffi::CString;

/// `ncclProfiler_vN_t` of any version. Members may be null, and may change until `init` returns.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: Option<unsafe extern "C" fn()>,
    start: Option<unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> NcclResult>,
    stop: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
    record: Option<unsafe extern "C" fn(*mut c_void, EventState, *mut c_void) -> NcclResult>,
    finalize: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
}

/// A plugin chained behind ours.
#[derive(Debug)]
pub(super) struct Member {
    /// The path as the user wrote it.
    pub(super) path: String,
    /// The API version with which it is called.
    pub(super) version: u8,
    table: *const Table,
    /// The activation mask of the plugin, which its `init` gets in place of NCCL's.
    pub(super) mask: AtomicI32,
    /// An `init` failed: the plugin gets no further communicators.
    dropped: AtomicBool,
    /// An `init` succeeded.
    pub(super) ready: AtomicBool,
}

// SAFETY: our code does not write the table, and NCCL, too, calls a plugin's functions on any
// thread.
unsafe impl Sync for Member {}
// SAFETY: as above.
unsafe impl Send for Member {}

impl Member {
    /// Loads the library `path` for an NCCL whose API version is `native`. `known` are the plugins
    /// loaded before.
    ///
    /// # Errors
    /// The reason in one sentence.
    pub(super) fn load(path: &str, native: u8, known: &[Member]) -> Result<Member, String> {
        let library = open(path)?;
        let found =
            (1..=native).rev().find_map(|version| Some((version, table(library, version)?)));
        let Some((version, table)) = found else {
            return Err(format!("it has no ncclProfiler_v1 to ncclProfiler_v{native}"));
        };
        // SAFETY: by its name, the symbol is such a table.
        let Table { name, init, .. } = unsafe { table.read() };
        // SAFETY: not null, and a string, which NCCL prints.
        if !name.is_null() && unsafe { CStr::from_ptr(name) } == NAME {
            return Err("it is ncclscope itself".into());
        }
        if known.iter().any(|member| member.table == table) {
            return Err("it is there twice".into());
        }
        if init.is_none() {
            return Err(format!("its ncclProfiler_v{version} has no init"));
        }
        let [dropped, ready] = [const { AtomicBool::new(false) }; 2];
        Ok(Member { path: path.into(), version, table, mask: AtomicI32::new(0), dropped, ready })
    }

    /// Initialises the plugin for a communicator of an NCCL whose API version is `native`. Returns
    /// its context or the reason for failure. `None` if the plugin was dropped, or if its version
    /// is newer than this NCCL's (two NCCLs in a process).
    pub(super) fn init(
        &self,
        native: u8,
        comm: Option<&CommInfo>,
    ) -> Option<Result<*mut c_void, String>> {
        if self.dropped.load(Ordering::Relaxed) || self.version > native {
            return None;
        }
        let mut context = core::ptr::null_mut();
        // SAFETY: the slot is valid during the call.
        let NcclResult(code) = unsafe { self.call_init(&raw mut context, comm)? };
        if code != 0 {
            self.dropped.store(true, Ordering::Relaxed);
            return Some(Err(format!("its init returned {code}")));
        }
        self.ready.store(true, Ordering::Relaxed);
        let mask = self.mask.load(Ordering::Relaxed).cast_unsigned();
        let settled = rule::settled(native, self.version, mask).cast_signed();
        // If the plugin has changed the mask again meanwhile, the new value stays.
        let (strict, loose) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.mask.compare_exchange(mask.cast_signed(), settled, strict, loose);
        Some(Ok(context))
    }

    /// # Safety
    /// `context` is valid to write to.
    unsafe fn call_init(
        &self,
        context: *mut *mut c_void,
        comm: Option<&CommInfo>,
    ) -> Option<NcclResult> {
        // SAFETY: the library is never closed, so that the table stays.
        let init = unsafe { (*self.table).init }?;
        let mask: *mut c_int = self.mask.as_ptr();
        if self.version <= 3 {
            // SAFETY: versions 1 to 3 have this signature.
            let init = unsafe { core::mem::transmute::<unsafe extern "C" fn(), InitV1>(init) };
            // SAFETY: both pointers are valid; the mask is never freed.
            return Some(unsafe { init(context, mask) });
        }
        // Only an NCCL of version 4 or later loads plugins of version 4, and it passes this.
        let &CommInfo { comm_id, comm_name, n_nodes, n_ranks, rank, logfn } = comm?;
        let name = comm_name.as_ptr();
        Some(if self.version == 4 {
            // SAFETY: version 4 has this signature.
            let init = unsafe { core::mem::transmute::<unsafe extern "C" fn(), InitV4>(init) };
            // SAFETY: the pointers are valid; the mask is never freed.
            unsafe { init(context, mask, name, comm_id, n_nodes, n_ranks, rank, logfn) }
        } else {
            // SAFETY: versions from 5 on have this signature.
            let init = unsafe { core::mem::transmute::<unsafe extern "C" fn(), InitV5>(init) };
            // SAFETY: the pointers are valid; the mask is never freed.
            unsafe { init(context, comm_id, mask, name, n_nodes, n_ranks, rank, logfn) }
        })
    }

    /// Calls `startEvent`; returns the handle, 0 if there is none.
    ///
    /// # Safety
    /// The context is this plugin's or null, and `descr` is a descriptor of its version.
    #[inline]
    pub(super) unsafe fn start(&self, context: *mut c_void, descr: *mut c_void) -> u64 {
        // SAFETY: the table stays.
        let Some(start) = (unsafe { (*self.table).start }) else { return 0 };
        let mut handle = core::ptr::null_mut();
        // SAFETY: by the caller's promise, and the slot is valid.
        unsafe { start(context, &raw mut handle, descr) };
        handle.expose_provenance() as u64
    }

    /// Calls `stopEvent`.
    ///
    /// # Safety
    /// The handle is this plugin's.
    #[inline]
    pub(super) unsafe fn stop(&self, handle: u64) {
        // SAFETY: the table stays.
        if let Some(stop) = unsafe { (*self.table).stop } {
            // SAFETY: the caller's promise.
            unsafe { stop(pointer(handle)) };
        }
    }

    /// Calls `recordEventState`.
    ///
    /// # Safety
    /// The handle is this plugin's, and `args` is null or points to arguments of its version.
    #[inline]
    pub(super) unsafe fn record(&self, handle: u64, state: EventState, args: *mut c_void) {
        // SAFETY: the table stays.
        if let Some(record) = unsafe { (*self.table).record } {
            // SAFETY: the caller's promise.
            unsafe { record(pointer(handle), state, args) };
        }
    }

    /// Calls `finalize`.
    ///
    /// # Safety
    /// The context is this plugin's.
    pub(super) unsafe fn finalize(&self, context: *mut c_void) {
        // SAFETY: the table stays.
        if let Some(finalize) = unsafe { (*self.table).finalize } {
            // SAFETY: the caller's promise.
            unsafe { finalize(context) };
        }
    }
}

/// A handle or context of a plugin as the pointer that the plugin returned.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "`abi` compiles for 64-bit machines only")]
pub(super) fn pointer(handle: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(handle as usize)
}

/// Opens a library as NCCL and RCCL do: by the name as given, then as a short name.
fn open(path: &str) -> Result<*mut c_void, String> {
    let exact = open_exactly(path);
    if exact.is_ok() || path.contains('/') || (path.starts_with("lib") && path.ends_with(".so")) {
        return exact;
    }
    let named = |library: &str| open_exactly(&format!("{library}-profiler-{path}.so"));
    named("libnccl").or_else(|_| named("librccl")).or(exact)
}

fn open_exactly(path: &str) -> Result<*mut c_void, String> {
    let name = CString::new(path).map_err(|error| error.to_string())?;
    // SAFETY: the user wants the library's initialisers to run. It is never closed.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: no preconditions.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return Err("it cannot be opened".into());
    }
    // SAFETY: not null, and a string until this thread's next call to the dynamic linker.
    Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
}

fn table(library: *mut c_void, version: u8) -> Option<*const Table> {
    let name = CString::new(format!("ncclProfiler_v{version}")).ok()?;
    // SAFETY: the library is open.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol.cast_const().cast())
}
