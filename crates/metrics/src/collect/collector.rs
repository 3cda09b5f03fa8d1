// SPDX-License-Identifier: Apache-2.0
/*!
Collects records into windows of [`Metrics`].

Records come lane by lane: a child may come before its parent, and a stop before its start. Steps,
kernels and proxy threads are counted in the window in which they are read, operations in the window
in which they settle. An operation whose stop is missing stays in flight, and does not delay others.
Memory is bounded. Events that the collector drops are counted in [`Metrics::lost`], as `unmatched`
(its start, or its operation's start, is missing), `overflow` (too many were in flight),
`unfinished` (its communicator was finalized before it ended), `overtaken` (its end is missing: a
later operation of the communicator is over, or the rank's watchdog reports it as over) or `stray`
(a kernel channel with the times of another one).
*/

use super::comms::{Comms, InFlight, OTHERS};
use super::family::{End, Families, Part, PartKind};
use super::launches::Launches;
use super::load::Load;
use super::network::{LinkChannel, Network};
use super::pxn::{Foreign, Pxn};
use super::settle::{Look, Settled};
use crate::window::{CommKey, Metrics, Name, OldestInFlight};
use ncclscope_operations::operation::valid_ptimers;
use ncclscope_operations::stamps::{Stamps, Verdict};
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::steps::told_more;
use ncclscope_operations::{Facts, Launched};
use ncclscope_trace::handle::LANES;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::progress::Progress;
use ncclscope_trace::record::{ApiCall, KernelCh, ProxyOp};
use ncclscope_trace::{
    Comm, CommDevice, Detail, EventKind, Handle, Mark, MarkKind, Record, Start, State, Step, StrId,
    TickMap,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The cause in [`Metrics::lost`] of kernel channels to which NCCL gave the times of others.
const STRAY: &str = "stray";
/// After this many new families the collector lets operations settle before the window ends, which
/// bounds memory.
const LOOK_AFTER: usize = 1 << 12;

/// Time after which no late records of a finalized communicator are expected, ns.
const ENDED_NS: f64 = 2e9;

/// Collects the metrics of one process.
#[derive(Debug)]
pub struct Collector {
    window: Metrics,
    families: Families,
    comms: Comms,
    network: Network,
    settled: Settled,
    launches: Launches,
    pxn: Pxn,
    /// Records for other processes; `None` if they are not handed over.
    foreign: Option<Vec<Foreign>>,
    /// The starts of kernels, by which overruns are found.
    stamps: Stamps<Handle>,
    loads: [Load; LANES],
    events: [u64; KINDS],
    lost: BTreeMap<(&'static str, &'static str), u64>,
    exports_lost: BTreeMap<&'static str, u64>,
    beside: Vec<Name>,
    others_mask: Option<u32>,
    ns_per_tick: f64,
    latest: u64,
    epoch_at: u64,
    look_at: usize,
    gone: Vec<CommKey>,
}

impl Default for Collector {
    /// A tick is a nanosecond until [`Collector::clock`] or [`Collector::close`] says otherwise.
    fn default() -> Collector {
        Collector {
            window: Metrics::default(),
            families: Families::default(),
            comms: Comms::default(),
            network: Network::default(),
            settled: Settled::default(),
            launches: Launches::default(),
            pxn: Pxn::default(),
            foreign: None,
            stamps: Stamps::default(),
            loads: [Load::default(); LANES],
            events: [0; KINDS],
            lost: BTreeMap::new(),
            exports_lost: BTreeMap::new(),
            beside: Vec::new(),
            others_mask: None,
            ns_per_tick: 1.0,
            latest: 0,
            epoch_at: 0,
            look_at: LOOK_AFTER,
            gone: Vec::new(),
        }
    }
}

impl Collector {
    /// Sets the length of a tick. Call it before the first record; [`Collector::close`] also sets
    /// it for the next window.
    pub fn clock(&mut self, clock: &TickMap) {
        self.ns_per_tick = clock.ns_per_tick();
    }

    /// Takes a definition of the process's string table.
    pub fn string(&mut self, id: StrId, text: &str) {
        self.comms.string(id, text);
    }

    /// Takes a definition of a communicator, new or updated. If 64 communicators already have a
    /// key, its figures are counted in [`CommKey::others`] until a window ends with fewer.
    pub fn comm(&mut self, comm: &Comm) {
        self.gone.extend(self.comms.comm(comm));
    }

    /// Takes the device of a communicator.
    pub fn device(&mut self, device: &CommDevice) {
        self.comms.device(device);
    }

    /// Gives each later communicator its own key, without a limit; for recordings that are read
    /// once as a whole.
    pub fn tell_all(&mut self) {
        self.comms.tells_all = true;
    }

    /// Sets the libraries of the process that can communicate without NCCL.
    pub fn beside<'a>(&mut self, libraries: impl Iterator<Item = &'a str>) {
        self.beside = libraries.filter(|name| !name.is_empty()).map(Name::from).collect();
    }

    /// Takes a mark.
    pub fn mark(&mut self, mark: &Mark) {
        if mark.what == MarkKind::Mask {
            self.others_mask = mark.others_mask();
            if mark.ends_kernels() {
                self.comms.drifts.off(mark.ticks);
            }
        }
    }

    /// NCCL's activation mask, if others than the plugin changed it.
    #[must_use]
    pub fn others_mask(&self) -> Option<u32> {
        self.others_mask
    }

    /// From now on keeps records of other processes (PXN) for [`Collector::take_foreign`], instead
    /// of counting them without a known communicator.
    pub fn hand_over(&mut self) {
        self.foreign.get_or_insert_default();
    }

    /// Records of other processes since the last call, in order.
    pub fn take_foreign(&mut self) -> Vec<Foreign> {
        self.foreign.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Counts a record that was to be handed over and whose process is unknown.
    pub fn keep(&mut self, foreign: &Foreign) {
        let Detail::ProxyOp(op) = foreign.start.detail else { return };
        let place = self.network.place(OTHERS, &op, self.comms.tells_all);
        let Some(place) = place else { return };
        match foreign.record {
            Record::Step(step) => drop(self.network.add(place, &step, self.ns_per_tick / 1e9)),
            Record::State { state, arg, .. } => {
                if let Some(part) = self.families.part_mut(foreign.start.handle) {
                    add_told(&mut self.network, part, Some(place), (state, arg));
                }
            }
            _ => {}
        }
    }

    /// Counts a record of a ProxyOp that the proxy thread of process number `source` runs for this
    /// process.
    pub fn adopt(&mut self, source: u64, foreign: &Foreign) {
        let Detail::ProxyOp(op) = foreign.start.detail else { return };
        let handle = foreign.start.handle;
        let (network, tells_all) = (&mut self.network, self.comms.tells_all);
        let comm = self.comms.place(foreign.start.comm);
        let adopted = self.pxn.add(source, handle, || network.place(comm, &op, tells_all));
        match foreign.record {
            Record::Start(_) => {
                self.comms.learn_rank(foreign.start.comm, op.rank);
                let start = Start { handle: adopted.handle, ..*foreign.start };
                let mut part = Part::new(&start, PartKind::Adopted, 0, End::default());
                part.place = adopted.place;
                self.families.add_part(part, family_of(&start));
            }
            Record::Step(step) => {
                let Some(place) = adopted.place else { return };
                let sent = self.network.add(place, &step, self.ns_per_tick / 1e9);
                if let Some(part) = self.families.part_mut(adopted.handle) {
                    part.moved = true;
                    part.sent.add(sent);
                }
            }
            Record::Stop { ticks, .. } => {
                self.pxn.remove(source, handle);
                if let Some(part) = self.families.part_mut(adopted.handle) {
                    part.moved = true;
                    part.stop.get_or_insert(ticks);
                }
            }
            Record::State { state, arg, .. } => {
                if let Some(part) = self.families.part_mut(adopted.handle) {
                    part.moved = true;
                    add_told(&mut self.network, part, adopted.place, (state, arg));
                }
            }
            _ => {}
        }
    }

    /// Notes that a communicator was finalized. It is forgotten at the end of the window in which
    /// the last of its operations settled, and at least two seconds after `ticks`. After fifteen
    /// seconds its open operations count as unfinished.
    pub fn comm_end(&mut self, index: u16, ticks: u64) {
        self.comms.end(index, ticks);
    }

    /// Takes a heartbeat of a communicator from the rank's watchdog, which knows the losses. An
    /// operation that seems to be in flight is over if it started five seconds before all
    /// operations that the watchdog sees in flight; its stop was lost. One without a visible end is
    /// in flight as long as the watchdog sees it, or one before it, in flight.
    pub fn progress(&mut self, progress: &Progress) {
        // The age is rounded down.
        let age_ns = 1e6 * (f64::from(progress.age_ms) + 1.0);
        let age = if progress.age_ms > 0 { to_u64(age_ns / self.ns_per_tick) } else { 0 };
        self.comms.watched(progress, progress.ticks.saturating_sub(age));
    }

    /// Communicators that were forgotten since the last call; the latest window has their last
    /// figures.
    pub fn take_gone(&mut self) -> Vec<CommKey> {
        std::mem::take(&mut self.gone)
    }

    /// Communicators that have a key and may get figures.
    pub fn living(&self) -> impl Iterator<Item = &CommKey> {
        self.comms.keys()
    }

    /// The oldest operation in flight of each communicator, as of the last window's end.
    #[must_use]
    pub fn oldest_in_flight(&self) -> Vec<OldestInFlight> {
        let oldest = |(&comm, open): (&u16, &InFlight)| {
            let place = self.comms.place(comm);
            let bytes = open.facts.bytes(|id| self.comms.name(id), self.comms.ranks(comm));
            OldestInFlight {
                comm: self.comms.key(place),
                rank: self.comms.rank(place),
                func: self.comms.name(open.facts.func),
                peer: open.facts.peer,
                bytes,
                started: open.oldest,
                count: open.count,
            }
        };
        self.settled.in_flight.iter().map(oldest).collect()
    }

    /// Takes a record of a lane, in the lane's order.
    pub fn record(&mut self, lane: usize, record: &Record) {
        match record {
            Record::Step(step) => self.step(lane, step),
            Record::Start(start) => self.start(lane, start),
            Record::Stop { ticks, handle } => self.stop(*ticks, *handle),
            Record::State { ticks, handle, state, arg, .. } => {
                self.state(*ticks, *handle, *state, *arg);
            }
            Record::Mark(mark) => self.mark(mark),
            Record::ClockSync(_)
            | Record::Heartbeat(_)
            | Record::PairCount(_)
            | Record::Unknown { .. } => {}
        }
    }

    /// Takes the number of lost events of a kind (empty: unknown kind) by cause, as the running
    /// total since the process began. The increase counts in this window.
    pub fn lost(&mut self, cause: &'static str, kind: &'static str, total: u64) {
        let seen = self.lost.entry((cause, kind)).or_default();
        let more = total.saturating_sub(*seen);
        *seen = total.max(*seen);
        if more > 0 {
            *self.window.lost.entry((cause, kind)).or_default() += more;
            self.comms.kernels_lost |= kind == EventKind::KernelCh.name();
        }
    }

    /// The running totals that were passed to [`Collector::lost`], without those that are 0.
    pub fn lost_totals(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let some = self.lost.iter().filter(|(_, total)| **total > 0);
        some.map(|(&(cause, kind), &total)| (cause, kind, total))
    }

    /// Notes that records of unknown kinds are missing. From then on a missing kernel proves
    /// nothing.
    pub fn lost_blocks(&mut self) {
        self.comms.kernels_lost = true;
    }

    /// Starts counting at `now` ticks: discards the figures so far, and later ignores operations
    /// that ended before `now`.
    pub fn begin(&mut self, now: u64, clock: &TickMap) {
        let _ = self.close(now, clock);
        drop(self.take_foreign());
        self.settled.began = Some(now);
    }

    /// Takes the number of export requests that were lost, by cause, as the running total since the
    /// process began. The increase counts in this window; a cause with 0 also gets a series.
    pub fn export_lost(&mut self, cause: &'static str, total: u64) {
        let seen = self.exports_lost.entry(cause).or_default();
        *self.window.exports_lost.entry(cause).or_default() += total.saturating_sub(*seen);
        *seen = total.max(*seen);
    }

    /// Events that started in this window so far, for a caller that closes windows by count.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.iter().sum()
    }

    /// Calls [`Collector::lost`] for each kind of event.
    pub fn lost_by_kind(&mut self, cause: &'static str, totals: &[u64; KINDS]) {
        for kind in EventKind::ALL {
            self.lost(cause, kind.name(), totals[kind.index()]);
        }
    }

    /// Ends the window at `now` ticks and returns it, with the operations that settled in it. An
    /// operation settles at the first close after the one that found it over, and at least half a
    /// second after that one.
    pub fn close(&mut self, now: u64, clock: &TickMap) -> Metrics {
        self.clock(clock);
        self.end(now, false)
    }

    /// Ends the last window, in which all operations that are over settle.
    pub fn finish(&mut self, now: u64, clock: &TickMap) -> Metrics {
        self.clock(clock);
        self.end(now, true)
    }

    fn end(&mut self, now: u64, is_last: bool) -> Metrics {
        let look = Look { now, ns_per_tick: self.ns_per_tick, is_last };
        self.look(look);
        if look.is_long_after(self.epoch_at) {
            self.epoch_at = now;
            self.families.next_epoch();
        }
        self.look_at = self.families.len() + LOOK_AFTER;
        let rate = self.ns_per_tick / 1e9;
        self.end_loads(now, rate);
        let mut window = std::mem::take(&mut self.window);
        window.devices = self.comms.devices();
        window.beside = self.beside.iter().map(|name| (name.clone(), 1)).collect();
        window.masks_changed = u64::from(self.others_mask.is_some());
        self.settled.take(&mut window, &self.comms);
        self.network.take(&mut window, &self.comms, rate);
        self.comms.state_graphs(&mut window);
        self.comms.state_in_flight(&self.settled.in_flight, &mut window, (now, rate));
        for kind in EventKind::ALL {
            let (name, at) = (kind.name(), kind.index());
            let mut add = |cause, count: &mut u64| {
                if *count > 0 {
                    *window.lost.entry((cause, name)).or_default() += std::mem::take(count);
                }
            };
            add("unmatched", &mut self.families.unmatched[at]);
            add("overflow", &mut self.families.overflowed[at]);
            add("unfinished", &mut self.settled.unfinished[at]);
            add("overtaken", &mut self.settled.overtaken[at]);
            if self.events[at] > 0 {
                window.events.insert(name, std::mem::take(&mut self.events[at]));
            }
        }
        self.forget(look);
        window
    }

    /// Lets operations settle.
    fn look(&mut self, look: Look) {
        self.comms.begin_look();
        let of = (&mut self.comms, &self.network, &mut self.launches);
        let times = self.settled.look(look, &mut self.families, of);
        self.comms.add_gaps(times, &mut self.window, look.ns_per_tick / 1e9);
    }

    /// Forgets finalized communicators, after the figures of the window were taken.
    fn forget(&mut self, look: Look) {
        let mut over = self.comms.ended(|at| look.ns_since(at) >= ENDED_NS);
        if !over.is_empty() {
            let busy = self.families.comms();
            over.retain(|comm| !busy.contains(comm));
            self.families.forget_places(&over);
            self.network.forget(&over);
            self.settled.forget(&over);
            self.launches.forget_comms(&over);
            self.stamps.forget(&over);
            self.pxn.forget_places();
            self.gone.extend(self.comms.forget(&over));
        }
        self.comms.make_use_of_room(look.now);
    }

    fn end_loads(&mut self, now: u64, seconds_per_tick: f64) {
        for lane in std::mem::take(&mut self.families.abandoned) {
            self.load(lane).abandon(now);
        }
        for (lane, load) in (0..=u8::MAX).zip(&mut self.loads) {
            if let Some(proxy) = load.take(now, seconds_per_tick) {
                self.window.proxies.insert(lane, proxy);
            }
        }
    }

    fn load(&mut self, lane: u8) -> &mut Load {
        &mut self.loads[usize::from(lane) % LANES]
    }

    fn step(&mut self, lane: usize, step: &Step) {
        let kind = EventKind::ProxyStep.index();
        self.events[kind] += 1;
        let Some(part) = self.families.part_of_step(lane, step.op_ref) else {
            self.families.unmatched[kind] += 1;
            return;
        };
        if let Some(place) = part.place {
            part.sent.add(self.network.add(place, step, self.ns_per_tick / 1e9));
        }
        hand_over(&mut self.foreign, part, Record::Step(*step));
        if !part.moved {
            part.moved = true;
            let (lane, start) = (part.lane, part.start);
            self.load(lane).begin(start);
        }
    }

    fn start(&mut self, lane: usize, start: &Start) {
        self.events[start.detail.kind().index()] += 1;
        self.latest = self.latest.max(start.ticks);
        self.comms.drifts.start(start);
        let lane = u8::try_from(lane % LANES).unwrap_or(0);
        match start.detail {
            Detail::Coll(coll) => {
                self.comms.learn_rank(start.comm, coll.rank);
                self.head(start);
            }
            Detail::P2p(_) | Detail::CeColl(_) => self.head(start),
            Detail::ProxyOp(op) => self.proxy(lane, start, &op),
            Detail::KernelCh(KernelCh { channel, ptimer }) => {
                self.kernel(lane, start, (channel, ptimer));
            }
            Detail::CeSync(_) | Detail::CeBatch(_) => {
                let end = self.families.take_end(start.handle).unwrap_or_default();
                let part = Part::new(start, PartKind::Copy, lane, end);
                self.families.add_part(part, family_of(start));
            }
            Detail::CollApi(call) | Detail::P2pApi(call) => self.call(start, &call),
            _ => self.launches.start(start),
        }
    }

    fn call(&mut self, start: &Start, call: &ApiCall) {
        if call.graph {
            self.comms.captured(start);
        }
        self.comms.streams.call(start, call);
        self.launches.start(start);
    }

    fn head(&mut self, start: &Start) {
        if !Facts::is_operation(start.handle.kind()) {
            return;
        }
        if self.families.len() >= self.look_at {
            let ns_per_tick = self.ns_per_tick;
            self.look(Look { now: self.latest, ns_per_tick, is_last: false });
            self.look_at = self.families.len() + LOOK_AFTER;
        }
        self.comms.saw_operation(start);
        let stream = self.comms.streams.of(start);
        if let Some(head) = self.families.add_head(*start, stream) {
            self.comms.saw_kernel(&head.start, head.stream);
        }
    }

    fn proxy(&mut self, lane: u8, start: &Start, op: &ProxyOp) {
        let end = self.families.take_end(start.handle).unwrap_or_default();
        let mut part = Part::new(start, PartKind::Proxy, lane, end);
        let mut family = family_of(start);
        if op.foreign {
            // Its communicator and its parent are another process's, so it is a family of its own.
            family = start.handle;
            if self.foreign.is_some() {
                part.foreign = Some(Arc::new(*start));
                hand_over(&mut self.foreign, &part, Record::Start(*start));
                if let Some(ticks) = part.stop {
                    let stop = Record::Stop { ticks, handle: start.handle };
                    hand_over(&mut self.foreign, &part, stop);
                }
            } else {
                part.place = self.network.place(OTHERS, op, self.comms.tells_all);
            }
        } else {
            self.comms.learn_rank(start.comm, op.rank);
            let comm = self.comms.place(start.comm);
            part.place = self.network.place(comm, op, self.comms.tells_all);
        }
        if part.moved {
            self.load(lane).begin(part.start);
        }
        if let Some(stop) = part.stop {
            self.load(lane).stop(stop);
        }
        self.families.add_part(part, family);
    }

    fn kernel(&mut self, lane: u8, start: &Start, (channel, ptimer): (u8, u64)) {
        let end = self.families.take_end(start.handle).unwrap_or_default();
        let head = self.families.head_mut(start.parent).map(|head| head.start);
        if !self.comms.is_kernel_told(start.comm, head.map_or(start.ticks, |head| head.ticks)) {
            return self.add_stray();
        }
        let group = head.map_or(start.parent, |head| Launched::of(&head).group);
        self.find_stray(start, (channel, ptimer), group);
        let part = Part::new(start, PartKind::Kernel { channel, ptimer }, lane, end);
        let done = kernel_time(&part);
        if let Some(head) = self.families.add_part(part, family_of(start)) {
            self.comms.saw_kernel(&head.start, head.stream);
        }
        self.add_kernel(start.comm, done);
    }

    /// Discards the times of kernel channels that, as the start of this one shows, are another's.
    fn find_stray(&mut self, start: &Start, (channel, ptimer): (u8, u64), group: Handle) {
        if self.comms.is_forgotten(start.comm) {
            // Nothing would forget its entry again.
            return;
        }
        let mut stray = Vec::new();
        let (place, begun) = ((start.comm, channel), (ptimer, None, group));
        self.stamps.start(place, begun, start.handle, |part, verdict| {
            if verdict == Verdict::Stray {
                stray.push(part);
            }
        });
        for handle in stray {
            if let Some(part) = self.families.part_mut(handle) {
                part.kind = PartKind::Kernel { channel, ptimer: 0 };
                self.add_stray();
            }
        }
    }

    /// Counts a kernel channel with the times of another one.
    fn add_stray(&mut self) {
        *self.window.lost.entry((STRAY, EventKind::KernelCh.name())).or_default() += 1;
    }

    /// Counts a kernel channel that stopped with a valid time.
    fn add_kernel(&mut self, comm: u16, done: Option<(u8, u64)>) {
        if let Some((channel, ns)) = done {
            let place = self.comms.place(comm);
            self.network.add_kernel(place, self.comms.rank(place), channel, ns);
        }
    }

    fn stop(&mut self, ticks: u64, handle: Handle) {
        let earliest = |stop: Option<u64>| Some(stop.map_or(ticks, |stop| stop.min(ticks)));
        if let Some(head) = self.families.head_mut(handle) {
            head.stop = earliest(head.stop);
        } else if let Some(part) = self.families.part_mut(handle) {
            let is_first = part.stop.is_none();
            part.stop = earliest(part.stop);
            hand_over(&mut self.foreign, part, Record::Stop { ticks, handle });
            if is_first {
                self.first_stop(ticks, handle);
            }
        } else if let Some(end) = self.families.end_mut(handle) {
            end.stop = earliest(end.stop);
        }
    }

    fn first_stop(&mut self, ticks: u64, handle: Handle) {
        let Some(part) = self.families.part_mut(handle) else { return };
        let (lane, start, comm) = (part.lane, part.start, part.comm);
        let was_moving = std::mem::replace(&mut part.moved, true);
        let (is_proxy, done) = (matches!(part.kind, PartKind::Proxy), kernel_time(part));
        self.add_kernel(comm, done);
        if is_proxy {
            let load = self.load(lane);
            if !was_moving {
                load.begin(start);
            }
            load.stop(ticks);
        }
    }

    fn state(&mut self, ticks: u64, handle: Handle, state: State, arg: u64) {
        if state == State::CUDA_EVENT {
            return self.launches.measured(handle, arg);
        }
        let ptimer = (state == State::KERNEL_CH_STOP).then_some(arg);
        if let Some(part) = self.families.part_mut(handle) {
            let record = Record::State { ticks, handle, state, small: 0, arg };
            hand_over(&mut self.foreign, part, record);
            let was_moving = std::mem::replace(&mut part.moved, true);
            let had_time = kernel_time(part).is_some();
            part.ptimer_stop = ptimer.or(part.ptimer_stop);
            let done = if had_time { None } else { kernel_time(part) };
            let (lane, start, comm) = (part.lane, part.start, part.comm);
            let is_proxy = matches!(part.kind, PartKind::Proxy);
            if is_proxy {
                let place = part.place;
                add_told(&mut self.network, part, place, (state, arg));
            }
            self.add_kernel(comm, done);
            if is_proxy && !was_moving {
                self.load(lane).begin(start);
            }
        } else if self.families.head_mut(handle).is_none()
            && let Some(end) = self.families.end_mut(handle)
        {
            end.state = Some(ticks);
            end.ptimer_stop = ptimer.or(end.ptimer_stop);
        }
    }
}

/// Adds the bytes that a state of a ProxyOp reports as moved so far (API v1 to v3, whose steps have
/// no size).
fn add_told(
    network: &mut Network,
    part: &mut Part,
    place: Option<LinkChannel>,
    (state, bytes): (State, u64),
) {
    let Some(place) = place.filter(|_| state.0 <= State::PROXY_OP_RECV_DONE.0) else { return };
    let more = told_more(&mut part.told_from, part.told, bytes);
    if more > 0 {
        part.told += more;
        part.sent.add(network.add_told(place, more));
    }
}

/// Appends a record of another process's ProxyOp to the records to be handed over.
fn hand_over(to: &mut Option<Vec<Foreign>>, part: &Part, record: Record) {
    if let (Some(to), Some(start)) = (to, &part.foreign) {
        to.push(Foreign { start: Arc::clone(start), record });
    }
}

/// The handle of the family that a child belongs to: its own handle if NCCL gives no parent.
fn family_of(start: &Start) -> Handle {
    if start.parent.is_null() { start.handle } else { start.parent }
}

/// Channel and time by the GPU's timer, ns, of a KernelCh that stopped with a valid time.
fn kernel_time(part: &Part) -> Option<(u8, u64)> {
    let PartKind::Kernel { channel, ptimer } = part.kind else { return None };
    part.stop?;
    let (start, stop) = valid_ptimers((ptimer, part.ptimer_stop))?;
    Some((channel, stop - start))
}
