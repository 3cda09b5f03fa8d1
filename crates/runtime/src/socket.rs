// SPDX-License-Identifier: Apache-2.0
/*!
The control socket, on which a process answers requests of other processes.

[`ncclscope_control::message`] defines requests and replies. A connection ends after the reply.

The socket lies in a directory that only its user can enter; connections of other users except root
are closed unread. A request is limited in length and in time, and few are handled at once: a flood
of requests delays requests, and never the recording. The thread sleeps until a client connects, and
wakes every ten seconds for a check.
*/

use crate::own::{self, SocketFile};
use crate::runtime::{Refusal, Runtime};
use crate::sys::child::ClosedInChild;
use crate::sys::{self, descriptor::Kept, peer};
use crate::watchdog::Why;
use ncclscope_control::directories::socket_name;
use ncclscope_control::message::{InFlight, LONGEST_REQUEST, Reply, Request};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of connections; a further one replaces the oldest.
const CLIENTS: usize = 16;
/// Maximum number of connections accepted before the existing ones are checked again.
const AT_ONCE: usize = 64;
/// How often the thread checks its socket. Nothing else wakes the thread if the host has closed the
/// socket and reused its number, or if a cleaner of `/tmp` has removed its file.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long a request may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// Creates the socket of this process in `dir`: its file, and the server that answers on it.
///
/// # Errors
/// The system's error, or that the directory does not belong to this user alone.
pub(crate) fn open(dir: &Path, nonce: u32, job: String) -> io::Result<(SocketFile, Server)> {
    own::ready(dir, 0o700)?;
    let path = dir.join(socket_name(sys::pid(), nonce));
    let listener = listen(&path)?;
    let file = SocketFile { path: path.clone() };
    let server = Server {
        made: made(&path),
        listener,
        path,
        looked: Instant::now(),
        has_told_removed: false,
        has_told_none: false,
        clients: VecDeque::new(),
        job,
    };
    Ok((file, server))
}

/// Listens on a socket of this name to which only its user can connect.
fn listen(path: &Path) -> io::Result<Kept<UnixListener>> {
    let listener = UnixListener::bind(path)?;
    let ready = || {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)
    };
    ready().inspect_err(|_| drop(fs::remove_file(path)))?;
    Kept::new(listener).inspect(|listener| ClosedInChild::Control.keep(listener))
}

/// Device and inode of the socket's file; `None` if it is gone.
fn made(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Answers requests on a thread of its own.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Kept<UnixListener>,
    path: PathBuf,
    made: Option<(u64, u64)>,
    /// When the socket was last checked.
    looked: Instant,
    /// It was logged that the socket's file was removed (`has_told_none`: that there can be none).
    has_told_removed: bool,
    has_told_none: bool,
    clients: VecDeque<Client>,
    /// The job's id, stored because the application may be changing the environment later.
    job: String,
}

#[derive(Debug)]
struct Client {
    stream: Kept<UnixStream>,
    request: Vec<u8>,
    until: Instant,
}

/// The result of reading from a connection.
enum Received {
    /// The request is not complete yet.
    Part,
    Request(Vec<u8>),
    /// The connection was closed, or the request is invalid.
    End,
}

impl Server {
    /// Answers requests until recording has ended for good.
    pub(crate) fn run(mut self, runtime: &'static Runtime) {
        while runtime.is_running() {
            if self.looked.elapsed() >= LOOK_EVERY || self.listener.get().is_none() {
                self.look().iter().for_each(|line| runtime.problem(line));
            }
            let Some(listener) = self.listener.get() else {
                crate::sys::wake::pause(LOOK_EVERY);
                continue;
            };
            let sockets = self.clients.iter().filter_map(|client| client.stream.get());
            let sockets: Vec<_> =
                [listener.as_fd()].into_iter().chain(sockets.map(AsFd::as_fd)).collect();
            let first = self.clients.iter().map(|client| client.until).min();
            let now = Instant::now();
            // Plus one, because poll counts whole milliseconds.
            let wait = first.map(|t| t.saturating_duration_since(now) + Duration::from_millis(1));
            peer::wait_for(&sockets, Some(wait.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)));
            if !self.accept() {
                // No descriptor is free: the waiting client would wake this thread again at once.
                crate::sys::wake::pause(Duration::from_millis(100));
            }
            self.serve(runtime);
        }
    }

    /// Creates the socket again if its file was removed or the host has closed it. Returns a line
    /// for the user, once.
    fn look(&mut self) -> Option<String> {
        self.looked = Instant::now();
        let is_open = self.listener.get().is_some();
        if is_open && self.made.is_some() && made(&self.path) == self.made {
            return None;
        }
        let dir = self.path.parent().unwrap_or_else(|| Path::new("/"));
        let again = own::ready(dir, 0o700).and_then(|()| {
            let _ = fs::remove_file(&self.path);
            listen(&self.path)
        });
        let place = dir.display();
        let (line, has_told) = match again {
            Ok(listener) => {
                (self.listener, self.made) = (listener, made(&self.path));
                if !is_open {
                    return None;
                }
                let line =
                    format!("the control socket in {place} was removed: it is created again");
                (line, &mut self.has_told_removed)
            }
            Err(error) => {
                let line = format!("no control socket in {place}: {error}; everything else works");
                (line, &mut self.has_told_none)
            }
        };
        (!std::mem::replace(has_told, true)).then_some(line)
    }

    /// Accepts new connections. False if the system has no descriptor for one.
    fn accept(&mut self) -> bool {
        for _ in 0..AT_ONCE {
            let Some(listener) = self.listener.get() else { return true };
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn admit(&mut self, stream: UnixStream) {
        let is_welcome = peer::user_of(&stream).is_ok_and(|user| user == 0 || user == peer::user());
        if !is_welcome || stream.set_nonblocking(true).is_err() {
            return;
        }
        let Ok(stream) = Kept::new(stream) else { return };
        if self.clients.len() >= CLIENTS {
            self.clients.pop_front();
        }
        let until = Instant::now() + PATIENCE;
        let mut client = Client { stream, request: Vec::new(), until };
        // Most requests have arrived already and are answered before the connection could be
        // replaced.
        match client.read() {
            Received::Part => self.clients.push_back(client),
            Received::Request(request) => client.answer(&request, Runtime::get(), &self.job),
            Received::End => {}
        }
    }

    fn serve(&mut self, runtime: &'static Runtime) {
        for _ in 0..self.clients.len() {
            let Some(mut client) = self.clients.pop_front() else { return };
            match client.read() {
                Received::Part if client.until > Instant::now() => self.clients.push_back(client),
                Received::Part | Received::End => {}
                Received::Request(request) => client.answer(&request, runtime, &self.job),
            }
        }
    }
}

impl Client {
    fn read(&mut self) -> Received {
        let mut part = [0; 512];
        loop {
            let Some(mut stream) = self.stream.get() else { return Received::End };
            match stream.read(&mut part) {
                Ok(0) => return Received::End,
                Ok(n) => self.request.extend_from_slice(part.get(..n).unwrap_or(&[])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Part,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Received::End,
            }
            if let Some(end) = self.request.iter().position(|&byte| byte == b'\n') {
                self.request.truncate(end);
                return Received::Request(std::mem::take(&mut self.request));
            }
            if self.request.len() > LONGEST_REQUEST {
                return Received::End;
            }
        }
    }

    fn answer(&mut self, line: &[u8], runtime: &'static Runtime, job: &str) {
        let line = std::str::from_utf8(line).map_err(|_| "the request is not UTF-8".to_owned());
        let request = line.and_then(Request::decode).map_err(Refusal::Bad);
        let reply = request.and_then(|request| carry_out(request, runtime, job));
        let reply = reply.unwrap_or_else(|refusal| Reply::Refused(refusal.to_string()));
        // The answer fits the socket's buffer; a client that does not read it loses it.
        if let Some(mut stream) = self.stream.get() {
            let _ = stream.write_all(reply.encode().as_bytes());
        }
    }
}

fn carry_out(request: Request, runtime: &'static Runtime, job: &str) -> Result<Reply, Refusal> {
    match request {
        Request::Status => {}
        Request::Start(window) => runtime.start(window)?,
        Request::Stop => runtime.stop()?,
        Request::Dump(to) => return runtime.dump(to.as_deref()).map(Reply::Dumped),
        Request::Why => {
            let Why { hangs, count, blind } = runtime.why()?;
            return Ok(Reply::InFlight(InFlight {
                count: count as u64,
                more: count.saturating_sub(hangs.len()) as u64,
                hangs: format!("[{}]", hangs.join(",")),
                blind: crate::watchdog::texts(&blind),
            }));
        }
        Request::Mark(text) => return runtime.mark(&text).map(|()| Reply::Done),
        Request::Step(step) => return runtime.set_step(step).map(|()| Reply::Done),
        Request::Role { hash, name } => {
            return runtime.set_role(hash, &name).map(|()| Reply::Done);
        }
    }
    Ok(Reply::Status(runtime.status(job)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_socket_that_was_removed_is_made_again_and_that_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("control");
        let (socket, mut server) = open(&dir, 1, String::new()).unwrap();
        assert_eq!(server.look(), None);
        fs::remove_dir_all(&dir).unwrap();
        let line =
            format!("the control socket in {} was removed: it is created again", dir.display());
        assert_eq!(server.look(), Some(line));
        assert_eq!((mode(&dir), mode(&socket.path)), (0o700, 0o600));
        let _client = UnixStream::connect(&socket.path).unwrap();
        assert!(server.accept() && server.clients.len() == 1);
        assert_eq!(server.look(), None);
        // Another file of that name.
        fs::remove_file(&socket.path).unwrap();
        fs::write(&socket.path, "").unwrap();
        assert_eq!(server.look(), None, "it was said");
        UnixStream::connect(&socket.path).unwrap();
    }

    #[test]
    fn where_it_cannot_be_made_again_is_one_line_and_it_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("control");
        let (socket, mut server) = open(&dir, 1, String::new()).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        std::os::unix::fs::symlink(folder.path(), &dir).unwrap();
        let line = server.look().unwrap();
        assert!(line.ends_with(": it is a symbolic link; everything else works"), "{line}");
        assert_eq!(server.look(), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the link alone");
        fs::remove_file(&dir).unwrap();
        assert!(server.look().is_some_and(|line| line.ends_with("created again")));
        UnixStream::connect(&socket.path).unwrap();
    }
}
