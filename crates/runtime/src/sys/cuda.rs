// SPDX-License-Identifier: Apache-2.0
/*!
The functions for events of the CUDA driver that the process has loaded. This module never loads it.

Signatures and rules are those of the CUDA Driver API manual. Three rules matter here. An event can
only be recorded in a stream of its own context. A query for an event while another thread captures
a graph in global mode breaks that graph, unless the querying thread's mode is relaxed. No call may
be made on the thread that runs the application's host functions; the caller keeps this rule. This
module does **not** manage the lives of streams and events.
*/

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use std::sync::OnceLock;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: c_int = 0;

/// An error of the driver (`CUresult` other than success).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CudaError(pub(crate) i32);

impl CudaError {
    /// True if the driver is shut down (`CUDA_ERROR_DEINITIALIZED`), or the context was destroyed
    /// (`CUDA_ERROR_INVALID_CONTEXT`, `CUDA_ERROR_CONTEXT_IS_DESTROYED`): nothing has failed.
    pub(crate) fn is_teardown(self) -> bool {
        matches!(self.0, 4 | 201 | 709)
    }
}

/// Declares the driver functions in use, and a function that finds all of them.
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
            /// The name of the first function that was not found.
            ///
            /// # Safety
            /// `look_up` returns null or the driver's function of that name, which is never
            /// unloaded.
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

// Contexts, events and streams are opaque to us.
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

/// The driver's library; `None` if it is not loaded.
fn image() -> Option<*mut c_void> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a C string. NOLOAD only adds a reference to a loaded image, which is never released,
    // so that the functions stay.
    let image = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
    Some(image).filter(|image| !image.is_null())
}

impl Driver {
    /// The functions of the loaded driver.
    ///
    /// # Errors
    /// What is missing, as text.
    pub(crate) fn loaded() -> Result<Driver, String> {
        let image = image().ok_or("no libcuda.so.1 is loaded")?;
        // SAFETY: the handle is open, and names are C strings.
        let look_up = |name: &CStr| unsafe { libc::dlsym(image, name.as_ptr()) };
        // SAFETY: symbols of the driver's library, which stays loaded.
        unsafe { Driver::find(look_up) }.map_err(|name| format!("libcuda.so.1 has no {name}"))
    }

    /// The calling thread's CUDA context, if it has one.
    pub(crate) fn context(&self) -> Option<usize> {
        let mut context = 0;
        // SAFETY: the place is valid to write to.
        let status = unsafe { (self.get_context)(&raw mut context) };
        (status == 0 && context != 0).then_some(context)
    }

    /// Runs `body` on the calling thread with `context`, in a capture mode in which nothing that it
    /// does invalidates a graph capture.
    ///
    /// # Errors
    /// The context no longer exists.
    pub(crate) fn within<T>(
        &self,
        context: usize,
        body: impl FnOnce() -> T,
    ) -> Result<T, CudaError> {
        let before = self.context();
        // SAFETY: a context that was current once; the driver refuses one that no longer exists.
        checked(unsafe { (self.set_context)(context) })?;
        let mut mode = RELAXED;
        // SAFETY: `mode` holds the new mode and receives the old one.
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

    /// True if work on `stream` runs now instead of becoming part of a graph. False if the driver
    /// cannot say, as for the default stream while another one captures.
    pub(crate) fn is_live(&self, stream: usize) -> bool {
        let mut status = -1;
        // SAFETY: a stream that NCCL is about to use; the place is valid to write to.
        let result = unsafe { (self.is_capturing)(stream, &raw mut status) };
        result == 0 && status == NOT_CAPTURING
    }

    /// Creates an event with timing in the current context.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn create(&self) -> Result<usize, CudaError> {
        let mut event = 0;
        // SAFETY: the place is valid to write to. Flags 0: `CU_EVENT_DEFAULT`.
        checked(unsafe { (self.create)(&raw mut event, 0) })?;
        Ok(event)
    }

    /// Destroys an event of [`Driver::create`], which is not used after that.
    pub(crate) fn destroy(&self, event: usize) {
        // SAFETY: an event of ours, destroyed once; a driver that is shut down returns an error.
        unsafe { (self.destroy)(event) };
    }

    /// Records `event` in `stream`.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn record(&self, event: usize, stream: usize) -> Result<(), CudaError> {
        // SAFETY: an event of ours, and a stream that NCCL is using.
        checked(unsafe { (self.record)(event, stream) })
    }

    /// True if the stream has reached the last recording of `event`.
    ///
    /// # Errors
    /// The driver's error, which may be that of an earlier kernel.
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
    /// The driver's error.
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

/// The CUDA device of a thread's context.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    /// Device number as the process counts them.
    pub(crate) index: i32,
    /// Its model, such as `NVIDIA H100 80GB HBM3`.
    pub(crate) name: Option<String>,
    /// PCI domain, bus, device and function, such as `0000:3b:00.0`.
    pub(crate) pci: Option<String>,
    /// UUID as `nvidia-smi -L` prints it, such as `GPU-4f2ac7d9-…`.
    pub(crate) uuid: Option<String>,
    /// Latest CUDA version that the driver supports, such as 12080.
    pub(crate) driver: Option<i32>,
}

type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;
/// `cuDeviceGetName` and `cuDeviceGetPCIBusId`.
type GetText = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;

/// The functions that describe devices. Only the first one is required.
#[derive(Debug, Clone, Copy)]
struct Identity {
    device: GetDevice,
    name: Option<GetText>,
    pci: Option<GetText>,
    uuid: Option<GetUuid>,
    /// `cuDriverGetVersion`, which has the same signature as `cuCtxGetDevice`.
    version: Option<GetDevice>,
}

impl Device {
    /// The device of the calling thread's context; `None` if no driver is loaded or the thread has
    /// no context.
    pub(crate) fn current() -> Option<Device> {
        // Looked up once: NCCL has loaded the driver by now, or never will, and each look-up waits
        // for all threads that are loading a library.
        static IDENTITY: OnceLock<Option<Identity>> = OnceLock::new();
        (*IDENTITY.get_or_init(Identity::loaded))?.current()
    }
}

impl Identity {
    fn loaded() -> Option<Identity> {
        let image = image()?;
        // SAFETY: the handle is open, and names are C strings.
        let look_up = |name: &CStr| unsafe { libc::dlsym(image, name.as_ptr()) };
        // SAFETY: symbols of the driver's library, which stays loaded.
        unsafe { Identity::find(look_up) }
    }

    /// # Safety
    /// `look_up` returns null or the driver's function of that name, which is never unloaded.
    unsafe fn find(look_up: impl Fn(&CStr) -> *mut c_void) -> Option<Identity> {
        let symbol = |name: &CStr| Some(look_up(name)).filter(|symbol| !symbol.is_null());
        // SAFETY: the documented signature of the function of this name.
        let device = |symbol| unsafe { core::mem::transmute::<*mut c_void, GetDevice>(symbol) };
        // SAFETY: likewise.
        let text = |symbol| unsafe { core::mem::transmute::<*mut c_void, GetText>(symbol) };
        // SAFETY: likewise.
        let uuid = |symbol| unsafe { core::mem::transmute::<*mut c_void, GetUuid>(symbol) };
        // The second version distinguishes the parts of a divided GPU (MIG).
        let uuid_symbol = symbol(c"cuDeviceGetUuid_v2").or_else(|| symbol(c"cuDeviceGetUuid"));
        Some(Identity {
            device: device(symbol(c"cuCtxGetDevice")?),
            name: symbol(c"cuDeviceGetName").map(text),
            pci: symbol(c"cuDeviceGetPCIBusId").map(text),
            uuid: uuid_symbol.map(uuid),
            version: symbol(c"cuDriverGetVersion").map(device),
        })
    }

    fn current(self) -> Option<Device> {
        let mut index = -1;
        // SAFETY: the place is valid to write to; without a context it fails.
        checked(unsafe { (self.device)(&raw mut index) }).ok()?;
        let text = |get: GetText| {
            let mut text = [0_u8; 128];
            // SAFETY: room for 127 characters and the end, as the length says.
            checked(unsafe { get(text.as_mut_ptr().cast(), 127, index) }).ok()?;
            Some(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?.to_owned())
        };
        let name = self.name.and_then(text);
        let pci = self.pci.and_then(text).map(|text| text.to_ascii_lowercase());
        let uuid = self.uuid.and_then(|uuid| {
            let mut bytes = [0; 16];
            // SAFETY: room for the 16 bytes of a `CUuuid`.
            checked(unsafe { uuid(&raw mut bytes, index) }).ok()?;
            Some(uuid_text(bytes))
        });
        let driver = self.version.and_then(|version| {
            let mut code = 0;
            // SAFETY: the place is valid to write to.
            checked(unsafe { version(&raw mut code) }).ok()?;
            Some(code)
        });
        Some(Device { index, name, pci, uuid, driver })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA device {}", self.index)?;
        let mut also = |text: &Option<String>| match text {
            Some(text) => write!(f, " {text}"),
            None => Ok(()),
        };
        also(&self.pci)?;
        also(&self.uuid)
    }
}

/// The UUID as `nvidia-smi -L` prints it.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or('?');
        text.extend([digit(byte >> 4), digit(byte & 15)]);
    }
    text
}

/// A driver without a GPU: records the calls, and answers as told.
#[cfg(test)]
pub(crate) mod fake {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The context of all threads that have not set one.
    pub(crate) const CONTEXT: usize = 0xc0;

    /// The state of the simulated driver.
    #[derive(Debug, Default)]
    pub(crate) struct World {
        /// The thread's context, if it was set; `mode` is its capture mode.
        pub(crate) context: Option<usize>,
        pub(crate) mode: c_int,
        /// Events that exist, with the stream in which they were recorded last.
        pub(crate) events: HashMap<usize, usize>,
        /// Events that their stream has reached, with the time in ns.
        pub(crate) reached: HashMap<usize, u32>,
        pub(crate) capturing: HashSet<usize>,
        /// The status that every query of an event returns; 0: the true one.
        pub(crate) failure: c_int,
        /// Number of event queries in the wrong context or mode.
        pub(crate) breaches: u32,
        next: usize,
    }

    static WORLD: Mutex<Option<World>> = Mutex::new(None);

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
    fn a_device_is_named_as_far_as_the_driver_tells() {
        unsafe extern "C" fn device(out: *mut c_int) -> c_int {
            // SAFETY: the caller's place.
            unsafe { out.write(3) };
            0
        }
        unsafe extern "C" fn pci(out: *mut c_char, room: c_int, device: c_int) -> c_int {
            let text = c"0000:3B:00.0".to_bytes_with_nul();
            assert!(device == 3 && text.len() <= usize::try_from(room).unwrap());
            // SAFETY: the caller's place has the room.
            unsafe { out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
            0
        }
        unsafe extern "C" fn uuid(out: *mut [u8; 16], _device: c_int) -> c_int {
            // SAFETY: the caller's place.
            unsafe { out.write(core::array::from_fn(|at| u8::try_from(at * 17).unwrap())) };
            0
        }
        unsafe extern "C" fn refuses(_out: *mut c_int) -> c_int {
            201
        }
        let (name, version) = (Some(pci as GetText), None);
        let all = Identity { device, name, pci: Some(pci), uuid: Some(uuid), version };
        assert_eq!(all.current().unwrap().name.unwrap(), "0000:3B:00.0", "as it is");
        let text = "CUDA device 3 0000:3b:00.0 GPU-00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(all.current().unwrap().to_string(), text);
        let bare = Identity { device, name: None, pci: None, uuid: None, version };
        assert_eq!(bare.current().unwrap().to_string(), "CUDA device 3");
        assert_eq!(Identity { device: refuses, ..all }.current(), None, "no context");
        // SAFETY: nothing is called.
        assert!(unsafe { Identity::find(|_| core::ptr::null_mut()) }.is_none());
        assert_eq!(Device::current(), None, "no driver");
    }

    #[test]
    fn without_a_driver_nothing_is_loaded() {
        let loaded = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcuda.so");
        assert!(!loaded());
        assert_eq!(Driver::loaded().err(), Some("no libcuda.so.1 is loaded".into()));
        assert!(!loaded());
    }
}
