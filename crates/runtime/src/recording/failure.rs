// SPDX-License-Identifier: Apache-2.0
//! What the user learns about writes that fail.

use std::io::{self, ErrorKind};
use std::path::Path;

/// Maximum number of different errors that are told.
const MOST: usize = 4;

/// The errors that were told, by the system's number.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<i32>);

impl Told {
    /// The line about a failed write, once for each kind of error.
    pub(super) fn line(&mut self, path: &Path, error: &io::Error) -> Option<String> {
        let number = error.raw_os_error().unwrap_or(0);
        if self.0.contains(&number) || self.0.len() == MOST {
            return None;
        }
        self.0.push(number);
        let (path, advice) = (path.display(), advice(error));
        Some(format!(
            "cannot write {path}: {error}; records wait in memory, up to 16 MiB, and what does not \
             fit is counted as lost; {advice}"
        ))
    }
}

/// The line about a file that cannot be created.
pub(super) fn not_created(dir: &Path, error: &io::Error) -> String {
    let advice = known(error).map(|advice| format!(": {advice}")).unwrap_or_default();
    format!("cannot record in {}: {error}{advice}", dir.display())
}

fn advice(error: &io::Error) -> &'static str {
    known(error).unwrap_or("see `dmesg` for what is wrong with the file system or its disk")
}

/// The advice that belongs to an error and to no other.
fn known(error: &io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        ErrorKind::StorageFull => "free some space (`df` and `df -i`)",
        ErrorKind::QuotaExceeded => "free some space of your quota (`quota`)",
        ErrorKind::FileTooLarge => "raise the limit on the size of files (`ulimit -f`)",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only now: see `dmesg`",
        ErrorKind::StaleNetworkFileHandle => "the file's server has forgotten it: mount it again",
        ErrorKind::PermissionDenied => "see who may write there",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_told_once_with_its_own_advice() {
        let mut told = Told::default();
        let mut line =
            |errno| told.line(Path::new("/r/h-1.nscope"), &io::Error::from_raw_os_error(errno));
        for (errno, word) in [
            (libc::ENOSPC, "No space left on device (os error 28); records wait"),
            (libc::EDQUOT, "quota"),
            (libc::EFBIG, "ulimit -f"),
            (libc::ESTALE, "(os error 116)"),
        ] {
            assert!(line(errno).unwrap().contains(word), "{errno}");
            assert_eq!(line(errno), None);
        }
        assert_eq!(line(libc::EIO), None, "the log does not fill");
        let advice = |errno| advice(&io::Error::from_raw_os_error(errno));
        assert!(!advice(libc::EIO).contains("space") && advice(libc::EIO).contains("dmesg"));
        assert!(advice(libc::EROFS).contains("read-only"));
        assert!(advice(libc::ESTALE).contains("server"));
    }
}
