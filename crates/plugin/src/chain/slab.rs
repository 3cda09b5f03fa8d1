// SPDX-License-Identifier: Apache-2.0
/*!
The handles of all plugins for one event, and the handle that NCCL gets for it.

```text
 63                         32 31                          0
+-----------------------------+-----------------------------+
| stamp of the line + nonce   | index of the line           |
+-----------------------------+-----------------------------+
```

The index alone leads to a line. A line belongs to a handle only if its stamp matches: any bits are
safe, and a handle is invalid once its line serves another event. Lines are reused in a circle,
those of open events last, so that a line stays unused for as long as possible. A ProxyOp reserves
the lines of its steps, so that steps, which NCCL starts again on every poll, take no lines from
other events. NCCL keeps eight handles of steps for one operation, and forgets the older handle of a
step that it starts again.
*/

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use ncclscope_abi::EventType;

/// Maximum number of plugins with handles for an event: ours and the chained ones.
pub(super) const PLUGINS: usize = 5;
/// Number of lines for events other than ProxyOps and their steps.
const EVENTS: u32 = 1 << 18;
/// Number of ProxyOps that have lines.
const OPS: u32 = 1 << 14;
/// Number of steps of a ProxyOp that NCCL distinguishes (`NCCL_STEPS`).
const STEPS: u32 = 8;
/// Lines of a ProxyOp: its own and one for each step.
const OP_LINES: u32 = 1 + STEPS;
const LINES: u32 = EVENTS + OPS * OP_LINES;
/// Number of open events that are skipped before an open event loses its line.
const PATIENCE: u32 = 16;
/// Number of lines on a page.
const PAGE: u32 = 64;
/// Number of lines that are touched ahead of their use.
const AHEAD: u32 = 128 * PAGE;

/// Bit of [`Line::info`]: the event has started and not stopped.
const OPEN: u32 = 1 << 31;
/// Position in [`Line::info`] of the bits of [`Entry::has_op`].
const HAS_OP: u32 = 16;

/// The entry of one event. All fields are atomic, so that no use of a handle is a data race. The
/// stamp is odd while the other fields change.
#[repr(C, align(64))]
struct Line {
    stamp: AtomicU32,
    info: AtomicU32,
    handles: [AtomicU64; PLUGINS],
    /// The lower 16 bits of the plugins' masks; `high` has the next 8 bits.
    masks: [AtomicU16; PLUGINS],
    high: [AtomicU8; PLUGINS],
}

const _: () = assert!(size_of::<Line>() == 64);
// A line has room for 24 bits of a plugin's mask.
const _: () = assert!(EventType::ALL.len() <= 24);

/// The content of an event's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    index: u32,
    stamp: u32,
    pub(super) event: Option<EventType>,
    /// Each plugin's handle; 0 if it returned none.
    pub(super) handles: [u64; PLUGINS],
    /// Each plugin's mask at the start of the operation.
    pub(super) masks: [u32; PLUGINS],
    /// Bit set of the plugins that returned a handle for the operation of a step.
    pub(super) has_op: u32,
}

/// All lines; their memory is never unmapped.
#[derive(Debug)]
pub(super) struct Slab {
    lines: &'static [Line],
    nonce: u32,
    next_event: AtomicU32,
    next_op: AtomicU32,
}

impl core::fmt::Debug for Line {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Slab {
    /// Reserves the memory. `nonce` distinguishes the handles of this process from those of others.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(nonce: u32) -> std::io::Result<Slab> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = LINES as usize * size_of::<Line>();
        // SAFETY: a new mapping at an address that the system chooses.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a mapping of this length, aligned to a page, never unmapped, and filled with
        // zeros, which are a valid value of a line.
        let lines = unsafe { core::slice::from_raw_parts(start.cast::<Line>(), LINES as usize) };
        let (next_event, next_op) = (AtomicU32::new(1), AtomicU32::new(0));
        let slab = Slab { lines, nonce, next_event, next_op };
        slab.touch(&mut Touched::default());
        Ok(slab)
    }

    /// Touches the memory of the lines that will be taken next. Not for callbacks.
    pub(super) fn touch(&self, touched: &mut Touched) {
        let events = self.next_event.load(Ordering::Relaxed).saturating_add(AHEAD).min(EVENTS);
        let ops = self.next_op.load(Ordering::Relaxed).saturating_add(AHEAD / OP_LINES).min(OPS);
        self.touch_until(&mut touched.events, 0, events);
        self.touch_until(&mut touched.ops, EVENTS, ops * OP_LINES);
    }

    fn touch_until(&self, touched: &mut u32, first: u32, end: u32) {
        while *touched < end {
            if let Some(line) = self.lines.get((first + *touched) as usize) {
                line.info.fetch_or(0, Ordering::Relaxed);
            }
            *touched += PAGE;
        }
    }

    /// The entry of a handle; `None` if the handle is invalid or its line was reused.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a handle")]
    pub(super) fn read(&self, handle: u64) -> Option<Entry> {
        let (index, stamp) = (handle as u32, ((handle >> 32) as u32).wrapping_sub(self.nonce));
        let line = self.lines.get(index as usize)?;
        if stamp & 1 != 0 || stamp == 0 || line.stamp.load(Ordering::Acquire) != stamp {
            return None;
        }
        let info = line.info.load(Ordering::Relaxed);
        let entry = Entry {
            index,
            stamp,
            event: EventType::from_bits(1u64.checked_shl(info & 0xff).unwrap_or(0)),
            handles: line.handles.each_ref().map(|h| h.load(Ordering::Relaxed)),
            masks: core::array::from_fn(|i| {
                let low = u32::from(line.masks[i].load(Ordering::Relaxed));
                low | u32::from(line.high[i].load(Ordering::Relaxed)) << u16::BITS
            }),
            has_op: info >> HAS_OP & 0xff,
        };
        fence(Ordering::Acquire);
        (line.stamp.load(Ordering::Relaxed) == stamp).then_some(entry)
    }

    /// Marks the line of a stopped event as free for reuse. A step keeps its line in the
    /// operation's.
    #[inline]
    pub(super) fn close(&self, entry: &Entry) {
        if entry.event == Some(EventType::ProxyStep) && entry.index >= EVENTS {
            return;
        }
        let Some(line) = self.lines.get(entry.index as usize) else { return };
        if line.stamp.load(Ordering::Relaxed) == entry.stamp {
            line.info.fetch_and(!OPEN, Ordering::Relaxed);
        }
    }

    /// Stores an event's handles and returns the handle for NCCL; 0 if no line is free, which would
    /// take more threads at once than there are lines.
    #[inline]
    pub(super) fn keep(
        &self,
        event: Option<EventType>,
        handles: [u64; PLUGINS],
        masks: [u32; PLUGINS],
    ) -> u64 {
        let taken = if event == Some(EventType::ProxyOp) {
            self.take(&self.next_op, |n| EVENTS + n % OPS * OP_LINES)
        } else {
            self.take(&self.next_event, |n| n % EVENTS)
        };
        taken.map_or(0, |(index, stamp)| self.write(index, stamp, event, handles, masks, 0))
    }

    /// Stores the handles of a step of operation `op`, in a line that is reserved for that
    /// operation.
    #[inline]
    pub(super) fn keep_step(&self, op: &Entry, step: u32, handles: [u64; PLUGINS]) -> u64 {
        let index = op.index + 1 + step % STEPS;
        let Some(line) = self.lines.get(index as usize) else { return 0 };
        let stamp = line.stamp.load(Ordering::Relaxed) | 1;
        line.stamp.store(stamp, Ordering::Relaxed);
        let mut has_op = 0;
        for (bit, handle) in op.handles.iter().enumerate() {
            has_op |= u32::from(*handle != 0) << bit;
        }
        self.write(index, stamp, Some(EventType::ProxyStep), handles, op.masks, has_op)
    }

    /// Claims a line by making its stamp odd, and returns its index and stamp. Skips up to
    /// [`PATIENCE`] open events before it takes the line of one.
    #[inline]
    fn take(&self, next: &AtomicU32, place: impl Fn(u32) -> u32) -> Option<(u32, u32)> {
        for attempt in 0..2 * PATIENCE {
            let index = place(next.fetch_add(1, Ordering::Relaxed));
            let line = self.lines.get(index as usize)?;
            let stamp = line.stamp.load(Ordering::Relaxed);
            let open = line.info.load(Ordering::Relaxed) & OPEN != 0;
            if stamp & 1 != 0 || (open && attempt < PATIENCE) {
                continue;
            }
            let claim =
                line.stamp.compare_exchange(stamp, stamp | 1, Ordering::Relaxed, Ordering::Relaxed);
            if claim.is_ok() {
                return Some((index, stamp | 1));
            }
        }
        None
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a mask")]
    fn write(
        &self,
        index: u32,
        stamp: u32,
        event: Option<EventType>,
        handles: [u64; PLUGINS],
        masks: [u32; PLUGINS],
        has_op: u32,
    ) -> u64 {
        let Some(line) = self.lines.get(index as usize) else { return 0 };
        // The odd stamp must be visible before anything else changes.
        fence(Ordering::Release);
        for (place, handle) in line.handles.iter().zip(handles) {
            place.store(handle, Ordering::Relaxed);
        }
        for ((low, high), mask) in line.masks.iter().zip(&line.high).zip(masks) {
            low.store(mask as u16, Ordering::Relaxed);
            high.store((mask >> u16::BITS) as u8, Ordering::Relaxed);
        }
        let number = event.map_or(0xff, |event| event as u32);
        line.info.store(number | has_op << HAS_OP | OPEN, Ordering::Relaxed);
        // Stamp 0 is that of a line that was never used.
        let stamp = match stamp.wrapping_add(1) {
            0 => 2,
            stamp => stamp,
        };
        line.stamp.store(stamp, Ordering::Release);
        u64::from(stamp.wrapping_add(self.nonce)) << 32 | u64::from(index)
    }
}

/// How many lines have been touched, counted from the first: those of events, and those of
/// ProxyOps.
#[derive(Debug, Default)]
pub(super) struct Touched {
    events: u32,
    ops: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Option<EventType> = Some(EventType::Group);

    fn handles(n: u64) -> [u64; PLUGINS] {
        [n, 0, n + 1, 0, 0]
    }

    #[test]
    fn a_handle_leads_to_its_event_and_no_other_bits_do() {
        let slab = Slab::new(0xdead_0001).unwrap();
        let masks = [1, 2, 3, 0xffff, 0xab_cdef];
        let first = slab.keep(GROUP, handles(7), masks);
        let entry = slab.read(first).unwrap();
        assert_eq!((entry.handles, entry.masks), (handles(7), masks));
        assert_eq!(entry.event, GROUP);
        for garbage in [0, 1, first + 1, first ^ 1 << 33, first | 0xffff_ffff, u64::MAX] {
            assert_eq!(slab.read(garbage), None, "{garbage:x}");
        }
        assert_eq!(Slab::new(0xdead_0002).unwrap().read(first), None, "another process's");
    }

    #[test]
    fn what_is_stopped_is_forgotten_before_what_is_open() {
        let slab = Slab::new(5).unwrap();
        let open = slab.keep(GROUP, handles(1), [0; PLUGINS]);
        let stopped = slab.keep(GROUP, handles(2), [0; PLUGINS]);
        slab.close(&slab.read(stopped).unwrap());
        for n in 0..u64::from(EVENTS) + 10 {
            let other = slab.keep(GROUP, handles(n), [0; PLUGINS]);
            slab.close(&slab.read(other).unwrap());
        }
        assert_eq!(slab.read(open).unwrap().handles, handles(1));
        assert_eq!(slab.read(stopped), None);
    }

    #[test]
    fn events_that_never_stop_give_way_to_new_ones() {
        let slab = Slab::new(5).unwrap();
        let op = Some(EventType::ProxyOp);
        let first = slab.keep(op, handles(1), [0; PLUGINS]);
        let mut last = 0;
        for n in 0..2 * u64::from(OPS) * u64::from(PATIENCE) {
            last = slab.keep(op, handles(n), [0; PLUGINS]);
            assert_ne!(last, 0);
        }
        assert_eq!(slab.read(first), None);
        assert!(slab.read(last).is_some());
    }

    #[test]
    fn a_step_that_starts_again_or_eight_later_takes_the_line_of_the_former() {
        let slab = Slab::new(9).unwrap();
        let op = slab.keep(Some(EventType::ProxyOp), handles(1), [0xff; PLUGINS]);
        let op = slab.read(op).unwrap();
        let steps: Vec<u64> = (0..8).map(|s| slab.keep_step(&op, s, handles(s.into()))).collect();
        assert!(steps.iter().all(|&step| slab.read(step).is_some()));
        assert_eq!(slab.read(steps[3]).unwrap().has_op, 0b101);
        let again = slab.keep_step(&op, 3, handles(30));
        let later = slab.keep_step(&op, 12, handles(40));
        for (step, kept) in steps.iter().zip([true, true, true, false, false, true, true, true]) {
            assert_eq!(slab.read(*step).is_some(), kept);
        }
        assert_eq!(slab.read(again).unwrap().handles, handles(30));
        assert_eq!(slab.read(later).unwrap().handles, handles(40));
    }
}
