// SPDX-License-Identifier: Apache-2.0
//! A recording as the plugin would have made it while a given trace was taken.

use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::layout::{Header, LANE_STRIDE};
use ncclscope_trace::record::{
    ApiCall, Coll, GroupApi, KernelCh, P2p, Packed, ProxyOp, STEP_SHIFT, step_flags,
};
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{
    ClockSource, ClockSync, Comm, Definition, Detail, Handle, Record, Start, State, Step, StrId,
    Writer,
};
use std::path::{Path, PathBuf};

/// Lanes of the calling thread and of the proxy thread.
const API: usize = 0;
const PROXY: usize = 1;
/// Ticks per ns as a fraction: 2.6 GHz.
const TICKS: (i64, i64) = (13, 5);

/// A collective to record. Times are ns by the trace's clock.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    /// Stored in the operations' `user_tag`, to tell the operations apart.
    pub(crate) tag: u64,
    /// The external id of PyTorch's current operation at the call; 0 if the plugin did not ask.
    pub(crate) external_id: u64,
    pub(crate) func: &'static str,
    pub(crate) comm: u16,
    pub(crate) count: u64,
    pub(crate) call_ns: i64,
    pub(crate) kernel: (i64, i64),
}

/// A recording under construction.
pub(crate) struct Recorder {
    pub(crate) header: Header,
    pub(crate) comms: Vec<Comm>,
    /// Offset of the recording's clock from the trace's, ns.
    pub(crate) shift_ns: i64,
    origin_ns: i64,
    lanes: Vec<Vec<u64>>,
    strings: Vec<String>,
    sequence: u64,
}

impl Recorder {
    pub(crate) fn new(pid: u32, host: &str, shift_ns: i64, origin_ns: i64) -> Recorder {
        let header = Header {
            pid,
            process: pid % 1023 + 1,
            host: host.into(),
            clock: ClockSource::Tsc,
            hz: 2_600_000_000,
            mask: 0x7fdf,
            closed: true,
            ..Header::default()
        };
        let (comms, strings) = (Vec::new(), Vec::new());
        let lanes = vec![Vec::new(); 2];
        Recorder { header, comms, shift_ns, origin_ns, lanes, strings, sequence: 0 }
    }

    fn ticks(&self, ns: i64) -> u64 {
        u64::try_from((ns - self.origin_ns) * TICKS.0 / TICKS.1 + 10_000_000_000).unwrap()
    }

    fn string(&mut self, text: &str) -> StrId {
        let at = self.strings.iter().position(|s| s == text).unwrap_or_else(|| {
            self.strings.push(text.into());
            self.strings.len() - 1
        });
        StrId(u16::try_from(at + 1).unwrap())
    }

    fn put(&mut self, lane: usize, packed: &Packed) {
        self.lanes[lane].extend(packed.words());
    }

    fn start(&mut self, lane: usize, ns: i64, comm: u16, parent: Handle, detail: Detail) -> Handle {
        self.sequence += 1;
        let process = u64::from(self.header.process);
        let handle = match detail {
            Detail::ProxyOp(_) => Handle::slot_op(process, lane, self.sequence, 0),
            _ => Handle::value(process, detail.kind(), lane, self.sequence),
        };
        let start = Start { ticks: self.ticks(ns), comm, handle, parent, detail };
        self.put(lane, &start.pack());
        handle
    }

    fn stop(&mut self, lane: usize, ns: i64, handle: Handle) {
        let ticks = self.ticks(ns);
        self.put(lane, &Record::stop(ticks, handle));
    }

    /// Records a collective, from its call to the end of its kernel, over two channels.
    pub(crate) fn play(&mut self, it: &Played) {
        let (func, datatype) = (self.string(it.func), self.string("ncclFloat32"));
        let at = it.call_ns;
        let detail = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
        let group_api = self.start(API, at, it.comm, Handle::NULL, detail);
        let ops = match it.func {
            "SendRecv" => self.play_p2p(it, group_api, datatype),
            _ => self.play_coll(it, group_api, (func, datatype)),
        };
        self.stop(API, at + 40_000, group_api);
        for &op in &ops {
            for channel in 0..2 {
                self.play_channel(it, op, channel);
            }
        }
    }

    fn play_coll(&mut self, it: &Played, group_api: Handle, names: (StrId, StrId)) -> Vec<Handle> {
        let (func, datatype) = names;
        let call = ApiCall { func, datatype, count: it.count, ..ApiCall::default() };
        let api = self.start(API, it.call_ns + 500, it.comm, group_api, Detail::CollApi(call));
        self.tell_external_id(it, api);
        self.stop(API, it.call_ns + 1_500, api);
        let group = self.start(API, it.call_ns + 20_000, it.comm, Handle::NULL, Detail::Group);
        let (algo, proto) = (self.string("RING"), self.string("LL"));
        let coll = Coll {
            func,
            datatype,
            algo,
            proto,
            count: it.count,
            channels: 2,
            group,
            user_tag: it.tag,
            ..Coll::default()
        };
        let coll = self.start(API, it.call_ns + 21_000, it.comm, api, Detail::Coll(coll));
        self.stop(API, it.call_ns + 22_000, coll);
        self.stop(API, it.call_ns + 23_000, group);
        vec![coll]
    }

    fn tell_external_id(&mut self, it: &Played, api: Handle) {
        if it.external_id != 0 {
            let ticks = self.ticks(it.call_ns + 600);
            let state = Record::state(ticks, api, State::EXTERNAL_ID, 0, it.external_id);
            self.put(API, &state);
        }
    }

    fn play_p2p(&mut self, it: &Played, group_api: Handle, datatype: StrId) -> Vec<Handle> {
        let mut calls = Vec::new();
        for (peer, name) in [(1, "Send"), (1, "Recv"), (2, "Send"), (2, "Recv")] {
            let func = self.string(name);
            let call = ApiCall { func, datatype, count: it.count, ..ApiCall::default() };
            let api = self.start(API, it.call_ns + 500, it.comm, group_api, Detail::P2pApi(call));
            self.tell_external_id(it, api);
            self.stop(API, it.call_ns + 900, api);
            calls.push((api, func, peer));
        }
        let group = self.start(API, it.call_ns + 20_000, it.comm, Handle::NULL, Detail::Group);
        let ops = calls.into_iter().map(|(api, func, peer)| {
            let (count, user_tag) = (it.count, it.tag);
            let p2p = P2p { func, datatype, count, peer, group, user_tag, ..P2p::default() };
            let p2p = P2p { channels: 1, ..p2p };
            let op = self.start(API, it.call_ns + 21_000, it.comm, api, Detail::P2p(p2p));
            self.stop(API, it.call_ns + 22_000, op);
            op
        });
        let ops = ops.collect();
        self.stop(API, it.call_ns + 23_000, group);
        ops
    }

    /// Records a channel's kernel, and two steps of a send that overlap.
    fn play_channel(&mut self, it: &Played, op: Handle, channel: u8) {
        let (first, last) = it.kernel;
        let (pid, steps) = (self.header.pid, 2);
        let detail = ProxyOp { pid, channel, peer: 1, steps, is_send: true, ..ProxyOp::default() };
        let proxy = self.start(PROXY, first + 1_000, it.comm, op, Detail::ProxyOp(detail));
        // The GPU's timer is an hour behind, and NCCL reads it some microseconds later.
        let ptimer = |ns: i64| u64::try_from(ns - 3_600_000_000_000).unwrap();
        let detail = Detail::KernelCh(KernelCh { channel, ptimer: ptimer(first + 200) });
        let kernel = self.start(PROXY, first + 4_000, it.comm, op, detail);
        let whole = step_flags::STOPPED | step_flags::FIRST | step_flags::SECOND;
        let ticks = |ns: i64| u64::try_from(ns * TICKS.0 / TICKS.1).unwrap() >> STEP_SHIFT;
        let length = (last - first) / 2;
        for step in 0..steps {
            let record = Step {
                ticks: self.ticks(first + 2_000 + i64::from(step) * length / 2),
                flags: whole | step_flags::THIRD | step_flags::SIZED | step_flags::IS_SEND,
                step,
                op_ref: proxy.op_ref(),
                size: 4096,
                states: [1, ticks(length / 4), ticks(length / 2)],
                end: ticks(length),
                ..Step::default()
            };
            self.put(PROXY, &record.pack());
        }
        let ticks = self.ticks(last + 6_000);
        let state = Record::state(ticks, kernel, State::KERNEL_CH_STOP, 0, ptimer(last - 200));
        self.put(PROXY, &state);
        self.stop(PROXY, last + 6_000, kernel);
        self.stop(PROXY, last + 7_000, proxy);
    }

    /// Writes the recording into `dir`.
    pub(crate) fn write(&self, dir: &Path) -> PathBuf {
        let path = dir.join(format!("{}-{}.nscope", self.header.host, self.header.pid));
        let mut writer = Writer::create(&path, self.header.clone(), 64 << 20).unwrap();
        for comm in &self.comms {
            writer.define(&Definition::Comm(comm.clone())).unwrap();
        }
        for (at, text) in self.strings.iter().enumerate() {
            let id = StrId(u16::try_from(at + 1).unwrap());
            writer.define(&Definition::String { id, text: text.clone() }).unwrap();
        }
        for second in [-100, 0, 100] {
            let ns = self.origin_ns + second * 1_000_000_000 / 256;
            let time = |ns: i64| u64::try_from(ns).unwrap();
            let sync = ClockSync {
                ticks: self.ticks(ns),
                monotonic_ns: time(ns - self.origin_ns + 1_000_000_000),
                realtime_ns: time(ns + self.shift_ns),
                error_ns: 40,
            };
            writer.append(META_LANE, 0, Record::clock_sync(&sync).words()).unwrap();
        }
        for (index, words) in self.lanes.iter().enumerate() {
            let number = u16::try_from(index).unwrap();
            writer.append(number, 0, words).unwrap();
            let mut bytes = [0; LANE_STRIDE];
            let length = (words.len() as u64).to_le_bytes();
            bytes[lane::STATE..lane::STATE + 4].copy_from_slice(&1u32.to_le_bytes());
            bytes[lane::HEAD..lane::HEAD + 8].copy_from_slice(&length);
            bytes[lane::TAIL..lane::TAIL + 8].copy_from_slice(&length);
            writer.write_lane(index, &bytes).unwrap();
        }
        writer.sync_header().unwrap();
        path
    }
}
