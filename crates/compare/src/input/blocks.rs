// SPDX-License-Identifier: Apache-2.0
//! The numbers of a run's training steps, or of slices of its time if it has no steps.

use crate::run::BLOCKS;
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_stragglers::steps::{Step, StepSource, Steps};

/// With this many steps the first one is left out, because it makes connections and compiles
/// kernels.
const MANY: usize = 10;

/// Assigns numbers to steps or times.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The number of each step, of combined steps that of the first; `None` for operations outside
    /// of steps.
    of_step: Vec<Option<u32>>,
    /// Start and length of the run, if it has no steps.
    span: Option<(f64, f64)>,
    /// Number of training steps with a number; 0 if unknown.
    pub(super) steps: usize,
    /// How many training steps have one number, at most.
    pub(super) combined: usize,
}

impl Blocks {
    /// The numbers of a run with these steps; `start` and `end` are its first and last time.
    pub(super) fn new(steps: &Steps, (start, end): (f64, f64)) -> Blocks {
        let real = (0..steps.list.len()).filter(|&at| steps.list[at].number != Step::NONE);
        let mut real: Vec<usize> = real.collect();
        if real.len() >= MANY {
            real.remove(0);
        }
        let mut of_step = vec![None; steps.list.len()];
        let (mut next, mut combined) = (0, 1);
        for at in real {
            of_step[at] = u32::try_from(next).ok();
            next += steps.list[at].count;
            combined = combined.max(steps.list[at].count);
        }
        let span = (steps.source == StepSource::Whole).then_some((start, end - start));
        let steps = if span.is_some() { 0 } else { next };
        Blocks { of_step, span, steps, combined }
    }

    /// The number of something that belongs to a step and ends at a time.
    pub(super) fn of(&self, step: usize, end: f64) -> Option<u32> {
        match self.span {
            Some((start, length)) if length > 0.0 => {
                let part = to_f64(BLOCKS as u64) * (end - start) / length;
                let last = u32::try_from(BLOCKS - 1).unwrap_or(u32::MAX);
                // The last time is still in the last block.
                Some(u32::try_from(to_u64(part.floor())).unwrap_or(last).min(last))
            }
            Some(_) => None,
            None => self.of_step.get(step).copied().flatten(),
        }
    }

    /// The steps that have a number.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, u32)> {
        let steps = if self.span.is_some() { &[] } else { self.of_step.as_slice() };
        steps.iter().enumerate().filter_map(|(at, number)| Some((at, (*number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(count: i64, source: StepSource) -> Steps {
        let numbers = std::iter::once(Step::NONE).chain(0..count);
        let list =
            numbers.map(|number| Step { number, start: 0.0, duration: 1.0, count: 1 }).collect();
        Steps { list, of_collective: vec![], of_batch: vec![], of_own: vec![], source }
    }

    #[test]
    fn steps_are_numbered_in_order() {
        let of = |count| {
            let blocks = Blocks::new(&steps(count, StepSource::Marked), (0.0, 9.0));
            (blocks.steps, blocks.numbered().map(|(_, number)| number).collect::<Vec<u32>>())
        };
        assert_eq!(of(3), (3, vec![0, 1, 2]));
        assert_eq!(of(12), (11, (0..11).collect()));
        assert_eq!(of(101), (100, (0..100).collect()));
        let mut steps = steps(4, StepSource::Repeating);
        steps.list[1..].iter_mut().for_each(|step| step.count = 3);
        let blocks = Blocks::new(&steps, (0.0, 9.0));
        let numbers: Vec<u32> = blocks.numbered().map(|(_, number)| number).collect();
        assert_eq!((blocks.steps, blocks.combined, numbers), (12, 3, vec![0, 3, 6, 9]));
    }

    #[test]
    fn without_steps_time_is_cut_into_slices() {
        let blocks = Blocks::new(&steps(1, StepSource::Whole), (100.0, 420.0));
        let of = [100.0, 109.0, 110.0, 419.0, 420.0].map(|end| blocks.of(1, end));
        assert_eq!(of, [Some(0), Some(0), Some(1), Some(31), Some(31)]);
        assert_eq!((blocks.steps, blocks.numbered().count()), (0, 0));
    }
}
