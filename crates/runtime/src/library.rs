// SPDX-License-Identifier: Apache-2.0
/*!
The NCCL libraries of the process: usually one, but a program may load several.

Inspecting a library waits for every thread that is loading one. It is therefore done once for each
NCCL, at its first communicator, when NCCL has just loaded the plugin.
*/

use crate::sys::image::Image;
use crate::sys::lock::Lock;
use crate::sys::{self, hip};
use ncclscope_trace::Vendor;
use std::sync::{Arc, Weak};

/// The release of a library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Release {
    pub(crate) vendor: Vendor,
    /// Its version code, such as 22809; 0 if unknown.
    pub(crate) version: u32,
}

/// A loaded NCCL, which stays loaded while this value exists.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) release: Release,
    /// Keeps the library loaded; `None` if NCCL is linked into the program.
    image: Option<Image>,
    /// Called before NCCL may be unloaded, because its string literals would be unloaded too.
    forget: fn(),
}

impl Library {
    /// How long a tick of its kernels' times is, ns: those of NVIDIA's NCCL are in ns. `None` if
    /// that is unknown. Called on a thread that initialises a communicator, which has chosen its
    /// GPU.
    pub(crate) fn timer_ns(&self) -> Option<u32> {
        match self.release.vendor {
            Vendor::Nvidia => Some(1),
            Vendor::Amd => hip::timer_ns(self.image.as_ref()),
        }
    }

    /// True if NCCL could be unloaded and only `this` keeps it loaded.
    pub(crate) fn is_held_by(this: &Arc<Library>) -> bool {
        this.image.is_some() && Arc::strong_count(this) == 1
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.image.is_some() {
            (self.forget)();
        }
    }
}

/// The NCCLs of the process that have communicators.
#[derive(Debug)]
pub(crate) struct Libraries {
    known: Lock<Vec<(usize, Weak<Library>)>>,
    forget: fn(),
}

impl Libraries {
    /// No libraries yet. `forget` is called before an NCCL may be unloaded.
    pub(crate) const fn new(forget: fn()) -> Libraries {
        Libraries { known: Lock::new(Vec::new()), forget }
    }

    /// The NCCL whose image contains the address `nccl`. Each NCCL passes an address of its own,
    /// and always the same.
    pub(crate) fn of(&self, nccl: usize) -> Arc<Library> {
        let known = |libraries: &Vec<(usize, Weak<Library>)>| {
            libraries.iter().find(|(at, _)| *at == nccl)?.1.upgrade()
        };
        if let Some(library) = known(&self.known.lock()) {
            return library;
        }
        // Outside of the lock, because this takes the dynamic linker's lock.
        let image = Image::of(nccl);
        let release = Release {
            vendor: hip::vendor(image.as_ref()),
            version: image.as_ref().map_or(0, sys::nccl_version),
        };
        let library = Arc::new(Library { release, image, forget: self.forget });
        let mut libraries = self.known.lock();
        libraries.retain(|(at, library)| *at != nccl && library.strong_count() > 0);
        libraries.push((nccl, Arc::downgrade(&library)));
        library
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_looked_at_once_while_it_is_used() {
        let libraries = Libraries::new(|| {});
        let address = libc::getpid as *const () as usize;
        let first = libraries.of(address);
        assert!(Library::is_held_by(&first) && first.release == Release::default());
        let second = libraries.of(address);
        assert!(Arc::ptr_eq(&first, &second) && !Library::is_held_by(&first));
        drop(second);
        assert!(Library::is_held_by(&first));
        drop(first);
        assert!(Library::is_held_by(&libraries.of(address)), "a new look");
        assert!(!Library::is_held_by(&libraries.of(0)), "of the program");
    }
}
