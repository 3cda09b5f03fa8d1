// SPDX-License-Identifier: Apache-2.0
//! The library whose communicators a process has: NVIDIA's NCCL, or AMD's RCCL, which has the same
//! functions and profiler API, but other releases.

/// The vendor of a library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Vendor {
    /// NCCL.
    #[default]
    Nvidia,
    /// RCCL.
    Amd,
}

impl Vendor {
    /// The number that a recording has; 0 is that of recordings without one.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Vendor::Nvidia => 0,
            Vendor::Amd => 1,
        }
    }

    pub(crate) const fn of_code(code: u8) -> Vendor {
        if code == 1 { Vendor::Amd } else { Vendor::Nvidia }
    }

    /// The vendor of a library with this file name: `librccl.so.1` is AMD's.
    #[must_use]
    pub fn of_file(name: &str) -> Vendor {
        if name.starts_with("librccl.so") { Vendor::Amd } else { Vendor::Nvidia }
    }

    /// The library's name.
    #[must_use]
    pub const fn library(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NCCL",
            Vendor::Amd => "RCCL",
        }
    }

    /// The release of a version code, as the tools show it: `2.28.9` of NCCL, `RCCL 2.27.7`. `None`
    /// if nothing is known of it.
    #[must_use]
    pub fn release(self, code: u32) -> Option<String> {
        match (self, nccl_version(code)) {
            (Vendor::Nvidia, version) => version,
            (Vendor::Amd, Some(version)) => Some(format!("RCCL {version}")),
            (Vendor::Amd, None) => Some("RCCL".to_owned()),
        }
    }
}

/// NCCL's version from its code: 22809 is 2.28.9. `None` for 0, which is unknown.
#[must_use]
pub fn nccl_version(code: u32) -> Option<String> {
    let (major, minor, patch) = (code / 10_000, code / 100 % 100, code % 100);
    (code != 0).then(|| format!("{major}.{minor}.{patch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_told_with_the_library_unless_it_is_nccl() {
        assert_eq!(Vendor::Nvidia.release(22_809).as_deref(), Some("2.28.9"));
        assert_eq!(Vendor::Amd.release(22_707).as_deref(), Some("RCCL 2.27.7"));
        assert_eq!(
            (Vendor::Nvidia.release(0), Vendor::Amd.release(0)),
            (None, Some("RCCL".into()))
        );
        assert_eq!(Vendor::of_file("librccl.so.1.0"), Vendor::Amd);
        let others = ["libnccl.so.2", "librccl-net.so", "librccl-profiler-ncclscope.so", ""];
        assert!(others.iter().all(|name| Vendor::of_file(name) == Vendor::Nvidia));
        assert!([Vendor::Nvidia, Vendor::Amd].iter().all(|v| Vendor::of_code(v.code()) == *v));
    }
}
