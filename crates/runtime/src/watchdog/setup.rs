// SPDX-License-Identifier: Apache-2.0
/*!
Looks at a process whose application has not called NCCL for a while: is a thread of it in a
function that creates or ends a communicator? NCCL reports no event for these.

A look reads `/proc` ([`ncclscope_process`]), on a short-lived thread of its own, because files of
the host may be slow. Looks are rare: the first one in a pause is due after [`FIRST_NS`], or after
twice the longest pause that was looked at before, but at half the watchdog's limit in any case;
further ones when the pause has doubled, and from then on once in [`AGAIN_NS`].

Such a call that has not returned for the limit since a look first saw it is a hang like any other
([`Event::Hung`]). That a thread is still in it is seen by a look that begins then. The pause before
the first look does not count: the application may have computed, and begun the call just then. Nor
does time in which the process did not run.
*/

use super::clock::Clock;
use super::still;
use crate::sys::lock::Lock;
use crate::sys::thread::spawn_quiet;
use core::sync::atomic::{AtomicBool, Ordering};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use ncclscope_process::{Calls, Sockets, calls, sockets};
use ncclscope_trace::StrId;
use ncclscope_trace::progress::Setup;
use std::fmt::Display;
use std::path::Path;

/// Shorter pauses are not looked at, ns: communicators are created in less.
const FIRST_NS: u64 = 2_000_000_000;
/// The longest time between two looks in a pause, ns.
const AGAIN_NS: u64 = 60_000_000_000;
/// Maximum number of addresses that are named.
const NAMED: usize = 8;

static IS_LOOKING: AtomicBool = AtomicBool::new(false);
static SEEN: Lock<Option<Seen>> = Lock::new(None);

/// What a look saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The first thread that is in such a function, and the function.
    call: Option<(u32, &'static str)>,
    /// See [`Calls::is_partial`].
    is_partial: bool,
    connects: String,
    listens: String,
}

impl Seen {
    fn of(found: &Calls, sockets: &Sockets) -> Seen {
        Seen {
            call: found.calls.first().map(|call| (call.tid, call.function)),
            is_partial: found.is_partial,
            connects: list(sockets.connecting.iter()),
            listens: list(sockets.own_addresses().iter()),
        }
    }

    /// The record; `number` returns the string number of a text.
    pub(super) fn record(&self, ticks: u64, mut number: impl FnMut(&str) -> StrId) -> Setup {
        let mut text = |text: &str| if text.is_empty() { StrId::NONE } else { number(text) };
        let (tid, function) = self.call.unwrap_or_default();
        let (function, connects, listens) =
            (text(function), text(&self.connects), text(&self.listens));
        Setup { ticks, tid, function, connects, listens }
    }

    /// The thread and the function, and the sentence about a call that has not returned.
    pub(super) fn hang(&self, age_ns: u64) -> Option<(String, String)> {
        let (tid, function) = self.call?;
        Some((format!("{function} on thread {tid}"), self.line(age_ns)?))
    }

    /// The sentence about a call that has not returned for at least `age_ns`; `None` if there is
    /// none.
    fn line(&self, age_ns: u64) -> Option<String> {
        let (tid, function) = self.call?;
        let connects = match self.connects.as_str() {
            "" => String::new(),
            to => format!("; it connects to {to}, without an answer"),
        };
        Some(format!(
            "thread {tid} has been in {function} for at least {}{connects}",
            human::duration(to_f64(age_ns))
        ))
    }
}

/// What became of a call that creates or ends a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A thread has been in it for this many ns, which is the limit or more.
    Hung(Seen, u64),
    /// That call has returned.
    Over,
}

/// When to look.
#[derive(Debug, Default)]
pub(super) struct Setups {
    /// The number of calls ([`Counts::calls`]) of the communicators that live, and of all
    /// communicators so far, and since when, in ticks. The first alone is the same again after a
    /// communicator was created, used and destroyed.
    ///
    /// [`Counts::calls`]: ncclscope_recorder::call_counters::Counts::calls
    calls: (u64, u64),
    since: u64,
    /// The pause in which the next look is due, ns.
    due_ns: u64,
    /// The longest pause that was looked at, ns.
    longest_ns: u64,
    /// What the latest look of this pause saw.
    seen: Option<Seen>,
    /// When the call that it saw was first seen.
    first: Option<First>,
    /// The look under way, or the latest, began after that call had stood for the limit.
    is_late: bool,
    /// A hang was found in this pause, and its call has not returned.
    is_hung: bool,
}

/// When a call was first seen.
#[derive(Clone, Copy, Debug)]
struct First {
    /// In ticks.
    at: u64,
    /// The time that the watchdog had seen pass, ns.
    seen_ns: u64,
}

impl First {
    /// For how long the call has stood, without time in which the process did not run, ns.
    fn age_ns(self, clock: Clock, seen: still::Seen) -> u64 {
        clock.ns_since(self.at).min(seen.total().saturating_sub(self.seen_ns))
    }
}

impl Setups {
    /// Takes the number of calls and communicators so far; looks if that is due. Returns what a
    /// look saw that has ended, and a hang once the call that it saw has stood for `limit_ns`, or
    /// its end.
    pub(super) fn look(
        &mut self,
        calls: (u64, u64),
        (clock, seen): (Clock, still::Seen),
        limit_ns: Option<u64>,
    ) -> (Option<Seen>, Option<Event>) {
        let found = SEEN.lock().take();
        if calls != self.calls || self.since == 0 {
            return self.begin(calls, clock, limit_ns);
        }
        // A look that did not see all threads does not undo what one before it saw.
        let has_call = self.seen.as_ref().is_some_and(|seen| seen.call.is_some());
        let found = found.filter(|seen| seen.call.is_some() || !(seen.is_partial && has_call));
        if let Some(found) = &found {
            self.note(found.clone(), clock, seen);
        }
        let pause_ns = clock.ns_since(self.since);
        let age_ns = self.first.map(|first| first.age_ns(clock, seen));
        let event = found.as_ref().and_then(|found| self.event(found, age_ns.unwrap_or(0)));
        let left_ns = limit_ns.zip(age_ns).map(|(limit, age)| limit.saturating_sub(age));
        let is_due = pause_ns >= self.due_ns;
        if is_due {
            self.longest_ns = self.longest_ns.max(pause_ns);
            self.due_ns = pause_ns + pause_ns.min(AGAIN_NS);
        }
        // A look that began before the limit may still be under way: tried again until one begins.
        let is_beyond = left_ns == Some(0);
        if is_due || is_beyond && !self.is_late {
            self.is_late |= start() && is_beyond;
        }
        (found, event)
    }

    /// NCCL was called: what a look saw in the pause before says nothing about this one, and the
    /// call that it saw has returned.
    fn begin(
        &mut self,
        calls: (u64, u64),
        clock: Clock,
        limit_ns: Option<u64>,
    ) -> (Option<Seen>, Option<Event>) {
        let due_ns = FIRST_NS.max(self.longest_ns.saturating_mul(2));
        let due_ns = limit_ns.map_or(due_ns, |limit| due_ns.min((limit / 2).max(FIRST_NS)));
        let over = self.seen.take().filter(|seen| seen.call.is_some());
        let was_hung = self.is_hung;
        let longest_ns = self.longest_ns;
        *self = Setups { calls, since: clock.now, due_ns, longest_ns, ..Setups::default() };
        (over.map(|_| Seen::default()), was_hung.then_some(Event::Over))
    }

    /// Notes what a look saw. A call that it sees for the first time begins to age.
    fn note(&mut self, found: Seen, clock: Clock, seen: still::Seen) {
        if self.seen.as_ref().and_then(|before| before.call) != found.call {
            let first = First { at: clock.now, seen_ns: seen.total() };
            (self.first, self.is_late) = (found.call.map(|_| first), false);
        }
        self.seen = Some(found);
    }

    /// What a look shows that was noted: a call that stands for the limit is a hang once.
    fn event(&mut self, found: &Seen, age_ns: u64) -> Option<Event> {
        let is_in_it = found.call.is_some();
        let was_hung = self.is_hung;
        self.is_hung = is_in_it && (was_hung || self.is_late);
        match (was_hung, self.is_hung) {
            (false, true) => Some(Event::Hung(found.clone(), age_ns)),
            (true, false) => Some(Event::Over),
            _ => None,
        }
    }

    /// What the process is in, for a client that asks.
    pub(super) fn now(&self, clock: Clock) -> Option<String> {
        self.seen.as_ref()?.line(clock.ns_since(self.first?.at))
    }
}

/// Starts a look; false if one is in progress.
fn start() -> bool {
    if IS_LOOKING.swap(true, Ordering::AcqRel) {
        return false;
    }
    // What an earlier look saw must not be taken for what this one sees.
    *SEEN.lock() = None;
    let look = || {
        let own = Path::new("/proc/self");
        *SEEN.lock() = Some(Seen::of(&calls(own), &sockets(own)));
        IS_LOOKING.store(false, Ordering::Release);
    };
    let is_started = spawn_quiet("ncclscope/look", look).is_ok();
    if !is_started {
        IS_LOOKING.store(false, Ordering::Release);
    }
    is_started
}

fn list<T: Display>(all: impl Iterator<Item = T>) -> String {
    all.take(NAMED).map(|one| one.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_process::Call;

    const S: u64 = 1_000_000_000;

    /// A clock at this second, and a watchdog that saw `seen` seconds pass.
    fn at(second: u64, seen: u64) -> (Clock, still::Seen) {
        let mut passed = still::Seen::default();
        (0..=seen).for_each(|second| _ = passed.tick(second * S));
        (Clock { now: second * S, hz: S }, passed)
    }

    fn inside(function: &'static str) -> Seen {
        Seen { call: Some((7, function)), ..Seen::default() }
    }

    #[test]
    fn looks_are_due_ever_more_seldom_and_at_half_the_limit() {
        let mut setups = Setups::default();
        let mut due = |from: u64, until: u64, limit: u64| -> Vec<u64> {
            let mut look = |second: u64| {
                let before = setups.due_ns;
                setups.look((from, 1), at(second, second), Some(limit * S));
                before != setups.due_ns
            };
            look(from);
            (from + 1..=until).filter(|&second| look(second)).map(|second| second - from).collect()
        };
        assert_eq!(due(10, 40, 300), [2, 4, 8, 16]);
        assert!(due(100, 130, 300).is_empty(), "no longer than the pause before");
        assert_eq!(due(200, 330, 300), [32, 64, 124]);
        assert_eq!(due(400, 430, 20), [10, 20], "half the limit");
    }

    /// A look after the limit decides, and time in which the process was stopped does not count.
    #[test]
    fn a_call_that_stands_for_the_limit_is_a_hang_until_it_returns() {
        let mut setups = Setups::default();
        let mut look = |found: Seen, (clock, seen): (Clock, still::Seen)| {
            setups.note(found.clone(), clock, seen);
            let first = setups.first;
            let age = first.map_or(0, |first| first.age_ns(clock, seen));
            let event = setups.event(&found, age);
            setups.is_late |= age >= 10 * S;
            event
        };
        let init = || inside("ncclCommInitRank");
        assert_eq!(look(Seen::default(), at(40, 40)), None, "in no function of NCCL");
        assert_eq!(look(init(), at(41, 41)), None, "the pause before does not count");
        assert_eq!(look(init(), at(80, 45)), None, "it was stopped");
        assert_eq!(look(init(), at(90, 51)), None, "this look began before the limit");
        assert_eq!(look(init(), at(92, 53)), Some(Event::Hung(init(), 12 * S)));
        assert_eq!(look(init(), at(93, 54)), None, "once");
        assert_eq!(look(Seen::default(), at(94, 55)), Some(Event::Over));
        let end = || inside("ncclCommDestroy");
        assert_eq!(look(init(), at(100, 60)), None);
        assert_eq!(look(init(), at(111, 71)), None, "this look began before the limit");
        assert_eq!(look(end(), at(112, 72)), None, "the next function");
        assert_eq!(look(end(), at(122, 82)), None);
        assert_eq!(look(end(), at(123, 83)), Some(Event::Hung(end(), 11 * S)));
        let (clock, seen) = at(124, 84);
        let event = setups.look((5, 1), (clock, seen), Some(S)).1;
        assert_eq!(event, Some(Event::Over), "NCCL was called");
    }

    /// Each call is another one, although the calls of the living communicators are as many again.
    #[test]
    fn communicators_that_are_made_and_destroyed_in_turn_are_no_hang() {
        let mut setups = Setups::default();
        for round in 0..20 {
            let (clock, seen) = at(1 + 2 * round, 1 + 2 * round);
            setups.look((7, round), (clock, seen), Some(4 * S));
            setups.note(inside("ncclCommSplit"), clock, seen);
            let age = setups.first.map(|first| first.age_ns(clock, seen));
            assert_eq!((age, setups.is_late), (Some(0), false));
        }
    }

    #[test]
    fn a_call_is_told_once_with_its_sockets() {
        let calls = vec![Call { tid: 7, function: "ncclCommSplit" }];
        let calls = Calls { calls, is_partial: false };
        let connecting = ["10.0.0.3:99".parse().unwrap()].into();
        let listening = ["10.0.0.2:5".parse().unwrap(), "127.0.0.1:6".parse().unwrap()].into();
        let seen = Seen::of(&calls, &Sockets { listening, connecting });
        let line = seen.line(9 * S).unwrap();
        let text = "thread 7 has been in ncclCommSplit for at least 9.00 s; it connects to";
        assert!(line.starts_with(text), "{line}");
        assert!(line.ends_with("to 10.0.0.3:99, without an answer"), "{line}");
        assert_eq!(seen.listens, "10.0.0.2");
        let mut texts = Vec::new();
        let record = seen.record(5, |text| {
            texts.push(text.to_owned());
            StrId(u16::try_from(texts.len()).unwrap())
        });
        assert_eq!(texts, ["ncclCommSplit", "10.0.0.3:99", "10.0.0.2"]);
        assert_eq!((record.tid, record.function, record.listens), (7, StrId(1), StrId(3)));
        let none = Seen::of(&Calls::default(), &Sockets::default());
        assert_eq!(none.line(9 * S), None);
        assert_eq!(none.record(5, |_| StrId(9)).function, StrId::NONE);
    }
}
