// SPDX-License-Identifier: Apache-2.0
//! The communicators and hosts of the ranks.

use crate::error::Error;
use crate::fault::Fault;
use crate::scenario::{JobShape, Planted, Scenario};
use crate::time::mix;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    World,
    Tensor,
    Data,
    Pipeline,
    Expert,
    /// First and last stage, for the gradients of the embedding.
    Embedding,
    /// Used at the beginning, and then destroyed.
    Setup,
}

impl Role {
    /// The name that applications use.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Role::World => "world",
            Role::Tensor => "tp",
            Role::Data => "dp",
            Role::Pipeline => "pp",
            Role::Expert => "ep",
            Role::Embedding => "embd",
            Role::Setup => "setup",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CommGroup {
    pub(crate) hash: u64,
    /// Ranks of the job, in the order of the communicator.
    pub(crate) members: Vec<u32>,
}

impl CommGroup {
    /// The rank in the communicator of a rank of the job.
    pub(crate) fn position(&self, rank: u32) -> Option<usize> {
        self.members.iter().position(|&member| member == rank)
    }
}

/// A communicator of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    /// Index in [`Layout::groups`].
    pub(crate) group: usize,
    pub(crate) role: Role,
    /// Rank in the communicator.
    pub(crate) rank: usize,
}

/// Sizes, groups and hosts. Ranks are numbered as in Megatron: tensor parallel ranks are
/// neighbours, then data parallel ranks, then stages.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) ranks: u32,
    pub(crate) per_host: u32,
    pub(crate) tp: u32,
    pub(crate) pp: u32,
    pub(crate) dp: u32,
    pub(crate) ep: u32,
    pub(crate) groups: Vec<CommGroup>,
    /// The communicators of each rank, in the order of creation.
    pub(crate) of_rank: Vec<Vec<Membership>>,
    /// If all communicators are created again halfway: the offset of the new ones in `groups`.
    pub(crate) renewed: Option<usize>,
}

impl Layout {
    pub(crate) fn new(scenario: &Scenario) -> Result<Layout, Error> {
        let (per_host, [tp, pp, dp, ep]) = sizes(scenario)?;
        scenario.fault.iter().try_for_each(|planted| check(planted, scenario.job.ranks))?;
        let ranks = scenario.job.ranks;
        let of_rank = vec![Vec::new(); ranks as usize];
        let groups = Vec::new();
        let mut layout = Layout { ranks, per_host, tp, pp, dp, ep, groups, of_rank, renewed: None };
        let seed = scenario.seed;
        let all: Vec<u32> = (0..ranks).collect();
        layout.add(Role::World, all.clone(), seed);
        if scenario.has(Fault::CommDestroyed) {
            layout.add(Role::Setup, all, seed);
        }
        for first in (0..ranks).step_by(tp as usize) {
            layout.add(Role::Tensor, (first..first + tp).collect(), seed);
        }
        for stage in 0..pp {
            for tensor in 0..tp {
                let line: Vec<u32> = (0..dp).map(|data| layout.rank(tensor, data, stage)).collect();
                layout.add(Role::Data, line.clone(), seed);
                for part in line.chunks(ep as usize) {
                    layout.add(Role::Expert, part.to_vec(), seed);
                }
            }
        }
        for first in 0..tp * dp {
            let line: Vec<u32> = (0..pp).map(|stage| first + stage * tp * dp).collect();
            let ends = vec![line[0], line[line.len() - 1]];
            layout.add(Role::Pipeline, line, seed);
            if scenario.has(Fault::SubsetComm) && pp > 1 && first % tp == 0 {
                layout.add(Role::Embedding, ends, seed);
            }
        }
        if scenario.has(Fault::ElasticResize) {
            layout.renew(seed);
        }
        Ok(layout)
    }

    /// Adds a second instance of each communicator.
    fn renew(&mut self, seed: u64) {
        let count = self.groups.len();
        for (index, group) in self.groups.clone().into_iter().enumerate() {
            let hash = mix(seed, (count + index) as u64, 0x636f_6d6d) | 1;
            self.groups.push(CommGroup { hash, ..group });
        }
        for own in &mut self.of_rank {
            let again = own.clone().into_iter();
            own.extend(again.map(|one| Membership { group: one.group + count, ..one }));
        }
        self.renewed = Some(count);
    }

    fn add(&mut self, role: Role, members: Vec<u32>, seed: u64) {
        if members.len() < 2 {
            return;
        }
        let group = self.groups.len();
        for (rank, &member) in members.iter().enumerate() {
            self.of_rank[member as usize].push(Membership { group, role, rank });
        }
        // NCCL's hashes are any 64 bits except 0.
        let hash = mix(seed, group as u64, 0x636f_6d6d) | 1;
        self.groups.push(CommGroup { hash, members });
    }

    fn rank(&self, tensor: u32, data: u32, stage: u32) -> u32 {
        (stage * self.dp + data) * self.tp + tensor
    }

    /// The data-parallel replica of a rank.
    pub(crate) fn replica(&self, rank: u32) -> u32 {
        rank / self.tp % self.dp
    }

    pub(crate) fn stage(&self, rank: u32) -> u32 {
        rank / (self.tp * self.dp)
    }

    /// The number of ranks to advise, and how many of them a host then has: the first pair that is
    /// enough, from this job's number on.
    pub(crate) fn advised(
        &self,
        job: &JobShape,
        is_enough: impl Fn(u32, u32) -> bool,
    ) -> (u32, u32) {
        let mut all = (self.ranks..=MOST).map(|ranks| (ranks, per_host(job, ranks)));
        let enough = |&(ranks, per_host): &(u32, u32)| is_enough(ranks, per_host);
        all.find(enough).unwrap_or_else(|| (MOST, per_host(job, MOST)))
    }

    pub(crate) fn host(&self, rank: u32) -> u32 {
        rank / self.per_host
    }

    /// A rank's communicator of a role.
    pub(crate) fn group_of(&self, rank: u32, role: Role) -> Option<Membership> {
        self.of_rank[rank as usize].iter().find(|m| m.role == role).copied()
    }

    /// The hosts that a communicator spans.
    pub(crate) fn nodes(&self, group: usize) -> u32 {
        let mut hosts: Vec<u32> =
            self.groups[group].members.iter().map(|&rank| self.host(rank)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        u32::try_from(hosts.len()).unwrap_or(u32::MAX)
    }
}

/// Refuses a fault that cannot be planted.
fn check(planted: &Planted, ranks: u32) -> Result<(), Error> {
    let name = planted.name.name();
    if planted.rank.is_some_and(|rank| rank >= ranks) {
        let what = format!("{name}: there is no such rank: choose one below {ranks}");
        return Err(Error::scenario(what));
    }
    let fits = |factor: f64| factor > 0.0 && factor <= SLOWEST;
    match planted.factor {
        Some(factor) if !fits(factor) => Err(Error::scenario(format!(
            "{name}: factor {factor:?}: expected one above 0, up to {SLOWEST}"
        ))),
        _ => Ok(()),
    }
}

/// The largest factor of a fault.
const SLOWEST: f64 = 1e6;

/// Ranks per host, and the sizes; a size of 0 is chosen so that tensor parallel ranks share a host.
/// Maximum number of ranks.
const MOST: u32 = 131_072;
/// Maximum number of training steps. A step of a rank takes 30 KB of memory.
const MOST_STEPS: u32 = 100_000;

/// The ranks of a host if the job has this many.
fn per_host(job: &JobShape, ranks: u32) -> u32 {
    let chosen = match ranks {
        0..=15 => 2,
        16..=31 => 4,
        _ => 8,
    };
    if job.per_host == 0 { chosen.min(ranks) } else { job.per_host }
}

fn sizes(scenario: &Scenario) -> Result<(u32, [u32; 4]), Error> {
    let job = &scenario.job;
    let ranks = job.ranks;
    if !(2..=MOST).contains(&ranks) {
        return Err(Error::scenario(format!("{ranks} ranks: from 2 to {MOST} can be simulated")));
    }
    let steps = job.steps;
    if steps > MOST_STEPS {
        let text = format!("{steps} steps: up to {MOST_STEPS} can be simulated");
        return Err(Error::scenario(text));
    }
    let per_host = per_host(job, ranks);
    let pick = |given: u32, chosen: u32| if given == 0 { chosen } else { given };
    let divides = |n: u32, of: u32| n != 0 && of.is_multiple_of(n);
    let given = job.dp.max(1).saturating_mul(job.pp.max(1));
    let tp = match (job.dp, job.pp) {
        (0, 0) if divides(per_host, ranks) => per_host,
        (1.., 1..) if divides(given, ranks) => ranks / given,
        // As many as there are on a host, if the given sizes allow that.
        (1.., 0) | (0, 1..) if divides(given, ranks) => {
            let fits = |&n: &u32| divides(n, per_host) && divides(n, ranks / given);
            (1..=per_host).rev().find(fits).unwrap_or(1)
        }
        _ => 1,
    };
    let tp = pick(job.tp, tp);
    let rest = ranks.checked_div(tp).unwrap_or(0);
    let stages = match rest {
        64.. if divides(4, rest) => 4,
        4.. if divides(2, rest) => 2,
        _ => 1,
    };
    let pp = pick(job.pp, rest.checked_div(job.dp).map_or(stages, |left| left.max(1)));
    let dp = pick(job.dp, rest.checked_div(pp).unwrap_or(0).max(1));
    if u64::from(tp) * u64::from(pp) * u64::from(dp) != u64::from(ranks) {
        let what = format!("tp {tp} x pp {pp} x dp {dp} is not {ranks} ranks: give sizes that are");
        return Err(Error::scenario(what));
    }
    let ep = pick(job.ep, if dp >= 4 && divides(2, dp) { 2 } else { 1 });
    if !divides(ep, dp) {
        return Err(Error::scenario(format!(
            "ep {ep} does not divide dp {dp}: choose one that does"
        )));
    }
    Ok((per_host, [tp, pp, dp, ep]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes tp, pp and dp: given ones, else chosen ones.
    fn chosen(ranks: u32, given: [u32; 3]) -> Result<[u32; 3], String> {
        let mut scenario = Scenario::default();
        let job = &mut scenario.job;
        job.ranks = ranks;
        [job.tp, job.pp, job.dp] = given;
        let (_, [tp, pp, dp, _]) = sizes(&scenario).map_err(|error| error.to_string())?;
        Ok([tp, pp, dp])
    }

    #[test]
    fn faults_that_cannot_be_planted_are_refused() {
        let planted = |rank, factor| Planted { rank, factor, ..Planted::new(Fault::SlowGpu) };
        let refused = |rank, factor| check(&planted(rank, factor), 4).map_err(|e| e.to_string());
        assert_eq!(refused(Some(3), Some(0.5)), Ok(()));
        assert_eq!(refused(None, None), Ok(()));
        assert!(refused(Some(4), None).unwrap_err().contains("choose one below 4"));
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            let error = refused(None, Some(factor)).unwrap_err();
            assert!(error.contains("expected one above 0"), "{error}");
        }
    }

    #[test]
    fn sizes_that_are_given_leave_their_part_to_the_others() {
        assert_eq!(chosen(8, [0, 0, 0]), Ok([2, 2, 2]));
        assert_eq!(chosen(8, [0, 0, 8]), Ok([1, 1, 8]));
        assert_eq!(chosen(8, [0, 8, 0]), Ok([1, 8, 1]));
        assert_eq!(chosen(16, [0, 2, 4]), Ok([2, 2, 4]));
        assert_eq!(chosen(64, [0, 0, 16]), Ok([4, 1, 16]));
        assert_eq!(chosen(64, [0, 4, 0]), Ok([8, 4, 2]));
        assert_eq!(chosen(64, [8, 0, 0]), Ok([8, 2, 4]));
        for given in [[0, 0, 3], [0, 0, 16], [3, 0, 0], [0, 2, 8]] {
            let error = chosen(8, given).unwrap_err();
            assert!(error.contains("is not 8 ranks") && !error.contains(" 0 "), "{error}");
        }
    }
}
