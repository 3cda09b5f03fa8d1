// SPDX-License-Identifier: Apache-2.0
/*!
When operations are recorded: from when on, until when, and every how many-th.

A request is words of the form `NAME=VALUE`: `for=500ms`, `steps=10`, `at=1790857026.5`,
`sample=16`. What it means is worked out here; who opens and shuts the gate is [`crate::Runtime`].

Lengths go by the monotonic clock. The time of day, which may be set at any time, only says what
moment `at` is, when the request comes.
*/

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long after a window's end its operations may start children of their own: see
/// [`ncclscope_recorder::gate`].
const SETTLES_AFTER: Duration = Duration::from_secs(10);
/// A window does not begin later than this from now: a mistaken unit, most likely.
const FURTHEST: Duration = Duration::from_secs(7 * 86_400);

/// What somebody wants recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it begins, `CLOCK_REALTIME` in ns; `None` at once, or, with [`End::Steps`], with the
    /// next training step.
    pub at: Option<u64>,
    /// When it ends.
    pub end: End,
    /// Every how many-th operation is recorded; 1 is each.
    pub sample: u32,
}

/// When a window ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// When somebody says so.
    Open,
    /// So long after it began.
    After(Duration),
    /// So many training steps after it began.
    Steps(u64),
}

impl Default for Request {
    fn default() -> Request {
        Request { at: None, end: End::Open, sample: 1 }
    }
}

impl Request {
    /// Reads a request; an empty one is [`Request::default`].
    ///
    /// # Errors
    /// A sentence that names the word and what it may be.
    pub fn parse(text: &str) -> Result<Request, String> {
        let mut request = Request::default();
        for word in text.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let bad = |expected: &str| format!("{word}: expected {expected}");
            match name {
                "for" => {
                    let length = duration(value).filter(|d| !d.is_zero());
                    let length = length.ok_or_else(|| bad("for=10s, for=500ms or for=2m"))?;
                    request.end = End::After(length);
                }
                "steps" => {
                    let steps = value.parse().ok().filter(|&n| n > 0);
                    request.end = End::Steps(steps.ok_or_else(|| bad("steps=10"))?);
                }
                "at" => {
                    let at = duration(value).and_then(|d| u64::try_from(d.as_nanos()).ok());
                    let at =
                        at.ok_or_else(|| bad("at=SECONDS since 1970, such as 1790857026.5"))?;
                    request.at = Some(at);
                }
                "sample" => {
                    let value = value.strip_prefix("1/").unwrap_or(value);
                    let sample = value.parse().ok().filter(|&n| n > 0);
                    request.sample = sample.ok_or_else(|| bad("sample=16 or sample=1/16"))?;
                }
                _ => return Err(bad("for=, steps=, at= or sample=")),
            }
        }
        Ok(request)
    }
}

/// `10s`, `1.5s`, `500ms`, `2m`, `1h`; a bare number is seconds.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let unit = text.get(digits.len()..)?;
    let number: Decimal = digits.parse().ok()?;
    let ns_per_unit = match unit {
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    number.times(ns_per_unit).map(Duration::from_nanos)
}

/// A decimal number as it is written: times since 1970 have more digits than an `f64`.
struct Decimal {
    whole: u64,
    billionths: u64,
}

impl std::str::FromStr for Decimal {
    type Err = ();

    fn from_str(text: &str) -> Result<Decimal, ()> {
        let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || rest.len() > 9 || !is_number(whole) || !is_number(rest) {
            return Err(());
        }
        let billionths = format!("{rest:0<9}").parse().map_err(drop)?;
        Ok(Decimal { whole: whole.parse().map_err(drop)?, billionths })
    }
}

impl Decimal {
    fn times(&self, factor: u64) -> Option<u64> {
        let part = u128::from(self.billionths) * u128::from(factor) / 1_000_000_000;
        self.whole.checked_mul(factor)?.checked_add(u64::try_from(part).ok()?)
    }
}

/// A moment by both clocks, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    /// Since some moment in the past; never set.
    pub(crate) monotonic: i64,
    /// Since 1970.
    pub(crate) realtime: i64,
}

impl Now {
    /// Asks both.
    pub(crate) fn read() -> Now {
        let realtime = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let monotonic = ncclscope_recorder::clock::now_ns();
        Now { monotonic: i64::try_from(monotonic).unwrap_or(i64::MAX), realtime: ns(realtime) }
    }

    /// A time of day as the monotonic clock will have it, or had it.
    fn monotonic_of(self, at: u64) -> i64 {
        let away = i64::try_from(at).unwrap_or(i64::MAX).saturating_sub(self.realtime);
        self.monotonic.saturating_add(away)
    }
}

/// What happens now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Operations are recorded from here on, every `sample`-th.
    Start { sample: u32 },
    /// No operation is recorded from here on.
    Stop,
    /// Nothing begins any more.
    Settle,
}

/// What is to happen, and when: ns of the monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    waiting: Option<Waiting>,
    end: Option<Moment>,
    settle: Option<i64>,
    step: u64,
}

/// A window that has not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    /// `None`: with the next training step.
    begin: Option<i64>,
    end: End,
    sample: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    At(i64),
    Step(u64),
}

impl Schedule {
    pub(crate) const fn new() -> Schedule {
        Schedule { waiting: None, end: None, settle: None, step: 0 }
    }

    /// Takes a request in place of any before it.
    pub(crate) fn request(
        &mut self,
        request: Request,
        now: Now,
    ) -> Result<Option<Turn>, &'static str> {
        let begin = match (request.at, request.end) {
            (Some(at), _) => Some(now.monotonic_of(at)),
            (None, End::Steps(_)) => None,
            (None, _) => Some(now.monotonic),
        };
        let latest = now.monotonic.saturating_add(ns(FURTHEST));
        if begin.is_some_and(|begin| begin > latest) {
            return Err("at= is more than a week away");
        }
        self.waiting = Some(Waiting { begin, end: request.end, sample: request.sample });
        Ok(begin.and_then(|_| self.due(now)))
    }

    /// Somebody says stop.
    pub(crate) fn stop(&mut self, now: Now) -> Turn {
        self.waiting = None;
        self.end = None;
        self.settle = Some(now.monotonic.saturating_add(ns(SETTLES_AFTER)));
        Turn::Stop
    }

    /// A training step begins.
    pub(crate) fn step(&mut self, step: u64, now: Now) -> Option<Turn> {
        self.step = step;
        if let Some(window) = self.waiting.filter(|window| window.begin.is_none()) {
            return Some(self.begin(window, now.monotonic));
        }
        match self.end {
            Some(Moment::Step(last)) if step >= last => Some(self.stop(now)),
            _ => None,
        }
    }

    /// What the time brings.
    pub(crate) fn due(&mut self, now: Now) -> Option<Turn> {
        if let Some(window) = self.waiting
            && let Some(begin) = window.begin.filter(|&begin| begin <= now.monotonic)
        {
            return Some(self.begin(window, begin));
        }
        if matches!(self.end, Some(Moment::At(end)) if end <= now.monotonic) {
            return Some(self.stop(now));
        }
        if self.settle.is_some_and(|settle| settle <= now.monotonic) {
            self.settle = None;
            return Some(Turn::Settle);
        }
        None
    }

    /// How long until [`Schedule::due`] will bring something; steps aside.
    pub(crate) fn wait(&self, now: Now) -> Option<Duration> {
        let begin = self.waiting.and_then(|window| window.begin);
        let end = match self.end {
            Some(Moment::At(end)) => Some(end),
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

    /// Begins a window. A length counts from the time that all hosts agreed on, however late this
    /// one looks.
    fn begin(&mut self, window: Waiting, since: i64) -> Turn {
        self.waiting = None;
        self.end = match window.end {
            End::Open => None,
            End::After(length) => Some(Moment::At(since.saturating_add(ns(length)))),
            End::Steps(steps) => Some(Moment::Step(self.step.saturating_add(steps))),
        };
        self.settle = None;
        Turn::Start { sample: window.sample }
    }
}

fn ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const START: Option<Turn> = Some(Turn::Start { sample: 1 });

    /// A moment of a machine that came up 1000 s after 1970.
    fn at(monotonic: i64) -> Now {
        Now { monotonic, realtime: monotonic + 1000 * S }
    }

    /// ns until the next turn.
    fn wait(schedule: &Schedule, now: i64) -> Option<i64> {
        schedule.wait(at(now)).map(ns)
    }

    fn asked(text: &str, now: Now) -> (Schedule, Option<Turn>) {
        let mut schedule = Schedule::new();
        let turn = schedule.request(Request::parse(text).unwrap(), now).unwrap();
        (schedule, turn)
    }

    #[test]
    fn words_are_understood() {
        let request = |text| Request::parse(text).unwrap();
        assert_eq!(request(""), Request::default());
        let ms = |n| End::After(Duration::from_millis(n));
        assert_eq!(request("for=10s").end, ms(10_000));
        assert_eq!(request("for=1.5").end, ms(1500));
        assert_eq!(request("for=500ms").end, ms(500));
        assert_eq!(request("for=0.25h").end, ms(900_000));
        assert_eq!(
            request("steps=3 sample=1/16"),
            Request { at: None, end: End::Steps(3), sample: 16 }
        );
        assert_eq!(request("at=1790857026.000000001").at, Some(1_790_857_026_000_000_001));
        for bad in ["for", "for=0", "for=-1s", "for=5d", "steps=0", "sample=0", "at=soon", "x=1"] {
            let line = Request::parse(bad).unwrap_err();
            assert!(line.starts_with(bad), "{line}");
        }
    }

    #[test]
    fn a_window_by_time() {
        let (mut schedule, turn) = asked("for=2s", at(5 * S));
        assert_eq!((turn, wait(&schedule, 5 * S)), (START, Some(2 * S)));
        assert_eq!(schedule.due(at(7 * S - 1)), None);
        assert_eq!(schedule.due(at(7 * S)), Some(Turn::Stop));
        assert_eq!(wait(&schedule, 7 * S), Some(10 * S));
        let late = [schedule.due(at(16 * S)), schedule.due(at(17 * S))];
        assert_eq!((late, wait(&schedule, 17 * S)), ([None, Some(Turn::Settle)], None));
    }

    #[test]
    fn hosts_that_look_late_end_together() {
        let (mut schedule, turn) = asked("at=1010 for=2s", at(5 * S));
        assert_eq!((turn, wait(&schedule, 5 * S)), (None, Some(5 * S)));
        assert_eq!(schedule.due(at(11 * S)), START);
        assert_eq!(wait(&schedule, 11 * S), Some(S));
        assert!(Schedule::new().request(Request::parse("at=10000000").unwrap(), at(S)).is_err());
        // Long before the machine came up.
        let (mut past, turn) = asked("at=1 for=2s", at(5 * S));
        assert_eq!((turn, past.due(at(5 * S))), (START, Some(Turn::Stop)));
        let (mut past, turn) = asked("at=1 for=1005s", at(5 * S));
        assert_eq!((turn, wait(&past, 5 * S)), (START, Some(S)));
        assert_eq!(past.due(at(6 * S)), Some(Turn::Stop));
    }

    #[test]
    fn setting_the_time_of_day_moves_nothing() {
        for hour in [3600 * S, -3600 * S] {
            let set = |monotonic: i64| Now { realtime: monotonic + hour, monotonic };
            let (mut schedule, turn) = asked("for=2s", at(5 * S));
            assert_eq!((turn, schedule.due(set(6 * S))), (START, None));
            assert_eq!(schedule.wait(set(6 * S)), Some(Duration::from_secs(1)));
            assert_eq!(schedule.due(set(7 * S)), Some(Turn::Stop));
            let settles = [schedule.due(set(17 * S - 1)), schedule.due(set(17 * S))];
            assert_eq!(settles, [None, Some(Turn::Settle)]);
            // A moment is what it was when it was asked for.
            let (mut schedule, turn) = asked("at=1010 for=2s", at(5 * S));
            assert_eq!((turn, schedule.due(set(9 * S))), (None, None));
            assert_eq!(schedule.due(set(10 * S)), START);
            assert_eq!(schedule.due(set(12 * S)), Some(Turn::Stop));
        }
    }

    #[test]
    fn a_window_of_steps() {
        let (mut schedule, turn) = asked("steps=2", at(5 * S));
        assert_eq!((turn, schedule.due(at(9 * S)), wait(&schedule, 9 * S)), (None, None, None));
        assert_eq!(schedule.step(40, at(10 * S)), START);
        assert_eq!(schedule.step(41, at(11 * S)), None);
        assert_eq!(schedule.step(42, at(12 * S)), Some(Turn::Stop));
        assert_eq!(schedule.step(43, at(13 * S)), None);
        let (mut schedule, _) = asked("at=1010 steps=1", at(5 * S));
        assert_eq!(schedule.step(7, at(6 * S)), None, "its time has not come");
        let turns = (schedule.due(at(10 * S)), schedule.step(8, at(11 * S)));
        assert_eq!(turns, (START, Some(Turn::Stop)));
    }

    #[test]
    fn a_later_word_wins() {
        let (mut schedule, _) = asked("for=2s", at(0));
        assert_eq!(schedule.request(Request::default(), at(S)), Ok(START));
        assert_eq!(schedule.due(at(60 * S)), None, "it has no end any more");
        assert_eq!(schedule.stop(at(61 * S)), Turn::Stop);
        assert_eq!(schedule.request(Request::default(), at(62 * S)), Ok(START));
        assert_eq!(schedule.due(at(100 * S)), None, "what was started again does not settle");
    }
}
