// SPDX-License-Identifier: Apache-2.0
//! The recorded processes of this host, and the exchange of requests and replies with them
//! ([`ncclscope_control::message`]).

mod about;

pub(crate) use about::{About, name, records, without_steps};

use ncclscope_control::directories::{is_private, of_user, pid_of_socket};
use ncclscope_control::message::{LONGEST_REPLY, ProcessStatus, Recorded, Reply, Request};
use ncclscope_control::table::CONTROL;
use ncclscope_control::value::SocketDirectory;
use ncclscope_control::variable::environment;
use ncclscope_control::window::RecordingWindow;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a process may take to answer, and to copy its recording.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_FOR_A_DUMP: Duration = Duration::from_secs(120);

/// Maximum number of threads that ask processes at the same time.
const ASKED_AT_ONCE: usize = 256;
/// Pause before a process with a full connection queue is asked again.
const FULL: Duration = Duration::from_millis(20);

/// A process that answered.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) status: ProcessStatus,
    socket: PathBuf,
}

/// The directory of control sockets, as the plugin chooses it; its default if the plugin has none.
pub(crate) fn directory() -> PathBuf {
    match CONTROL.value(&environment) {
        SocketDirectory::At(dir) => dir,
        SocketDirectory::OfUser | SocketDirectory::Off => of_user(geteuid().as_raw()),
    }
}

/// The processes that answer, by id, and the problems with others. If `only` is not empty, only
/// these process ids. Removes the sockets of processes that are gone.
pub(crate) fn processes(dir: &Path, only: &[u32]) -> io::Result<(Vec<Process>, Vec<Problem>)> {
    within(PATIENCE, dir, only)
}

/// A problem with a process: its id, and the reason.
pub(crate) type Problem = (u32, String);

fn within(
    patience: Duration,
    dir: &Path,
    only: &[u32],
) -> io::Result<(Vec<Process>, Vec<Problem>)> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    match std::fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((found, problems)),
        found => trusted(dir, &found?, geteuid().as_raw())?,
    }
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let socket = entry?.path();
        sockets.extend(pid_of_socket(&socket).map(|pid| (pid, socket)));
    }
    sockets.retain(|(pid, _)| only.is_empty() || only.contains(pid));
    let replies = at_once(&sockets, |(_, socket)| status(socket, patience));
    for ((pid, socket), reply) in sockets.into_iter().zip(replies) {
        match reply {
            Ok(status) => found.push(Process { pid, status, socket }),
            Err(NotDone::Gone) => {
                let _ = std::fs::remove_file(&socket);
            }
            Err(NotDone::Because(why)) => problems.push((pid, why)),
        }
    }
    found.sort_by_key(|process| process.pid);
    problems.sort();
    Ok((found, problems))
}

/// The results of `ask` for each of `all`, in the same order. A process that does not answer does
/// not delay the others.
pub(crate) fn at_once<T: Sync, A: Send>(all: &[T], ask: impl Fn(&T) -> A + Sync) -> Vec<A> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(at) else { return };
            let answer = ask(one);
            answers.lock().unwrap_or_else(PoisonError::into_inner).insert(at, answer);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..all.len().min(ASKED_AT_ONCE) {
            // If no more threads can be started, the existing ones do all the work.
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// The state of a process that does not answer, as far as this host shows it (`proc_pid_stat(5)`).
fn silent(socket: &Path) -> String {
    let stat =
        pid_of_socket(socket).and_then(|pid| std::fs::read(format!("/proc/{pid}/stat")).ok());
    let stat = String::from_utf8_lossy(&stat.unwrap_or_default()).into_owned();
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some(state @ ('T' | 't')) => format!("it does not answer: it is stopped (state {state})"),
        Some(state) => format!("it does not answer: it is busy (state {state})"),
        None => "it does not answer: it is stopped, or busy".into(),
    }
}

/// Checks that a socket is in a private directory, as all of the plugin's are. Root also accepts
/// those of other users, but its own directory must belong to root.
fn trusted(path: &Path, dir: &Metadata, user: u32) -> io::Result<()> {
    let owner = if user == 0 && path != of_user(user) { dir.uid() } else { user };
    is_private(dir, owner).map_err(io::Error::other)
}

/// The reason why a process did not fulfil a request.
enum NotDone {
    /// No process listens on the socket.
    Gone,
    /// Its answer, or the error.
    Because(String),
}

fn ask(socket: &Path, request: &Request, patience: Duration) -> Result<Reply, NotDone> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => NotDone::Gone,
        io::ErrorKind::WouldBlock => NotDone::Because(silent(socket)),
        _ => NotDone::Because(error.to_string()),
    };
    let until = Instant::now() + patience;
    let mut stream = connect(socket, until).map_err(failed)?;
    stream.set_write_timeout(Some(patience)).map_err(failed)?;
    stream.write_all(format!("{}\n", request.encode()).as_bytes()).map_err(failed)?;
    let line = read_until(&mut stream, until).map_err(failed)?;
    match Reply::decode(request, &line) {
        Ok(Reply::Refused(why)) => Err(NotDone::Because(why)),
        Ok(reply) => Ok(reply),
        Err(what) => Err(NotDone::Because(what.to_owned())),
    }
}

/// Connects until a deadline, because a process with a full queue would otherwise block the call.
fn connect(socket: &Path, until: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match net::connect(&stream, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(FULL),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Reads to the end of the stream until a deadline, also if the answer trickles in.
fn read_until(stream: &mut UnixStream, until: Instant) -> io::Result<String> {
    let (mut line, mut piece) = (Vec::new(), [0; 4096]);
    while line.len() < LONGEST_REPLY {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => line.extend_from_slice(piece.get(..read).unwrap_or(&[])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn status(socket: &Path, patience: Duration) -> Result<ProcessStatus, NotDone> {
    match ask(socket, &Request::Status, patience)? {
        Reply::Status(status) => Ok(status),
        _ => Err(NotDone::Because(NO_SUCH_REPLY.to_owned())),
    }
}

/// [`Reply::decode`] returns only the kind of reply that belongs to the request.
const NO_SUCH_REPLY: &str = "its reply is one to another request";

impl Process {
    /// A process that cannot be asked, with a known status.
    #[cfg(test)]
    pub(crate) fn new(pid: u32, status: ProcessStatus) -> Process {
        Process { pid, status, socket: PathBuf::new() }
    }

    /// True if new operations are recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.status.recorded == Recorded::Yes
    }

    /// Asks for the status again.
    pub(crate) fn refresh(&mut self) -> Result<(), String> {
        self.status = status(&self.socket, PATIENCE).map_err(|why| self.problem(why))?;
        Ok(())
    }

    /// Starts a window. Returns the process with its new status.
    pub(crate) fn start(&self, window: RecordingWindow) -> Result<Process, String> {
        self.changed(&Request::Start(window))
    }

    /// Stops recording. Returns the process with its new status.
    pub(crate) fn stop(&self) -> Result<Process, String> {
        self.changed(&Request::Stop)
    }

    fn changed(&self, request: &Request) -> Result<Process, String> {
        match self.ask(request, PATIENCE)? {
            Reply::Status(status) => Ok(Process { status, ..self.clone() }),
            _ => Err(self.wrong(NO_SUCH_REPLY)),
        }
    }

    /// Copies its recording to a directory, or beside the recording; returns the file.
    pub(crate) fn dump(&self, dir: Option<&Path>) -> Result<PathBuf, String> {
        let request = Request::Dump(dir.map(Path::to_owned));
        match self.ask(&request, PATIENCE_FOR_A_DUMP)? {
            Reply::Dumped(file) => Ok(file),
            _ => Err(self.wrong(NO_SUCH_REPLY)),
        }
    }

    /// What it waits for: operations and calls in flight as JSON from the plugin, the number of
    /// those that are not listed, and the kinds of hangs that it cannot see.
    pub(crate) fn why(&self) -> Result<(Vec<serde_json::Value>, u64, Vec<String>), String> {
        let Reply::InFlight(in_flight) = self.ask(&Request::Why, PATIENCE)? else {
            return Err(self.wrong(NO_SUCH_REPLY));
        };
        let hangs = serde_json::from_str(&in_flight.hangs).map_err(|error| self.wrong(error))?;
        let blind = serde_json::from_str(&in_flight.blind).map_err(|error| self.wrong(error))?;
        Ok((hangs, in_flight.more, blind))
    }

    fn ask(&self, request: &Request, patience: Duration) -> Result<Reply, String> {
        ask(&self.socket, request, patience).map_err(|why| self.problem(why))
    }

    fn problem(&self, why: NotDone) -> String {
        match why {
            NotDone::Gone => format!("process {} has ended", self.pid),
            NotDone::Because(why) => format!("process {}: {why}", self.pid),
        }
    }

    fn wrong(&self, why: impl std::fmt::Display) -> String {
        format!("process {}: an invalid answer: {why}", self.pid)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_directory_that_others_can_write_to_is_not_read() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let folder = tempfile::tempdir().unwrap();
        let mode = |mode| {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            std::fs::symlink_metadata(folder.path()).unwrap()
        };
        let dir = mode(0o755);
        let trusted = |dir: &_, user| super::trusted(folder.path(), dir, user);
        assert!(trusted(&dir, dir.uid()).is_ok());
        assert!(trusted(&dir, 0).is_ok());
        let why = |dir: &_, user| trusted(dir, user).unwrap_err().to_string();
        assert!(why(&dir, dir.uid() + 1).starts_with("it belongs to another user"));
        let open = mode(0o775);
        assert_eq!(why(&open, open.uid()), "other users can write to it (mode 775)");
        assert!(super::processes(folder.path(), &[]).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        let link = std::fs::symlink_metadata(link).unwrap();
        assert_eq!(why(&link, link.uid()), "it is a symbolic link");
    }

    /// In `/tmp`, another user may have created it before.
    #[test]
    fn roots_own_place_is_trusted_only_if_it_is_roots() {
        use std::os::unix::fs::MetadataExt;
        let root = std::fs::symlink_metadata("/").unwrap();
        let theirs = std::fs::symlink_metadata(std::env::current_exe().unwrap()).unwrap();
        let place = super::of_user(0);
        assert!(super::trusted(&place, &root, 0).is_ok());
        // If the tests run as root, a user's own directory is root's.
        let folder = tempfile::tempdir().unwrap();
        if theirs.uid() == 0 {
            std::os::unix::fs::chown(folder.path(), Some(65_534), None).unwrap();
        }
        let theirs = std::fs::symlink_metadata(folder.path()).unwrap();
        assert!(super::trusted(&place, &theirs, 0).is_err());
        assert!(super::trusted(folder.path(), &theirs, 0).is_ok(), "it was named");
    }

    #[test]
    fn a_process_that_accepts_no_connection_is_waited_for_in_vain_once() {
        use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        use std::time::{Duration, Instant};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("4194306-1.sock");
        let address = SocketAddrUnix::new(&path).unwrap();
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
        };
        let listener = socket();
        net::bind(&listener, &address).unwrap();
        net::listen(&listener, 0).unwrap();
        let mut queue = Vec::new();
        while let (Ok(()), one) = {
            let one = socket();
            (net::connect(&one, &address), one)
        } {
            queue.push(one);
        }
        let begun = Instant::now();
        let (found, problems) =
            super::within(Duration::from_millis(300), folder.path(), &[]).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(300) && found.is_empty());
        assert!(problems[0].1.starts_with("it does not answer"), "{problems:?}");
    }

    #[test]
    fn more_processes_than_threads_are_all_asked() {
        let many: Vec<usize> = (0..3 * super::ASKED_AT_ONCE).collect();
        let doubled: Vec<usize> = many.iter().map(|one| 2 * one).collect();
        assert_eq!(super::at_once(&many, |one| 2 * one), doubled);
        assert_eq!(super::at_once(&[], |one: &usize| *one), [0; 0]);
    }

    #[test]
    fn an_answer_that_trickles_is_none() {
        use std::io::Write;
        use std::time::{Duration, Instant};
        let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let trickle = std::thread::spawn(move || while theirs.write_all(b"x").is_ok() {});
        let until = Instant::now();
        assert!(super::read_until(&mut ours, until).is_err(), "it is past");
        let far = Instant::now() + Duration::from_secs(600);
        let read = super::read_until(&mut ours, far).unwrap();
        assert!(read.len() >= super::LONGEST_REPLY, "there is an end to it");
        drop(ours);
        trickle.join().unwrap();
    }

    #[test]
    fn processes_that_do_not_answer_delay_no_other_and_are_named() {
        use rustix::process::{Pid, Signal, kill_process};
        use std::io::{Read, Write};
        use std::os::unix::net::UnixListener;
        use std::time::{Duration, Instant};
        let folder = tempfile::tempdir().unwrap();
        let listen =
            |pid: u32| UnixListener::bind(folder.path().join(format!("{pid}-1.sock"))).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stopped = sleeper.id();
        kill_process(Pid::from_child(&sleeper), Signal::STOP).unwrap();
        // Above the largest process id that a kernel assigns.
        let (absent, answers) = (4_194_305, std::process::id());
        let _listeners = [listen(stopped), listen(absent)];
        let listener = listen(answers);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 64]);
                let _ = stream.write_all(b"ok\trecorded=yes\n");
            }
        });
        let patience = Duration::from_secs(2);
        let begun = Instant::now();
        let (found, problems) = super::within(patience, folder.path(), &[answers]).unwrap();
        assert!(begun.elapsed() < patience && problems.is_empty());
        assert!(found.len() == 1 && found[0].is_recorded());
        let begun = Instant::now();
        let (found, mut problems) = super::within(patience, folder.path(), &[]).unwrap();
        assert!(begun.elapsed() < 2 * patience, "one after the other");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(found.len(), 1);
        problems.sort_by_key(|(pid, _)| *pid == absent);
        let said = |at: usize| problems[at].1.strip_prefix("it does not answer: it is ").unwrap();
        assert_eq!((problems[0].0, said(0)), (stopped, "stopped (state T)"));
        assert_eq!((problems[1].0, said(1)), (absent, "stopped, or busy"));
    }
}
