// SPDX-License-Identifier: Apache-2.0
//! The report of a hang, in lines and as JSON (`ncclscope.hang/2`, docs/hang.md).

use super::clock::Clock;
use super::heartbeats::op_progress;
use super::json::Json;
use super::judge::Scene;
use super::own_process::OwnProcess;
use super::seen::Thread;
use super::setup;
use super::subject::{Subject, Suspect};
use crate::probe::LaunchState;
use ncclscope_findings::{FindingClass, RankFinding};
use ncclscope_operations::human;
use ncclscope_operations::progress::{
    Call, FinishedOperation, ForeignWork, Launch, OpView, Owner, ProxyView,
};
use ncclscope_recorder::NO_COMM;
use ncclscope_trace::progress::OpProgress;
use ncclscope_trace::{HANG_REPORT, State};

/// Maximum number of ProxyOps and threads that a report names.
const MOST_PROXIES: usize = 16;
const MOST_THREADS: usize = 12;
/// Maximum number of other hangs that a report names.
const MOST_OTHERS: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happened {
    /// It stands still for longer than its limit.
    Hung,
    /// It stood still, and has ended.
    Recovered,
    /// Its communicator was destroyed, which ended it.
    Destroyed,
    /// Events were lost, so that it is no longer known whether it has ended.
    Unknown,
    /// Nothing happened: a client asked what is in flight.
    InFlight,
}

impl Happened {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Happened::Hung => "hung",
            Happened::Recovered => "recovered",
            Happened::Destroyed => "destroyed",
            Happened::Unknown => "unknown",
            Happened::InFlight => "in flight",
        }
    }
}

/// A report of the watchdog.
#[derive(Clone, Debug)]
pub(crate) struct Hang {
    /// When it happened, in ticks.
    pub(crate) ticks: u64,
    pub(crate) happened: Happened,
    /// True for a drill, in which nothing is stuck.
    pub(crate) drill: bool,
    /// The class of the finding; `None` if one rank alone cannot know it, and for a drill.
    pub(super) class: Option<FindingClass>,
    /// Hash of the communicator; 0 if unknown.
    pub(crate) comm: u64,
    /// Rank of the process in the communicator; -1 if unknown.
    pub(crate) rank: i32,
    /// The operation or call, such as `AllReduce 3 on communicator 0x1f`.
    what: String,
    why: String,
    still_ns: u64,
    /// The limit after which it counts as stuck, ns; 0: never.
    limit_ns: u64,
    place: String,
    /// Number of other hangs found with it that have no report of their own.
    others: usize,
    details: Vec<String>,
    fields: Vec<(&'static str, String)>,
}

impl OwnProcess {
    /// A report on `comm` that is still empty.
    pub(super) fn blank(&self, comm: u16, clock: Clock) -> Hang {
        let known = self.known(comm);
        Hang {
            ticks: clock.now,
            happened: Happened::Hung,
            drill: false,
            class: None,
            comm: known.map_or(0, |comm| comm.hash),
            rank: known.map_or(-1, |comm| comm.rank),
            what: String::new(),
            why: String::new(),
            still_ns: 0,
            limit_ns: 0,
            place: self.text(comm),
            others: 0,
            details: Vec::new(),
            fields: self.fields(comm, known),
        }
    }

    /// The report of a call that creates or ends a communicator and does not return.
    pub(super) fn setup_hang(
        &self,
        seen: &setup::Seen,
        (still_ns, limit_ns): (u64, u64),
        clock: Clock,
    ) -> Option<Hang> {
        let (what, why) = seen.hang(still_ns)?;
        let class = Some(FindingClass::CommSetup);
        Some(Hang { class, what, why, still_ns, limit_ns, ..self.blank(NO_COMM, clock) })
    }

    /// The report of a drill.
    pub(super) fn as_drill(&self, hang: Hang) -> Hang {
        let first = self.first().map_or(u16::MAX, |comm| comm.index);
        let why = "this is a drill (ncclscope_simulate_hang): nothing is stuck";
        Hang {
            drill: true,
            class: None,
            what: format!("a simulated operation on {}", self.on_comm(first)),
            why: why.into(),
            ..hang
        }
    }

    /// The report of something that stands still.
    pub(super) fn hang<'a>(
        &self,
        scene: &Scene<'_>,
        suspect: &Suspect,
        verdict: RankFinding,
        happened: Happened,
        past: impl Iterator<Item = &'a FinishedOperation>,
    ) -> Hang {
        let (clock, subject) = (scene.clock, &suspect.subject);
        let mut hang = Hang {
            happened,
            class: verdict.class,
            what: self.what(subject),
            why: verdict.why,
            still_ns: suspect.still_ns,
            limit_ns: suspect.limit_ns,
            ..self.blank(subject.comm(), clock)
        };
        let peer = verdict.peer.map_or_else(|| "null".into(), |peer| peer.to_string());
        hang.fields.push(("comm_peer", peer));
        match subject {
            Subject::Op(op) => self.tell_op(&mut hang, scene, op),
            Subject::Call(call) => Self::tell_call(&mut hang, call, clock),
            Subject::Foreign(work) => Self::tell_foreign(&mut hang, scene, work),
        }
        if let Some(launch) = subject.launch() {
            hang.details.push(launch_line(launch, scene.launch_state(Some(launch)), clock));
        }
        let threads = scene.threads.all().filter(|thread| thread.is_worth_telling());
        hang.details.extend(threads.take(MOST_THREADS).map(thread_line));
        let behind =
            scene.in_flight.iter().filter(|op| op.comm == subject.comm()).count().saturating_sub(1);
        if behind > 0 {
            let behind = human::count(behind, "operation");
            hang.details.push(format!("behind it on this communicator: {behind}"));
        }
        let past: Vec<String> = past.map(|past| self.past(past, clock)).collect();
        if !past.is_empty() {
            hang.details.push(format!("before it: {}", past.join("; ")));
        }
        hang
    }

    fn tell_op(&self, hang: &mut Hang, scene: &Scene<'_>, op: &OpView) {
        let clock = scene.clock;
        let facts = &op.facts;
        let sort = [facts.algo, facts.proto].map(|id| self.name(id)).join(" ");
        let sort = Some(sort.trim()).filter(|sort| !sort.is_empty()).unwrap_or("algorithm unknown");
        let variant = Some(self.name(facts.variant)).filter(|name| !name.is_empty());
        let also = variant.map(|name| format!(" {name}")).unwrap_or_default();
        let threads = Some(facts.threads).filter(|&threads| threads > 0);
        let block = threads.map(|n| format!(", {n} threads a block")).unwrap_or_default();
        let [started, stopped] = [op.started, op.stopped].map(|set| set.count());
        let open = channels(op.started.without(&op.stopped));
        let wanted = if facts.is_p2p() { "its".into() } else { facts.wanted.to_string() };
        let channels = format!("kernel started on {started} and ended on {stopped} of {wanted}");
        let kernel = match (open.as_str(), scene.comm.is_some_and(|comm| comm.has_kernels)) {
            ("", false) => "NCCL tells nothing of its kernel".into(),
            ("", true) => format!("{channels} channels"),
            (open, _) => format!("{channels} channels; started and not ended: {open}"),
        };
        hang.details.push(format!(
            "operation: {sort}{also}{block}, enqueued {} ago; {kernel}",
            seconds(clock.ns_since(op.start)),
        ));
        let operation = Json::object()
            .text("func", self.name(facts.func))
            .raw("number", op.number)
            .raw("count", facts.count)
            .text("datatype", self.name(facts.datatype))
            .raw("channels", facts.wanted)
            .raw("channels_started", started)
            .raw("channels_ended", stopped)
            .raw("channels_open", format!("[{}]", numbers(op.started.without(&op.stopped))))
            .maybe("algorithm", Some(self.name(facts.algo)).filter(|name| !name.is_empty()))
            .maybe("protocol", Some(self.name(facts.proto)).filter(|name| !name.is_empty()))
            .maybe("variant", variant)
            .raw("threads_per_block", threads.map_or_else(|| "null".into(), |n| n.to_string()))
            .raw("age_ns", clock.ns_since(op.start));
        hang.fields.push(("operation", operation.end()));
        Self::tell_proxies(hang, scene, &op.proxies);
    }

    fn tell_proxies(hang: &mut Hang, scene: &Scene<'_>, all: &[ProxyView]) {
        let clock = scene.clock;
        let mut proxies = Json::array();
        for proxy in all.iter().take(MOST_PROXIES) {
            let progress = op_progress(proxy, scene.steps, clock);
            hang.details.push(proxy_line(&progress, clock));
            proxies = proxies.element(proxy_json(&progress, clock));
        }
        let more = all.len().saturating_sub(MOST_PROXIES);
        if more > 0 {
            hang.details.push(format!("and {}", human::count(more, "more ProxyOp")));
        }
        hang.fields.push(("proxies", proxies.end()));
    }

    fn tell_foreign(hang: &mut Hang, scene: &Scene<'_>, work: &ForeignWork) {
        let Owner { pid, rank, .. } = work.owner;
        hang.details.push(format!("its operation is that of process {pid}: look there"));
        let rank = Some(rank).filter(|&rank| rank >= 0);
        let owner = Json::object()
            .raw("pid", pid)
            .raw("comm_rank", rank.map_or_else(|| "null".into(), |rank| rank.to_string()));
        hang.fields.push(("for", owner.end()));
        Self::tell_proxies(hang, scene, &work.ops);
    }

    fn tell_call(hang: &mut Hang, call: &Call, clock: Clock) {
        let graph = if call.graph { ", captured into a CUDA graph" } else { "" };
        let began = seconds(clock.ns_since(call.start));
        hang.details.push(format!("the call began {began} ago{graph}"));
    }

    fn past(&self, past: &FinishedOperation, clock: Clock) -> String {
        let took = seconds(clock.ns(past.end.saturating_sub(past.start)));
        format!("{} took {took}", self.operation(&past.facts, past.number))
    }
}

/// Where the class of a report may be wrong: its cause may be on another rank.
const ALONE: &str = "  this is what one rank sees: ncclscope diagnose compares the ranks";

impl Hang {
    /// Adds the name of a hang that was found with this one and has no report of its own.
    pub(super) fn and(&mut self, own: &OwnProcess, other: &Subject) {
        self.others += 1;
        if self.others <= MOST_OTHERS {
            self.details.push(format!("also stuck: {}", own.what(other)));
        }
    }

    /// Makes this the report of the outcome, now, after it stood still for `still_ns`.
    pub(super) fn end(&mut self, clock: Clock, still_ns: u64, happened: Happened) {
        self.happened = happened;
        self.still_ns = still_ns;
        self.ticks = clock.now;
        self.details.clear();
        self.others = 0;
        self.fields.retain(|(name, _)| *name != "proxies");
    }

    /// Code of the class; empty if one rank alone cannot know the class.
    pub(crate) fn code(&self) -> &'static str {
        if self.drill { "drill" } else { self.class.map_or("", FindingClass::code) }
    }

    /// The report as lines, the most important first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Hang { what, class, why, place, .. } = self;
        let drill = if self.drill { "DRILL: " } else { "" };
        let still = seconds(self.still_ns);
        let verb = match self.happened {
            Happened::Hung => HANG_REPORT,
            Happened::InFlight => "in flight: ",
            Happened::Recovered => {
                return vec![format!("{drill}recovered after {still}: {what} ({place})")];
            }
            Happened::Destroyed => {
                let line = "never ended, and its communicator was destroyed";
                return vec![format!("{drill}after {still}: {what} {line} ({place})")];
            }
            Happened::Unknown => {
                let line = "whether it has ended is not known: events were lost";
                return vec![format!("{drill}after {still}: {what}: {line} ({place})")];
            }
        };
        let class = match class {
            Some(class) => format!("{class}: "),
            None if self.drill => format!("{}: ", self.code()),
            None => String::new(),
        };
        let limit = match self.limit_ns {
            0 => ", no limit".into(),
            limit => format!(", limit {}", seconds(limit)),
        };
        let mut lines = vec![
            format!("{drill}{verb}{what} has not moved for {still}{limit} ({place})"),
            format!("  {class}{why}"),
        ];
        lines.extend(self.details.iter().map(|line| format!("  {line}")));
        if !self.drill {
            lines.push(ALONE.into());
        }
        if self.others > MOST_OTHERS {
            lines.push(format!("  also stuck: {} more", self.others - MOST_OTHERS));
        }
        lines
    }

    /// The report as JSON in one line.
    pub(crate) fn json(&self) -> String {
        let mut json = Json::object()
            .text("schema", "ncclscope.hang/2")
            .text("event", self.happened.name())
            .raw("drill", self.drill)
            .maybe("class", Some(self.code()).filter(|code| !code.is_empty()))
            .maybe("name", self.class.map(FindingClass::name))
            .text("what", &self.what)
            .text("why", &self.why)
            .raw("still_ns", self.still_ns)
            .maybe_raw("limit_ns", Some(self.limit_ns).filter(|&limit| limit > 0))
            .raw("others", self.others);
        for (name, value) in &self.fields {
            json = json.raw(name, value);
        }
        let lines = self.lines().iter().fold(Json::array(), |all, line| all.text("", line));
        json.raw("text", lines.end()).end()
    }
}

/// Numbers as ranges, such as `0-3, 7`.
fn channels(all: impl Iterator<Item = u32>) -> String {
    human::list_of_ranges(&human::ranges(all), usize::MAX)
}

/// Numbers, separated by commas.
fn numbers(all: impl Iterator<Item = u32>) -> String {
    all.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

fn launch_line(launch: Launch, state: LaunchState, clock: Clock) -> String {
    let Launch { stream, start, stop, .. } = launch;
    let returned = match stop {
        Some(stop) => format!("returned after {}", seconds(clock.ns(stop.saturating_sub(start)))),
        None => "has not returned".into(),
    };
    let events = match state {
        LaunchState::Unknown => String::new(),
        LaunchState::NotStarted => "; by CUDA events its stream has not come to it".into(),
        LaunchState::Running { since } => {
            let ago = seconds(clock.ns_since(since));
            format!("; by CUDA events its stream came to it {ago} ago")
        }
        LaunchState::Done { .. } => "; by CUDA events it has ended".into(),
        LaunchState::Failed { status } => format!("; the CUDA driver reports error {status}"),
    };
    let ago = seconds(clock.ns_since(start));
    format!("launch: on stream {stream:#x}, {ago} ago, {returned}{events}")
}

/// NCCL's name of the state that a step is in.
fn state_name(op: &OpProgress) -> Option<String> {
    let states = match (op.is_send, op.reached?) {
        (_, 0) => return Some("no state yet".into()),
        (true, 1) => State::STEP_SEND_GPU_WAIT,
        (true, 2) => State::STEP_SEND_PEER_WAIT,
        (true, _) => State::STEP_SEND_WAIT,
        (false, 1) => State::STEP_RECV_WAIT,
        (false, 2) => State::STEP_RECV_FLUSH_WAIT,
        (false, _) => State::STEP_RECV_GPU_WAIT,
    };
    Some(states.to_string().trim_start_matches("ProxyStep").to_owned())
}

fn proxy_line(op: &OpProgress, clock: Clock) -> String {
    let way = if op.is_send { "send to" } else { "receive from" };
    let state = state_name(op).map_or_else(
        || "none in flight".into(),
        |state| format!("the oldest in {state} for {}", seconds(clock.ns_since(op.since))),
    );
    let OpProgress { peer, channel, done, steps, posted, ready, transmitted, .. } = op;
    format!(
        "{way} rank {peer} of the communicator, channel {channel}: {done} of {steps} steps done, \
         {posted} posted, {ready} ready, {transmitted} transmitted; {state}"
    )
}

fn proxy_json(op: &OpProgress, clock: Clock) -> String {
    Json::object()
        .raw("is_send", op.is_send)
        .raw("comm_peer", op.peer)
        .raw("channel", op.channel)
        .raw("steps", op.steps)
        .raw("posted", op.posted)
        .raw("ready", op.ready)
        .raw("transmitted", op.transmitted)
        .raw("done", op.done)
        .maybe("state", state_name(op).as_deref())
        .raw("still_ns", clock.ns_since(op.since))
        .end()
}

fn thread_line(thread: &Thread) -> String {
    let Thread { now, span_ns, cpu_ns, delay_ns, .. } = thread;
    let role = thread.role.name();
    if thread.is_gone() {
        return format!("thread {} ({role}): gone", now.tid);
    }
    let place = if now.place.is_empty() { String::new() } else { format!(" in {}", now.place) };
    let work = match span_ns {
        0 => String::new(),
        _ => format!(
            "; in {} it ran for {} and waited for a processor for {}",
            seconds(*span_ns),
            seconds(*cpu_ns),
            seconds(*delay_ns)
        ),
    };
    let state = char::from(now.state);
    format!("thread {} {:?} ({role}): {state}{place}{work}", now.tid, now.name)
}

/// A duration such as `5.2 s` or `13 ms`.
fn seconds(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", decimal(ns)),
    }
}

/// Seconds with one decimal.
fn decimal(ns: u64) -> String {
    format!("{}.{}", ns / 1_000_000_000, ns / 100_000_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cuda::Device;
    use ncclscope_trace::{Comm, Handle, StrId};

    #[test]
    fn channels_are_named() {
        let names = |all: &[u32]| (channels(all.iter().copied()), numbers(all.iter().copied()));
        assert_eq!(names(&[]), (String::new(), String::new()));
        assert_eq!(names(&[0, 1, 2, 3, 7]), ("0-3, 7".into(), "0,1,2,3,7".into()));
        assert_eq!(names(&[1, 255]), ("1, 255".into(), "1,255".into()));
    }

    #[test]
    fn hangs_without_a_report_of_their_own_are_named_and_counted() {
        let own = OwnProcess::new("h", 7, None);
        let clock = Clock { now: 9, hz: 1 };
        let launch = None;
        let (func, ending, graph) = (StrId::NONE, None, false);
        let (handle, comm, lane, start, colls, p2ps) = (Handle::NULL, 9, 0, 0, 1, 2);
        let call = Call { handle, comm, lane, start, colls, p2ps, func, ending, launch, graph };
        let mut hang = own.blank(0, clock);
        (0..11).for_each(|_| hang.and(&own, &Subject::Call(call)));
        let lines = hang.lines();
        assert_eq!(
            lines.iter().filter(|line| line.contains("stuck: a call and 2 more")).count(),
            8
        );
        assert_eq!(lines.last().unwrap(), "  also stuck: 3 more");
        assert!(hang.json().contains(r#""limit_ns":null,"others":11"#), "{}", hang.json());
    }

    /// In all outputs, `rank` is the rank in the job.
    #[test]
    fn the_rank_in_the_job_and_that_in_the_communicator_are_two() {
        let mut own = OwnProcess::new("h", 7, Some(9));
        let name = Some("tp".into());
        let comm = Comm { index: 1, hash: 0x1f, name, rank: 3, ..Comm::default() };
        own.comm(&comm);
        own.device(
            1,
            Device { index: 5, name: None, pci: None, uuid: Some("GPU-4f".into()), driver: None },
        );
        let clock = Clock { now: 9, hz: 1 };
        let hang = Hang { still_ns: 301_234_567_890, ..own.blank(1, clock) };
        let json = hang.json();
        let says = [
            r#""schema":"ncclscope.hang/2""#,
            r#""still_ns":301234567890"#,
            r#""pid":7,"rank":9,"comm":"0x1f","comm_name":"tp","comm_rank":3,"nranks":null"#,
            r#""device":5,"device_pci":null,"device_uuid":"GPU-4f""#,
        ];
        says.into_iter().for_each(|says| assert!(json.contains(says), "{says}: {json}"));
        let retired = ["\"global_rank\"", "\"peer\"", "\"index\"", "_s\":"];
        retired.into_iter().for_each(|old| assert!(!json.contains(old), "{old}: {json}"));
        let text = hang.lines().concat();
        assert!(text.contains("has not moved for 301.2 s"), "{text}");
        assert!(text.contains("(host h, pid 7, rank 9 of the job"), "{text}");
    }
}
