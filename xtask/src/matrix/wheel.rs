// SPDX-License-Identifier: Apache-2.0
//! The NCCL releases that the matrix runs, with their wheels.

use crate::nccl::Release;

/// The releases: at least one for each profiler API version, 2.27.3, which has its own way of
/// loading plugins (`docs/loading.md`), and both wheels of 2.28.9.
pub(super) const RELEASES: &[&str] = &[
    "2.23.4",
    "2.24.3",
    "2.25.1",
    "2.26.5",
    "2.27.3",
    "2.27.7",
    "2.28.9",
    "2.28.9+cu13",
    "2.29.7",
    "2.30.7",
    "2.31.2",
    "2.32.3",
];

/// A release as one wheel has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wheel {
    /// The release's name on the command line.
    pub(super) label: String,
    pub(super) release: Release,
}

/// The releases named, or all.
pub(super) fn releases(names: &[String]) -> Result<Vec<Wheel>, String> {
    if names.is_empty() {
        return RELEASES.iter().map(|name| wheel(name)).collect();
    }
    names.iter().map(|name| wheel(name)).collect()
}

/// A wheel from `VERSION` or `VERSION+cu13`.
fn wheel(name: &str) -> Result<Wheel, String> {
    let release = match name.split_once("+cu") {
        Some((version, "13")) => Release::new(version, 13),
        Some(_) => Err(format!("`{name}`: a wheel is VERSION or VERSION+cu13")),
        None => Release::new(name, 12),
    };
    Ok(Wheel { label: name.to_owned(), release: release? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(wheel("2.28.9+cu14").is_err() && wheel("x").is_err());
        assert_eq!(wheel("2.28.9+cu13").expect("a wheel").label, "2.28.9+cu13");
        assert_eq!(wheel("2.28.9").expect("a wheel").label, "2.28.9");
    }
}
