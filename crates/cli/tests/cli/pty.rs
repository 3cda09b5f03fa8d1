// SPDX-License-Identifier: Apache-2.0
//! Runs the tool on a terminal.

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Which of a program's streams are a terminal; the others are pipes that are not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// All.
pub(crate) const ALL: Streams = Streams { stdout: true, stderr: true };

/// A program on a terminal of its own.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    child: Child,
}

impl Terminal {
    /// Starts the program on a terminal with this number of columns and 24 lines.
    pub(crate) fn start(command: &mut Command, columns: u16, streams: Streams) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
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
        // The command holds terminals too, and its end must end the reading.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { master: File::from(master), child }
    }

    /// Types a text.
    pub(crate) fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// What the program writes to its end, without carriage returns, and its exit code.
    pub(crate) fn read_to_end(mut self) -> (String, Option<i32>) {
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        // Reading fails when no program has the terminal open any more.
        while let Ok(read @ 1..) = self.master.read(&mut piece) {
            bytes.extend_from_slice(&piece[..read]);
        }
        let code = self.child.wait().unwrap().code();
        (String::from_utf8(bytes).unwrap().replace('\r', ""), code)
    }
}

/// Runs a program on a terminal to its end.
pub(crate) fn run(command: &mut Command, columns: u16) -> (String, Option<i32>) {
    Terminal::start(command, columns, ALL).read_to_end()
}
