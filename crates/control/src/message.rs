// SPDX-License-Identifier: Apache-2.0
/*!
Requests to a process's control socket, and the replies.

A connection carries one request and one reply, each a line of fields separated by tabs
(docs/control.md). A request is a verb and its arguments; a reply is `ok` and fields of the form
`NAME=VALUE`, or `error` and a sentence. A reader ignores fields that it does not know. A field that
an older plugin does not send has its default.
*/

use crate::quantity::{duration, write_seconds};
use crate::window::RecordingWindow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of a request, without its newline.
pub const LONGEST_REQUEST: usize = 4096;
/// Most bytes of a reply.
pub const LONGEST_REPLY: usize = 64 << 10;
/// Most communicators that a status lists.
const COMMS: usize = 32;

/// A request to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Ask what the process records.
    Status,
    /// Record the operations of a window.
    Start(RecordingWindow),
    /// Stop recording operations.
    Stop,
    /// Copy the recording: to this file or directory, or to a new directory beside the recording.
    Dump(Option<PathBuf>),
    /// Ask which operations are in flight.
    Why,
    /// Record a mark with this text.
    Mark(String),
    /// A training step begins.
    Step(u64),
    /// Set the role of a communicator.
    Role {
        /// The communicator.
        hash: u64,
        /// Its role: `tp`, `dp`, ...
        name: String,
    },
}

impl Request {
    /// The request as a line, without its newline.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Request::Status => "status".into(),
            Request::Start(window) => format!("start\t{window}"),
            Request::Stop => "stop".into(),
            Request::Dump(None) => "dump".into(),
            Request::Dump(Some(path)) => format!("dump\t{}", path.display()),
            Request::Why => "why".into(),
            Request::Mark(text) => format!("mark\t{text}"),
            Request::Step(step) => format!("step\t{step}"),
            Request::Role { hash, name } => format!("role\t{hash:#x}\t{name}"),
        }
    }

    /// Parses a request line without its newline.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    pub fn decode(line: &str) -> Result<Request, String> {
        let bad = |expected: &str| format!("{line:?}: expected {expected}");
        let (verb, rest) = line.split_once('\t').unwrap_or((line, ""));
        Ok(match verb {
            "status" => Request::Status,
            "start" => Request::Start(RecordingWindow::parse(rest)?),
            "stop" => Request::Stop,
            "dump" if rest.is_empty() => Request::Dump(None),
            "dump" if Path::new(rest).is_absolute() => Request::Dump(Some(rest.into())),
            "dump" => return Err(bad("an absolute path")),
            "why" => Request::Why,
            "mark" if !rest.is_empty() => Request::Mark(rest.to_owned()),
            "step" => Request::Step(rest.parse().map_err(|_| bad("step and a number"))?),
            "role" => {
                let role = rest.split_once('\t').ok_or_else(|| bad("role, hash and name"))?;
                let hash = hash(role.0).ok_or_else(|| bad("a hash such as 0x1f"))?;
                Request::Role { hash, name: role.1.to_owned() }
            }
            _ => return Err(bad("status, start, stop, dump, why, mark, step or role")),
        })
    }
}

/// A communicator's hash, hexadecimal.
fn hash(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Whether operations that begin now are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// Yes.
    Yes,
    /// No.
    No,
    /// Not yet: a window waits for its time or its step.
    Waiting,
}

impl Recorded {
    const ALL: [Recorded; 3] = [Recorded::Yes, Recorded::No, Recorded::Waiting];

    /// The word for it in replies, lists and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Recorded::Yes => "yes",
            Recorded::No => "no",
            Recorded::Waiting => "waiting",
        }
    }
}

/// This process as a member of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommMember {
    /// The communicator's hash.
    pub hash: u64,
    /// The communicator rank of this process; -1 if unknown.
    pub rank: i32,
    /// Number of ranks; 0 if unknown.
    pub ranks: u32,
}

/// Where a window begins or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// At this time, ns since 1970.
    Time(u64),
    /// At the start of this training step.
    Step(u64),
    /// This number of training steps after the window began; 0 is the next step.
    Steps(u64),
}

impl Boundary {
    fn encode(self) -> String {
        match self {
            Boundary::Time(ns) => write_seconds(Duration::from_nanos(ns)),
            Boundary::Step(step) => format!("step:{step}"),
            Boundary::Steps(steps) => format!("steps:{steps}"),
        }
    }

    fn decode(text: &str) -> Option<Boundary> {
        match text.split_once(':') {
            Some(("step", step)) => step.parse().ok().map(Boundary::Step),
            Some(("steps", steps)) => steps.parse().ok().map(Boundary::Steps),
            Some(_) => None,
            None => {
                let ns = duration(text)?.as_nanos();
                u64::try_from(ns).ok().map(Boundary::Time)
            }
        }
    }
}

/// The window that is open or waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowState {
    /// When it begins; `None` if it is open, or there is none.
    pub begins: Option<Boundary>,
    /// When it ends; `None` if a request ends it.
    pub ends: Option<Boundary>,
    /// Every how many-th operation is recorded; 1 is each.
    pub sample: u32,
}

impl Default for WindowState {
    fn default() -> WindowState {
        WindowState { begins: None, ends: None, sample: 1 }
    }
}

/// What a process records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessStatus {
    /// Its process id.
    pub pid: u32,
    /// Whether operations that begin now are recorded.
    pub recorded: Recorded,
    /// The job's id; empty if unknown.
    pub job: String,
    /// NCCL's version code; 0 if unknown.
    pub nccl_version: u32,
    /// The latest training step that the application reported; `None` if it reported none.
    pub step: Option<u64>,
    /// Communicators that are not destroyed; a reply has the first 32.
    pub comms: Vec<CommMember>,
    /// Number of communicators beyond those in [`ProcessStatus::comms`].
    pub more_comms: u64,
    /// Path of the recording; empty if there is none yet.
    pub recording: PathBuf,
    /// The plugin's mode; empty if unknown.
    pub mode: String,
    /// The window that is open or waits.
    pub window: WindowState,
}

/// What a process waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFlight {
    /// Number of communicators and API calls with something in flight.
    pub count: u64,
    /// These as a JSON array (`ncclscope.hang/2`), as many as fit into the reply.
    pub hangs: String,
    /// Which hangs the watchdog cannot see, as a JSON array of lines.
    pub blind: String,
    /// Number of those that [`InFlight::hangs`] leaves out.
    pub more: u64,
}

/// What a process answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The request succeeded and returns no data.
    Done,
    /// To [`Request::Status`], [`Request::Start`] and [`Request::Stop`].
    Status(ProcessStatus),
    /// To [`Request::Dump`]: the path of the copy.
    Dumped(PathBuf),
    /// To [`Request::Why`].
    InFlight(InFlight),
    /// The request failed, for this reason.
    Refused(String),
}

impl Reply {
    /// The reply as a line, with its newline.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Reply::Done => "ok\n".into(),
            Reply::Status(status) => status.encode(),
            Reply::Dumped(file) => ok(&[("file", file.display().to_string())]),
            Reply::InFlight(InFlight { count, hangs, blind, more }) => ok(&[
                ("in_flight", count.to_string()),
                ("hangs", hangs.clone()),
                ("blind", blind.clone()),
                ("more", more.to_string()),
            ]),
            Reply::Refused(why) => format!("error\t{}\n", one_field(why)),
        }
    }

    /// Parses the reply to `request`.
    ///
    /// # Errors
    /// Why the reply cannot be used.
    pub fn decode(request: &Request, line: &str) -> Result<Reply, &'static str> {
        let line = line.trim_end_matches('\n');
        let (word, rest) = line.split_once('\t').unwrap_or((line, ""));
        let fields = Fields(rest);
        match (word, request) {
            ("", _) => Err("it closed the connection"),
            ("error", _) => Ok(Reply::Refused(rest.to_owned())),
            ("ok", Request::Status | Request::Start(_) | Request::Stop) => {
                Ok(Reply::Status(ProcessStatus::decode(fields).ok_or(NOT_UNDERSTOOD)?))
            }
            ("ok", Request::Dump(_)) => {
                Ok(Reply::Dumped(fields.get("file").ok_or(NOT_UNDERSTOOD)?.into()))
            }
            ("ok", Request::Why) => Ok(Reply::InFlight(InFlight {
                count: fields.number("in_flight"),
                hangs: fields.get("hangs").unwrap_or("[]").to_owned(),
                blind: fields.get("blind").unwrap_or("[]").to_owned(),
                more: fields.number("more"),
            })),
            ("ok", Request::Mark(_) | Request::Step(_) | Request::Role { .. }) => Ok(Reply::Done),
            _ => Err(NOT_UNDERSTOOD),
        }
    }
}

const NOT_UNDERSTOOD: &str = "its reply is not understood";

impl ProcessStatus {
    fn encode(&self) -> String {
        let comms: Vec<String> = self
            .comms
            .iter()
            .take(COMMS)
            .map(|CommMember { hash, rank, ranks }| format!("{hash:#x}:{rank}/{ranks}"))
            .collect();
        let more = self.more_comms + self.comms.len().saturating_sub(COMMS) as u64;
        ok(&[
            ("pid", self.pid.to_string()),
            ("recorded", self.recorded.word().into()),
            ("job", self.job.clone()),
            ("nccl", self.nccl_version.to_string()),
            ("step", self.step.map(|step| step.to_string()).unwrap_or_default()),
            ("comms", comms.join(",")),
            ("more", more.to_string()),
            ("recording", self.recording.display().to_string()),
            ("mode", self.mode.clone()),
            ("begins", self.window.begins.map(Boundary::encode).unwrap_or_default()),
            ("ends", self.window.ends.map(Boundary::encode).unwrap_or_default()),
            ("sample", self.window.sample.to_string()),
        ])
    }

    /// `None` if the fields do not say whether operations are recorded.
    fn decode(fields: Fields<'_>) -> Option<ProcessStatus> {
        let recorded = fields.get("recorded")?;
        let comms = fields.get("comms").unwrap_or("").split(',').filter_map(|text| {
            let (comm, ranks) = text.split_once(':')?;
            let (rank, ranks) = ranks.split_once('/')?;
            let (rank, ranks) = (rank.parse().ok()?, ranks.parse().ok()?);
            Some(CommMember { hash: hash(comm)?, rank, ranks })
        });
        Some(ProcessStatus {
            pid: u32::try_from(fields.number("pid")).unwrap_or(0),
            recorded: Recorded::ALL.into_iter().find(|known| known.word() == recorded)?,
            job: fields.get("job").unwrap_or("").to_owned(),
            nccl_version: u32::try_from(fields.number("nccl")).unwrap_or(0),
            step: fields.get("step").and_then(|step| step.parse().ok()),
            comms: comms.collect(),
            more_comms: fields.number("more"),
            recording: fields.get("recording").unwrap_or("").into(),
            mode: fields.get("mode").unwrap_or("").to_owned(),
            window: WindowState {
                begins: fields.get("begins").and_then(Boundary::decode),
                ends: fields.get("ends").and_then(Boundary::decode),
                sample: u32::try_from(fields.number("sample")).unwrap_or(1).max(1),
            },
        })
    }
}

fn ok(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("{name}={}", one_field(value))).collect();
    format!("ok\t{}\n", fields.join("\t"))
}

fn one_field(text: &str) -> String {
    text.replace(['\t', '\n'], " ")
}

#[derive(Clone, Copy)]
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.split('\t').filter_map(|field| field.split_once('='));
        fields.find_map(|(of, value)| (of == name).then_some(value))
    }

    /// The number in a field; 0 if the field is missing or not a number.
    fn number(self, name: &str) -> u64 {
        self.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> ProcessStatus {
        ProcessStatus {
            pid: 4711,
            recorded: Recorded::Waiting,
            job: "88".into(),
            nccl_version: 23007,
            step: Some(7),
            comms: vec![CommMember { hash: 0xbe44_f619, rank: -1, ranks: 0 }],
            more_comms: 0,
            recording: "/tmp/h-4711.nscope".into(),
            mode: "flight".into(),
            window: WindowState { begins: Some(Boundary::Steps(0)), ends: None, sample: 16 },
        }
    }

    #[test]
    fn a_request_is_read_back() {
        let requests = [
            Request::Status,
            Request::Start(RecordingWindow::default()),
            Request::Start(RecordingWindow::parse("at=9.5 steps=3 sample=4").unwrap()),
            Request::Stop,
            Request::Dump(None),
            Request::Dump(Some("/a b/c".into())),
            Request::Why,
            Request::Mark("epoch\t2".into()),
            Request::Step(u64::MAX),
            Request::Role { hash: 0x1f, name: "tp".into() },
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Ok(request.clone()), "{request:?}");
        }
    }

    /// Lines that people and scripts write.
    #[test]
    fn a_bad_request_says_what_was_expected() {
        let start = Request::Start(RecordingWindow::parse("for=5s").unwrap());
        assert_eq!(Request::decode("start\tfor=5s"), Ok(start));
        let role = Request::Role { hash: 0x1f, name: "a\tb".into() };
        assert_eq!(Request::decode("role\t1f\ta\tb"), Ok(role));
        let cases = [
            ("", "status, start, stop, dump, why, mark, step or role"),
            ("mark", "status, start, stop, dump, why, mark, step or role"),
            ("dump\tx", "an absolute path"),
            ("step\tx", "step and a number"),
            ("role\t1f", "role, hash and name"),
            ("role\tx\ta", "a hash such as 0x1f"),
            ("start\tfor=5d", "for=10s, for=500ms or for=2m"),
        ];
        for (line, expected) in cases {
            let why = Request::decode(line).unwrap_err();
            assert!(why.ends_with(&format!(": expected {expected}")), "{why}");
        }
    }

    #[test]
    fn a_reply_is_read_back() {
        let in_flight = InFlight { count: 3, hangs: "[{}]".into(), blind: "[]".into(), more: 2 };
        let replies = [
            (Request::Status, Reply::Status(status())),
            (Request::Stop, Reply::Status(ProcessStatus { step: None, ..status() })),
            (Request::Dump(None), Reply::Dumped("/a b/c=d".into())),
            (Request::Why, Reply::InFlight(in_flight)),
            (Request::Step(1), Reply::Done),
            (Request::Status, Reply::Refused("nothing is recorded".into())),
        ];
        for (request, reply) in replies {
            let line = reply.encode();
            assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line}");
            assert_eq!(Reply::decode(&request, &line), Ok(reply));
        }
        let line = "ok\tpid=4711\trecorded=waiting\tjob=88\tnccl=23007\tstep=7\t\
                    comms=0xbe44f619:-1/0\tmore=0\trecording=/tmp/h-4711.nscope\tmode=flight\t\
                    begins=steps:0\tends=\tsample=16\n";
        assert_eq!(Reply::Status(status()).encode(), line);
    }

    #[test]
    fn a_status_lists_some_communicators_and_counts_the_rest() {
        let comms: Vec<CommMember> =
            (0..40).map(|hash| CommMember { hash, rank: 0, ranks: 2 }).collect();
        let line = Reply::Status(ProcessStatus { comms, ..status() }).encode();
        let Ok(Reply::Status(read)) = Reply::decode(&Request::Status, &line) else { panic!() };
        assert_eq!((read.comms.len(), read.more_comms), (32, 8));
    }

    #[test]
    fn a_boundary_is_read_back() {
        let boundaries = [
            Boundary::Time(1_790_857_026_500_000_001),
            Boundary::Step(17),
            Boundary::Steps(0),
            Boundary::Steps(3),
        ];
        for boundary in boundaries {
            assert_eq!(Boundary::decode(&boundary.encode()), Some(boundary));
        }
        assert!(["", "x", "step:", "day:1"].map(Boundary::decode) == [None; 4]);
    }

    #[test]
    fn replies_of_other_versions_and_none_at_all() {
        let of = |line| Reply::decode(&Request::Status, line);
        let Ok(Reply::Status(old)) = of("ok\trecorded=yes\tnew=1\n") else { panic!() };
        assert_eq!((old.recorded, old.pid, old.step), (Recorded::Yes, 0, None));
        assert_eq!(old.window, WindowState::default());
        assert_eq!(of(""), Err("it closed the connection"));
        assert_eq!(of("what\n"), Err(NOT_UNDERSTOOD));
        assert_eq!(of("ok\n"), Err(NOT_UNDERSTOOD));
        // A tab in a value would end the field.
        let odd = ProcessStatus { job: "a\tb\nc".into(), ..status() };
        let Ok(Reply::Status(read)) = of(&Reply::Status(odd).encode()) else { panic!() };
        assert_eq!(read.job, "a b c");
    }
}
