// SPDX-License-Identifier: Apache-2.0
//! The CUDA runtime as a client sees it: functions looked up in a library, the CPU stand-in or a
//! real libcudart. Both have the same names and signatures (CUDA Runtime API manual).

use libloading::os::unix::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Duration;

/// A device address, stream, event or graph as C passes it.
pub type Handle = *mut c_void;

/// Defines a struct of C functions and how to find them all in a library.
#[macro_export]
macro_rules! functions {
    (
        $(#[$meta:meta])*
        struct $table:ident { $($(#[$doc:meta])* $name:ident($($arg:ty),*) -> $result:ty;)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[expect(non_snake_case, reason = "the names are the library's")]
        pub(crate) struct $table {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl $table {
            /// Finds every function.
            ///
            /// # Errors
            /// The name of the first function that the library lacks.
            pub(crate) fn find(library: &libloading::os::unix::Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is the function's documented signature.
                        let symbol = unsafe { library.get(stringify!($name)) };
                        *symbol.map_err(|e| format!("{}: {e}", stringify!($name)))?
                    },)*
                })
            }
        }
    };
}
pub use functions;

functions! {
    /// The runtime functions that a rank calls.
    struct Functions {
        cudaSetDevice(i32) -> i32;
        cudaMalloc(*mut Handle, usize) -> i32;
        cudaFree(Handle) -> i32;
        cudaMemcpy(Handle, *const c_void, usize, i32) -> i32;
        cudaMemset(Handle, i32, usize) -> i32;
        cudaStreamCreateWithFlags(*mut Handle, u32) -> i32;
        cudaStreamDestroy(Handle) -> i32;
        cudaStreamSynchronize(Handle) -> i32;
        cudaLaunchHostFunc(Handle, extern "C" fn(Handle), Handle) -> i32;
        cudaStreamBeginCapture(Handle, i32) -> i32;
        cudaStreamEndCapture(Handle, *mut Handle) -> i32;
        cudaGraphInstantiateWithFlags(*mut Handle, Handle, u64) -> i32;
        cudaGraphLaunch(Handle, Handle) -> i32;
        cudaGraphGetNodes(Handle, *mut Handle, *mut usize) -> i32;
        cudaGraphNodeGetType(Handle, *mut i32) -> i32;
        cudaGraphDestroy(Handle) -> i32;
        cudaGraphExecDestroy(Handle) -> i32;
        cudaGetErrorString(i32) -> *const c_char;
    }
}

/// A loaded CUDA runtime. It is never unloaded: its threads may outlive its users.
#[derive(Debug)]
pub struct Cuda {
    functions: Functions,
    library: ManuallyDrop<Library>,
}

/// `cudaMemcpyDefault`: the runtime finds the direction out.
const COPY_DEFAULT: i32 = 4;
/// `cudaStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
/// `cudaStreamCaptureModeThreadLocal`.
const CAPTURE_THREAD_LOCAL: i32 = 1;

impl Cuda {
    /// Loads the runtime at `path`.
    ///
    /// # Errors
    /// The loader's error text, or the name of a missing function.
    pub fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: the library's constructors have no demands on this process.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        Ok(Self { functions: Functions::find(&library)?, library: ManuallyDrop::new(library) })
    }

    /// Loads the libnccl at `path`, through the stand-in if this is the stand-in.
    ///
    /// # Errors
    /// The loader's error text; the stand-in writes its own to stderr.
    pub fn open_nccl(&self, path: &Path) -> Result<Library, String> {
        type Open = unsafe extern "C" fn(*const c_char) -> *mut c_void;
        // SAFETY: the type is the function's signature (`cpu-cuda`, `attach.rs`).
        let open: Result<Symbol<Open>, _> = unsafe { self.library.get("cpucuda_open_nccl") };
        let Ok(open) = open else {
            // SAFETY: libnccl's constructors have no demands on this process.
            return unsafe { Library::new(path) }.map_err(|e| e.to_string());
        };
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: the argument is a C string.
        let handle = unsafe { open(name.as_ptr()) };
        if handle.is_null() {
            return Err(format!("{}: cannot run on the stand-in", path.display()));
        }
        // SAFETY: the handle is of `dlopen` and no other code closes it.
        Ok(unsafe { Library::from_raw(handle) })
    }

    fn check(&self, what: &str, status: i32) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts any number.
        let text = unsafe { (self.functions.cudaGetErrorString)(status) };
        // SAFETY: the runtime's texts are static C strings.
        let text = unsafe { CStr::from_ptr(text) };
        Err(format!("{what}: {} ({status})", text.to_string_lossy()))
    }

    /// Makes `device` the thread's device.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn set_device(&self, device: i32) -> Result<(), String> {
        // SAFETY: the function accepts any number.
        self.check("cudaSetDevice", unsafe { (self.functions.cudaSetDevice)(device) })
    }

    /// Creates a non-blocking stream.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn stream(&self) -> Result<Stream<'_>, String> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let status =
            unsafe { (self.functions.cudaStreamCreateWithFlags)(&raw mut handle, NON_BLOCKING) };
        self.check("cudaStreamCreateWithFlags", status)?;
        Ok(Stream { cuda: self, handle })
    }

    /// The thread's device's default stream (NULL).
    #[must_use]
    pub fn default_stream(&self) -> Stream<'_> {
        Stream { cuda: self, handle: std::ptr::null_mut() }
    }

    /// The type of each node of a graph.
    fn node_kinds(&self, graph: Handle) -> Result<Vec<i32>, String> {
        let (get, mut count) = (self.functions.cudaGraphGetNodes, 0);
        // SAFETY: the graph lives; without an array the number is returned.
        let status = unsafe { get(graph, std::ptr::null_mut(), &raw mut count) };
        self.check("cudaGraphGetNodes", status)?;
        let mut nodes: Vec<Handle> = vec![std::ptr::null_mut(); count];
        // SAFETY: the array has room for `count` nodes.
        let status = unsafe { get(graph, nodes.as_mut_ptr(), &raw mut count) };
        self.check("cudaGraphGetNodes", status)?;
        let kind = |&node: &Handle| {
            let mut kind = 0;
            // SAFETY: the node is the graph's; the pointer is to a local.
            let status = unsafe { (self.functions.cudaGraphNodeGetType)(node, &raw mut kind) };
            self.check("cudaGraphNodeGetType", status).map(|()| kind)
        };
        nodes.iter().map(kind).collect()
    }

    /// Allocates `count` floats on the thread's device, filled with a byte pattern that no test
    /// produces as a result.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn floats(&self, count: usize) -> Result<Floats<'_>, String> {
        let (mut address, size) = (std::ptr::null_mut(), count * size_of::<f32>());
        // SAFETY: the pointer is to a local.
        let status = unsafe { (self.functions.cudaMalloc)(&raw mut address, size) };
        self.check("cudaMalloc", status)?;
        let floats = Floats { cuda: self, address, count, owned: true };
        // SAFETY: the allocation has this size.
        let status = unsafe { (self.functions.cudaMemset)(address, 0xEE, size) };
        self.check("cudaMemset", status)?;
        Ok(floats)
    }
}

/// A stream; destroyed on drop.
#[derive(Debug)]
pub struct Stream<'a> {
    cuda: &'a Cuda,
    /// Its `cudaStream_t`.
    pub handle: Handle,
}

impl<'a> Stream<'a> {
    /// Waits for its work.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn synchronize(&self) -> Result<(), String> {
        // SAFETY: the stream lives.
        let status = unsafe { (self.cuda.functions.cudaStreamSynchronize)(self.handle) };
        self.cuda.check("cudaStreamSynchronize", status)
    }

    /// Keeps the stream busy for this many milliseconds.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn occupy(&self, ms: u64) -> Result<(), String> {
        extern "C" fn work(ms: Handle) {
            std::thread::sleep(Duration::from_millis(ms.addr() as u64));
        }
        let ms = usize::try_from(ms).map_err(|error| error.to_string())?;
        let launch = self.cuda.functions.cudaLaunchHostFunc;
        // SAFETY: the stream is alive, and the function only reads its argument as a number.
        let status = unsafe { launch(self.handle, work, std::ptr::without_provenance_mut(ms)) };
        self.cuda.check("cudaLaunchHostFunc", status)
    }

    /// Captures the work that `body` puts on the stream as an executable graph.
    ///
    /// # Errors
    /// The runtime's error text, or the error of `body`.
    pub fn capture(&self, body: impl FnOnce() -> Result<(), String>) -> Result<Graph<'a>, String> {
        let (cuda, functions) = (self.cuda, &self.cuda.functions);
        // SAFETY: the stream lives and does not capture.
        let status =
            unsafe { (functions.cudaStreamBeginCapture)(self.handle, CAPTURE_THREAD_LOCAL) };
        cuda.check("cudaStreamBeginCapture", status)?;
        let done = body();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture was begun above; the pointer is to a local.
        let status = unsafe { (functions.cudaStreamEndCapture)(self.handle, &raw mut graph) };
        done?;
        cuda.check("cudaStreamEndCapture", status)?;
        let kinds = cuda.node_kinds(graph)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is the capture's; the pointer is to a local.
        let status = unsafe { (functions.cudaGraphInstantiateWithFlags)(&raw mut exec, graph, 0) };
        cuda.check("cudaGraphInstantiateWithFlags", status)?;
        // SAFETY: the graph is not used after this.
        let status = unsafe { (functions.cudaGraphDestroy)(graph) };
        cuda.check("cudaGraphDestroy", status)?;
        Ok(Graph { cuda, exec, kinds })
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        // SAFETY: no other code has the handle; a failure at the end changes nothing.
        unsafe { (self.cuda.functions.cudaStreamDestroy)(self.handle) };
    }
}

/// An executable graph; destroyed on drop.
#[derive(Debug)]
pub struct Graph<'a> {
    cuda: &'a Cuda,
    exec: Handle,
    /// The type of each node (`cudaGraphNodeType`: 0 a kernel, 3 a host function).
    pub kinds: Vec<i32>,
}

impl Graph<'_> {
    /// Launches it on `stream`.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn launch(&self, stream: &Stream<'_>) -> Result<(), String> {
        // SAFETY: graph and stream live.
        let status = unsafe { (self.cuda.functions.cudaGraphLaunch)(self.exec, stream.handle) };
        self.cuda.check("cudaGraphLaunch", status)
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: no other code has the handle; a failure at the end changes nothing.
        unsafe { (self.cuda.functions.cudaGraphExecDestroy)(self.exec) };
    }
}

/// Floats on a device; freed on drop unless they are borrowed.
#[derive(Debug)]
pub struct Floats<'a> {
    cuda: &'a Cuda,
    /// The device address.
    pub address: Handle,
    count: usize,
    owned: bool,
}

impl<'a> Floats<'a> {
    /// `count` floats that the caller frees.
    ///
    /// # Safety
    /// * `address` has room for them and is known to the runtime.
    /// * The memory lives as long as the result is used.
    pub(crate) unsafe fn borrowed(cuda: &'a Cuda, address: Handle, count: usize) -> Self {
        Self { cuda, address, count, owned: false }
    }

    fn bytes(&self) -> usize {
        self.count * size_of::<f32>()
    }

    /// Writes them.
    ///
    /// # Errors
    /// The runtime's error text.
    ///
    /// # Panics
    /// If `values` has a different length.
    pub fn write(&self, values: &[f32]) -> Result<(), String> {
        assert_eq!(values.len(), self.count, "a value for each");
        let copy = self.cuda.functions.cudaMemcpy;
        let from = values.as_ptr().cast();
        // SAFETY: both ranges have this size.
        let status = unsafe { copy(self.address, from, self.bytes(), COPY_DEFAULT) };
        self.cuda.check("cudaMemcpy", status)
    }

    /// Reads them.
    ///
    /// # Errors
    /// The runtime's error text.
    pub fn read(&self) -> Result<Vec<f32>, String> {
        let mut values = vec![0.0_f32; self.count];
        let copy = self.cuda.functions.cudaMemcpy;
        let to = values.as_mut_ptr().cast();
        // SAFETY: both ranges have this size.
        let status = unsafe { copy(to, self.address, self.bytes(), COPY_DEFAULT) };
        self.cuda.check("cudaMemcpy", status)?;
        Ok(values)
    }
}

impl Drop for Floats<'_> {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: no other code has the address; a failure at the end changes nothing.
            unsafe { (self.cuda.functions.cudaFree)(self.address) };
        }
    }
}
