// SPDX-License-Identifier: Apache-2.0
//! The numbers of events, which change when others are forgotten.

/// Number of an event in its [`Timeline`](crate::Timeline).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EventId(u32);

impl EventId {
    /// The number. The events of a recording that is read whole are numbered from 0 in the order in
    /// which they are read.
    #[must_use]
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The event with this number.
    #[must_use]
    pub fn of_index(index: usize) -> EventId {
        EventId(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// The new numbers of events after others were forgotten.
#[derive(Debug)]
pub struct NewNumbers(Vec<u32>);

impl NewNumbers {
    const NONE: u32 = u32::MAX;

    pub(crate) fn of(goes: &[bool]) -> NewNumbers {
        let mut next = 0;
        let number = |&goes: &bool| {
            let number = if goes { NewNumbers::NONE } else { next };
            next += u32::from(!goes);
            number
        };
        NewNumbers(goes.iter().map(number).collect())
    }

    /// The new number of an event; `None` if it was forgotten.
    #[must_use]
    pub fn of_event(&self, old: EventId) -> Option<EventId> {
        let new = *self.0.get(old.index())?;
        (new != NewNumbers::NONE).then(|| EventId::of_index(new as usize))
    }

    /// Moves what belongs to events, by their old numbers, to their new numbers.
    pub fn keep<T: Copy>(&self, values: &mut Vec<T>) {
        let mut kept = 0;
        for (old, &new) in self.0.iter().enumerate().take(values.len()) {
            if new != NewNumbers::NONE {
                values[kept] = values[old];
                kept += 1;
            }
        }
        values.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_events_moves_with_them() {
        let numbers = NewNumbers::of(&[true, false, true, false, false]);
        let new = |old| numbers.of_event(EventId::of_index(old)).map(EventId::index);
        assert_eq!([0, 1, 2, 3, 4, 5].map(new), [None, Some(0), None, Some(1), Some(2), None]);
        for (mut values, kept) in [(vec![7, 8, 9, 10, 11], &[8, 10, 11][..]), (vec![7, 8], &[8])] {
            numbers.keep(&mut values);
            assert_eq!(values, kept);
        }
    }
}
