// SPDX-License-Identifier: Apache-2.0
//! The callbacks of one communicator, one by one, and the order of an ordinary AllReduce.

use crate::descr::{Descr, GARBAGE};
use crate::names;
use crate::offsets::{
    ce_batch, ce_coll, ce_sync, coll, coll_api, group_api, kernel_ch, kernel_phase, net_plugin,
    p2p, p2p_api, proxy_op,
};
use crate::plugin::{Args, Plugin};
use core::ffi::CStr;

/// Event type bits.
pub mod bit {
    #![expect(missing_docs, reason = "NCCL's names")]
    pub const GROUP: u64 = 1;
    pub const COLL: u64 = 2;
    pub const P2P: u64 = 4;
    pub const PROXY_OP: u64 = 8;
    pub const PROXY_STEP: u64 = 16;
    pub const PROXY_CTRL: u64 = 32;
    pub const KERNEL_CH: u64 = 64;
    pub const NET_PLUGIN: u64 = 128;
    pub const GROUP_API: u64 = 256;
    pub const COLL_API: u64 = 512;
    pub const P2P_API: u64 = 1024;
    pub const KERNEL_LAUNCH: u64 = 2048;
    pub const CE_COLL: u64 = 4096;
    pub const CE_SYNC: u64 = 8192;
    pub const CE_BATCH: u64 = 16384;
    pub const KERNEL_PHASE: u64 = 32768;
    /// Kinds that were added with versions 5 (four), 6 (three) and 7 (one).
    pub const LATER: [u64; 8] =
        [GROUP_API, COLL_API, P2P_API, KERNEL_LAUNCH, CE_COLL, CE_SYNC, CE_BATCH, KERNEL_PHASE];
}

/// A handle returned by the plugin.
pub type Handle = u64;

/// The stream of all operations.
const STREAM: u64 = 0x1000;
/// User's tag from version 7 on.
const TAG: u64 = 9;

/// Plays one rank's events to a plugin.
#[derive(Debug)]
pub struct Player<'a> {
    plugin: &'a Plugin,
    context: u64,
    rank: i32,
    seq: u64,
    strings: Strings,
}

/// The strings of the descriptors.
#[derive(Debug, Clone, Copy)]
enum Strings {
    /// The strings that NCCL uses.
    Ordinary,
    /// One string, or NULL, for all.
    All(Option<&'static CStr>),
}

/// An operation whose proxy work has not been played yet.
#[derive(Debug, Clone, Copy)]
pub struct Enqueued {
    /// The Coll event.
    pub coll: Handle,
}

impl<'a> Player<'a> {
    /// A player of the communicator of `context`.
    #[must_use]
    pub const fn new(plugin: &'a Plugin, context: u64, rank: i32) -> Player<'a> {
        Player { plugin, context, rank, seq: 0, strings: Strings::Ordinary }
    }

    /// The same player with one text, or NULL, for every string.
    #[must_use]
    pub const fn saying(self, text: Option<&'static CStr>) -> Player<'a> {
        Player { strings: Strings::All(text), ..self }
    }

    /// The plugin that it plays to.
    #[must_use]
    pub const fn plugin(&self) -> &'a Plugin {
        self.plugin
    }

    /// The API version.
    #[must_use]
    pub const fn version(&self) -> usize {
        self.plugin.version()
    }

    fn descr(&self, bit: u64, parent: Handle) -> Descr {
        Descr::new(self.plugin.version(), bit, parent, self.rank)
    }

    fn start(&self, mut descr: Descr) -> Handle {
        self.plugin.start(self.context, &mut descr)
    }

    fn name(&self, text: &'static CStr) -> Option<&'static CStr> {
        match self.strings {
            Strings::Ordinary => Some(text),
            Strings::All(text) => text,
        }
    }

    fn tag(&self, descr: &mut Descr, at: usize) {
        if self.version() >= 7 && !self.plugin.is_rccl() {
            descr.put(at, &TAG.to_le_bytes());
        }
    }

    /// A group of API calls begins.
    #[must_use]
    pub fn start_group_api(&self, graph: bool, depth: i32) -> Handle {
        let mut d = self.descr(bit::GROUP_API, 0);
        d.put(group_api::GRAPH, &[u8::from(graph)]);
        d.put(group_api::DEPTH, &depth.to_le_bytes());
        let handle = self.start(d);
        self.plugin.record(handle, 23, None);
        handle
    }

    /// `ncclGroupEnd` of the group was entered.
    pub fn end_group_api(&self, group_api: Handle) {
        self.plugin.record(group_api, 24, None);
    }

    /// Plays the call of an AllReduce: start and stop.
    #[must_use]
    pub fn coll_api(&self, parent: Handle, count: u64, graph: bool) -> Handle {
        let mut d = self.descr(bit::COLL_API, parent);
        d.put_str(coll_api::FUNC, self.name(names::ALL_REDUCE));
        d.put(coll_api::COUNT, &count.to_le_bytes());
        d.put_str(coll_api::DATATYPE, self.name(names::FLOAT32));
        d.put(coll_api::ROOT, &0i32.to_le_bytes());
        d.put(coll_api::STREAM, &STREAM.to_le_bytes());
        d.put(coll_api::GRAPH, &[u8::from(graph)]);
        self.tag(&mut d, coll_api::USER_TAG);
        let handle = self.start(d);
        self.plugin.stop(handle);
        handle
    }

    /// Plays the call of a send or receive: start and stop.
    #[must_use]
    pub fn p2p_api(&self, parent: Handle, send: bool, count: u64) -> Handle {
        let mut d = self.descr(bit::P2P_API, parent);
        d.put_str(p2p_api::FUNC, self.name(if send { names::SEND } else { names::RECV }));
        d.put(p2p_api::COUNT, &count.to_le_bytes());
        d.put_str(p2p_api::DATATYPE, self.name(names::FLOAT32));
        d.put(p2p_api::STREAM, &STREAM.to_le_bytes());
        d.put(p2p_api::GRAPH, &[0]);
        self.tag(&mut d, p2p_api::USER_TAG);
        let handle = self.start(d);
        self.plugin.stop(handle);
        handle
    }

    /// Plays the launch of a plan's kernel: start and stop.
    pub fn kernel_launch(&self, parent: Handle) {
        let mut d = self.descr(bit::KERNEL_LAUNCH, parent);
        d.put(24, &STREAM.to_le_bytes());
        self.plugin.stop(self.start(d));
    }

    /// A plan begins.
    #[must_use]
    pub fn start_group(&self) -> Handle {
        self.start(self.descr(bit::GROUP, 0))
    }

    /// An AllReduce is enqueued, with the next sequence number.
    #[must_use]
    pub fn start_coll(
        &mut self,
        parent: Handle,
        group: Handle,
        count: u64,
        channels: u8,
    ) -> Handle {
        self.seq += 1;
        self.start_coll_again(parent, group, count, channels)
    }

    /// As `start_coll`, but with the sequence number of the last operation, as in graph replays.
    #[must_use]
    pub fn start_coll_again(
        &self,
        parent: Handle,
        group: Handle,
        count: u64,
        channels: u8,
    ) -> Handle {
        let mut d = self.descr(bit::COLL, parent);
        d.set(&coll::NAME, &0u64.to_le_bytes());
        d.set(&coll::COMM_HASH, &0xc0ffee_u64.to_le_bytes());
        d.set(&coll::SEQ, &self.seq.saturating_sub(1).to_le_bytes());
        // Codes of v1: AllReduce 4, float32 7, RING 1, SIMPLE 2.
        d.set_name(&coll::FUNC, self.name(names::ALL_REDUCE), 4);
        d.set(&coll::COUNT, &count.to_le_bytes());
        d.set(&coll::ROOT, &0i32.to_le_bytes());
        d.set_name(&coll::DATATYPE, self.name(names::FLOAT32), 7);
        d.set(&coll::TRAFFIC, &(count * 4).to_le_bytes());
        d.set(&coll::CHANNELS, &[channels]);
        d.set(&coll::WARPS, &[16]);
        d.set_name(&coll::ALGO, self.name(names::RING), 1);
        d.set_name(&coll::PROTO, self.name(names::SIMPLE), 2);
        d.set(&coll::GROUP, &group.to_le_bytes());
        d.set(&coll::VARIANT, &0u64.to_le_bytes());
        d.set(&coll::SYMMETRIC, &[0]);
        d.set(&coll::USER_TAG, &TAG.to_le_bytes());
        self.start(d)
    }

    /// A send or receive is enqueued.
    #[must_use]
    pub fn start_p2p(&self, parent: Handle, group: Handle, send: bool, count: u64) -> Handle {
        let mut d = self.descr(bit::P2P, parent);
        d.set(&p2p::NAME, &0u64.to_le_bytes());
        d.set(&p2p::COMM_HASH, &0xc0ffee_u64.to_le_bytes());
        let (name, code) = if send { (names::SEND, 6) } else { (names::RECV, 7) };
        d.set_name(&p2p::FUNC, self.name(name), code);
        d.set_name(&p2p::DATATYPE, self.name(names::FLOAT32), 7);
        d.set(&p2p::COUNT, &count.to_le_bytes());
        d.set(&p2p::PEER, &(1 - self.rank).to_le_bytes());
        d.set(&p2p::CHANNELS, &[2]);
        d.set(&p2p::GROUP, &group.to_le_bytes());
        d.set(&p2p::USER_TAG, &TAG.to_le_bytes());
        self.start(d)
    }

    /// A ProxyOp starts. `pid` is the process in its descriptor.
    #[must_use]
    pub fn start_op(&self, parent: Handle, channel: u8, is_send: bool, pid: u32) -> Handle {
        let mut d = self.descr(bit::PROXY_OP, parent);
        d.put(proxy_op::PID, &pid.to_le_bytes());
        d.put(proxy_op::CHANNEL, &[channel]);
        d.put(proxy_op::PEER, &(1 - self.rank).to_le_bytes());
        d.put(proxy_op::STEPS, &4i32.to_le_bytes());
        d.put(proxy_op::CHUNK, &(1i32 << 22).to_le_bytes());
        d.put(proxy_op::IS_SEND, &i32::from(is_send).to_le_bytes());
        self.start(d)
    }

    /// A step starts.
    #[must_use]
    pub fn start_step(&self, op: Handle, step: i32) -> Handle {
        let mut d = self.descr(bit::PROXY_STEP, op);
        d.put_step(step);
        self.start(d)
    }

    /// A ProxyCtrl event of the progress thread: start, `state`, stop.
    pub fn proxy_ctrl(&self, state: i32, appended: i32) {
        let handle = self.start(self.descr(bit::PROXY_CTRL, 0));
        let mut args = Args([GARBAGE; 16]);
        args.0[..4].copy_from_slice(&appended.to_le_bytes());
        self.plugin.record(handle, state, Some(&mut args));
        self.plugin.stop(handle);
    }

    /// A kernel channel starts.
    #[must_use]
    pub fn start_kernel(&self, parent: Handle, channel: u8, ptimer: u64) -> Handle {
        let mut d = self.descr(bit::KERNEL_CH, parent);
        d.put(kernel_ch::CHANNEL, &[channel]);
        if self.version() >= 4 {
            d.put(kernel_ch::PTIMER, &ptimer.to_le_bytes());
        }
        self.start(d)
    }

    /// A kernel channel ends, with its time if the version has one.
    pub fn stop_kernel(&self, kernel: Handle, ptimer: u64) {
        if self.version() >= 4 {
            self.plugin.record(kernel, 22, Some(&mut Args::word(ptimer)));
        }
        self.plugin.stop(kernel);
    }

    /// A complete phase of a kernel channel (v7).
    pub fn kernel_phase(&self, kernel: Handle, channel: u8, phase: u8, ptimer: u64) {
        let mut d = self.descr(bit::KERNEL_PHASE, kernel);
        d.put(kernel_phase::CHANNEL, &[channel]);
        d.put(kernel_phase::PHASE, &[phase]);
        d.put_str(kernel_phase::NAME, self.name(names::PHASES[usize::from(phase) % 3]));
        d.put(kernel_phase::PTIMER, &ptimer.to_le_bytes());
        let handle = self.start(d);
        self.plugin.record(handle, 31, Some(&mut Args::word(ptimer + 10)));
        self.plugin.stop(handle);
    }

    /// A work request on an InfiniBand queue pair. The data is freed when this returns.
    #[must_use]
    pub fn start_ib(&self, step: Handle, qp: u32, bytes: u64) -> Handle {
        let mut data = Args::<40>([GARBAGE; 40]);
        data.0[0] = 1;
        data.put(net_plugin::IB_DEVICE, &3u32.to_le_bytes());
        data.put(net_plugin::IB_WR_ID, &0x77u64.to_le_bytes());
        data.put(net_plugin::IB_OPCODE, &1u32.to_le_bytes());
        data.put(net_plugin::IB_QP, &qp.to_le_bytes());
        data.put(net_plugin::IB_LENGTH, &bytes.to_le_bytes());
        self.start_net(step, net_plugin::IB, data.address())
    }

    /// A socket's part of a transfer. The data is freed when this returns.
    #[must_use]
    pub fn start_socket(&self, step: Handle, fd: u32, receive: bool, bytes: u64) -> Handle {
        let mut data = Args::<24>([GARBAGE; 24]);
        data.0[0] = 1;
        data.put(net_plugin::SOCKET_FD, &fd.to_le_bytes());
        data.put(net_plugin::SOCKET_OP, &u32::from(receive).to_le_bytes());
        data.put(net_plugin::SOCKET_LENGTH, &bytes.to_le_bytes());
        self.start_net(step, net_plugin::SOCKET, data.address())
    }

    /// An event of a network plugin under any id, with any address as its data.
    #[must_use]
    pub fn start_net(&self, step: Handle, id: u64, data: u64) -> Handle {
        let mut d = self.descr(bit::NET_PLUGIN, step);
        d.put(net_plugin::ID, &id.to_le_bytes());
        d.put(net_plugin::DATA, &data.to_le_bytes());
        self.start(d)
    }

    /// A copy-engine AlltoAll starts (v6 on).
    #[must_use]
    pub fn start_ce_coll(&self, parent: Handle, seq: u64, count: u64) -> Handle {
        let mut d = self.descr(bit::CE_COLL, parent);
        d.put(ce_coll::SEQ, &seq.to_le_bytes());
        d.put_str(ce_coll::FUNC, self.name(names::ALL_TO_ALL));
        d.put(ce_coll::COUNT, &count.to_le_bytes());
        d.put(ce_coll::ROOT, &0i32.to_le_bytes());
        d.put_str(ce_coll::DATATYPE, self.name(names::FLOAT32));
        d.put_str(ce_coll::SYNC, self.name(names::UC));
        d.put(ce_coll::INTRA_BATCH_SYNC, &[1]);
        d.put(ce_coll::BATCH_SIZE, &4u32.to_le_bytes());
        d.put(ce_coll::BATCHES, &2u32.to_le_bytes());
        d.put(ce_coll::CE_SEQ, &0u32.to_le_bytes());
        d.put(ce_coll::STREAM, &STREAM.to_le_bytes());
        self.tag(&mut d, ce_coll::USER_TAG);
        self.start(d)
    }

    /// A complete synchronisation of a copy-engine collective.
    pub fn ce_sync(&self, parent: Handle, complete: bool) {
        let mut d = self.descr(bit::CE_SYNC, parent);
        d.put(ce_sync::COMPLETE, &[u8::from(complete)]);
        d.put(ce_sync::RANKS, &2i32.to_le_bytes());
        self.plugin.stop(self.start(d));
    }

    /// A batch of copies starts.
    #[must_use]
    pub fn start_ce_batch(&self, parent: Handle, ops: u32, bytes: u64) -> Handle {
        let mut d = self.descr(bit::CE_BATCH, parent);
        d.put(ce_batch::OPS, &ops.to_le_bytes());
        d.put(ce_batch::BYTES, &bytes.to_le_bytes());
        d.put(ce_batch::INTRA_SYNC, &[1]);
        self.start(d)
    }

    /// An event of any type, known or not, whose payload is zero.
    #[must_use]
    pub fn start_raw(&self, bit: u64, parent: Handle) -> Handle {
        let mut d = self.descr(bit, parent);
        d.clear();
        self.start(d)
    }

    /// The enqueuing thread's callbacks for an AllReduce of `count` floats over `channels`.
    pub fn enqueue(&mut self, count: u64, channels: u8) -> Enqueued {
        let api = self.version() >= 5;
        let (mut group_api, mut coll_api) = (0, 0);
        if api {
            group_api = self.start_group_api(false, 1);
            coll_api = self.coll_api(group_api, count, false);
            self.end_group_api(group_api);
            self.kernel_launch(group_api);
        }
        let group = self.start_group();
        let parent = if api { coll_api } else { group };
        let coll = self.start_coll(parent, group, count, channels);
        self.plugin.stop(coll);
        self.plugin.stop(group);
        if api {
            self.plugin.stop(group_api);
        }
        Enqueued { coll }
    }

    /// The proxy thread's callbacks for an enqueued operation.
    pub fn proxy(&self, enqueued: Enqueued, channels: u8, steps: i32) {
        for channel in 0..channels {
            let kernel = if self.version() >= 3 {
                self.start_kernel(enqueued.coll, channel, now_ns())
            } else {
                0
            };
            for is_send in [false, true] {
                self.op(enqueued.coll, channel, is_send, steps);
            }
            self.stop_kernel(kernel, now_ns());
        }
    }

    /// A complete ProxyOp of this process with its steps.
    pub fn op(&self, parent: Handle, channel: u8, is_send: bool, steps: i32) {
        let op = self.start_op(parent, channel, is_send, std::process::id());
        self.progress(op);
        for step in 0..steps {
            self.step(op, step, is_send);
        }
        self.plugin.stop(op);
    }

    /// The first progress of a ProxyOp, if the version reports it.
    pub fn progress(&self, op: Handle) {
        if self.version() >= 4 {
            self.plugin.record(op, 19, Some(&mut Args([GARBAGE; 16])));
        }
    }

    /// A complete step with its states.
    pub fn step(&self, op: Handle, step: i32, is_send: bool) {
        let handle = self.start_step(op, step);
        // Up to 2.26 the states of steps have no arguments.
        let with_args = self.version() >= 4;
        let states: &[i32] = match (is_send, with_args) {
            (true, true) => &[8, 20, 20, 9],
            (true, false) => &[8, 9],
            (false, _) => &[10, 11, 12],
        };
        for &state in states {
            self.plugin.record(handle, state, with_args.then_some(&mut Args::word(1 << 20)));
        }
        self.plugin.stop(handle);
    }
}

/// Stands in for the GPU's timer.
#[must_use]
pub fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(0))
}
