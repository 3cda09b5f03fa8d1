// SPDX-License-Identifier: Apache-2.0
/*!
Whose fault the waits are.

Who is waited for may have been waiting itself. So each wait is charged to what the one waited for
did in that time: its own work to it, its waits onwards to whom it waited for, and so on along the
chain. This is the propagation of delays that the analysis of wait states in HPC knows; a last
arriver is often only the nearest victim.
*/

use crate::clock::Clocks;
use crate::model::Job;
use crate::steps::Steps;
use crate::waits::{Timeline, Waits, on_clock};

/// A chain of waits is followed so far; what is left is charged to its end.
const DEPTH: usize = 64;

/// The blame of one step, by worker, in ns of others' waiting.
#[derive(Clone, PartialEq, Debug)]
pub struct Blame {
    /// For what it did by itself.
    pub own: Vec<f64>,
    /// For transfers that it took part in and that all were ready for: a slow link's fault, or
    /// no worker's.
    pub transfer: Vec<f64>,
    /// All of the step's waiting.
    pub total: f64,
    /// Each worker's own time, ns: its work where the input shows that, else what is left of the
    /// step when its waits and transfers are taken out.
    pub busy: Vec<f64>,
}

impl Blame {
    fn new(workers: usize) -> Blame {
        Blame {
            own: vec![0.0; workers],
            transfer: vec![0.0; workers],
            total: 0.0,
            busy: vec![0.0; workers],
        }
    }

    /// All blame of a worker, ns.
    #[must_use]
    pub fn of(&self, worker: usize) -> f64 {
        self.own[worker] + self.transfer[worker]
    }
}

/// The blame of each step.
#[must_use]
pub fn blame(job: &Job, clocks: &Clocks, steps: &Steps, waits: &Waits) -> Vec<Blame> {
    let mut blames = vec![Blame::new(job.workers.len()); steps.list.len()];
    let mut seen = Vec::new();
    for (waiter, wait) in waits.iter() {
        let blame = &mut blames[wait.step];
        blame.total += wait.to - wait.from;
        seen.clear();
        seen.push(waiter);
        let mut charge = Charge { waits, step: wait.step, blame, seen: &mut seen };
        charge.time_of(wait.on, wait.from, wait.to);
    }
    own_time(&mut blames, job, clocks, steps, waits);
    blames
}

/// Each worker's own time in each step: what the input shows of it; else what is left of the step,
/// from the worker's last operation of the step before to that of this one. What follows the last
/// operation of all is charged to no worker, as nothing shows what it is.
fn own_time(blames: &mut [Blame], job: &Job, clocks: &Clocks, steps: &Steps, waits: &Waits) {
    if !job.own.is_empty() {
        for ((part, _), &step) in job.own.iter().zip(&steps.of_own) {
            blames[step].busy[part.worker] += part.end - part.start;
        }
        return;
    }
    for (worker, step, time) in waits.idle() {
        blames[step].busy[worker] -= time;
    }
    let mut spans = vec![vec![(f64::MAX, f64::MIN); job.workers.len()]; blames.len()];
    for (part, step) in steps.parts(job) {
        let part = on_clock(part, clocks);
        let (start, end) = &mut spans[step][part.worker];
        (*start, *end) = (start.min(part.start), end.max(part.end));
    }
    let mut last: Vec<Option<f64>> = vec![None; job.workers.len()];
    for (blame, spans) in blames.iter_mut().zip(spans) {
        for (worker, (start, end)) in spans.into_iter().enumerate().filter(|(_, s)| s.0 <= s.1) {
            blame.busy[worker] += (end - last[worker].unwrap_or(start)).max(0.0);
            last[worker] = (!job.steps_restart).then_some(end);
        }
    }
}

/// A wait that is being charged.
struct Charge<'a> {
    waits: &'a Waits,
    step: usize,
    blame: &'a mut Blame,
    /// Whom the chain passed: a cycle ends where it closes.
    seen: &'a mut Vec<usize>,
}

impl Charge<'_> {
    /// Charges the time between `from` and `to` to what `worker` did then.
    fn time_of(&mut self, worker: usize, mut from: f64, to: f64) {
        let waits = self.waits;
        let line = waits.timeline(worker, self.step);
        self.seen.push(worker);
        let first = line.waits.partition_point(|wait| wait.to <= from);
        for wait in line.waits[first..].iter().take_while(|wait| wait.from < to) {
            let (begin, end) = (wait.from.max(from), wait.to.min(to));
            self.work_of(worker, line, from, begin);
            if self.seen.contains(&wait.on) || self.seen.len() > DEPTH {
                self.work_of(worker, line, begin, end);
            } else {
                self.time_of(wait.on, begin, end);
            }
            from = end;
        }
        self.work_of(worker, line, from, to);
        self.seen.pop();
    }

    /// Charges time in which a worker did not wait.
    fn work_of(&mut self, worker: usize, line: &Timeline, from: f64, to: f64) {
        if to <= from {
            return;
        }
        let first = line.transfers.partition_point(|transfer| transfer.to <= from);
        let during = line.transfers[first..].iter().take_while(|transfer| transfer.from < to);
        let moving: f64 = during.map(|t| t.to.min(to) - t.from.max(from)).sum();
        self.blame.transfer[worker] += moving;
        self.blame.own[worker] += to - from - moving;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Batch, Part, Worker};
    use crate::steps::Step;

    fn part(worker: usize, start: f64, end: f64) -> Part {
        Part { worker, start, end }
    }

    fn job(workers: u32, batches: &[(Part, usize)]) -> Job {
        let worker = |rank| Worker::new(rank, "");
        let batch =
            |&(part, other): &(Part, usize)| Batch { part, step: Some(0), partners: vec![other] };
        Job {
            workers: (0..workers).map(worker).collect(),
            batches: batches.iter().map(batch).collect(),
            steps_restart: true,
            ..Job::default()
        }
    }

    #[test]
    fn a_victim_hands_its_blame_on() {
        // 2 waits for 1 from 10 to 60 ms; 1 waited for 0 until 50, and then worked until 60.
        let ms = 1e6;
        let batches = [
            (part(0, 50.0 * ms, 51.0 * ms), 1),
            (part(1, 5.0 * ms, 51.0 * ms), 0),
            (part(1, 60.0 * ms, 61.0 * ms), 3),
            (part(2, 10.0 * ms, 61.0 * ms), 2),
        ];
        let job = job(3, &batches);
        let clocks = Clocks::default();
        let steps = Steps::of(&job, &clocks);
        let waits = Waits::find(&job, &clocks, &steps);
        let blame = &blame(&job, &clocks, &steps, &waits)[0];
        assert_eq!(blame.total, 95.0 * ms);
        assert_eq!(blame.own, [85.0 * ms, 9.0 * ms, 0.0]);
        assert_eq!(blame.transfer, [0.0, 1.0 * ms, 0.0]);
    }

    #[test]
    fn a_cycle_ends_where_it_closes() {
        let batches = [
            (part(0, 0.0, 20.0), 1),
            (part(1, 10.0, 20.0), 0),
            (part(0, 20.0, 30.0), 3),
            (part(1, 20.0, 30.0), 2),
        ];
        let job = job(2, &batches);
        let steps = Steps::of(&job, &Clocks::default());
        let mut waits = Waits::find(&job, &Clocks::default(), &steps);
        let wait = crate::waits::Wait { from: 0.0, to: 10.0, on: 0, step: 0 };
        waits.timeline_mut(1, 0).waits.push(wait);
        let blame = &blame(&job, &Clocks::default(), &steps, &waits)[0];
        assert_eq!((blame.total, blame.own.iter().sum::<f64>()), (20.0, 20.0));
    }

    #[test]
    fn neither_unknown_partners_nor_steps_that_are_not_whole_make_work() {
        let alone = |part, step| Batch { part, step: Some(step), partners: vec![] };
        let mut job = job(2, &[]);
        job.steps_restart = false;
        job.batches = vec![
            alone(part(0, 0.0, 10.0), 0),
            alone(part(0, 100.0, 190.0), 1),
            alone(part(1, 150.0, 190.0), 1),
            alone(part(0, 200.0, 210.0), 2),
            alone(part(1, 200.0, 260.0), 2),
            alone(part(0, 300.0, 340.0), 3),
            alone(part(1, 300.0, 360.0), 3),
        ];
        // The first operation of worker 1 that is left is in the middle of a step.
        job.whole_from.insert(1, 150.0);
        let steps = Steps::of(&job, &Clocks::default());
        let numbers: Vec<i64> = steps.list.iter().map(|step| step.number).collect();
        assert_eq!(numbers, [Step::NONE, Step::NONE, 2, 3]);
        let waits = Waits::find(&job, &Clocks::default(), &steps);
        let blames = blame(&job, &Clocks::default(), &steps, &waits);
        assert_eq!(blames[2].busy, [10.0, 10.0]);
        assert_eq!(blames[3].busy, [90.0, 40.0]);
        assert_eq!((blames[2].total, blames[3].total), (0.0, 0.0));
    }
}
