// SPDX-License-Identifier: Apache-2.0
//! The mappings of a process (`proc_pid_maps(5)`).

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An executable mapping of a file, or of the kernel (`[vdso]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    /// Offset of its first byte in the file.
    pub(crate) offset: u64,
    pub(crate) file: PathBuf,
}

/// The mappings of a process that hold code, by address, and those of its stacks are not among
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps(Vec<Mapping>);

impl Maps {
    /// Of the process whose directory in `/proc` this is.
    pub(crate) fn read(process: &Path) -> Maps {
        let text = fs::read(process.join("maps")).unwrap_or_default();
        Maps::parse(&String::from_utf8_lossy(&text))
    }

    pub(crate) fn parse(text: &str) -> Maps {
        Maps(text.lines().filter_map(mapping).collect())
    }

    /// The mapping that holds an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Mapping> {
        let after = self.0.partition_point(|mapping| mapping.range.end <= address);
        self.0.get(after).filter(|mapping| mapping.range.contains(&address))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.0.iter()
    }
}

/// `START-END PERMISSIONS OFFSET DEVICE INODE FILE`, if it is executable and has a name.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let offset = words.next()?;
    let file = words.nth(2)?.trim_start();
    let number = |text| u64::from_str_radix(text, 16).ok();
    (permissions.contains('x') && !file.is_empty()).then_some(Mapping {
        range: number(start)?..number(end)?,
        offset: number(offset)?,
        file: file.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_address() {
        let text = "\
            5580-5590 r--p 00000000 fe:00 12     /usr/bin/a program\n\
            5590-55a0 r-xp 00000010 fe:00 12     /usr/bin/a program\n\
            7f00-7f10 rw-p 00000000 00:00 0 \n\
            7f10-7f20 r-xp 00000000 00:00 0      [vdso]\n";
        let maps = Maps::parse(text);
        let file = |address| maps.at(address).map(|it| (it.file.to_str().unwrap(), it.offset));
        assert_eq!(file(0x5590), Some(("/usr/bin/a program", 0x10)));
        assert_eq!(file(0x559f), Some(("/usr/bin/a program", 0x10)));
        assert_eq!(file(0x7f1f), Some(("[vdso]", 0)));
        for outside in [0, 0x5580, 0x55a0, 0x7f05, 0x7f20] {
            assert_eq!(file(outside), None, "{outside:#x}");
        }
        assert!(Maps::read(Path::new("/proc/self")).iter().count() > 1);
        assert_eq!(Maps::read(Path::new("/nowhere")).iter().count(), 0);
    }
}
