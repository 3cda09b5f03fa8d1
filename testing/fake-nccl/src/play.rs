// SPDX-License-Identifier: Apache-2.0
//! Scripts: the order of callbacks of real operations.

use crate::offsets::{
    NO, PARENT, RANK, Row, SIZE, TYPE_BYTES, coll, coll_api, group_api, kernel_ch, proxy_op,
};
use crate::plugin::{Args, Plugin};
use core::ffi::CStr;

/// Event type bits.
pub mod bit {
    #![expect(missing_docs, reason = "NCCL's names")]
    pub const GROUP: u64 = 1;
    pub const COLL: u64 = 2;
    pub const PROXY_OP: u64 = 8;
    pub const PROXY_STEP: u64 = 16;
    pub const KERNEL_CH: u64 = 64;
    pub const GROUP_API: u64 = 256;
    pub const COLL_API: u64 = 512;
    pub const KERNEL_LAUNCH: u64 = 2048;
}

/// What surrounds the fields that a descriptor sets: garbage, as under NCCL's shims.
const GARBAGE: u8 = 0xa5;

/// A handle as it came from the plugin.
pub type Handle = u64;

/// Plays one rank's events to a plugin.
#[derive(Debug)]
pub struct Player<'a> {
    plugin: &'a Plugin,
    context: u64,
    rank: i32,
    seq: u64,
}

/// An operation whose proxy work is still to be played.
#[derive(Debug, Clone, Copy)]
pub struct Enqueued {
    /// The Coll event.
    pub coll: Handle,
}

impl<'a> Player<'a> {
    /// A player of the communicator that `context` stands for.
    #[must_use]
    pub const fn new(plugin: &'a Plugin, context: u64, rank: i32) -> Player<'a> {
        Player { plugin, context, rank, seq: 0 }
    }

    fn descr(&self, bit: u64, parent: Handle) -> Descr {
        let v = self.plugin.version() - 1;
        let mut descr = Descr { bytes: [GARBAGE; 136], v };
        let bytes = bit.to_le_bytes();
        descr.put(0, &bytes[..TYPE_BYTES[v]]);
        descr.put(PARENT, &parent.to_le_bytes());
        descr.put(RANK, &self.rank.to_le_bytes());
        descr
    }

    fn start(&self, descr: &mut Descr) -> Handle {
        let size = SIZE[descr.v];
        self.plugin.start(self.context, &mut descr.bytes[..size])
    }

    /// What the enqueuing thread does for an AllReduce of `count` floats over `channels`.
    pub fn enqueue(&mut self, count: u64, channels: u8) -> Enqueued {
        let api = self.plugin.version() >= 5;
        let (mut group_api, mut coll_api) = (0, 0);
        if api {
            let mut d = self.descr(bit::GROUP_API, group_api);
            d.put(group_api::GRAPH, &[0]);
            d.put(group_api::DEPTH, &1i32.to_le_bytes());
            group_api = self.start(&mut d);
            self.plugin.record(group_api, 23, None);
            coll_api = self.start_coll_api(group_api, count);
            self.plugin.stop(coll_api);
            self.plugin.record(group_api, 24, None);
            let mut d = self.descr(bit::KERNEL_LAUNCH, group_api);
            d.put(24, &0x1000u64.to_le_bytes());
            let launch = self.start(&mut d);
            self.plugin.stop(launch);
        }
        let mut d = self.descr(bit::GROUP, 0);
        let group = self.start(&mut d);
        let parent = if api { coll_api } else { group };
        let coll = self.start_coll(parent, group, count, channels);
        self.plugin.stop(coll);
        self.plugin.stop(group);
        if api {
            self.plugin.stop(group_api);
        }
        Enqueued { coll }
    }

    fn start_coll_api(&self, parent: Handle, count: u64) -> Handle {
        let mut d = self.descr(bit::COLL_API, parent);
        d.put_str(coll_api::FUNC, c"AllReduce");
        d.put(coll_api::COUNT, &count.to_le_bytes());
        d.put_str(coll_api::DATATYPE, c"ncclFloat32");
        d.put(coll_api::ROOT, &0i32.to_le_bytes());
        d.put(coll_api::STREAM, &0x1000u64.to_le_bytes());
        d.put(coll_api::GRAPH, &[0]);
        if self.plugin.version() == 7 {
            d.put(coll_api::USER_TAG, &9u64.to_le_bytes());
        }
        self.start(&mut d)
    }

    fn start_coll(&mut self, parent: Handle, group: Handle, count: u64, channels: u8) -> Handle {
        let mut d = self.descr(bit::COLL, parent);
        d.set(&coll::NAME, &0u64.to_le_bytes());
        d.set(&coll::COMM_HASH, &0xc0ffee_u64.to_le_bytes());
        d.set(&coll::SEQ, &self.seq.to_le_bytes());
        self.seq += 1;
        // Codes of v1: AllReduce 4, float32 7, RING 1, SIMPLE 2.
        d.set_name(&coll::FUNC, c"AllReduce", 4);
        d.set(&coll::COUNT, &count.to_le_bytes());
        d.set(&coll::ROOT, &0i32.to_le_bytes());
        d.set_name(&coll::DATATYPE, c"ncclFloat32", 7);
        d.set(&coll::TRAFFIC, &(count * 4).to_le_bytes());
        d.set(&coll::CHANNELS, &[channels]);
        d.set(&coll::WARPS, &[16]);
        d.set_name(&coll::ALGO, c"RING", 1);
        d.set_name(&coll::PROTO, c"SIMPLE", 2);
        d.set(&coll::GROUP, &group.to_le_bytes());
        d.set(&coll::VARIANT, &0u64.to_le_bytes());
        d.set(&coll::SYMMETRIC, &[0]);
        d.set(&coll::USER_TAG, &9u64.to_le_bytes());
        self.start(&mut d)
    }

    /// A ProxyOp starts. `pid` is the process it is said to belong to.
    #[must_use]
    pub fn start_op(&self, parent: Handle, channel: u8, is_send: bool, pid: u32) -> Handle {
        let mut d = self.descr(bit::PROXY_OP, parent);
        d.put(proxy_op::PID, &pid.to_le_bytes());
        d.put(proxy_op::CHANNEL, &[channel]);
        d.put(proxy_op::PEER, &(1 - self.rank).to_le_bytes());
        d.put(proxy_op::STEPS, &4i32.to_le_bytes());
        d.put(proxy_op::CHUNK, &(1i32 << 22).to_le_bytes());
        d.put(proxy_op::IS_SEND, &i32::from(is_send).to_le_bytes());
        self.start(&mut d)
    }

    /// A step starts.
    #[must_use]
    pub fn start_step(&self, op: Handle, step: i32) -> Handle {
        let mut d = self.descr(bit::PROXY_STEP, op);
        d.put(24, &step.to_le_bytes());
        self.start(&mut d)
    }

    /// A kernel channel starts.
    #[must_use]
    pub fn start_kernel(&self, parent: Handle, channel: u8, ptimer: u64) -> Handle {
        let mut d = self.descr(bit::KERNEL_CH, parent);
        d.put(kernel_ch::CHANNEL, &[channel]);
        if self.plugin.version() >= 4 {
            d.put(kernel_ch::PTIMER, &ptimer.to_le_bytes());
        }
        self.start(&mut d)
    }

    /// An event of any type, known or not, whose fields are garbage... but strings are null.
    #[must_use]
    pub fn start_raw(&self, bit: u64, parent: Handle) -> Handle {
        let mut d = self.descr(bit, parent);
        for at in (24..136).step_by(8) {
            d.put(at, &0u64.to_le_bytes());
        }
        self.start(&mut d)
    }

    /// What the proxy thread does for an enqueued AllReduce.
    pub fn proxy(&self, enqueued: Enqueued, channels: u8, steps: i32) {
        let version = self.plugin.version();
        let pid = std::process::id();
        for channel in 0..channels {
            let kernel =
                if version >= 3 { self.start_kernel(enqueued.coll, channel, now_ns()) } else { 0 };
            for is_send in [false, true] {
                let op = self.start_op(enqueued.coll, channel, is_send, pid);
                if version >= 4 {
                    self.plugin.record(op, 19, Some(&mut Args([GARBAGE; 16])));
                }
                for step in 0..steps {
                    self.step(op, step, is_send);
                }
                self.plugin.stop(op);
            }
            if version >= 4 {
                let mut args = Args([GARBAGE; 16]);
                args.0[..8].copy_from_slice(&now_ns().to_le_bytes());
                self.plugin.record(kernel, 22, Some(&mut args));
            }
            self.plugin.stop(kernel);
        }
    }

    fn step(&self, op: Handle, step: i32, is_send: bool) {
        let handle = self.start_step(op, step);
        let mut args = Args([GARBAGE; 16]);
        args.0[..8].copy_from_slice(&(1u64 << 20).to_le_bytes());
        // Up to 2.26 the states of steps come without arguments.
        let with_args = self.plugin.version() >= 4;
        let states: &[i32] = match (is_send, with_args) {
            (true, true) => &[8, 20, 20, 9],
            (true, false) => &[8, 9],
            (false, _) => &[10, 11, 12],
        };
        for &state in states {
            self.plugin.record(handle, state, with_args.then_some(&mut args));
        }
        self.plugin.stop(handle);
    }
}

#[derive(Debug)]
#[repr(C, align(8))]
struct Descr {
    bytes: [u8; 136],
    v: usize,
}

impl Descr {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_str(&mut self, at: usize, text: &'static CStr) {
        self.put(at, &(text.as_ptr().addr() as u64).to_le_bytes());
    }

    fn set(&mut self, row: &Row, bytes: &[u8]) {
        if row[self.v] != NO {
            self.put(row[self.v], bytes);
        }
    }

    fn set_name(&mut self, row: &Row, text: &'static CStr, code: u8) {
        if self.v == 0 {
            self.set(row, &[code]);
        } else {
            self.put_str(row[self.v], text);
        }
    }
}

/// Stands in for the GPU's timer.
fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(0))
}
