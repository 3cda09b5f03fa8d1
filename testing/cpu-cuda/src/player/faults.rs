// SPDX-License-Identifier: Apache-2.0
//! Planted kernel faults, for tests of monitoring.
//!
//! `CPU_CUDA_FAULTS` holds faults separated by `;`, each `NAME` or `NAME:KEY=VALUE,KEY=VALUE`:
//!
//! | fault | effect |
//! | --- | --- |
//! | `never:launch=N[,channel=C]` | the kernel does not begin, until NCCL aborts |
//! | `fail:launch=N` | the kernel ends with an error, and the device's context is lost |
//! | `mute:launch=N` | from launch N on no work is reported to the profiler |
//! | `stuck[:launch=N,channel=C,step=S]` | it stops before step S, until NCCL aborts |
//! | `delay:us=U[,jitter=PERCENT]` | each step takes U µs more |
//! | `slow:[peer=P,us=U,mbps=M]` | each step towards P takes U µs and its bytes over M MB/s more |
//! | `skew:[ns=O,ppm=D]` | the GPU's clock is O ns ahead (negative: behind) and runs D ppm fast |
//! | `wrap[:bits=B,launch=N]` | the GPU's clock has B bits (32); `bits=0`: it stands |
//! | `early[:launch=N]` | a stop is written at the start, as NVLS does with room for all its data |
//! | `behind:works=W` | a channel's first W works are reported to the profiler with the W-th |
//! | `seed:value=V` | another sequence of jitters |
//!
//! All but `seed` take `rank=R`: this rank of each communicator only. Launches count from 1 in each
//! communicator, steps from 1 in each channel of a launch; a step is a slice (SIMPLE) or a chunk
//! (LL). Without a key a fault applies to all; `stuck` without a key to the first launch and step.
//! With a launch, `wrap` begins at the first step of that launch, so that the clock goes back once,
//! within it. With `behind` a channel that never reaches W works reports nothing.
//!
//! Equal values give equal faults in every run. This module decides on the faults; `block.rs`
//! applies waits and `prof.rs` applies wrong counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::memory::Addr;

/// The variable that holds the faults.
const VARIABLE: &str = "CPU_CUDA_FAULTS";

/// The kinds of faults; see the module's table.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Never { launch: u64, channel: Option<u64> },
    Fail { launch: u64 },
    Mute { launch: u64 },
    Stuck { launch: u64, channel: Option<u64>, step: u64 },
    Delay { us: u64, jitter: u64 },
    Slow { peer: Option<u64>, us: u64, mbps: Option<u64> },
    Skew { ns: i64, ppm: i64 },
    Wrap { bits: u64, launch: u64 },
    Early { launch: Option<u64> },
    Behind { works: u64 },
}

/// A fault and its rank.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fault {
    kind: Kind,
    rank: Option<u64>,
}

/// All faults of a process; by default none.
#[derive(Debug, Default)]
pub struct Faults {
    list: Vec<Fault>,
    seed: u64,
    /// When the process began, in nanoseconds since 1970: drift counts from here.
    begun: u64,
    /// Launches so far of each communicator, by its address on the device.
    launches: Mutex<HashMap<u64, u64>>,
    /// Delayed counters, by the address of the channel's counters.
    held: Mutex<HashMap<u64, Held>>,
}

/// Counters of a channel that are not written yet.
#[derive(Debug, Default)]
struct Held {
    /// (address, value) of each counter.
    writes: Vec<(Addr, u64)>,
    works: u64,
}

/// The action before a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// Continue after this time, usually 0.
    After(Duration),
    /// Never continue.
    Stuck,
}

/// The faults of one block of one launch.
#[derive(Debug)]
pub(crate) struct Here<'a> {
    faults: &'a Faults,
    rank: u64,
    launch: u64,
    channel: u64,
    /// Steps so far; sends and receives of a block run on separate threads.
    steps: AtomicU64,
}

impl Faults {
    /// The faults that the environment asks for.
    ///
    /// # Errors
    /// A line that names the variable and what is wrong with it.
    pub fn from_env() -> Result<Self, String> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(Self::default()) };
        let text = value.to_str().ok_or_else(|| format!("{VARIABLE} is not UTF-8"))?;
        Self::parse(text).map_err(|error| format!("{VARIABLE}={text}: {error}"))
    }

    /// Parses a list of faults; see the module's table.
    ///
    /// # Errors
    /// A text that names the fault and the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut faults = Self { begun: now(), ..Self::default() };
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, keys) = entry.split_once(':').unwrap_or((entry, ""));
            let mut keys = Keys::parse(name, keys)?;
            if name == "seed" {
                faults.seed = keys.required("value")?;
            } else {
                let rank = keys.number("rank")?;
                faults.list.push(Fault { kind: kind(name, &mut keys)?, rank });
            }
            keys.finish()?;
        }
        Ok(faults)
    }

    /// Counts a launch of the communicator at `comm`; from 1.
    pub(super) fn launch(&self, comm: Addr) -> u64 {
        if self.list.is_empty() {
            return 0;
        }
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let count = launches.entry(comm.get()).or_default();
        *count += 1;
        *count
    }

    /// The faults of a block; none if nothing is wrong with its rank.
    pub(super) fn here(&self, rank: usize, launch: u64, channel: usize) -> Option<Here<'_>> {
        let (rank, channel) = (rank as u64, channel as u64);
        let of_rank = |fault: &Fault| fault.rank.is_none_or(|of| of == rank);
        let here = Here { faults: self, rank, launch, channel, steps: AtomicU64::new(0) };
        self.list.iter().any(of_rank).then_some(here)
    }
}

impl Here<'_> {
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let of_rank = |fault: &&Fault| fault.rank.is_none_or(|rank| rank == self.rank);
        self.faults.list.iter().filter(of_rank).map(|fault| fault.kind)
    }

    /// Whether the kernel never begins.
    pub(crate) fn never(&self) -> bool {
        let is_this = |of: Option<u64>| of.is_none_or(|channel| channel == self.channel);
        self.kinds().any(|kind| match kind {
            Kind::Never { launch, channel } => launch == self.launch && is_this(channel),
            _ => false,
        })
    }

    /// Whether the kernel ends with an error.
    pub(crate) fn fails(&self) -> bool {
        self.kinds().any(|kind| kind == Kind::Fail { launch: self.launch })
    }

    /// Whether the profiler gets no counters.
    fn is_mute(&self) -> bool {
        self.kinds().any(|kind| matches!(kind, Kind::Mute { launch } if launch <= self.launch))
    }

    /// Whether thread 0 stops early.
    pub(crate) fn early(&self) -> bool {
        let is_this = |launch: u64| launch == self.launch;
        let is_early = |kind| matches!(kind, Kind::Early { launch } if launch.is_none_or(is_this));
        self.kinds().any(is_early)
    }

    /// The action before the block's next step, which sends `bytes` to each of `peers`.
    pub(crate) fn step(&self, peers: impl Iterator<Item = usize>, bytes: usize) -> Verdict {
        let at = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        let peers: Vec<_> = peers.map(|peer| peer as u64).collect();
        let mut micros = 0;
        for kind in self.kinds() {
            match kind {
                Kind::Stuck { launch, channel, step }
                    if launch == self.launch
                        && channel.is_none_or(|channel| channel == self.channel)
                        && at >= step =>
                {
                    return Verdict::Stuck;
                }
                Kind::Delay { us, jitter } => micros += self.jittered(us, jitter, at),
                Kind::Slow { peer, us, mbps } => {
                    let hit = peers.iter().filter(|&&to| peer.is_none_or(|peer| peer == to));
                    // A megabyte a second is a byte a microsecond.
                    let transfer = mbps.map_or(0, |mbps| bytes as u64 / mbps.max(1));
                    micros += hit.count() as u64 * us.saturating_add(transfer);
                }
                _ => {}
            }
        }
        Verdict::After(Duration::from_micros(micros))
    }

    /// `us` plus or minus up to `jitter` percent, the same in every run.
    fn jittered(&self, us: u64, jitter: u64, step: u64) -> u64 {
        let range = us.saturating_mul(jitter.min(100)) / 100;
        let mut mixed = self.faults.seed;
        for part in [self.rank, self.channel, self.launch, step] {
            mixed = mix(mixed ^ part);
        }
        us - range + mixed % (2 * range + 1)
    }

    /// The GPU's clock at `now`, in nanoseconds since 1970.
    pub(crate) fn clock(&self, now: u64) -> u64 {
        self.kinds().fold(now, |shown, kind| match kind {
            Kind::Skew { ns, ppm } => {
                let elapsed = i128::from(now.saturating_sub(self.faults.begun));
                let drift = i64::try_from(elapsed * i128::from(ppm) / 1_000_000).unwrap_or(0);
                shown.wrapping_add_signed(ns).wrapping_add_signed(drift)
            }
            Kind::Wrap { bits, launch } if bits < 64 && self.is_within(launch) => {
                shown & ((1 << bits) - 1)
            }
            _ => shown,
        })
    }

    /// Whether the launch's first step has begun, or a later launch.
    fn is_within(&self, launch: u64) -> bool {
        let has_begun = self.steps.load(Ordering::Relaxed) > 0;
        self.launch > launch || self.launch == launch && has_begun
    }

    /// Writes the profiler's counters in this order, or delays them. `channel` identifies the
    /// channel's counters; `works` more works have ended.
    pub(crate) fn write(&self, channel: Addr, writes: Vec<(Addr, u64)>, works: u64) {
        if self.is_mute() {
            return;
        }
        let behind = self.kinds().find_map(|kind| match kind {
            Kind::Behind { works } => Some(works),
            _ => None,
        });
        let mut all = self.faults.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = all.entry(channel.get()).or_default();
        held.works += works;
        held.writes.extend(writes);
        if behind.is_none_or(|behind| held.works >= behind) {
            held.writes.drain(..).for_each(|(at, value)| at.store_u64(value));
        }
    }
}

/// The keys of one fault.
struct Keys<'a> {
    fault: &'a str,
    pairs: HashMap<&'a str, &'a str>,
}

impl<'a> Keys<'a> {
    fn parse(fault: &'a str, text: &'a str) -> Result<Self, String> {
        let mut pairs = HashMap::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| format!("{fault}: `{pair}` is no KEY=VALUE"))?;
            if pairs.insert(key, value).is_some() {
                return Err(format!("{fault}: {key} is given twice"));
            }
        }
        Ok(Self { fault, pairs })
    }

    /// Removes and parses a number; `None` if the key is missing.
    fn number<N: std::str::FromStr>(&mut self, key: &str) -> Result<Option<N>, String> {
        let wrong = |value| format!("{}: {key}={value} is no such number", self.fault);
        self.pairs.remove(key).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    fn required(&mut self, key: &str) -> Result<u64, String> {
        self.number(key)?.ok_or_else(|| format!("{} needs {key}=", self.fault))
    }

    fn finish(self) -> Result<(), String> {
        match self.pairs.keys().next() {
            Some(key) => Err(format!("{} has no key `{key}`", self.fault)),
            None => Ok(()),
        }
    }
}

fn kind(name: &str, keys: &mut Keys<'_>) -> Result<Kind, String> {
    Ok(match name {
        "never" => {
            Kind::Never { launch: keys.required("launch")?, channel: keys.number("channel")? }
        }
        "fail" => Kind::Fail { launch: keys.required("launch")? },
        "mute" => Kind::Mute { launch: keys.required("launch")? },
        "stuck" => Kind::Stuck {
            launch: keys.number("launch")?.unwrap_or(1),
            channel: keys.number("channel")?,
            step: keys.number("step")?.unwrap_or(1),
        },
        "delay" => {
            Kind::Delay { us: keys.required("us")?, jitter: keys.number("jitter")?.unwrap_or(0) }
        }
        "slow" => Kind::Slow {
            peer: keys.number("peer")?,
            us: keys.number("us")?.unwrap_or(0),
            mbps: keys.number("mbps")?,
        },
        "skew" => Kind::Skew {
            ns: keys.number("ns")?.unwrap_or(0),
            ppm: keys.number("ppm")?.unwrap_or(0),
        },
        "wrap" => Kind::Wrap {
            bits: keys.number("bits")?.unwrap_or(32),
            launch: keys.number("launch")?.unwrap_or(0),
        },
        "early" => Kind::Early { launch: keys.number("launch")? },
        "behind" => Kind::Behind { works: keys.required("works")? },
        _ => return Err(format!("there is no fault `{name}`")),
    })
}

/// Nanoseconds since 1970, as the GPU's `%globaltimer` counts.
pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Mixes the bits of a number: multiplications by odd constants and shifts, a bijection.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Faults {
        Faults::parse(text).expect(text)
    }

    #[test]
    fn bad_syntax_is_named() {
        for (text, error) in [
            ("explode", "there is no fault `explode`"),
            ("never", "never needs launch="),
            ("delay:us", "delay: `us` is no KEY=VALUE"),
            ("delay:us=-1", "delay: us=-1 is no such number"),
            ("stuck:lunch=1", "stuck has no key `lunch`"),
            ("skew:ns=1,ns=2", "skew: ns is given twice"),
        ] {
            assert_eq!(Faults::parse(text).expect_err(text), error);
        }
        assert!(faults(" ; ").list.is_empty());
    }

    #[test]
    fn a_fault_is_where_it_was_put() {
        let faults = faults("stuck:launch=3,channel=1,step=2,rank=0;never:launch=5");
        let step = |here: &Here<'_>| here.step([].into_iter(), 0);
        let here = |rank, launch, channel| faults.here(rank, launch, channel).expect("never is");
        let stuck = here(0, 3, 1);
        assert_eq!(step(&stuck), Verdict::After(Duration::ZERO));
        assert_eq!((step(&stuck), step(&stuck)), (Verdict::Stuck, Verdict::Stuck));
        for other in [here(1, 3, 1), here(0, 2, 1), here(0, 3, 0)] {
            step(&other);
            assert_eq!(step(&other), Verdict::After(Duration::ZERO));
        }
        assert!(here(1, 5, 0).never() && !here(1, 4, 0).never());
        let part = Faults::parse("never:launch=5,channel=1;fail:launch=2").expect("good");
        let here = |launch, channel| part.here(0, launch, channel).expect("a fault");
        assert!(here(5, 1).never() && !here(5, 0).never());
        assert!(here(2, 0).fails() && !here(5, 0).fails());
        let one = Faults::parse("never:launch=1,rank=1").expect("good");
        assert!(one.here(0, 1, 0).is_none(), "nothing is wrong with rank 0");
        assert_eq!((one.launch(Addr::new(8)), one.launch(Addr::new(16))), (1, 1));
        assert_eq!(one.launch(Addr::new(8)), 2);
    }

    #[test]
    fn delays_add_up_and_repeat() {
        let faults = faults("delay:us=100;slow:peer=1,us=50,mbps=10");
        let here = faults.here(0, 1, 0).expect("a fault");
        let micros = |us| Verdict::After(Duration::from_micros(us));
        assert_eq!(here.step([1].into_iter(), 4000), micros(100 + 50 + 400));
        assert_eq!(here.step([2].into_iter(), 4000), micros(100));
        let jitters = |text| {
            let faults = Faults::parse(text).expect(text);
            let here = faults.here(0, 1, 0).expect("a fault");
            (0..50).map(|_| here.step([].into_iter(), 0)).collect::<Vec<_>>()
        };
        let first = jitters("delay:us=100,jitter=50");
        assert_eq!(first, jitters("delay:us=100,jitter=50"));
        assert_ne!(first, jitters("delay:us=100,jitter=50;seed:value=1"));
        assert!(first.iter().all(|&v| matches!(v, Verdict::After(d) if (50..=150)
            .contains(&d.as_micros()))));
    }

    #[test]
    fn a_mute_kernel_writes_no_counter() {
        let (mut counter, mute) = (0_u64, faults("mute:launch=3"));
        let at = Addr::new((&raw mut counter).expose_provenance());
        for (launch, shows) in [(2, 7), (3, 7), (4, 7)] {
            mute.here(0, launch, 0).expect("a fault").write(at, vec![(at, launch + 5)], 1);
            assert_eq!(at.load_u64(), shows, "launch {launch}");
        }
    }

    #[test]
    fn clocks_go_wrong() {
        let clock = |text, at: u64| {
            let mut faults = Faults::parse(text).expect(text);
            faults.begun = 1_000_000;
            faults.here(0, 1, 0).expect("a fault").clock(at)
        };
        assert_eq!(clock("skew:ns=-7", 2_000_000), 1_999_993);
        assert_eq!(clock("skew:ppm=100", 2_000_000), 2_000_100);
        assert_eq!(clock("wrap", (1 << 32) + 5), 5);
        assert_eq!(clock("wrap:bits=0", 77), 0);
        assert_eq!(clock("wrap:bits=64", 77), 77);
        let wraps = faults("wrap:bits=4,launch=2");
        let here = |launch| wraps.here(0, launch, 0).expect("a fault");
        let second = here(2);
        assert_eq!((here(1).clock(17), second.clock(17), here(3).clock(17)), (17, 17, 1));
        second.step([].into_iter(), 0);
        assert_eq!(second.clock(17), 1);
    }
}
