// SPDX-License-Identifier: Apache-2.0
//! Runs the tool on a terminal.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Which of a program's streams are a terminal; the others are pipes that nothing reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// Both streams.
pub(crate) const ALL: Streams = Streams { stdout: true, stderr: true };

/// A program on a terminal of its own.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    child: Child,
    /// Kept open so that the terminal's settings outlive the program.
    slave: Option<File>,
    /// The program's output so far.
    read: Vec<u8>,
}

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for output before looking whether the program has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

impl Terminal {
    /// Starts the program on a terminal with this number of columns and 24 lines.
    pub(crate) fn start(command: &mut Command, columns: u16, streams: Streams) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let noctty = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let open = || {
            OpenOptions::new().read(true).write(true).custom_flags(noctty).open(Path::new(&name))
        };
        let slave = open().unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let stream = |is_terminal: bool| match is_terminal {
            true => Stdio::from(open().unwrap()),
            false => Stdio::null(),
        };
        command.stdin(open().unwrap());
        command.stdout(stream(streams.stdout)).stderr(stream(streams.stderr));
        command.env("TERM", "xterm");
        let child = command.spawn().unwrap();
        // `command` holds terminals too: they must be closed, or reading would not end.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { master: File::from(master), child, slave: Some(slave), read: Vec::new() }
    }

    /// Types a text.
    pub(crate) fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Current settings of the terminal.
    pub(crate) fn settings(&self) -> Termios {
        tcgetattr(self.slave.as_ref().unwrap()).unwrap()
    }

    /// Sends the program a signal.
    pub(crate) fn sends(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the program has written this text.
    #[track_caller]
    pub(crate) fn waits_for(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !String::from_utf8_lossy(&self.read).contains(text) {
            let read = String::from_utf8_lossy(&self.read);
            assert!(Instant::now() < until, "waited for {text:?} after {read:?}");
            self.read_some();
        }
    }

    /// Waits until the program ends. Returns its output and its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> (String, Option<i32>) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            let status = self.child.try_wait().unwrap();
            while self.read_some() {}
            if let Some(status) = status {
                break status;
            }
            assert!(Instant::now() < until, "it does not end");
        };
        (String::from_utf8_lossy(&self.read).into_owned(), status.code())
    }

    /// Writes to the terminal until it accepts no more, as if nothing read it.
    pub(crate) fn fills(&mut self) {
        let slave = self.slave.as_mut().unwrap();
        fcntl_setfl(&*slave, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        // The kernel then moves part of it on, so this repeats.
        for _ in 0..4 {
            while slave.write(&[b'x'; 4096]).is_ok() {}
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the program ends without reading its output. Returns its exit code, and how long
    /// that took.
    #[track_caller]
    pub(crate) fn ends_unread(&mut self) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), begun.elapsed());
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reads the available output, or waits a moment. False if there was none.
    fn read_some(&mut self) -> bool {
        let mut ready = [PollFd::new(&self.master, PollFlags::IN)];
        poll(&mut ready, Some(&LOOK)).unwrap();
        if !ready[0].revents().contains(PollFlags::IN) {
            return false;
        }
        let mut piece = [0; 4096];
        let count = self.master.read(&mut piece).unwrap_or(0);
        self.read.extend_from_slice(&piece[..count]);
        count != 0
    }

    /// The program's output until its end, without carriage returns, and its exit code.
    pub(crate) fn read_to_end(mut self) -> (String, Option<i32>) {
        drop(self.slave.take());
        let (mut bytes, mut piece) = (std::mem::take(&mut self.read), [0; 4096]);
        // Reading fails once no program has the terminal open.
        while let Ok(read @ 1..) = self.master.read(&mut piece) {
            bytes.extend_from_slice(&piece[..read]);
        }
        let code = self.child.wait().unwrap().code();
        (String::from_utf8(bytes).unwrap().replace('\r', ""), code)
    }
}

/// Kills the program if the test fails.
impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program on a terminal until it ends.
pub(crate) fn run(command: &mut Command, columns: u16) -> (String, Option<i32>) {
    Terminal::start(command, columns, ALL).read_to_end()
}
