// SPDX-License-Identifier: Apache-2.0
//! Scenarios: a rank runs [`Step`]s, one after the other, and checks the results.

mod behaviour;

use crate::cuda::{Cuda, Floats, Stream};
use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::nccl::Nccl;
use crate::step::Step;
use crate::team::{Team, check};
use std::time::{Duration, Instant};

/// The delay of a rank before each of its steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pause {
    /// The fixed part, in milliseconds.
    pub least_ms: u64,
    /// The largest random part, in milliseconds.
    pub jitter_ms: u64,
    /// The seed of the random part.
    pub seed: u64,
}

impl Pause {
    /// The pause before step number `step` of `rank`: the same in every run.
    #[must_use]
    pub fn before(&self, rank: usize, step: usize) -> Duration {
        // Steps of the SplitMix64 generator, which scatters neighbouring inputs.
        let mut z = self.seed;
        for part in [rank as u64, step as u64] {
            z = (z ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
        }
        Duration::from_millis(self.least_ms + z % (self.jitter_ms + 1))
    }
}

/// A rank and its resources.
#[derive(Debug)]
pub struct Rank<'a> {
    /// Its number in the job.
    pub rank: usize,
    /// The number of ranks in the job.
    pub nranks: usize,
    /// The runtime.
    pub cuda: &'a Cuda,
    /// The library.
    pub nccl: &'a Nccl,
    /// The stream of all calls.
    pub stream: &'a Stream<'a>,
    /// The meeting place of the ranks without NCCL.
    pub meeting: Meeting,
    /// Its communicators.
    pub teams: Vec<Team<'a>>,
    /// Its delay.
    pub pause: Pause,
    /// Steps begun so far.
    done: usize,
    /// Steps with data begun so far; all ranks count the same.
    step: usize,
    /// Buffers of operations without a wait.
    pending: Vec<(Floats<'a>, Floats<'a>)>,
}

impl<'a> Rank<'a> {
    /// Rank `rank` of `nranks`, without a communicator.
    #[must_use]
    pub fn new(
        (rank, nranks): (usize, usize),
        cuda: &'a Cuda,
        nccl: &'a Nccl,
        stream: &'a Stream<'a>,
        meeting: Meeting,
    ) -> Self {
        let (teams, pending, pause) = (vec![], vec![], Pause::default());
        let (done, step) = (0, 0);
        Self { rank, nranks, cuda, nccl, stream, meeting, teams, pause, done, step, pending }
    }

    /// Runs a step and calls `report` with it and its time, once for each repetition.
    ///
    /// # Errors
    /// As [`Failure`].
    pub fn run(
        &mut self,
        step: &Step,
        report: &mut dyn FnMut(&Step, Duration),
    ) -> Result<(), Failure> {
        if let Step::Repeat(times, step) = step {
            return (0..*times).try_for_each(|_| self.run(step, report));
        }
        self.done += 1;
        self.step += usize::from(step.has_data());
        std::thread::sleep(self.pause.before(self.rank, self.done));
        let time = match *step {
            Step::AllReduce(count) => self.all_reduce(self.team()?, count),
            Step::AllGather(count) => self.all_gather(self.team()?, count),
            Step::ReduceScatter(count) => self.reduce_scatter(self.team()?, count),
            Step::Broadcast(count) => self.broadcast(self.team()?, count),
            Step::Reduce(count) => self.reduce(self.team()?, count),
            Step::SendRecv(count) => self.send_recv(self.team()?, count),
            Step::Send(to, count) => self.send(self.team()?, to, count),
            Step::Recv(from, count) => self.recv(self.team()?, from, count),
            Step::AllToAll(count) => self.all_to_all(self.team()?, count),
            Step::NcclAllToAll(count) => self.nccl_all_to_all(self.team()?, count),
            Step::CopyEngine(count) => self.copy_engine(self.team()?, count),
            Step::Group(k, count) => self.group(self.team()?, k, count),
            Step::Broadcasts(k, count) => self.broadcasts(self.team()?, k, count),
            Step::Nested(count) => self.nested(self.team()?, count),
            Step::Comms(count) => self.comms(count),
            Step::Graph(k, count) => self.graph(self.team()?, k, count),
            Step::Split(count) => self.split(count),
            Step::Init => timed(|| self.init(true)),
            Step::InitNonblocking => timed(|| self.init(false)),
            Step::Destroy(index) => timed(|| self.destroy(index)),
            Step::Start(count) => self.start(count),
            Step::Alone(rank, _) if rank != self.rank => Ok(Duration::ZERO),
            Step::Alone(_, count) => self.all_reduce(self.team()?, count),
            Step::Unended(count) => self.unended(self.team()?, count),
            Step::Busy(ms) => timed(|| Ok(self.stream.occupy(ms)?)),
            Step::Abort => timed(|| self.abort()),
            Step::Skip => Ok(Duration::ZERO),
            Step::Sleep(ms) => timed(|| {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }),
            Step::Record(on) => timed(|| Ok(crate::control::record(on)?)),
            Step::Barrier => timed(|| Ok(self.meeting.barrier()?)),
            Step::Repeat(..) => unreachable!("handled above"),
        }?;
        report(step, time);
        Ok(())
    }

    /// The communicator of steps without a number.
    fn team(&self) -> Result<&Team<'a>, Failure> {
        self.teams.first().ok_or_else(|| Failure::Refused("there is no communicator".into()))
    }

    /// This rank's input of `count` floats on the device.
    fn filled(&self, team: &Team<'_>, count: usize) -> Result<Floats<'a>, Failure> {
        let floats = self.cuda.floats(count)?;
        floats.write(&team.values(count, self.step))?;
        Ok(floats)
    }

    /// Calls NCCL, waits for the stream and returns the time both took.
    fn timed(&self, call: impl FnOnce() -> Result<(), String>) -> Result<Duration, Failure> {
        timed(|| {
            call()?;
            self.teams.iter().try_for_each(|team| team.comm.settle())?;
            Ok(self.stream.synchronize()?)
        })
    }

    fn all_reduce(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count)?);
        let time = self.timed(|| team.comm.all_reduce(&send, &recv, count, self.stream))?;
        check(&recv, team.sum(self.step))?;
        Ok(time)
    }

    fn all_gather(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count * team.size())?);
        let time = self.timed(|| team.comm.all_gather(&send, &recv, count, self.stream))?;
        check(&recv, |i| team.input(i / count, i % count, self.step))?;
        Ok(time)
    }

    fn reduce_scatter(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(team, count * team.size())?, self.cuda.floats(count)?);
        let time = self.timed(|| team.comm.reduce_scatter(&send, &recv, count, self.stream))?;
        let sum = team.sum(self.step);
        check(&recv, |i| sum(team.rank * count + i))?;
        Ok(time)
    }

    fn broadcast(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let root = team.size() - 1;
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count)?);
        let from = number(root)?;
        let time = self.timed(|| team.comm.broadcast(&send, &recv, count, from, self.stream))?;
        check(&recv, |i| team.input(root, i, self.step))?;
        Ok(time)
    }

    fn reduce(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let root = team.size() - 1;
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count)?);
        let to = number(root)?;
        let time = self.timed(|| team.comm.reduce(&send, &recv, count, to, self.stream))?;
        if team.rank == root {
            check(&recv, team.sum(self.step))?;
        }
        Ok(time)
    }

    fn send_recv(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let next = (team.rank + 1) % team.size();
        let before = (team.rank + team.size() - 1) % team.size();
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count)?);
        let (to, from) = (number(next)?, number(before)?);
        let time = self.timed(|| {
            self.nccl.group(|| {
                team.comm.send(&send, count, to, self.stream)?;
                team.comm.recv(&recv, count, from, self.stream)
            })
        })?;
        check(&recv, |i| team.input(before, i, self.step))?;
        Ok(time)
    }

    fn send(&self, team: &Team<'_>, to: usize, count: usize) -> Result<Duration, Failure> {
        let (send, to) = (self.filled(team, count)?, number(to)?);
        self.timed(|| team.comm.send(&send, count, to, self.stream))
    }

    fn recv(&self, team: &Team<'_>, from: usize, count: usize) -> Result<Duration, Failure> {
        let (recv, rank) = (self.cuda.floats(count)?, number(from)?);
        let time = self.timed(|| team.comm.recv(&recv, count, rank, self.stream))?;
        check(&recv, |i| team.input(from, i, self.step))?;
        Ok(time)
    }

    fn copy_engine(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let send = team.comm.window(self.cuda, count)?;
        let recv = team.comm.window(self.cuda, count * team.size())?;
        send.floats.write(&team.values(count, self.step))?;
        let (from, to) = (&send.floats, &recv.floats);
        let time = self.timed(|| team.comm.all_gather(from, to, count, self.stream))?;
        check(&recv.floats, |i| team.input(i / count, i % count, self.step))?;
        send.free()?;
        recv.free()?;
        Ok(time)
    }

    fn group(&self, team: &Team<'_>, k: usize, count: usize) -> Result<Duration, Failure> {
        let buffers = (0..k)
            .map(|_| Ok((self.filled(team, count)?, self.cuda.floats(count)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        let time = self.timed(|| {
            self.nccl.group(|| {
                buffers.iter().try_for_each(|(s, r)| team.comm.all_reduce(s, r, count, self.stream))
            })
        })?;
        buffers.iter().try_for_each(|(_, recv)| check(recv, team.sum(self.step)))?;
        Ok(time)
    }

    fn graph(&self, team: &Team<'_>, k: usize, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.cuda.floats(count)?, self.cuda.floats(count)?);
        let graph = self.stream.capture(|| {
            team.comm.all_reduce(&send, &recv, count, self.stream)?;
            team.comm.settle()
        })?;
        let mut time = Duration::ZERO;
        for replay in 0..k {
            // Each replay has its own input, so that a replay that does nothing is detected.
            let step = self.step + replay + 1;
            send.write(&team.values(count, step))?;
            time += self.timed(|| graph.launch(self.stream))?;
            check(&recv, team.sum(step))?;
        }
        Ok(time)
    }
}

/// A rank as NCCL writes it.
fn number(rank: usize) -> Result<i32, Failure> {
    i32::try_from(rank).map_err(|e| Failure::Refused(e.to_string()))
}

fn timed(call: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_depends_on_the_seed_alone() {
        let pause = Pause { least_ms: 5, jitter_ms: 20, seed: 7 };
        let of = |pause: Pause| (0..50).map(|i| pause.before(1, i).as_millis()).collect::<Vec<_>>();
        assert_eq!(of(pause), of(pause));
        assert_ne!(of(pause), of(Pause { seed: 8, ..pause }));
        assert!(of(pause).iter().all(|ms| (5..=25).contains(ms)));
        assert_eq!(Pause::default().before(3, 9), Duration::ZERO);
    }
}
