// SPDX-License-Identifier: Apache-2.0
/*!
The CUDA driver that the process has loaded, as far as events need it. It is never loaded by us.

Signatures and rules are those of the CUDA Driver API manual. What matters here: an event can only
be recorded in a stream of its own context; asking for an event while another thread captures a
graph in global mode would break that graph, unless the asking thread's mode is relaxed; no call
may be made on the thread that runs the application's host functions. The caller keeps the last
rule. This module does **not** know streams' or events' lives.
*/

use core::ffi::{CStr, c_int, c_void};
use core::fmt;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: c_int = 0;

/// A driver's status other than success (`CUresult`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CudaError(pub(crate) i32);

/// Defines the functions of the driver that are used, and how all of them are found.
macro_rules! functions {
    ($($field:ident: $symbol:literal ($($arg:ty),*);)*) => {
        /// The driver's functions.
        #[derive(Clone, Copy)]
        pub(crate) struct Driver {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Driver {
            /// Finds every function with `look_up`.
            ///
            /// # Errors
            /// The name of the first one that is not there.
            ///
            /// # Safety
            /// What `look_up` finds is null or the driver's function of that name, and stays.
            unsafe fn find(
                look_up: impl Fn(&CStr) -> *mut c_void,
            ) -> Result<Driver, &'static str> {
                Ok(Driver {
                    $($field: {
                        let symbol = look_up($symbol);
                        if symbol.is_null() {
                            return Err($symbol.to_str().unwrap_or(""));
                        }
                        // SAFETY: the documented signature of the function of this name.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> c_int,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

// Contexts, events and streams are pointers that are only handed back.
functions! {
    get_context: c"cuCtxGetCurrent" (*mut usize);
    set_context: c"cuCtxSetCurrent" (usize);
    exchange_mode: c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
    is_capturing: c"cuStreamIsCapturing" (usize, *mut c_int);
    create: c"cuEventCreate" (*mut usize, u32);
    destroy: c"cuEventDestroy_v2" (usize);
    record: c"cuEventRecord" (usize, usize);
    query: c"cuEventQuery" (usize);
    elapsed: c"cuEventElapsedTime" (*mut f32, usize, usize);
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

fn checked(status: c_int) -> Result<(), CudaError> {
    if status == 0 { Ok(()) } else { Err(CudaError(status)) }
}

impl Driver {
    /// The driver that is loaded.
    ///
    /// # Errors
    /// What is missing, in words.
    pub(crate) fn loaded() -> Result<Driver, String> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a C string; NOLOAD only counts a reference to a loaded image, which is never
        // given back: the functions stay.
        let image = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
        if image.is_null() {
            return Err("no libcuda.so.1 is loaded".into());
        }
        // SAFETY: the handle is open, and names are C strings.
        let look_up = |name: &CStr| unsafe { libc::dlsym(image, name.as_ptr()) };
        // SAFETY: symbols of the driver's library, which stays loaded.
        unsafe { Driver::find(look_up) }.map_err(|name| format!("libcuda.so.1 has no {name}"))
    }

    /// The calling thread's context, if it has one.
    pub(crate) fn context(&self) -> Option<usize> {
        let mut context = 0;
        // SAFETY: the place is valid to write to.
        let status = unsafe { (self.get_context)(&raw mut context) };
        (status == 0 && context != 0).then_some(context)
    }

    /// Runs `body` on the calling thread with `context`, and such that nothing in it breaks a
    /// graph that is being captured.
    ///
    /// # Errors
    /// The context is gone.
    pub(crate) fn within<T>(
        &self,
        context: usize,
        body: impl FnOnce() -> T,
    ) -> Result<T, CudaError> {
        let before = self.context();
        // SAFETY: a context that was current once; one that is gone is refused.
        checked(unsafe { (self.set_context)(context) })?;
        let mut mode = RELAXED;
        // SAFETY: the place holds a mode, and takes the one before.
        let relaxed = checked(unsafe { (self.exchange_mode)(&raw mut mode) });
        let result = body();
        if relaxed.is_ok() {
            // SAFETY: as above, with the mode that the thread had.
            unsafe { (self.exchange_mode)(&raw mut mode) };
        }
        // SAFETY: the context that the thread had, or none.
        unsafe { (self.set_context)(before.unwrap_or(0)) };
        Ok(result)
    }

    /// Whether work on `stream` runs, instead of becoming part of a graph. False where the driver
    /// does not say: the default stream while another one captures.
    pub(crate) fn is_live(&self, stream: usize) -> bool {
        let mut status = -1;
        // SAFETY: a stream that NCCL is about to use; the place is valid to write to.
        let result = unsafe { (self.is_capturing)(stream, &raw mut status) };
        result == 0 && status == NOT_CAPTURING
    }

    /// A new event of the current context, with timing.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn create(&self) -> Result<usize, CudaError> {
        let mut event = 0;
        // SAFETY: the place is valid to write to. Flags 0: `CU_EVENT_DEFAULT`.
        checked(unsafe { (self.create)(&raw mut event, 0) })?;
        Ok(event)
    }

    /// Destroys an event of [`Driver::create`], which nobody may use then.
    pub(crate) fn destroy(&self, event: usize) {
        // SAFETY: an event of ours, destroyed once; a driver that is shut down refuses.
        unsafe { (self.destroy)(event) };
    }

    /// Records `event` in `stream`.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self, event: usize, stream: usize) -> Result<(), CudaError> {
        // SAFETY: an event of ours, and a stream that NCCL is using.
        checked(unsafe { (self.record)(event, stream) })
    }

    /// Whether the stream has come to where `event` was recorded last.
    ///
    /// # Errors
    /// The driver's, which may be that of a kernel before it.
    pub(crate) fn is_reached(&self, event: usize) -> Result<bool, CudaError> {
        // SAFETY: an event of ours.
        match unsafe { (self.query)(event) } {
            NOT_READY => Ok(false),
            status => checked(status).map(|()| true),
        }
    }

    /// Nanoseconds between two events that were reached.
    ///
    /// # Errors
    /// The driver's.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and durations are not negative"
    )]
    pub(crate) fn elapsed_ns(&self, from: usize, to: usize) -> Result<u64, CudaError> {
        let mut ms = 0.0;
        // SAFETY: events of ours; the place is valid to write to.
        checked(unsafe { (self.elapsed)(&raw mut ms, from, to) })?;
        Ok((f64::from(ms) * 1e6) as u64)
    }
}

/// A driver without a GPU: what it was asked, and answers on command.
#[cfg(test)]
pub(crate) mod fake {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The context of all threads that have not set one.
    pub(crate) const CONTEXT: usize = 0xc0;

    /// What the driver knows.
    #[derive(Debug, Default)]
    pub(crate) struct World {
        /// The thread's context, once it was set, and its capture mode.
        pub(crate) context: Option<usize>,
        pub(crate) mode: c_int,
        /// Events that exist, with the stream in which they were recorded last.
        pub(crate) events: HashMap<usize, usize>,
        /// Events that their stream has come to, with the ns at which it did.
        pub(crate) reached: HashMap<usize, u32>,
        pub(crate) capturing: HashSet<usize>,
        /// The answer to every question about an event; 0: as it is.
        pub(crate) failure: c_int,
        /// Questions about events that were asked in the wrong context or mode.
        pub(crate) breaches: u32,
        next: usize,
    }

    static WORLD: Mutex<Option<World>> = Mutex::new(None);

    /// Runs `body` on the world.
    pub(crate) fn world<T>(body: impl FnOnce(&mut World) -> T) -> T {
        let mut world: MutexGuard<'_, _> = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        body(world.get_or_insert_default())
    }

    impl World {
        fn question(&mut self, event: usize) -> c_int {
            let is_right = self.context == Some(CONTEXT) && self.mode == RELAXED;
            self.breaches += u32::from(!is_right);
            match self.failure {
                0 if !self.events.contains_key(&event) => 400,
                0 if !self.reached.contains_key(&event) => NOT_READY,
                failure => failure,
            }
        }
    }

    unsafe extern "C" fn get_context(out: *mut usize) -> c_int {
        // SAFETY: the caller's place.
        unsafe { out.write(world(|world| world.context.unwrap_or(CONTEXT))) };
        0
    }

    unsafe extern "C" fn set_context(context: usize) -> c_int {
        world(|world| world.context = Some(context));
        0
    }

    unsafe extern "C" fn exchange_mode(mode: *mut c_int) -> c_int {
        // SAFETY: the caller's place.
        let new = unsafe { mode.read() };
        // SAFETY: the caller's place.
        unsafe { mode.write(world(|world| core::mem::replace(&mut world.mode, new))) };
        0
    }

    unsafe extern "C" fn is_capturing(stream: usize, status: *mut c_int) -> c_int {
        // SAFETY: the caller's place.
        unsafe { status.write(world(|world| world.capturing.contains(&stream)).into()) };
        0
    }

    unsafe extern "C" fn create(out: *mut usize, _flags: u32) -> c_int {
        let event = world(|world| {
            world.next += 1;
            world.events.insert(world.next, 0);
            world.next
        });
        // SAFETY: the caller's place.
        unsafe { out.write(event) };
        0
    }

    unsafe extern "C" fn destroy(event: usize) -> c_int {
        if world(|world| world.events.remove(&event)).is_some() { 0 } else { 400 }
    }

    unsafe extern "C" fn record(event: usize, stream: usize) -> c_int {
        world(|world| {
            world.reached.remove(&event);
            world.events.insert(event, stream);
        });
        0
    }

    unsafe extern "C" fn query(event: usize) -> c_int {
        world(|world| world.question(event))
    }

    unsafe extern "C" fn elapsed(ms: *mut f32, from: usize, to: usize) -> c_int {
        let at = |world: &World, event| world.reached.get(&event).copied();
        let (Some(from), Some(to)) = world(|world| (at(world, from), at(world, to))) else {
            return NOT_READY;
        };
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        // SAFETY: the caller's place.
        unsafe {
            ms.write((to - from) as f32 / 1e6)
        };
        0
    }

    /// The driver.
    pub(crate) fn driver() -> Driver {
        Driver {
            get_context,
            set_context,
            exchange_mode,
            is_capturing,
            create,
            destroy,
            record,
            query,
            elapsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_one_of_the_functions_is_named_by_it() {
        let any = Driver::loaded as *mut c_void;
        let lacks = |missing: &'static CStr| {
            move |name: &CStr| if name == missing { core::ptr::null_mut() } else { any }
        };
        // SAFETY: nothing is called.
        let found = unsafe { Driver::find(lacks(c"cuEventQuery")) };
        assert_eq!(found.err(), Some("cuEventQuery"));
        // SAFETY: nothing is called.
        assert!(unsafe { Driver::find(lacks(c"cuEventSynchronize")) }.is_ok());
    }

    #[test]
    fn without_a_driver_nothing_is_loaded() {
        let loaded = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcuda.so");
        assert!(!loaded());
        assert_eq!(Driver::loaded().err(), Some("no libcuda.so.1 is loaded".into()));
        assert!(!loaded());
    }
}
