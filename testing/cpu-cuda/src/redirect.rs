// SPDX-License-Identifier: Apache-2.0
//! The redirect: the CUDA runtime functions inside libnccl become jumps to the stand-in.
//!
//! Which ones: local functions named `cuda` + capital letter, at least 16 bytes long. The size
//! matters: one wheel has a 6-byte function of NCCL itself under such a name. A function that the
//! stand-in lacks jumps to a stub that logs its name once and returns "not supported". Nothing but
//! these first bytes in the memory of this process changes.

use crate::elf::Image;
use crate::error::Error;
use crate::rt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shorter functions are not the runtime's, whose smallest has 74 bytes.
const SMALLEST: u64 = 16;
/// A library with fewer redirectable functions is stripped or has no static runtime.
const FEWEST: usize = 100;
/// Number of stubs, more than a library has functions.
const STUBS: usize = 512;

/// Redirects every runtime function of `image`; returns how many go to the stand-in and how many
/// to stubs.
///
/// # Errors
/// A text that says why the image was not changed.
pub fn redirect(image: &Image) -> Result<(usize, usize), String> {
    let functions = rt::functions(image.cuda_version().0);
    let mut patches: Vec<(usize, *const ())> = Vec::new();
    let mut missing = Vec::new();
    for symbol in image.symbols().filter(|s| s.is_func && s.is_local && s.size >= SMALLEST) {
        let Some(rest) = symbol.name.strip_prefix("cuda") else { continue };
        if !rest.starts_with(|c: char| c.is_ascii_uppercase()) {
            continue;
        }
        match functions.iter().find(|f| f.0 == symbol.name) {
            Some(function) => patches.push((symbol.addr, function.1)),
            None => missing.push((symbol.addr, symbol.name.to_owned())),
        }
    }
    let known = patches.len();
    if known + missing.len() < FEWEST {
        return Err(format!(
            "{}: only {} functions of the CUDA runtime in .symtab; is it stripped?",
            image.path.display(),
            known + missing.len()
        ));
    }
    patches.extend(missing.iter().map(|m| m.0).zip(stubs(&missing)?));
    write(&patches)?;
    Ok((known, missing.len()))
}

/// Writes a jump at each address. No other thread runs code of the library yet.
fn write(patches: &[(usize, *const ())]) -> Result<(), String> {
    let page = page_size();
    let Some(first) = patches.iter().map(|p| p.0).min() else { return Ok(()) };
    let last = patches.iter().map(|p| p.0).max().unwrap_or(first);
    let start = first / page * page;
    let size = (last + JUMP_SIZE).next_multiple_of(page) - start;
    protect(start, size, libc::PROT_READ | libc::PROT_WRITE)?;
    for &(address, target) in patches {
        let code = jump(target);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the address is that of a function at least `SMALLEST` bytes long, which is no
        // shorter than a jump, in pages that are writable now.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len()) };
    }
    protect(start, size, libc::PROT_READ | libc::PROT_EXEC)?;
    flush(start, size);
    Ok(())
}

/// Makes the import whose slot is at address `slot` lead to `target`. No other thread runs code of
/// the library yet.
///
/// # Errors
/// A text that says why the slot cannot be written.
pub(crate) fn write_import(slot: usize, target: *const ()) -> Result<(), String> {
    let (page, size) = (page_size(), size_of::<usize>());
    let start = slot / page * page;
    protect(start, slot + size - start, libc::PROT_READ | libc::PROT_WRITE)?;
    let to = std::ptr::with_exposed_provenance_mut::<usize>(slot);
    // SAFETY: the loader keeps the address of an imported function there, in pages that are
    // writable now.
    unsafe { to.write_unaligned(target.expose_provenance()) };
    Ok(())
}

fn page_size() -> usize {
    // SAFETY: no precondition.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn protect(start: usize, size: usize, protection: i32) -> Result<(), String> {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the pages are libnccl's, whose code no thread runs during the redirect.
    if unsafe { libc::mprotect(start, size, protection) } == 0 {
        Ok(())
    } else {
        Err(format!("mprotect of libnccl: {}", std::io::Error::last_os_error()))
    }
}

#[cfg(target_arch = "x86_64")]
const JUMP_SIZE: usize = 14;

/// `jmp [rip+0]` and the address it reads.
#[cfg(target_arch = "x86_64")]
fn jump(target: *const ()) -> [u8; JUMP_SIZE] {
    let mut code = [0xFF, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    code[6..].copy_from_slice(&target.expose_provenance().to_le_bytes());
    code
}

/// x86 keeps its instruction cache coherent.
#[cfg(target_arch = "x86_64")]
fn flush(_start: usize, _size: usize) {}

#[cfg(target_arch = "aarch64")]
const JUMP_SIZE: usize = 16;

/// `ldr x17, #8`, `br x17` and the address it reads.
#[cfg(target_arch = "aarch64")]
fn jump(target: *const ()) -> [u8; JUMP_SIZE] {
    let mut code = [0; JUMP_SIZE];
    code[..4].copy_from_slice(&0x5800_0051_u32.to_le_bytes());
    code[4..8].copy_from_slice(&0xD61F_0220_u32.to_le_bytes());
    code[8..].copy_from_slice(&target.expose_provenance().to_le_bytes());
    code
}

#[cfg(target_arch = "aarch64")]
fn flush(start: usize, size: usize) {
    unsafe extern "C" {
        /// Compiler support: makes written code visible to instruction fetch.
        fn __clear_cache(start: *mut std::ffi::c_char, end: *mut std::ffi::c_char);
    }
    let at = std::ptr::with_exposed_provenance_mut;
    // SAFETY: the range is mapped code.
    unsafe { __clear_cache(at(start), at(start + size)) };
}

/// Names of the functions behind the stubs, by stub number.
static NAMES: OnceLock<Vec<String>> = OnceLock::new();

/// Stubs for the functions in `missing`, in its order.
fn stubs(missing: &[(usize, String)]) -> Result<impl Iterator<Item = *const ()>, String> {
    if missing.len() > STUBS {
        return Err(format!("{} functions need a stub, there are {STUBS}", missing.len()));
    }
    let names = missing.iter().map(|m| m.1.clone()).collect();
    NAMES.set(names).map_err(|_| "a library is redirected already".to_owned())?;
    Ok(STUB_TABLE.iter().flatten().map(|&stub| stub as *const ()))
}

/// The stub of function number `N`, which ignores its arguments.
extern "C" fn stub<const N: usize>() -> i32 {
    static LOGGED: [AtomicBool; STUBS] = [const { AtomicBool::new(false) }; STUBS];
    if !LOGGED[N].swap(true, Ordering::Relaxed) {
        let name = NAMES.get().and_then(|names| names.get(N)).map_or("?", String::as_str);
        crate::log!("{name} is not implemented");
    }
    crate::error::status(|| Err(Error::NOT_SUPPORTED))
}

/// Sixteen stubs. Constants cannot be computed from a loop variable.
macro_rules! sixteen {
    ($($row:literal)*) => {
        [$([
            stub::<{ $row * 16 }>, stub::<{ $row * 16 + 1 }>, stub::<{ $row * 16 + 2 }>,
            stub::<{ $row * 16 + 3 }>, stub::<{ $row * 16 + 4 }>, stub::<{ $row * 16 + 5 }>,
            stub::<{ $row * 16 + 6 }>, stub::<{ $row * 16 + 7 }>, stub::<{ $row * 16 + 8 }>,
            stub::<{ $row * 16 + 9 }>, stub::<{ $row * 16 + 10 }>, stub::<{ $row * 16 + 11 }>,
            stub::<{ $row * 16 + 12 }>, stub::<{ $row * 16 + 13 }>, stub::<{ $row * 16 + 14 }>,
            stub::<{ $row * 16 + 15 }>,
        ]),*]
    };
}

/// Every stub, by number.
static STUB_TABLE: [[extern "C" fn() -> i32; 16]; STUBS / 16] = sixteen!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_reaches_its_target() {
        extern "C" fn target(a: i32, b: i32) -> i32 {
            a * 10 + b
        }
        let size = 4096;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the system's choice.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        write(&[(page.expose_provenance() + 64, target as *const ())]).unwrap();
        let code = page.wrapping_byte_add(64);
        // SAFETY: the page now holds a jump to a function of this signature.
        let call: extern "C" fn(i32, i32) -> i32 = unsafe { std::mem::transmute(code) };
        assert_eq!(call(4, 2), 42);
        // SAFETY: the page was mapped above and is not used any more.
        unsafe { libc::munmap(page, size) };
    }

    #[test]
    fn a_stub_is_an_error() {
        assert_eq!(stub::<511>(), Error::NOT_SUPPORTED.0);
        assert_eq!(crate::error::last(true), Error::NOT_SUPPORTED.0);
    }
}
