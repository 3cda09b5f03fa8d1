// SPDX-License-Identifier: Apache-2.0
//! Checks that a file is a complete profiler plugin for this machine.

use ncclscope_node::nccl::find_all;
use object::Endianness;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64, Machine, PT_INTERP, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use std::fs::File;
use std::path::Path;

/// The ELF machine number (`e_machine`) of this program.
const MACHINE: Machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// The problem with the file, as the end of a sentence; `None` if it is a plugin.
pub(crate) fn fault(path: &Path) -> Option<String> {
    let is_program = match fault_of_headers(path) {
        Ok(is_program) => is_program,
        Err(fault) => return Some(fault),
    };
    match find_all(path, &[b"\0ncclProfiler_v".to_vec()]) {
        Err(error) => Some(format!("cannot be read: {error}")),
        Ok(found) if found.iter().flatten().all(String::is_empty) => {
            Some("is not an NCCL profiler plugin: it has no symbol ncclProfiler_v*".into())
        }
        // The tool's binary contains the same names, and may lie beside the plugin.
        Ok(_) if is_program => Some("is not an NCCL profiler plugin: it is a program".into()),
        Ok(_) => None,
    }
}

/// The problem with the headers, else whether they are those of a program.
fn fault_of_headers(path: &Path) -> Result<bool, String> {
    let read = |error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(read)?;
    let length = file.metadata().map_err(read)?.len();
    let cut = |end: u64| format!("is truncated to {length} of {end} bytes: copy it again");
    let cache = ReadCache::new(file);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data)
        .map_err(|_| "is not a shared library: it has no 64-bit ELF header".to_owned())?;
    let broken = |error: object::Error| format!("is broken: {error}");
    let endian = header.endian().map_err(broken)?;
    let machine = header.e_machine(endian);
    if machine != MACHINE {
        return Err(format!("is for {}, and this machine is {}", name(machine), name(MACHINE)));
    }
    let segments = header.program_headers(endian, data).map_err(|_| cut(after(header, endian)))?;
    let loaded = segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD);
    let ends = loaded.map(|it| it.p_offset(endian).saturating_add(it.p_filesz(endian)));
    match ends.max() {
        Some(end) if end > data.len().unwrap_or_default() => Err(cut(end)),
        Some(_) => Ok(segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP)),
        None => Err("is not a shared library: it has no loadable segment".into()),
    }
}

/// A version of glibc: major and minor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct GlibcVersion(pub(crate) u32, pub(crate) u32);

impl GlibcVersion {
    /// Parses a version such as `2.34`; a third number is ignored.
    pub(crate) fn parse(text: &str) -> Option<GlibcVersion> {
        let mut numbers = text.split('.').map(str::parse);
        Some(GlibcVersion(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// The newest glibc version that the file's symbols require.
pub(crate) fn needed_glibc(path: &Path) -> Option<GlibcVersion> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (mut libraries, strings) = sections.gnu_verneed(endian, data).ok()??;
    let strings = sections.strings(endian, data, strings).ok()?;
    let mut newest = None;
    while let Some((_, mut versions)) = libraries.next().ok()? {
        while let Some(version) = versions.next().ok()? {
            let name = version.name(endian, strings).ok()?;
            let name = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix("GLIBC_"));
            newest = newest.max(name.and_then(GlibcVersion::parse));
        }
    }
    newest
}

/// End of the program headers. A complete file has at least as many bytes.
fn after(header: &FileHeader64<Endianness>, endian: Endianness) -> u64 {
    let size = u64::from(header.e_phentsize(endian)) * u64::from(header.e_phnum(endian));
    header.e_phoff(endian).saturating_add(size)
}

fn name(machine: Machine) -> String {
    match machine {
        EM_X86_64 => "x86-64".into(),
        EM_AARCH64 => "aarch64".into(),
        other => format!("ELF machine {}", other.0),
    }
}
