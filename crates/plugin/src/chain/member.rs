// SPDX-License-Identifier: Apache-2.0
//! A profiler plugin behind ours: how it is loaded, and the arguments that it gets.

use super::rule;
use crate::init::NAME;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use ncclscope_abi::common::{InitV1, InitV4, InitV5};
use ncclscope_abi::{CommInfo, EventState, NcclResult};
use std::ffi::CString;

/// `ncclProfiler_vN_t` of any version. A member may be null, and may change until `init` is over.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: Option<unsafe extern "C" fn()>,
    start: Option<unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> NcclResult>,
    stop: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
    record: Option<unsafe extern "C" fn(*mut c_void, EventState, *mut c_void) -> NcclResult>,
    finalize: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
}

/// A plugin behind ours.
#[derive(Debug)]
pub(super) struct Member {
    /// As the user wrote it.
    pub(super) path: String,
    /// The API version that it is called with.
    pub(super) version: u8,
    table: *const Table,
    /// The variable that its `init` gets as NCCL's activation mask.
    pub(super) mask: AtomicI32,
    /// An `init` failed: it gets no further communicator.
    dropped: AtomicBool,
    /// An `init` succeeded.
    pub(super) ready: AtomicBool,
}

// SAFETY: the table is not written by us, and NCCL, too, calls a plugin's functions on any thread.
unsafe impl Sync for Member {}
// SAFETY: as above.
unsafe impl Send for Member {}

impl Member {
    /// Loads the library `path` for an NCCL whose API version is `native`. `known` are those that
    /// are loaded already.
    ///
    /// # Errors
    /// The reason, in one sentence.
    pub(super) fn load(path: &str, native: u8, known: &[Member]) -> Result<Member, String> {
        let library = open(path)?;
        let found =
            (1..=native).rev().find_map(|version| Some((version, table(library, version)?)));
        let Some((version, table)) = found else {
            return Err(format!("it has no ncclProfiler_v1 to ncclProfiler_v{native}"));
        };
        // SAFETY: the symbol is such a table by its name.
        let Table { name, init, .. } = unsafe { table.read() };
        // SAFETY: not null, and NCCL prints it as a string.
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

    /// A communicator of an NCCL whose API version is `native`: its context, or why there is none.
    /// `None` if the plugin was dropped, or speaks newer than this NCCL (two of them in a process).
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
        // If it has written the mask again meanwhile, the new value counts.
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
        // SAFETY: the table stays, as the library does.
        let init = unsafe { (*self.table).init }?;
        let mask: *mut c_int = self.mask.as_ptr();
        if self.version <= 3 {
            // SAFETY: versions 1 to 3 have this signature.
            let init = unsafe { core::mem::transmute::<unsafe extern "C" fn(), InitV1>(init) };
            // SAFETY: both pointers are valid; the mask stays.
            return Some(unsafe { init(context, mask) });
        }
        // Only NCCL with version 4 or later loads plugins of version 4, and it reports this.
        let &CommInfo { comm_id, comm_name, n_nodes, n_ranks, rank, logfn } = comm?;
        let name = comm_name.as_ptr();
        Some(if self.version == 4 {
            // SAFETY: version 4 has this signature.
            let init = unsafe { core::mem::transmute::<unsafe extern "C" fn(), InitV4>(init) };
            // SAFETY: the pointers are valid; the mask stays.
            unsafe { init(context, mask, name, comm_id, n_nodes, n_ranks, rank, logfn) }
        } else {
            // SAFETY: versions from 5 on have this signature.
            let init = unsafe { core::mem::transmute::<unsafe extern "C" fn(), InitV5>(init) };
            // SAFETY: the pointers are valid; the mask stays.
            unsafe { init(context, comm_id, mask, name, n_nodes, n_ranks, rank, logfn) }
        })
    }

    /// `startEvent`: the handle, 0 for none.
    ///
    /// # Safety
    /// The context is this plugin's or null, and `descr` a descriptor of its version.
    #[inline]
    pub(super) unsafe fn start(&self, context: *mut c_void, descr: *mut c_void) -> u64 {
        // SAFETY: the table stays.
        let Some(start) = (unsafe { (*self.table).start }) else { return 0 };
        let mut handle = core::ptr::null_mut();
        // SAFETY: the caller's promise, and the slot is valid.
        unsafe { start(context, &raw mut handle, descr) };
        handle.expose_provenance() as u64
    }

    /// `stopEvent`.
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

    /// `recordEventState`.
    ///
    /// # Safety
    /// The handle is this plugin's, and `args` are null or such of its version.
    #[inline]
    pub(super) unsafe fn record(&self, handle: u64, state: EventState, args: *mut c_void) {
        // SAFETY: the table stays.
        if let Some(record) = unsafe { (*self.table).record } {
            // SAFETY: the caller's promise.
            unsafe { record(pointer(handle), state, args) };
        }
    }

    /// `finalize`.
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

/// A plugin's handle as the original pointer.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "`abi` compiles for 64-bit machines only")]
pub(super) fn pointer(handle: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(handle as usize)
}

/// Opens a library as NCCL does: by its name unchanged, and as a short name.
fn open(path: &str) -> Result<*mut c_void, String> {
    let exact = open_exactly(path);
    if exact.is_ok() || path.contains('/') || (path.starts_with("lib") && path.ends_with(".so")) {
        return exact;
    }
    open_exactly(&format!("libnccl-profiler-{path}.so")).or(exact)
}

fn open_exactly(path: &str) -> Result<*mut c_void, String> {
    let name = CString::new(path).map_err(|error| error.to_string())?;
    // SAFETY: running the library's initialisers is what the user asks for. It is never closed.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: no preconditions.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return Err("it cannot be opened".into());
    }
    // SAFETY: not null, and a string until this thread's next call of the loader.
    Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
}

fn table(library: *mut c_void, version: u8) -> Option<*const Table> {
    let name = CString::new(format!("ncclProfiler_v{version}")).ok()?;
    // SAFETY: the library is open.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol.cast_const().cast())
}
