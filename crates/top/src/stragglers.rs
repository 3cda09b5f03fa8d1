// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks are stragglers, by the one test of the product ([`ncclscope_statistics`]).

A block is the time since the last block in which collectives of the job ended: one reading, or
several if none ended. A unit is a process, and its value in a block is what it costs the others
([`crate::waiting`]), as a share of the block. A rank is a straggler if the test answers SLOW, so
that a single reading shows none: at least [`test::BLOCKS`] blocks are needed.
*/

use crate::picture::{Flag, Picture, Row};
use crate::reading::{Rank, Reading};
use crate::units::percent;
use crate::waiting::{self, Wait};
use crate::work::Work;
use ncclscope_limits::{slow, test};
use ncclscope_statistics::{Against, Blocks, Limits, compare_units};
use std::collections::{BTreeMap, VecDeque};

/// A process of a job: host, process id and rank.
type Process = (String, Option<u32>, Option<u32>);

/// The stragglers of all jobs.
#[derive(Clone, Debug, Default)]
pub struct Stragglers {
    jobs: BTreeMap<String, Job>,
}

/// What is known of a job.
#[derive(Clone, Debug, Default)]
struct Job {
    /// What each process did since the last block, in how many seconds.
    open: BTreeMap<Process, Work>,
    open_s: f64,
    /// Operations have ended: what ended first began, or was read, at an unknown time before.
    has_begun: bool,
    /// The length of each block, s, and what each process of `open` costs in it.
    blocks: VecDeque<(f64, Vec<f64>)>,
    /// What each straggler costs, as a share of time.
    slow: BTreeMap<Process, f64>,
}

impl Stragglers {
    /// Learns from what the ranks did since the reading before.
    pub fn learn(&mut self, reading: &Reading) {
        if reading.fresh_s <= 0.0 {
            return;
        }
        let mut jobs: BTreeMap<&str, BTreeMap<Process, &Work>> = BTreeMap::new();
        for rank in &reading.ranks {
            let Rank { job, host, pid, rank, fresh, .. } = rank;
            jobs.entry(job).or_default().insert((host.clone(), *pid, *rank), fresh);
        }
        self.jobs.retain(|job, _| jobs.contains_key(job.as_str()));
        for (job, works) in jobs {
            self.jobs.entry(job.to_owned()).or_default().learn(&works, reading.fresh_s);
        }
    }

    /// Flags the stragglers that have no other flag that says why others wait for them.
    pub fn mark(&self, picture: &mut Picture) {
        for row in &mut picture.ranks {
            let Row { job, host, pid, rank, .. } = &*row;
            let process = (host.clone(), *pid, *rank);
            let cost = self.jobs.get(job).and_then(|job| job.slow.get(&process));
            let Some(cost) = cost.filter(|_| row.flags.iter().all(|flag| *flag == Flag::Hidden))
            else {
                continue;
            };
            row.flags.insert(0, Flag::Slow);
            row.why = format!("other ranks wait for it {} of the time", percent(cost.min(1.0)));
        }
    }

    /// True if ranks of a job were compared, but too few times to tell whether one is slow.
    #[must_use]
    pub fn is_too_early(&self) -> bool {
        self.jobs.values().any(|job| job.has_begun && job.blocks.len() < test::BLOCKS)
    }
}

impl Job {
    fn learn(&mut self, works: &BTreeMap<Process, &Work>, span_s: f64) {
        if !works.keys().eq(self.open.keys()) {
            self.rearrange(works);
        }
        self.open_s += span_s;
        for (sum, work) in self.open.values_mut().zip(works.values()) {
            sum.add(work);
        }
        let costs = waiting::of(self.open.values(), self.open_s);
        let cost = |wait: &Wait| wait.share.map(|_| wait.caused);
        let costs: Vec<Option<f64>> = costs.iter().map(cost).collect();
        if costs.iter().any(Option::is_some) {
            if std::mem::replace(&mut self.has_begun, true) {
                self.close(&costs);
                self.judge();
            }
            self.open_s = 0.0;
            self.open.values_mut().for_each(|work| *work = Work::default());
            return;
        }
        let known_s = self.blocks.iter().map(|(span_s, _)| span_s).sum();
        if !self.blocks.is_empty() && self.open_s > known_s {
            // What the blocks show need not be true of a time as long as theirs.
            self.blocks.clear();
            self.slow.clear();
            self.has_begun = false;
        }
    }

    /// Ends the block.
    fn close(&mut self, costs: &[Option<f64>]) {
        let before = self.blocks.back().map_or(&[][..], |(_, costs)| costs);
        let cost = |(at, cost): (usize, &Option<f64>)| {
            // Of a rank that was known, no operation ended for which others waited.
            let none = before.get(at).map(|cost| 0.0 * cost);
            cost.or(none).unwrap_or(f64::NAN)
        };
        let costs = costs.iter().enumerate().map(cost).collect();
        self.blocks.push_back((self.open_s, costs));
        self.blocks.drain(..self.blocks.len().saturating_sub(slow::KEPT));
    }

    /// Takes over the processes of `works`: new ones are unknown in the blocks, and those that are
    /// gone are forgotten.
    fn rearrange(&mut self, works: &BTreeMap<Process, &Work>) {
        let mut open = std::mem::take(&mut self.open);
        let places: BTreeMap<&Process, usize> = open.keys().zip(0..).collect();
        let places: Vec<_> = works.keys().map(|process| places.get(process).copied()).collect();
        for (_, costs) in &mut self.blocks {
            let cost = |place: &Option<usize>| place.and_then(|at| costs.get(at).copied());
            *costs = places.iter().map(|place| cost(place).unwrap_or(f64::NAN)).collect();
        }
        let mut work = |process: &Process| open.remove(process).unwrap_or_default();
        self.open = works.keys().map(|process| (process.clone(), work(process))).collect();
    }

    fn judge(&mut self) {
        let mut blocks = Blocks::new(self.open.len());
        self.blocks.iter().for_each(|(_, costs)| blocks.push(costs.iter().copied()));
        let answers = compare_units(&blocks, Against::Peers, &Limits::default());
        let slow = self.open.keys().zip(answers).filter(|(_, answer)| answer.is_slow());
        self.slow = slow.map(|(process, of)| (process.clone(), of.effect().mean)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Comm, Function, FunctionKey};

    /// Collectives of a communicator of all ranks, in a second of which each waits so many s.
    fn reading(waits: &[f64]) -> Reading {
        let rank = |(rank, &seconds): (u32, &f64)| {
            let key =
                FunctionKey { comm: Comm::new(7, "dp"), func: "AllReduce".into(), is_p2p: false };
            let seconds = 0.1 + seconds;
            let function = Function { count: 10.0, timed: 10.0, seconds, ..Function::default() };
            let fresh = Work { functions: [(key, function)].into(), ..Work::default() };
            Rank { rank: Some(rank), fresh, ..Rank::default() }
        };
        let ranks = (0..).zip(waits).map(rank).collect();
        Reading { ranks, fresh_s: 1.0, ..Reading::default() }
    }

    /// The same with up to 2 % of noise.
    fn noisy(block: u32, waits: &[f64]) -> Reading {
        let noise = |at: u32| f64::from((block * 64 + at).wrapping_mul(0x9e37_79b1) >> 24) / 256.0;
        let waits = (0..).zip(waits).map(|(at, wait)| wait + 0.02 * noise(at));
        reading(&waits.collect::<Vec<_>>())
    }

    /// The ranks that are marked, with why.
    fn marked(stragglers: &Stragglers, flags: &[Flag]) -> Vec<(u32, String)> {
        let row = |rank| Row {
            rank: Some(rank),
            flags: flags.to_vec(),
            why: "x".into(),
            ..Row::default()
        };
        let mut picture = Picture { ranks: (0..8).map(row).collect(), ..Picture::default() };
        stragglers.mark(&mut picture);
        let rows = picture.ranks.into_iter().filter(|row| row.flag() == Some(Flag::Slow));
        rows.map(|row| (row.rank.unwrap(), row.why)).collect()
    }

    fn ranks(stragglers: &Stragglers) -> Vec<u32> {
        marked(stragglers, &[]).into_iter().map(|(rank, _)| rank).collect()
    }

    const LATE: [f64; 4] = [0.2, 0.2, 0.0, 0.2];

    #[test]
    fn a_straggler_is_late_block_after_block() {
        let mut stragglers = Stragglers::default();
        stragglers.learn(&reading(&[0.9, 0.0, 0.0, 0.0]));
        for block in 0..2 {
            stragglers.learn(&noisy(block, &LATE));
            // An agent is read several times before its next window.
            stragglers.learn(&Reading { fresh_s: 0.0, ..noisy(block, &LATE) });
            assert_eq!((ranks(&stragglers), stragglers.is_too_early()), (vec![], true));
        }
        (2..5).for_each(|block| stragglers.learn(&noisy(block, &LATE)));
        assert!(!stragglers.is_too_early());
        let [(2, why)] = &marked(&stragglers, &[])[..] else { panic!("{stragglers:?}") };
        assert!(why.starts_with("other ranks wait for it ") && why.ends_with("% of the time"));
        assert_eq!(marked(&stragglers, &[Flag::Hidden]).len(), 1);
        assert_eq!(marked(&stragglers, &[Flag::Stalled]), [], "another flag says why");
    }

    #[test]
    fn small_common_or_changing_lateness_accuses_no_rank() {
        let of = |waits: &dyn Fn(u32) -> [f64; 4]| {
            let mut stragglers = Stragglers::default();
            (0..64).for_each(|block| stragglers.learn(&noisy(block, &waits(block))));
            ranks(&stragglers)
        };
        assert_eq!(of(&|_| [0.025, 0.025, 0.0, 0.025]), [0; 0]);
        assert_eq!(of(&|_| [0.0, 0.0, 0.6, 0.6]), [0; 0], "two come last");
        let in_turn = |block: u32| {
            let mut waits = [0.4; 4];
            waits[(block.wrapping_mul(0x9e37_79b1) >> 30) as usize] = 0.0;
            waits
        };
        assert_eq!(of(&in_turn), [0; 0]);
        assert_eq!(of(&|_| LATE), [2]);
    }

    #[test]
    fn what_begins_or_ends_is_seen_within_some_blocks() {
        let mut stragglers = Stragglers::default();
        let until = |stragglers: &mut Stragglers, waits: &[f64], wanted: &[u32]| {
            (0..).zip(0..slow::KEPT).position(|(block, _)| {
                stragglers.learn(&noisy(block, waits));
                ranks(stragglers) == wanted
            })
        };
        (0..100).for_each(|block| stragglers.learn(&noisy(block, &[0.0; 4])));
        let begins = until(&mut stragglers, &LATE, &[2]);
        (0..100).for_each(|block| stragglers.learn(&noisy(block, &LATE)));
        let ends = until(&mut stragglers, &[0.0; 4], &[]);
        assert!(begins.is_some() && ends.is_some_and(|ends| ends < 5), "{begins:?} {ends:?}");
    }

    #[test]
    fn an_operation_that_outlasts_readings_counts_for_all_of_them() {
        // An operation in ten seconds, in which the others wait for rank 2 for 2 s.
        let mut stragglers = Stragglers::default();
        let mut idle = reading(&LATE);
        idle.ranks.iter_mut().for_each(|rank| rank.fresh = Work::default());
        for block in 0..5 {
            (0..9).for_each(|_| stragglers.learn(&idle));
            stragglers.learn(&noisy(block, &LATE.map(|wait| 10.0 * wait)));
        }
        let [(2, why)] = &marked(&stragglers, &[])[..] else { panic!("{stragglers:?}") };
        assert!(why.contains(" 20% ") || why.contains(" 19% "), "{why}");
        (0..51).for_each(|_| stragglers.learn(&idle));
        assert_eq!(ranks(&stragglers), [0; 0], "the job does something else");
    }

    #[test]
    fn a_process_that_begins_anew_is_another_one() {
        let mut stragglers = Stragglers::default();
        (0..9).for_each(|block| stragglers.learn(&noisy(block, &LATE)));
        let mut next = noisy(9, &LATE);
        next.ranks[2].pid = Some(5);
        stragglers.learn(&next);
        assert_eq!(stragglers.jobs[""].open.len(), 4);
        assert_eq!(ranks(&stragglers), [0; 0]);
        stragglers.learn(&Reading { fresh_s: 1.0, ..Reading::default() });
        assert!(stragglers.jobs.is_empty());
    }
}
