// SPDX-License-Identifier: Apache-2.0
//! The system calls of this crate that std has no door to.

pub(crate) mod child;
pub(crate) mod cuda;
pub(crate) mod descriptor;
pub(crate) mod exec;
pub(crate) mod image;
pub(crate) mod lock;
pub(crate) mod mask;
pub(crate) mod peer;
pub mod shield;
pub(crate) mod signal;
pub(crate) mod threads;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Writes to standard error, whatever becomes of it.
pub fn write_stderr(text: &str) {
    // SAFETY: the buffer is valid for its length; a closed descriptor only fails.
    unsafe { libc::write(2, text.as_ptr().cast::<c_void>(), text.len()) };
}

/// The host's name, up to its first dot.
#[must_use]
pub fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is valid for one byte more than the length given, so it stays terminated.
    let result =
        unsafe { libc::gethostname(buffer.as_mut_ptr().cast::<c_char>(), buffer.len() - 1) };
    let name = CStr::from_bytes_until_nul(&buffer).unwrap_or_default().to_string_lossy();
    let name: String = name
        .chars()
        .take_while(|&c| c != '.')
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' })
        .collect();
    if result != 0 || name.is_empty() { "host".into() } else { name }
}

static PID: AtomicI32 = AtomicI32::new(0);

/// The process id, by a system call: right after a fork too.
#[must_use]
pub fn pid() -> u32 {
    std::process::id()
}

/// Keeps the process id for [`cached_pid`].
pub(crate) fn cache_pid() {
    PID.store(pid().cast_signed(), Ordering::Relaxed);
}

/// The process id at the first communicator, without a system call: for callbacks.
#[must_use]
#[inline(always)]
pub fn cached_pid() -> i32 {
    PID.load(Ordering::Relaxed)
}

/// True in a child of the process that began to record: forked, or made by a system call of its
/// own, where nothing of us was run. What the child has of our memory may be locked for ever.
#[must_use]
pub fn is_child() -> bool {
    let began = cached_pid();
    FORKED.load(Ordering::Relaxed) || (began != 0 && began != pid().cast_signed())
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that this is a child, whatever its id: it may be the same in a namespace of its own.
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

/// Free and total bytes of the file's file system, if its files lie in memory (tmpfs): stores to a
/// mapping then never wait for a disk or a network.
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

/// How long a file of this process may be, in bytes; `None`: as long as it likes.
#[must_use]
pub fn file_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to write to.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Starts a thread that no signal of the host is ever delivered to.
///
/// # Errors
/// The system's, if there can be no more threads.
pub fn spawn_quiet(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::Thread> {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    let mut old = all;
    // SAFETY: `all` is valid to write to.
    unsafe { libc::sigfillset(&raw mut all) };
    // The new thread inherits the mask of the one that starts it.
    // SAFETY: both sets are valid; the caller's mask is restored below.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) };
    let spawned =
        std::thread::Builder::new().name(name.into()).stack_size(stack_size()).spawn(body);
    // SAFETY: `old` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut()) };
    spawned.map(|handle| handle.thread().clone())
}

/// What our threads have of a stack for themselves. Only what is used of it is memory.
/// The system's resolver runs on one of them, with whatever modules the site has for it.
const OWN_STACK: usize = 1 << 20;

/// Bytes of our threads' stacks. glibc puts the static thread-local storage of all libraries, which
/// may be megabytes, into a thread's stack; std adds nothing for it, but makes sure that 16 KiB are
/// left.
fn stack_size() -> usize {
    type LeastStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    // SAFETY: a name; any library may be asked for it.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if symbol.is_null() {
        // The C library adds the storage to what it is asked for, as musl does.
        return OWN_STACK;
    }
    // SAFETY: glibc's function of that name, which std calls too, has this signature.
    let least_stack = unsafe { core::mem::transmute::<*mut c_void, LeastStack>(symbol) };
    // SAFETY: zero is a valid value of this plain C struct.
    let mut attributes: libc::pthread_attr_t = unsafe { core::mem::zeroed() };
    // SAFETY: valid to write to.
    if unsafe { libc::pthread_attr_init(&raw mut attributes) } != 0 {
        return OWN_STACK;
    }
    // SAFETY: initialised.
    let least = unsafe { least_stack(&raw const attributes) };
    // SAFETY: initialised, and not used again.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    OWN_STACK + least
}

/// Runs `in_child` in every child of a fork, and `at_exit` when the process ends in order.
/// Both stay registered; the library is never unmapped.
pub fn register(in_child: extern "C" fn(), at_exit: extern "C" fn()) {
    // SAFETY: the functions stay mapped (`-z nodelete`), and the child's one is safe to call there.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // SAFETY: the function stays mapped.
    unsafe { libc::atexit(at_exit) };
}

/// The version code of the NCCL whose image holds `address` (its activation mask), such as 22809;
/// 0 if that image has no `ncclGetVersion`.
#[must_use]
pub fn nccl_version_at(address: usize) -> u32 {
    let Some(image) = image::Image::of(address) else { return 0 };
    let mut version: c_int = 0;
    if let Some(symbol) = image.symbol(c"ncclGetVersion") {
        // SAFETY: NCCL's documented `ncclResult_t ncclGetVersion(int*)`; `image` keeps it loaded.
        let get = unsafe {
            core::mem::transmute::<*mut c_void, extern "C" fn(*mut c_int) -> c_int>(symbol.as_ptr())
        };
        if get(&raw mut version) != 0 {
            version = 0;
        }
    }
    u32::try_from(version).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_files() {
        let name = host_name();
        assert!(!name.is_empty() && !name.contains(['/', '.', ' ']));
    }

    #[test]
    fn an_address_outside_nccl_has_no_version() {
        assert_eq!(nccl_version_at(0), 0);
        assert_eq!(nccl_version_at(nccl_version_at as *const () as usize), 0);
    }

    #[test]
    fn quiet_threads_run_with_signals_blocked() {
        let (send, receive) = std::sync::mpsc::channel();
        spawn_quiet("quiet", move || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("SigBlk")).unwrap().to_owned();
            send.send(line).unwrap();
        })
        .unwrap();
        assert!(receive.recv().unwrap().contains("fffffffe7ffbfeff"));
    }
}
