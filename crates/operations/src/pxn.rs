// SPDX-License-Identifier: Apache-2.0
/*!
Assigns the work that proxy threads did for other processes of their node (PXN) to these processes.

With PXN, NCCL sends through the NIC of another local rank, and that rank's proxy thread runs the
ProxyOp. The record is then in the recording of that process. It contains the process id of the
sender, the handle of the operation in the sender's process, and the sender's index of the
communicator. From these [`Pxn`] finds the sender, among recordings that are read together.

Both recordings must be of one boot of one machine and of one source of ticks, so that their ticks
are comparable. Work stays with the process that did it if the sender has no recording, or if the
record does not have the communicator.

It takes about 200 bytes of memory for each ProxyOp of another process.
*/

use crate::hash::Map;
use crate::parallel::in_order;
use crate::peers::Links;
use crate::steps::told_more;
use crate::timeline::{Event, Parent};
use ncclscope_trace::record::ProxyOp;
use ncclscope_trace::{
    ClockSource, Detail, EventKind, Handle, Record, Recording, Start, State, TickMap, Visitor,
};
use std::collections::BTreeMap;

/// The work that proxy threads of other processes did for one process.
#[derive(Debug, Default)]
pub struct Work {
    /// ProxyOps in the order of their starts, as events of the process that they belong to.
    pub(crate) ops: Vec<Event>,
    /// The links of each of these proxy threads, by index of the communicator.
    pub(crate) links: Vec<Links>,
}

/// A process as ProxyOps of other processes name it: its id, and the process bits of its handles.
type Owner = (u32, u64);

/// The processes of the recordings, and the work that was done for each.
#[derive(Debug, Default)]
pub struct Pxn {
    /// The machine of each recording, as a number.
    machines: Vec<usize>,
    /// Recordings by machine and process id: index, and process bits of the handles.
    processes: BTreeMap<(usize, u32), Vec<(usize, u64)>>,
    works: Vec<Work>,
    /// Number of ProxyOps of each recording that were assigned to other processes.
    given: Vec<u64>,
}

impl Pxn {
    /// Finds the processes of `recordings`, which must be all that are read together.
    fn of(recordings: &[&Recording]) -> Pxn {
        let mut numbers: BTreeMap<(String, ClockSource), usize> = BTreeMap::new();
        let mut pxn = Pxn::default();
        for (at, recording) in recordings.iter().enumerate() {
            let header = recording.header();
            let machine = recording.identity().machine().to_owned();
            let next = numbers.len();
            let machine = *numbers.entry((machine, header.clock)).or_insert(next);
            pxn.machines.push(machine);
            let known = pxn.processes.entry((machine, header.pid)).or_default();
            known.push((at, u64::from(header.process)));
        }
        pxn
    }

    /// Reads the work for other processes in all recordings, and assigns it.
    #[must_use]
    pub fn read(recordings: &[&Recording]) -> Pxn {
        let mut pxn = Pxn::of(recordings);
        pxn.works.resize_with(recordings.len(), Work::default);
        pxn.given.resize(recordings.len(), 0);
        let places: Vec<usize> = (0..recordings.len()).collect();
        let may_have: Vec<bool> = places.iter().map(|&at| pxn.may_have(at, recordings)).collect();
        in_order(
            &places,
            |&at| may_have[at].then(|| Scan::read(recordings[at])),
            |at, scan| {
                for (owner, found) in scan.into_iter().flat_map(|scan| scan.found) {
                    pxn.give(at, owner, found, recordings);
                }
            },
        );
        for work in &mut pxn.works {
            work.ops.sort_by_key(|op| op.start.ticks);
            for (op, number) in work.ops.iter_mut().zip(0..) {
                // No process has the process bits 0.
                op.start.handle = Handle::value(0, EventKind::ProxyOp, 0, number);
            }
        }
        pxn
    }

    /// The work that others did for the process of a recording; `None` if there is none.
    #[must_use]
    pub fn work(&self, at: usize) -> Option<&Work> {
        self.works.get(at).filter(|work| !work.ops.is_empty())
    }

    /// Number of ProxyOps of a recording that were assigned to other processes.
    #[must_use]
    pub fn given(&self, at: usize) -> u64 {
        self.given.get(at).copied().unwrap_or(0)
    }

    /// The index of the recording whose process a ProxyOp of recording `at` belongs to; `None` if
    /// it is unknown.
    #[must_use]
    pub fn owner_of(&self, at: usize, start: &Start, op: &ProxyOp) -> Option<usize> {
        self.owner(at, owner(start, op))
    }

    fn owner(&self, at: usize, (pid, process): Owner) -> Option<usize> {
        let known = self.processes.get(&(*self.machines.get(at)?, pid))?;
        let mut fits =
            known.iter().filter(|(other, bits)| *other != at && (process == 0 || process == *bits));
        let (owner, _) = fits.next()?;
        // Two processes with the same id and bits cannot be distinguished.
        fits.next().is_none().then_some(*owner)
    }

    /// Whether a recording may have work for others: PXN needs another process on the machine and a
    /// communicator of several nodes.
    fn may_have(&self, at: usize, recordings: &[&Recording]) -> bool {
        let has_neighbour = self
            .machines
            .iter()
            .enumerate()
            .any(|(other, machine)| other != at && *machine == self.machines[at]);
        has_neighbour && recordings[at].comms().iter().any(|comm| comm.nodes != 1)
    }

    fn give(&mut self, at: usize, owner: Owner, found: Found, recordings: &[&Recording]) {
        let Some(to) = self.owner(at, owner) else { return };
        let comms = recordings[to].comms();
        let is_known = |index: u16| comms.iter().any(|comm| comm.index == index);
        let work = &mut self.works[to];
        let before = work.ops.len();
        work.ops.extend(found.ops.into_iter().filter(|op| is_known(op.start.comm)));
        self.given[at] += (work.ops.len() - before) as u64;
        work.links.push(found.links);
    }
}

fn owner(start: &Start, op: &ProxyOp) -> Owner {
    (op.pid, if start.parent.is_null() { 0 } else { start.parent.process() })
}

/// The work that a process did for another one.
#[derive(Default)]
struct Found {
    ops: Vec<Event>,
    links: Links,
}

/// Reads the work for others in one recording. One thread starts and stops a ProxyOp, so its
/// records are in one lane and in order.
struct Scan {
    clock: TickMap,
    found: BTreeMap<Owner, Found>,
    /// The ProxyOps that have not stopped: owner, index in the owner's `ops`, and number of the
    /// link.
    open: Map<Handle, (Owner, usize, usize)>,
    by_step: Map<(usize, u32), Handle>,
}

impl Scan {
    fn read(recording: &Recording) -> Scan {
        let mut scan = Scan {
            clock: recording.tick_map(),
            found: BTreeMap::new(),
            open: Map::default(),
            by_step: Map::default(),
        };
        recording.visit(&mut scan);
        scan
    }

    fn start(&mut self, lane: usize, start: &Start, op: ProxyOp) {
        let owner = owner(start, &op);
        let found = self.found.entry(owner).or_default();
        let link = found.links.number(start.comm.into(), &op);
        self.open.insert(start.handle, (owner, found.ops.len(), link));
        self.by_step.insert((lane, start.handle.op_ref()), start.handle);
        // For its owner it is not foreign.
        let detail = Detail::ProxyOp(ProxyOp { foreign: false, ..op });
        found.ops.push(Event {
            start: Start { detail, ..*start },
            stop: None,
            parent: Parent::None,
            lane: u8::MAX,
            marks: 0,
            first_state: None,
            ptimer_stop: None,
            steps: None,
        });
    }

    fn op(&mut self, handle: Handle) -> Option<(&mut Event, (&mut Links, usize), &TickMap)> {
        let (owner, at, link) = self.open.get(&handle)?;
        let Found { ops, links } = self.found.get_mut(owner)?;
        Some((ops.get_mut(*at)?, (links, *link), &self.clock))
    }
}

impl Visitor for Scan {
    fn record(&mut self, lane: usize, record: &Record) {
        match record {
            Record::Start(start) => {
                if let Detail::ProxyOp(op) = start.detail
                    && op.foreign
                {
                    self.start(lane, start, op);
                }
            }
            _ if self.open.is_empty() => {}
            Record::Step(step) => {
                let Some(&handle) = self.by_step.get(&(lane, step.op_ref)) else { return };
                let Some((event, (links, link), clock)) = self.op(handle) else { return };
                event.steps.get_or_insert_default().add(step);
                links.add(link, step, clock);
            }
            Record::Stop { ticks, handle } => {
                if let Some((event, ..)) = self.op(*handle) {
                    event.stop.get_or_insert(*ticks);
                }
            }
            Record::State { ticks, handle, state, arg, .. } => {
                let Some((event, (links, _), _)) = self.op(*handle) else { return };
                event.first_state.get_or_insert(*ticks);
                let Detail::ProxyOp(op) = event.start.detail else { return };
                if state.0 <= State::PROXY_OP_RECV_DONE.0 {
                    let steps = event.steps.get_or_insert_default();
                    let more = told_more(&mut steps.told_from, steps.bytes, *arg);
                    if more > 0 {
                        steps.bytes += more;
                        links.add_told(event.start.comm.into(), &op, more);
                    }
                }
            }
            _ => {}
        }
    }

    fn reached(&mut self, _: u64) {}
}
