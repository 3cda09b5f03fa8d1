// SPDX-License-Identifier: Apache-2.0
//! Creating and destroying communicators.

use super::config::Config;
use super::{Comm, IN_PROGRESS, Nccl, UniqueId};
use crate::cuda::Handle;
use std::time::Duration;

impl Nccl {
    /// Joins the communicator of `id` as `rank` of `nranks`, on the thread's device; waits until it
    /// is ready, even if it is nonblocking.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn init_rank(
        &self,
        id: UniqueId,
        rank: i32,
        nranks: i32,
        blocking: bool,
    ) -> Result<Comm<'_>, String> {
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::new(blocking, false));
        let init = self.functions.ncclCommInitRankConfig;
        // SAFETY: both pointers are to locals, and the configuration says its size.
        let status = unsafe { init(&raw mut handle, nranks, id, rank, &raw mut config) };
        self.check("ncclCommInitRankConfig", status)?;
        let comm = Comm { nccl: self, handle, blocking };
        comm.settle()?;
        Ok(comm)
    }

    /// One communicator of this process alone with a rank on each of the first `devices` devices
    /// (`ncclCommInitAll`).
    ///
    /// # Errors
    /// NCCL's error text, or too many devices.
    pub fn init_all(&self, devices: usize) -> Result<Vec<Comm<'_>>, String> {
        let count = i32::try_from(devices).map_err(|e| e.to_string())?;
        let numbers: Vec<i32> = (0..count).collect();
        let mut handles: Vec<Handle> = vec![std::ptr::null_mut(); devices];
        let init = self.functions.ncclCommInitAll;
        // SAFETY: both arrays have `count` elements.
        let status = unsafe { init(handles.as_mut_ptr(), count, numbers.as_ptr()) };
        self.check("ncclCommInitAll", status)?;
        let comm = |handle| Comm { nccl: self, handle, blocking: true };
        Ok(handles.into_iter().map(comm).collect())
    }
}

// SAFETY: a communicator may be used from any thread, one at a time (NCCL user guide,
// "Thread Safety").
unsafe impl Send for Comm<'_> {}

impl<'a> Comm<'a> {
    /// Waits until a nonblocking communicator has completed its work; returns at once for others.
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn settle(&self) -> Result<(), String> {
        if self.blocking {
            return Ok(());
        }
        loop {
            let mut state = 0;
            let get = self.nccl.functions.ncclCommGetAsyncError;
            // SAFETY: the communicator lives; the pointer is to a local.
            let status = unsafe { get(self.handle, &raw mut state) };
            self.nccl.check("ncclCommGetAsyncError", status)?;
            if state != IN_PROGRESS {
                return self.nccl.check("a nonblocking call", state);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Splits off a communicator of the ranks with the same `color`, in the order of `key`; with
    /// `share` it uses resources of this one (`splitShare`).
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn split(&self, color: i32, key: i32, share: bool) -> Result<Comm<'a>, String> {
        let mut handle = std::ptr::null_mut();
        let mut config = Config::new(self.blocking, share);
        let split = self.nccl.functions.ncclCommSplit;
        // SAFETY: the communicator lives, the pointers are to locals, the configuration says its
        // size.
        let status = unsafe { split(self.handle, color, key, &raw mut handle, &raw mut config) };
        self.nccl.check("ncclCommSplit", status)?;
        // NCCL writes the new handle when the parent is done.
        self.settle()?;
        let child = Comm { nccl: self.nccl, handle, blocking: self.blocking };
        child.settle()?;
        Ok(child)
    }

    /// Destroys the communicator after its work (`ncclCommDestroy`).
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn destroy(self) -> Result<(), String> {
        if !self.blocking {
            // SAFETY: the communicator lives and no call on it is pending.
            let status = unsafe { (self.nccl.functions.ncclCommFinalize)(self.handle) };
            self.nccl.check("ncclCommFinalize", status)?;
            self.settle()?;
        }
        // SAFETY: the handle is not used any more.
        let status = unsafe { (self.nccl.functions.ncclCommDestroy)(self.handle) };
        self.nccl.check("ncclCommDestroy", status)
    }

    /// Aborts the communicator without waiting for its work (`ncclCommAbort`).
    ///
    /// # Errors
    /// NCCL's error text.
    pub fn abort(self) -> Result<(), String> {
        // SAFETY: the handle is not used any more.
        let status = unsafe { (self.nccl.functions.ncclCommAbort)(self.handle) };
        self.nccl.check("ncclCommAbort", status)
    }
}
