// SPDX-License-Identifier: Apache-2.0
/*!
Which kernels of different ranks are one collective, by order and time.

An export does not have the communicators, nor NCCL's numbers. The n-th kernel of a function on one
rank belongs to the n-th on the others, if all captures begin at the same collective. A capture that
begins later is moved along to where the ends agree best: the ends of a collective agree within
microseconds, while those of neighbours scatter with the steps. The kernels of a collective run at
the same time, so that ranks whose kernels do not are in different communicators.

All processes of a file have one clock. The clocks of two files are compared by the pair of ranks
whose ends agree best.
*/

use crate::input::kernels::{Key, ends};
use crate::model::{EndSync, Part};
use ncclscope_limits::clocks;
use ncclscope_operations::human;
use ncclscope_operations::stats::median;
use ncclscope_statistics::median_mad;
use std::collections::{BTreeMap, BTreeSet};

/// Number of kernels that are compared to find out by how many a capture is moved.
const SAMPLES: usize = 2_000;
/// Kernels around the nearest in time that may be the one, as clocks of hosts differ.
const AROUND: isize = 8;

/// Start and end of a kernel, ns.
pub(super) type Span = (f64, f64);

/// The kernels of a rank, by function, each by start.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Index of its file.
    pub(super) file: usize,
    pub(super) kernels: BTreeMap<&'static str, Vec<Span>>,
}

/// The operations of all ranks.
#[derive(Debug, Default)]
pub(super) struct Joined {
    pub(super) groups: BTreeMap<Key, Vec<Part>>,
    pub(super) sizes: BTreeMap<String, u32>,
    pub(super) notes: Vec<String>,
}

/// Where a rank's kernels of a function are among those of the reference.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Number of kernels of the reference before its first.
    shift: isize,
    /// Its clock ahead of the reference's, ns.
    ahead: f64,
    /// How much the ends scatter, ns.
    scatter: f64,
}

/// Joins the kernels of ranks; `ranks` are their names, and `is_one_time` says whether the times of
/// all files are on one scale, up to the error of the hosts' clocks.
pub(super) fn join(lines: &[Line], ranks: &[u32], is_one_time: bool) -> Joined {
    let funcs: BTreeSet<&'static str> =
        lines.iter().flat_map(|line| line.kernels.keys().copied()).collect();
    let (together, others): (Vec<_>, Vec<_>) =
        funcs.into_iter().partition(|func| ends(func) == EndSync::Together);
    let placed: Vec<Function> =
        together.into_iter().map(|func| Function::place(lines, func, is_one_time)).collect();
    let ahead = ahead(lines, &placed);
    let (mut joined, mut is_whole) = (Joined::default(), true);
    for function in &placed {
        let comms = function.communicators(lines, &ahead);
        is_whole &= comms.len() == 1 && function.is_in_order();
        // A rank whose kernels match no other's uses several communicators for the function, or
        // those that it shares them with were not captured: whom the rest waits for is unknown.
        if comms.len() > 1 && comms.iter().any(|members| members.len() == 1) {
            let all = comms.iter().flatten().map(|&at| function.of(&lines[at]).len());
            joined.leave_out(function.func, all);
            continue;
        }
        for members in comms {
            joined.add(function, lines, (ranks, &members));
        }
    }
    for func in others {
        let all: Vec<usize> =
            (0..lines.len()).filter(|&at| lines[at].kernels.contains_key(func)).collect();
        let function = Function { func, places: vec![Place::default(); lines.len()] };
        match is_whole {
            true => joined.add(&function, lines, (ranks, &all)),
            false => joined.leave_out(func, all.iter().map(|&at| function.of(&lines[at]).len())),
        }
    }
    joined
}

impl Joined {
    fn add(&mut self, function: &Function, lines: &[Line], of: (&[u32], &[usize])) {
        let (ranks, members) = of;
        let func = function.func;
        if let ([at], true) = (members, lines.len() > 1) {
            self.leave_out(func, [function.of(&lines[*at]).len()].into_iter());
            return;
        }
        let comm = match members.len() == lines.len() {
            true => "all".to_owned(),
            false => {
                let names: Vec<String> = members.iter().map(|&at| ranks[at].to_string()).collect();
                format!("[{}]", names.join(","))
            }
        };
        self.sizes.insert(comm.clone(), u32::try_from(members.len()).unwrap_or(u32::MAX));
        let first = members.iter().map(|&at| function.places[at].shift).min().unwrap_or(0);
        for &worker in members {
            let before = function.places[worker].shift.saturating_sub(first).unsigned_abs();
            for (&(start, end), nth) in function.of(&lines[worker]).iter().zip(before..) {
                let key = Key { comm: comm.clone(), func, bytes: None, seq: None, nth };
                self.groups.entry(key).or_default().push(Part { worker, start, end });
            }
        }
    }

    fn leave_out(&mut self, func: &str, counts: impl Iterator<Item = usize>) {
        let are = human::are(counts.sum::<usize>(), &format!("{func} kernel"));
        self.notes.push(format!(
            "{are} ignored: which of them are one collective is unknown, because on some ranks no \
             others run at the same time"
        ));
    }
}

/// The kernels of a function.
struct Function {
    func: &'static str,
    /// For each rank.
    places: Vec<Place>,
}

impl Function {
    /// Finds the places of the ranks' kernels among those of the rank with the most.
    fn place(lines: &[Line], func: &'static str, is_one_time: bool) -> Function {
        let mut function = Function { func, places: vec![Place::default(); lines.len()] };
        let count = |at: &usize| (function.of(&lines[*at]).len(), std::cmp::Reverse(*at));
        let Some(first) = (0..lines.len()).max_by_key(count) else { return function };
        let reference = function.of(&lines[first]);
        let place = |line: &Line| {
            let is_one_file = line.file == lines[first].file;
            place(reference, function.of(line), (is_one_file, is_one_time || is_one_file))
        };
        function.places = lines.iter().map(place).collect();
        function
    }

    fn of<'a>(&self, line: &'a Line) -> &'a [Span] {
        line.kernels.get(self.func).map_or(&[], Vec::as_slice)
    }

    fn is_in_order(&self) -> bool {
        self.places.iter().all(|place| place.shift == 0)
    }

    /// The ranks of each communicator.
    fn communicators(&self, lines: &[Line], ahead: &[Option<f64>]) -> Vec<Vec<usize>> {
        let mut comms: Vec<Vec<usize>> = Vec::new();
        for at in 0..lines.len() {
            if self.of(&lines[at]).is_empty() {
                continue;
            }
            let with = comms.iter_mut().find(|comm| self.is_together(lines, (comm[0], at), ahead));
            match with {
                Some(comm) => comm.push(at),
                None => comms.push(vec![at]),
            }
        }
        comms
    }

    /// Whether the kernels of two ranks run at the same time.
    fn is_together(&self, lines: &[Line], of: (usize, usize), ahead: &[Option<f64>]) -> bool {
        let (a, b) = (&lines[of.0], &lines[of.1]);
        let apart = match (ahead[a.file], ahead[b.file]) {
            _ if a.file == b.file => 0.0,
            (Some(a), Some(b)) => b - a,
            _ => return false,
        };
        let shift = self.places[of.1].shift - self.places[of.0].shift;
        let (mut pairs, mut together) = (0_usize, 0_usize);
        for (one, two) in matched(self.of(a), self.of(b), shift) {
            pairs += 1;
            let last = one.0.max(two.0 - apart);
            together += usize::from(last <= one.1.min(two.1 - apart) + clocks::ON_HOST_AT_MOST);
        }
        let fewer = self.of(a).len().min(self.of(b).len());
        let to_f64 = |count: usize| ncclscope_operations::stats::to_f64(count as u64);
        pairs > 0 && 2 * pairs >= fewer && to_f64(together) >= clocks::TOGETHER * to_f64(pairs)
    }
}

/// The kernels that two ranks have in common, if `shift` of the first precede the second's first.
fn matched<'a>(
    first: &'a [Span],
    second: &'a [Span],
    shift: isize,
) -> impl Iterator<Item = (Span, Span)> + 'a {
    let skip = |are: isize| usize::try_from(are).unwrap_or(0);
    let first = first.get(skip(shift)..).unwrap_or_default();
    let second = second.get(skip(-shift)..).unwrap_or_default();
    first.iter().copied().zip(second.iter().copied())
}

fn place(reference: &[Span], own: &[Span], (is_one_file, is_one_time): (bool, bool)) -> Place {
    let length = |of: &[Span]| isize::try_from(of.len()).unwrap_or(isize::MAX);
    let mut shifts = BTreeSet::from([0, length(reference) - length(own)]);
    if is_one_time {
        for at in [0, own.len() / 2, own.len().saturating_sub(1)] {
            let Some(&(_, end)) = own.get(at) else { continue };
            let before = reference.partition_point(|other| other.1 < end);
            let near = length(&reference[..before]) - length(&own[..at]);
            shifts.extend(near - AROUND..=near + AROUND);
        }
    }
    let at = |shift: isize| {
        let ends: Vec<f64> =
            matched(reference, own, shift).map(|(one, two)| two.1 - one.1).collect();
        let least = if is_one_file { 1 } else { clocks::FEW };
        let is_enough = shift == 0 || (ends.len() >= least && 2 * ends.len() >= own.len());
        let every = ends.len() / SAMPLES + 1;
        let mut ends: Vec<f64> = ends.into_iter().step_by(every).collect();
        let (ahead, mad) = median_mad(&mut ends).filter(|_| is_enough)?;
        let mut sizes: Vec<f64> = ends.iter().map(|end| end.abs()).collect();
        let scatter = if is_one_file { median(&mut sizes)? } else { mad };
        Some(Place { shift, ahead, scatter })
    };
    let unmoved = at(0).unwrap_or_default();
    let moved = shifts.into_iter().filter_map(at);
    let best = moved.min_by(|a, b| a.scatter.total_cmp(&b.scatter)).unwrap_or(unmoved);
    let is_better =
        unmoved.scatter > clocks::ON_HOST_AT_MOST && 2.0 * best.scatter < unmoved.scatter;
    if is_better { best } else { unmoved }
}

/// How far the clock of each file is ahead of the first one's, ns; `None` if nothing connects them.
fn ahead(lines: &[Line], functions: &[Function]) -> Vec<Option<f64>> {
    let files = lines.iter().map(|line| line.file + 1).max().unwrap_or(0);
    let mut links = Vec::new();
    for function in functions {
        let count = |at: &usize| (function.of(&lines[*at]).len(), std::cmp::Reverse(*at));
        let Some(first) = (0..lines.len()).max_by_key(count) else { continue };
        for (line, place) in lines.iter().zip(&function.places) {
            if line.file != lines[first].file && !function.of(line).is_empty() {
                links.push((place.scatter, lines[first].file, line.file, place.ahead));
            }
        }
    }
    links.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ahead = vec![None; files];
    if let Some(first) = ahead.first_mut() {
        *first = Some(0.0);
    }
    // As in a spanning tree: each time the best link to a file that is not connected.
    while let Some(&(_, a, b, ns)) =
        links.iter().find(|l| ahead[l.1].is_some() != ahead[l.2].is_some())
    {
        match (ahead[a], ahead[b]) {
            (Some(of_a), _) => ahead[b] = Some(of_a + ns),
            (_, Some(of_b)) => ahead[a] = Some(of_b - ns),
            _ => break,
        }
    }
    ahead
}
