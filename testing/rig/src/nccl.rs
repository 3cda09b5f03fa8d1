// SPDX-License-Identifier: Apache-2.0
//! NCCL as a client sees it: functions looked up in a loaded libnccl (NCCL user guide, "API").
//! All data are floats and all reductions sums, which is what the rig's scenarios need.

use crate::cuda::{Cuda, Floats, Handle, Stream, functions};
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;

mod config;
mod life;

use config::Config;

/// `ncclUniqueId`, which C passes by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

functions! {
    /// The NCCL functions that a rank calls.
    struct Functions {
        ncclGetVersion(*mut i32) -> i32;
        ncclGetUniqueId(*mut UniqueId) -> i32;
        ncclCommInitRankConfig(*mut Handle, i32, UniqueId, i32, *mut Config) -> i32;
        ncclCommInitAll(*mut Handle, i32, *const i32) -> i32;
        ncclCommSplit(Handle, i32, i32, *mut Handle, *mut Config) -> i32;
        ncclCommGetAsyncError(Handle, *mut i32) -> i32;
        ncclCommFinalize(Handle) -> i32;
        ncclCommDestroy(Handle) -> i32;
        ncclCommAbort(Handle) -> i32;
        ncclGetErrorString(i32) -> *const c_char;
        ncclGetLastError(Handle) -> *const c_char;
        ncclGroupStart() -> i32;
        ncclGroupEnd() -> i32;
        ncclAllReduce(*const c_void, Handle, usize, i32, i32, Handle, Handle) -> i32;
        ncclReduce(*const c_void, Handle, usize, i32, i32, i32, Handle, Handle) -> i32;
        ncclBroadcast(*const c_void, Handle, usize, i32, i32, Handle, Handle) -> i32;
        ncclAllGather(*const c_void, Handle, usize, i32, Handle, Handle) -> i32;
        ncclReduceScatter(*const c_void, Handle, usize, i32, i32, Handle, Handle) -> i32;
        ncclSend(*const c_void, usize, i32, i32, Handle, Handle) -> i32;
        ncclRecv(Handle, usize, i32, i32, Handle, Handle) -> i32;
    }
}

functions! {
    /// Functions that only some releases have (`ncclAlltoAll` from 2.28).
    struct AllToAllFunctions {
        ncclAlltoAll(*const c_void, Handle, usize, i32, Handle, Handle) -> i32;
    }
}

functions! {
    /// Functions for windows (from 2.27), which only copy-engine collectives need.
    struct WindowFunctions {
        ncclMemAlloc(*mut Handle, usize) -> i32;
        ncclMemFree(Handle) -> i32;
        ncclCommWindowRegister(Handle, Handle, usize, *mut Handle, i32) -> i32;
        ncclCommWindowDeregister(Handle, Handle) -> i32;
    }
}

/// `NCCL_WIN_COLL_SYMMETRIC`.
const SYMMETRIC: i32 = 1;
/// `ncclFloat32`.
const FLOAT: i32 = 7;
/// `ncclSum`.
const SUM: i32 = 0;
/// `ncclInProgress`: a nonblocking communicator is not done yet.
const IN_PROGRESS: i32 = 7;

/// A loaded libnccl. It is never unloaded: its threads may outlive the last communicator.
#[derive(Debug)]
pub struct Nccl {
    functions: Functions,
    library: ManuallyDrop<Library>,
}

impl Nccl {
    /// Looks up the functions in `library`.
    ///
    /// # Errors
    /// The name of a missing function.
    pub fn new(library: Library) -> Result<Self, String> {
        Ok(Self { functions: Functions::find(&library)?, library: ManuallyDrop::new(library) })
    }

    /// A text for a failure: what was called, NCCL's description and its last message.
    fn check(&self, what: &str, status: i32) -> Result<(), String> {
        // `Comm::settle` waits for what a nonblocking communicator has begun.
        if status == 0 || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the function accepts any number.
        let text = unsafe { (self.functions.ncclGetErrorString)(status) };
        // SAFETY: NULL stands for no particular communicator.
        let last = unsafe { (self.functions.ncclGetLastError)(std::ptr::null_mut()) };
        // SAFETY: NCCL's texts are C strings.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        // SAFETY: NCCL's texts are C strings; this one stays valid until the next failure.
        let last = unsafe { CStr::from_ptr(last) }.to_string_lossy();
        Err(format!("{what}: {text} ({status}) {last}"))
    }

    /// NCCL's version as one number, for example 22809.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn version(&self) -> Result<i32, String> {
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        let status = unsafe { (self.functions.ncclGetVersion)(&raw mut version) };
        self.check("ncclGetVersion", status)?;
        Ok(version)
    }

    /// A new unique id, to be given to every rank.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a local.
        let status = unsafe { (self.functions.ncclGetUniqueId)(&raw mut id) };
        self.check("ncclGetUniqueId", status)?;
        Ok(id)
    }

    /// Runs the calls of `body` as one group.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn group(&self, body: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        // SAFETY: no precondition.
        self.check("ncclGroupStart", unsafe { (self.functions.ncclGroupStart)() })?;
        let done = body();
        // SAFETY: the group was started above.
        let ended = self.check("ncclGroupEnd", unsafe { (self.functions.ncclGroupEnd)() });
        done.and(ended)
    }
}

/// A communicator. It is not destroyed on drop: a process that dies does not destroy it either.
#[derive(Debug)]
pub struct Comm<'a> {
    /// Its library.
    pub nccl: &'a Nccl,
    handle: Handle,
    blocking: bool,
}

impl Comm<'_> {
    /// Memory for `count` floats of NCCL's own, registered as a symmetric window. All ranks must
    /// call this.
    ///
    /// # Errors
    /// NCCL's error text, or the name of a missing function.
    pub fn window<'a>(&'a self, cuda: &'a Cuda, count: usize) -> Result<Window<'a>, String> {
        let functions = WindowFunctions::find(&self.nccl.library)?;
        let (mut address, size) = (std::ptr::null_mut(), count * size_of::<f32>());
        // SAFETY: the pointer is to a local.
        let status = unsafe { (functions.ncclMemAlloc)(&raw mut address, size) };
        self.nccl.check("ncclMemAlloc", status)?;
        let (mut handle, register) = (std::ptr::null_mut(), functions.ncclCommWindowRegister);
        // SAFETY: the memory has this size; the pointer is to a local.
        let status = unsafe { register(self.handle, address, size, &raw mut handle, SYMMETRIC) };
        self.nccl.check("ncclCommWindowRegister", status)?;
        // SAFETY: the memory has this size and lives as long as the window.
        let floats = unsafe { Floats::borrowed(cuda, address, count) };
        Ok(Window { comm: self, functions, floats, handle })
    }

    /// `ncclAllReduce` of `count` floats.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn all_reduce(
        &self,
        send: &Floats<'_>,
        recv: &Floats<'_>,
        count: usize,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let (call, send, recv) = (self.nccl.functions.ncclAllReduce, send.address, recv.address);
        // SAFETY: the buffers hold as many floats and live until the stream is synchronised.
        let status = unsafe { call(send, recv, count, FLOAT, SUM, self.handle, stream.handle) };
        self.nccl.check("ncclAllReduce", status)
    }

    /// `ncclReduce` of `count` floats to `root`.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn reduce(
        &self,
        send: &Floats<'_>,
        recv: &Floats<'_>,
        count: usize,
        root: i32,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let (call, send, recv) = (self.nccl.functions.ncclReduce, send.address, recv.address);
        let (comm, stream) = (self.handle, stream.handle);
        // SAFETY: the buffers hold as many floats and live until the stream is synchronised.
        let status = unsafe { call(send, recv, count, FLOAT, SUM, root, comm, stream) };
        self.nccl.check("ncclReduce", status)
    }

    /// `ncclBroadcast` of `count` floats from `root`.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn broadcast(
        &self,
        send: &Floats<'_>,
        recv: &Floats<'_>,
        count: usize,
        root: i32,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let (call, send, recv) = (self.nccl.functions.ncclBroadcast, send.address, recv.address);
        // SAFETY: the buffers hold as many floats and live until the stream is synchronised.
        let status = unsafe { call(send, recv, count, FLOAT, root, self.handle, stream.handle) };
        self.nccl.check("ncclBroadcast", status)
    }

    /// `ncclAllGather` of `count` floats of each rank.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn all_gather(
        &self,
        send: &Floats<'_>,
        recv: &Floats<'_>,
        count: usize,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let (call, send, recv) = (self.nccl.functions.ncclAllGather, send.address, recv.address);
        // SAFETY: the buffers hold as many floats and live until the stream is synchronised.
        let status = unsafe { call(send, recv, count, FLOAT, self.handle, stream.handle) };
        self.nccl.check("ncclAllGather", status)
    }

    /// `ncclReduceScatter` of `count` floats for each rank.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn reduce_scatter(
        &self,
        send: &Floats<'_>,
        recv: &Floats<'_>,
        count: usize,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let (call, send, recv) =
            (self.nccl.functions.ncclReduceScatter, send.address, recv.address);
        // SAFETY: the buffers hold as many floats and live until the stream is synchronised.
        let status = unsafe { call(send, recv, count, FLOAT, SUM, self.handle, stream.handle) };
        self.nccl.check("ncclReduceScatter", status)
    }

    /// `ncclAlltoAll` of `count` floats from each rank to each.
    ///
    /// # Errors
    /// NCCL's text, or the name of the function if this release lacks it.
    pub fn all_to_all(
        &self,
        send: &Floats<'_>,
        recv: &Floats<'_>,
        count: usize,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let call = AllToAllFunctions::find(&self.nccl.library)?.ncclAlltoAll;
        let (send, recv) = (send.address, recv.address);
        // SAFETY: the buffers hold `count` floats for each rank and live until the stream is
        // synchronised.
        let status = unsafe { call(send, recv, count, FLOAT, self.handle, stream.handle) };
        self.nccl.check("ncclAlltoAll", status)
    }

    /// `ncclSend` of `count` floats to `peer`.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn send(
        &self,
        send: &Floats<'_>,
        count: usize,
        peer: i32,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let call = self.nccl.functions.ncclSend;
        // SAFETY: the buffer holds as many floats and lives until the stream is synchronised.
        let status = unsafe { call(send.address, count, FLOAT, peer, self.handle, stream.handle) };
        self.nccl.check("ncclSend", status)
    }

    /// `ncclRecv` of `count` floats from `peer`.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn recv(
        &self,
        recv: &Floats<'_>,
        count: usize,
        peer: i32,
        stream: &Stream<'_>,
    ) -> Result<(), String> {
        let call = self.nccl.functions.ncclRecv;
        // SAFETY: the buffer holds as many floats and lives until the stream is synchronised.
        let status = unsafe { call(recv.address, count, FLOAT, peer, self.handle, stream.handle) };
        self.nccl.check("ncclRecv", status)
    }
}

/// Floats in a symmetric window of a communicator.
#[derive(Debug)]
pub struct Window<'a> {
    comm: &'a Comm<'a>,
    functions: WindowFunctions,
    /// Its memory.
    pub floats: Floats<'a>,
    handle: Handle,
}

impl Window<'_> {
    /// Deregisters the window and frees its memory. All ranks must call this.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn free(self) -> Result<(), String> {
        let deregister = self.functions.ncclCommWindowDeregister;
        // SAFETY: the window is not used any more.
        let status = unsafe { deregister(self.comm.handle, self.handle) };
        self.comm.nccl.check("ncclCommWindowDeregister", status)?;
        // SAFETY: the window's memory is not used any more.
        let status = unsafe { (self.functions.ncclMemFree)(self.floats.address) };
        self.comm.nccl.check("ncclMemFree", status)
    }
}
