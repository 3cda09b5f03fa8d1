// SPDX-License-Identifier: Apache-2.0
//! Wrappers of `ptrace` and `waitpid`, each request in one place.

use libc::{c_int, c_uint, c_void, pid_t, user_regs_struct};
use std::io;
use std::mem::MaybeUninit;

/// A request whose arguments are numbers or addresses in the traced process.
fn request(op: c_uint, tid: pid_t, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: for these requests, the kernel only reads and writes memory of the traced process.
    match unsafe { libc::ptrace(op, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Requests to be traced by the thread that created this process.
pub(crate) fn trace_me() -> io::Result<()> {
    request(libc::PTRACE_TRACEME, 0, 0, 0)
}

/// Makes the kernel kill the traced process when this one exits.
pub(crate) fn kill_on_exit(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, u64::from(libc::PTRACE_O_EXITKILL.cast_unsigned()))
}

/// Continues to the next stop, with a signal or none (0).
pub(crate) fn resume(tid: pid_t, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, u64::from(signal.cast_unsigned()))
}

/// Executes one instruction.
pub(crate) fn step(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, 0)
}

/// Stops a thread that is not traced, until [`release`]; fails if it ends instead.
pub(crate) fn hold(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, 0)?;
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
    match wait(tid)? {
        (_, status) if libc::WIFSTOPPED(status) => Ok(()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Resumes a thread and stops tracing it.
pub(crate) fn release(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, 0)
}

/// Writes eight bytes, also to code.
pub(crate) fn poke(tid: pid_t, address: u64, word: u64) -> io::Result<()> {
    request(libc::PTRACE_POKETEXT, tid, address, word)
}

pub(crate) fn registers(tid: pid_t) -> io::Result<user_regs_struct> {
    let mut registers = MaybeUninit::<user_regs_struct>::uninit();
    // SAFETY: the kernel writes the structure to which the last argument points.
    let result = unsafe {
        libc::ptrace(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr().cast::<c_void>())
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has written the whole structure.
    Ok(unsafe { registers.assume_init() })
}

pub(crate) fn set_registers(tid: pid_t, registers: &user_regs_struct) -> io::Result<()> {
    let from = std::ptr::from_ref(registers).cast::<c_void>();
    // SAFETY: the kernel reads the structure to which the last argument points.
    match unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0, from) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits for a thread (-1: any child or traced thread) to stop or exit; returns its id and status.
pub(crate) fn wait(tid: pid_t) -> io::Result<(pid_t, c_int)> {
    let mut status = 0;
    loop {
        let flags = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` is valid to write to.
        let found = unsafe { libc::waitpid(tid, &raw mut status, flags) };
        if found > 0 {
            return Ok((found, status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
