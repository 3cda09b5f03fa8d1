// SPDX-License-Identifier: Apache-2.0
/*!
The counters in a recording's header and in each lane's header: mostly losses.

A writer declares its counters at the file's beginning, each with its place and its name. A reader
of an older version can therefore find and name counters that it does not know.
*/

use crate::bytes::{u16_at, u64_at};
use crate::kind::MOST_KINDS;
use crate::layout::{HEADER_BYTES, LANE_STRIDE, header};
use crate::schema::{put_name, take_name};
use crate::scratch::lane;
use std::collections::{BTreeMap, BTreeSet};

/// The part of the file that holds a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterLocation {
    /// In the recording's header.
    Header,
    /// In the header of each lane.
    Lanes,
}

/// A counter as the writer of a file declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// Where it lies.
    pub place: CounterLocation,
    /// Its offset in that part, in bytes.
    pub at: u16,
    /// Whether it is an array of 64 numbers, one for each kind of event, and not one number. All
    /// are `u64`.
    pub by_kind: bool,
    /// The counted quantity.
    pub name: String,
}

/// A counter of this version.
type Known = (CounterLocation, usize, bool, &'static str);

/// The counters that this version has.
pub const COUNTERS: [Known; 14] = [
    (CounterLocation::Header, header::DEFINITIONS_LOST, false, "definitions lost"),
    (CounterLocation::Header, header::GARBAGE_WORDS, false, "words that are no record"),
    (
        CounterLocation::Header,
        header::UNKNOWN_EVENTS,
        false,
        "events of kinds that the plugin does not know",
    ),
    (CounterLocation::Header, header::COMMS_LOST, false, "communicators beyond the table"),
    (CounterLocation::Header, header::PANICS, false, "panics contained"),
    (CounterLocation::Header, header::STALE, false, "stale handles"),
    (CounterLocation::Header, header::STRINGS_LOST, false, "strings beyond the table"),
    (CounterLocation::Header, header::LEFT_OUT, false, "operations outside the sample"),
    (CounterLocation::Header, header::OVERWRITTEN, true, "records overwritten"),
    (CounterLocation::Header, header::UNWRITTEN, true, "records unwritten"),
    (CounterLocation::Header, header::WITHOUT_LANE, true, "events lost without a lane"),
    (CounterLocation::Header, header::WITHOUT_SLOT, true, "events lost without a slot"),
    (CounterLocation::Lanes, lane::LOST, true, "events lost in a full lane"),
    (CounterLocation::Lanes, lane::LOST_ENDS, true, "stops and states lost in a full lane"),
];

/// The counters of this version, as a file declares them.
pub(crate) fn declarations() -> impl Iterator<Item = Counter> {
    COUNTERS.into_iter().filter_map(|(place, at, by_kind, name)| {
        Some(Counter { place, at: u16::try_from(at).ok()?, by_kind, name: name.into() })
    })
}

impl Counter {
    /// Appends `place:u8 by_kind:u8 at:u16 name`; the name is its length in a byte and its bytes.
    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        body.extend([u8::from(self.place == CounterLocation::Lanes), u8::from(self.by_kind)]);
        body.extend(self.at.to_le_bytes());
        put_name(&self.name, body);
    }

    /// Decodes what [`Counter::encode`] wrote; `None` if this version does not know the place, or
    /// the offset is outside of it.
    pub(crate) fn decode(body: &[u8]) -> Option<Counter> {
        let (place, room) = match body.first()? {
            0 => (CounterLocation::Header, HEADER_BYTES),
            1 => (CounterLocation::Lanes, LANE_STRIDE),
            _ => return None,
        };
        let (by_kind, at) = (*body.get(1)? != 0, u16_at(body, 2)?);
        let numbers = if by_kind { MOST_KINDS } else { 1 };
        if usize::from(at) + 8 * numbers > room {
            return None;
        }
        let name = take_name(&mut body.get(4..)?)?;
        Some(Counter { place, at, by_kind, name })
    }

    fn is_known(&self) -> bool {
        COUNTERS.iter().any(|&(place, at, ..)| (place, at) == (self.place, usize::from(self.at)))
    }

    /// Its value in the bytes of its part of the file; the sum, if it has a number for each kind.
    fn sum(&self, bytes: &[u8]) -> u64 {
        let numbers = if self.by_kind { MOST_KINDS } else { 1 };
        let at = (0..numbers).map(|number| usize::from(self.at) + 8 * number);
        at.filter_map(|at| u64_at(bytes, at)).fold(0, u64::saturating_add)
    }
}

/// Values of the declared counters that this version does not have, by name, from the bytes of a
/// recording's header and lane table. Counters at 0 are left out.
pub(crate) fn of_later_versions(
    declared: &[Counter],
    header: &[u8],
    lanes: &[u8],
) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut places = BTreeSet::new();
    let is_first =
        |counter: &&Counter| places.insert((counter.place == CounterLocation::Lanes, counter.at));
    // A place that is declared twice is counted once.
    for counter in declared.iter().filter(|counter| !counter.is_known()).filter(is_first) {
        let count = match counter.place {
            CounterLocation::Header => counter.sum(header),
            CounterLocation::Lanes => {
                let each = lanes.chunks_exact(LANE_STRIDE).map(|lane| counter.sum(lane));
                each.fold(0, u64::saturating_add)
            }
        };
        if count != 0 {
            let sum = sums.entry(counter.name.clone()).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_come_back_and_impossible_ones_do_not() {
        for counter in declarations() {
            let mut body = Vec::new();
            counter.encode(&mut body);
            assert_eq!(Counter::decode(&body), Some(counter));
            for cut in 0..body.len() {
                assert_eq!(Counter::decode(&body[..cut]), None);
            }
        }
        assert_eq!(declarations().count(), COUNTERS.len());
        let name = String::new();
        for (place, at, by_kind) in [
            (CounterLocation::Header, 4089, false),
            (CounterLocation::Header, 4096 - 511, true),
            (CounterLocation::Lanes, 1273, false),
            (CounterLocation::Lanes, u16::MAX, true),
        ] {
            let mut body = Vec::new();
            Counter { place, at, by_kind, name: name.clone() }.encode(&mut body);
            assert_eq!(Counter::decode(&body), None, "{at}");
        }
    }
}
