// SPDX-License-Identifier: Apache-2.0
//! Attaching: a loaded libnccl is redirected to the stand-in, one per process.

use crate::device;
use crate::elf::Image;
use crate::idle;
use crate::nccl::{self, Nccl};
use crate::player::faults::Faults;
use crate::redirect;
use crate::util::lock;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

/// Redirects the loaded libnccl, once. Without one it does nothing and returns false.
///
/// # Errors
/// A text that says why the library cannot run on the stand-in.
pub fn attach() -> std::result::Result<bool, String> {
    static BUSY: Mutex<()> = Mutex::new(());
    let _one_at_a_time = lock(&BUSY);
    if nccl::is_set() {
        return Ok(true);
    }
    let Some(image) = Image::loaded()? else { return Ok(false) };
    let library = Nccl::read(&image, faults())?;
    let (major, minor) = image.cuda_version();
    let version = i32::try_from(major * 1000 + minor * 10).unwrap_or(0);
    if version == 0 {
        return Err(format!("{}: no CUDA version found", image.path.display()));
    }
    device::set_version(version);
    redirect::redirect(&image)?;
    idle::attach(&image)?;
    nccl::set(library);
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
    // SAFETY: `path` is a C string; libnccl's constructors run as in any process that loads it.
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
