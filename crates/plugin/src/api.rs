// SPDX-License-Identifier: Apache-2.0
/*!
The C functions for the application, which finds them with `dlsym` in the plugin that NCCL loaded,
or in the same file loaded earlier. Ordinary code calls them, never a callback or a signal handler.
They work from any thread, and affect the whole process.

A function that returns an `int` returns 0, or [`OFF`], [`BAD`] or [`SYSTEM`]; `ncclscope_error`
then returns a sentence. A string is UTF-8 (other bytes are replaced) and is read during the call
only. The page for users is `docs/control.md`.
*/

use crate::external::{self, Ask};
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_void};
use ncclscope_control::window::RecordingWindow;
use ncclscope_recorder::gate;
use ncclscope_runtime::sys::{self, shield::Shield};
use ncclscope_runtime::{Refusal, Runtime};
use std::borrow::Cow;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// Recording is off in this process.
pub const OFF: c_int = 1;
/// An argument is invalid.
pub const BAD: c_int = 2;
/// The system returned an error.
pub const SYSTEM: c_int = 3;

/// The string that `ncclscope_version` returns.
const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// Maximum number of bytes read of a string argument; a path is not longer.
const LONGEST: usize = 4096;
/// Size of an error sentence with its NUL, in bytes. A thread's first callback makes the linker
/// allocate all thread-local memory of the library, which takes a third longer above 1 KiB.
const SENTENCE: usize = 256;

thread_local! {
    /// A type without a destructor: registering one makes glibc wait for threads that load a
    /// library.
    static ERROR: Cell<[u8; SENTENCE]> = const { Cell::new([0; SENTENCE]) };
}

/// Runs the short function `body` with the host's signals blocked.
fn answer(body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    answer_behind(Shield::raise_against_all(), body)
}

/// Runs `body` and contains panics; a refusal becomes a result code and the thread's error
/// sentence.
fn answer_behind(_shield: Shield, body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_panic| Err(Refusal::System("a defect of ncclscope".into())));
    let sentence = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
    ERROR.set(terminated(&sentence));
    match result {
        Ok(()) => 0,
        Err(Refusal::Off | Refusal::Early) => OFF,
        Err(Refusal::Bad(_)) => BAD,
        Err(Refusal::System(_)) => SYSTEM,
    }
}

/// A sentence as a C string; a sentence that is too long is cut at a character boundary.
fn terminated(sentence: &str) -> [u8; SENTENCE] {
    let mut bytes = [0; SENTENCE];
    let end = (0..SENTENCE).rev().find(|&end| sentence.is_char_boundary(end));
    let text =
        sentence.bytes().take(end.unwrap_or(0)).map(|byte| if byte == 0 { b' ' } else { byte });
    bytes.iter_mut().zip(text).for_each(|(place, byte)| *place = byte);
    bytes
}

/// The first [`LONGEST`] bytes of a string; `None` for null.
///
/// # Safety
/// `text` is null or a string that outlives `'a`.
unsafe fn beginning<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    let is_end = |&at: &usize| {
        // SAFETY: no byte before this one is the terminating NUL, so that this one is part of the
        // string.
        let byte = unsafe { text.add(at) };
        // SAFETY: as above.
        unsafe { byte.read() == 0 }
    };
    let len = (0..LONGEST).find(is_end).unwrap_or(LONGEST);
    // SAFETY: these bytes of the string were just read.
    Some(unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) })
}

/// A string that must be complete, because a part of it has another meaning. Refuses longer ones.
///
/// # Safety
/// As for [`beginning`].
unsafe fn whole<'a>(text: *const c_char, what: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    // SAFETY: the caller's promise is the same.
    match unsafe { beginning(text) } {
        Some(bytes) if bytes.len() == LONGEST => {
            Err(Refusal::Bad(format!("{what} is longer than {} bytes", LONGEST - 1)))
        }
        bytes => Ok(bytes.map(String::from_utf8_lossy)),
    }
}

/// A string that must be given, and of which the beginning is kept.
///
/// # Safety
/// As for [`beginning`].
unsafe fn needed<'a>(text: *const c_char, what: &str) -> Result<Cow<'a, str>, Refusal> {
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { beginning(text) };
    bytes.map(String::from_utf8_lossy).ok_or_else(|| Refusal::Bad(format!("{what} is NULL")))
}

/// The plugin's version, such as `0.1.0`. Never NULL; for the life of the process.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Why the calling thread's last call failed; empty if it succeeded. Valid until its next call.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_error() -> *const c_char {
    ERROR.with(|error| error.as_ptr().cast::<c_char>())
}

/// Starts recording operations, now or as `options` say: words such as `for=5s`, `steps=10`,
/// `at=SECONDS`, `sample=1/16`; NULL means none. Before the first communicator, recording starts
/// with it.
///
/// # Safety
/// `options` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclscope_start(options: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise is the same.
        let options = unsafe { whole(options, "options") }?.unwrap_or_default();
        Runtime::get().start(RecordingWindow::parse(&options).map_err(Refusal::Bad)?)
    })
}

/// Stops recording operations that are issued from now on; earlier ones are recorded to their end.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_stop() -> c_int {
    answer(|| Runtime::get().stop())
}

/// 1 while new operations are recorded, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_is_started() -> c_int {
    c_int::from(Runtime::get().is_started())
}

/// Copies the present recording to `path`, a file (`*.nscope`) or a directory; NULL means a new
/// directory beside the recording. Returns when the copy is complete.
///
/// # Safety
/// `path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclscope_dump(path: *const c_char) -> c_int {
    answer_behind(Shield::raise(), || {
        // SAFETY: the caller's promise is the same.
        let path = unsafe { whole(path, "path") }?;
        Runtime::get().dump(path.as_deref().map(Path::new)).map(drop)
    })
}

/// Records the mark `name` with the current time.
///
/// # Safety
/// `name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclscope_mark(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise is the same.
    answer(|| Runtime::get().mark(&unsafe { needed(name, "name") }?))
}

/// Records that training step `step` begins.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_set_step(step: u64) -> c_int {
    answer(|| Runtime::get().set_step(step))
}

/// Sets the role (`tp`, `dp`, ...) of the communicator with this hash (`commHash`; see `ncclscope
/// ls`).
///
/// # Safety
/// `role` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclscope_set_role(comm_hash: u64, role: *const c_char) -> c_int {
    // SAFETY: the caller's promise is the same.
    answer(|| Runtime::get().set_role(comm_hash, &unsafe { needed(role, "role") }?))
}

/// A callback for hangs. `json` (docs/hang.md) is valid during the call only; `user` is the pointer
/// given to [`ncclscope_on_hang`].
pub type HangListener = unsafe extern "C" fn(json: *const c_char, user: *mut c_void);

/// The listener's pointer, which is only passed back to it.
struct User(*mut c_void);

// SAFETY: no code here dereferences it; the caller promised that any thread may use it.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// Sets the function that the watchdog calls for each operation that is stuck, and again at its
/// end. NULL ends the calls; a call in progress continues. Calls come on a thread of the plugin
/// that does nothing else, so that `callback` may block and may call the other functions here.
///
/// # Safety
/// `callback` is null, or can be called with `user` on any thread as long as the process lives, and
/// does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclscope_on_hang(
    callback: Option<HangListener>,
    user: *mut c_void,
) -> c_int {
    answer(|| {
        // The child of a fork has no watchdog, and its copy of the lock may stay locked.
        if gate::is_dead() || sys::is_child() {
            return Err(Refusal::Off);
        }
        let user = User(user);
        let listener = callback.map(|callback| -> ncclscope_runtime::OnHang {
            Box::new(move |json| {
                let User(user) = &user;
                let json = CString::new(json).unwrap_or_default();
                // SAFETY: by the caller's promise; the text lives until after the call.
                unsafe { callback(json.as_ptr(), *user) };
            })
        });
        ncclscope_runtime::on_hang(listener);
        Ok(())
    })
}

/// Starts a drill: for `seconds`, an operation that does not exist stands still. The watchdog finds
/// it after a second, or after half of `seconds` if that is less, and takes all actions for a hang,
/// each marked as a drill. At the end it reports that the operation has recovered.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_simulate_hang(seconds: f64) -> c_int {
    answer(|| {
        let length = Duration::try_from_secs_f64(seconds)
            .map_err(|_| Refusal::Bad(format!("{seconds}: expected seconds")))?;
        Runtime::get().simulate_hang(length)
    })
}

/// An operator of the application begins on the calling thread: API calls on the thread get this id
/// until [`ncclscope_pop_external_id`]. Operators may be nested.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_push_external_id(id: u64) {
    external::push(id);
}

/// The innermost operator on the calling thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn ncclscope_pop_external_id() {
    external::pop();
}

/// Sets the function that returns the id of the calling thread's operator (0: none), asked by API
/// calls. NULL switches back to [`ncclscope_push_external_id`].
///
/// # Safety
/// `function` is null, or can be called on any thread as long as the process lives, does not block
/// or unwind, and makes no NCCL call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclscope_ask_external_id(function: Option<Ask>) {
    // SAFETY: the caller's promise is the same.
    unsafe { external::ask(function) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length that `needed` keeps of a string, and whether `whole` accepts it.
    fn read(text: *const c_char) -> (Option<usize>, bool) {
        // SAFETY: a string that outlives the call, or NULL.
        let short = unsafe { needed(text, "text") };
        // SAFETY: as above.
        let all = unsafe { whole(text, "text") };
        (short.ok().map(|short| short.len()), all.is_ok())
    }

    #[test]
    fn of_a_long_string_the_beginning_is_read() {
        for (bytes, is_whole) in [(0, true), (LONGEST - 1, true), (LONGEST, false), (9000, false)] {
            let text = CString::new("x".repeat(bytes)).unwrap();
            assert_eq!(read(text.as_ptr()), (Some(bytes.min(LONGEST)), is_whole), "{bytes}");
        }
        assert_eq!(read(core::ptr::null()), (None, true));
    }
}
