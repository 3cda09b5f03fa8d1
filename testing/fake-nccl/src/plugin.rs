// SPDX-License-Identifier: Apache-2.0
//! A loaded plugin at one version of the API.

use crate::allocator::inside;
use crate::descr::Descr;
use crate::fenced::Fenced;
use crate::log::Log;
use crate::logger;
use crate::mask::Mask;
use core::ffi::{c_char, c_int, c_void};
use libloading::os::unix::Library;
use ncclscope_abi::EventType;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The function table in memory; all versions have these six pointers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Profiler {
    name: *const c_char,
    init: *const c_void,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// Bytes of the tag of a collective in version 7.
const TAG_BYTES: usize = 8;

type InitV1 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<logger::Entry>,
) -> c_int;
type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<logger::Entry>,
) -> c_int;

/// State arguments, by default 16 bytes, which is more than any version reads; or the data of a
/// network plugin.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub struct Args<const N: usize = 16>(pub [u8; N]);

impl Args {
    /// Arguments of one word; the rest is garbage.
    #[must_use]
    pub fn word(value: u64) -> Args {
        let mut args = Args([crate::descr::GARBAGE; 16]);
        args.put(0, &value.to_le_bytes());
        args
    }
}

impl<const N: usize> Args<N> {
    /// Writes bytes at an offset.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The address, for a descriptor that points here.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

/// The bits of the calls whose handle is not the first in [`ApiState`].
const COLL_API: u64 = 512;
const P2P_API: u64 = 1024;

/// `ncclProfilerApiState` (src/include/profiler.h@v2.31.2-1).
#[repr(C)]
struct ApiState {
    depth: i32,
    mask: u32,
    state: i32,
    handles: [*mut c_void; 3],
}

/// A plugin, loaded at one version.
#[derive(Debug)]
pub struct Plugin {
    path: PathBuf,
    library: Mutex<Option<Library>>,
    table: Profiler,
    version: usize,
    mask: Mask,
    name: Option<CString>,
    logger: Option<logger::Entry>,
    log: Log,
    is_rccl: bool,
}

// SAFETY: the table's functions may be called from any thread, as NCCL calls them.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads `path` at `version`, one of [`crate::VERSIONS`]; what is played is written to `log`.
    ///
    /// # Errors
    /// The loader's error text.
    pub fn load(path: &Path, version: usize, log: Log) -> Result<Plugin, String> {
        let (library, table) = open(path, version)?;
        Ok(Plugin {
            path: path.to_owned(),
            library: Mutex::new(Some(library)),
            table,
            version,
            mask: Mask::new()?,
            name: Some(c"fake".to_owned()),
            logger: None,
            log,
            is_rccl: false,
        })
    }

    /// The same plugin with another communicator name (`None`: NULL), and a logger.
    #[must_use]
    pub fn telling(self, name: Option<CString>, logger: Option<logger::Entry>) -> Plugin {
        Plugin { name, logger, ..self }
    }

    /// The same plugin, called by RCCL: with the mask of its library.
    #[must_use]
    pub fn called_by_rccl(self, mask: Mask) -> Plugin {
        Plugin { mask, is_rccl: true, ..self }
    }

    /// Whether the caller is RCCL.
    #[must_use]
    pub const fn is_rccl(&self) -> bool {
        self.is_rccl
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The API version.
    #[must_use]
    pub const fn version(&self) -> usize {
        self.version
    }

    /// The activation mask.
    #[must_use]
    pub const fn mask(&self) -> &Mask {
        &self.mask
    }

    /// The log of what was played.
    #[must_use]
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// `init` of a communicator: returns the context.
    ///
    /// # Panics
    /// If the plugin returns an error, which it must not.
    #[must_use]
    pub fn init(&self, hash: u64, ranks: c_int, rank: c_int) -> u64 {
        let mut context: *mut c_void = core::ptr::null_mut();
        let name = self.name.as_ref().map_or(core::ptr::null(), |name| name.as_ptr());
        let mask = self.mask.as_ptr();
        logger::live(1);
        // SAFETY: all pointers are valid, except that the name may be NULL.
        let code = unsafe { self.call_init(&raw mut context, mask, name, hash, ranks, rank) };
        assert_eq!(code, 0, "init returned an error");
        assert!(!context.is_null(), "init left a null context");
        self.log.init(context.addr() as u64, hash);
        context.addr() as u64
    }

    /// `init` with NULL for the mask, for the context's slot, and for all arguments.
    ///
    /// # Panics
    /// If the plugin returns an error, or writes NULL as the context.
    pub fn init_with_nulls(&self) {
        let null = core::ptr::null_mut();
        let mut context = null;
        for (slot, mask) in [
            (&raw mut context, core::ptr::null_mut()),
            (core::ptr::null_mut(), self.mask.as_ptr()),
            (core::ptr::null_mut(), core::ptr::null_mut()),
        ] {
            // SAFETY: a plugin must accept NULL; the other pointers are valid.
            let code = unsafe { self.call_init(slot, mask, core::ptr::null(), 0, 0, -1) };
            assert_eq!(code, 0, "init returned an error");
        }
        assert_ne!(context, null, "init left a null context");
    }

    /// # Safety
    /// Each pointer is valid, or NULL if that is tested.
    unsafe fn call_init(
        &self,
        context: *mut *mut c_void,
        mask: *mut c_int,
        name: *const c_char,
        hash: u64,
        ranks: c_int,
        rank: c_int,
    ) -> c_int {
        match self.version {
            1..=3 => {
                // SAFETY: versions 1 to 3 have this signature.
                let init =
                    unsafe { core::mem::transmute::<*const c_void, InitV1>(self.table.init) };
                // SAFETY: the caller keeps the contract of this function.
                unsafe { init(context, mask) }
            }
            4 => {
                // SAFETY: version 4 has this signature.
                let init =
                    unsafe { core::mem::transmute::<*const c_void, InitV4>(self.table.init) };
                // SAFETY: the caller keeps the contract of this function.
                unsafe { init(context, mask, name, hash, 2, ranks, rank, self.logger) }
            }
            _ => {
                // SAFETY: versions from 5 on have this signature.
                let init =
                    unsafe { core::mem::transmute::<*const c_void, InitV5>(self.table.init) };
                // SAFETY: the caller keeps the contract of this function.
                unsafe { init(context, hash, mask, name, 2, ranks, rank, self.logger) }
            }
        }
    }

    /// `startEvent` with a handle slot that contains poison. The slot of an API call is in a struct
    /// like that in which NCCL from 2.31 on keeps the mask for the thread.
    ///
    /// # Panics
    /// If the plugin does not write the slot or returns an error.
    #[must_use]
    pub fn start(&self, context: u64, descr: &mut Descr) -> u64 {
        let poison = pointer(0xdead_beef_dead_beef);
        let mask = self.mask.get();
        let mut state = ApiState { depth: 0, mask, state: 0, handles: [poison; 3] };
        let (bit, parent, number) = descr.facts();
        let place = match bit {
            P2P_API => 1,
            COLL_API => 2,
            _ => 0,
        };
        let slot = (&raw mut state.handles).cast::<*mut c_void>().wrapping_add(place);
        // RCCL's version 7 has no tag at the end of a collective.
        let cut = if self.is_rccl && self.version == 7 { TAG_BYTES } else { 0 };
        let fenced = (cut != 0 && bit == EventType::Coll.bit()).then(|| Fenced::new(descr, cut));
        let own = descr.bytes().as_mut_ptr().cast::<c_void>();
        let bytes = fenced.as_ref().map_or(own, Fenced::address);
        // SAFETY: the slot is valid, and the descriptor has the layout of the version.
        let call = || unsafe { (self.table.start)(pointer(context), slot, bytes) };
        let code = inside(c"startEvent", call);
        // SAFETY: a local variable, which the plugin may have written through `slot`.
        let state = unsafe { (&raw const state).read_volatile() };
        let handle = state.handles[place];
        assert_eq!(code, 0, "startEvent returned an error");
        assert_ne!(handle, poison, "startEvent left the handle unwritten");
        let handle = handle.addr() as u64;
        self.log.start(bit, handle, parent, context, number);
        handle
    }

    /// `startEvent` without a slot for the handle, without a descriptor, and without both.
    ///
    /// # Panics
    /// If the plugin returns an error or does not write the slot.
    pub fn start_with_nulls(&self, context: u64, descr: &mut Descr) {
        let null = core::ptr::null_mut();
        let bytes = descr.bytes().as_mut_ptr().cast::<c_void>();
        let mut handle = pointer(0xdead_beef_dead_beef);
        for (slot, bytes) in
            [(core::ptr::null_mut(), bytes), (&raw mut handle, null), (core::ptr::null_mut(), null)]
        {
            // SAFETY: a plugin must accept NULL; the other pointers are valid.
            assert_eq!(unsafe { (self.table.start)(pointer(context), slot, bytes) }, 0);
        }
        assert!(handle.is_null(), "no event has no handle");
    }

    /// `stopEvent`, whatever the handle is.
    ///
    /// # Panics
    /// If the plugin returns an error.
    pub fn stop(&self, handle: u64) {
        self.log.stop(handle);
        // SAFETY: a plugin must accept any handle.
        let code = inside(c"stopEvent", || unsafe { (self.table.stop)(pointer(handle)) });
        assert_eq!(code, 0, "stopEvent returned an error");
    }

    /// `recordEventState` with 16 bytes of arguments, or none.
    ///
    /// # Panics
    /// If the plugin returns an error.
    pub fn record(&self, handle: u64, state: c_int, args: Option<&mut Args>) {
        self.log.state(handle, state);
        let args = args.map_or(core::ptr::null_mut(), |a| a.0.as_mut_ptr().cast::<c_void>());
        // SAFETY: a plugin must accept any handle and state; the arguments are null or long enough.
        let call = || unsafe { (self.table.record)(pointer(handle), state, args) };
        assert_eq!(inside(c"recordEventState", call), 0, "recordEventState returned an error");
    }

    /// `finalize`.
    ///
    /// # Panics
    /// If the plugin returns an error.
    pub fn finalize(&self, context: u64) {
        // SAFETY: the context came from `init`, or is garbage, which a plugin must accept.
        assert_eq!(unsafe { (self.table.finalize)(pointer(context)) }, 0);
        logger::live(-1);
    }

    /// Unloads the library. NCCL does this with the last communicator, and some releases earlier,
    /// while a thread inside a callback continues with the old table.
    pub fn unload(&self) {
        drop(self.library.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Loads the library again, as NCCL does for the next communicator.
    ///
    /// # Panics
    /// If it does not load, or loads at another address, where the old table is invalid.
    pub fn load_again(&self) {
        let (library, table) = open(&self.path, self.version).expect("the plugin loads again");
        assert_eq!(table.init, self.table.init, "the plugin was unmapped");
        *self.library.lock().unwrap_or_else(PoisonError::into_inner) = Some(library);
    }
}

/// Loads a library as NCCL does, and looks up the table of `version`.
fn open(path: &Path, version: usize) -> Result<(Library, Profiler), String> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
    // SAFETY: running the plugin's initialisers is what this is for.
    let library = unsafe { Library::open(Some(path), flags) }.map_err(|e| e.to_string())?;
    let name = format!("ncclProfiler_v{version}\0");
    // SAFETY: the symbol is a data object that begins with these six pointers.
    let table =
        *unsafe { library.get::<*const Profiler>(name.as_bytes()) }.map_err(|e| e.to_string())?;
    // SAFETY: the symbol's address is that of the table.
    let table = unsafe { *table };
    Ok((library, table))
}

/// A handle or context, which is a number here, as the pointer that NCCL passes.
#[expect(clippy::cast_possible_truncation, reason = "NCCL runs on 64-bit machines only")]
const fn pointer(value: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(value as usize)
}
