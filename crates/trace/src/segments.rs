// SPDX-License-Identifier: Apache-2.0
//! Which segments of a ring are worth reading, and which blocks are missing in them.

use crate::bytes::u64_at;
use crate::codec::{HEADER, MAGIC};
use crate::error::Error;
use crate::files::{next_data, read_up_to};
use crate::layout::{Header, SEGMENT};
use std::fs::File;

/// More blocks than a process writes: a damaged header may say any number.
const MAX_BLOCKS: u64 = 1 << 48;

/// The segments of a ring that hold anything, in the order of their places: the newest `most`, and
/// whether these are all.
pub(crate) fn segments_to_read(
    file: &File,
    base: u64,
    segments: u32,
    most: usize,
) -> Result<(Vec<u64>, bool), Error> {
    let mut places: Vec<u64> = Vec::new();
    let end = base + u64::from(segments) * SEGMENT;
    let mut at = base;
    // A hole may have any length, and would be read as zeros.
    while let Some(data) = next_data(file, at)?.filter(|&data| data < end) {
        let segment = (data.max(at) - base) / SEGMENT;
        places.push(segment);
        at = base + (segment + 1) * SEGMENT;
    }
    if places.len() <= most {
        return Ok((places, true));
    }
    let mut newest: Vec<(u64, u64)> = Vec::new();
    for segment in places {
        let head = read_up_to(file, base + segment * SEGMENT, HEADER)?;
        if head.starts_with(&MAGIC.to_le_bytes()) {
            newest.extend(u64_at(&head, 16).map(|first| (first, segment)));
        }
    }
    newest.sort_unstable();
    let older = newest.len().saturating_sub(most);
    let mut places: Vec<u64> = newest.split_off(older).into_iter().map(|(_, at)| at).collect();
    places.sort_unstable();
    Ok((places, false))
}

/// Says that from a place in a segment on so many bytes cannot be read.
pub(crate) fn torn(segment: u64, byte: u64, lost: usize) -> String {
    format!("segment {segment}: torn block at byte {byte}; {lost} bytes from there are lost")
}

/// Damage in few words.
pub(crate) fn in_short(damage: &[String], unreadable: u64) -> Vec<String> {
    const TOLD: usize = 4;
    let (first, rest) = damage.split_at(damage.len().min(TOLD));
    let more = (!rest.is_empty()).then(|| format!("and so on, {} more", rest.len()));
    let records = (unreadable != 0).then(|| format!("{unreadable} records cannot be read"));
    first.iter().cloned().chain(more).chain(records).collect()
}

pub(crate) struct MissingBlocks {
    /// Between others.
    pub(crate) inside: u64,
    /// After all that there are.
    pub(crate) last: u64,
}

impl MissingBlocks {
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let MissingBlocks { inside, last } = *self;
        let blocks = |count: u64| match count {
            1 => "1 block".to_owned(),
            count => format!("{count} blocks"),
        };
        let are = |count: u64| if count == 1 { "is" } else { "are" };
        let inside = (inside != 0).then(|| {
            let (what, are) = (blocks(inside), are(inside));
            format!("{what} in the middle {are} missing or damaged")
        });
        let last = (last != 0).then(|| match last > MAX_BLOCKS {
            true => "its header is damaged: the number of its blocks is impossible".to_owned(),
            false => format!("truncated: {} at the end {} missing", blocks(last), are(last)),
        });
        inside.into_iter().chain(last)
    }
}

/// What is missing of the blocks with these `numbers`. Blocks are numbered without gaps,
/// but for those overwritten: at the beginning, and where the ring was frozen also in between.
pub(crate) fn missing_blocks(
    numbers: &mut [u64],
    header: &Header,
    is_whole: bool,
) -> MissingBlocks {
    numbers.sort_unstable();
    let next = numbers.last().map_or(0, |n| n.saturating_add(1));
    let oldest = numbers.first().copied().unwrap_or(0);
    let inside = (next - oldest).saturating_sub(numbers.len() as u64);
    let inside = match (header.is_irregular(), header.closed) {
        (false, _) => inside,
        (true, true) if is_whole => {
            inside.saturating_sub(header.overwritten_blocks.saturating_sub(oldest))
        }
        // The header may be a second old, or blocks that were not read tell.
        (true, _) => 0,
    };
    MissingBlocks { inside, last: header.next_block.saturating_sub(next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_words() {
        let said = |numbers: &[u64], next_block: u64| {
            let header = Header { next_block, ..Header::default() };
            missing_blocks(&mut numbers.to_vec(), &header, true).lines().collect::<Vec<_>>()
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
        let forged = "its header is damaged: the number of its blocks is impossible";
        assert_eq!(said(&[0, 1], u64::MAX), [forged]);
    }
}
