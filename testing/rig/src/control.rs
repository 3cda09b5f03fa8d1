// SPDX-License-Identifier: Apache-2.0
//! The plugin's C functions, called by a rank as an application calls them.

use libloading::os::unix::{Library, Symbol};
use std::ffi::{c_char, c_int};

/// Starts or stops recording in this process, through the plugin that NCCL loads.
///
/// # Errors
/// There is no plugin, it lacks the functions, or it refused.
pub fn record(on: bool) -> Result<(), String> {
    let path = std::env::var("NCCL_PROFILER_PLUGIN").map_err(|e| e.to_string())?;
    // SAFETY: NCCL has already loaded the plugin, so no initialiser runs now.
    let plugin = unsafe { Library::new(&path) }.map_err(|e| e.to_string())?;
    let code = if on {
        let start: Symbol<unsafe extern "C" fn(*const c_char) -> c_int> =
            // SAFETY: the function's type, as the plugin's `api.rs` has it.
            unsafe { plugin.get(b"ncclscope_start") }.map_err(|e| e.to_string())?;
        // SAFETY: the function accepts NULL.
        unsafe { start(std::ptr::null()) }
    } else {
        let stop: Symbol<extern "C" fn() -> c_int> =
            // SAFETY: the function's type, as the plugin's `api.rs` has it.
            unsafe { plugin.get(b"ncclscope_stop") }.map_err(|e| e.to_string())?;
        stop()
    };
    if code == 0 { Ok(()) } else { Err(format!("the plugin refused: {code}")) }
}
