// SPDX-License-Identifier: Apache-2.0
/*!
Directories and file names that the plugin and the tool agree on: where recordings, copies, control
sockets and lanes lie, and what they are called.

Nothing here is made or opened.
*/

use ncclscope_trace::names::SUFFIX;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where lanes files lie unless `NCCLSCOPE_LANES` names another directory.
pub const LANES: &str = "/dev/shm";
const SOCKET: &str = ".sock";

/// The user's own directory below a directory that all users share. Control sockets lie in it, and
/// recordings below it if no other directory is configured.
#[must_use]
pub fn of_user(user: u32) -> PathBuf {
    format!("/tmp/ncclscope-{user}").into()
}

/// Whether a directory belongs to `user`, and no other user can write to it. The name can be
/// guessed, so another user may have created the directory first, or a symbolic link of that name.
/// `found` is the metadata of the path itself; links are not followed.
///
/// # Errors
/// The reason, in one sentence.
pub fn is_private(found: &Metadata, user: u32) -> Result<(), String> {
    if found.is_symlink() {
        Err("it is a symbolic link".into())
    } else if !found.is_dir() {
        Err("it is not a directory".into())
    } else if found.uid() != user {
        Err(format!("it belongs to another user (uid {})", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        Err(format!("other users can write to it (mode {:o})", found.mode() & 0o7777))
    } else {
        Ok(())
    }
}

/// Values of the placeholders of `NCCLSCOPE_DIR`.
#[derive(Clone, Copy, Debug)]
pub struct Placeholders<'a> {
    /// `%h`.
    pub host: &'a str,
    /// `%p`.
    pub pid: u32,
    /// `%j`.
    pub job: &'a str,
}

/// A directory with its placeholders replaced; `%%` is a per cent sign.
#[must_use]
pub fn expand(pattern: &OsStr, by: Placeholders<'_>) -> PathBuf {
    let mut out = Vec::new();
    let mut bytes = pattern.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'h') => out.extend(by.host.bytes()),
            Some(b'p') => out.extend(by.pid.to_string().bytes()),
            Some(b'j') => out.extend(by.job.bytes()),
            Some(b'%') | None => out.push(b'%'),
            Some(other) => out.extend([b'%', other]),
        }
    }
    OsString::from_vec(out).into()
}

/// The part of a directory before its first placeholder, which all ranks of a run share.
#[must_use]
pub fn above_placeholders(pattern: &Path) -> PathBuf {
    pattern.iter().take_while(|part| !part.as_bytes().contains(&b'%')).collect()
}

/// `PID-NONCE.sock`; the nonce is a number that no other process has.
#[must_use]
pub fn socket_name(pid: u32, nonce: u32) -> String {
    format!("{pid}-{nonce:08x}{SOCKET}")
}

/// The process whose control socket this is; `None` for other files.
#[must_use]
pub fn pid_of_socket(socket: &Path) -> Option<u32> {
    let name = socket.file_name()?.to_str()?.strip_suffix(SOCKET)?;
    name.split_once('-')?.0.parse().ok()
}

/// The host name used in recordings and in their file names: the system's node name up to its first
/// dot, with `_` for each character other than a letter, digit, `-` or `_`. `host` if nothing is
/// left.
#[must_use]
pub fn host_name(node: &str) -> String {
    let own = node.split('.').next().unwrap_or_default();
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    if own.is_empty() { "host".into() } else { own.chars().map(fit).collect() }
}

/// Whether a requested copy's path is the file itself (it ends in `.nscope`); if not, it is a
/// directory.
#[must_use]
pub fn is_recording_file(path: &Path) -> bool {
    let is_one = |name: &[u8]| name.len() > SUFFIX.len() && name.ends_with(SUFFIX.as_bytes());
    path.file_name().is_some_and(|name| is_one(name.as_encoded_bytes()))
}

/// The directory of the `count`th copy that a process makes in this second: `dump-SECONDS`, which
/// all ranks share, then `dump-SECONDS.2` and so on.
#[must_use]
pub fn dump_name(seconds: u64, count: u32) -> String {
    if count <= 1 { format!("dump-{seconds}") } else { format!("dump-{seconds}.{count}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_requested_under_a_name_or_in_a_directory() {
        assert!(is_recording_file(Path::new("/x/a.nscope")) && !is_recording_file(Path::new("/x")));
        assert!(!is_recording_file(Path::new("h-1.nscope.12")));
    }

    #[test]
    fn names_of_hosts_are_fit_for_files() {
        for (node, name) in [
            ("node-1.example.org", "node-1"),
            ("a b/c_d", "a_b_c_d"),
            ("k\u{f6}ln", "k_ln"),
            (".org", "host"),
            ("", "host"),
        ] {
            assert_eq!(host_name(node), name, "{node}");
        }
    }

    #[test]
    fn names_of_sockets() {
        assert_eq!(socket_name(4711, 0x1f), "4711-0000001f.sock");
        assert_eq!(pid_of_socket(Path::new("/x/4711-0000001f.sock")), Some(4711));
        for other in ["4711.sock", "x-1.sock", "4711-1.nscope", "/"] {
            assert_eq!(pid_of_socket(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn placeholders() {
        let by = Placeholders { host: "node1", pid: 42, job: "7" };
        let expand = |text: &str| expand(text.as_ref(), by);
        assert_eq!(expand("/x/%j/%h-%p-%%-%q"), PathBuf::from("/x/7/node1-42-%-%q"));
        assert_eq!(expand("/x/100%"), PathBuf::from("/x/100%"));
        assert_eq!(above_placeholders(Path::new("/x/run/%j/%h")), PathBuf::from("/x/run"));
        assert_eq!(above_placeholders(Path::new("a/b")), PathBuf::from("a/b"));
    }

    #[test]
    fn a_directory_is_its_users_alone_or_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("control-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (link, file) = (dir.join("link"), dir.join("file"));
        std::os::unix::fs::symlink("/", &link).unwrap();
        std::fs::write(&file, "").unwrap();
        let of = |path: &Path| std::fs::symlink_metadata(path).unwrap();
        let user = of(&dir).uid();
        let says = |mode, user| {
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
            is_private(&of(&dir), user)
        };
        assert_eq!(says(0o755, user), Ok(()));
        let foreign = format!("it belongs to another user (uid {user})");
        assert_eq!(says(0o755, user + 1), Err(foreign));
        assert_eq!(says(0o775, user), Err("other users can write to it (mode 775)".into()));
        assert_eq!(is_private(&of(&link), user), Err("it is a symbolic link".into()));
        assert_eq!(is_private(&of(&file), user), Err("it is not a directory".into()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
