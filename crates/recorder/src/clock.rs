// SPDX-License-Identifier: Apache-2.0
/*!
Time stamps: raw ticks, converted by whoever reads the records.

The processor's counter is used where it is known to be good (x86-64: invariant TSC that the kernel
itself trusts as its clock source, and that is not trapped), since it costs half of what
`clock_gettime` does; otherwise ticks are the nanoseconds of `CLOCK_MONOTONIC`.
*/

use crate::sync::{AtomicU8, Ordering};
use ncclscope_trace::{ClockSource, ClockSync};

static USE_COUNTER: AtomicU8 = AtomicU8::new(0);

/// Now, in ticks of [`source`].
#[must_use]
#[inline(always)]
pub fn now() -> u64 {
    counter().unwrap_or_else(monotonic)
}

/// The processor's counter, if that is the source.
#[must_use]
#[inline(always)]
pub fn counter() -> Option<u64> {
    Counter::get().map(Counter::read)
}

/// The processor's counter as the source.
#[derive(Clone, Copy, Debug)]
pub struct Counter(());

impl Counter {
    /// `None` where it is not the source.
    #[must_use]
    #[inline(always)]
    pub fn get() -> Option<Counter> {
        let is_source = cfg!(target_arch = "x86_64") && USE_COUNTER.load(Ordering::Relaxed) != 0;
        is_source.then_some(Counter(()))
    }

    /// What it counts now.
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

/// Kept out of the callbacks, whose frames it would enlarge.
#[cold]
#[inline(never)]
fn monotonic() -> u64 {
    gettime(libc::CLOCK_MONOTONIC)
}

/// What [`now`] counts.
#[must_use]
pub fn source() -> ClockSource {
    if USE_COUNTER.load(Ordering::Relaxed) != 0 { ClockSource::Tsc } else { ClockSource::Monotonic }
}

/// Chooses the source; `allow_counter` is false where the user asked for the system's clock.
/// To be called before the first [`now`], not from a callback.
pub fn choose(allow_counter: bool) {
    let good = allow_counter && counter_is_good();
    USE_COUNTER.store(u8::from(good), Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn counter_is_good() -> bool {
    let leaf = core::arch::x86_64::__cpuid(0x8000_0000).eax;
    let invariant =
        leaf >= 0x8000_0007 && core::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0;
    let trusted =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .is_ok_and(|name| name.trim() == "tsc");
    // A hypervisor that traps RDTSC makes it dearer than the system's clock.
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

/// `CLOCK_MONOTONIC`, ns; for the drain thread.
#[must_use]
pub fn now_ns() -> u64 {
    gettime(libc::CLOCK_MONOTONIC)
}

/// Compares the ticks with the system's clocks: the tightest of 16 brackets.
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

    #[test]
    fn both_sources_run_at_their_rate() {
        choose(false);
        assert_eq!(source(), ClockSource::Monotonic);
        assert!((0.98..1.02).contains(&ticks_per_ns()));
        choose(true);
        let rate = ticks_per_ns();
        assert!((rate / ticks_per_ns() - 1.0).abs() < 0.02, "{rate} is not a steady rate");
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
