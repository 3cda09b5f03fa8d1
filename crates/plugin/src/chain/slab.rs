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

/// Plugins that an event may have handles of: ours, and those behind it.
pub(super) const PLUGINS: usize = 5;
/// Lines for events that are no ProxyOp.
const EVENTS: u32 = 1 << 18;
/// ProxyOps.
const OPS: u32 = 1 << 14;
/// Steps of a ProxyOp that NCCL distinguishes (`NCCL_STEPS`).
const STEPS: u32 = 8;
/// Lines of a ProxyOp: its own, and its steps'.
const OP_LINES: u32 = 1 + STEPS;
const LINES: u32 = EVENTS + OPS * OP_LINES;
/// Open events that are skipped before the oldest of them loses its line.
const PATIENCE: u32 = 16;
/// Lines on a page.
const PAGE: u32 = 64;
/// Lines that are touched before they are taken.
const AHEAD: u32 = 128 * PAGE;

/// Bits of [`Line::info`]: started and not stopped.
const OPEN: u32 = 1 << 31;
/// Where the plugins that have a handle for a step's operation begin.
const HAS_OP: u32 = 16;

/// A line. Every field is atomic, so that no use of a handle is a data race; the stamp is odd while
/// the others change.
#[repr(C, align(64))]
struct Line {
    stamp: AtomicU32,
    info: AtomicU32,
    handles: [AtomicU64; PLUGINS],
    /// The lower bits of the masks, and those above.
    masks: [AtomicU16; PLUGINS],
    high: [AtomicU8; PLUGINS],
}

const _: () = assert!(size_of::<Line>() == 64);
// That is the room for a plugin's mask.
const _: () = assert!(EventType::ALL.len() <= 24);

/// What an event's line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    index: u32,
    stamp: u32,
    pub(super) event: Option<EventType>,
    /// Each plugin's handle; 0 where it gave none.
    pub(super) handles: [u64; PLUGINS],
    /// Each plugin's mask as it was when the operation began.
    pub(super) masks: [u32; PLUGINS],
    /// Bits of the plugins that gave a handle for the operation of a step.
    pub(super) has_op: u32,
}

/// All lines, in memory that is never unmapped.
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
    /// Reserves the memory. `nonce` distinguishes this process's handles from another's.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(nonce: u32) -> std::io::Result<Slab> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = LINES as usize * size_of::<Line>();
        // SAFETY: a new mapping, wherever the system puts it.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: mapped for the rest of the process, aligned to a page, so long, and zero, which
        // is a value of a line.
        let lines = unsafe { core::slice::from_raw_parts(start.cast::<Line>(), LINES as usize) };
        let (next_event, next_op) = (AtomicU32::new(1), AtomicU32::new(0));
        let slab = Slab { lines, nonce, next_event, next_op };
        slab.touch(&mut Touched::default());
        Ok(slab)
    }

    /// Brings in the memory that will be taken next. Not for callbacks.
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

    /// The meaning of a handle; `None` for an invalid one, or one of an event that is over.
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

    /// The event has stopped: its line may be taken by another, later. A step's is its operation's.
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

    /// Keeps an event's handles, and returns the handle for NCCL; 0 in the case, which takes more
    /// threads at once than there are lines, that none is free.
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

    /// The same for a step of the operation `op`, in that one's lines.
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

    /// Finds a line, the oldest that is not open if it is among the next few, and marks it as one
    /// that changes.
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
        // The stamp is odd before anything else changes.
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
        // 0 stands for a line that never held anything.
        let stamp = match stamp.wrapping_add(1) {
            0 => 2,
            stamp => stamp,
        };
        line.stamp.store(stamp, Ordering::Release);
        u64::from(stamp.wrapping_add(self.nonce)) << 32 | u64::from(index)
    }
}

/// How far memory is brought in: lines of events, and of ProxyOps, each from its first.
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
