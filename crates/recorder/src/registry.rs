// SPDX-License-Identifier: Apache-2.0
/*!
The lane of the calling thread.

A thread takes a lane from the prepared ones at its first event; finding it again is one access to
thread-local memory. When the thread exits, a destructor of a `pthread` key gives the lane back
(Rust's own thread-local destructors would allocate in the callback). In a process with many keys
the destructor would allocate too. There a new thread takes over the lane of an exited thread whose
control block it has, and the drain thread gives back the lanes of threads that no longer exist.
*/

use crate::lane::{self, Lane, LaneHeader, Ring};
use crate::region::Region;
use crate::sync::{AtomicU32, Ordering, per_thread};
use core::cell::Cell;
use core::ffi::c_void;

#[derive(Clone, Copy)]
struct Held {
    header: &'static LaneHeader,
    ring: &'static Ring,
    index: usize,
}

per_thread! {
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
    // The value of `offers` when this thread last found all lanes taken. The thread searches again
    // only when `offers` differs, because the headers of all lanes are too many to read at each
    // event.
    static TAKEN: Cell<Option<(u32, usize)>> = const { Cell::new(None) };
}

/// Number of the `pthread` key plus one; 0 if there is none.
static KEY: AtomicU32 = AtomicU32::new(0);
/// glibc stores the values of the first 32 keys in the thread itself; for later keys it allocates.
const KEYS_WITHOUT_ALLOCATION: u32 = 32;

/// Registers a destructor that releases a thread's lane when the thread ends. Call once before the
/// first event. Without it, or if the process has many keys, the lanes of exited threads are
/// released by [`crate::Recorder::reap_lanes`].
pub fn install() {
    if KEY.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` is valid to write to, and `thread_ends` stays mapped: the library is linked
    // with `-z nodelete`.
    let result = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
    if result == 0 {
        if key < KEYS_WITHOUT_ALLOCATION {
            KEY.store(key + 1, Ordering::Release);
        } else {
            // SAFETY: the key was just created and has no values.
            unsafe { libc::pthread_key_delete(key) };
        }
    }
}

/// True if lanes are released as soon as their threads end.
pub(crate) fn tells_ends() -> bool {
    KEY.load(Ordering::Relaxed) != 0
}

unsafe extern "C" fn thread_ends(header: *mut c_void) {
    HELD.set(None);
    // SAFETY: the value of the key is only ever set by `claim`, to a lane header that stays mapped.
    unsafe { &*header.cast::<LaneHeader>() }.release();
}

/// A value that changes when a thread that found no lane may find one: releases and number of
/// lanes.
fn offers(region: &Region) -> (u32, usize) {
    (lane::releases(), region.rings())
}

/// The calling thread's lane; `None` when all are taken.
#[must_use]
#[inline(always)]
pub fn current(region: &Region) -> Option<Lane<'static>> {
    let held = match HELD.get() {
        Some(held) => held,
        None if claim(region) => HELD.get()?,
        None => return None,
    };
    Some(Lane::new(held.header, held.ring, held.index))
}

/// Lane `index`, if the calling thread holds it. The thread is identified by a register, because an
/// access to thread-local memory costs a library that was loaded late a call.
#[must_use]
#[inline(always)]
pub fn held(region: &Region, index: usize) -> Option<Lane<'static>> {
    region.held(index, thread()).map(|(header, ring)| Lane::new(header, ring, index))
}

/// The threads of a model share the register, so that the model has identities of its own.
#[cfg(loom)]
pub(crate) use crate::sync::model::thread;

/// Identity of the calling thread among all live threads: the address of its control block. Not 0.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
pub(crate) fn thread() -> u64 {
    let block: u64;
    // SAFETY: the first word of a thread's control block is its own address (System V ABI for
    // x86-64, thread-local storage), and no code changes it.
    unsafe {
        core::arch::asm!(
            "mov {}, fs:[0]", out(reg) block, options(pure, nomem, nostack, preserves_flags)
        );
    }
    block
}

#[cfg(all(target_arch = "aarch64", not(loom)))]
#[inline(always)]
pub(crate) fn thread() -> u64 {
    let block: u64;
    // SAFETY: reads the thread pointer (AAPCS64 addenda, "System V ABI for the Arm 64-bit
    // Architecture", thread-local storage), which the C library sets once for each thread.
    unsafe {
        core::arch::asm!(
            "mrs {}, tpidr_el0", out(reg) block, options(pure, nomem, nostack, preserves_flags)
        );
    }
    block
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", loom)))]
compile_error!("the address of a thread's control block is known for x86-64 and aarch64 only");

/// The system's id of the calling thread, without a system call. The C library stores the id, and
/// it is encoded in the thread's CPU clock id (`~id << 3 | 6`, Linux's
/// `include/linux/posix-timers_types.h`). 0 if there is no such clock.
fn thread_id() -> u32 {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: a thread may always ask for itself.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread lives, and `clock` is valid to write to.
    let found = unsafe { libc::pthread_getcpuclockid(this, &raw mut clock) } == 0;
    if found { !(clock >> 3).cast_unsigned() } else { 0 }
}

/// True if no thread of this process has the id. Makes a system call; for the drain thread.
#[must_use]
pub fn is_gone(thread: u32) -> bool {
    let Ok(thread) = libc::pid_t::try_from(thread) else { return false };
    // SAFETY: no argument, and it cannot fail.
    let process = unsafe { libc::getpid() };
    // SAFETY: a system call on numbers; signal 0 only checks that the thread exists.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    let is_unknown = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    thread != 0 && result != 0 && is_unknown()
}

/// Takes a lane for the calling thread, whose identity is `this`. While all lanes are taken, each
/// event of a thread without a lane may come here.
fn find(region: &Region, this: u64) -> Option<(usize, &'static LaneHeader)> {
    let lane = |index: usize| Some((index, region.lane_header(index)?));
    let mut free = region.rings();
    for (index, header) in (0..region.rings()).filter_map(lane) {
        if !header.in_use() {
            free = free.min(index);
        } else if header.is_held_by(this) && header.inherit(this) {
            // The lane's thread had the control block that this thread has now, so it has exited.
            return Some((index, header));
        }
    }
    (free..region.rings()).filter_map(lane).find(|(_, header)| header.claim(this))
}

#[cold]
#[inline(never)]
fn claim(region: &Region) -> bool {
    let offers = offers(region);
    if TAKEN.get() == Some(offers) {
        return false;
    }
    let Some((index, header)) = find(region, thread()) else {
        TAKEN.set(Some(offers));
        return false;
    };
    let Some(ring) = region.ring(index) else { return false };
    header.set_thread(thread_id());
    let key = KEY.load(Ordering::Acquire);
    if key != 0 {
        let value = core::ptr::from_ref(header).cast::<c_void>();
        // SAFETY: the key exists and is below the number from which setting a value allocates.
        unsafe { libc::pthread_setspecific(key - 1, value) };
    }
    HELD.set(Some(Held { header, ring, index }));
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{is_gone, thread, thread_id};

    #[test]
    fn a_thread_is_gone_when_the_system_does_not_know_it() {
        let (send, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(thread_id()).unwrap();
            let _ = wait.recv();
        });
        let id = told.recv().unwrap();
        assert!(!is_gone(id) && !is_gone(0) && !is_gone(u32::MAX));
        drop(send);
        thread.join().unwrap();
        // A thread can be joined a moment before the system forgets its id.
        while !is_gone(id) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_that_live_are_told_apart() {
        let here = thread();
        assert_ne!(here, 0);
        assert_eq!(thread(), here);
        let barrier = std::sync::Barrier::new(4);
        let others = std::thread::scope(|scope| {
            let one = || {
                let it = thread();
                barrier.wait();
                it
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let all: std::collections::HashSet<_> = others.into_iter().chain([here]).collect();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn a_threads_id_is_the_systems() {
        let told = std::thread::spawn(|| {
            // SAFETY: no argument, and it cannot fail.
            (thread_id(), unsafe { libc::gettid() })
        });
        let (id, truth) = told.join().unwrap();
        assert_eq!(id, truth.cast_unsigned());
    }
}
