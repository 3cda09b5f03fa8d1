// SPDX-License-Identifier: Apache-2.0
//! The filters that verbs have in common.

use clap::builder::PossibleValuesParser;
use ncclscope_answer::Moment;
use ncclscope_control::quantity;
use ncclscope_trace::EventKind;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Smaller numbers of seconds since 1970 are a mistake: a time after the start needs a `+`.
const PLAUSIBLE: Duration = Duration::from_secs(100_000_000);

/// What to see of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Filters (see docs/filters.md)")]
pub(crate) struct FilterArgs {
    /// Only these ranks of the job: 0,3,8-15
    #[arg(
        long,
        value_name = "RANKS",
        value_delimiter = ',',
        allow_negative_numbers = true,
        value_parser = ranks
    )]
    pub(crate) rank: Vec<RangeInclusive<u32>>,
    /// Only these hosts; `*` and `?` stand for any characters, and any one
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    pub(crate) host: Vec<String>,
    /// Only these communicators: a name, or a hash or its beginning
    #[arg(long, value_name = "COMM,…", value_delimiter = ',')]
    pub(crate) comm: Vec<String>,
    /// Only communicators with these roles: tp, dp, pp, ep, or as the application said
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',')]
    pub(crate) role: Vec<String>,
    /// Only these functions: AllReduce, Send, in any case of letters
    #[arg(long, value_name = "FUNC,…", value_delimiter = ',')]
    pub(crate) func: Vec<String>,
    /// Only from this time on: 2026-11-25T10:00:00Z, seconds since 1970, +10s after the start, or
    /// -10s before the end
    #[arg(long, value_name = "TIME", value_parser = edge, allow_hyphen_values = true)]
    pub(crate) from: Option<Edge>,
    /// Only until this time, likewise
    #[arg(long, value_name = "TIME", value_parser = edge, allow_hyphen_values = true)]
    pub(crate) until: Option<Edge>,
    /// Only these training steps: 100-120
    #[arg(long, value_name = "A-B", allow_negative_numbers = true, value_parser = steps)]
    pub(crate) steps: Option<(u64, u64)>,
    /// Only these kinds of events, by their names in docs/glossary.md: Coll,P2p,KernelCh
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(EventKind::ALL.map(EventKind::name)),
        ignore_case = true,
        hide_possible_values = true
    )]
    pub(crate) events: Vec<String>,
}

/// The first or the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// A time in ns since 1970.
    At(u64),
    /// A time after the start of the run.
    AfterStart(Duration),
    /// A time before the end of the run.
    BeforeEnd(Duration),
}

impl FilterArgs {
    /// True if no filter was given.
    pub(crate) fn is_empty(&self) -> bool {
        *self == FilterArgs::default()
    }

    /// The kinds of events as an activation mask.
    pub(crate) fn kinds(&self) -> Option<u32> {
        let is_named = |kind: &EventKind| {
            self.events.iter().any(|name| name.eq_ignore_ascii_case(kind.name()))
        };
        let mask = EventKind::ALL.into_iter().filter(is_named).map(EventKind::bit).sum();
        (!self.events.is_empty()).then_some(mask)
    }
}

fn ranks(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last);
    let (first, last) = range.ok_or("expected ranks such as 0,3,8-15")?;
    Ok(first..=last)
}

fn steps(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last);
    range.ok_or_else(|| "expected training steps such as 100-120".into())
}

fn edge(text: &str) -> Result<Edge, String> {
    let of = |length: &str| quantity::duration(length);
    let edge = match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(after), _) => of(after).map(Edge::AfterStart),
        (_, Some(before)) => of(before).map(Edge::BeforeEnd),
        _ => match text.parse::<f64>().ok().and_then(|_| of(text)) {
            Some(since) => {
                let ns = u64::try_from(since.as_nanos()).ok();
                ns.filter(|_| since >= PLAUSIBLE).map(Edge::At)
            }
            None => Moment::parse_ns(text).map(Edge::At),
        },
    };
    edge.ok_or_else(|| {
        "expected a time such as 2026-11-25T10:00:00Z, seconds since 1970, +10s after the start, \
         or -10s before the end"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_or_relative() {
        let after = |s| Ok(Edge::AfterStart(Duration::from_secs(s)));
        assert_eq!((edge("+10s"), edge("+2m")), (after(10), after(120)));
        assert_eq!(edge("-500ms"), Ok(Edge::BeforeEnd(Duration::from_millis(500))));
        assert_eq!(edge("1790857026.5"), Ok(Edge::At(1_790_857_026_500_000_000)));
        assert_eq!(edge("2026-12-31T23:59:59Z"), Ok(Edge::At(1_798_761_599_000_000_000)));
        for bad in ["10", "10s", "", "soon", "+", "-x", "2026-12-31"] {
            assert!(edge(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranks_and_steps_are_ranges() {
        assert_eq!((ranks("3"), ranks("8-15")), (Ok(3..=3), Ok(8..=15)));
        assert_eq!((steps("3"), steps("8-15")), (Ok((3, 3)), Ok((8, 15))));
        for bad in ["", "-", "5-3", "a", "-3", "1-2-3"] {
            assert!(ranks(bad).is_err() && steps(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_have_the_names_of_the_glossary() {
        let args = FilterArgs { events: vec!["coll".into(), "P2p".into()], ..Default::default() };
        assert_eq!(args.kinds(), Some(EventKind::Coll.bit() | EventKind::P2p.bit()));
        assert_eq!(FilterArgs::default().kinds(), None);
    }
}
