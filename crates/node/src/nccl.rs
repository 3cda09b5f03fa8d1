// SPDX-License-Identifier: Apache-2.0
//! NCCL's and RCCL's libraries: their release, and how each release looks for a profiler plugin.

use memchr::memmem;
use ncclscope_trace::Vendor;
use ncclscope_trace::kind::api_of_release;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The file names that jobs load; PyTorch brings RCCL as the last one.
pub const LIBRARIES: [&str; 3] = ["libnccl.so.2", "librccl.so.1", "librccl.so"];
/// What is before the version in a library. The first one that occurs counts.
const VERSIONS: [(Vendor, &str); 3] = [
    (Vendor::Amd, "RCCL version : "),
    (Vendor::Amd, "RCCL version "),
    (Vendor::Nvidia, "NCCL version "),
];

/// True if a file of this name is NCCL's library, or RCCL's.
pub fn is_library(name: &str) -> bool {
    name.starts_with("libnccl.so") || Vendor::of_file(name) == Vendor::Amd
}

/// A release of NCCL or RCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Whose library it is.
    pub vendor: Vendor,
    major: u32,
    minor: u32,
    patch: u32,
    /// The version text in the library, such as `2.28.9+cuda12.9`.
    pub text: String,
}

impl Release {
    /// The release of a library; `None` if the library contains no version.
    pub fn of(library: &Path) -> io::Result<Option<Release>> {
        let found = find_all(library, &VERSIONS.map(|(_, text)| text.into()))?;
        let known = VERSIONS.into_iter().zip(found);
        let mut releases = known.filter_map(|((vendor, _), text)| {
            Release::parse(text.as_deref()?).map(|release| Release { vendor, ..release })
        });
        Ok(releases.next())
    }

    /// `NCCL 2.28.9+cuda12.9`, `RCCL 2.27.7-HEAD:96a25b5`.
    pub fn name(&self) -> String {
        format!("{} {}", self.vendor.library(), self.text)
    }

    /// How the names of plugins begin that it looks for: RCCL's source has changed with its 2.30
    /// (`src/plugin/plugin_open.cc` of ROCm/rccl@145a051, of ROCm/rocm-systems@03a8914).
    fn prefix(&self) -> &'static str {
        let is_own = self.vendor == Vendor::Amd && self.number() < 23_000;
        if is_own { "librccl-profiler" } else { "libnccl-profiler" }
    }

    /// Parses `2.28.9+cuda12.9`, of NCCL.
    pub fn parse(text: &str) -> Option<Release> {
        let number = text.split(['+', '-']).next()?;
        let mut numbers = number.split('.').map(str::parse);
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let patch = numbers.next().and_then(Result::ok).unwrap_or_default();
        Some(Release { vendor: Vendor::Nvidia, major, minor, patch, text: text.into() })
    }

    /// NCCL's version number, such as 22809.
    pub fn number(&self) -> u32 {
        (self.major * 100 + self.minor) * 100 + self.patch
    }

    /// The highest profiler API of a release.
    pub fn api(&self) -> Option<u32> {
        api_of_release(self.number())
    }

    /// The names that the release passes to the dynamic loader, in order, for a value of
    /// `NCCL_PROFILER_PLUGIN`; empty if it loads nothing. Measured (`docs/loading.md`,
    /// `testing/rig/tests/loading.rs`) and read (`src/misc/profiler.cc@v2.23.4-1`,
    /// `src/plugin/plugin_open.cc@v2.26.2-1`, `@v2.27.3-1`, `@v2.30.7-1`).
    pub fn asks_for(&self, value: Option<&str>) -> Vec<String> {
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return vec![format!("{}.so", self.prefix())];
        };
        let prefixed = format!("{}-{value}.so", self.prefix());
        let is_library = value.starts_with("lib") && value.ends_with(".so");
        match (self.major, self.minor, self.patch) {
            _ if self.vendor == Vendor::Amd && self.number() < 22_800 => {
                let is_short = !is_library && !value.contains('/');
                [value.into()].into_iter().chain(is_short.then_some(prefixed)).collect()
            }
            (2, ..=25, _) => vec![value.into()],
            (2, 26, _) => vec![value.into(), prefixed],
            (2, 27, ..=4) if is_library => vec![value.into()],
            (2, 27, ..=4) => vec![prefixed],
            (2, 28.., _) | (3.., ..) if value.eq_ignore_ascii_case("none") => vec![],
            _ if is_library || value.contains('/') => vec![value.into()],
            _ => vec![value.into(), prefixed],
        }
    }

    /// True if the release accepts a path in `NCCL_PROFILER_PLUGIN`.
    pub fn takes_paths(&self) -> bool {
        self.asks_for(Some("/p")).iter().any(|name| name == "/p")
    }
}

/// For each of `patterns`, the text after its first occurrence in a file, up to the first byte that
/// is not printable. Occurrences with an empty text count only if there is no other; `None` if the
/// pattern does not occur.
pub fn find_all(path: &Path, patterns: &[Vec<u8>]) -> io::Result<Vec<Option<String>>> {
    // A match may span two chunks.
    const OVERLAP: usize = 256;
    let mut file = File::open(path)?;
    let mut found: Vec<Option<String>> = vec![None; patterns.len()];
    let mut piece = Vec::new();
    loop {
        let keep = piece.len().saturating_sub(OVERLAP);
        piece.drain(..keep);
        if (&mut file).take(8 << 20).read_to_end(&mut piece)? == 0 {
            return Ok(found);
        }
        for (pattern, found) in patterns.iter().zip(&mut found) {
            if found.as_ref().is_none_or(String::is_empty) {
                *found = find(&piece, pattern).or_else(|| found.take());
            }
        }
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<String> {
    let mut best = None;
    for at in memmem::find_iter(bytes, pattern) {
        let rest = bytes.get(at + pattern.len()..)?;
        let text: String = rest
            .iter()
            .take(64)
            .take_while(|byte| byte.is_ascii_graphic())
            .map(|&byte| char::from(byte))
            .collect();
        if !text.is_empty() && text.starts_with(|c: char| c.is_ascii_digit()) {
            return Some(text);
        }
        best = Some(String::new());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lib");
        let mut bytes = vec![b'N'; (8 << 20) - 5];
        bytes.extend(b"NCCL version %s\0 NCCL version 2.28.9+cuda12.9\0");
        std::fs::write(&path, &bytes).unwrap();
        let found = find_all(&path, &[b"NCCL version ".to_vec(), b"absent".to_vec()]).unwrap();
        assert_eq!(found, [Some("2.28.9+cuda12.9".into()), None]);
        let release = Release::of(&path).unwrap().unwrap();
        assert_eq!((release.number(), &*release.name()), (22809, "NCCL 2.28.9+cuda12.9"));
        for text in ["RCCL version : 2.27.7-HEAD:96a25b5", "RCCL version 2.27.7-HEAD:96a25b5"] {
            std::fs::write(&path, format!("NCCL version 2.26.5\0{text}\0")).unwrap();
            let release = Release::of(&path).unwrap().unwrap();
            assert_eq!((release.vendor, release.number()), (Vendor::Amd, 22_707));
            assert_eq!(release.name(), "RCCL 2.27.7-HEAD:96a25b5");
        }
    }

    #[test]
    fn releases_and_their_api() {
        let api = |text: &str| Release::parse(text).unwrap().api();
        let versions = (22..=32).map(|minor| api(&format!("2.{minor}.1")));
        let apis = [1, 2, 2, 3, 4, 5, 6, 6, 7, 7].map(Some);
        assert!(versions.eq([None].into_iter().chain(apis)));
        assert_eq!((api("1.9.0"), api("3.0.0")), (None, Some(7)));
    }

    #[test]
    fn each_release_has_its_own_way_to_a_plugin() {
        let asks = |release: &str, value| Release::parse(release).unwrap().asks_for(Some(value));
        let (path, bare) = ("/a/libx.so", "libx.so");
        let takes = |release: &str| Release::parse(release).unwrap().takes_paths();
        for release in ["2.23.4", "2.26.5", "2.27.3", "2.27.7", "2.32.3", "3.0.0"] {
            assert_eq!(asks(release, bare)[0], bare, "{release}");
            assert_eq!(asks(release, ""), ["libnccl-profiler.so"], "{release}");
            assert_eq!(takes(release), release != "2.27.3");
        }
        assert_eq!(asks("2.25.1", "x"), ["x"]);
        assert_eq!(asks("2.27.3+cuda12.9", path), ["libnccl-profiler-/a/libx.so.so"]);
        assert_eq!(asks("2.27.5", path), [path]);
        assert_eq!(asks("2.30.7", "x"), ["x", "libnccl-profiler-x.so"]);
        assert_eq!((asks("2.28.3", "NONE").len(), asks("2.27.7", "none").len()), (0, 2));
        let rccl = |release: &str, value| {
            let release = Release::parse(release).unwrap();
            Release { vendor: Vendor::Amd, ..release }.asks_for(Some(value))
        };
        for release in ["2.27.3", "2.27.7", "2.28.3"] {
            assert_eq!(rccl(release, ""), ["librccl-profiler.so"]);
            assert_eq!(rccl(release, "x"), ["x", "librccl-profiler-x.so"]);
            assert_eq!(
                (rccl(release, path), rccl(release, bare)),
                (vec![path.into()], vec![bare.into()])
            );
        }
        assert_eq!(rccl("2.30.4", ""), ["libnccl-profiler.so"]);
        assert!(
            is_library("librccl.so.1")
                && is_library("libnccl.so.2")
                && !is_library("librccl-net.so")
        );
    }
}
