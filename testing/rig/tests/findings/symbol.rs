// SPDX-License-Identifier: Apache-2.0
//! Reads a variable of a library in a running process.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Sizes in bytes of a section header and a symbol of ELF64, and the type of a symbol table
/// (System V ABI, "Sections" and "Symbol Table").
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const SHT_SYMTAB: u64 = 2;

/// The four bytes of variable `name` of the library at `path`, which process `pid` has loaded.
pub(crate) fn word(pid: u32, path: &Path, name: &str) -> u32 {
    let address = base(pid, path) + value(path, name);
    let mut memory = File::open(format!("/proc/{pid}/mem")).expect("the process is ours");
    u32::from_le_bytes(bytes(&mut memory, address, 4).try_into().expect("four bytes"))
}

/// The base address of the library.
fn base(pid: u32, path: &Path) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
    let path = fs::canonicalize(path).expect("the library is there");
    let mut lines = maps.lines().filter(|line| line.ends_with(&*path.to_string_lossy()));
    let line = lines.next().expect("it is loaded");
    let (start, _) = line.split_once('-').expect("a range");
    u64::from_str_radix(start, 16).expect("an address")
}

/// The symbol's value: an offset from the base.
fn value(path: &Path, name: &str) -> u64 {
    let mut file = File::open(path).expect("the library is there");
    let header = bytes(&mut file, 0, 64);
    let (sections, count) = (number(&header, 40, 8), number(&header, 60, 2));
    let sections = bytes(&mut file, sections, SECTION as u64 * count);
    let section = |index: usize| &sections[index * SECTION..][..SECTION];
    let mut tables = sections.chunks(SECTION);
    let table = tables.find(|s| number(s, 4, 4) == SHT_SYMTAB).expect("symbols, not stripped");
    let strings = section(usize::try_from(number(table, 40, 4)).expect("an index"));
    let mut read =
        |section: &[u8]| bytes(&mut file, number(section, 24, 8), number(section, 32, 8));
    let (symbols, strings) = (read(table), read(strings));
    let is_it = |symbol: &&[u8]| {
        let at = usize::try_from(number(symbol, 0, 4)).expect("an offset");
        strings[at..].strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    let symbol = symbols.chunks(SYMBOL).find(is_it).expect("the variable exists");
    number(symbol, 8, 8)
}

fn bytes(file: &mut File, at: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(count).expect("it fits memory")];
    file.seek(SeekFrom::Start(at)).expect("a position");
    file.read_exact(&mut bytes).expect("so many bytes");
    bytes
}

/// A little-endian number of `size` bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
