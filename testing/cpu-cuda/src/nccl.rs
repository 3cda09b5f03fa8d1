// SPDX-License-Identifier: Apache-2.0
//! The libnccl of this process that runs on the stand-in: its kernels and their player.

use crate::elf::Image;
use crate::error::{Error, Result};
use crate::player::faults::Faults;
use crate::player::{Launch, Player};
use crate::work::{Kind, Work};
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

/// The libnccl that runs on the stand-in.
pub(crate) struct Nccl {
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

impl Nccl {
    /// Reads the kernels of the loaded library `image`; `faults` are planted in their player.
    ///
    /// # Errors
    /// As [`Player::new`].
    pub(crate) fn read(image: &Image, faults: Faults) -> std::result::Result<Self, String> {
        let player = Player::new(image, faults)?;
        let kernels = image.symbols().filter(|s| s.is_func).filter_map(|symbol| {
            let played = symbol.name.contains("ncclDevKernel_");
            // The second name is that of 2.27, which asks for their attributes in 2.27.3.
            let symmetric = ["ncclSymkDevKernel_", "ncclSymDevKernel_"];
            let known = played || symmetric.iter().any(|name| symbol.name.contains(name));
            known.then_some((symbol.addr, played))
        });
        Ok(Self { kernels: kernels.collect(), player })
    }
}

static NCCL: OnceLock<Nccl> = OnceLock::new();

pub(crate) fn is_set() -> bool {
    NCCL.get().is_some()
}

/// Makes `library` the one of this process; a second one is dropped.
pub(crate) fn set(library: Nccl) {
    drop(NCCL.set(library));
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
