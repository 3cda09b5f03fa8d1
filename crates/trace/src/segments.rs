// SPDX-License-Identifier: Apache-2.0
//! Finds the segments of a ring to read, and the blocks that are missing in them.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::codec::{HEADER, MAGIC, MAX_BLOCK, META_LANE};
use crate::error::Error;
use crate::files::{Extents, read_up_to, will_need};
use crate::layout::{Header, SEGMENT};
use std::collections::BTreeMap;
use std::fs::File;

/// More blocks than a process can write; a greater number is of a damaged header.
const MAX_BLOCKS: u64 = 1 << 48;

/// The segments of a ring that contain data.
pub(crate) struct RingSegments {
    /// Numbers of the segments to read, in the order of their places.
    pub(crate) places: Vec<u64>,
    /// The heads of all segments, if some are left out because they are older; else `None`.
    pub(crate) all: Option<Vec<Head>>,
}

/// The first block's header of a segment, and the extent of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    segment: u64,
    epoch: u32,
    /// Number of the first block.
    number: u64,
    /// Length in bytes of its first block, or of the second if that is longer and the first has
    /// counts of sends and receives. It bounds the block that did not fit into the previous
    /// segment.
    longest: u64,
    /// The end of its data, in bytes from its start; `None` if there is a hole between data.
    data: Option<u64>,
}

/// Finds the segments of a ring that contain data, of which the newest `most` are to be read.
pub(crate) fn segments_to_read(
    file: &File,
    base: u64,
    segments: u32,
    most: usize,
) -> Result<RingSegments, Error> {
    let places = places(file, base, segments)?;
    if places.len() <= most {
        let places = places.into_iter().map(|place| place.segment).collect();
        return Ok(RingSegments { places, all: None });
    }
    // The system reads all heads at once: one after another, each would take the latency of a disk
    // or of a network.
    for place in &places {
        will_need(file, base + place.segment * SEGMENT, HEADER);
    }
    let mut newest: Vec<Head> = Vec::new();
    for place in places {
        newest.extend(head(file, base + place.segment * SEGMENT, place)?);
    }
    newest.sort_unstable_by_key(|head| (head.number, head.segment));
    let older = newest.len().saturating_sub(most);
    let mut places: Vec<u64> = newest[older..].iter().map(|head| head.segment).collect();
    places.sort_unstable();
    Ok(RingSegments { places, all: Some(newest) })
}

/// A segment that contains data.
struct Place {
    segment: u64,
    /// As [`Head::data`].
    data: Option<u64>,
}

/// The segments that contain data. Holes are skipped: they may have any length, and would be read
/// as zeros.
fn places(file: &File, base: u64, segments: u32) -> Result<Vec<Place>, Error> {
    let mut places = Vec::new();
    let mut extents = Extents::new(file);
    let end = base + u64::from(segments) * SEGMENT;
    let mut at = base;
    while let Some(data) = extents.next_data(at)?.filter(|&data| data < end) {
        let segment = (data - base) / SEGMENT;
        let start = base + segment * SEGMENT;
        at = start + SEGMENT;
        let hole = if data > start { start } else { extents.end(start).min(at) };
        let is_last = hole == at || extents.next_data(hole)?.is_none_or(|next| next >= at);
        places.push(Place { segment, data: is_last.then_some(hole - start) });
    }
    Ok(places)
}

/// The head of the segment that starts at `start`, if it begins with a block.
fn head(file: &File, start: u64, Place { segment, data }: Place) -> Result<Option<Head>, Error> {
    let bytes = read_up_to(file, start, HEADER)?;
    let fields = (u32_at(&bytes, 8), u32_at(&bytes, 12), u64_at(&bytes, 16));
    let (true, (Some(len), Some(epoch), Some(number))) =
        (bytes.starts_with(&MAGIC.to_le_bytes()), fields)
    else {
        return Ok(None);
    };
    let mut longest = u64::from(len);
    if u16_at(&bytes, 24) == Some(META_LANE) {
        let next = read_up_to(file, start + longest, HEADER)?;
        longest = longest.max(u32_at(&next, 8).unwrap_or(u32::MAX).into());
    }
    Ok(Some(Head { segment, epoch, number, longest, data }))
}

/// The damage of the segments before those that were read, as far as their heads show it. `read`
/// has the oldest and the newest epoch that were read. `None` for a ring whose segments were not
/// used one after another.
pub(crate) fn damage_before(all: &[Head], read: (u32, u32), header: &Header) -> Option<String> {
    let (begin, newest) = read;
    if header.is_irregular() || header.segments == 0 {
        return None;
    }
    let by_place: BTreeMap<u64, &Head> = all.iter().map(|head| (head.segment, head)).collect();
    let by_epoch: BTreeMap<u32, &Head> = all.iter().map(|head| (head.epoch, head)).collect();
    let place = |epoch: u32| u64::from(epoch % header.segments);
    let oldest = newest.saturating_add(1).saturating_sub(header.segments);
    let oldest = match (header.copy, header.closed) {
        // Segments that were overwritten during the copy are missing rightly.
        (true, _) => by_epoch.keys().copied().find(|&epoch| epoch >= oldest).unwrap_or(begin),
        (false, true) => oldest,
        // Its process may just be overwriting the oldest segment.
        (false, false) => oldest + u32::from(oldest != 0),
    };
    let is_damaged = |&epoch: &u32| {
        let Some(head) = by_place.get(&place(epoch)) else { return true };
        let Some(data) = head.data else { return true };
        // A header that is a second old may not yet show that the order changed.
        if head.epoch != epoch {
            return header.closed;
        }
        let next = by_epoch.get(&(epoch + 1)).map_or(MAX_BLOCK as u64, |next| next.longest);
        data.saturating_add(next) <= SEGMENT
    };
    match (oldest..begin).filter(is_damaged).count() {
        0 => None,
        1 => Some("1 segment before the end is missing or damaged".into()),
        many => Some(format!("{many} segments before the end are missing or damaged")),
    }
}

/// The line about `lost` bytes at `byte` of a segment that cannot be read.
pub(crate) fn torn(segment: u64, byte: u64, lost: usize) -> String {
    format!("segment {segment}: torn block at byte {byte}; {lost} bytes from there are lost")
}

/// The first lines of damage, the number of further lines, and the number of unreadable records.
pub(crate) fn in_short(damage: &[String], unreadable: u64) -> Vec<String> {
    const TOLD: usize = 4;
    let (first, rest) = damage.split_at(damage.len().min(TOLD));
    let more = (!rest.is_empty()).then(|| format!("and so on, {} more", rest.len()));
    let records = (unreadable != 0).then(|| format!("{unreadable} records cannot be read"));
    first.iter().cloned().chain(more).chain(records).collect()
}

#[derive(Default)]
pub(crate) struct MissingBlocks {
    /// Blocks before all that were found, without overwritten ones.
    pub(crate) first: u64,
    /// Blocks between others.
    pub(crate) inside: u64,
    /// Blocks after all that were found.
    pub(crate) last: u64,
}

impl MissingBlocks {
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let MissingBlocks { first, inside, last } = *self;
        let blocks = |count: u64| match count {
            1 => "1 block".to_owned(),
            count => format!("{count} blocks"),
        };
        let are = |count: u64| if count == 1 { "is" } else { "are" };
        let missing = |count: u64, place: &str| {
            let (what, are) = (blocks(count), are(count));
            (count != 0).then(|| format!("{what} {place} {are} missing or damaged"))
        };
        let last = (last != 0).then(|| match last > MAX_BLOCKS {
            true => "its header is damaged: the number of its blocks is impossible".to_owned(),
            false => format!("truncated: {} at the end {} missing", blocks(last), are(last)),
        });
        let before = [missing(first, "at the beginning"), missing(inside, "in the middle")];
        before.into_iter().flatten().chain(last)
    }
}

/// The blocks that are missing beside those with these `numbers`, of which the newest has this
/// `epoch`. Blocks are numbered without gaps; overwritten ones are missing at the beginning, and,
/// if the ring was frozen, also in between.
pub(crate) fn missing_blocks(
    numbers: &mut [u64],
    epoch: u32,
    header: &Header,
    is_whole: bool,
) -> MissingBlocks {
    numbers.sort_unstable();
    let next = numbers.last().map_or(0, |n| n.saturating_add(1));
    let oldest = numbers.first().copied().unwrap_or(0);
    let inside = (next - oldest).saturating_sub(numbers.len() as u64);
    let first = match (header.is_irregular() || !is_whole, header.closed) {
        (true, _) => 0,
        (false, true) => oldest.saturating_sub(header.overwritten_blocks),
        // The header may be a second old, but no segment was reused yet, so nothing was
        // overwritten.
        (false, false) if epoch < header.segments => oldest,
        (false, false) => 0,
    };
    let inside = match (header.is_irregular(), header.closed) {
        (false, _) => inside,
        (true, true) if is_whole => {
            inside.saturating_sub(header.overwritten_blocks.saturating_sub(oldest))
        }
        // The number in the header may be a second old, or only part of the ring was read.
        (true, _) => 0,
    };
    MissingBlocks { first, inside, last: header.next_block.saturating_sub(next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_words() {
        let said = |numbers: &[u64], next_block: u64| {
            let header = Header { next_block, ..Header::default() };
            missing_blocks(&mut numbers.to_vec(), 0, &header, true).lines().collect::<Vec<_>>()
        };
        assert_eq!(said(&[0, 1, 2], 3), [""; 0]);
        let one = [
            "1 block in the middle is missing or damaged",
            "truncated: 1 block at the end is missing",
        ];
        assert_eq!(said(&[0, 2], 4), one);
        let some = [
            "2 blocks in the middle are missing or damaged",
            "truncated: 3 blocks at the end are missing",
        ];
        assert_eq!(said(&[0, 3], 7), some);
        let closed =
            Header { next_block: 5, closed: true, overwritten_blocks: 2, ..Header::default() };
        let missing = missing_blocks(&mut [3, 4], 9, &closed, true);
        let first = "1 block at the beginning is missing or damaged";
        assert_eq!(missing.lines().collect::<Vec<_>>(), [first]);
        let forged = "its header is damaged: the number of its blocks is impossible";
        assert_eq!(said(&[0, 1], u64::MAX), [forged]);
    }
}
