// SPDX-License-Identifier: Apache-2.0
//! System calls that std does not offer.

pub(crate) mod child;
pub(crate) mod cuda;
pub(crate) mod descriptor;
pub(crate) mod exec;
pub(crate) mod hip;
pub(crate) mod image;
pub mod kernel_hold;
pub(crate) mod lock;
pub(crate) mod mask;
pub(crate) mod peer;
pub(crate) mod quota;
pub mod shield;
pub(crate) mod signal;
pub(crate) mod thread;
pub(crate) mod threads;
pub(crate) mod wake;

pub use thread::spawn_quiet;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use ncclscope_control::directories;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Writes to standard error and ignores errors.
pub fn write_stderr(text: &str) {
    // SAFETY: the buffer is valid for its length; a closed descriptor only fails.
    unsafe { libc::write(2, text.as_ptr().cast::<c_void>(), text.len()) };
}

/// The name of this host, as in recordings.
#[must_use]
pub fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is valid for one byte more than the length given, so it stays terminated.
    let result =
        unsafe { libc::gethostname(buffer.as_mut_ptr().cast::<c_char>(), buffer.len() - 1) };
    let name = CStr::from_bytes_until_nul(&buffer).ok().filter(|_| result == 0);
    directories::host_name(&name.unwrap_or_default().to_string_lossy())
}

static PID: AtomicI32 = AtomicI32::new(0);

/// The process id, by a system call, so that it is right after a fork, too.
#[must_use]
pub fn pid() -> u32 {
    std::process::id()
}

/// [`is_child`] for each communicator that is initialised; the first call stores the process id.
pub(crate) fn is_child_of_first() -> bool {
    let own = pid().cast_signed();
    let kept = PID.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    FORKED.load(Ordering::Relaxed) || kept.is_err_and(|kept| kept != own)
}

/// The process id at the first communicator, without a system call: for callbacks.
#[must_use]
#[inline(always)]
pub fn cached_pid() -> i32 {
    PID.load(Ordering::Relaxed)
}

/// True in a child of the process that began to record, whether made by `fork` or by a system call
/// that runs no handler. In such a child, our locks may stay locked.
#[must_use]
pub fn is_child() -> bool {
    let began = cached_pid();
    FORKED.load(Ordering::Relaxed) || (began != 0 && began != pid().cast_signed())
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that this process is a child, whatever its id: in another pid namespace it may be the
/// same.
pub(crate) fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// A number that another process is unlikely to have.
#[must_use]
pub fn nonce() -> u32 {
    let mut bytes = [0u8; 4];
    // SAFETY: the buffer is valid for its length.
    let got =
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast::<c_void>(), 4, libc::GRND_NONBLOCK) };
    if got == 4 { u32::from_ne_bytes(bytes) } else { pid().wrapping_mul(0x9e37_79b9) }
}

/// Free and total bytes of the file's file system if it is in memory (tmpfs), else `None`: stores
/// to a mapping of tmpfs never wait for a disk or a network.
#[must_use]
pub fn memory_files(file: &File) -> Option<(u64, u64)> {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut stat: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the descriptor is open, and `stat` valid to write to.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) };
    if result != 0 || stat.f_type != libc::TMPFS_MAGIC {
        return None;
    }
    let block = u64::try_from(stat.f_bsize).ok()?;
    Some((stat.f_bavail * block, stat.f_blocks * block))
}

/// Maximum length of files of this process, bytes; `None` if unlimited.
#[must_use]
pub fn file_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to write to.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

unsafe extern "C" {
    /// The C library's; glibc has it in all versions.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Registers handlers: `in_child` for the child of each fork, `at_exit` for the orderly end of the
/// process, with its exit status. They stay registered; the library is never unmapped.
pub fn register(in_child: extern "C" fn(), at_exit: extern "C" fn(c_int, *mut c_void)) {
    // SAFETY: the functions stay mapped (`-z nodelete`), and the child's one is safe to call there.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // SAFETY: the function stays mapped, and the argument is not used. Handlers run in the reverse
    // of their order, whether they were registered by this or by `atexit`.
    unsafe { on_exit(at_exit, core::ptr::null_mut()) };
}

/// The version code of an NCCL, such as 22809; 0 if the image has no `ncclGetVersion`.
pub(crate) fn nccl_version(nccl: &image::Image) -> u32 {
    let mut version: c_int = 0;
    if let Some(symbol) = nccl.symbol(c"ncclGetVersion") {
        // SAFETY: NCCL's documented `ncclResult_t ncclGetVersion(int*)`; `nccl` keeps it loaded.
        let get = unsafe {
            core::mem::transmute::<*mut c_void, extern "C" fn(*mut c_int) -> c_int>(symbol.as_ptr())
        };
        if get(&raw mut version) != 0 {
            version = 0;
        }
    }
    u32::try_from(version).unwrap_or(0)
}
