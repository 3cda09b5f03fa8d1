// SPDX-License-Identifier: Apache-2.0
//! One event of a trace, and the choice of events that are parsed.

use crate::beside;
use memchr::memmem::Finder;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// Key in `args` of the number that connects CPU operations with the kernels that they launched.
pub(crate) const EXTERNAL_ID: &str = "External id";

/// Part of the name of our tracks' process.
pub(crate) const LANES: &str = "(ncclscope)";

/// The fields of an event that are used. Times are ns since the trace's base.
#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    #[serde(default)]
    pub(crate) ph: String,
    #[serde(default)]
    pub(crate) cat: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) pid: Value,
    #[serde(default)]
    pub(crate) tid: Value,
    #[serde(default, deserialize_with = "nanoseconds")]
    pub(crate) ts: Option<i64>,
    #[serde(default, deserialize_with = "nanoseconds")]
    pub(crate) dur: Option<i64>,
    #[serde(default)]
    pub(crate) args: Map<String, Value>,
}

impl Event {
    pub(crate) fn parse(bytes: &[u8]) -> serde_json::Result<Event> {
        serde_json::from_slice(bytes)
    }

    /// Whether it names the process of our tracks.
    pub(crate) fn is_process_of_ours(&self) -> bool {
        let name = self.args.get("name").and_then(Value::as_str);
        self.name == "process_name" && name.is_some_and(|name| name.contains(LANES))
    }

    /// A number among its args.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.args.get(key)?.as_u64()
    }

    /// Its process and thread; 0 if they are not numbers, as for rows that are not threads.
    pub(crate) fn thread(&self) -> (u64, u64) {
        (self.pid.as_u64().unwrap_or(0), self.tid.as_u64().unwrap_or(0))
    }

    pub(crate) fn is_nccl_kernel(&self) -> bool {
        self.is_kernel() && self.name.starts_with("nccl")
    }

    pub(crate) fn is_kernel(&self) -> bool {
        self.cat.eq_ignore_ascii_case("kernel")
    }

    /// Whether it is what PyTorch notes around a call of NCCL, `nccl:all_reduce`; `nccl2:` and
    /// `ncclx:` are those of other backends.
    pub(crate) fn is_annotation(&self) -> bool {
        ["nccl:", "nccl2:", "ncclx:"].iter().any(|prefix| self.name.starts_with(prefix))
    }

    /// Whether it is the launch of a single kernel. The launch of a graph does not show when NCCL
    /// was called.
    pub(crate) fn is_kernel_launch(&self) -> bool {
        matches!(self.cat.as_str(), "cuda_runtime" | "cuda_driver")
            && self.name.contains("LaunchKernel")
    }
}

/// Parses microseconds, which may have a fraction, into nanoseconds.
fn nanoseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let Some(raw) = Option::<&RawValue>::deserialize(from)? else { return Ok(None) };
    match digits_to_ns(raw.get()) {
        Some(ns) => Ok(Some(ns)),
        None => {
            // With an exponent, or more digits than any time has.
            let number: Number = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
            Ok(number.as_f64().map(|micros| rounded(1000.0 * micros)))
        }
    }
}

/// Parses the bytes of a time, in microseconds, into ns.
pub(crate) fn time_of(bytes: &[u8]) -> Option<i64> {
    nanoseconds(&mut serde_json::Deserializer::from_slice(bytes)).ok()?
}

/// Microseconds in digits, such as `-12.5`, in ns: a float holds fewer digits than a time since
/// 1970 has.
fn digits_to_ns(micros: &str) -> Option<i64> {
    let (whole, fraction) = micros.split_once('.').unwrap_or((micros, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    if digits.is_empty() || !is_number(digits) || !is_number(fraction) {
        return None;
    }
    // Ten times the ns, for rounding.
    let tenths = fraction.bytes().chain(std::iter::repeat(b'0')).take(4);
    let tenths = tenths.fold(0, |sum, byte| 10 * sum + i64::from(byte - b'0'));
    let ns = digits.parse::<i64>().ok()?.checked_mul(1000)?.checked_add((tenths + 5) / 10)?;
    Some(if digits.len() < whole.len() { -ns } else { ns })
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn rounded(value: f64) -> i64 {
    value.round() as i64
}

/// Searches for texts that only relevant events contain, so that few events have to be parsed.
#[derive(Debug)]
pub(crate) struct Needles {
    nccl: Finder<'static>,
    comms: Finder<'static>,
    operators: Finder<'static>,
    span: Finder<'static>,
    merged: Finder<'static>,
    launch: Finder<'static>,
    beside: beside::Needles,
}

impl Default for Needles {
    fn default() -> Needles {
        Needles {
            nccl: Finder::new("\"nccl"),
            comms: Finder::new("\"record_param_comms\""),
            operators: Finder::new("\"c10d::"),
            span: Finder::new("\"Trace\""),
            merged: Finder::new(LANES),
            launch: Finder::new("LaunchKernel"),
            beside: beside::Needles::default(),
        }
    }
}

impl Needles {
    pub(crate) fn is_of_interest(&self, bytes: &[u8]) -> bool {
        let all = [&self.nccl, &self.comms, &self.operators, &self.span, &self.merged];
        all.iter().any(|it| it.find(bytes).is_some()) || self.beside.is_of_interest(bytes)
    }

    pub(crate) fn is_launch(&self, bytes: &[u8]) -> bool {
        self.launch.find(bytes).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds() {
        let event = Event::parse(br#"{"ts": 4458676522690.655, "dur": 156.777}"#).unwrap();
        assert_eq!((event.ts, event.dur), (Some(4_458_676_522_690_655), Some(156_777)));
        let since_1970 = |digits: &str| time_of(digits.as_bytes());
        assert_eq!(since_1970("1694128201429795.1239"), Some(1_694_128_201_429_795_124));
        assert_eq!(since_1970("-0.25"), Some(-250));
        assert_eq!([since_1970("1.5e3"), since_1970("null")], [Some(1_500_000), None]);
        assert_eq!([since_1970("1e999"), since_1970("\"12\"")], [None, None]);
        let event = Event::parse(br#"{"ts": 1694128201429795, "pid": "Spans"}"#).unwrap();
        assert_eq!((event.ts, event.thread()), (Some(1_694_128_201_429_795_000), (0, 0)));
    }

    #[test]
    fn our_tracks_are_known_by_their_name() {
        let process = |name: &str| {
            let text = format!(r#"{{"name": "process_name", "args": {{"name": "{name}"}}}}"#);
            Event::parse(text.as_bytes()).unwrap().is_process_of_ours()
        };
        assert!(process("NCCL rank 0 (ncclscope)") && !process("nccl-tests"));
    }

    #[test]
    fn annotations_of_all_backends_are_known() {
        let is_one = |name: &str| {
            Event::parse(format!(r#"{{"name": "{name}"}}"#).as_bytes()).unwrap().is_annotation()
        };
        assert!(["nccl:all_reduce", "nccl2:all_reduce", "ncclx:send 0->1"].into_iter().all(is_one));
        assert!(!["gloo:all_reduce", "nccl", "ncclDevKernel_Generic"].into_iter().any(is_one));
    }

    #[test]
    fn few_events_are_of_interest() {
        let needles = Needles::default();
        assert!(needles.is_of_interest(br#"{"name": "ncclDevKernel_AllReduce"}"#));
        assert!(needles.is_of_interest(br#"{"name": "record_param_comms"}"#));
        assert!(!needles.is_of_interest(br#"{"name": "aten::add"}"#));
        assert!(needles.is_launch(br#"{"name": "cudaLaunchKernelExC"}"#));
        let graph = br#"{"cat": "cuda_runtime", "name": "cudaGraphLaunch"}"#;
        assert!(!Event::parse(graph).unwrap().is_kernel_launch());
    }
}
