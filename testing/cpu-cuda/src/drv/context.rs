// SPDX-License-Identifier: Apache-2.0
//! Handles of contexts. A context is a device: each has only its primary one.

use crate::device;
use crate::error::{Error, Result};

/// Handle of device 0's context; others follow in steps of 16.
const CONTEXTS: usize = 7 << 40;

pub(super) fn of(device: i32) -> usize {
    CONTEXTS + 16 * usize::try_from(device).unwrap_or(0)
}

/// The device of `context`.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if it is none, [`Error::INVALID_DEVICE`] without such a device.
pub(super) fn device(context: usize) -> Result<i32> {
    let steps = context.checked_sub(CONTEXTS).filter(|d| d.is_multiple_of(16));
    let device = steps.and_then(|d| i32::try_from(d / 16).ok());
    device::check(device.ok_or(Error::INVALID_VALUE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_stand_for_devices() {
        assert_eq!(device(of(5)), Ok(5));
        assert!(device(0).is_err() && device(of(5) + 1).is_err());
    }
}
