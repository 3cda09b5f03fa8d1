// SPDX-License-Identifier: Apache-2.0
/*!
AMD's HIP, as the library of a caller has it loaded: whether the caller is RCCL, and how long a tick
of the GPU's timer is. This module never loads HIP.

Signatures and numbers are those of the HIP Runtime API reference. A kernel of RCCL reads the timer
with `wall_clock64()` (`globaltimer()` of `src/device/common.h` in ROCm/rccl), which counts at the
device's constant rate: 100 MHz on gfx942.
*/

use super::image::{Image, symbol};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use ncclscope_trace::Vendor;

/// `hipDeviceAttributeWallClockRate`, in kHz.
const WALL_CLOCK_RATE: c_int = 10_017;

type GetDevice = extern "C" fn(*mut c_int) -> c_int;
type GetAttribute = extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// The vendor of the library at `image`, or of the program if that is `None`. A library that is
/// linked with HIP is AMD's, whatever its file's name is: PyTorch may contain RCCL.
pub(crate) fn vendor(image: Option<&Image>) -> Vendor {
    let named = image.map_or(Vendor::Nvidia, |image| Vendor::of_file(image.file_name()));
    match symbol(image, c"hipDeviceGetAttribute") {
        Some(_) => Vendor::Amd,
        None => named,
    }
}

/// How long a tick of the timer of the calling thread's GPU is, ns; `None` if HIP does not say, or
/// says what cannot be.
pub(crate) fn timer_ns(image: Option<&Image>) -> Option<u32> {
    let get_device = symbol(image, c"hipGetDevice")?;
    let get_attribute = symbol(image, c"hipDeviceGetAttribute")?;
    // SAFETY: HIP's documented `hipError_t hipGetDevice(int*)`; the caller keeps HIP loaded.
    let get_device = unsafe { core::mem::transmute::<NonNull<c_void>, GetDevice>(get_device) };
    // SAFETY: HIP's documented `hipError_t hipDeviceGetAttribute(int*, hipDeviceAttribute_t, int)`.
    let get_attribute =
        unsafe { core::mem::transmute::<NonNull<c_void>, GetAttribute>(get_attribute) };
    let (mut device, mut khz) = (0, 0);
    let is_known = get_device(&raw mut device) == 0
        && get_attribute(&raw mut khz, WALL_CLOCK_RATE, device) == 0;
    tick_ns(u32::try_from(khz).ok().filter(|_| is_known)?)
}

/// Whole ns of a tick at a rate; those in RCCL's sources, 100 and 25 MHz, have them.
fn tick_ns(khz: u32) -> Option<u32> {
    let is_plausible = (1_000..=1_000_000).contains(&khz) && 1_000_000 % khz == 0;
    is_plausible.then(|| 1_000_000 / khz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rate_that_can_be_is_used() {
        let ticks = [100_000, 25_000, 1_000_000, 27_000, 0, 100, 2_000_000].map(tick_ns);
        assert_eq!(ticks, [Some(10), Some(40), Some(1), None, None, None, None]);
    }

    #[test]
    fn a_library_without_hip_is_not_amds() {
        let image = Image::of(libc::getpid as *const () as usize);
        assert_eq!((vendor(image.as_ref()), timer_ns(image.as_ref())), (Vendor::Nvidia, None));
        assert_eq!(vendor(None), Vendor::Nvidia);
    }
}
