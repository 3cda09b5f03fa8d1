// SPDX-License-Identifier: Apache-2.0
//! The communicators of a process: their counts, and the events that their operations usually have.

use super::usual::Usual;
use crate::comm_set::CommSet;
use crate::facts::{Facts, Launched};
use crate::hash::Map;
use crate::kernels::Drifts;
use crate::order::KernelOrder;
use ncclscope_trace::StrId;
use std::collections::{BTreeMap, VecDeque};

/// Number of finished operations that are kept per communicator.
const PAST: usize = 8;
/// Most sorts of collectives that a communicator distinguishes.
const SORTS: usize = 64;

/// One direction between this process and another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) peer: i32,
    pub(super) is_send: bool,
}

/// A key of collectives that probably use the same links. The protocol is not part of it, because a
/// link carries all protocols. The number of channels is, because NCCL does not report which
/// channels a collective uses, and each channel may cross the network at another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    func: StrId,
    algo: StrId,
    root: i32,
    channels: u16,
}

impl Sort {
    pub(super) fn of(facts: &Facts) -> Option<Sort> {
        let Facts { func, algo, root, wanted: channels, .. } = *facts;
        (facts.peer.is_none() && channels > 0).then_some(Sort { func, algo, root, channels })
    }
}

/// The known facts about a communicator.
#[derive(Debug, Default)]
pub(super) struct CommState {
    /// This process's rank; `None` if unknown.
    pub(super) rank: Option<i32>,
    /// The communicator's hash; 0 if unknown.
    pub(super) hash: u64,
    pub(super) order: KernelOrder,
    pub(super) ended: bool,
    /// Lane of the thread that started its latest ProxyOp.
    pub(super) proxy_lane: Option<usize>,
    /// Lane of the thread that started its latest kernel channel.
    pub(super) kernel_lane: Option<usize>,
    /// Number of collectives (`colls`), and of sends and receives (`p2ps`), whose start was read.
    pub(super) colls: u64,
    pub(super) p2ps: u64,
    /// Latest start of a collective, and of a send or receive, in ticks.
    latest: [u64; 2],
    /// Whether one started before the latest of its kind, so that numbers by arrival are wrong.
    unsorted: [bool; 2],
    /// Number of the latest collective whose kernel started, as of the last look.
    pub(super) started: u64,
    /// Whether CUDA events reported a launch.
    pub(super) is_timed: bool,
    /// Start of the latest collective that used the network, in ticks.
    pub(super) networked: Option<u64>,
    /// The sorts of collectives, each with whether all of them used the network.
    sorts: Vec<(Sort, bool)>,
    links: Map<Link, ()>,
    pub(super) over: u64,
    /// Latest end of an operation that is over, in ticks.
    past_end: u64,
    /// Latest end of an operation that is over or probably over and whose end is recorded, in
    /// ticks.
    pub(super) last_end: u64,
    past: VecDeque<FinishedOperation>,
    /// How long operations that are over took without progress, except the first.
    usual: Usual,
    look: Look,
}

/// Sort key of operations in flight: whether the operation is only unstopped, its start, its
/// number. Operations that are only unstopped come last.
type Began = (bool, u64, u64);

/// The result of the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    open_p2ps: u64,
    oldest_coll: Option<u64>,
    /// Key of the oldest operation in flight, and its last change in ticks.
    oldest: Option<(Began, u64)>,
}

/// An operation that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedOperation {
    /// Its number among the communicator's collectives, or sends and receives; from 1.
    pub number: u64,
    /// Its description.
    pub facts: Facts,
    /// When it started, in ticks.
    pub start: u64,
    /// When its last child stopped, in ticks.
    pub end: u64,
}

/// A communicator at the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommView {
    /// [`ncclscope_trace::Comm::index`].
    pub comm: u16,
    /// Collectives whose start was read.
    pub colls: u64,
    /// Number of the oldest collective in flight, from 1.
    pub oldest_coll: Option<u64>,
    /// Number of the latest collective whose kernel started.
    pub started: u64,
    /// Sends and receives whose start was read.
    pub p2ps: u64,
    /// Sends and receives in flight.
    pub open_p2ps: u64,
    /// Number of operations that are over.
    pub over: u64,
    /// Latest end of an operation whose end is recorded, in ticks; 0 if there is none. The
    /// operation may still get more events.
    pub last_end: u64,
    /// Lane of the thread that started its latest ProxyOp.
    pub proxy_lane: Option<usize>,
    /// Lane of the thread that started its latest kernel channel.
    pub kernel_lane: Option<usize>,
    /// Start of the oldest operation in flight, in ticks. One that is only unstopped counts only if
    /// there is no other.
    pub oldest: Option<u64>,
    /// When the oldest operation last changed, or the operation before it ended, in ticks.
    pub since: Option<u64>,
    /// Whether kernel channels were recorded.
    pub has_kernels: bool,
    /// Whether a collective used the network.
    pub is_networked: bool,
    /// Whether events that end after the enqueuing were recorded: kernels, network transfers or
    /// CUDA events.
    pub has_ends: bool,
    /// Whether it was finalized.
    pub ended: bool,
}

impl CommState {
    pub(super) fn moves(&mut self, link: Link) {
        self.links.insert(link, ());
    }

    pub(super) fn is_network(&self, link: Link) -> bool {
        self.links.contains_key(&link)
    }

    /// Counts an operation that started at `start`, and returns its number by arrival.
    pub(super) fn count(&mut self, start: u64, is_p2p: bool) -> u64 {
        let latest = &mut self.latest[usize::from(is_p2p)];
        self.unsorted[usize::from(is_p2p)] |= start < *latest;
        *latest = start.max(*latest);
        let count = if is_p2p { &mut self.p2ps } else { &mut self.colls };
        *count += 1;
        *count
    }

    /// Takes the start of a kernel of an operation.
    pub(super) fn saw_kernel(&mut self, own: Launched, is_p2p: bool) {
        self.order.kernel(own, is_p2p);
    }

    /// Notes that a collective of this sort used the network.
    pub(super) fn saw_network(&mut self, start: u64, sort: Sort) {
        self.networked = self.networked.max(Some(start));
        self.saw_sort(sort, true);
    }

    /// Notes that a collective of this sort is over and used no network.
    pub(super) fn saw_no_network(&mut self, sort: Sort) {
        self.saw_sort(sort, false);
    }

    fn saw_sort(&mut self, sort: Sort, is_networked: bool) {
        if let Some((_, always)) = self.sorts.iter_mut().find(|(known, _)| *known == sort) {
            *always &= is_networked;
        } else if self.sorts.len() < SORTS {
            self.sorts.push((sort, is_networked));
        }
    }

    /// Whether a collective that started later than `start` used the network, so that the network
    /// part of one that started then is over.
    pub(super) fn is_networked_after(&self, start: u64) -> bool {
        self.networked.is_some_and(|latest| start < latest)
    }

    /// Whether the network part of a collective without a recorded one may still start.
    pub(super) fn awaits_network(&self, start: u64, sort: Option<Sort>) -> bool {
        let is_expected = sort.is_some_and(|sort| self.sorts.contains(&(sort, true)));
        let is_next = self.networked.is_some_and(|latest| start > latest);
        is_expected && is_next && !self.order.is_settled(start)
    }

    /// Takes an operation that is over; `is_usual` if its time counts for [`CommState::usual`].
    pub(super) fn add_past(&mut self, past: FinishedOperation, is_usual: bool) {
        if self.over > 0 && is_usual {
            let begins = past.start.max(self.past_end);
            self.usual.add(&past.facts, past.end.saturating_sub(begins));
        }
        self.over += 1;
        self.past_end = self.past_end.max(past.end);
        if self.past.len() >= PAST {
            self.past.pop_front();
        }
        self.past.push_back(past);
    }

    /// Notes that an operation has nothing in flight since these ticks.
    pub(super) fn saw_end(&mut self, ticks: u64) {
        self.last_end = self.last_end.max(ticks);
    }

    /// Ticks within which all but one in a thousand operations like this one progressed.
    pub(super) fn usual(&self, facts: &Facts) -> u64 {
        self.usual.longest(facts)
    }

    pub(super) fn add_open(&mut self, began: Began, is_p2p: bool, changed: u64) {
        let (look, (_, _, number)) = (&mut self.look, began);
        if is_p2p {
            look.open_p2ps += 1;
        } else {
            look.oldest_coll = Some(look.oldest_coll.map_or(number, |oldest| oldest.min(number)));
        }
        if look.oldest.is_none_or(|(oldest, _)| began < oldest) {
            look.oldest = Some((began, changed));
        }
    }

    fn view(&self, comm: u16) -> CommView {
        // Kernels that have the times of others, or are off, show nothing any more.
        let latest = self.latest[0].max(self.latest[1]);
        let has_kernels = self.order.has_kernels() && self.order.is_believed(latest);
        CommView {
            comm,
            colls: self.colls,
            oldest_coll: self.look.oldest_coll,
            started: self.started,
            p2ps: self.p2ps,
            open_p2ps: self.look.open_p2ps,
            over: self.over,
            last_end: self.last_end,
            proxy_lane: self.proxy_lane,
            kernel_lane: self.kernel_lane,
            oldest: self.look.oldest.map(|((_, start, _), _)| start),
            since: self.look.oldest.map(|(_, changed)| changed.max(self.last_end)),
            has_kernels,
            is_networked: self.networked.is_some(),
            has_ends: has_kernels || !self.links.is_empty() || self.is_timed,
            ended: self.ended,
        }
    }
}

/// The rank of this process that has enqueued the fewest collectives of a communicator.
#[derive(Clone, Copy, Debug)]
struct Last {
    rank: Option<i32>,
    colls: u64,
    /// Whether a rank of this process uses the network. NCCL may then report more operations for
    /// some ranks than for others (graphs).
    is_networked: bool,
}

/// All communicators, by index.
#[derive(Debug, Default)]
pub(super) struct Comms {
    states: BTreeMap<u16, CommState>,
    /// Communicators that were forgotten, of which late records may still come.
    forgotten: CommSet,
    /// By the communicator's hash, as of this look.
    last: Map<u64, Last>,
    /// Start and end of the latest time in which the process did not run, in ticks.
    pub(super) away: (u64, u64),
    /// Operations that started before this time get no more children, in ticks.
    pub(super) settled: u64,
}

impl Comms {
    pub(super) fn get(&mut self, comm: u16) -> &mut CommState {
        let Comms { states, forgotten, .. } = self;
        let new = || CommState { ended: forgotten.contains(comm), ..CommState::default() };
        states.entry(comm).or_insert_with(new)
    }

    /// The state of a defined communicator. If its number is that of a forgotten one, the state is
    /// new.
    pub(super) fn known(&mut self, comm: u16) -> &mut CommState {
        if self.forgotten.remove(comm) {
            self.states.remove(&comm);
        }
        self.get(comm)
    }

    /// Removes the state of a communicator. Late records of its number count as those of a
    /// finalized one.
    pub(super) fn forget(&mut self, comm: u16) {
        self.states.remove(&comm);
        self.forgotten.insert(comm);
    }

    /// The communicators whose collectives, or whose sends and receives (`true`), did not all
    /// arrive in the order of their starts since the last call, each with an empty value.
    pub(super) fn take_unsorted<T: Default>(&mut self) -> Map<(u16, bool), T> {
        let mut found = Map::default();
        for (&comm, state) in &mut self.states {
            for (is_p2p, is_unsorted) in [false, true].into_iter().zip(&mut state.unsorted) {
                if std::mem::take(is_unsorted) {
                    found.insert((comm, is_p2p), T::default());
                }
            }
        }
        found
    }

    /// Ends a look: removes state that late records of forgotten communicators created.
    pub(super) fn end_look(&mut self) {
        self.states.retain(|&comm, _| !self.forgotten.contains(comm));
    }

    /// Takes an operation of `comm` that is over.
    pub(super) fn add_past(&mut self, comm: u16, past: FinishedOperation) {
        let (from, until) = self.away;
        self.get(comm).add_past(past, past.end < from || past.start > until);
    }

    pub(super) fn find(&self, comm: u16) -> Option<&CommState> {
        self.states.get(&comm)
    }

    /// Begins a look. `are_whole`: all operations of the process are recorded, so counts of its
    /// ranks can be compared.
    pub(super) fn begin_look(&mut self, drifts: &Drifts, are_whole: bool) {
        self.last.clear();
        for (&comm, state) in &mut self.states {
            state.look = Look::default();
            state.order.believe_until(drifts.since(comm));
            state.order.settle(self.settled);
            if are_whole && state.hash != 0 && !state.ended {
                let CommState { rank, colls, .. } = *state;
                let is_networked = state.networked.is_some();
                let own = Last { rank, colls, is_networked };
                let last = self.last.entry(state.hash).or_insert(own);
                let least = if own.colls < last.colls { own } else { *last };
                *last = Last { is_networked: last.is_networked || is_networked, ..least };
            }
        }
    }

    /// A rank of this process that has not entered collective `number` of a communicator; `None` if
    /// there is none.
    pub(super) fn absent(&self, comm: u16, number: u64) -> Option<i32> {
        let last = self.last.get(&self.find(comm)?.hash)?;
        last.rank.filter(|_| !last.is_networked && last.colls < number)
    }

    pub(super) fn views(&self) -> impl Iterator<Item = CommView> + '_ {
        self.states.iter().map(|(&comm, state)| state.view(comm))
    }

    pub(super) fn view(&self, comm: u16) -> Option<CommView> {
        self.find(comm).map(|state| state.view(comm))
    }

    pub(super) fn past(&self, comm: u16) -> impl Iterator<Item = &FinishedOperation> {
        self.find(comm).into_iter().flat_map(|state| &state.past)
    }
}
