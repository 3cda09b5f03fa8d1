// SPDX-License-Identifier: Apache-2.0
/*!
When operations are recorded: from when on, until when, and every how many-th.

A request is words of the form `NAME=VALUE`: `for=500ms`, `steps=10`, `at=1790857026.5`,
`sample=16`. What it means is worked out here; who asks for the time, and who opens and shuts the
gate, is [`crate::Runtime`].
*/

use std::time::Duration;

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

/// What is to happen, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    waiting: Option<Request>,
    end: Option<Moment>,
    settle: Option<u64>,
    step: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    At(u64),
    Step(u64),
}

impl Schedule {
    pub(crate) const fn new() -> Schedule {
        Schedule { waiting: None, end: None, settle: None, step: 0 }
    }

    /// Takes a request at `now` (ns, as all times here), in place of any before it.
    pub(crate) fn request(
        &mut self,
        request: Request,
        now: u64,
    ) -> Result<Option<Turn>, &'static str> {
        let latest = now.saturating_add(ns(FURTHEST));
        if request.at.is_some_and(|at| at > latest) {
            return Err("at= is more than a week away");
        }
        self.waiting = Some(request);
        let begins_with_a_step = request.at.is_none() && matches!(request.end, End::Steps(_));
        Ok(if begins_with_a_step { None } else { self.due(now) })
    }

    /// Somebody says stop.
    pub(crate) fn stop(&mut self, now: u64) -> Turn {
        self.waiting = None;
        self.end = None;
        self.settle = Some(now.saturating_add(ns(SETTLES_AFTER)));
        Turn::Stop
    }

    /// A training step begins.
    pub(crate) fn step(&mut self, step: u64, now: u64) -> Option<Turn> {
        self.step = step;
        let waits = self.waiting.is_some_and(|request| request.at.is_none());
        if waits {
            return self.begin(now);
        }
        match self.end {
            Some(Moment::Step(last)) if step >= last => Some(self.stop(now)),
            _ => None,
        }
    }

    /// What the time brings.
    pub(crate) fn due(&mut self, now: u64) -> Option<Turn> {
        if self.next() > Some(now) {
            return None;
        }
        if let Some(request) = self.waiting {
            let waits_for_step = request.at.is_none() && matches!(request.end, End::Steps(_));
            if !waits_for_step && request.at.is_none_or(|at| at <= now) {
                return self.begin(now);
            }
        }
        if matches!(self.end, Some(Moment::At(end)) if end <= now) {
            return Some(self.stop(now));
        }
        if self.settle.is_some_and(|settle| settle <= now) {
            self.settle = None;
            return Some(Turn::Settle);
        }
        None
    }

    /// When [`Schedule::due`] will bring something; steps aside.
    pub(crate) fn next(&self) -> Option<u64> {
        let begin = self.waiting.and_then(|request| match (request.at, request.end) {
            (None, End::Steps(_)) => None,
            (at, _) => Some(at.unwrap_or(0)),
        });
        let end = match self.end {
            Some(Moment::At(end)) => Some(end),
            _ => None,
        };
        [begin, end, self.settle].into_iter().flatten().min()
    }

    /// True while a request waits for its time or its step.
    pub(crate) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    fn begin(&mut self, now: u64) -> Option<Turn> {
        let request = self.waiting.take()?;
        self.end = match request.end {
            End::Open => None,
            // From the time that all hosts agreed on, however late this one looks.
            End::After(length) => {
                Some(Moment::At(request.at.unwrap_or(now).saturating_add(ns(length))))
            }
            End::Steps(steps) => Some(Moment::Step(self.step.saturating_add(steps))),
        };
        self.settle = None;
        Some(Turn::Start { sample: request.sample })
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const START: Option<Turn> = Some(Turn::Start { sample: 1 });

    fn asked(text: &str, now: u64) -> (Schedule, Option<Turn>) {
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
        let (mut schedule, turn) = asked("for=2s", 5 * S);
        assert_eq!((turn, schedule.next()), (START, Some(7 * S)));
        assert_eq!(schedule.due(7 * S - 1), None);
        assert_eq!(schedule.due(7 * S), Some(Turn::Stop));
        assert_eq!((schedule.due(16 * S), schedule.due(17 * S)), (None, Some(Turn::Settle)));
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn hosts_that_look_late_end_together() {
        let (mut schedule, turn) = asked("at=10 for=2s", 5 * S);
        assert_eq!((turn, schedule.next()), (None, Some(10 * S)));
        assert_eq!(schedule.due(11 * S), START);
        assert_eq!(schedule.next(), Some(12 * S));
        assert!(Schedule::new().request(Request::parse("at=10000000").unwrap(), S).is_err());
        let (mut past, turn) = asked("at=1 for=2s", 5 * S);
        assert_eq!((turn, past.due(5 * S)), (START, Some(Turn::Stop)));
    }

    #[test]
    fn a_window_of_steps() {
        let (mut schedule, turn) = asked("steps=2", 5 * S);
        assert_eq!((turn, schedule.due(9 * S), schedule.next()), (None, None, None));
        assert_eq!(schedule.step(40, 10 * S), START);
        assert_eq!(schedule.step(41, 11 * S), None);
        assert_eq!(schedule.step(42, 12 * S), Some(Turn::Stop));
        assert_eq!(schedule.step(43, 13 * S), None);
        let (mut schedule, _) = asked("at=10 steps=1", 5 * S);
        assert_eq!(schedule.step(7, 6 * S), None, "its time has not come");
        assert_eq!((schedule.due(10 * S), schedule.step(8, 11 * S)), (START, Some(Turn::Stop)));
    }

    #[test]
    fn a_later_word_wins() {
        let (mut schedule, _) = asked("for=2s", 0);
        assert_eq!(schedule.request(Request::default(), S), Ok(START));
        assert_eq!(schedule.due(60 * S), None, "it has no end any more");
        assert_eq!(schedule.stop(61 * S), Turn::Stop);
        assert_eq!(schedule.request(Request::default(), 62 * S), Ok(START));
        assert_eq!(schedule.due(100 * S), None, "what was started again does not settle");
    }
}
