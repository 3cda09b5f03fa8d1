// SPDX-License-Identifier: Apache-2.0
//! The loaded libnccl image: its address, and the content of its file.
//!
//! The wheels are not stripped: `.symtab` names every function of the CUDA runtime that is linked
//! into them, and `.rodata` holds the version line. The file is mapped, so of its 400 MB only the
//! pages that are read are touched.

use memmap2::Mmap;
use object::{
    File, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SymbolKind,
};
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The loaded libnccl image.
#[derive(Debug)]
pub struct Image {
    /// Its file.
    pub path: PathBuf,
    /// Load base: run-time address minus address in the file.
    pub base: usize,
    map: Mmap,
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
        let file = std::fs::File::open(path).map_err(|e| fail(&e.to_string()))?;
        // SAFETY: a library file that is loaded is not rewritten in place; loader and this map
        // would both break.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| fail(&e.to_string()))?;
        let parsed = File::parse(&*map).map_err(|error| fail(&error.to_string()))?;
        if parsed.symbol_table().is_none() {
            return Err(fail("stripped: no .symtab"));
        }
        Ok(Self { path: path.to_path_buf(), base, map })
    }

    /// Every entry of `.symtab` with a name in UTF-8.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        let file = File::parse(&*self.map).ok();
        let symbols = file.map(|file| file.symbols().filter_map(|s| self.symbol(&s)).collect());
        symbols.unwrap_or_else(Vec::new).into_iter()
    }

    fn symbol<'data>(&self, symbol: &impl ObjectSymbol<'data>) -> Option<Symbol<'data>> {
        Some(Symbol {
            name: symbol.name().ok()?,
            addr: self.base.wrapping_add(usize::try_from(symbol.address()).ok()?),
            size: symbol.size(),
            is_func: symbol.kind() == SymbolKind::Text,
            is_local: symbol.is_local(),
        })
    }

    /// The run-time address of the slot that leads to the imported function `name`, if the library
    /// imports it.
    pub fn import(&self, name: &str) -> Option<usize> {
        let file = File::parse(&*self.map).ok()?;
        let names = file.dynamic_symbol_table()?;
        let is_it = |target| match target {
            RelocationTarget::Symbol(index) => {
                names.symbol_by_index(index).is_ok_and(|symbol| symbol.name() == Ok(name))
            }
            _ => false,
        };
        let (offset, _) = file.dynamic_relocations()?.find(|(_, slot)| is_it(slot.target()))?;
        Some(self.base.wrapping_add(usize::try_from(offset).ok()?))
    }

    /// CUDA version (major, minor) that the library was built with; (0, 0) if it is not found.
    pub fn cuda_version(&self) -> (u32, u32) {
        self.versions().map_or((0, 0), |(_, cuda)| cuda)
    }

    /// NCCL version (major, minor, patch), if the library contains it.
    pub fn nccl_version(&self) -> Option<(u32, u32, u32)> {
        self.versions().map(|(nccl, _)| nccl)
    }

    fn versions(&self) -> Option<Versions> {
        let file = File::parse(&*self.map).ok()?;
        find_versions(file.section_by_name(".rodata")?.data().ok()?)
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

/// Parses `2.28.9+cuda12.9`, with any text after it.
fn parse_versions(text: &str) -> Option<Versions> {
    let (nccl, cuda) = text.split_once("+cuda")?;
    let mut nccl = nccl.splitn(3, '.').map(|n| n.parse().ok());
    let nccl = (nccl.next()??, nccl.next()??, nccl.next()??);
    let (major, minor) = cuda.split_once('.')?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((nccl, (major.parse().ok()?, minor[..digits].parse().ok()?)))
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
        assert!(Image::open(&path, 0).unwrap_err().contains("Unknown file magic"));
    }
}
