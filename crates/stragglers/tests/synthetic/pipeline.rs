// SPDX-License-Identifier: Apache-2.0
/*!
A simulated training step of data-parallel pipelines: the 1F1B schedule, sends and receives that
wait for each other, and a ReduceScatter of each stage at the end.

It produces the rows of a table of operations and the duration of the step. It uses nothing of the
crate under test except the row type.
*/

use ncclscope_stragglers::input::table::Operation;
use ncclscope_stragglers::model::LayoutPosition;
use std::collections::HashMap;

/// The size of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) dp: u32,
    pub(crate) pp: u32,
    pub(crate) microbatches: u32,
}

impl Shape {
    pub(crate) fn cells(self) -> impl Iterator<Item = LayoutPosition> {
        (0..self.dp).flat_map(move |dp_rank| {
            (0..self.pp).map(move |stage| LayoutPosition { dp_rank, stage })
        })
    }
}

/// The duration of a transfer or a collective, s.
const TRANSFER: f64 = 0.001;

#[derive(Clone, Debug)]
enum Action {
    Compute(&'static str, u32, f64),
    /// Operations that begin and end together: name, number and the worker at the other end.
    P2pBatch(Vec<(&'static str, u32, LayoutPosition)>),
}

/// The schedule of one worker.
fn schedule(
    shape: Shape,
    cell: LayoutPosition,
    time: &dyn Fn(LayoutPosition, u32, bool) -> f64,
) -> Vec<Action> {
    let (m, last) = (shape.microbatches, shape.pp - 1);
    let warm = (last - cell.stage).min(m);
    let at = |stage| LayoutPosition { stage, ..cell };
    let mut actions = Vec::new();
    let forward = |i| Action::Compute("forward-compute", i, time(cell, i, true));
    let backward = |i| Action::Compute("backward-compute", i, time(cell, i, false));
    let to_next = |i| (cell.stage < last).then(|| ("forward-send", i, at(cell.stage + 1)));
    let from_next = |i| (cell.stage < last).then(|| ("backward-recv", i, at(cell.stage + 1)));
    let to_former = |i| (cell.stage > 0).then(|| ("backward-send", i, at(cell.stage - 1)));
    let from_former = |i| (cell.stage > 0).then(|| ("forward-recv", i, at(cell.stage - 1)));
    for i in 0..warm {
        actions.push(Action::P2pBatch(from_former(i).into_iter().collect()));
        actions.push(forward(i));
        actions.push(Action::P2pBatch(to_next(i).into_iter().collect()));
    }
    if warm < m {
        actions.push(Action::P2pBatch(from_former(warm).into_iter().collect()));
    }
    for i in 0..m - warm {
        actions.push(forward(warm + i));
        actions.push(Action::P2pBatch(to_next(warm + i).into_iter().chain(from_next(i)).collect()));
        actions.push(backward(i));
        let next = (i + 1 < m - warm).then(|| from_former(warm + i + 1)).flatten();
        actions.push(Action::P2pBatch(to_former(i).into_iter().chain(next).collect()));
    }
    for i in m - warm..m {
        actions.push(Action::P2pBatch(from_next(i).into_iter().collect()));
        actions.push(backward(i));
        actions.push(Action::P2pBatch(to_former(i).into_iter().collect()));
    }
    actions.retain(|action| !matches!(action, Action::P2pBatch(ops) if ops.is_empty()));
    actions
}

fn counterpart(name: &str) -> &'static str {
    match name {
        "forward-send" => "forward-recv",
        "forward-recv" => "forward-send",
        "backward-send" => "backward-recv",
        _ => "backward-send",
    }
}

/// Simulates a step; `time` is how long a worker computes on a microbatch, forward or backward.
/// Returns the rows and the duration, s.
pub(crate) fn play(
    shape: Shape,
    step: i64,
    time: &dyn Fn(LayoutPosition, u32, bool) -> f64,
) -> (Vec<Operation>, f64) {
    let mut rows = Vec::new();
    let schedules: HashMap<LayoutPosition, Vec<Action>> =
        shape.cells().map(|cell| (cell, schedule(shape, cell, time))).collect();
    let mut now: HashMap<LayoutPosition, (usize, f64)> =
        shape.cells().map(|c| (c, (0, 0.0))).collect();
    let mut arrived: HashMap<(LayoutPosition, &str, u32), f64> = HashMap::new();
    let row = |cell, name: &str, number: u32, start, end: f64| Operation {
        cell,
        rank: None,
        step,
        name: name.into(),
        start,
        duration: end - start,
        number: number.into(),
        chunk: -1,
    };
    let mut is_moving = true;
    while is_moving {
        is_moving = false;
        for cell in shape.cells() {
            let (mut at, mut clock) = now[&cell];
            while let Some(action) = schedules[&cell].get(at) {
                match action {
                    Action::Compute(name, number, length) => {
                        rows.push(row(cell, name, *number, clock, clock + length));
                        clock += length;
                    }
                    Action::P2pBatch(ops) => {
                        for &(name, number, _) in ops {
                            arrived.insert((cell, name, number), clock);
                        }
                        let others = ops.iter().map(|&(name, number, other)| {
                            arrived.get(&(other, counterpart(name), number)).copied()
                        });
                        let Some(others) = others.collect::<Option<Vec<f64>>>() else { break };
                        let end = others.into_iter().fold(clock, f64::max) + TRANSFER;
                        for &(name, number, _) in ops {
                            rows.push(row(cell, name, number, clock, end));
                        }
                        clock = end;
                    }
                }
                at += 1;
                is_moving = true;
            }
            now.insert(cell, (at, clock));
        }
    }
    for stage in 0..shape.pp {
        let members: Vec<LayoutPosition> =
            shape.cells().filter(|cell| cell.stage == stage).collect();
        let end = members.iter().map(|cell| now[cell].1).fold(0.0, f64::max) + 20.0 * TRANSFER;
        for cell in members {
            assert_eq!(now[&cell].0, schedules[&cell].len(), "deadlock");
            rows.push(row(cell, "grads-reduce-scatter", 0, now[&cell].1, end));
            now.insert(cell, (0, end));
        }
    }
    let end = now.values().map(|now| now.1).fold(0.0, f64::max);
    (rows, end)
}
