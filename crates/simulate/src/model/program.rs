// SPDX-License-Identifier: Apache-2.0
/*!
The calls of each rank in order: training steps as in Megatron.

A step broadcasts the batch to the tensor parallel ranks and runs forward and backward passes in
1F1B order, each with two AllReduces of the tensor parallel ranks, an all-to-all of the experts, and
sends of activations between stages. Then it reduces the gradients over the data parallel ranks,
runs two small AllReduces for overflow and norm, for which the host waits, and gathers the
parameters.
*/

use super::collective::RingRole;
use crate::fault::Fault;
use crate::func::Func;
use crate::layout::{Layout, Role};
use crate::scenario::Scenario;
use crate::time::{SECOND, mix, normal, scaled, unit};

/// A datatype of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    Bfloat16,
    Float32,
}

impl Datatype {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Datatype::Bfloat16 => "ncclBfloat16",
            Datatype::Float32 => "ncclFloat32",
        }
    }

    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Datatype::Bfloat16 => 2,
            Datatype::Float32 => 4,
        }
    }
}

/// A call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coll {
    pub(crate) func: Func,
    pub(crate) datatype: Datatype,
    /// Elements, as passed by the caller.
    pub(crate) count: u64,
    pub(crate) root: u32,
    /// NCCL chooses a tree.
    pub(crate) tree: bool,
}

/// How an operation is cut into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) channels: u8,
    pub(crate) steps: u32,
    /// Bytes of a step.
    pub(crate) bytes: u64,
}

/// The most bytes that a rank moves per channel in one round of a ring.
const ROUND: u64 = 4 << 20;

impl Coll {
    /// Total bytes.
    pub(crate) fn total(&self, ranks: u64) -> u64 {
        let bytes = self.count * self.datatype.bytes();
        match self.func {
            Func::AllReduce | Func::Broadcast => bytes,
            Func::AllGather | Func::ReduceScatter => bytes * ranks,
        }
    }

    /// The steps of each rank.
    pub(crate) fn cut(&self, ranks: u32) -> Cut {
        let total = self.total(u64::from(ranks)).max(1);
        let channels: u8 = if total < 64 << 10 { 1 } else { 2 };
        let share = total.div_ceil(u64::from(channels));
        if self.tree || self.func == Func::Broadcast {
            let steps = share.div_ceil(512 << 10).clamp(1, 8);
            // LL moves a flag with each word.
            let bytes = if self.tree { 2 * share } else { share };
            return Cut { channels, steps: whole(steps), bytes: bytes.div_ceil(steps) };
        }
        let part = share.div_ceil(u64::from(ranks));
        let rounds = part.div_ceil(ROUND).clamp(1, 16);
        let passes = if self.func == Func::AllReduce { 2 } else { 1 };
        let steps = passes * u64::from(ranks - 1) * rounds;
        Cut { channels, steps: whole(steps), bytes: part.div_ceil(rounds) }
    }

    /// What the rank at `at` of `ranks` does in the ring.
    pub(crate) fn part(&self, at: u32, ranks: u32) -> RingRole {
        match self.func {
            Func::Broadcast if at == self.root => RingRole::Source,
            Func::Broadcast if (at + 1) % ranks == self.root => RingRole::Sink,
            Func::Broadcast => RingRole::Relay,
            _ => RingRole::Rotate,
        }
    }
}

fn whole(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A send or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) is_send: bool,
    /// Rank in the communicator.
    pub(crate) peer: u32,
    /// Elements of bfloat16.
    pub(crate) count: u64,
}

impl Transfer {
    /// Its steps. Activations take more steps than a proxy has in flight.
    pub(crate) fn cut(self) -> Cut {
        let bytes = self.count * Datatype::Bfloat16.bytes();
        let steps = bytes.div_ceil(1 << 20).clamp(1, 64);
        Cut { channels: 1, steps: whole(steps), bytes: bytes.div_ceil(steps) }
    }
}

/// A call of the application.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Coll(Coll),
    /// Sends and receives of one group.
    Transfers(Vec<Transfer>),
}

/// The purpose of an operation in a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Batch,
    Forward,
    Backward,
    Stage,
    Experts,
    Gradients,
    Overflow,
    Norm,
    Parameters,
    Other,
}

/// An operation of a rank's program.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) step: u32,
    pub(crate) purpose: Purpose,
    /// Index of the communicator in [`Layout::groups`].
    pub(crate) group: usize,
    pub(crate) call: Call,
    /// Host time before the call, ns.
    pub(crate) host_ns: u64,
    /// GPU computation before it, ns.
    pub(crate) compute_ns: u64,
    /// The host waits for its end.
    pub(crate) sync: bool,
    /// The launch does not return.
    pub(crate) stuck_launch: bool,
}

/// Bytes of a microbatch's activations.
pub(crate) const ACTIVATIONS: u64 = 16 << 20;
/// Bytes of a stage's gradients that one ReduceScatter takes.
const GRADIENTS: u64 = 32 << 20;

/// One step in this many has a host pause; `GC_NS` is the duration, ns.
const GC_STEPS: u64 = 32;
const GC_NS: u64 = 30_000_000;
/// How much a replica's computation varies from step to step, in both directions.
const IMBALANCE: f64 = 0.1;

pub(crate) fn programs(layout: &Layout, scenario: &Scenario, compute: &[f64]) -> Vec<Vec<Op>> {
    (0..layout.ranks)
        .map(|rank| {
            let mut builder = Builder {
                layout,
                scenario,
                rank,
                factor: compute[rank as usize],
                ops: Vec::new(),
                step: 0,
                waiting: 0,
                host: 0,
            };
            builder.build();
            builder.ops
        })
        .collect()
}

struct Builder<'a> {
    layout: &'a Layout,
    scenario: &'a Scenario,
    rank: u32,
    factor: f64,
    ops: Vec<Op>,
    step: u32,
    /// GPU computation before the next operation, ns.
    waiting: u64,
    /// Host time before the next call, ns.
    host: u64,
}

impl Builder<'_> {
    fn build(&mut self) {
        let steps = self.scenario.job.steps;
        for step in 0..steps {
            self.step = step;
            let pause = |fault, at, seconds| {
                if self.scenario.has(fault) && step == at { seconds * SECOND } else { 0 }
            };
            self.host += pause(Fault::FirstIteration, 0, 45);
            self.host += pause(Fault::Checkpoint, steps / 2, 60);
            let drawn = mix(self.scenario.seed, u64::from(self.rank), u64::from(step) ^ 0x6763);
            if self.scenario.has(Fault::GcPauses) && drawn.is_multiple_of(GC_STEPS) {
                self.host += GC_NS;
            }
            let middle = steps / 2..steps / 2 + 4;
            self.step(self.scenario.has(Fault::EvalPhase) && middle.contains(&step));
        }
    }

    fn step(&mut self, is_evaluation: bool) {
        if self.step == 0 {
            let setup = Coll { tree: true, ..all_reduce(Datatype::Float32, 1) };
            self.coll(Role::Setup, Purpose::Other, setup, true);
        }
        let batch = Coll { func: Func::Broadcast, ..all_reduce(Datatype::Float32, 256 << 10) };
        self.coll(Role::Tensor, Purpose::Batch, batch, false);
        if self.step == 0 {
            self.coll(Role::World, Purpose::Other, Coll { count: 1 << 10, ..batch }, false);
        }
        let stages = self.layout.pp;
        let given = self.scenario.job.microbatches;
        let microbatches = if given == 0 { stages.max(2) } else { given };
        if is_evaluation {
            self.evaluate(microbatches);
        } else {
            self.train(microbatches);
            self.update();
        }
    }

    /// An evaluation step: forward passes only.
    fn evaluate(&mut self, microbatches: u32) {
        let stage = self.layout.stage(self.rank);
        for _ in 0..microbatches {
            self.stage_group(&[(false, stage.checked_sub(1))]);
            self.pass(Purpose::Forward);
            self.stage_group(&[(true, self.next_stage())]);
        }
        let loss = Coll { tree: true, ..all_reduce(Datatype::Float32, 1) };
        self.coll(Role::World, Purpose::Norm, loss, true);
    }

    fn next_stage(&self) -> Option<u32> {
        let next = self.layout.stage(self.rank) + 1;
        (next < self.layout.pp).then_some(next)
    }

    /// One forward, one backward: the order of Megatron without interleaving.
    fn train(&mut self, microbatches: u32) {
        let stage = self.layout.stage(self.rank);
        let (before, after) = (stage.checked_sub(1), self.next_stage());
        let warm = (self.layout.pp - stage - 1).min(microbatches);
        let rest = microbatches - warm;
        for _ in 0..warm {
            self.stage_group(&[(false, before)]);
            self.pass(Purpose::Forward);
            self.stage_group(&[(true, after)]);
        }
        if rest > 0 {
            self.stage_group(&[(false, before)]);
        }
        for left in (0..rest).rev() {
            self.pass(Purpose::Forward);
            self.stage_group(&[(true, after), (false, after)]);
            self.pass(Purpose::Backward);
            if left == 0 {
                self.stage_group(&[(true, before)]);
            } else {
                self.stage_group(&[(true, before), (false, before)]);
            }
        }
        for _ in 0..warm {
            self.stage_group(&[(false, after)]);
            self.pass(Purpose::Backward);
            self.stage_group(&[(true, before)]);
        }
    }

    /// Sends (true) and receives of one group; missing neighbour stages are skipped.
    fn stage_group(&mut self, transfers: &[(bool, Option<u32>)]) {
        let transfers: Vec<Transfer> = transfers
            .iter()
            .filter_map(|&(is_send, peer)| {
                let count = ACTIVATIONS / Datatype::Bfloat16.bytes();
                Some(Transfer { is_send, peer: peer?, count })
            })
            .collect();
        if !transfers.is_empty() {
            self.push(Role::Pipeline, Purpose::Stage, Call::Transfers(transfers), false);
        }
    }

    /// A microbatch through the layers of this stage: attention, then the rest or the experts.
    fn pass(&mut self, purpose: Purpose) {
        let forward = self.scenario.machine.forward_us * 1_000;
        let whole = if purpose == Purpose::Backward { 2 * forward } else { forward };
        let count = ACTIVATIONS / Datatype::Bfloat16.bytes();
        let changes = self.scenario.has(Fault::AlgoChange);
        let tree = changes && self.step >= self.scenario.job.steps / 2;
        let reduce = Coll { tree, ..all_reduce(Datatype::Bfloat16, count) };
        self.compute(whole / 2);
        self.coll(Role::Tensor, purpose, reduce, false);
        if self.layout.ep > 1 {
            self.compute(whole / 8);
            self.experts();
            self.compute(whole / 4);
            self.experts();
            self.compute(whole / 8);
        } else {
            self.compute(whole / 2);
        }
        self.coll(Role::Tensor, purpose, reduce, false);
    }

    /// All-to-all, which NCCL implements as sends and receives of one group. Each rank keeps its
    /// own part.
    fn experts(&mut self) {
        let Some(own) = self.layout.group_of(self.rank, Role::Expert) else { return };
        let size = u64::from(self.layout.ep);
        let mut transfers = Vec::new();
        for peer in (0..self.layout.ep).filter(|&peer| peer as usize != own.rank) {
            let count = ACTIVATIONS / Datatype::Bfloat16.bytes() / size;
            transfers.extend([true, false].map(|is_send| Transfer { is_send, peer, count }));
        }
        self.push(Role::Expert, Purpose::Experts, Call::Transfers(transfers), false);
    }

    /// The end of a training step.
    fn update(&mut self) {
        let size = u64::from(self.layout.dp);
        let reduce = Coll {
            func: Func::ReduceScatter,
            ..all_reduce(Datatype::Float32, GRADIENTS / 4 / size)
        };
        let gather =
            Coll { func: Func::AllGather, ..all_reduce(Datatype::Bfloat16, GRADIENTS / 4 / size) };
        let small = Coll { tree: true, ..all_reduce(Datatype::Float32, 1) };
        for _ in 0..2 {
            self.coll(Role::Data, Purpose::Gradients, reduce, false);
        }
        if self.step % 5 == 4 {
            let table = all_reduce(Datatype::Float32, 1 << 20);
            self.coll(Role::Embedding, Purpose::Other, table, false);
        }
        self.coll(Role::Tensor, Purpose::Overflow, small, true);
        self.coll(Role::World, Purpose::Norm, small, true);
        self.compute(self.scenario.machine.forward_us * 200);
        for _ in 0..2 {
            self.coll(Role::Data, Purpose::Parameters, gather, false);
        }
    }

    fn compute(&mut self, ns: u64) {
        let drawn = mix(self.scenario.seed, u64::from(self.rank), self.ops.len() as u64);
        let noise = 1.0 + self.scenario.machine.jitter * normal(drawn);
        self.waiting += scaled(ns, (self.factor * self.share() * noise).max(0.1));
    }

    /// The share of the step's data that its replica has.
    fn share(&self) -> f64 {
        if !self.scenario.has(Fault::Imbalance) {
            return 1.0;
        }
        let replica = u64::from(self.layout.replica(self.rank));
        let drawn = unit(mix(self.scenario.seed, replica, u64::from(self.step) ^ 0x696d));
        1.0 + IMBALANCE * (2.0 * drawn - 1.0)
    }

    fn coll(&mut self, role: Role, purpose: Purpose, coll: Coll, sync: bool) {
        self.push(role, purpose, Call::Coll(coll), sync);
    }

    /// Adds a call; does nothing if the rank has no such communicator.
    fn push(&mut self, role: Role, purpose: Purpose, call: Call, sync: bool) {
        let Some(own) = self.layout.group_of(self.rank, role) else { return };
        let is_late = self.step >= self.scenario.job.steps / 2;
        let further = self.layout.renewed.filter(|_| is_late).unwrap_or(0);
        self.ops.push(Op {
            step: self.step,
            purpose,
            group: own.group + further,
            call,
            host_ns: std::mem::take(&mut self.host),
            compute_ns: std::mem::take(&mut self.waiting),
            sync,
            stuck_launch: false,
        });
    }
}

fn all_reduce(datatype: Datatype, count: u64) -> Coll {
    Coll { func: Func::AllReduce, datatype, count, root: 0, tree: false }
}
