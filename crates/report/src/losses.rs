// SPDX-License-Identifier: Apache-2.0
/*!
What is missing from recordings, why, and which variable prevents it next time.

The headers have all counts. Only the ring size that would have sufficed needs the number of records
in the recording.
*/

use crate::schema::{Loss, Lost};
use ncclscope_operations::human;
use ncclscope_trace::kind::{DEFAULT_EVENTS, KINDS};
use ncclscope_trace::layout::{MOST_SEGMENTS, SEGMENT};
use ncclscope_trace::{EventKind, Recording};
use std::collections::BTreeMap;

/// Advice to leave out a kind of events is given if its share of the losses is at least one in this
/// many.
const WORTH_SPARING: u64 = 4;
/// The greatest value of `NCCLSCOPE_RING_MB`.
const RING_MIB_MAX: u64 = MOST_SEGMENTS as u64 * SEGMENT / MIB;
const MIB: u64 = 1 << 20;

/// Collects the losses of recordings.
#[derive(Debug, Default)]
pub struct Losses {
    lost: Lost,
    /// Union of the activation masks of all processes.
    mask: u32,
    /// Size of the largest ring, MiB.
    ring: u64,
    /// Size of a ring that would have held all records of any process, MiB; 0 if all rings did.
    ring_needed: u64,
}

impl Losses {
    /// Adds the number of a process's kernel channels with the times of other kernels.
    pub fn add_stray(&mut self, kernels: u64) {
        self.lost.stray_kernel_times += kernels;
    }

    /// Adds a process. `records` returns the number of records in its recording, and is called only
    /// if records were overwritten.
    pub fn add(&mut self, recording: &Recording, records: impl FnOnce() -> u64) {
        let (lost, header) = (&mut self.lost, recording.header());
        for lane in recording.lanes() {
            lost.total += add_kinds(&mut lost.by_kind, &lane.header.lost);
            lost.total += add_kinds(&mut lost.ends_by_kind, &lane.header.lost_ends);
        }
        lost.total += add_kinds(&mut lost.without_lane_by_kind, &header.without_lane);
        lost.total += add_kinds(&mut lost.without_slot_by_kind, &header.without_slot);
        lost.total += add_kinds(&mut lost.unwritten_by_kind, &header.unwritten);
        add_kinds(&mut lost.overwritten_by_kind, &header.overwritten);
        lost.definitions += header.definitions_lost;
        lost.strings += header.strings_lost;
        lost.comms += header.comms_lost;
        lost.removed += u64::from(recording.identity().replaces.is_some());
        lost.garbage_words += header.garbage_words;
        lost.unknown_events += header.unknown_events;
        lost.panics += header.panics;
        lost.total += header.definitions_lost + header.strings_lost;
        lost.total += header.comms_lost + header.garbage_words;
        self.mask |= header.mask;
        self.ring = self.ring.max(ring_bytes(recording).div_ceil(MIB));
        self.ring_needed = self.ring_needed.max(ring_needed(recording, records));
    }

    /// The losses, each with the variable that prevents it.
    #[must_use]
    pub fn finish(mut self) -> Lost {
        self.lost.losses = self.told();
        self.lost
    }

    fn told(&self) -> Vec<Loss> {
        let lost = &self.lost;
        let full = (!lost.by_kind.is_empty()).then(|| self.slower(&lost.by_kind));
        let full_at_ends = full.is_none().then(|| self.slower(&lost.ends_by_kind));
        let room = format!(
            "make room for {} MiB a process, or choose another directory with NCCLSCOPE_DIR \
             (`ncclscope run -o`), or less room with NCCLSCOPE_RING_MB={}",
            self.ring + 1,
            (self.ring / 4).max(1)
        );
        let threads = "a process has 256 lanes, and new ones some milliseconds after its first \
                       events: let the threads that call NCCL live on rather than start new ones";
        let slots = "32,768 ProxyOps of a process can be in flight; the oldest are kept. Fewer \
                     operations ahead of the GPU, or fewer channels (NCCL_MAX_CTAS, \
                     NCCL_MAX_P2P_NCHANNELS), make fewer";
        let by_kind = [
            ("events dropped because their threads' lanes were full", &lost.by_kind, full),
            (
                "stops and states not recorded, so that finished events may look open",
                &lost.ends_by_kind,
                full_at_ends,
            ),
            (
                "events dropped because their threads had no lane",
                &lost.without_lane_by_kind,
                Some(threads.into()),
            ),
            (
                "events dropped because too many ProxyOps were in flight",
                &lost.without_slot_by_kind,
                Some(slots.into()),
            ),
            (
                "records not written because the disk was full or failed",
                &lost.unwritten_by_kind,
                Some(room),
            ),
            (
                "oldest records overwritten (bounded recording)",
                &lost.overwritten_by_kind,
                Some(self.longer()),
            ),
        ];
        let by_kind = by_kind.into_iter().filter(|(_, counts, _)| !counts.is_empty());
        let by_kind = by_kind.map(|(what, counts, advice)| Loss {
            what: format!("{what}: {}", kinds(counts)),
            advice,
        });
        let numbers = self.told_by_number().chain(self.stray());
        self.removed().into_iter().chain(by_kind).chain(numbers).collect()
    }

    /// What recordings had before they were removed. It is in no count.
    fn removed(&self) -> Option<Loss> {
        let processes = human::if_one(self.lost.removed, "process", "processes");
        let what = format!(
            "what came before: the recordings of {} {processes} were removed while they were \
             written",
            self.lost.removed
        );
        let advice = "remove or move a directory of recordings after its job; NCCLSCOPE_DIR \
                      (`ncclscope run -o`) chooses one that nothing cleans up";
        (self.lost.removed != 0).then(|| Loss { what, advice: Some(advice.into()) })
    }

    /// The loss of kernel times that belong to other kernels.
    fn stray(&self) -> Option<Loss> {
        let count = self.lost.stray_kernel_times;
        let what = format!(
            "kernel times of {} belong to other kernels, and are not used: NCCL's ring of times \
             was read too late, or its counts of works differ (after a rank's sends to itself, \
             2.26 to 2.30, or Broadcasts, from 2.29 on)",
            human::count(count, "event")
        );
        let advice = "NCCLSCOPE_CUDA_EVENTS=on times kernels by CUDA events instead; NCCL from \
                      2.31 on counts a rank's sends to itself (NCCLSCOPE_KERNEL=on); \
                      NCCLSCOPE_KERNEL=off does without kernel channels";
        (count != 0).then(|| Loss { what, advice: Some(advice.into()) })
    }

    fn told_by_number(&self) -> impl Iterator<Item = Loss> {
        let lost = &self.lost;
        let report = "please report it: this is a defect of ncclscope";
        let numbers = [
            (lost.definitions, "name", "found no room in the file", None),
            (lost.strings, "string", "found no room in the plugin", None),
            (lost.comms, "communicator", "found no room in the plugin", None),
            (lost.garbage_words, "word", "of no record", Some(report)),
            (lost.panics, "callback", "failed inside the plugin", Some(report)),
        ];
        let numbers = numbers.into_iter().filter(|(count, ..)| *count != 0);
        numbers.map(|(count, what, why, advice)| Loss {
            what: format!("{} {why}", human::count(count, what)),
            advice: advice.map(str::to_owned),
        })
    }

    /// Advice against full lanes.
    fn slower(&self, lost: &BTreeMap<&'static str, u64>) -> String {
        let less = match self.less(lost) {
            Some(settings) => format!("{settings} records less; "),
            None => String::new(),
        };
        format!(
            "callbacks came faster than they could be written, and the newest were dropped: \
             {less}a processor core for the plugin's own thread (ncclscope/drain), and \
             NCCLSCOPE_DIR on a local disk or in memory, let it write faster"
        )
    }

    /// Advice against a ring that is too small.
    fn longer(&self) -> String {
        let needed = self.ring_needed;
        let less = match self.less(&self.lost.overwritten_by_kind) {
            Some(settings) => format!("; {settings} makes {} MiB last longer", self.ring),
            None => String::new(),
        };
        format!("NCCLSCOPE_RING_MB={needed} keeps them all, for {needed} MiB a process{less}")
    }

    /// Settings that leave out the kinds with most losses, if these are spare kinds or kernel
    /// channels.
    fn less(&self, lost: &BTreeMap<&'static str, u64>) -> Option<String> {
        let all: u64 = lost.values().sum();
        let is_heavy = |kind: &EventKind| {
            lost.get(kind.name()).is_some_and(|count| count * WORTH_SPARING >= all)
        };
        let spared = EventKind::ALL.iter().filter(|kind| kind.is_spare() && is_heavy(kind));
        let spared = spared.fold(0, |mask, kind| mask | kind.bit());
        let mut settings = Vec::new();
        if spared != 0 {
            settings.push(format!("NCCLSCOPE_EVENTS={}", events(self.mask & !spared)));
        }
        if is_heavy(&EventKind::KernelCh) {
            settings.push("NCCLSCOPE_KERNEL=off".into());
        }
        (!settings.is_empty()).then(|| settings.join(" "))
    }
}

/// The value of `NCCLSCOPE_EVENTS` for a mask.
fn events(mask: u32) -> String {
    let mut words = vec!["default".to_owned()];
    for kind in EventKind::ALL {
        match (DEFAULT_EVENTS & kind.bit() != 0, mask & kind.bit() != 0) {
            (true, false) => words.push(format!("-{kind}")),
            (false, true) => words.push(kind.to_string()),
            _ => {}
        }
    }
    words.join(",")
}

/// Formats counts by kind: `Coll 3, ProxyStep 120`.
fn kinds(counts: &BTreeMap<&str, u64>) -> String {
    let kinds: Vec<String> = counts.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    kinds.join(", ")
}

fn ring_bytes(recording: &Recording) -> u64 {
    u64::from(recording.header().segments) * SEGMENT
}

/// Size of a ring that would have held all records, in MiB and rounded up to a power of two; 0 if
/// the ring did. Assumes that overwritten records were as long as the others.
fn ring_needed(recording: &Recording, records: impl FnOnce() -> u64) -> u64 {
    let gone: u64 = recording.header().overwritten.iter().sum();
    if gone == 0 {
        return 0;
    }
    let kept = records().max(1);
    let bytes = u128::from(ring_bytes(recording)) * u128::from(kept + gone) / u128::from(kept);
    let mib = u64::try_from(bytes.div_ceil(u128::from(MIB))).unwrap_or(RING_MIB_MAX);
    mib.min(RING_MIB_MAX).next_power_of_two()
}

fn add_kinds(to: &mut BTreeMap<&'static str, u64>, from: &[u64; KINDS]) -> u64 {
    for (kind, &count) in EventKind::ALL.iter().zip(from).filter(|(_, count)| **count != 0) {
        *to.entry(kind.name()).or_default() += count;
    }
    from.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_alone_come_with_the_advice_of_full_lanes() {
        let mut losses = Losses { mask: DEFAULT_EVENTS, ..Losses::default() };
        losses.lost.ends_by_kind.insert("ProxyOp", 3);
        let told = losses.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].what.ends_with("may look open: ProxyOp 3"), "{told:?}");
        let advice = told[0].advice.as_deref().unwrap_or_default();
        assert!(advice.starts_with("callbacks came faster than they could be written"), "{advice}");
        assert!(!advice.contains("NCCLSCOPE_EVENTS"), "ProxyOps cannot be spared: {advice}");
        losses.lost.by_kind.insert("ProxyStep", 1);
        let told = losses.told();
        assert!(told[0].advice.is_some() && told[1].advice.is_none(), "once is enough: {told:?}");
    }

    #[test]
    fn proxy_ops_without_a_slot_come_with_their_own_advice() {
        let mut losses = Losses { mask: DEFAULT_EVENTS, ..Losses::default() };
        losses.lost.without_slot_by_kind.extend([("ProxyOp", 3), ("ProxyStep", 12)]);
        let told = losses.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].what.ends_with("were in flight: ProxyOp 3, ProxyStep 12"), "{told:?}");
        let advice = told[0].advice.as_deref().unwrap_or_default();
        let slots = ncclscope_trace::handle::SLOTS;
        assert!(advice.starts_with(&format!("{},{:03}", slots / 1000, slots % 1000)), "{advice}");
        assert!(!advice.contains("faster"), "a quicker disk does not help: {advice}");
    }

    #[test]
    fn a_ring_that_is_too_small_comes_with_one_that_is_not() {
        let mut losses =
            Losses { mask: DEFAULT_EVENTS, ring: 64, ring_needed: 256, ..Losses::default() };
        losses.lost.overwritten_by_kind.extend([("ProxyStep", 90), ("Coll", 10)]);
        let told = losses.told();
        let advice = told[0].advice.as_deref().unwrap_or_default();
        let expected = "NCCLSCOPE_RING_MB=256 keeps them all, for 256 MiB a process; \
                        NCCLSCOPE_EVENTS=default,-ProxyStep makes 64 MiB last longer";
        assert_eq!(advice, expected);
    }
}
