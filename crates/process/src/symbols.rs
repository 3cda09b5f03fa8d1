// SPDX-License-Identifier: Apache-2.0
//! The exported functions of a shared library, from its section `.dynsym` (ELF-64, little-endian:
//! System V gABI, chapters 4 and 5). Only the headers, this section and its strings are read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Maximum number of bytes of a section that is read; larger ones are no library's symbols.
const MOST: u64 = 16 << 20;
/// `SHT_DYNSYM`.
const DYNSYM: u32 = 11;
/// `PT_LOAD`, and its flag `PF_X`.
const LOAD: u32 = 1;
const EXECUTABLE: u32 = 1;

/// An exported function: its name, and where its code lies in the file.
pub(crate) type Function = (String, Range<u64>);

/// The exported functions whose names `wanted` takes; empty if the file is no such library.
pub(crate) fn functions(library: &Path, wanted: impl Fn(&str) -> bool) -> Vec<Function> {
    let Ok(file) = File::open(library) else { return Vec::new() };
    read(&file, wanted).unwrap_or_default()
}

fn read(file: &File, wanted: impl Fn(&str) -> bool) -> Option<Vec<Function>> {
    let head = bytes(file, 0, 64)?;
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    // e_phoff, e_phentsize, e_phnum; e_shoff, e_shentsize, e_shnum.
    let segments = table(file, (u64_at(&head, 32)?, u16_at(&head, 54)?, u16_at(&head, 56)?), 56)?;
    let sections = table(file, (u64_at(&head, 40)?, u16_at(&head, 58)?, u16_at(&head, 60)?), 64)?;
    let section = |header: &[u8]| bytes(file, u64_at(header, 24)?, u64_at(header, 32)?);
    let dynsym = sections.iter().find(|header| u32_at(header, 4) == Some(DYNSYM))?;
    // Its sh_link is the section of its strings.
    let strings = sections.get(usize::try_from(u32_at(dynsym, 40)?).ok()?)?;
    let (symbols, strings) = (section(dynsym)?, section(strings)?);
    let to_file = |address: u64| {
        segments.iter().find_map(|segment| {
            let is_code = u32_at(segment, 0)? == LOAD && u32_at(segment, 4)? & EXECUTABLE != 0;
            let within = address.checked_sub(u64_at(segment, 16)?)?;
            let is_in = is_code && within < u64_at(segment, 32)?;
            is_in.then(|| u64_at(segment, 8)?.checked_add(within)).flatten()
        })
    };
    let function = |symbol: &[u8]| {
        let name = strings.get(usize::try_from(u32_at(symbol, 0)?).ok()?..)?;
        let name = name.split(|&byte| byte == 0).next()?;
        let name = str::from_utf8(name).ok().filter(|name| wanted(name))?;
        let start = to_file(u64_at(symbol, 8)?)?;
        Some((name.to_owned(), start..start.checked_add(u64_at(symbol, 16)?)?))
    };
    Some(symbols.chunks_exact(24).filter_map(function).collect())
}

/// A table of headers: its offset, the size of an entry, at least `least`, and their number.
fn table(file: &File, (at, size, count): (u64, u16, u16), least: u16) -> Option<Vec<Vec<u8>>> {
    if size < least {
        return None;
    }
    let all = bytes(file, at, u64::from(size) * u64::from(count))?;
    Some(all.chunks_exact(size.into()).map(<[u8]>::to_vec).collect())
}

fn bytes(file: &File, at: u64, count: u64) -> Option<Vec<u8>> {
    let count = usize::try_from(count.min(MOST)).ok()?;
    let mut bytes = vec![0; count];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Maps;

    #[test]
    fn the_exported_functions_of_libc_lie_where_it_is_mapped() {
        let maps = Maps::read(Path::new("/proc/self"));
        let address = libc::getpid as *const () as u64;
        let mapping = maps.at(address).expect("libc is mapped");
        let found = functions(&mapping.file, |name| name == "getpid");
        let [(name, range)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(name, "getpid");
        assert!(range.contains(&(address - mapping.range.start + mapping.offset)), "{found:?}");
        assert!(functions(Path::new("/proc/self/cmdline"), |_| true).is_empty());
        assert!(functions(Path::new("/nowhere"), |_| true).is_empty());
    }
}
