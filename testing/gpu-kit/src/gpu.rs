// SPDX-License-Identifier: Apache-2.0
//! Further CUDA functions that the loads need: events, kernels that keep a stream busy, and the
//! GPU's timer.
//!
//! A machine without a toolkit has no compiler: the kernels are PTX text, which the driver compiles
//! when it loads it. The CPU stand-in has no driver for PTX; there a host function keeps a stream
//! busy.

use rig::cuda::{Handle, Stream, functions};
use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::time::Duration;

use libloading::os::unix::Library;

functions! {
    /// Functions of the runtime.
    struct Runtime {
        cudaEventCreate(*mut Handle) -> i32;
        cudaEventRecord(Handle, Handle) -> i32;
        cudaEventSynchronize(Handle) -> i32;
        cudaEventElapsedTime(*mut f32, Handle, Handle) -> i32;
        cudaLaunchHostFunc(Handle, extern "C" fn(*mut c_void), *mut c_void) -> i32;
        cudaHostAlloc(*mut Handle, usize, u32) -> i32;
        cudaStreamBeginCapture(Handle, i32) -> i32;
        cudaStreamEndCapture(Handle, *mut Handle) -> i32;
        cudaThreadExchangeStreamCaptureMode(*mut i32) -> i32;
    }
}

functions! {
    /// The runtime's function that resets a device; the stand-in lacks it.
    struct Reset {
        cudaDeviceReset() -> i32;
    }
}

functions! {
    /// Functions of the driver.
    struct Driver {
        cuModuleLoadData(*mut Handle, *const c_char) -> i32;
        cuModuleGetFunction(*mut Handle, Handle, *const c_char) -> i32;
        cuLaunchKernel(
            Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void
        ) -> i32;
    }
}

functions! {
    /// The stand-in's function that returns its counts (`cpu-cuda`, `counts.rs`).
    struct Counter {
        cpucuda_counts(*mut u64, usize) -> usize;
    }
}

/// Headers of the PTX text, the newest first: an old driver refuses a new one, and a new driver may
/// refuse an old target.
const HEADERS: [&str; 3] = [
    ".version 7.0\n.target sm_80\n.address_size 64\n",
    ".version 6.0\n.target sm_70\n.address_size 64\n",
    ".version 6.0\n.target sm_52\n.address_size 64\n",
];

/// `cudaStreamCaptureModeRelaxed`.
const RELAXED: i32 = 2;

/// `spin` keeps one thread busy for a number of ns of the GPU's timer and writes the timer's first
/// and last values; `stamps` writes consecutive values of the timer; `stray` writes to an invalid
/// address.
const KERNELS: &str = r"
.visible .entry spin(.param .u64 ns, .param .u64 out)
{
    .reg .u64 %rd<6>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [ns];
    ld.param.u64 %rd2, [out];
    mov.u64 %rd3, %globaltimer;
AGAIN:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd1;
    @%p1 bra AGAIN;
    st.global.u64 [%rd2], %rd3;
    st.global.u64 [%rd2+8], %rd4;
    ret;
}
.visible .entry stamps(.param .u64 count, .param .u64 out)
{
    .reg .u64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [count];
    ld.param.u64 %rd2, [out];
NEXT:
    mov.u64 %rd3, %globaltimer;
    st.global.u64 [%rd2], %rd3;
    add.u64 %rd2, %rd2, 8;
    sub.u64 %rd1, %rd1, 1;
    setp.ne.u64 %p1, %rd1, 0;
    @%p1 bra NEXT;
    ret;
}
.visible .entry stray(.param .u64 unused, .param .u64 out)
{
    .reg .u64 %rd<2>;
    mov.u64 %rd1, 64;
    st.global.u64 [%rd1], %rd1;
    ret;
}
";

/// Maximum number of time stamps that a kernel takes.
pub(crate) const STAMPS: usize = 4096;
/// `cudaHostAllocMapped`.
const MAPPED: u32 = 2;

/// The calling thread's device, with what the loads need of it.
#[derive(Debug)]
pub(crate) struct Gpu {
    runtime: Runtime,
    reset: Option<Reset>,
    counter: Option<Counter>,
    kernels: Option<Kernels>,
    /// Why the kit's kernels are not available.
    pub(crate) without_kernels: Option<String>,
}

#[derive(Debug)]
struct Kernels {
    driver: Driver,
    spin: Handle,
    stamps: Handle,
    stray: Handle,
    /// Pinned memory that kernels write to, [`STAMPS`] numbers.
    out: *mut u64,
}

extern "C" fn sleep_ms(ms: *mut c_void) {
    std::thread::sleep(Duration::from_millis(ms.expose_provenance() as u64));
}

fn check(what: &str, status: i32) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: status {status}")) }
}

impl Gpu {
    /// Loads the runtime at `path`, and the machine's driver if there is one.
    ///
    /// # Errors
    /// The loader's text, or the name of a missing function.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: the library's constructors have no demands on this process.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        let library = ManuallyDrop::new(library);
        let runtime = Runtime::find(&library)?;
        let counter = Counter::find(&library).ok();
        let kernels = if counter.is_some() {
            Err("the stand-in runs no PTX".to_owned())
        } else {
            Kernels::load(&runtime)
        };
        let (kernels, without_kernels) = match kernels {
            Ok(kernels) => (Some(kernels), None),
            Err(why) => (None, Some(why)),
        };
        let reset = Reset::find(&library).ok();
        Ok(Self { runtime, reset, counter, kernels, without_kernels })
    }

    /// Keeps `stream` busy for `ms` milliseconds, after the work queued before.
    ///
    /// # Errors
    /// CUDA's status.
    pub(crate) fn spin(&self, stream: &Stream<'_>, ms: u64) -> Result<(), String> {
        match &self.kernels {
            Some(kernels) => kernels.launch(kernels.spin, ms * 1_000_000, stream),
            None => {
                let ms = std::ptr::without_provenance_mut(usize::try_from(ms).unwrap_or(0));
                let launch = self.runtime.cudaLaunchHostFunc;
                // SAFETY: the function only reads its argument as a number.
                check("cudaLaunchHostFunc", unsafe { launch(stream.handle, sleep_ms, ms) })
            }
        }
    }

    /// Breaks the context by a kernel that writes to an invalid address.
    ///
    /// # Errors
    /// The kernels are not available, or CUDA's status.
    pub(crate) fn stray(&self, stream: &Stream<'_>) -> Result<(), String> {
        let kernels = self.kernels()?;
        kernels.launch(kernels.stray, 0, stream)
    }

    /// `count` consecutive values of the GPU's timer, ns.
    ///
    /// # Errors
    /// The kernels are not available, or CUDA's status.
    pub(crate) fn stamps(&self, stream: &Stream<'_>, count: usize) -> Result<Vec<u64>, String> {
        let (kernels, count) = (self.kernels()?, count.clamp(1, STAMPS));
        kernels.launch(kernels.stamps, count as u64, stream)?;
        stream.synchronize()?;
        Ok(kernels.written(count))
    }

    /// Runs a kernel of `ms` milliseconds. Returns its duration by the GPU's timer and between two
    /// CUDA events, ns. Another kernel runs before it: on an idle stream the first event would be
    /// reached before the launch.
    ///
    /// # Errors
    /// The kernels are not available, or CUDA's status.
    pub(crate) fn compare(&self, stream: &Stream<'_>, ms: u64) -> Result<(u64, f64), String> {
        let kernels = self.kernels()?;
        let (begin, end) = (self.event()?, self.event()?);
        kernels.launch(kernels.spin, 2_000_000, stream)?;
        self.record(begin, stream)?;
        kernels.launch(kernels.spin, ms * 1_000_000, stream)?;
        self.record(end, stream)?;
        stream.synchronize()?;
        let written = kernels.written(2);
        Ok((written[1].saturating_sub(written[0]), self.between(begin, end)?))
    }

    fn kernels(&self) -> Result<&Kernels, String> {
        let why = || self.without_kernels.clone().unwrap_or_default();
        self.kernels.as_ref().ok_or_else(why)
    }

    /// A new event.
    ///
    /// # Errors
    /// CUDA's status.
    pub(crate) fn event(&self) -> Result<Handle, String> {
        let mut event = null_mut();
        // SAFETY: the pointer is to a local.
        check("cudaEventCreate", unsafe { (self.runtime.cudaEventCreate)(&raw mut event) })?;
        Ok(event)
    }

    /// Records `event` in `stream`.
    ///
    /// # Errors
    /// CUDA's status.
    pub(crate) fn record(&self, event: Handle, stream: &Stream<'_>) -> Result<(), String> {
        // SAFETY: event and stream are alive.
        let status = unsafe { (self.runtime.cudaEventRecord)(event, stream.handle) };
        check("cudaEventRecord", status)
    }

    /// Time between two recorded events, ns.
    ///
    /// # Errors
    /// CUDA's status.
    pub(crate) fn between(&self, begin: Handle, end: Handle) -> Result<f64, String> {
        // SAFETY: the event is alive.
        let status = unsafe { (self.runtime.cudaEventSynchronize)(end) };
        check("cudaEventSynchronize", status)?;
        let mut ms = 0.0;
        // SAFETY: both events were recorded; the pointer is to a local.
        let status = unsafe { (self.runtime.cudaEventElapsedTime)(&raw mut ms, begin, end) };
        check("cudaEventElapsedTime", status)?;
        Ok(f64::from(ms) * 1e6)
    }

    /// Begins a capture of `stream` in the mode that restricts other threads most (global).
    ///
    /// # Errors
    /// CUDA's status.
    pub(crate) fn begin_capture(&self, stream: &Stream<'_>) -> Result<(), String> {
        // SAFETY: the stream is alive and does not capture.
        let status = unsafe { (self.runtime.cudaStreamBeginCapture)(stream.handle, 0) };
        check("cudaStreamBeginCapture", status)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// CUDA's status: 901 if something broke the capture.
    pub(crate) fn end_capture(&self, stream: &Stream<'_>) -> Result<(), String> {
        let mut graph = null_mut();
        // SAFETY: the pointer is to a local; the graph is never destroyed.
        let status = unsafe { (self.runtime.cudaStreamEndCapture)(stream.handle, &raw mut graph) };
        check("cudaStreamEndCapture", status)
    }

    /// Waits for the stream while another thread captures, which CUDA refuses unless the waiting
    /// thread's capture mode is relaxed (`cudaStreamCaptureModeRelaxed`).
    ///
    /// # Errors
    /// CUDA's status.
    pub(crate) fn synchronize_beside_capture(&self, stream: &Stream<'_>) -> Result<(), String> {
        let mut mode = RELAXED;
        let exchange = |mode: &mut i32| {
            // SAFETY: the pointer is to a number that is read and written.
            let status = unsafe { (self.runtime.cudaThreadExchangeStreamCaptureMode)(mode) };
            check("cudaThreadExchangeStreamCaptureMode", status)
        };
        exchange(&mut mode)?;
        let waited = stream.synchronize();
        exchange(&mut mode)?;
        waited
    }

    /// Resets the device while it is in use.
    ///
    /// # Errors
    /// The runtime lacks the function, or CUDA's status.
    pub(crate) fn reset(&self) -> Result<(), String> {
        let reset = self.reset.as_ref().ok_or("the stand-in has no cudaDeviceReset")?;
        // SAFETY: nothing of the caller's own uses the device afterwards.
        check("cudaDeviceReset", unsafe { (reset.cudaDeviceReset)() })
    }

    /// The stand-in's counts so far: work in streams, then nodes of graphs.
    pub(crate) fn counts(&self) -> Option<Vec<u64>> {
        let counter = self.counter.as_ref()?;
        // SAFETY: with room for 0 numbers, nothing is written.
        let all = unsafe { (counter.cpucuda_counts)(null_mut(), 0) };
        let mut counts = vec![0; all];
        // SAFETY: the array has room for `all` numbers.
        unsafe { (counter.cpucuda_counts)(counts.as_mut_ptr(), all) };
        Some(counts)
    }
}

impl Kernels {
    fn load(runtime: &Runtime) -> Result<Self, String> {
        // SAFETY: the library's constructors have no demands on this process.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(|e| e.to_string())?;
        let driver = Driver::find(&ManuallyDrop::new(library))?;
        let mut out = null_mut();
        // The runtime creates the thread's context; host and device both see the memory.
        // SAFETY: the pointer is to a local.
        let status = unsafe { (runtime.cudaHostAlloc)(&raw mut out, STAMPS * 8, MAPPED) };
        check("cudaHostAlloc", status)?;
        let module = Self::module(&driver)?;
        let function = |name: &str| {
            let name = CString::new(name).map_err(|e| e.to_string())?;
            let mut function = null_mut();
            let get = driver.cuModuleGetFunction;
            // SAFETY: the module is alive; name and result are locals.
            let status = unsafe { get(&raw mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", status).map(|()| function)
        };
        let (spin, stamps, stray) = (function("spin")?, function("stamps")?, function("stray")?);
        Ok(Self { driver, spin, stamps, stray, out: out.cast() })
    }

    fn module(driver: &Driver) -> Result<Handle, String> {
        let mut last = String::new();
        for header in HEADERS {
            let text = CString::new(format!("{header}{KERNELS}")).map_err(|e| e.to_string())?;
            let mut module = null_mut();
            // SAFETY: PTX is a C string; the pointer is to a local.
            let status = unsafe { (driver.cuModuleLoadData)(&raw mut module, text.as_ptr()) };
            match check("cuModuleLoadData", status) {
                Ok(()) => return Ok(module),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Launches a kernel of one thread with a number and the address for its results.
    fn launch(&self, kernel: Handle, number: u64, stream: &Stream<'_>) -> Result<(), String> {
        let (mut number, mut out) = (number, self.out);
        let mut params: [*mut c_void; 2] = [(&raw mut number).cast(), (&raw mut out).cast()];
        let launch = self.driver.cuLaunchKernel;
        let (stream, params) = (stream.handle, params.as_mut_ptr());
        // SAFETY: the kernel takes these two parameters, which the driver copies at the call.
        let status = unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, null_mut()) };
        check("cuLaunchKernel", status)
    }

    fn written(&self, count: usize) -> Vec<u64> {
        // SAFETY: the memory has room for `STAMPS` numbers, `count` does not exceed that, and the
        // stream that wrote them is done.
        unsafe { std::slice::from_raw_parts(self.out, count) }.to_vec()
    }
}

// SAFETY: handles may be used from any thread of the process (CUDA Driver API manual), and `out` is
// read only after the stream that wrote to it is done.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}
