// SPDX-License-Identifier: Apache-2.0
//! The arguments of a slice, which a viewer shows for a selected slice. The table
//! [`crate::names::ARGUMENTS`] has their names.

use crate::names::is_argument;
use crate::scene::{Scene, Slice, SliceSource};
use ncclscope_operations::function::is_rooted;
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::{Completion, Event, Operation};
use ncclscope_trace::record::{
    ApiCall, CeBatch, CeColl, GroupApi, KernelCh, KernelLaunch, KernelPhase, Meaning, NetPlugin,
    ProxyOp, step_flags,
};
use ncclscope_trace::{Detail, MarkKind, Step, StrId};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Arg<'a> {
    /// A number.
    Uint(u64),
    /// A number that may be negative.
    Int(i64),
    /// A text with few different values, which is interned.
    Text(&'a str),
}

/// Kinds of network plugins, as NCCL numbers its own (`src/include/plugin/profiler/net_ib.h` and
/// `net_socket.h`).
const INFINIBAND: u64 = 1;
const SOCKETS: u64 = 2;

/// Passes the names and values of a slice to `say`, in the order in which they are shown. Names end
/// in their unit. What is unknown is left out.
pub fn args<'s>(
    scene: &'s Scene<'_, '_>,
    slice: &Slice,
    say: &mut impl FnMut(&'static str, Arg<'s>),
) {
    let mut said = Said(|name, value| {
        debug_assert!(is_argument(name), "{name} is not in the table of names");
        say(name, value);
    });
    match slice.what {
        SliceSource::Operation(index) => said.operation(scene, scene.operation(index)),
        SliceSource::Step(index) => said.step(&scene.timeline().steps()[index as usize].1),
        SliceSource::Event(id) => {
            said.event(scene, scene.timeline().event(id));
            if let Some(external) = scene.timeline().external_id(id) {
                said.uint("external_id", external);
            }
            if let Some(ns) = scene.timeline().launch_ns(id) {
                said.uint("cuda_event_ns", ns);
            }
        }
        SliceSource::Mark(index) => {
            let mark = scene.timeline().recording().marks()[index as usize];
            if matches!(mark.what, MarkKind::Step | MarkKind::Start) {
                said.uint("value", mark.value);
            }
        }
    }
    said.flag("open", slice.open);
}

/// The arguments of a slice, to be written as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Args<'s, 't, 'r> {
    /// The process.
    pub scene: &'s Scene<'t, 'r>,
    /// Its slice.
    pub slice: &'s Slice,
}

impl Serialize for Args<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        let mut result = Ok(());
        args(self.scene, self.slice, &mut |name, value| {
            if result.is_ok() {
                result = map.serialize_entry(name, &value);
            }
        });
        result.and_then(|()| map.end())
    }
}

struct Said<F>(F);

impl<'s, F: FnMut(&'static str, Arg<'s>)> Said<F> {
    fn uint(&mut self, name: &'static str, value: impl Into<u64>) {
        (self.0)(name, Arg::Uint(value.into()));
    }

    fn int(&mut self, name: &'static str, value: i32) {
        (self.0)(name, Arg::Int(value.into()));
    }

    /// Passes a number unless it is 0, which means unknown.
    fn known(&mut self, name: &'static str, value: impl Into<u64>) {
        let value = value.into();
        if value != 0 {
            self.uint(name, value);
        }
    }

    fn flag(&mut self, name: &'static str, is_set: bool) {
        self.known(name, is_set);
    }

    fn string(&mut self, scene: &'s Scene<'_, '_>, name: &'static str, id: StrId) {
        if let Some(text) = scene.timeline().recording().string(id) {
            (self.0)(name, Arg::Text(text));
        }
    }

    fn root(&mut self, scene: &'s Scene<'_, '_>, func: StrId, root: i32) {
        if is_rooted(scene.timeline().string(func)) {
            self.int("root", root);
        }
    }

    fn operation(&mut self, scene: &'s Scene<'_, '_>, operation: &Operation) {
        if let Some(seq) = operation.seq {
            self.uint("nccl_seq", seq);
        }
        if let Some(bytes) = operation.bytes {
            self.uint("bytes", bytes);
        }
        self.string(scene, "datatype", operation.datatype);
        self.string(scene, "algorithm", operation.algo);
        self.string(scene, "protocol", operation.proto);
        self.known("channels", operation.channels.unwrap_or(0));
        if let Some(peer) = operation.peer {
            self.int("comm_peer", peer);
        }
        match scene.timeline().event(operation.event).start.detail {
            Detail::Coll(coll) => {
                self.root(scene, coll.func, coll.root);
                self.known("warps", coll.warps);
                self.string(scene, "variant", coll.variant);
                self.flag("symmetric", coll.symmetric);
                self.known("alignment", coll.alignment.bytes().unwrap_or(0));
                self.known("user_tag", coll.user_tag);
            }
            Detail::P2p(p2p) => {
                self.known("alignment", p2p.alignment.bytes().unwrap_or(0));
                self.known("user_tag", p2p.user_tag);
            }
            Detail::CeColl(ce) => {
                self.root(scene, ce.func, ce.root);
                self.known("user_tag", ce.user_tag);
            }
            _ => {}
        }
        if let Some(comm) = operation.comm {
            (self.0)("comm", Arg::Text(scene.comm(comm)));
            if let Some(name) = scene.named(comm) {
                (self.0)("comm_name", Arg::Text(name));
            }
            if let Some(role) = scene.role(comm) {
                (self.0)("role", Arg::Text(role));
            }
            if let Some(rank) = scene.rank(comm) {
                self.int("comm_rank", rank);
            }
            self.known("nranks", scene.timeline().comm(comm).ranks);
        }
        if let Some(ns) = operation.duration_ns {
            (self.0)("timing", Arg::Text(operation.timing.name()));
            self.uint("duration_ns", to_u64(ns));
        }
        if operation.completion == Completion::Unseen {
            (self.0)("end", Arg::Text("unseen"));
        }
    }

    fn step(&mut self, step: &Step) {
        self.uint("step", step.step);
        if step.has(step_flags::SIZED) {
            self.uint("bytes", step.size);
        }
        self.known("polls", step.repeats);
    }

    fn event(&mut self, scene: &'s Scene<'_, '_>, event: &Event) {
        match event.start.detail {
            Detail::CollApi(call) => {
                self.call(scene, &call);
                self.root(scene, call.func, call.root);
            }
            Detail::P2pApi(call) => self.call(scene, &call),
            Detail::GroupApi(GroupApi { depth, .. }) => self.int("depth", depth),
            Detail::KernelLaunch(KernelLaunch { stream }) => self.uint("cuda_stream", stream),
            Detail::ProxyOp(op) => self.proxy(event, &op),
            Detail::KernelCh(KernelCh { ptimer, .. })
            | Detail::KernelPhase(KernelPhase { ptimer, .. }) => {
                if let Some((stop, _)) = event.ptimer_stop.filter(|(stop, _)| *stop >= ptimer)
                    && ptimer != 0
                {
                    self.uint("gpu_ns", stop - ptimer);
                }
            }
            Detail::CeColl(CeColl { stream, sync, .. }) => {
                self.uint("cuda_stream", stream);
                self.string(scene, "synchronization", sync);
            }
            Detail::CeBatch(CeBatch { ops, bytes, .. }) => {
                self.uint("copies", ops);
                self.uint("bytes", bytes);
            }
            Detail::NetPlugin(net) => self.net(scene, event, &net),
            Detail::Coll(_) | Detail::P2p(_) | Detail::Group | Detail::ProxyCtrl => {}
            // Other kinds pass the fields that their record declares.
            _ => self.fields(scene, event),
        }
    }

    fn fields(&mut self, scene: &'s Scene<'_, '_>, event: &Event) {
        for (field, bits) in event.start.fields() {
            match field.meaning {
                Meaning::Flag => self.flag(field.name, bits != 0),
                Meaning::Signed => {
                    self.int(field.name, u32::try_from(bits).unwrap_or(0).cast_signed());
                }
                Meaning::Text => {
                    let id = u16::try_from(bits).map_or(StrId::NONE, StrId);
                    self.string(scene, field.name, id);
                }
                Meaning::Unsigned | Meaning::Handle => self.uint(field.name, bits),
            }
        }
    }

    fn call(&mut self, scene: &'s Scene<'_, '_>, call: &ApiCall) {
        self.uint("count", call.count);
        self.string(scene, "datatype", call.datatype);
        self.uint("cuda_stream", call.stream);
        self.flag("graph_captured", call.graph);
        self.known("user_tag", call.user_tag);
    }

    fn proxy(&mut self, event: &Event, op: &ProxyOp) {
        self.uint("steps", op.steps);
        if let Some(steps) = &event.steps {
            self.known("bytes", steps.bytes);
            if steps.started > 0 && steps.stopped != op.steps {
                self.uint("steps_done", steps.stopped);
            }
        }
        if op.foreign {
            self.uint("pid", op.pid);
            self.int("comm_rank", op.rank);
        }
    }

    fn net(&mut self, scene: &'s Scene<'_, '_>, event: &Event, net: &NetPlugin) {
        if let Some(step) = scene.step_of_net(event) {
            self.uint("step", step.step);
        }
        match net.id >> 16 {
            INFINIBAND => {
                (self.0)("network", Arg::Text("InfiniBand"));
                self.uint("device", net.device);
                self.uint("qp", net.qp);
            }
            SOCKETS => {
                (self.0)("network", Arg::Text("sockets"));
                self.uint("socket", net.device);
            }
            _ => (self.0)("network", Arg::Text("other")),
        }
        self.uint("op", net.op);
        self.uint("bytes", net.bytes);
    }
}
