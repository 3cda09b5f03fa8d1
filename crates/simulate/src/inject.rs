// SPDX-License-Identifier: Apache-2.0
/*!
Plants faults in the programs of the ranks or in the state of the hardware.

A fault hits an operation of a rank in a step. The time at which it hits is taken from a simulation
of the same job without it. All its consequences follow from the model.
*/

use crate::error::Error;
use crate::fault::{Fault, FaultGroup};
use crate::func::Func;
use crate::layout::{Layout, Role};
use crate::model::conditions::Conditions;
use crate::model::program::{ACTIVATIONS, Call, Coll, Datatype, Op, Purpose, Transfer};
use crate::model::solve::Solution;
use crate::record::ThreadState;
use crate::scenario::{JobShape, Planted, Scenario};
use crate::time::{NEVER, Time, mix, scaled};
use crate::truth::{SlowVerdict, Verdict};
use std::collections::BTreeSet;

/// The job in which faults are planted.
#[derive(Debug)]
pub(crate) struct FaultSite<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) layout: &'a Layout,
    pub(crate) programs: &'a mut Vec<Vec<Op>>,
    pub(crate) conditions: &'a mut Conditions,
    pub(crate) thread_states: &'a mut Vec<[ThreadState; 2]>,
}

/// A planted fault and its expected verdicts.
#[derive(Clone, Debug)]
pub(crate) struct PlantedFault {
    pub(crate) fault: Fault,
    pub(crate) rank: u32,
    /// The operation that it hits.
    pub(crate) op: usize,
    pub(crate) time: Time,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) slow: Option<SlowVerdict>,
}

pub(crate) const RUNS: ThreadState = ThreadState { state: b'R', place: "", since: NEVER };

/// The operation that a fault hits, with the rank's neighbours in it.
#[derive(Clone, Copy, Debug)]
struct FaultTarget {
    rank: u32,
    op: usize,
    /// The rank from which it receives in the operation; `to` is the one to which it sends.
    from: u32,
    to: u32,
}

impl FaultSite<'_> {
    /// Plants one fault that makes the job hang or compute wrong results. `healthy` is the same job
    /// without faults.
    pub(crate) fn hang(
        &mut self,
        planted: &Planted,
        number: u64,
        taken: &[u32],
        healthy: &Solution,
    ) -> Result<PlantedFault, Error> {
        let fault = planted.name;
        let target = self.target(planted, number, taken)?;
        let FaultTarget { rank, op, .. } = target;
        let at = rank as usize;
        let (issued, start) = {
            let done = &healthy.ranks[at][op];
            (done.issued, done.start)
        };
        let within = self.within(target, healthy);
        let time = match fault {
            Fault::StreamBlocked | Fault::SmExhausted => start,
            Fault::GpuDead => healthy.ranks[at][op].end,
            // Receives are posted long before data arrives.
            Fault::ReceiverNotReady => first_post(target, healthy).unwrap_or(within),
            _ if hits_at_a_time(fault) => within,
            _ => issued,
        };
        let (roots, edge) = self.blame(fault, target);
        self.plant_program(fault, target);
        self.plant_machine(fault, target, time);
        self.plant_thread_states(fault, rank, time);
        let verdict = fault.class().map(|class| Verdict { class, root_ranks: roots, edge });
        Ok(PlantedFault { fault, rank, op, time, verdict, slow: None })
    }

    /// The operation that a fault hits, in the given rank and step or in random ones.
    fn target(&self, planted: &Planted, number: u64, taken: &[u32]) -> Result<FaultTarget, Error> {
        let job = &self.scenario.job;
        let step = planted.step.unwrap_or(job.steps / 2);
        let name = planted.name.name();
        let drawn = mix(self.scenario.seed, number, planted.name as u64);
        // Tries ranks from a random one on until one has such an operation.
        for next in 0..job.ranks {
            let rank = match planted.rank {
                Some(rank) => rank,
                None => {
                    u32::try_from((drawn + u64::from(next)) % u64::from(job.ranks)).unwrap_or(0)
                }
            };
            if taken.contains(&rank) {
                continue;
            }
            let ops = self.programs[rank as usize].iter().enumerate();
            let fitting: Vec<FaultTarget> = ops
                .filter(|(_, op)| op.step == step)
                .filter_map(|(op, _)| self.fits(planted.name, rank, op))
                .collect();
            if !fitting.is_empty() {
                let pick = mix(drawn, 7, 7) % fitting.len() as u64;
                return Ok(fitting[usize::try_from(pick).unwrap_or(0)]);
            }
            if planted.rank.is_some() {
                break;
            }
        }
        Err(Error::scenario(format!(
            "{name}: no rank has an operation in step {step} that it could hit; {}",
            needs(planted.name, self.layout, job)
        )))
    }

    /// Whether a fault can hit an operation.
    fn fits(&self, fault: Fault, rank: u32, op: usize) -> Option<FaultTarget> {
        let it = &self.programs[rank as usize][op];
        let members = &self.layout.groups[it.group].members;
        let size = members.len();
        let is_ring =
            matches!(it.call, Call::Coll(coll) if !coll.tree && coll.func != Func::Broadcast);
        let target = self.neighbours(rank, op)?;
        let (is_in, is_out) = (self.crosses(target.from, rank), self.crosses(rank, target.to));
        let on_network = is_ring && matches!(it.purpose, Purpose::Gradients | Purpose::Parameters)
            || it.purpose == Purpose::Stage;
        let fits = match fault {
            Fault::ExtraOp | Fault::WrongCount | Fault::WrongType => is_ring && size > 2,
            Fault::WrongRoot => it.purpose == Purpose::Batch && size > 2,
            Fault::OrderSwap => it.purpose == Purpose::Overflow,
            Fault::P2pUnmatched => it.purpose == Purpose::Stage,
            Fault::P2pSize => it.purpose == Purpose::Stage && target.from != rank,
            Fault::GpuDead => is_ring,
            Fault::SmExhausted => is_ring,
            Fault::NvlinkHang => is_ring && self.layout.nodes(it.group) == 1,
            // It must have to send more data than it has before it receives any.
            Fault::SenderGpuStuck => is_ring && is_in && is_out && steps(it, size) > 1,
            Fault::ReceiverGpuStuck => {
                let only = matches!(&it.call, Call::Transfers(t) if t.len() == 1 && !t[0].is_send);
                only && is_in
            }
            Fault::ReceiverNotReady | Fault::FlushStuck => on_network && is_in,
            Fault::LinkDown => on_network && is_out,
            Fault::NicDown => is_ring && on_network && is_in && is_out,
            Fault::ProxyStalled => is_ring && is_in && is_out,
            _ => true,
        };
        fits.then_some(target)
    }

    /// A rank's neighbours in an operation; the rank itself if it has none.
    fn neighbours(&self, rank: u32, op: usize) -> Option<FaultTarget> {
        let it = &self.programs[rank as usize][op];
        let members = &self.layout.groups[it.group].members;
        let at = self.layout.groups[it.group].position(rank)?;
        let size = members.len();
        let (from, to) = match &it.call {
            Call::Coll(_) => (members[(at + size - 1) % size], members[(at + 1) % size]),
            Call::Transfers(transfers) => {
                let peer = |is_send| {
                    let found = transfers.iter().find(|transfer| transfer.is_send == is_send);
                    found.map_or(rank, |transfer| members[transfer.peer as usize])
                };
                (peer(false), peer(true))
            }
        };
        Some(FaultTarget { rank, op, from, to })
    }

    fn crosses(&self, from: u32, to: u32) -> bool {
        self.layout.host(from) != self.layout.host(to)
    }

    /// A time at which data of the operation moves.
    fn within(&self, target: FaultTarget, healthy: &Solution) -> Time {
        let done = &healthy.ranks[target.rank as usize][target.op];
        let Some(&(outcome, member)) = done.parts.first() else { return done.start };
        let kernels = &healthy.outcomes[outcome as usize].kernels;
        let begins = kernels.iter().flatten().map(|kernel| kernel.0).max().unwrap_or(done.start);
        let ends = kernels[member as usize].iter().map(|kernel| kernel.1).min().unwrap_or(begins);
        begins + scaled(ends.saturating_sub(begins), 0.4)
    }

    /// The ranks and the path that a verdict should name.
    fn blame(&self, fault: Fault, target: FaultTarget) -> (Vec<u32>, Option<[u32; 2]>) {
        let FaultTarget { rank, op, from, to } = target;
        let it = &self.programs[rank as usize][op];
        let members = || {
            let mut all = self.layout.groups[it.group].members.clone();
            all.sort_unstable();
            all
        };
        let both = |a: u32, b: u32| vec![a.min(b), a.max(b)];
        match fault {
            // Of two, either may use the wrong order.
            Fault::OrderSwap if members().len() == 2 => (members(), None),
            // No event shows which GPU of the ring is at fault.
            Fault::NvlinkHang => (members(), Some([rank, to])),
            Fault::P2pUnmatched => {
                let peer = if from == rank { to } else { from };
                (both(rank, peer), Some([peer, rank]))
            }
            Fault::P2pSize => (both(rank, from), Some([from, rank])),
            Fault::LinkDown => (both(rank, to), Some([rank, to])),
            // Between only two ranks, nothing shows whose interface is at fault.
            Fault::NicDown if from == to => (both(rank, to), None),
            Fault::ReceiverNotReady | Fault::FlushStuck | Fault::ReceiverGpuStuck => {
                (vec![rank], Some([from, rank]))
            }
            _ => (vec![rank], None),
        }
    }

    fn plant_program(&mut self, fault: Fault, target: FaultTarget) {
        let FaultTarget { rank, op, from, to } = target;
        let ops = &mut self.programs[rank as usize];
        let size = u32::try_from(self.layout.groups[ops[op].group].members.len()).unwrap_or(1);
        let position = |of: u32, ops: &[Op]| {
            let at = self.layout.groups[ops[op].group].position(of);
            at.and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
        };
        match fault {
            Fault::HostStuck | Fault::GilLock => ops[op].host_ns = NEVER,
            Fault::InLaunch => ops[op].stuck_launch = true,
            Fault::StreamBlocked => ops[op].compute_ns = NEVER,
            Fault::ExtraOp => {
                let coll = Coll {
                    func: Func::AllReduce,
                    datatype: Datatype::Float32,
                    count: 3 << 20,
                    root: 0,
                    tree: false,
                };
                let extra =
                    Op { call: Call::Coll(coll), purpose: Purpose::Other, ..ops[op].clone() };
                ops[op].compute_ns = 0;
                ops.insert(op, extra);
            }
            Fault::P2pUnmatched => {
                let peer = position(if from == rank { to } else { from }, ops);
                let count = ACTIVATIONS / Datatype::Bfloat16.bytes();
                let missing = Transfer { is_send: false, peer, count };
                let call = Call::Transfers(vec![missing]);
                let extra = Op { call, purpose: Purpose::Other, ..ops[op].clone() };
                ops[op].compute_ns = 0;
                ops.insert(op, extra);
            }
            Fault::OrderSwap => {
                let (compute, after) = (ops[op].compute_ns, ops[op + 1].compute_ns);
                ops.swap(op, op + 1);
                (ops[op].compute_ns, ops[op + 1].compute_ns) = (compute, after);
            }
            _ => {}
        }
        let coll = match &mut ops[op].call {
            Call::Coll(coll) => coll,
            Call::Transfers(transfers) => {
                let receive = transfers.iter_mut().find(|transfer| !transfer.is_send);
                if let (Fault::P2pSize, Some(receive)) = (fault, receive) {
                    receive.count *= 2;
                }
                return;
            }
        };
        match fault {
            Fault::WrongType => coll.datatype = other(coll.datatype),
            Fault::WrongCount => coll.count *= 8,
            Fault::WrongRoot => coll.root = (coll.root + 1) % size,
            _ => {}
        }
    }

    /// Plants a fault of the hardware at a time.
    fn plant_machine(&mut self, fault: Fault, target: FaultTarget, time: Time) {
        let FaultTarget { rank, op, from, to } = target;
        let stops = &mut self.conditions.stops[rank as usize];
        match fault {
            Fault::Killed | Fault::Exit => {
                stops.in_order = fault == Fault::Exit;
                (stops.host, stops.proxy, stops.gpu) = (time, time, time);
                (stops.drain, stops.process) = (time, time);
            }
            Fault::Sigstop => (stops.host, stops.proxy, stops.drain) = (time, time, time),
            Fault::SenderGpuStuck | Fault::ReceiverGpuStuck => stops.gpu = time,
            Fault::ReceiverNotReady => {
                self.conditions.paths.entry((from, rank)).or_default().post_stop = time;
            }
            Fault::FlushStuck => stops.flush = time,
            Fault::ProxyStalled => stops.proxy = time,
            // The next launch fails, and the application gets only errors from then on.
            Fault::GpuDead => {
                stops.host = time.saturating_add(1_000_000);
                self.conditions.lost_ends.insert((rank, op), ());
            }
            Fault::SmExhausted => {
                self.conditions.channels.insert((rank, op), 1);
            }
            Fault::LinkDown | Fault::NvlinkHang => {
                self.conditions.paths.entry((rank, to)).or_default().stop = time;
            }
            Fault::NicDown => {
                for own in &self.layout.of_rank[rank as usize] {
                    for &other in &self.layout.groups[own.group].members {
                        if self.layout.host(other) != self.layout.host(rank) {
                            self.conditions.paths.entry((rank, other)).or_default().stop = time;
                            self.conditions.paths.entry((other, rank)).or_default().stop = time;
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Sets the thread states of a rank from `since` on.
    fn plant_thread_states(&mut self, fault: Fault, rank: u32, since: Time) {
        let [api, proxy] = &mut self.thread_states[rank as usize];
        match fault {
            Fault::HostStuck | Fault::GpuDead => {
                *api = ThreadState { state: b'S', place: "futex_wait_queue", since };
            }
            Fault::InLaunch => {
                *api = ThreadState { state: b'D', place: "rwsem_down_write_slowpath", since };
            }
            Fault::ProxyStalled => {
                *proxy = ThreadState { state: b'D', place: "folio_wait_bit_common", since };
            }
            _ => {}
        }
    }

    /// Plants a fault that makes the job slow, before it is solved; `middle` is when half of its
    /// steps are complete.
    pub(crate) fn slow(
        &mut self,
        planted: &Planted,
        number: u64,
        middle: Time,
    ) -> Result<PlantedFault, Error> {
        let fault = planted.name;
        let layout = self.layout;
        changes_something(fault, layout, &self.scenario.job)?;
        let rank = rank_of(planted, number, self.scenario.seed, layout.ranks);
        let mut factor = factor_of(planted);
        let mut edge = None;
        let mut roots = vec![rank];
        let neighbour =
            |site: &Self| site.network_neighbour(rank).ok_or_else(|| no_network(fault.name()));
        match fault {
            Fault::SlowLink | Fault::LossyLink => {
                let to = neighbour(self)?;
                let path = self.conditions.paths.entry((rank, to)).or_default();
                match fault {
                    Fault::SlowLink => path.factor = factor,
                    _ => path.loss = factor,
                }
                (edge, roots) = (Some([rank, to]), vec![rank.min(to), rank.max(to)]);
            }
            Fault::SlowNic | Fault::BackgroundTraffic => {
                neighbour(self)?;
                match fault {
                    Fault::SlowNic => self.conditions.network[rank as usize] = factor,
                    _ => self.conditions.busy[rank as usize] = factor,
                }
                roots = self.cards_like(rank);
            }
            Fault::SlowFunction => {
                let drawn = mix(self.scenario.seed, number, fault as u64) % Func::ALL.len() as u64;
                let drawn = Func::ALL[usize::try_from(drawn).unwrap_or(0)];
                self.conditions.functions.push((planted.func.unwrap_or(drawn), factor));
            }
            Fault::SlowKernels => self.conditions.copy[rank as usize] = factor,
            Fault::SlowNvlink => {
                self.conditions.nvlink[rank as usize] = factor;
                roots = self.paths_like(rank).ok_or_else(no_path_inside)?;
            }
            Fault::Drift => (self.conditions.drift, roots) = ((middle, factor), Vec::new()),
            Fault::LaunchBound => {
                for op in &mut self.programs[rank as usize] {
                    op.host_ns = scaled(self.scenario.machine.forward_us * 1_000, factor);
                }
            }
            Fault::AlgoChange => (roots, factor) = (Vec::new(), 1.0),
            Fault::LongLastStage => {
                let last = layout.pp - 1;
                roots = (0..layout.ranks).filter(|&rank| layout.stage(rank) == last).collect();
            }
            _ => {}
        }
        let class = fault.class().filter(|_| fault.group() == FaultGroup::Slow);
        let slow = class.map(|class| SlowVerdict { class, root_ranks: roots, edge, factor });
        let time = if matches!(fault, Fault::Drift | Fault::AlgoChange) { middle } else { 0 };
        Ok(PlantedFault { fault, rank, op: 0, time, verdict: None, slow })
    }

    /// The ranks whose network interface would look the same: two ranks that have only each other
    /// as network peers cannot be distinguished.
    fn cards_like(&self, rank: u32) -> Vec<u32> {
        let peers = |rank: u32| {
            let groups = self.layout.of_rank[rank as usize].iter().filter(|m| carries(m.role));
            let members = groups.flat_map(|own| &self.layout.groups[own.group].members);
            members.copied().filter(|&other| self.crosses(rank, other)).collect::<BTreeSet<u32>>()
        };
        let own = peers(rank);
        let twin = own
            .first()
            .copied()
            .filter(|&other| own.len() == 1 && peers(other).into_iter().eq([rank]));
        let mut all: Vec<u32> = std::iter::once(rank).chain(twin).collect();
        all.sort_unstable();
        all
    }

    /// The ranks whose links within the host would look the same: they are members of exactly the
    /// same communicators within the host. `None` if the rank has no such communicator.
    fn paths_like(&self, rank: u32) -> Option<Vec<u32>> {
        let used = self.layout.of_rank.iter().flatten();
        let used = used.filter(|m| matches!(m.role, Role::Tensor | Role::Data));
        let groups: BTreeSet<usize> =
            used.map(|m| m.group).filter(|&group| self.layout.nodes(group) == 1).collect();
        let members = |group: usize| {
            self.layout.groups[group].members.iter().copied().collect::<BTreeSet<u32>>()
        };
        let (own, others): (Vec<_>, Vec<_>) =
            groups.into_iter().map(members).partition(|members| members.contains(&rank));
        let common = own.into_iter().reduce(|a, b| a.intersection(&b).copied().collect())?;
        let is_alone = |rank: &u32| others.iter().all(|other| !other.contains(rank));
        Some(common.into_iter().filter(is_alone).collect())
    }

    /// The next rank of the data parallel ring, the next stage, or the previous one, to which
    /// gradients are sent: the first of them that is on another host.
    fn network_neighbour(&self, rank: u32) -> Option<u32> {
        let group = |role| {
            let own = self.layout.group_of(rank, role)?;
            Some((own.rank, &self.layout.groups[own.group].members))
        };
        let in_ring = group(Role::Data).map(|(at, members)| members[(at + 1) % members.len()]);
        let stages = group(Role::Pipeline).into_iter().flat_map(|(at, members)| {
            let before = at.checked_sub(1).map(|at| members[at]);
            members.get(at + 1).copied().into_iter().chain(before)
        });
        in_ring.into_iter().chain(stages).find(|&other| self.crosses(rank, other))
    }
}

/// Number of steps of a collective.
fn steps(op: &Op, size: usize) -> u32 {
    match op.call {
        Call::Coll(coll) => coll.cut(u32::try_from(size).unwrap_or(u32::MAX)).steps,
        Call::Transfers(_) => 0,
    }
}

/// When a rank's proxy begins to post its receives of an operation.
fn first_post(target: FaultTarget, healthy: &Solution) -> Option<Time> {
    let done = &healthy.ranks[target.rank as usize][target.op];
    let flows = done.parts.iter().flat_map(|part| &healthy.outcomes[part.0 as usize].flows);
    let own = flows.filter(|flow| flow.to.rank == target.rank);
    own.filter_map(|flow| flow.steps.first()).map(|step| step.recv[0]).min()
}

/// The slowdown factor of each rank's computation.
pub(crate) fn compute_factors(scenario: &Scenario, layout: &Layout) -> Vec<f64> {
    let mut factors = vec![1.0; layout.ranks as usize];
    for (number, planted) in scenario.fault.iter().enumerate() {
        let factor = factor_of(planted);
        let rank = rank_of(planted, number as u64, scenario.seed, layout.ranks);
        match planted.name {
            Fault::SlowGpu => factors[rank as usize] *= factor,
            Fault::LongLastStage => {
                for rank in (0..layout.ranks).filter(|&rank| layout.stage(rank) == layout.pp - 1) {
                    factors[rank as usize] *= factor;
                }
            }
            _ => {}
        }
    }
    factors
}

/// The given rank, or a random one.
fn rank_of(planted: &Planted, number: u64, seed: u64, ranks: u32) -> u32 {
    let drawn = mix(seed, number, planted.name as u64) % u64::from(ranks);
    planted.rank.unwrap_or_else(|| u32::try_from(drawn).unwrap_or(0)) % ranks
}

/// The slowdown factor of a fault.
fn factor_of(planted: &Planted) -> f64 {
    planted.factor.unwrap_or(match planted.name {
        Fault::SlowLink | Fault::SlowNic | Fault::LossyLink | Fault::BackgroundTraffic => 6.0,
        Fault::SlowNvlink => 8.0,
        Fault::SlowKernels => 30.0,
        Fault::Drift => 2.0,
        Fault::LongLastStage => 1.4,
        Fault::SlowFunction => 1.05,
        _ => 1.5,
    })
}

fn other(datatype: Datatype) -> Datatype {
    match datatype {
        Datatype::Bfloat16 => Datatype::Float32,
        Datatype::Float32 => Datatype::Bfloat16,
    }
}

/// True for faults that hit at a time instead of a call.
fn hits_at_a_time(fault: Fault) -> bool {
    use Fault as F;
    matches!(
        fault,
        F::Killed
            | F::Exit
            | F::Sigstop
            | F::SenderGpuStuck
            | F::ReceiverNotReady
            | F::NicDown
            | F::LinkDown
            | F::FlushStuck
            | F::ReceiverGpuStuck
            | F::ProxyStalled
            | F::NvlinkHang
    )
}

/// What a fault needs that the job lacks, and how to get it.
fn needs(fault: Fault, layout: &Layout, job: &JobShape) -> String {
    match fault {
        Fault::OrderSwap | Fault::WrongRoot | Fault::NvlinkHang => {
            "it needs tensor parallel ranks on one host: give --tp 2 or more".into()
        }
        Fault::P2pUnmatched | Fault::P2pSize | Fault::ReceiverGpuStuck => {
            "it needs a pipeline over several hosts: give --pp 2 or more".into()
        }
        Fault::ExtraOp | Fault::WrongCount | Fault::WrongType => {
            "it needs a communicator of three ranks or more".into()
        }
        // Of the ranks of a ring on one host, one receives from the previous host and another one
        // sends to the next.
        Fault::SenderGpuStuck | Fault::NicDown | Fault::ProxyStalled => {
            let (ranks, per_host) = layout.advised(job, |ranks, per_host| {
                let replica = layout.pp * layout.tp.max(per_host);
                ranks.is_multiple_of(replica) && ranks >= 2 * replica
            });
            let tp = layout.tp.max(per_host);
            format!(
                "it needs a rank that is alone on its host in a data parallel ring: give --ranks \
                 {ranks} --tp {tp}"
            )
        }
        _ => format!(
            "it needs data parallel ranks on several hosts: give --ranks {}",
            two_hosts(layout, job)
        ),
    }
}

/// Refuses faults of the whole job that change nothing in it.
fn changes_something(fault: Fault, layout: &Layout, job: &JobShape) -> Result<(), Error> {
    match fault {
        Fault::Drift if layout.host(layout.ranks - 1) == 0 => Err(Error::scenario(format!(
            "drift: it needs a second host: give --ranks {}",
            two_hosts(layout, job)
        ))),
        Fault::AlgoChange if layout.tp == 1 => Err(Error::scenario(
            "algo-change: it needs an AllReduce of tensor parallel ranks: give --tp 2 or more",
        )),
        _ => Ok(()),
    }
}

/// The number of ranks with which the job has replicas, and more than one host.
fn two_hosts(layout: &Layout, job: &JobShape) -> u32 {
    let replica = layout.tp * layout.pp;
    let is_enough = |ranks: u32, per_host| {
        ranks.is_multiple_of(replica) && ranks >= 2 * replica && ranks > per_host
    };
    layout.advised(job, is_enough).0
}

/// True if communicators of this role move much data between neighbouring ranks.
fn carries(role: Role) -> bool {
    matches!(role, Role::Data | Role::Pipeline | Role::Expert)
}

fn no_path_inside() -> Error {
    Error::scenario(
        "slow-nvlink: this rank has no communicator within its host: give --tp 2 or more",
    )
}

fn no_network(name: &str) -> Error {
    Error::scenario(format!("{name}: this rank sends nothing to another host: give another --rank"))
}
