// SPDX-License-Identifier: Apache-2.0
//! The plugin's C functions, looked up like an application does.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libloading::os::unix::{Library, Symbol};
use std::path::Path;

type OnHang = extern "C" fn(*const c_char, *mut c_void);

/// The functions of a plugin, which stays loaded.
#[derive(Debug)]
pub struct Control {
    library: Library,
}

impl Control {
    /// The functions of the plugin `path`, which is opened again.
    ///
    /// # Errors
    /// The loader's error text.
    pub fn load(path: &Path) -> Result<Control, String> {
        // SAFETY: running the plugin's initialisers is what this is for.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        Ok(Control { library })
    }

    fn function<T>(&self, name: &str) -> Symbol<T> {
        let name = format!("ncclscope_{name}");
        // SAFETY: each caller asks for the type that the plugin's `api.rs` gives the function.
        unsafe { self.library.get(name.as_bytes()) }.expect("the plugin exports it")
    }

    /// `ncclscope_NAME(const char*)`, for `start`, `dump` and `mark`.
    #[must_use]
    pub fn with_text(&self, name: &str, text: Option<&CStr>) -> c_int {
        let call = self.function::<unsafe extern "C" fn(*const c_char) -> c_int>(name);
        // SAFETY: the argument is a C string or NULL.
        unsafe { call(text.map_or(core::ptr::null(), CStr::as_ptr)) }
    }

    /// `ncclscope_NAME(void)`, for `stop` and `is_started`.
    #[must_use]
    pub fn plain(&self, name: &str) -> c_int {
        let call = self.function::<extern "C" fn() -> c_int>(name);
        call()
    }

    /// `ncclscope_NAME(uint64_t)`, for `push_external_id`, which returns nothing, and `set_step`.
    pub fn with_number(&self, name: &str, number: u64) {
        let call = self.function::<extern "C" fn(u64)>(name);
        call(number);
    }

    /// `ncclscope_set_role`.
    #[must_use]
    pub fn set_role(&self, hash: u64, role: Option<&CStr>) -> c_int {
        let call = self.function::<unsafe extern "C" fn(u64, *const c_char) -> c_int>("set_role");
        // SAFETY: the argument is a C string or NULL.
        unsafe { call(hash, role.map_or(core::ptr::null(), CStr::as_ptr)) }
    }

    /// `ncclscope_on_hang` with a function that counts its calls in `told`.
    ///
    /// # Panics
    /// If the plugin refuses.
    pub fn on_hang(&self, told: &AtomicUsize) {
        extern "C" fn count(json: *const c_char, told: *mut c_void) {
            // SAFETY: the plugin passes a C string that is valid during the call.
            let json = unsafe { CStr::from_ptr(json) }.to_string_lossy();
            // SAFETY: the plugin passes the pointer that `on_hang` gave it, which is valid until
            // `forget_hangs`.
            let told = unsafe { &*told.cast::<AtomicUsize>() };
            if json.contains(r#""schema":"ncclscope.hang/2""#) && json.contains(r#""drill":true"#) {
                told.fetch_add(1, Ordering::Relaxed);
            }
        }
        let told = core::ptr::from_ref(told).cast_mut().cast();
        assert_eq!(self.set_on_hang(Some(count), told), 0);
    }

    /// `ncclscope_on_hang` with a function that never returns.
    ///
    /// # Panics
    /// If the plugin refuses.
    pub fn block_on_hang(&self) {
        extern "C" fn block(_json: *const c_char, _user: *mut c_void) {
            loop {
                std::thread::park();
            }
        }
        assert_eq!(self.set_on_hang(Some(block), core::ptr::null_mut()), 0);
    }

    /// `ncclscope_on_hang(NULL)`.
    ///
    /// # Panics
    /// If the plugin refuses.
    pub fn forget_hangs(&self) {
        assert_eq!(self.set_on_hang(None, core::ptr::null_mut()), 0);
    }

    fn set_on_hang(&self, callback: Option<OnHang>, user: *mut c_void) -> c_int {
        type Set = unsafe extern "C" fn(Option<OnHang>, *mut c_void) -> c_int;
        let call = self.function::<Set>("on_hang");
        // SAFETY: `callback` may be called with `user` on any thread, or is NULL.
        unsafe { call(callback, user) }
    }

    /// `ncclscope_simulate_hang`.
    #[must_use]
    pub fn simulate_hang(&self, seconds: f64) -> c_int {
        let call = self.function::<extern "C" fn(f64) -> c_int>("simulate_hang");
        call(seconds)
    }

    /// `ncclscope_error`.
    #[must_use]
    pub fn error(&self) -> String {
        let call = self.function::<extern "C" fn() -> *const c_char>("error");
        // SAFETY: the plugin returns a C string that is valid until the thread's next call.
        unsafe { CStr::from_ptr(call()) }.to_string_lossy().into_owned()
    }
}
