// SPDX-License-Identifier: Apache-2.0
//! Status codes and the rules of the "last error".
//!
//! `cudaError_t` and `CUresult` use the same numbers for the same failures, so one type serves
//! both APIs.

use std::any::Any;
use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A CUDA status other than success (`cudaError_t`, CUDA Runtime API manual, section 6.35).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(pub i32);

/// The result of every function of the stand-in before it is converted to a C status.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// A literal that ends in NUL as C text.
const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("one NUL, at the end"),
    }
}

/// Number, C name and message of every status the stand-in can return.
macro_rules! statuses {
    ($($constant:ident = $code:literal, $name:literal, $text:literal;)*) => {
        impl Error {
            $(#[doc = $text] pub const $constant: Error = Error($code);)*
        }
        /// Code, name and text, for `cudaGetErrorName` and `cudaGetErrorString`.
        const STATUSES: &[(i32, &CStr, &CStr)] = &[(0, c"cudaSuccess", c"no error"),
            $(($code, c_text(concat!($name, "\0")), c_text(concat!($text, "\0"))),)*];
    };
}

statuses! {
    INVALID_VALUE = 1, "cudaErrorInvalidValue", "invalid argument";
    MEMORY_ALLOCATION = 2, "cudaErrorMemoryAllocation", "out of memory";
    INVALID_DEVICE_FUNCTION = 98, "cudaErrorInvalidDeviceFunction", "invalid device function";
    INVALID_DEVICE = 101, "cudaErrorInvalidDevice", "invalid device ordinal";
    OPERATING_SYSTEM = 304, "cudaErrorOperatingSystem", "the operating system call failed";
    INVALID_RESOURCE_HANDLE = 400, "cudaErrorInvalidResourceHandle", "invalid resource handle";
    ILLEGAL_STATE = 401, "cudaErrorIllegalState", "the object is in the wrong state";
    NOT_READY = 600, "cudaErrorNotReady", "device not ready";
    PEER_ACCESS_ALREADY_ENABLED = 704, "cudaErrorPeerAccessAlreadyEnabled",
        "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "cudaErrorPeerAccessNotEnabled", "peer access is not enabled";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "cudaErrorHostMemoryAlreadyRegistered",
        "part of the host memory is already registered";
    HOST_MEMORY_NOT_REGISTERED = 713, "cudaErrorHostMemoryNotRegistered",
        "the host memory is not registered";
    LAUNCH_FAILURE = 719, "cudaErrorLaunchFailure", "a kernel could not be played";
    NOT_PERMITTED = 800, "cudaErrorNotPermitted", "not permitted in a host function";
    NOT_SUPPORTED = 801, "cudaErrorNotSupported", "not supported by the CPU stand-in";
    STREAM_CAPTURE_UNSUPPORTED = 900, "cudaErrorStreamCaptureUnsupported",
        "not permitted while the stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "cudaErrorStreamCaptureInvalidated",
        "an earlier error invalidated the capture";
    STREAM_CAPTURE_MERGE = 902, "cudaErrorStreamCaptureMerge",
        "the operation would merge two captures";
    STREAM_CAPTURE_UNMATCHED = 903, "cudaErrorStreamCaptureUnmatched",
        "the capture was not begun in this stream";
    STREAM_CAPTURE_ISOLATION = 905, "cudaErrorStreamCaptureIsolation",
        "a captured operation depends on uncaptured work";
    CAPTURED_EVENT = 907, "cudaErrorCapturedEvent",
        "the event was last recorded in a capturing stream";
    UNKNOWN = 999, "cudaErrorUnknown", "unknown error";
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", name(self.0).to_string_lossy())
    }
}

/// C name of status `code`.
pub fn name(code: i32) -> &'static CStr {
    STATUSES.iter().find(|s| s.0 == code).map_or(c"unrecognized error code", |s| s.1)
}

/// Description of status `code`.
pub fn text(code: i32) -> &'static CStr {
    STATUSES.iter().find(|s| s.0 == code).map_or(c"unrecognized error code", |s| s.2)
}

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// The calling thread's last error; `reset` clears it (`cudaGetLastError` against
/// `cudaPeekAtLastError`).
pub fn last(reset: bool) -> i32 {
    if reset { LAST.take() } else { LAST.get() }
}

/// Runs the body of a runtime function and turns its result into a C status. A failure becomes the
/// thread's last error, except "not ready", which is not a failure.
pub fn status(body: impl FnOnce() -> Result) -> i32 {
    let code = driver_status(body);
    if code != 0 && code != Error::NOT_READY.0 {
        LAST.set(code);
    }
    code
}

/// Runs the body of a driver function, which has no last error, and turns its result into a C
/// status. A panic stops here: the caller is C++ code that cannot be unwound.
pub fn driver_status(body: impl FnOnce() -> Result) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.0,
        Err(panic) => {
            crate::log!("panic: {}", message(panic.as_ref()));
            Error::UNKNOWN.0
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// A C out-parameter: where to write a `T`, or NULL.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result to a required out-parameter.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if the caller passed NULL.
pub fn put<T>(out: Out<'_, T>, value: T) -> Result {
    out.ok_or(Error::INVALID_VALUE)?.write(value);
    Ok(())
}

/// Writes a result to an optional out-parameter.
pub fn put_if<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.write(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_stay_until_asked_for_but_not_ready_is_none() {
        assert_eq!(status(|| Err(Error::INVALID_VALUE)), 1);
        assert_eq!(status(|| Err(Error::NOT_READY)), 600);
        assert_eq!(driver_status(|| Err(Error::INVALID_DEVICE)), 101);
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!((last(false), last(true), last(true)), (1, 1, 0));
    }

    #[test]
    fn a_panic_becomes_unknown() {
        assert_eq!(status(|| panic!("on purpose")), 999);
        assert_eq!(last(true), 999);
    }

    #[test]
    fn statuses_have_names() {
        assert_eq!(name(0), c"cudaSuccess");
        assert_eq!(name(600), c"cudaErrorNotReady");
        assert_eq!(text(-1), c"unrecognized error code");
    }
}
