// SPDX-License-Identifier: Apache-2.0
//! One event of a trace, and the choice of events that are parsed.

use memchr::memmem::Finder;
use serde::{Deserialize, Deserializer};
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

    /// A number among its args.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.args.get(key)?.as_u64()
    }

    /// Its process and thread; 0 if they are not numbers, as for rows that are not threads.
    pub(crate) fn thread(&self) -> (u64, u64) {
        (self.pid.as_u64().unwrap_or(0), self.tid.as_u64().unwrap_or(0))
    }

    pub(crate) fn is_nccl_kernel(&self) -> bool {
        self.cat.eq_ignore_ascii_case("kernel") && self.name.starts_with("nccl")
    }

    /// Whether it is the launch of a single kernel. The launch of a graph does not show when NCCL
    /// was called.
    pub(crate) fn is_kernel_launch(&self) -> bool {
        matches!(self.cat.as_str(), "cuda_runtime" | "cuda_driver")
            && self.name.contains("LaunchKernel")
    }
}

/// Parses microseconds, which may have a fraction, into nanoseconds. Whole numbers are not
/// converted to a float, because a time since 1970 has more digits than a float holds.
fn nanoseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let number = Option::<Number>::deserialize(from)?;
    Ok(number.and_then(|number| match number.as_i64() {
        Some(whole) => whole.checked_mul(1000),
        None => number.as_f64().map(to_nanoseconds),
    }))
}

/// Parses the bytes of a time, in microseconds, into ns.
pub(crate) fn time_of(bytes: &[u8]) -> Option<i64> {
    nanoseconds(&mut serde_json::Deserializer::from_slice(bytes)).ok()?
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn to_nanoseconds(micros: f64) -> i64 {
    let whole = micros.trunc();
    (whole as i64).saturating_mul(1000).saturating_add(((micros - whole) * 1000.0).round() as i64)
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
        }
    }
}

impl Needles {
    pub(crate) fn is_of_interest(&self, bytes: &[u8]) -> bool {
        let all = [&self.nccl, &self.comms, &self.operators, &self.span, &self.merged];
        all.iter().any(|it| it.find(bytes).is_some())
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
        let event = Event::parse(br#"{"ts": 1694128201429795, "pid": "Spans"}"#).unwrap();
        assert_eq!((event.ts, event.thread()), (Some(1_694_128_201_429_795_000), (0, 0)));
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
