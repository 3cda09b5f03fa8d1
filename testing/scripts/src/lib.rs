// SPDX-License-Identifier: Apache-2.0
/*!
Plays NCCL's callback scripts into recordings, for tests. One tick is one nanosecond.

The scripts follow NCCL 2.28 on a network ring: lane 0 is the calling thread, lane 1 the proxy
progress thread. Times are invented, and the same in each run.
*/
#![forbid(unsafe_code)]

use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::handle::{SLOTS, STEPS_IN_FLIGHT};
use ncclscope_trace::layout::{Header, LANE_STRIDE};
use ncclscope_trace::record::{
    ApiCall, Coll, GroupApi, KernelCh, KernelLaunch, NetPlugin, P2p, Packed, ProxyOp, STEP_SHIFT,
    step_flags,
};
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{
    Alignment, ClockSource, ClockSync, Comm, CommDevice, Definition, Detail, EventKind, Handle,
    Heartbeat, Identity, Mark, Record, Start, State, Step, StrId, Vendor, Writer,
};
use std::io;
use std::path::{Path, PathBuf};

/// Lane of the calling thread.
pub const API: usize = 0;
/// Lane of the proxy progress thread.
pub const PROXY: usize = 1;
/// `CLOCK_REALTIME` at tick 0, ns.
pub const EPOCH_NS: u64 = 1_790_000_000_000_000_000;
/// `CLOCK_REALTIME` minus the simulated GPU's timer, ns.
pub const GPU_BEHIND_NS: u64 = 123_456_789;

/// Records of one process, before they are written.
#[derive(Debug)]
pub struct Process {
    /// The recording's header; may be changed before [`Process::write`].
    pub header: Header,
    /// The communicator of the following records; may be changed like `header`.
    pub comm: Comm,
    /// The communicators of earlier records.
    pub other_comms: Vec<Comm>,
    /// The devices of the communicators.
    pub devices: Vec<CommDevice>,
    /// Current time in ticks.
    pub now: u64,
    /// Marks so far.
    pub marks: Vec<Mark>,
    /// The communicator's role.
    pub role: Option<&'static str>,
    /// The report of the process's watchdog, with its time in ticks.
    pub hang: Option<(u64, &'static str)>,
    /// Its heartbeats.
    pub heartbeats: Vec<Heartbeat>,
    /// The string whose definition is still to come, as in a recording that is read while its
    /// process runs.
    pub undefined: Option<&'static str>,
    /// The process's identity.
    pub identity: Identity,
    /// Address of the buffers of the following collectives; 0: not recorded.
    pub buffer: u64,
    /// Delay between the enqueueing of a collective and its start on the GPU, ns.
    pub late: u64,
    /// How long the kernel of a collective waits for another rank, ns.
    pub waits: u64,
    /// How far the GPU's timer is ahead of the host's, as a function of the time, ns.
    pub gpu_gain: fn(u64) -> u64,
    /// Resolution of the GPU's timer, ns.
    pub gpu_step: u64,
    /// Step by which the host's clock is set forward before its last comparison, ns.
    pub clock_set: i64,
    lanes: Vec<Vec<u64>>,
    kinds: Vec<u32>,
    lost: Vec<(usize, EventKind, u64)>,
    strings: Vec<String>,
    sequence: u64,
    seq: u64,
}

/// How far a simulated collective gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It completes.
    None,
    /// The peer never posts its buffer: channel 0's send stays in SendPeerWait, and the kernel of
    /// channel 0 waits for it.
    Hang,
    /// There are no kernel events.
    NoKernel,
    /// No ProxyOp advances or stops, as with shared memory, and there are no kernel events.
    Local,
    /// The collective is enqueued, within a node, and its kernel has not started.
    Enqueued,
}

/// A collective to play.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// NCCL function name.
    pub func: &'static str,
    /// Elements (ncclFloat32) that the caller passed.
    pub count: u64,
    /// Channels.
    pub channels: u8,
    /// Steps of each ProxyOp.
    pub steps: u32,
    /// Bytes of each step.
    pub step_bytes: u32,
    /// Where the collective gets stuck.
    pub fault: Fault,
}

impl Call {
    /// An AllReduce of 4 MiB over two channels, with 8 steps per ProxyOp.
    pub const ALL_REDUCE: Call = Call {
        func: "AllReduce",
        count: 1 << 20,
        channels: 2,
        steps: 4,
        step_bytes: 512 << 10,
        fault: Fault::None,
    };
}

impl Process {
    /// Rank `rank` of `nranks`, each on its own node, with NCCL 2.28.9.
    #[must_use]
    pub fn new(rank: i32, nranks: u32) -> Process {
        let pid = 1000 + rank.unsigned_abs();
        let header = Header {
            pid,
            process: pid % 1023 + 1,
            host: format!("node-{rank}"),
            clock: ClockSource::Tsc,
            mask: 0x7fdf,
            closed: true,
            ..Header::default()
        };
        let comm = Comm {
            index: 0,
            hash: 0x1f2e_3d4c,
            name: Some("world".into()),
            nodes: nranks,
            ranks: nranks,
            rank,
            ticks: 1_000,
            api_version: 5,
            nccl_version: 22809,
            vendor: Vendor::Nvidia,
        };
        Process {
            header,
            comm,
            other_comms: Vec::new(),
            devices: Vec::new(),
            now: 10_000,
            marks: Vec::new(),
            role: None,
            hang: None,
            heartbeats: Vec::new(),
            undefined: None,
            identity: Identity::default(),
            buffer: 0,
            late: 0,
            waits: 0,
            gpu_gain: |_| 0,
            gpu_step: 1,
            clock_set: 0,
            lanes: vec![Vec::new(); 2],
            kinds: vec![0; 2],
            lost: Vec::new(),
            strings: Vec::new(),
            sequence: 0,
            seq: 0,
        }
    }

    /// The id of a string.
    pub fn string(&mut self, text: &str) -> StrId {
        let at = self.strings.iter().position(|s| s == text).unwrap_or_else(|| {
            self.strings.push(text.into());
            self.strings.len() - 1
        });
        StrId(u16::try_from(at + 1).unwrap_or(0))
    }

    /// Notes that `count` events of a kind were lost on a lane.
    pub fn lose(&mut self, lane: usize, kind: EventKind, count: u64) {
        self.lost.push((lane, kind, count));
    }

    /// Records a start and returns its handle.
    pub fn start(&mut self, lane: usize, parent: Handle, detail: Detail) -> Handle {
        self.sequence += 1;
        let (process, kind) = (u64::from(self.header.process), detail.kind());
        let handle = if kind == EventKind::ProxyOp {
            let slot = usize::try_from(self.sequence).unwrap_or(0) % SLOTS;
            Handle::slot_op(process, lane, self.sequence, slot)
        } else {
            Handle::value(process, kind, lane, self.sequence)
        };
        self.kinds[lane] |= kind.bit();
        let start = Start { ticks: self.now, comm: self.comm.index, handle, parent, detail };
        self.push(lane, start.pack());
        handle
    }

    /// Records a stop.
    pub fn stop(&mut self, lane: usize, handle: Handle) {
        self.push(lane, Record::stop(self.now, handle));
    }

    /// Records a state.
    pub fn state(&mut self, lane: usize, handle: Handle, state: State, arg: u64) {
        self.push(lane, Record::state(self.now, handle, state, 0, arg));
    }

    /// Records a step.
    pub fn step(&mut self, lane: usize, step: &Step) {
        self.kinds[lane] |= EventKind::ProxyStep.bit();
        self.push(lane, step.pack());
    }

    fn push(&mut self, lane: usize, packed: Packed) {
        self.lanes[lane].extend(packed.words());
        self.now += 100;
    }

    /// Current time of the GPU's timer.
    #[must_use]
    pub fn ptimer(&self) -> u64 {
        self.ptimer_at(self.now)
    }

    /// The GPU's timer at a host time.
    #[must_use]
    pub fn ptimer_at(&self, ticks: u64) -> u64 {
        let time = EPOCH_NS - GPU_BEHIND_NS + ticks + (self.gpu_gain)(ticks);
        time - time % self.gpu_step
    }

    /// Plays a collective from its API call to its last stop, or until it gets stuck.
    pub fn collective(&mut self, call: Call) {
        let (func, float) = (self.string(call.func), self.string("ncclFloat32"));
        let in_bytes = matches!(call.func, "AllGather" | "Broadcast");
        let (datatype, count) =
            if in_bytes { (self.string("ncclInt8"), call.count * 4) } else { (float, call.count) };
        let (algo, proto) = (self.string("RING"), self.string("SIMPLE"));
        let has_api = self.comm.api_version >= 5;
        let (mut group_api, mut coll_api) = (Handle::NULL, Handle::NULL);
        if has_api {
            group_api = self.start(
                API,
                Handle::NULL,
                Detail::GroupApi(GroupApi { graph: false, depth: 1 }),
            );
            self.state(API, group_api, State(23), 0);
            let api = ApiCall { func, datatype: float, count: call.count, ..ApiCall::default() };
            coll_api = self.start(API, group_api, Detail::CollApi(api));
            self.stop(API, coll_api);
            self.state(API, group_api, State(24), 0);
            let launch =
                self.start(API, group_api, Detail::KernelLaunch(KernelLaunch { stream: 0x7f00 }));
            self.stop(API, launch);
        }
        let group = self.start(API, Handle::NULL, Detail::Group);
        let detail = Coll {
            func,
            datatype,
            algo,
            proto,
            seq: self.seq,
            count,
            channels: call.channels,
            warps: 16,
            rank: self.comm.rank,
            group,
            alignment: match self.buffer {
                0 => Alignment::default(),
                address => Alignment::of(address),
            },
            ..Coll::default()
        };
        self.seq += 1;
        let parent = if has_api { coll_api } else { group };
        let coll = self.start(API, parent, Detail::Coll(detail));
        let networked = if call.fault == Fault::Enqueued { 0 } else { call.channels };
        let ops: Vec<Handle> = (0..networked)
            .flat_map(|channel| [(channel, false), (channel, true)])
            .map(|(channel, is_send)| self.proxy_op(coll, &call, channel, is_send))
            .collect();
        for handle in [coll, group, group_api] {
            if !handle.is_null() {
                self.stop(API, handle);
            }
        }
        self.now += self.late;
        self.progress(coll, &call, &ops);
    }

    fn proxy_op(&mut self, coll: Handle, call: &Call, channel: u8, is_send: bool) -> Handle {
        let next = (self.comm.rank + 1) % self.comm.ranks.max(1).cast_signed();
        let op = ProxyOp {
            pid: self.header.pid,
            channel,
            peer: next,
            steps: call.steps,
            chunk_bytes: call.step_bytes,
            is_send,
            foreign: false,
            rank: self.comm.rank,
        };
        self.start(PROXY, coll, Detail::ProxyOp(op))
    }

    /// Plays the proxy thread's part.
    fn progress(&mut self, coll: Handle, call: &Call, ops: &[Handle]) {
        if matches!(call.fault, Fault::Local | Fault::Enqueued) {
            return;
        }
        for &op in ops {
            self.state(PROXY, op, State::PROXY_OP_IN_PROGRESS, 0);
        }
        let mut kernels = Vec::new();
        if call.fault != Fault::NoKernel {
            for channel in 0..call.channels {
                let detail =
                    Detail::KernelCh(KernelCh { channel, ptimer: self.ptimer_at(self.now - 80) });
                kernels.push(self.start(PROXY, coll, detail));
            }
        }
        self.now += self.waits;
        let hangs = |index: usize| call.fault == Fault::Hang && index == 1;
        for step in 0..call.steps {
            for (index, &op) in ops.iter().enumerate() {
                let is_send = index % 2 == 1;
                if !hangs(index) || step == 0 {
                    self.one_step(op, step, call.step_bytes, is_send, hangs(index));
                }
            }
        }
        for (index, &kernel) in kernels.iter().enumerate() {
            if !(call.fault == Fault::Hang && index == 0) {
                let ptimer = self.ptimer_at(self.now - 30);
                self.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer);
                self.stop(PROXY, kernel);
            }
        }
        for (index, &op) in ops.iter().enumerate() {
            if !hangs(index) {
                self.stop(PROXY, op);
            }
        }
    }

    fn one_step(&mut self, op: Handle, step: u32, bytes: u32, is_send: bool, hangs: bool) {
        let whole = step_flags::STOPPED | step_flags::THIRD | step_flags::SIZED;
        let seen = step_flags::FIRST | step_flags::SECOND;
        let way = if is_send { step_flags::IS_SEND } else { 0 };
        let duration = 2_000 + u64::from(bytes) / 10;
        let record = Step {
            ticks: self.now,
            flags: seen | if hangs { 0 } else { whole } | way,
            repeats: if is_send { 2 } else { 0 },
            step,
            op_ref: op.op_ref(),
            size: if hangs { 0 } else { bytes },
            states: [1, 20, if hangs { 0 } else { 60 }],
            end: if hangs { 1 << 20 } else { duration >> STEP_SHIFT },
        };
        self.step(PROXY, &record);
        // As many steps are in flight as NCCL allows.
        self.now += duration / STEPS_IN_FLIGHT as u64;
    }

    /// Plays a send and a receive with `peer` in one group.
    pub fn send_recv(&mut self, peer: i32, count: u64) {
        let float = self.string("ncclFloat32");
        let group_api =
            self.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 2 }));
        let calls = ["Send", "Recv"].map(|name| {
            let func = self.string(name);
            let call = ApiCall { func, datatype: float, count, ..ApiCall::default() };
            let handle = self.start(API, group_api, Detail::P2pApi(call));
            self.stop(API, handle);
            (handle, func)
        });
        let group = self.start(API, Handle::NULL, Detail::Group);
        let ops = calls.map(|(api, func)| {
            let p2p =
                P2p { func, datatype: float, count, peer, channels: 1, group, ..P2p::default() };
            self.start(API, api, Detail::P2p(p2p))
        });
        let bytes = u32::try_from(count * 4).unwrap_or(u32::MAX);
        let call = Call { channels: 1, steps: 1, step_bytes: bytes, ..Call::ALL_REDUCE };
        for (p2p, is_send) in ops.into_iter().zip([true, false]) {
            let op = self.proxy_op(p2p, &call, 0, is_send);
            self.state(PROXY, op, State::PROXY_OP_IN_PROGRESS, 0);
            self.one_step(op, 0, bytes, is_send, false);
            self.stop(PROXY, op);
        }
        for handle in ops.into_iter().chain([group, group_api]) {
            self.stop(API, handle);
        }
    }

    /// Plays a send of two steps, each with an event of the network plugin `id`.
    pub fn net_events(&mut self, id: u64) {
        let call = Call { channels: 1, steps: 2, step_bytes: 4096, ..Call::ALL_REDUCE };
        let p2p = self.start(API, Handle::NULL, Detail::P2p(P2p::default()));
        self.stop(API, p2p);
        let op = self.proxy_op(p2p, &call, 0, true);
        self.state(PROXY, op, State::PROXY_OP_IN_PROGRESS, 0);
        for step in 0..call.steps {
            let net = NetPlugin { id, device: 7, bytes: 4096, ..NetPlugin::default() };
            let begun = self.now;
            self.now += 50;
            let event = self.start(PROXY, op.step_of(step), Detail::NetPlugin(net));
            self.stop(PROXY, event);
            let after = std::mem::replace(&mut self.now, begun);
            self.one_step(op, step, call.step_bytes, true, false);
            self.now = self.now.max(after) + 3_000;
        }
        self.stop(PROXY, op);
    }

    /// Plays a send to `peer` through the NIC of another process's GPU (PXN): the ProxyOp, of one
    /// step, is run by the proxy thread of `proxy`.
    pub fn send_by(&mut self, proxy: &mut Process, peer: i32, count: u64) {
        self.send_through(proxy, peer, count, false);
    }

    /// As [`Process::send_by`], but the receiver never takes the data.
    pub fn stuck_send_by(&mut self, proxy: &mut Process, peer: i32, count: u64) {
        self.send_through(proxy, peer, count, true);
    }

    fn send_through(&mut self, proxy: &mut Process, peer: i32, count: u64, hangs: bool) {
        let (func, float) = (self.string("Send"), self.string("ncclFloat32"));
        let graph = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
        let group_api = self.start(API, Handle::NULL, graph);
        let call = ApiCall { func, datatype: float, count, ..ApiCall::default() };
        let api = self.start(API, group_api, Detail::P2pApi(call));
        self.stop(API, api);
        let group = self.start(API, Handle::NULL, Detail::Group);
        let p2p = P2p { func, datatype: float, count, peer, channels: 1, group, ..P2p::default() };
        let send = self.start(API, api, Detail::P2p(p2p));
        for handle in [send, group, group_api] {
            self.stop(API, handle);
        }
        proxy.now = proxy.now.max(self.now);
        let bytes = u32::try_from(count * 4).unwrap_or(u32::MAX);
        let detail = Detail::ProxyOp(ProxyOp {
            pid: self.header.pid,
            channel: 0,
            peer,
            steps: 1,
            chunk_bytes: bytes,
            is_send: true,
            foreign: true,
            rank: self.comm.rank,
        });
        let own = std::mem::replace(&mut proxy.comm.index, self.comm.index);
        let op = proxy.start(PROXY, send, detail);
        proxy.comm.index = own;
        proxy.state(PROXY, op, State::PROXY_OP_IN_PROGRESS, 0);
        proxy.one_step(op, 0, bytes, true, hangs);
        if !hangs {
            proxy.stop(PROXY, op);
        }
        self.now = self.now.max(proxy.now);
    }

    /// Writes the recording into `dir` and returns its path.
    ///
    /// # Errors
    /// System errors.
    pub fn write(&self, dir: &Path) -> io::Result<PathBuf> {
        let path = dir.join(format!("{}-{}.nscope", self.header.host, self.header.pid));
        // Room for all of the records; a block is never longer than the lanes.
        let words: usize = self.lanes.iter().map(Vec::len).sum();
        let room = (64 << 20).max(8 * words as u64);
        let mut writer = Writer::create(&path, self.header.clone(), room)?;
        for fact in self.identity.since(&Identity::default()) {
            writer.define(&fact)?;
        }
        for comm in self.other_comms.iter().chain([&self.comm]) {
            writer.define(&Definition::Comm(comm.clone()))?;
        }
        for device in &self.devices {
            writer.define(&Definition::CommDevice(device.clone()))?;
        }
        if let Some(role) = self.role {
            let (hash, text) = (self.comm.hash, role.to_owned());
            writer.define(&Definition::Role { hash, text })?;
        }
        if let Some((ticks, text)) = self.hang {
            writer.define(&Definition::Hang { ticks, text: text.to_owned() })?;
        }
        for heartbeat in &self.heartbeats {
            writer.append_heartbeats(heartbeat.pack().words())?;
        }
        let strings = self.strings.iter().enumerate();
        for (at, text) in strings.filter(|(_, text)| Some(text.as_str()) != self.undefined) {
            let id = StrId(u16::try_from(at + 1).unwrap_or(0));
            writer.define(&Definition::String { id, text: text.clone() })?;
        }
        for (ticks, set) in [(0, 0), (self.now + 1_000_000_000, self.clock_set)] {
            let sync = ClockSync {
                ticks,
                monotonic_ns: ticks,
                realtime_ns: (EPOCH_NS + ticks).saturating_add_signed(set),
                error_ns: 40,
            };
            writer.append(META_LANE, 0, Record::clock_sync(&sync).words())?;
        }
        for mark in &self.marks {
            writer.append(META_LANE, 0, &mark.words())?;
        }
        for (index, words) in self.lanes.iter().enumerate() {
            writer.append(u16::try_from(index).unwrap_or(0), 0, words)?;
            writer.write_lane(index, &self.lane_header(index))?;
        }
        writer.sync_header()?;
        Ok(path)
    }

    fn lane_header(&self, index: usize) -> [u8; LANE_STRIDE] {
        let mut bytes = [0; LANE_STRIDE];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        let words = self.lanes[index].len() as u64;
        put(lane::STATE, &u32::from(words != 0).to_le_bytes());
        put(lane::KINDS, &self.kinds[index].to_le_bytes());
        put(lane::HEAD, &words.to_le_bytes());
        put(lane::TAIL, &words.to_le_bytes());
        for (_, kind, count) in self.lost.iter().filter(|(lane, ..)| *lane == index) {
            put(lane::LOST + 8 * kind.index(), &count.to_le_bytes());
        }
        bytes
    }
}
