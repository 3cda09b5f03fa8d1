// SPDX-License-Identifier: Apache-2.0
//! Scenarios: what a rank does, step by step, and what must come out.
//!
//! A step is written `NAME`, `NAME:NUMBER` or `NAME:NUMBERxNUMBER`; `repeat:K:STEP` does a step K
//! times. Every value is a small whole number that depends on rank, element and step, so sums are
//! exact in any order and a result left over from another step is wrong.

use crate::cuda::{Cuda, Floats, Stream};
use crate::nccl::Comm;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// One step. Counts are floats: of each rank for AllGather, for each rank for ReduceScatter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `allreduce:COUNT`.
    AllReduce(usize),
    /// `allgather:COUNT`.
    AllGather(usize),
    /// `reducescatter:COUNT`.
    ReduceScatter(usize),
    /// `broadcast:COUNT` from the last rank.
    Broadcast(usize),
    /// `reduce:COUNT` to the last rank.
    Reduce(usize),
    /// `sendrecv:COUNT`: to the next rank and from the one before, in one group.
    SendRecv(usize),
    /// `ce:COUNT`: AllGather between symmetric windows, which NCCL does with copies instead of a
    /// kernel when `NCCL_CTA_POLICY=2` and the ranks share a host.
    CopyEngine(usize),
    /// `group:KxCOUNT`: K AllReduce in one group.
    Group(usize, usize),
    /// `graph:KxCOUNT`: an AllReduce captured once and launched K times.
    Graph(usize, usize),
    /// `sleep:MS`: milliseconds of nothing.
    Sleep(u64),
    /// `barrier`: ranks wait for each other without NCCL, through files.
    Barrier,
    /// `repeat:K:STEP`.
    Repeat(usize, Box<Self>),
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("no such step: {text}");
        let number = |s: &str| s.parse::<usize>().map_err(|_| bad());
        let pair = |s: &str| -> Result<(usize, usize), String> {
            let (k, count) = s.split_once('x').ok_or_else(bad)?;
            Ok((number(k)?, number(count)?))
        };
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        Ok(match name {
            "allreduce" => Self::AllReduce(number(rest)?),
            "allgather" => Self::AllGather(number(rest)?),
            "reducescatter" => Self::ReduceScatter(number(rest)?),
            "broadcast" => Self::Broadcast(number(rest)?),
            "reduce" => Self::Reduce(number(rest)?),
            "sendrecv" => Self::SendRecv(number(rest)?),
            "ce" => Self::CopyEngine(number(rest)?),
            "group" => pair(rest).map(|(k, count)| Self::Group(k, count))?,
            "graph" => pair(rest).map(|(k, count)| Self::Graph(k, count))?,
            "sleep" => Self::Sleep(rest.parse().map_err(|_| bad())?),
            "barrier" if rest.is_empty() => Self::Barrier,
            "repeat" => {
                let (k, step) = rest.split_once(':').ok_or_else(bad)?;
                Self::Repeat(number(k)?, Box::new(step.parse()?))
            }
            _ => return Err(bad()),
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce(count) => write!(f, "allreduce {count}"),
            Self::AllGather(count) => write!(f, "allgather {count}"),
            Self::ReduceScatter(count) => write!(f, "reducescatter {count}"),
            Self::Broadcast(count) => write!(f, "broadcast {count}"),
            Self::Reduce(count) => write!(f, "reduce {count}"),
            Self::SendRecv(count) => write!(f, "sendrecv {count}"),
            Self::CopyEngine(count) => write!(f, "ce {count}"),
            Self::Group(k, count) => write!(f, "group {k}x{count}"),
            Self::Graph(k, count) => write!(f, "graph {k}x{count}"),
            Self::Sleep(ms) => write!(f, "sleep {ms}"),
            Self::Barrier => write!(f, "barrier"),
            Self::Repeat(k, step) => write!(f, "repeat {k} {step}"),
        }
    }
}

/// Why a rank stops.
#[derive(Debug)]
pub enum Failure {
    /// A result is wrong.
    Wrong(String),
    /// CUDA, NCCL or the system refused.
    Refused(String),
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}

/// Who does the steps, and with what.
#[derive(Debug)]
pub struct Rank<'a> {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub nranks: usize,
    /// The runtime.
    pub cuda: &'a Cuda,
    /// The communicator.
    pub comm: &'a Comm<'a>,
    /// The stream of all calls.
    pub stream: &'a Stream<'a>,
    /// Barrier files are beside this file.
    pub id_file: PathBuf,
    /// Steps begun so far, which every rank counts alike.
    pub steps: usize,
}

/// The input of `rank` at `element` in a step.
fn input(rank: usize, element: usize, step: usize) -> f32 {
    small(element % 97 + rank * 3 + step % 11)
}

/// A small whole number as a float, exactly.
fn small(value: usize) -> f32 {
    f32::from(u16::try_from(value).unwrap_or(u16::MAX))
}

impl Rank<'_> {
    /// Does a step and calls `report` with it and its time, once for each repetition.
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
        self.steps += 1;
        let time = match *step {
            Step::AllReduce(count) => self.all_reduce(count),
            Step::AllGather(count) => self.all_gather(count),
            Step::ReduceScatter(count) => self.reduce_scatter(count),
            Step::Broadcast(count) => self.broadcast(count),
            Step::Reduce(count) => self.reduce(count),
            Step::SendRecv(count) => self.send_recv(count),
            Step::CopyEngine(count) => self.copy_engine(count),
            Step::Group(k, count) => self.group(k, count),
            Step::Graph(k, count) => self.graph(k, count),
            Step::Sleep(ms) => timed(|| {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }),
            Step::Barrier => timed(|| self.barrier()),
            Step::Repeat(..) => unreachable!("handled above"),
        }?;
        report(step, time);
        Ok(())
    }

    /// This rank's input of `count` floats on the device.
    fn filled(&self, count: usize) -> Result<Floats<'_>, Failure> {
        let floats = self.cuda.floats(count)?;
        floats.write(&self.values(count))?;
        Ok(floats)
    }

    /// This rank's input.
    fn values(&self, count: usize) -> Vec<f32> {
        (0..count).map(|i| input(self.rank, i, self.steps)).collect()
    }

    /// The sum over all ranks at `element`.
    fn sum(&self, element: usize) -> f32 {
        (0..self.nranks).map(|rank| input(rank, element, self.steps)).sum()
    }

    /// Calls NCCL, waits for the stream and returns the time both took.
    fn timed(&self, call: impl FnOnce() -> Result<(), String>) -> Result<Duration, Failure> {
        timed(|| {
            call()?;
            Ok(self.stream.synchronize()?)
        })
    }

    fn all_reduce(&self, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(count)?, self.cuda.floats(count)?);
        let time = self.timed(|| self.comm.all_reduce(&send, &recv, count, self.stream))?;
        check(&recv, |i| self.sum(i))?;
        Ok(time)
    }

    fn all_gather(&self, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(count)?, self.cuda.floats(count * self.nranks)?);
        let time = self.timed(|| self.comm.all_gather(&send, &recv, count, self.stream))?;
        check(&recv, |i| input(i / count, i % count, self.steps))?;
        Ok(time)
    }

    fn reduce_scatter(&self, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.filled(count * self.nranks)?, self.cuda.floats(count)?);
        let time = self.timed(|| self.comm.reduce_scatter(&send, &recv, count, self.stream))?;
        check(&recv, |i| self.sum(self.rank * count + i))?;
        Ok(time)
    }

    fn broadcast(&self, count: usize) -> Result<Duration, Failure> {
        let root = self.nranks - 1;
        let (send, recv) = (self.filled(count)?, self.cuda.floats(count)?);
        let to = number(root)?;
        let time = self.timed(|| self.comm.broadcast(&send, &recv, count, to, self.stream))?;
        check(&recv, |i| input(root, i, self.steps))?;
        Ok(time)
    }

    fn reduce(&self, count: usize) -> Result<Duration, Failure> {
        let root = self.nranks - 1;
        let (send, recv) = (self.filled(count)?, self.cuda.floats(count)?);
        let to = number(root)?;
        let time = self.timed(|| self.comm.reduce(&send, &recv, count, to, self.stream))?;
        if self.rank == root {
            check(&recv, |i| self.sum(i))?;
        }
        Ok(time)
    }

    fn send_recv(&self, count: usize) -> Result<Duration, Failure> {
        let next = (self.rank + 1) % self.nranks;
        let before = (self.rank + self.nranks - 1) % self.nranks;
        let (send, recv) = (self.filled(count)?, self.cuda.floats(count)?);
        let (to, from) = (number(next)?, number(before)?);
        let time = self.timed(|| {
            self.comm.nccl.group(|| {
                self.comm.send(&send, count, to, self.stream)?;
                self.comm.recv(&recv, count, from, self.stream)
            })
        })?;
        check(&recv, |i| input(before, i, self.steps))?;
        Ok(time)
    }

    fn copy_engine(&self, count: usize) -> Result<Duration, Failure> {
        let send = self.comm.window(self.cuda, count)?;
        let recv = self.comm.window(self.cuda, count * self.nranks)?;
        send.floats.write(&self.values(count))?;
        let (from, to) = (&send.floats, &recv.floats);
        let time = self.timed(|| self.comm.all_gather(from, to, count, self.stream))?;
        check(&recv.floats, |i| input(i / count, i % count, self.steps))?;
        send.free()?;
        recv.free()?;
        Ok(time)
    }

    fn group(&self, k: usize, count: usize) -> Result<Duration, Failure> {
        let buffers = (0..k)
            .map(|_| Ok((self.filled(count)?, self.cuda.floats(count)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        let time = self.timed(|| {
            self.comm.nccl.group(|| {
                buffers.iter().try_for_each(|(s, r)| self.comm.all_reduce(s, r, count, self.stream))
            })
        })?;
        buffers.iter().try_for_each(|(_, recv)| check(recv, |i| self.sum(i)))?;
        Ok(time)
    }

    fn graph(&self, k: usize, count: usize) -> Result<Duration, Failure> {
        let (send, recv) = (self.cuda.floats(count)?, self.cuda.floats(count)?);
        let graph =
            self.stream.capture(|| self.comm.all_reduce(&send, &recv, count, self.stream))?;
        let mut time = Duration::ZERO;
        for replay in 0..k {
            // Each replay has its own input, so that a replay that does nothing is found out.
            let value = |rank, i| input(rank, i, self.steps + replay + 1);
            send.write(&(0..count).map(|i| value(self.rank, i)).collect::<Vec<_>>())?;
            time += self.timed(|| graph.launch(self.stream))?;
            check(&recv, |i| (0..self.nranks).map(|rank| value(rank, i)).sum())?;
        }
        Ok(time)
    }

    /// Leaves a file and waits for everybody's.
    fn barrier(&self) -> Result<(), Failure> {
        let file = |rank: usize| {
            let mut name = self.id_file.clone().into_os_string();
            name.push(format!(".barrier{}.{rank}", self.steps));
            PathBuf::from(name)
        };
        std::fs::write(file(self.rank), []).map_err(|e| e.to_string())?;
        for rank in 0..self.nranks {
            while !file(rank).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
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

/// Compares every element with what it must be.
fn check(floats: &Floats<'_>, expected: impl Fn(usize) -> f32) -> Result<(), Failure> {
    let wrong = |(i, &got): (usize, &f32)| {
        let want = expected(i);
        (got.to_bits() != want.to_bits())
            .then(|| Failure::Wrong(format!("element {i} is {got}, not {want}")))
    };
    floats.read()?.iter().enumerate().find_map(wrong).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_parse() {
        assert_eq!("allreduce:1048576".parse(), Ok(Step::AllReduce(1_048_576)));
        assert_eq!("group:4x65536".parse(), Ok(Step::Group(4, 65_536)));
        assert_eq!("barrier".parse(), Ok(Step::Barrier));
        let repeated = Step::Repeat(3, Box::new(Step::Graph(2, 5)));
        assert_eq!("repeat:3:graph:2x5".parse(), Ok(repeated));
        for bad in ["allreduce", "group:4", "barrier:1", "repeat:3", "dance:1", "sleep:x"] {
            assert!(bad.parse::<Step>().is_err(), "{bad}");
        }
    }

    #[test]
    fn steps_print_as_in_a_report() {
        for (text, printed) in [("reduce:300001", "reduce 300001"), ("graph:3x8", "graph 3x8")] {
            assert_eq!(text.parse::<Step>().unwrap().to_string(), printed);
        }
    }
}
