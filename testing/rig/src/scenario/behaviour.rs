// SPDX-License-Identifier: Apache-2.0
//! Steps beyond single collectives: creation and destruction of communicators, and groups of many
//! calls.

use super::{Rank, number, timed};
use crate::failure::Failure;
use crate::team::{Team, check};
use std::time::Duration;

/// How long a group stays open.
const UNENDED: Duration = Duration::from_secs(90);

impl Rank<'_> {
    /// Adds a communicator of all ranks.
    ///
    /// # Errors
    /// The ranks do not meet, or NCCL returns an error.
    pub fn init(&mut self, blocking: bool) -> Result<(), Failure> {
        let id = self.meeting.unique_id(self.nccl)?;
        let (rank, nranks) = (number(self.rank)?, number(self.nranks)?);
        let comm = self.nccl.init_rank(id, rank, nranks, blocking)?;
        self.teams.push(Team { comm, members: (0..self.nranks).collect(), rank: self.rank });
        Ok(())
    }

    /// Destroys communicator `index` of the list.
    ///
    /// # Errors
    /// There is none, or NCCL returns an error.
    pub fn destroy(&mut self, index: usize) -> Result<(), Failure> {
        if index >= self.teams.len() {
            return Err(Failure::Refused(format!("there is no communicator {index}")));
        }
        Ok(self.teams.remove(index).comm.destroy()?)
    }

    pub(super) fn split(&mut self, count: usize) -> Result<Duration, Failure> {
        let parent = self.team()?;
        let colors = if parent.size() < 4 { 1 } else { 2 };
        let color = parent.rank % colors;
        let ranks = (0..parent.size()).rev().filter(|rank| rank % colors == color);
        let members: Vec<_> = ranks.map(|rank| parent.members[rank]).collect();
        let rank = members.iter().position(|&member| member == self.rank);
        let rank = rank.ok_or_else(|| Failure::Refused("not in its own split".to_owned()))?;
        let key = number(parent.size() - 1 - parent.rank)?;
        let comm = parent.comm.split(number(color)?, key, true)?;
        self.teams.push(Team { comm, members, rank });
        let (parent, child) = (self.team()?, &self.teams[self.teams.len() - 1]);
        let gather = self.all_gather(child, count)?;
        let of_parent = self.all_reduce(parent, count)?;
        Ok(gather + of_parent + self.all_reduce(child, count)?)
    }

    pub(super) fn comms(&self, count: usize) -> Result<Duration, Failure> {
        let buffers = self.teams.iter();
        let buffers = buffers
            .map(|team| Ok((team, self.filled(team, count)?, self.cuda.floats(count)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        let time = self.timed(|| {
            self.nccl.group(|| {
                buffers.iter().try_for_each(|(team, send, recv)| {
                    team.comm.all_reduce(send, recv, count, self.stream)
                })
            })
        })?;
        buffers.iter().try_for_each(|(team, _, recv)| check(recv, team.sum(self.step)))?;
        Ok(time)
    }

    /// `k` broadcasts in one group, each with its own input, so that a swap is detected.
    pub(super) fn broadcasts(
        &self,
        team: &Team<'_>,
        k: usize,
        count: usize,
    ) -> Result<Duration, Failure> {
        let buffers = (0..k)
            .map(|i| {
                let send = self.cuda.floats(count)?;
                send.write(&team.values(count, self.step + i))?;
                Ok((i % team.size(), send, self.cuda.floats(count)?))
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        let call = |(root, send, recv): &(usize, _, _)| {
            let from = i32::try_from(*root).map_err(|e| e.to_string())?;
            team.comm.broadcast(send, recv, count, from, self.stream)
        };
        let time = self.timed(|| self.nccl.group(|| buffers.iter().try_for_each(call)))?;
        buffers.iter().enumerate().try_for_each(|(i, (root, _, recv))| {
            check(recv, |element| team.input(*root, element, self.step + i))
        })?;
        Ok(time)
    }

    pub(super) fn nested(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let buffers = || Ok::<_, Failure>((self.filled(team, count)?, self.cuda.floats(count)?));
        let (first, second) = (buffers()?, buffers()?);
        let (nccl, stream) = (self.nccl, self.stream);
        let time = self.timed(|| {
            nccl.group(|| {
                nccl.group(|| team.comm.all_reduce(&first.0, &first.1, count, stream))?;
                nccl.group(|| {
                    nccl.group(|| team.comm.all_reduce(&second.0, &second.1, count, stream))
                })
            })
        })?;
        [first, second].iter().try_for_each(|(_, recv)| check(recv, team.sum(self.step)))?;
        Ok(time)
    }

    pub(super) fn all_to_all(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        // Each peer gets its own part, so that a swap of peers is detected.
        let values = team.values(count * team.size(), self.step);
        let buffers = (0..team.size())
            .map(|peer| {
                let send = self.cuda.floats(count)?;
                send.write(&values[peer * count..][..count])?;
                Ok((number(peer)?, send, self.cuda.floats(count)?))
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        let time = self.timed(|| {
            self.nccl.group(|| {
                buffers.iter().try_for_each(|(peer, send, recv)| {
                    team.comm.send(send, count, *peer, self.stream)?;
                    team.comm.recv(recv, count, *peer, self.stream)
                })
            })
        })?;
        let part = team.rank * count;
        buffers.iter().enumerate().try_for_each(|(peer, (_, _, recv))| {
            check(recv, |i| team.input(peer, part + i, self.step))
        })?;
        Ok(time)
    }

    pub(super) fn nccl_all_to_all(
        &self,
        team: &Team<'_>,
        count: usize,
    ) -> Result<Duration, Failure> {
        let size = count * team.size();
        let (send, recv) = (self.filled(team, size)?, self.cuda.floats(size)?);
        let time = self.timed(|| team.comm.all_to_all(&send, &recv, count, self.stream))?;
        let part = team.rank * count;
        check(&recv, |i| team.input(i / count, part + i % count, self.step))?;
        Ok(time)
    }

    pub(super) fn start(&mut self, count: usize) -> Result<Duration, Failure> {
        let team = self.team()?;
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count)?);
        let time = timed(|| {
            team.comm.all_reduce(&send, &recv, count, self.stream)?;
            Ok(team.comm.settle()?)
        })?;
        self.pending.push((send, recv));
        Ok(time)
    }

    pub(super) fn unended(&self, team: &Team<'_>, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(team, count)?, self.cuda.floats(count)?);
        self.timed(|| {
            self.nccl.group(|| {
                team.comm.all_reduce(&send, &recv, count, self.stream)?;
                std::thread::sleep(UNENDED);
                Ok(())
            })
        })
    }

    pub(super) fn abort(&mut self) -> Result<(), Failure> {
        self.teams.drain(..).try_for_each(|team| team.comm.abort())?;
        // The buffers of unfinished operations are no longer in use.
        self.pending.clear();
        Ok(())
    }
}
