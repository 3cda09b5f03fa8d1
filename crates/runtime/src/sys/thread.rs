// SPDX-License-Identifier: Apache-2.0
/*!
Our threads in the host's process.

They are not std's threads. A thread of std starts by registering a destructor, for which glibc
takes the lock that `dlopen` holds. While another thread loads a library from a file system that
hangs, no std thread would start, and a hang of the job would not be reported.
*/

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::ffi::CString;
use std::io::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Stack size of our threads, without what the C library needs; only used pages take memory. The
/// system's resolver runs on one of them, with the modules of the site.
const OWN_STACK: usize = 1 << 20;
/// Maximum length of a thread's name that Linux keeps.
const NAME_BYTES: usize = 15;

/// What a new thread gets.
struct Start {
    name: CString,
    body: Box<dyn FnOnce() + Send>,
}

/// Starts a detached thread to which no signal of the host is delivered and which has no real-time
/// priority. A panic ends only this thread.
///
/// # Errors
/// The system's error if no thread can be started.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let name = name.get(..NAME_BYTES).unwrap_or(name);
    let start = Start { name: CString::new(name).unwrap_or_default(), body: Box::new(body) };
    let attributes = Attributes::new()?;
    // The new thread inherits the signal mask of the starting thread.
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut old = all;
    // SAFETY: `all` is valid to write to.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both sets are valid; the caller's mask is restored below.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    let result = attributes.start(start);
    // SAFETY: `old` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), null_mut()) };
    result
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: the pointer that `Attributes::start` passed, once.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: no argument, and it cannot fail.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread, and a string of at most 15 bytes.
    unsafe { libc::pthread_setname_np(this, name.as_ptr()) };
    let _ = catch_unwind(AssertUnwindSafe(body));
    null_mut()
}

struct Attributes(libc::pthread_attr_t);

impl Attributes {
    /// Attributes of a detached thread with our stack size.
    fn new() -> Result<Attributes> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: valid to write to.
        is_done(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised by that.
        let mut attributes = Attributes(unsafe { attributes.assume_init() });
        let it = &raw mut attributes.0;
        // SAFETY: initialised.
        is_done(unsafe { libc::pthread_attr_setdetachstate(it, libc::PTHREAD_CREATE_DETACHED) })?;
        // SAFETY: initialised.
        is_done(unsafe { libc::pthread_attr_setstacksize(it, stack_size(&attributes)) })?;
        if is_real_time() {
            attributes.leave_real_time();
        }
        Ok(attributes)
    }

    /// Gives the new thread ordinary scheduling even if a real-time thread of the host starts it:
    /// its file writes are not urgent, and it must not run where the host's thread spins at its
    /// priority.
    fn leave_real_time(&mut self) {
        // SAFETY: zero is a valid value of this plain C struct: no priority.
        let none: libc::sched_param = unsafe { core::mem::zeroed() };
        let it = &raw mut self.0;
        // SAFETY: initialised.
        unsafe { libc::pthread_attr_setschedpolicy(it, libc::SCHED_OTHER) };
        // SAFETY: both are initialised.
        unsafe { libc::pthread_attr_setschedparam(it, &raw const none) };
        self.inherits(libc::PTHREAD_EXPLICIT_SCHED);
    }

    /// Sets whether the thread inherits the scheduling of the starting thread.
    fn inherits(&mut self, how: c_int) {
        // SAFETY: initialised.
        unsafe { libc::pthread_attr_setinheritsched(&raw mut self.0, how) };
    }

    fn start(mut self, start: Start) -> Result<()> {
        let start = Box::into_raw(Box::new(start));
        let mut result = self.create(start);
        if result == libc::EPERM {
            // A sandbox may forbid setting the scheduling.
            self.inherits(libc::PTHREAD_INHERIT_SCHED);
            result = self.create(start);
        }
        is_done(result).inspect_err(|_| {
            // SAFETY: no thread was started with it.
            drop(unsafe { Box::from_raw(start) });
        })
    }

    /// Tries once; on success, `start` belongs to the new thread.
    fn create(&self, start: *mut Start) -> c_int {
        let mut thread = MaybeUninit::uninit();
        // SAFETY: all arguments are valid, and `run` takes ownership of `start`.
        unsafe { libc::pthread_create(thread.as_mut_ptr(), &raw const self.0, run, start.cast()) }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used again.
        unsafe { libc::pthread_attr_destroy(&raw mut self.0) };
    }
}

/// True if the calling thread has a real-time policy.
fn is_real_time() -> bool {
    // By system call number, because musl's function always fails.
    // SAFETY: no memory is involved; 0 is the calling thread.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let policy = c_int::try_from(policy).unwrap_or(-1) & !libc::SCHED_RESET_ON_FORK;
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

fn is_done(result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Error::from_raw_os_error(result)) }
}

/// Stack size of our threads, in whole pages. glibc puts the static thread-local storage of all
/// libraries, which may be megabytes, into each thread's stack.
fn stack_size(attributes: &Attributes) -> usize {
    const PAGES: usize = 1 << 16;
    (OWN_STACK + least_stack().map_or(0, |least| least(attributes))).next_multiple_of(PAGES)
}

/// glibc's function for the minimum stack size; `None` if the C library adds it itself, as musl
/// does. Looked up once, with the first thread, because that takes `dlopen`'s lock.
fn least_stack() -> Option<impl Fn(&Attributes) -> usize> {
    type LeastStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    static FUNCTION: OnceLock<Option<LeastStack>> = OnceLock::new();
    let find = || {
        // SAFETY: a C string; any name may be looked up.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
        // SAFETY: glibc's function of that name, which std calls too, has this signature.
        (!symbol.is_null())
            .then(|| unsafe { core::mem::transmute::<*mut c_void, LeastStack>(symbol) })
    };
    let function = (*FUNCTION.get_or_init(find))?;
    let of = move |attributes: &Attributes| {
        // SAFETY: the attributes are initialised.
        unsafe { function(&raw const attributes.0) }
    };
    Some(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn quiet_threads_have_a_name_and_block_signals() {
        let (send, receive) = channel();
        let body = move || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            send.send(status).unwrap();
        };
        spawn_quiet("ncclscope/control", body).unwrap();
        let status = receive.recv().unwrap();
        assert!(status.starts_with("Name:\tncclscope/contr\n"), "{status}");
        let blocked = status.lines().find(|line| line.starts_with("SigBlk")).unwrap();
        assert!(blocked.contains("fffffffe7ffbfeff"), "{blocked}");
    }

    #[test]
    fn a_panic_ends_its_thread_alone() {
        let (send, receive) = channel::<()>();
        spawn_quiet("quiet", move || {
            let _send = send;
            std::panic::resume_unwind(Box::new(()));
        })
        .unwrap();
        receive.recv().unwrap_err();
    }

    /// If the system allows no real-time priority, the test checks nothing.
    #[test]
    fn the_threads_of_a_real_time_thread_are_ordinary() {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut first: libc::sched_param = unsafe { core::mem::zeroed() };
        first.sched_priority = 1;
        let set = |policy: c_int, param: *const libc::sched_param| {
            // SAFETY: the parameter is valid; 0 is the calling thread.
            unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, param) }
        };
        for policy in [libc::SCHED_FIFO, libc::SCHED_RR] {
            if set(policy, &raw const first) != 0 {
                return;
            }
            assert!(is_real_time());
            let (send, receive) = channel();
            spawn_quiet("quiet", move || send.send(is_real_time()).unwrap()).unwrap();
            assert!(!receive.recv().unwrap());
        }
    }
}
