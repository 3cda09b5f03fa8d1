// SPDX-License-Identifier: Apache-2.0
/*!
Which workers are to blame for the waits of the others.

**The problem.** [`crate::waits`] finds direct waits: worker *C* waited for *B* from 10 to 60 ms,
because *B* arrived last at their operation. That does not make *B* slow: it may have arrived late
because it waited for *A*. In a pipeline or a job with several communicators most last arrivers are
such victims, and blaming them names the wrong rank.

**The rule.** Each wait is charged to what the worker waited for did *during the wait*:

- time in which it was itself waiting is passed on, in the same way, to the worker that it waited
  for;
- time in which it took part in a transfer that all others were ready for is charged to it as
  `transfer`: a slow link is at fault, or nothing;
- all other time is its own work, and charged to it as `own`.

```text
 A  [ own work ........................ ][op1]
 B     [op1: waits for A ............... ][own work][op2]
 C          [op2: waits for B ......................][op2]
            10                          50         60 ms
```

*C* waits 50 ms for *B*. From 10 to 50 ms *B* waits for *A*, which works: *A* gets 40 ms of own
blame. From 50 to 60 ms *B* works: *B* gets 10 ms. The whole 50 ms are charged, and none twice. The
sum of all blame is therefore the sum of all waiting, and `own / total` is the share of the job's
waiting that a worker causes. This is the delay propagation known from the analysis of wait states
in HPC.

**Following a chain.** `Charge::time_of` walks over the worker's waits that overlap the charged
interval, charges the gaps between them as work, and recurses into each wait with the overlap as the
new interval. Intervals only shrink, so charging one wait costs at most the waits inside it on each
level. Real waits cannot form a cycle at one moment, but errors of the clocks can: a chain that
comes back to a worker that it has passed, or that is `DEPTH` long, ends there, and the rest of the
interval counts as that worker's own work.

**Own time.** Blame alone cannot tell a slow worker from one that others happen to wait for. So each
worker's own time in a step (`busy`) is computed too, for the module `slow` to compare: the recorded
work where the input has it, else the time from the worker's last operation of the previous step to
its last operation of this one, less its waits and transfers. Where other members of its operations
were not recorded, that is not known ([`crate::coverage`]).

This module does **not** decide which worker is slow: that is `slow`.
*/

use crate::clock::Clocks;
use crate::coverage::{Known, known};
use crate::model::Job;
use crate::steps::Steps;
use crate::waits::{Timeline, Waits, on_clock};

/// Maximum length of a chain of waits that is followed; the rest is charged to the chain's last
/// worker.
const DEPTH: usize = 64;

/// The blame of each worker for a step: time that others waited, ns.
#[derive(Clone, PartialEq, Debug)]
pub struct Blame {
    /// Blame for the worker's own work.
    pub own: Vec<f64>,
    /// Blame for transfers that it took part in and that all members were ready for: due to a slow
    /// link, or to nothing.
    pub transfer: Vec<f64>,
    /// All waiting time in the step, ns.
    pub total: f64,
    /// Own time of each worker, ns: its recorded work, else the step without its waits and
    /// transfers.
    pub busy: Vec<f64>,
    /// The most that this may be: a GPU may work while the proxy still sends its last data.
    pub busy_at_most: Vec<f64>,
    /// How well the own time of each worker is known.
    pub known: Vec<Known>,
}

impl Blame {
    pub(crate) fn none(workers: usize) -> Blame {
        Blame {
            own: vec![0.0; workers],
            transfer: vec![0.0; workers],
            total: 0.0,
            busy: vec![0.0; workers],
            busy_at_most: vec![0.0; workers],
            known: vec![Known::Nothing; workers],
        }
    }
}

/// The blame of each step.
#[must_use]
pub fn blame(job: &Job, clocks: &Clocks, steps: &Steps, waits: &Waits) -> Vec<Blame> {
    let mut blames = vec![Blame::none(job.workers.len()); steps.list.len()];
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

/// Computes the own time of each worker in each step. Time after a worker's last operation is not
/// charged, because no operation shows what it was.
fn own_time(blames: &mut [Blame], job: &Job, clocks: &Clocks, steps: &Steps, waits: &Waits) {
    for (blame, known) in blames.iter_mut().zip(known(job, steps)) {
        blame.known = known;
    }
    if !job.own.is_empty() {
        for ((part, _), &step) in job.own.iter().zip(&steps.of_own) {
            blames[step].busy[part.worker] += part.end - part.start;
            blames[step].busy_at_most[part.worker] += part.end - part.start;
        }
        return;
    }
    for (worker, step, idle) in waits.idle() {
        blames[step].busy[worker] -= idle.most;
        blames[step].busy_at_most[worker] -= idle.least;
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
            let span = (end - last[worker].unwrap_or(start)).max(0.0);
            blame.busy[worker] += span;
            blame.busy_at_most[worker] += span;
            last[worker] = (!job.steps_restart).then_some(end);
        }
    }
}

/// A wait that is being charged.
struct Charge<'a> {
    waits: &'a Waits,
    step: usize,
    blame: &'a mut Blame,
    /// The workers on the chain so far, to stop at a cycle.
    seen: &'a mut Vec<usize>,
}

impl Charge<'_> {
    /// Charges the time from `from` to `to` according to what `worker` did in it.
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
    use crate::model::{P2pBatch, Part, Worker};
    use crate::steps::Step;

    fn part(worker: usize, start: f64, end: f64) -> Part {
        Part { worker, start, end }
    }

    fn job(workers: u32, batches: &[(Part, usize)]) -> Job {
        let worker = |rank| Worker::new(rank, "");
        let batch = |&(part, other): &(Part, usize)| P2pBatch {
            class: None,
            part,
            released: (part.end, part.end),
            step: Some(0),
            partners: vec![other],
            is_lacking: false,
            has_end: true,
        };
        Job {
            workers: (0..workers).map(worker).collect(),
            batches: batches.iter().map(batch).collect(),
            steps_restart: true,
            ..Job::default()
        }
    }

    #[test]
    fn a_victim_passes_its_blame_on() {
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
        let alone = |part: Part, step| P2pBatch {
            class: None,
            part,
            released: (part.end, part.end),
            step: Some(step),
            partners: vec![],
            is_lacking: false,
            has_end: true,
        };
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
        // The first remaining operation of worker 1 is in the middle of a step.
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
