// SPDX-License-Identifier: Apache-2.0
//! Starts a shell command from a thread of ours.
//!
//! It uses `posix_spawn`, which does not fork: no handler of `pthread_atfork` runs, and the memory
//! of a GPU process is not copied. The command gets only the standard files of the process: a
//! socket of NCCL that the command kept open after the job would keep peers waiting.

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::io;
use std::sync::OnceLock;

/// Maximum number of open files that are looked for.
const MOST_FILES: usize = 1 << 16;

/// A running command.
#[derive(Debug)]
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Waits for the command's end, so that no zombie remains.
    pub(crate) fn wait(self) {
        let mut status = 0;
        // SAFETY: `status` is valid to write to; a wait of the host for all children only makes
        // this fail.
        while unsafe { libc::waitpid(self.0, &raw mut status, 0) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The environment for commands.
static ENVIRONMENT: OnceLock<Vec<CString>> = OnceLock::new();

/// Copies the present environment for later commands. Later the application may be changing it,
/// which moves its memory.
pub(crate) fn keep_environment() {
    ENVIRONMENT.get_or_init(environment);
}

fn environment() -> Vec<CString> {
    let entries = std::env::vars_os().map(|(name, value)| {
        let mut entry = name.into_encoded_bytes();
        entry.push(b'=');
        entry.extend(value.into_encoded_bytes());
        entry
    });
    entries.filter_map(|entry| CString::new(entry).ok()).collect()
}

/// Runs `command` with `/bin/sh -c`, with the additional variables `more` (`NAME=VALUE`).
///
/// # Errors
/// The system's.
pub(crate) fn shell(command: &str, more: &[String]) -> io::Result<Child> {
    let own = ENVIRONMENT.get_or_init(environment).iter().cloned().map(Ok);
    let more = more.iter().map(|entry| CString::new(entry.as_str()));
    let environment: Vec<CString> =
        own.chain(more).collect::<Result<_, _>>().map_err(io::Error::other)?;
    let command = CString::new(command).map_err(io::Error::other)?;
    let mut actions = Actions::new()?;
    for file in open_files() {
        actions.close(file)?;
    }
    let attributes = Attributes::new()?;
    spawn(&[c"sh", c"-c", &command], &environment, &actions, &attributes)
}

fn spawn(
    arguments: &[&CStr],
    environment: &[CString],
    actions: &Actions,
    attributes: &Attributes,
) -> io::Result<Child> {
    let list = |texts: &mut dyn Iterator<Item = *const c_char>| {
        texts.map(<*const c_char>::cast_mut).chain([core::ptr::null_mut()]).collect::<Vec<_>>()
    };
    let arguments = list(&mut arguments.iter().map(|text| text.as_ptr()));
    let environment = list(&mut environment.iter().map(|text| text.as_ptr()));
    let mut pid = 0;
    // SAFETY: both lists end with null and contain strings that live until after the call, which
    // changes none of them; the other arguments are initialised.
    let error = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            c"/bin/sh".as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            arguments.as_ptr(),
            environment.as_ptr(),
        )
    };
    done(error).map(|()| Child(pid))
}

/// The open descriptors beyond the standard files.
fn open_files() -> Vec<i32> {
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
    numbers.filter(|&file| file > 2).take(MOST_FILES).collect()
}

fn done(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// The file actions of the child.
struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> io::Result<Actions> {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut actions = Actions(unsafe { core::mem::zeroed() });
        // SAFETY: valid to write to.
        done(unsafe { libc::posix_spawn_file_actions_init(&raw mut actions.0) })?;
        Ok(actions)
    }

    /// Adds the closing of a file; one that is closed by then is skipped by the C library.
    fn close(&mut self, file: i32) -> io::Result<()> {
        // SAFETY: initialised.
        done(unsafe { libc::posix_spawn_file_actions_addclose(&raw mut self.0, file) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used again.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// The spawn attributes: no signal is blocked in the child, as in one started by a shell.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Attributes> {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut attributes = Attributes(unsafe { core::mem::zeroed() });
        // SAFETY: valid to write to.
        done(unsafe { libc::posix_spawnattr_init(&raw mut attributes.0) })?;
        // SAFETY: zero is a valid value of this plain C struct.
        let mut none: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: valid to write to.
        unsafe { libc::sigemptyset(&raw mut none) };
        // SAFETY: both are initialised.
        done(unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const none) })?;
        #[expect(clippy::cast_possible_truncation, reason = "8")]
        let flags = libc::POSIX_SPAWN_SETSIGMASK as i16;
        // SAFETY: initialised.
        done(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) })?;
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used again.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_command_gets_its_environment_and_no_file_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let kept = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: an open descriptor; the copy is one that children inherit.
        let inherited = unsafe { libc::dup(kept.as_raw_fd()) };
        let command = format!(
            "cd {:?} && test ! -e /proc/self/fd/{inherited} && grep SigBlk /proc/self/status > out \
             && echo $HUNG >> out && mv out done",
            folder.path()
        );
        shell(&command, &["HUNG=yes no".into()]).unwrap().wait();
        let text = std::fs::read_to_string(folder.path().join("done")).unwrap();
        assert_eq!(text, "SigBlk:\t0000000000000000\nyes no\n");
        // SAFETY: ours, and open.
        unsafe { libc::close(inherited) };
    }
}
