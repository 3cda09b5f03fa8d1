// SPDX-License-Identifier: Apache-2.0
//! Attaching: one libnccl per process, its kernels and their player.

use crate::device;
use crate::elf::Image;
use crate::error::{Error, Result};
use crate::player::faults::Faults;
use crate::player::{Launch, Player};
use crate::redirect;
use crate::stream::{Kind, Work};
use crate::util::lock;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::{Mutex, OnceLock};

/// The libnccl that runs on the stand-in.
struct Nccl {
    /// Kernels by the address of their host stub, and whether they can be played: symmetric kernels
    /// cannot.
    kernels: HashMap<usize, bool>,
    player: Player,
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("kernels", &self.kernels.len()).finish_non_exhaustive()
    }
}

static NCCL: OnceLock<Nccl> = OnceLock::new();

/// Redirects the loaded libnccl, once. Without one it does nothing and returns false.
///
/// # Errors
/// A text that says why the library cannot run on the stand-in.
pub fn attach() -> std::result::Result<bool, String> {
    static BUSY: Mutex<()> = Mutex::new(());
    let _one_at_a_time = lock(&BUSY);
    if NCCL.get().is_some() {
        return Ok(true);
    }
    let Some(image) = Image::loaded()? else { return Ok(false) };
    let player = Player::new(&image, faults())?;
    let kernels = image.symbols().filter(|s| s.is_func).filter_map(|symbol| {
        let played = symbol.name.contains("ncclDevKernel_");
        // The second name is that of 2.27, which asks for their attributes in 2.27.3.
        let symmetric = ["ncclSymkDevKernel_", "ncclSymDevKernel_"];
        let known = played || symmetric.iter().any(|name| symbol.name.contains(name));
        known.then_some((symbol.addr, played))
    });
    let kernels = kernels.collect();
    let (major, minor) = image.cuda_version();
    let version = i32::try_from(major * 1000 + minor * 10).unwrap_or(0);
    if version == 0 {
        return Err(format!("{}: no CUDA version found", image.path.display()));
    }
    device::set_version(version);
    redirect::redirect(&image)?;
    // No other thread can have set it: `BUSY` is held.
    drop(NCCL.set(Nccl { kernels, player }));
    Ok(true)
}

/// The faults in the environment. If they are invalid the process exits: a job with other faults
/// than those requested would prove nothing.
#[expect(clippy::exit, reason = "attaching may be a constructor's work, which cannot fail")]
fn faults() -> Faults {
    Faults::from_env().unwrap_or_else(|error| {
        crate::log!("{error}");
        std::process::exit(2)
    })
}

/// Loads the libnccl at `path` and attaches to it. Returns its `dlopen` handle, or NULL after a
/// line on stderr.
///
/// # Safety
/// `path` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpucuda_open_nccl(path: *const c_char) -> *mut c_void {
    // SAFETY: `path` is a C string; what libnccl's constructors do is NCCL's business.
    let library = unsafe { libc::dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let result = if library.is_null() {
        // SAFETY: no precondition; a failed dlopen has left a text.
        let text = unsafe { libc::dlerror() };
        // SAFETY: the text is a C string that lives until the thread's next dl call.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    } else {
        attach().and_then(|done| if done { Ok(()) } else { Err("no libnccl.so loaded".into()) })
    };
    match result {
        Ok(()) => library,
        Err(text) => {
            crate::log!("{text}");
            std::ptr::null_mut()
        }
    }
}

/// Succeeds if `function` is the stub of one of the library's kernels.
///
/// # Errors
/// [`Error::INVALID_DEVICE_FUNCTION`] otherwise.
pub fn kernel(function: usize) -> Result<usize> {
    let known = NCCL.get().is_some_and(|nccl| nccl.kernels.contains_key(&function));
    if known { Ok(function) } else { Err(Error::INVALID_DEVICE_FUNCTION) }
}

/// The work that plays `function` with the arguments of `launch`.
///
/// # Errors
/// [`Error::INVALID_DEVICE_FUNCTION`] if it is not a kernel, [`Error::NOT_SUPPORTED`] if it is a
/// kernel that cannot be played.
pub fn kernel_work(function: usize, launch: Launch) -> Result<Work> {
    let nccl = NCCL.get().ok_or(Error::INVALID_DEVICE_FUNCTION)?;
    match nccl.kernels.get(&function) {
        Some(true) => Ok(Work::new(Kind::Kernel, move || nccl.player.run(&launch))),
        Some(false) => Err(Error::NOT_SUPPORTED),
        None => Err(Error::INVALID_DEVICE_FUNCTION),
    }
}

/// Succeeds while every kernel could be played. After a failure every wait of the process fails, as
/// on a device after an illegal access.
///
/// # Errors
/// [`Error::LAUNCH_FAILURE`] if one could not.
pub fn healthy() -> Result {
    let failed = NCCL.get().is_some_and(|nccl| nccl.player.failure().is_some());
    if failed { Err(Error::LAUNCH_FAILURE) } else { Ok(()) }
}

/// Runs when this library is loaded: attaches to a libnccl that is already loaded, as under
/// `LD_PRELOAD` with a client that is linked to it.
extern "C" fn attach_at_load() {
    if let Err(text) = attach() {
        crate::log!("{text}");
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = attach_at_load;
