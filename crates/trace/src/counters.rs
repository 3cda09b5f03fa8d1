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

/// The place of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the recording's header.
    Header,
    /// In the header of each lane.
    Lanes,
}

/// A counter as the writer of a file declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// Where it lies.
    pub place: Place,
    /// Its offset there, in bytes.
    pub at: u16,
    /// 64 numbers, one for each kind of event; else one. All are `u64`.
    pub by_kind: bool,
    /// The counted quantity.
    pub name: String,
}

/// A counter of this version.
type Known = (Place, usize, bool, &'static str);

/// The counters that this version has.
pub const COUNTERS: [Known; 14] = [
    (Place::Header, header::DEFINITIONS_LOST, false, "definitions lost"),
    (Place::Header, header::GARBAGE_WORDS, false, "words that are no record"),
    (Place::Header, header::UNKNOWN_EVENTS, false, "events of kinds that the plugin does not know"),
    (Place::Header, header::COMMS_LOST, false, "communicators beyond the table"),
    (Place::Header, header::PANICS, false, "panics contained"),
    (Place::Header, header::STALE, false, "stale handles"),
    (Place::Header, header::STRINGS_LOST, false, "strings beyond the table"),
    (Place::Header, header::LEFT_OUT, false, "operations outside the sample"),
    (Place::Header, header::OVERWRITTEN, true, "records overwritten"),
    (Place::Header, header::UNWRITTEN, true, "records unwritten"),
    (Place::Header, header::WITHOUT_LANE, true, "events lost without a lane"),
    (Place::Header, header::WITHOUT_SLOT, true, "events lost without a slot"),
    (Place::Lanes, lane::LOST, true, "events lost in a full lane"),
    (Place::Lanes, lane::LOST_ENDS, true, "stops and states lost in a full lane"),
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
        body.extend([u8::from(self.place == Place::Lanes), u8::from(self.by_kind)]);
        body.extend(self.at.to_le_bytes());
        put_name(&self.name, body);
    }

    /// What [`Counter::encode`] made; `None` for a place that this version does not know, and one
    /// outside of it.
    pub(crate) fn decode(body: &[u8]) -> Option<Counter> {
        let (place, room) = match body.first()? {
            0 => (Place::Header, HEADER_BYTES),
            1 => (Place::Lanes, LANE_STRIDE),
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

    /// What it has counted in the bytes of its place.
    fn sum(&self, bytes: &[u8]) -> u64 {
        let numbers = if self.by_kind { MOST_KINDS } else { 1 };
        let at = (0..numbers).map(|number| usize::from(self.at) + 8 * number);
        at.filter_map(|at| u64_at(bytes, at)).fold(0, u64::saturating_add)
    }
}

/// What the counters that this version does not have say, by their names, in the bytes of a
/// recording's header and of its lane table. Those at 0 are left out.
pub(crate) fn of_later_versions(
    declared: &[Counter],
    header: &[u8],
    lanes: &[u8],
) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut places = BTreeSet::new();
    let is_first = |counter: &&Counter| places.insert((counter.place == Place::Lanes, counter.at));
    // A place that is declared twice is counted once.
    for counter in declared.iter().filter(|counter| !counter.is_known()).filter(is_first) {
        let count = match counter.place {
            Place::Header => counter.sum(header),
            Place::Lanes => {
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
            (Place::Header, 4089, false),
            (Place::Header, 4096 - 511, true),
            (Place::Lanes, 1273, false),
            (Place::Lanes, u16::MAX, true),
        ] {
            let mut body = Vec::new();
            Counter { place, at, by_kind, name: name.clone() }.encode(&mut body);
            assert_eq!(Counter::decode(&body), None, "{at}");
        }
    }
}
