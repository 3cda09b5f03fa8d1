// SPDX-License-Identifier: Apache-2.0
/*!
Time stamps: raw ticks, which readers of the records convert.

Ticks come from the processor's counter if it is known to be reliable (x86-64: an invariant TSC that
is not trapped, and that the kernel itself uses as its clock source), because it costs half as much
as `clock_gettime`. Otherwise ticks are the nanoseconds of `CLOCK_MONOTONIC`.
*/

use crate::sync::{AtomicU8, Ordering};
use ncclscope_trace::{ClockSource, ClockSync};

static USE_COUNTER: AtomicU8 = AtomicU8::new(0);

/// The current time in ticks of [`source`].
#[must_use]
#[inline(always)]
pub fn now() -> u64 {
    counter().unwrap_or_else(monotonic)
}

/// The processor's counter; `None` if it is not the source.
#[must_use]
#[inline(always)]
pub fn counter() -> Option<u64> {
    Counter::get().map(Counter::read)
}

/// Proof that the processor's counter is the source.
#[derive(Clone, Copy, Debug)]
pub struct Counter(());

impl Counter {
    /// `None` if the processor's counter is not the source.
    #[must_use]
    #[inline(always)]
    pub fn get() -> Option<Counter> {
        let is_source = cfg!(target_arch = "x86_64") && USE_COUNTER.load(Ordering::Relaxed) != 0;
        is_source.then_some(Counter(()))
    }

    /// The counter's current value.
    #[must_use]
    #[inline(always)]
    pub fn read(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: RDTSC has no preconditions in user mode; `choose` saw that it is not trapped.
        return unsafe { core::arch::x86_64::_rdtsc() };
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("it is no source here")
    }
}

/// The nanoseconds of `CLOCK_MONOTONIC`. Not inlined, because it would enlarge the callbacks'
/// frames.
#[cold]
#[inline(never)]
fn monotonic() -> u64 {
    gettime(libc::CLOCK_MONOTONIC)
}

/// The clock that [`now`] reads.
#[must_use]
pub fn source() -> ClockSource {
    if USE_COUNTER.load(Ordering::Relaxed) != 0 { ClockSource::Tsc } else { ClockSource::Monotonic }
}

/// Chooses the source; `allow_counter` is false if the user requested the system's clock. Call
/// before the first [`now`], and not from a callback.
pub fn choose(allow_counter: bool) {
    let good = allow_counter && counter_is_good();
    USE_COUNTER.store(u8::from(good), Ordering::Relaxed);
}

/// True if reading the processor's counter would kill the calling thread and the threads that it
/// starts (`PR_SET_TSC`). The C library's `clock_gettime` reads the counter too.
#[must_use]
pub fn is_forbidden() -> bool {
    let mut mode: libc::c_int = 0;
    // SAFETY: writes one `int` to `mode`, which is valid for it. Fails on other processors than
    // x86.
    let result = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut mode) };
    result == 0 && mode == libc::PR_TSC_SIGSEGV
}

#[cfg(target_arch = "x86_64")]
fn counter_is_good() -> bool {
    // This must come before the first read of the counter.
    if is_forbidden() {
        return false;
    }
    let leaf = core::arch::x86_64::__cpuid(0x8000_0000).eax;
    let invariant =
        leaf >= 0x8000_0007 && core::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0;
    let trusted = kernel_source().is_some_and(|name| name == "tsc");
    // A hypervisor that traps RDTSC makes it slower than the system's clock.
    invariant && trusted && cheapest_read_ns() <= 60
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_good() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn cheapest_read_ns() -> u64 {
    let mut best = u64::MAX;
    for _ in 0..8 {
        let start = gettime(libc::CLOCK_MONOTONIC);
        for _ in 0..32 {
            // SAFETY: RDTSC has no preconditions in user mode; at worst it is slow.
            std::hint::black_box(unsafe { core::arch::x86_64::_rdtsc() });
        }
        best = best.min((gettime(libc::CLOCK_MONOTONIC) - start) / 32);
    }
    best
}

/// The clock source that the kernel uses now; `None` if its file cannot be read.
#[must_use]
pub fn kernel_source() -> Option<String> {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(file).ok().map(|name| name.trim().to_owned())
}

/// Checks comparisons of the clocks for faults of the processor's counter as the source.
#[derive(Debug, Default)]
pub struct Doubts {
    reference: Option<ClockSync>,
    steady: Option<f64>,
    told_source: bool,
    told_rate: bool,
}

/// Tolerated change of the rate (ticks per nanosecond), as a share: far more than the slewing of a
/// clock to network time, far less than a migration to another processor causes.
const MOST_DRIFT: f64 = 200e-6;
/// Minimum distance between two comparisons that give a rate, ns.
const APART_NS: u64 = 10_000_000_000;

impl Doubts {
    /// Checks a new comparison and, if given, the clock source that the kernel uses now
    /// ([`kernel_source`]; once a minute is enough). Returns a message for each new fault.
    pub fn look(&mut self, sync: &ClockSync, source: Option<&str>) -> Vec<String> {
        let mut lines = Vec::new();
        if self::source() != ClockSource::Tsc {
            return lines;
        }
        if let Some(source) = source.filter(|&source| source != "tsc")
            && !core::mem::replace(&mut self.told_source, true)
        {
            lines.push(format!(
                "the kernel no longer trusts the processor's counter (clock source {source}): \
                 times of threads on different processors may disagree; NCCLSCOPE_CLOCK=monotonic \
                 avoids it"
            ));
        }
        if let Some(off) = self.drift(sync).filter(|off| off.abs() > MOST_DRIFT)
            && !core::mem::replace(&mut self.told_rate, true)
        {
            lines.push(format!(
                "the processor's counter changed its rate by {:.0} ppm against CLOCK_MONOTONIC, as \
                 after a migration: durations of this recording are off by as much",
                off * 1e6
            ));
        }
        lines
    }

    /// Relative change of the rate since the previous comparison against the first rate; `None` if
    /// the comparisons are too close or too imprecise.
    #[expect(clippy::cast_precision_loss, reason = "differences of seconds")]
    fn drift(&mut self, sync: &ClockSync) -> Option<f64> {
        let before = *self.reference.get_or_insert(*sync);
        let ns = sync.monotonic_ns.saturating_sub(before.monotonic_ns);
        // The uncertainty of the comparisons must not look like a drift.
        let error = u64::from(sync.error_ns) + u64::from(before.error_ns);
        if ns < APART_NS || error as f64 > ns as f64 * MOST_DRIFT / 10.0 {
            return None;
        }
        self.reference = Some(*sync);
        let rate = sync.ticks.wrapping_sub(before.ticks) as f64 / ns as f64;
        let steady = *self.steady.get_or_insert(rate);
        Some(rate / steady - 1.0)
    }
}

/// `CLOCK_MONOTONIC`, ns; for the drain thread.
#[must_use]
pub fn now_ns() -> u64 {
    gettime(libc::CLOCK_MONOTONIC)
}

/// Compares the ticks with the system's clocks; the best of 16 readings.
#[must_use]
pub fn compare() -> ClockSync {
    let mut best = ClockSync { error_ns: u32::MAX, ..ClockSync::default() };
    for _ in 0..16 {
        let before = gettime(libc::CLOCK_MONOTONIC);
        let ticks_before = now();
        let realtime_ns = gettime(libc::CLOCK_REALTIME);
        let ticks_after = now();
        let after = gettime(libc::CLOCK_MONOTONIC);
        let width = u32::try_from(after - before).unwrap_or(u32::MAX);
        if width < best.error_ns {
            best = ClockSync {
                ticks: ticks_before + (ticks_after - ticks_before) / 2,
                monotonic_ns: before + (after - before) / 2,
                realtime_ns,
                error_ns: width,
            };
        }
    }
    best
}

#[inline]
fn gettime(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to; the clock ids used here always exist.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serializes the tests that choose the source, which is one for the process.
    #[expect(clippy::disallowed_types, reason = "tests may block")]
    static SOURCE_IS_MINE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn both_sources_run_at_their_rate() {
        let _source = SOURCE_IS_MINE.lock();
        choose(false);
        assert_eq!(source(), ClockSource::Monotonic);
        assert!((0.98..1.02).contains(&ticks_per_ns()));
        choose(true);
        let rate = ticks_per_ns();
        assert!((rate / ticks_per_ns() - 1.0).abs() < 0.02, "{rate} is not a steady rate");
    }

    fn sync(second: u64, ticks: u64) -> ClockSync {
        ClockSync { ticks, monotonic_ns: second * 1_000_000_000, realtime_ns: 0, error_ns: 100 }
    }

    #[test]
    fn a_counter_that_loses_trust_or_its_rate_is_told_once() {
        let _source = SOURCE_IS_MINE.lock();
        const HZ: u64 = 2_600_000_000;
        choose(true);
        if source() != ClockSource::Tsc {
            println!("skipped: the counter is no source here");
            return;
        }
        let mut doubts = Doubts::default();
        let steady = (0..600).map(|s| doubts.look(&sync(s, s * HZ), Some("tsc")));
        assert_eq!(steady.flatten().count(), 0);
        // 150 ppm is what NTP may do to the system's clock.
        let slewed = (600..700).map(|s| {
            let ticks = 600 * HZ + (s - 600) * (HZ + HZ / 1_000_000 * 150);
            doubts.look(&sync(s, ticks), None)
        });
        assert_eq!(slewed.flatten().count(), 0);
        let at = 700 * HZ;
        let moved = (700..800).map(|s| doubts.look(&sync(s, at + (s - 700) * HZ / 2), None));
        let lines: Vec<String> = moved.flatten().collect();
        assert!(matches!(&lines[..], [line] if line.contains("changed its rate")), "{lines:?}");
        let distrusted = (0..3).map(|s| doubts.look(&sync(900 + s, 0), Some("hpet")));
        let lines: Vec<String> = distrusted.flatten().collect();
        assert!(matches!(&lines[..], [line] if line.contains("clock source hpet")), "{lines:?}");
        // A comparison as imprecise as the drift proves nothing.
        let mut doubts = Doubts::default();
        let wide = (0..100).map(|s| {
            let sync = ClockSync { error_ns: 10_000_000, ..sync(s, s * s * HZ) };
            doubts.look(&sync, None)
        });
        assert_eq!(wide.flatten().count(), 0);
    }

    #[test]
    fn a_process_that_may_not_read_the_counter_does_not() {
        let set = |mode: libc::c_int| {
            // SAFETY: only forbids or allows an instruction that this thread does not use
            // meanwhile.
            unsafe { libc::prctl(libc::PR_SET_TSC, mode) }
        };
        let (forbidden, good) = std::thread::spawn(move || {
            if set(libc::PR_TSC_SIGSEGV) != 0 {
                return (true, false);
            }
            let seen = (is_forbidden(), counter_is_good());
            set(libc::PR_TSC_ENABLE);
            seen
        })
        .join()
        .unwrap();
        assert!(forbidden && !good);
        assert!(!is_forbidden(), "it was the thread's");
    }

    #[expect(clippy::cast_precision_loss, reason = "differences of 20 ms")]
    fn ticks_per_ns() -> f64 {
        let a = compare();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let b = compare();
        assert!(b.realtime_ns > a.realtime_ns);
        (b.ticks - a.ticks) as f64 / (b.monotonic_ns - a.monotonic_ns) as f64
    }
}
