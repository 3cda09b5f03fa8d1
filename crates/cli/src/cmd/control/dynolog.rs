// SPDX-License-Identifier: Apache-2.0
/*!
PyTorch's profiler on demand: processes that run with `KINETO_USE_DAEMON=1` ask a local daemon,
dynolog, every few seconds whether to profile. If no daemon runs, [`Daemon`] answers in its place,
once per process. It never runs beside another daemon.

A message is one datagram: the size of its payload as a `u64`, a type of 32 bytes with a final zero,
and the payload. Numbers are in native byte order. The answer to `ctxt` (`i32` GPU, `i32` pid, `i64`
job) is an `i32`; the answer to `req` (`i32` kinds, `i32` n, `i64` job, n times `i32` pid, its own
first) is a configuration of lines `NAME=VALUE`, or empty. The socket is `dynolog` with a final zero
in the abstract namespace, or a file of that name in `KINETO_IPC_SOCKET_DIR`. Any process can send
to it; messages of other users are ignored.
*/

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrAny, recvmsg,
    sendto, sockopt,
};
use std::collections::BTreeSet;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of bytes of a datagram before its payload.
const HEAD: usize = 40;
/// Maximum size of a datagram; a request with the ids of all ancestors of a process is far smaller.
const LONGEST: usize = 4096;
/// Bit of a request's kinds: the process waits to record activities.
const ACTIVITIES: i32 = 2;
/// Time between a request for a profile and its start: Kineto asks every 5 s and warms up for 2 s
/// ([`Profile::configuration`]); the rest is a margin.
pub(crate) const LEAD: Duration = Duration::from_secs(10);

/// The profile that processes should record.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// Start, since 1970.
    pub(crate) begin: Duration,
    pub(crate) length: Duration,
    /// The output file; Kineto inserts `_PID` before the extension.
    pub(crate) file: PathBuf,
}

impl Profile {
    fn configuration(&self) -> String {
        format!(
            "PROFILE_START_TIME={}\nACTIVITIES_DURATION_MSECS={}\nACTIVITIES_WARMUP_PERIOD_SECS=2\n\
             ACTIVITIES_LOG_FILE={}\n",
            self.begin.as_millis(),
            self.length.as_millis().max(1),
            self.file.display(),
        )
    }

    pub(crate) fn file_of(&self, pid: u32) -> PathBuf {
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy();
        self.file.with_file_name(format!("{name}_{pid}.json"))
    }
}

/// A daemon that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: UnixDatagram,
    file: Option<PathBuf>,
    configuration: String,
    waiting: BTreeSet<u32>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Daemon {
    /// Binds the daemon's socket, to make `pids` record `profile`. `dir` is Kineto's socket
    /// directory, if it uses one.
    ///
    /// # Errors
    /// `AddrInUse` if a daemon runs; system errors.
    pub(crate) fn open(
        dir: Option<&Path>,
        pids: impl IntoIterator<Item = u32>,
        profile: &Profile,
    ) -> io::Result<Daemon> {
        let file = dir.map(|dir| dir.join("dynolog"));
        let socket = match &file {
            None => UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(b"dynolog\0")?)?,
            Some(file) => {
                remove_if_dead(file)?;
                UnixDatagram::bind(file)?
            }
        };
        sockopt::set_socket_passcred(&socket, true)?;
        Ok(Daemon {
            socket,
            file,
            configuration: profile.configuration(),
            waiting: pids.into_iter().collect(),
        })
    }

    /// The processes that have not asked yet.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().copied()
    }

    /// Answers requests for `time`.
    pub(crate) fn serve(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let mut datagram = [0; LONGEST];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Zero would mean no timeout.
            let set = self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            if left.is_zero() || set.is_err() {
                return std::thread::sleep(left);
            }
            match self.receive(&mut datagram) {
                Ok(Some((size, sender))) => {
                    let message = datagram.get(..size).and_then(Message::parse);
                    message.into_iter().for_each(|message| self.answer(message, &sender));
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No process asked, or there was an error that the next round would meet again.
                Err(_) => {
                    return std::thread::sleep(until.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// The next datagram's size and sender; `None` if it must be ignored.
    fn receive(&self, datagram: &mut [u8]) -> io::Result<Option<(usize, SocketAddrAny)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(datagram)];
        let got = recvmsg(&self.socket, parts, &mut control, RecvFlags::empty())?;
        let user = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.uid),
            _ => None,
        });
        let is_heard = user == Some(rustix::process::geteuid());
        Ok(got.address.filter(|_| is_heard).map(|sender| (got.bytes, sender)))
    }

    fn answer(&mut self, message: Message, sender: &SocketAddrAny) {
        match message {
            Message::Context => {
                self.send(sender, b"ctxt", &1_i32.to_ne_bytes());
            }
            Message::Request { kinds, pids } => {
                let asked = pids.iter().find(|pid| self.waiting.contains(pid));
                let asked = asked.filter(|_| kinds & ACTIVITIES != 0);
                let configuration = asked.map_or("", |_| self.configuration.as_str());
                let is_sent = self.send(sender, b"req", configuration.as_bytes());
                // Each process gets one answer.
                asked.filter(|_| is_sent).map(|pid| self.waiting.remove(pid));
            }
        }
    }

    fn send(&self, to: &SocketAddrAny, kind: &[u8], payload: &[u8]) -> bool {
        let mut message = (payload.len() as u64).to_ne_bytes().to_vec();
        message.extend_from_slice(kind);
        message.resize(HEAD, 0);
        message.extend_from_slice(payload);
        // A sender that does not read, or has no address, gets no answer.
        sendto(&self.socket, &message, SendFlags::DONTWAIT, to).is_ok()
    }
}

/// Removes the socket file of a daemon that has exited.
fn remove_if_dead(file: &Path) -> io::Result<()> {
    match UnixDatagram::unbound()?.connect(file) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(file)
        }
        Ok(()) => Err(io::ErrorKind::AddrInUse.into()),
        Err(_) => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Message {
    /// The process registers.
    Context,
    /// The process asks for a configuration.
    Request { kinds: i32, pids: Vec<u32> },
}

impl Message {
    fn parse(datagram: &[u8]) -> Option<Message> {
        let (head, payload) = datagram.split_at_checked(HEAD)?;
        let (size, kind) = head.split_first_chunk()?;
        if u64::from_ne_bytes(*size) != payload.len() as u64 {
            return None;
        }
        let end = kind.iter().position(|&byte| byte == 0)?;
        match kind.get(..end)? {
            b"ctxt" => Some(Message::Context),
            b"req" => {
                let (kinds, rest) = payload.split_first_chunk()?;
                let (count, rest) = rest.split_first_chunk()?;
                let (_job, rest) = rest.split_first_chunk::<8>()?;
                let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
                let (pids, []) = rest.as_chunks::<4>() else { return None };
                let pids = pids.get(..count)?.iter().map(|pid| i32::from_ne_bytes(*pid));
                let pids = pids.filter_map(|pid| u32::try_from(pid).ok()).collect();
                Some(Message::Request { kinds: i32::from_ne_bytes(*kinds), pids })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u64).to_ne_bytes().to_vec();
        bytes.extend_from_slice(kind.as_bytes());
        bytes.resize(HEAD, 0);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn request(kinds: i32, pids: &[i32]) -> Vec<u8> {
        let mut payload = [kinds, pids.len().try_into().unwrap()].map(i32::to_ne_bytes).concat();
        payload.extend_from_slice(&0_i64.to_ne_bytes());
        payload.extend(pids.iter().flat_map(|pid| pid.to_ne_bytes()));
        message("req", &payload)
    }

    fn profile() -> Profile {
        Profile {
            begin: Duration::from_millis(1_790_857_026_500),
            length: Duration::from_secs(2),
            file: "/tmp/x/kineto.json".into(),
        }
    }

    /// A process that talks to the daemon of a directory.
    struct Client<'a> {
        socket: UnixDatagram,
        dir: &'a Path,
    }

    impl<'a> Client<'a> {
        fn new(dir: &'a Path, name: &str) -> Client<'a> {
            let socket = UnixDatagram::bind(dir.join(name)).unwrap();
            socket.set_nonblocking(true).unwrap();
            Client { socket, dir }
        }

        fn asks(&self, daemon: &mut Daemon, message: &[u8]) -> Option<String> {
            self.socket.send_to(message, self.dir.join("dynolog")).unwrap();
            daemon.serve(Duration::from_millis(20));
            let mut answer = [0; LONGEST];
            let size = self.socket.recv(&mut answer).ok()?;
            let (head, payload) = answer[..size].split_at(HEAD);
            assert_eq!(head[..8], (payload.len() as u64).to_ne_bytes());
            let kind = String::from_utf8(head[8..].to_vec()).unwrap();
            let payload = String::from_utf8(payload.to_vec()).unwrap();
            Some(format!("{}:{payload}", kind.trim_end_matches('\0')))
        }
    }

    #[test]
    fn each_target_process_gets_one_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::open(Some(dir.path()), [7, 8], &profile()).unwrap();
        let client = Client::new(dir.path(), "client");
        let mut ask = |pids: &[i32]| client.asks(&mut daemon, &request(ACTIVITIES, pids)).unwrap();
        let configuration = "req:PROFILE_START_TIME=1790857026500\n\
                             ACTIVITIES_DURATION_MSECS=2000\n\
                             ACTIVITIES_WARMUP_PERIOD_SECS=2\n\
                             ACTIVITIES_LOG_FILE=/tmp/x/kineto.json\n";
        assert_eq!(ask(&[7, 1]), configuration);
        assert_eq!(ask(&[7, 1]), "req:", "it already got one");
        assert_eq!(ask(&[9, 1]), "req:", "it is not a target");
        assert_eq!(daemon.waiting().collect::<Vec<_>>(), [8]);
        let events_only = client.asks(&mut daemon, &request(1, &[8]));
        assert_eq!(events_only.as_deref(), Some("req:"));
        let context = client.asks(&mut daemon, &message("ctxt", &[0; 16]));
        assert_eq!(context.as_deref(), Some("ctxt:\u{1}\0\0\0"));
        assert_eq!(profile().file_of(7), Path::new("/tmp/x/kineto_7.json"));
    }

    #[test]
    fn garbage_and_truncated_messages_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::open(Some(dir.path()), [7], &profile()).unwrap();
        let client = Client::new(dir.path(), "client");
        let whole = request(ACTIVITIES, &[7]);
        for end in 0..whole.len() {
            assert_eq!(Message::parse(&whole[..end]), None, "{end}");
        }
        let mut too_many = request(ACTIVITIES, &[7]);
        too_many[HEAD + 4..HEAD + 8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let mut negative = whole.clone();
        negative[HEAD + 4..HEAD + 8].copy_from_slice(&(-1_i32).to_ne_bytes());
        let endless = message(&"x".repeat(32), &[]);
        let large = vec![0xA5; 2 * LONGEST];
        let unknown = message("what", &[1, 2, 3]);
        let bad = [&[][..], &[0; 7], &whole[..HEAD], &too_many, &negative, &endless, &large];
        for bad in bad.into_iter().chain([&unknown[..]]) {
            assert_eq!(client.asks(&mut daemon, bad), None, "{bad:?}");
        }
        assert_eq!(daemon.waiting().collect::<Vec<_>>(), [7]);
        assert!(client.asks(&mut daemon, &whole).unwrap().starts_with("req:PROFILE"));
    }

    #[test]
    fn a_client_without_address_or_that_has_exited_does_not_stall_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::open(Some(dir.path()), [7, 8], &profile()).unwrap();
        let nameless = UnixDatagram::unbound().unwrap();
        let gone = Client::new(dir.path(), "gone");
        for socket in [&nameless, &gone.socket] {
            let to = dir.path().join("dynolog");
            socket.send_to(&request(ACTIVITIES, &[7]), to).unwrap();
        }
        drop(gone);
        let client = Client::new(dir.path(), "client");
        assert!(client.asks(&mut daemon, &request(ACTIVITIES, &[8])).is_some());
        assert_eq!(daemon.waiting().collect::<Vec<_>>(), [7], "it may ask again");
    }

    #[test]
    fn it_never_runs_beside_another_daemon_and_replaces_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::open(Some(dir.path()), [7], &profile()).unwrap();
        let second = Daemon::open(Some(dir.path()), [7], &profile()).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        let file = dir.path().join("dynolog");
        assert!(file.exists(), "the file of another daemon stays");
        drop(daemon);
        assert!(!file.exists());
        drop(UnixDatagram::bind(&file).unwrap());
        assert!(Daemon::open(Some(dir.path()), [7], &profile()).is_ok());
    }
}
