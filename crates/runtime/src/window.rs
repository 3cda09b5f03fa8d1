// SPDX-License-Identifier: Apache-2.0
/*!
When a window of recording opens and closes. [`ncclscope_control::window`] defines windows and how
they are written; [`crate::Runtime`] opens and shuts the gate.

Lengths are measured by the monotonic clock. The time of day may be set at any time; it is used only
once, when the request comes, to convert `at`.
*/

use ncclscope_control::message::{Boundary, WindowState};
use ncclscope_control::window::{RecordingWindow, WindowEnd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// For this long after a window's end, its operations may still start children: see
/// [`ncclscope_recorder::gate`].
const SETTLES_AFTER: Duration = Duration::from_secs(10);
/// Maximum time until a window begins; more is most likely a mistake in the unit.
const FURTHEST: Duration = Duration::from_secs(7 * 86_400);

/// The readings of both clocks at one moment, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockReading {
    /// The monotonic clock: time since an arbitrary moment; never set.
    pub(crate) monotonic: i64,
    /// The realtime clock: time since 1970.
    pub(crate) realtime: i64,
}

impl ClockReading {
    pub(crate) fn read() -> ClockReading {
        let realtime = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let monotonic = ncclscope_recorder::clock::now_ns();
        ClockReading {
            monotonic: i64::try_from(monotonic).unwrap_or(i64::MAX),
            realtime: ns(realtime),
        }
    }

    /// Converts a time of day to the monotonic clock.
    fn monotonic_of(self, at: u64) -> i64 {
        let away = i64::try_from(at).unwrap_or(i64::MAX).saturating_sub(self.realtime);
        self.monotonic.saturating_add(away)
    }

    /// Converts a time of the monotonic clock to time of day.
    fn realtime_of(self, at: i64) -> u64 {
        let away = at.saturating_sub(self.monotonic);
        u64::try_from(self.realtime.saturating_add(away)).unwrap_or(0)
    }
}

/// What to do with the gate now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GateAction {
    /// Record new operations, one in `sample`.
    Start { sample: u32 },
    /// Record no new operations.
    Stop,
    /// Record no new events at all, except the ends of open ones.
    Settle,
}

/// The requested windows; times in ns of the monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    waiting: Option<PendingWindow>,
    end: Option<WindowEndsAt>,
    settle: Option<i64>,
    step: u64,
    sample: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PendingWindow {
    /// When the window begins; `None`: with the next training step.
    begin: Option<i64>,
    end: WindowEnd,
    sample: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WindowEndsAt {
    At(i64),
    Step(u64),
}

impl Schedule {
    pub(crate) const fn new() -> Schedule {
        Schedule { waiting: None, end: None, settle: None, step: 0, sample: 1 }
    }

    /// Requests a window, which replaces any earlier one.
    pub(crate) fn request(
        &mut self,
        window: RecordingWindow,
        now: ClockReading,
    ) -> Result<Option<GateAction>, &'static str> {
        let begin = match (window.at, window.end) {
            (Some(at), _) => Some(now.monotonic_of(at)),
            (None, WindowEnd::Steps(_)) => None,
            (None, _) => Some(now.monotonic),
        };
        let latest = now.monotonic.saturating_add(ns(FURTHEST));
        if begin.is_some_and(|begin| begin > latest) {
            return Err("at= is more than a week away");
        }
        self.waiting = Some(PendingWindow { begin, end: window.end, sample: window.sample });
        Ok(begin.and_then(|_| self.due(now)))
    }

    /// Handles a request to stop.
    pub(crate) fn stop(&mut self, now: ClockReading) -> GateAction {
        self.waiting = None;
        self.end = None;
        self.settle = Some(now.monotonic.saturating_add(ns(SETTLES_AFTER)));
        GateAction::Stop
    }

    /// Handles the beginning of a training step.
    pub(crate) fn step(&mut self, step: u64, now: ClockReading) -> Option<GateAction> {
        self.step = step;
        if let Some(window) = self.waiting.filter(|window| window.begin.is_none()) {
            return Some(self.begin(window, now.monotonic));
        }
        match self.end {
            Some(WindowEndsAt::Step(last)) if step >= last => Some(self.stop(now)),
            _ => None,
        }
    }

    /// The action that is due at `now`: the beginning or the end of a window.
    pub(crate) fn due(&mut self, now: ClockReading) -> Option<GateAction> {
        if let Some(window) = self.waiting
            && let Some(begin) = window.begin.filter(|&begin| begin <= now.monotonic)
        {
            return Some(self.begin(window, begin));
        }
        if matches!(self.end, Some(WindowEndsAt::At(end)) if end <= now.monotonic) {
            return Some(self.stop(now));
        }
        if self.settle.is_some_and(|settle| settle <= now.monotonic) {
            self.settle = None;
            return Some(GateAction::Settle);
        }
        None
    }

    /// Time until [`Schedule::due`] will return an action; ignores windows that wait for a step.
    pub(crate) fn wait(&self, now: ClockReading) -> Option<Duration> {
        let begin = self.waiting.and_then(|window| window.begin);
        let end = match self.end {
            Some(WindowEndsAt::At(end)) => Some(end),
            _ => None,
        };
        let next = [begin, end, self.settle].into_iter().flatten().min()?;
        let wait = next.saturating_sub(now.monotonic);
        Some(Duration::from_nanos(u64::try_from(wait).unwrap_or(0)))
    }

    /// True while a request waits for its time or its step.
    pub(crate) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// The state of the waiting window, else of the open one.
    pub(crate) fn state(&self, now: ClockReading) -> WindowState {
        if let Some(window) = self.waiting {
            let ends = match (window.end, window.begin) {
                (WindowEnd::Open, _) | (WindowEnd::After(_), None) => None,
                (WindowEnd::Steps(steps), _) => Some(Boundary::Steps(steps)),
                (WindowEnd::After(length), Some(begin)) => {
                    Some(Boundary::Time(now.realtime_of(begin.saturating_add(ns(length)))))
                }
            };
            let begins = window.begin.map(|begin| Boundary::Time(now.realtime_of(begin)));
            let begins = begins.or(Some(Boundary::Steps(0)));
            return WindowState { begins, ends, sample: window.sample };
        }
        let ends = self.end.map(|end| match end {
            WindowEndsAt::At(at) => Boundary::Time(now.realtime_of(at)),
            WindowEndsAt::Step(step) => Boundary::Step(step),
        });
        WindowState { begins: None, ends, sample: self.sample }
    }

    /// Begins a window. Its length counts from the time that all hosts agreed on, even if this host
    /// is late.
    fn begin(&mut self, window: PendingWindow, since: i64) -> GateAction {
        self.waiting = None;
        self.end = match window.end {
            WindowEnd::Open => None,
            WindowEnd::After(length) => Some(WindowEndsAt::At(since.saturating_add(ns(length)))),
            WindowEnd::Steps(steps) => Some(WindowEndsAt::Step(self.step.saturating_add(steps))),
        };
        self.settle = None;
        self.sample = window.sample;
        GateAction::Start { sample: window.sample }
    }
}

fn ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const START: Option<GateAction> = Some(GateAction::Start { sample: 1 });

    /// Clock readings of a machine that was started 1000 s after 1970.
    fn at(monotonic: i64) -> ClockReading {
        ClockReading { monotonic, realtime: monotonic + 1000 * S }
    }

    /// Nanoseconds until the next action.
    fn wait(schedule: &Schedule, now: i64) -> Option<i64> {
        schedule.wait(at(now)).map(ns)
    }

    fn asked(text: &str, now: ClockReading) -> (Schedule, Option<GateAction>) {
        let mut schedule = Schedule::new();
        let turn = schedule.request(RecordingWindow::parse(text).unwrap(), now).unwrap();
        (schedule, turn)
    }

    #[test]
    fn a_window_by_time() {
        let (mut schedule, turn) = asked("for=2s", at(5 * S));
        assert_eq!((turn, wait(&schedule, 5 * S)), (START, Some(2 * S)));
        assert_eq!(schedule.due(at(7 * S - 1)), None);
        assert_eq!(schedule.due(at(7 * S)), Some(GateAction::Stop));
        assert_eq!(wait(&schedule, 7 * S), Some(10 * S));
        let late = [schedule.due(at(16 * S)), schedule.due(at(17 * S))];
        assert_eq!((late, wait(&schedule, 17 * S)), ([None, Some(GateAction::Settle)], None));
    }

    #[test]
    fn hosts_that_look_late_end_together() {
        let (mut schedule, turn) = asked("at=1010 for=2s", at(5 * S));
        assert_eq!((turn, wait(&schedule, 5 * S)), (None, Some(5 * S)));
        assert_eq!(schedule.due(at(11 * S)), START);
        assert_eq!(wait(&schedule, 11 * S), Some(S));
        assert!(
            Schedule::new().request(RecordingWindow::parse("at=10000000").unwrap(), at(S)).is_err()
        );
        // Long before the machine was started.
        let (mut past, turn) = asked("at=1 for=2s", at(5 * S));
        assert_eq!((turn, past.due(at(5 * S))), (START, Some(GateAction::Stop)));
        let (mut past, turn) = asked("at=1 for=1005s", at(5 * S));
        assert_eq!((turn, wait(&past, 5 * S)), (START, Some(S)));
        assert_eq!(past.due(at(6 * S)), Some(GateAction::Stop));
    }

    #[test]
    fn setting_the_time_of_day_moves_nothing() {
        for hour in [3600 * S, -3600 * S] {
            let set = |monotonic: i64| ClockReading { realtime: monotonic + hour, monotonic };
            let (mut schedule, turn) = asked("for=2s", at(5 * S));
            assert_eq!((turn, schedule.due(set(6 * S))), (START, None));
            assert_eq!(schedule.wait(set(6 * S)), Some(Duration::from_secs(1)));
            assert_eq!(schedule.due(set(7 * S)), Some(GateAction::Stop));
            let settles = [schedule.due(set(17 * S - 1)), schedule.due(set(17 * S))];
            assert_eq!(settles, [None, Some(GateAction::Settle)]);
            // The start stays at the moment that was requested.
            let (mut schedule, turn) = asked("at=1010 for=2s", at(5 * S));
            assert_eq!((turn, schedule.due(set(9 * S))), (None, None));
            assert_eq!(schedule.due(set(10 * S)), START);
            assert_eq!(schedule.due(set(12 * S)), Some(GateAction::Stop));
        }
    }

    #[test]
    fn a_window_of_steps() {
        let (mut schedule, turn) = asked("steps=2", at(5 * S));
        assert_eq!((turn, schedule.due(at(9 * S)), wait(&schedule, 9 * S)), (None, None, None));
        assert_eq!(schedule.step(40, at(10 * S)), START);
        assert_eq!(schedule.step(41, at(11 * S)), None);
        assert_eq!(schedule.step(42, at(12 * S)), Some(GateAction::Stop));
        assert_eq!(schedule.step(43, at(13 * S)), None);
        let (mut schedule, _) = asked("at=1010 steps=1", at(5 * S));
        assert_eq!(schedule.step(7, at(6 * S)), None, "its time has not come");
        let turns = (schedule.due(at(10 * S)), schedule.step(8, at(11 * S)));
        assert_eq!(turns, (START, Some(GateAction::Stop)));
    }

    #[test]
    fn the_window_says_when_it_begins_and_ends() {
        let time = |ns: i64| Some(Boundary::Time(u64::try_from(1000 * S + ns).unwrap()));
        let (mut schedule, _) = asked("at=1010 for=2s sample=4", at(5 * S));
        let waiting = WindowState { begins: time(10 * S), ends: time(12 * S), sample: 4 };
        assert_eq!(schedule.state(at(6 * S)), waiting);
        schedule.due(at(10 * S));
        assert_eq!(schedule.state(at(11 * S)), WindowState { begins: None, ..waiting });
        let (mut schedule, _) = asked("steps=2", at(5 * S));
        let (begins, ends) = (Some(Boundary::Steps(0)), Some(Boundary::Steps(2)));
        assert_eq!(schedule.state(at(6 * S)), WindowState { begins, ends, sample: 1 });
        schedule.step(40, at(10 * S));
        let ends = Some(Boundary::Step(42));
        assert_eq!(schedule.state(at(11 * S)), WindowState { begins: None, ends, sample: 1 });
        schedule.step(42, at(12 * S));
        assert_eq!(schedule.state(at(13 * S)), WindowState::default());
    }

    #[test]
    fn a_later_word_wins() {
        let (mut schedule, _) = asked("for=2s", at(0));
        assert_eq!(schedule.request(RecordingWindow::default(), at(S)), Ok(START));
        assert_eq!(schedule.due(at(60 * S)), None, "it has no end any more");
        assert_eq!(schedule.stop(at(61 * S)), GateAction::Stop);
        assert_eq!(schedule.request(RecordingWindow::default(), at(62 * S)), Ok(START));
        assert_eq!(schedule.due(at(100 * S)), None, "what was started again does not settle");
    }
}
