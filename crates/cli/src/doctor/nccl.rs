// SPDX-License-Identifier: Apache-2.0
//! Finds libnccl, and tells what a release lets a profiler see.

use super::{Check, graphs};
use ncclscope_analyze::kernels::{self, Release};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIBRARY: &str = "libnccl.so.2";
const VERSION: &[u8] = b"NCCL version ";

/// One check for each libnccl: the given one, or all that are found.
pub(super) fn checks(given: Option<&Path>) -> Vec<Check> {
    let libraries = given.map_or_else(libraries, |path| BTreeSet::from([path.to_owned()]));
    if libraries.is_empty() {
        return vec![Check::warn(
            "NCCL",
            format!("no {LIBRARY} in LD_LIBRARY_PATH, Python's packages or the system's folders"),
            "name the one that the job loads with --nccl",
        )];
    }
    libraries.iter().flat_map(|path| library(path)).collect()
}

fn library(path: &Path) -> Vec<Check> {
    let shown = path.display();
    let found = match find_all(path, &[VERSION.to_vec()]) {
        Ok(found) => found,
        Err(error) => {
            let detail = format!("{shown}: {error}");
            return vec![Check::fail("NCCL", detail, "name a readable library with --nccl")];
        }
    };
    let Some(text) = found.into_iter().next().flatten() else {
        let detail = format!("{shown} does not say its version");
        return vec![Check::warn("NCCL", detail, "is it NVIDIA's libnccl.so.2?")];
    };
    let Some((major, minor)) = parse(&text) else {
        let detail = format!("{shown} has version {text:?}");
        return vec![Check::warn("NCCL", detail, "is it NVIDIA's libnccl.so.2?")];
    };
    match api_version(major, minor) {
        None => vec![Check::fail(
            "NCCL",
            format!("{text} at {shown} has no profiler interface"),
            "use NCCL 2.23 or later",
        )],
        Some(api) => {
            let detail = format!("{text} at {shown}: profiler API v{api}");
            let kernel = std::env::var("NCCLSCOPE_KERNEL").ok();
            let graphs = graphs::check(number(&text), kernel.as_deref());
            let events = kernel_events(api, kernels::of_release(number(&text)));
            [Check::ok("NCCL", detail), events].into_iter().chain(graphs).collect()
        }
    }
}

/// The highest profiler API of a release (NCCL `src/plugin/profiler.cc` at each tag).
fn api_version(major: u32, minor: u32) -> Option<u32> {
    match (major, minor) {
        (2, ..23) | (..2, _) => None,
        (2, 23) => Some(1),
        (2, 24 | 25) => Some(2),
        (2, 26) => Some(3),
        (2, 27) => Some(4),
        (2, 28) => Some(5),
        (2, 29 | 30) => Some(6),
        _ => Some(7),
    }
}

/// What kernel events cost with a release, and what is blind without them.
fn kernel_events(api: u32, release: &Release) -> Check {
    let name = "kernel events";
    let blind = "without them no duration is the GPU's, and operations within a node show no end";
    let is_off = std::env::var("NCCLSCOPE_KERNEL").is_ok_and(|value| value == "off");
    match api {
        _ if is_off => Check::warn(name, format!("NCCLSCOPE_KERNEL is off: {blind}"), "unset it"),
        1 | 2 => Check::warn(name, format!("this release has none: {blind}"), "use NCCL 2.27"),
        3 => Check::warn(
            name,
            "this release gives no GPU time stamps: durations are by the host's clock",
            "use NCCL 2.27 or later",
        ),
        _ if !release.by_default => Check::warn(
            name,
            format!("off by default: {}; {blind}", release.reason),
            "NCCLSCOPE_CUDA_EVENTS=on times kernels by CUDA events instead",
        ),
        _ => Check::ok(name, format!("on, with GPU time stamps: {}", release.reason)),
    }
}

/// Major and minor of `2.28.9+cuda12.9`.
fn parse(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// `2.28.9+cuda12.9` as NCCL numbers its releases: 22809.
fn number(text: &str) -> u32 {
    let numbers = text.split(['.', '+', '-']).take(3).map(|word| word.parse().unwrap_or(0));
    numbers.fold(0, |so_far, number: u32| so_far * 100 + number)
}

/// Every libnccl in the places where jobs find theirs, without duplicates by link.
fn libraries() -> BTreeSet<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    folders.extend(python_folders());
    let system =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];
    folders.extend(system.map(PathBuf::from));
    let files = folders.into_iter().map(|folder| folder.join(LIBRARY));
    files.filter_map(|file| file.canonicalize().ok()).collect()
}

/// Where Python's `nvidia-nccl-*` wheels put the library.
fn python_folders() -> Vec<PathBuf> {
    let script = "import site, sysconfig; \
                  print(*site.getsitepackages(), site.getusersitepackages(), \
                  sysconfig.get_paths()['purelib'], sep='\\n')";
    let python = Command::new("python3").args(["-c", script]).stderr(Stdio::null()).output();
    let text = python.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(|line| Path::new(line).join("nvidia/nccl/lib")).collect()
}

/// What follows each of `patterns` in a file, up to the first byte that is not printable: the
/// first place that has something there, or else an empty text; `None` where it does not occur.
pub(super) fn find_all(path: &Path, patterns: &[Vec<u8>]) -> io::Result<Vec<Option<String>>> {
    // What is found may lie across two pieces.
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
    let first = *pattern.first()?;
    let mut best = None;
    let mut at = 0;
    while let Some(next) = bytes.get(at..)?.iter().position(|&byte| byte == first) {
        at += next;
        if bytes[at..].starts_with(pattern) {
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
        at += 1;
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
        let found = find_all(&path, &[VERSION.to_vec(), b"absent".to_vec()]).unwrap();
        assert_eq!(found, [Some("2.28.9+cuda12.9".into()), None]);
        assert_eq!(parse("2.28.9+cuda12.9"), Some((2, 28)));
        assert_eq!(number("2.28.9+cuda12.9"), 22809);
    }

    #[test]
    fn releases_and_their_api() {
        let pairs = [(22, None), (23, Some(1)), (27, Some(4)), (30, Some(6)), (32, Some(7))];
        for (minor, api) in pairs {
            assert_eq!(api_version(2, minor), api);
        }
        assert_eq!((api_version(1, 9), api_version(3, 0)), (None, Some(7)));
    }
}
