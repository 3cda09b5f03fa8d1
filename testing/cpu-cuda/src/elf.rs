// SPDX-License-Identifier: Apache-2.0
//! The loaded libnccl image: where it is and what its file says.
//!
//! The wheels are not stripped: `.symtab` names every function of the CUDA runtime that is linked
//! into them, and `.rodata` holds the version line. The file is mapped, so of its 400 MB only the
//! pages that are read are touched. Layout of ELF-64: System V gABI, chapters 4 and 5.

use memmap2::Mmap;
use std::ffi::{CStr, OsStr, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Section type `SHT_SYMTAB`.
const SYMTAB: u32 = 2;
/// Bytes of an `Elf64_Sym`.
const SYMBOL_SIZE: usize = 24;

/// The loaded libnccl image.
#[derive(Debug)]
pub struct Image {
    /// Its file.
    pub path: PathBuf,
    /// Load base: run-time address minus address in the file.
    pub base: usize,
    map: Mmap,
    symtab: Range<usize>,
    strtab: Range<usize>,
    rodata: Range<usize>,
}

/// One entry of `.symtab`.
#[derive(Clone, Copy, Debug)]
pub struct Symbol<'a> {
    /// Its name, mangled if it is C++.
    pub name: &'a str,
    /// Its run-time address.
    pub addr: usize,
    /// Bytes.
    pub size: u64,
    /// Whether it is a function (`STT_FUNC`).
    pub is_func: bool,
    /// Whether it is local to the library (`STB_LOCAL`).
    pub is_local: bool,
}

impl Image {
    /// The libnccl that the process has loaded, if any.
    ///
    /// # Errors
    /// A text that says why its file cannot be used.
    pub fn loaded() -> Result<Option<Self>, String> {
        find_loaded().map(|(path, base)| Self::open(&path, base)).transpose()
    }

    /// The library file `path`, loaded at `base`.
    ///
    /// # Errors
    /// A text that says why the file cannot be used.
    pub fn open(path: &Path, base: usize) -> Result<Self, String> {
        let fail = |what: &str| format!("{}: {what}", path.display());
        let file = File::open(path).map_err(|e| fail(&e.to_string()))?;
        // SAFETY: a library file that is loaded is not rewritten in place; loader and this map
        // would both break.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| fail(&e.to_string()))?;
        let sections = Sections::parse(&map).ok_or_else(|| fail("not an ELF-64 file"))?;
        let symtab = sections.by_kind(SYMTAB).ok_or_else(|| fail("stripped: no .symtab"))?;
        let strtab = sections.at(symtab.link).ok_or_else(|| fail("no .strtab"))?;
        let rodata = sections.by_name(".rodata").ok_or_else(|| fail("no .rodata"))?;
        let (symtab, strtab, rodata) = (symtab.bytes, strtab.bytes, rodata.bytes);
        Ok(Self { path: path.to_path_buf(), base, map, symtab, strtab, rodata })
    }

    /// Every entry of `.symtab` with a name in UTF-8.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        let entries = self.map[self.symtab.clone()].chunks_exact(SYMBOL_SIZE);
        entries.filter_map(|entry| self.symbol(entry))
    }

    /// Decodes `Elf64_Sym`: name u32, info u8, other u8, section u16, value u64, size u64.
    fn symbol(&self, entry: &[u8]) -> Option<Symbol<'_>> {
        let name = usize::try_from(u32_at(entry, 0)?).ok()?;
        let name = CStr::from_bytes_until_nul(self.map[self.strtab.clone()].get(name..)?).ok()?;
        let info = entry[4];
        Some(Symbol {
            name: name.to_str().ok()?,
            addr: self.base.wrapping_add(usize_at(entry, 8)?),
            size: u64_at(entry, 16)?,
            is_func: info & 15 == 2,
            is_local: info >> 4 == 0,
        })
    }

    /// CUDA version (major, minor) that the library was built with; (0, 0) if it does not say.
    pub fn cuda_version(&self) -> (u32, u32) {
        self.versions().map_or((0, 0), |(_, cuda)| cuda)
    }

    /// NCCL version (major, minor, patch), if the library says it.
    pub fn nccl_version(&self) -> Option<(u32, u32, u32)> {
        self.versions().map(|(nccl, _)| nccl)
    }

    fn versions(&self) -> Option<Versions> {
        find_versions(&self.map[self.rodata.clone()])
    }
}

/// NCCL's version (major, minor, patch) and CUDA's (major, minor).
type Versions = ((u32, u32, u32), (u32, u32));

/// Finds `NCCL version 2.28.9+cuda12.9` in `data`.
fn find_versions(data: &[u8]) -> Option<Versions> {
    const MARK: &[u8] = b"NCCL version ";
    let mut rest = data;
    while let Some(at) = rest.windows(MARK.len()).position(|w| w == MARK) {
        rest = &rest[at + MARK.len()..];
        let end = rest.iter().position(|&b| b < b' ').unwrap_or(rest.len());
        let found = std::str::from_utf8(&rest[..end]).ok().and_then(parse_versions);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Parses `2.28.9+cuda12.9`, with anything behind.
fn parse_versions(text: &str) -> Option<Versions> {
    let (nccl, cuda) = text.split_once("+cuda")?;
    let mut nccl = nccl.splitn(3, '.').map(|n| n.parse().ok());
    let nccl = (nccl.next()??, nccl.next()??, nccl.next()??);
    let (major, minor) = cuda.split_once('.')?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((nccl, (major.parse().ok()?, minor[..digits].parse().ok()?)))
}

/// The section headers of a file.
struct Sections<'a> {
    file: &'a [u8],
    headers: Vec<&'a [u8]>,
    names: Range<usize>,
}

struct Section {
    bytes: Range<usize>,
    link: usize,
}

impl<'a> Sections<'a> {
    fn parse(file: &'a [u8]) -> Option<Self> {
        // Magic, class 64, little-endian.
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let start = usize_at(file, 40)?;
        let (size, count, names) = (u16_at(file, 58)?, u16_at(file, 60)?, u16_at(file, 62)?);
        let table = file.get(start..start.checked_add(size * count)?)?;
        let headers = table.chunks_exact(size.max(1)).collect();
        let mut sections = Self { file, headers, names: 0..0 };
        sections.names = sections.at(names)?.bytes;
        Some(sections)
    }

    fn at(&self, index: usize) -> Option<Section> {
        self.section(self.headers.get(index)?)
    }

    /// `Elf64_Shdr`: name u32, type u32, flags, addr, offset @24, size @32, link u32 @40.
    fn section(&self, header: &[u8]) -> Option<Section> {
        let offset = usize_at(header, 24)?;
        let bytes = offset..offset.checked_add(usize_at(header, 32)?)?;
        self.file.get(bytes.clone())?;
        Some(Section { bytes, link: usize::try_from(u32_at(header, 40)?).ok()? })
    }

    fn by_kind(&self, kind: u32) -> Option<Section> {
        let header = self.headers.iter().find(|h| u32_at(h, 4) == Some(kind))?;
        self.section(header)
    }

    fn by_name(&self, name: &str) -> Option<Section> {
        let is_it = |header: &&&[u8]| {
            let at = u32_at(header, 0).and_then(|at| usize::try_from(at).ok());
            let text = at.and_then(|at| self.file[self.names.clone()].get(at..));
            text.is_some_and(|t| t.starts_with(name.as_bytes()) && t.get(name.len()) == Some(&0))
        };
        self.section(self.headers.iter().find(is_it)?)
    }
}

fn u16_at(data: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?)))
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?))
}

fn usize_at(data: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64_at(data, at)?).ok()
}

/// Path and load base of the first loaded library whose file name begins with `libnccl.so`.
fn find_loaded() -> Option<(PathBuf, usize)> {
    let mut found: Option<(PathBuf, usize)> = None;
    let data = (&raw mut found).cast::<c_void>();
    // SAFETY: `visit` gets `data`, which outlives the call, and is called on this thread only.
    unsafe { libc::dl_iterate_phdr(Some(visit), data) };
    found
}

/// Stops at libnccl and writes it to `data`.
///
/// # Safety
/// `info` is what `dl_iterate_phdr` gives, `data` points to an `Option<(PathBuf, usize)>`.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    data: *mut c_void,
) -> i32 {
    // SAFETY: the loader's structure is valid during the call.
    let info = unsafe { &*info };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's names are C strings.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let is_nccl = path.file_name().is_some_and(|file| file.as_bytes().starts_with(b"libnccl.so"));
    if is_nccl && let Ok(base) = usize::try_from(info.dlpi_addr) {
        // SAFETY: `find_loaded` passed its local.
        let found = unsafe { &mut *data.cast::<Option<(PathBuf, usize)>>() };
        *found = Some((path.to_path_buf(), base));
    }
    i32::from(is_nccl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_behind_format_strings() {
        let data = b"\0NCCL version %d\0NCCL version 2.28.9+cuda12.9\0";
        assert_eq!(find_versions(data), Some(((2, 28, 9), (12, 9))));
        assert_eq!(find_versions(b"NCCL version 2.28"), None);
        assert_eq!(parse_versions("2.30.7+cuda13.1 x"), Some(((2, 30, 7), (13, 1))));
    }

    #[test]
    fn the_own_executable_parses() {
        let path = std::env::current_exe().unwrap();
        let image = Image::open(&path, 0x1000).unwrap();
        let main = image.symbols().find(|s| s.name == "main").unwrap();
        assert!(main.is_func && !main.is_local && main.size > 0 && main.addr > 0x1000);
        assert!(image.symbols().any(|s| s.is_local && s.is_func));
    }

    #[test]
    fn other_files_are_refused() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(Image::open(&path, 0).unwrap_err().contains("not an ELF-64 file"));
    }
}
