// SPDX-License-Identifier: Apache-2.0
//! The steps of a scenario and their text form.
//!
//! A step is written `NAME`, `NAME:NUMBER` or `NAME:NUMBERxNUMBER`; `repeat:K:STEP` runs a step K
//! times. All ranks of a job must run the same steps on the same communicators, unless a test is
//! about a rank that does not.

use std::fmt;
use std::str::FromStr;

/// One step. Counts are floats: of each rank for AllGather, for each rank for ReduceScatter. A rank
/// has a list of communicators, initially one; steps use the first one unless they say otherwise.
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
    /// `send:RxCOUNT`: to rank R, without a group.
    Send(usize, usize),
    /// `recv:RxCOUNT`: from rank R, without a group.
    Recv(usize, usize),
    /// `alltoall:COUNT`: COUNT from each to each other by send and recv in one group.
    AllToAll(usize),
    /// `nccl-alltoall:COUNT`: the same by `ncclAlltoAll` (from 2.28).
    NcclAllToAll(usize),
    /// `ce:COUNT`: AllGather between symmetric windows, which NCCL runs with copies instead of a
    /// kernel when `NCCL_CTA_POLICY=2` and the ranks share a host.
    CopyEngine(usize),
    /// `group:KxCOUNT`: K AllReduce in one group.
    Group(usize, usize),
    /// `bcasts:KxCOUNT`: K broadcasts in one group, from one rank after the other.
    Broadcasts(usize, usize),
    /// `nested:COUNT`: two AllReduce in groups within a group.
    Nested(usize),
    /// `comms:COUNT`: one group with an AllReduce on every communicator.
    Comms(usize),
    /// `graph:KxCOUNT`: an AllReduce captured once and launched K times.
    Graph(usize, usize),
    /// `split:COUNT`: splits off a communicator that shares resources, adds it to the list, and
    /// works on it, on its parent and on it again. From four ranks on, odd and even ranks are
    /// separated. Its ranks are in reverse order.
    Split(usize),
    /// `init`: adds a communicator of all ranks to the list.
    Init,
    /// `init-nonblocking`: adds a nonblocking communicator of all ranks.
    InitNonblocking,
    /// `destroy:I`: destroys communicator I of the list, the first being 0.
    Destroy(usize),
    /// `start:COUNT`: an AllReduce without a wait.
    Start(usize),
    /// `alone:RxCOUNT`: an AllReduce that only rank R enters.
    Alone(usize, usize),
    /// `unended:COUNT`: an AllReduce in a group that is not ended for 90 s.
    Unended(usize),
    /// `busy:MS`: other work on the stream for this many milliseconds.
    Busy(u64),
    /// `abort`: aborts all communicators.
    Abort,
    /// `skip`: nothing, in place of a step of the other ranks.
    Skip,
    /// `sleep:MS`: sleeps for this many milliseconds.
    Sleep(u64),
    /// `record:on` or `record:off`: the rank starts or stops its recording.
    Record(bool),
    /// `barrier`: ranks wait for each other without NCCL, through files.
    Barrier,
    /// `repeat:K:STEP`.
    Repeat(usize, Box<Self>),
}

impl Step {
    /// The text form of the step.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Init => "init".into(),
            Self::InitNonblocking => "init-nonblocking".into(),
            Self::Repeat(k, step) => format!("repeat:{k}:{}", step.text()),
            // The printed form has spaces in place of colons.
            other => other.to_string().replace(' ', ":"),
        }
    }

    /// Number of times that the step runs and is reported.
    #[must_use]
    pub fn repetitions(&self) -> usize {
        match self {
            Self::Repeat(times, step) => times * step.repetitions(),
            _ => 1,
        }
    }

    /// Whether the step needs a new set of inputs on all ranks. A rank may sleep more often than
    /// the others and still have the same inputs.
    #[must_use]
    pub fn has_data(&self) -> bool {
        !matches!(
            self,
            Self::Init
                | Self::InitNonblocking
                | Self::Destroy(_)
                | Self::Abort
                | Self::Sleep(_)
                | Self::Busy(_)
                | Self::Record(_)
                | Self::Barrier
        )
    }
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
        let Some((name, rest)) = text.split_once(':') else {
            return Ok(match text {
                "init" => Self::Init,
                "init-nonblocking" => Self::InitNonblocking,
                "abort" => Self::Abort,
                "skip" => Self::Skip,
                "barrier" => Self::Barrier,
                _ => return Err(bad()),
            });
        };
        Ok(match name {
            "allreduce" => Self::AllReduce(number(rest)?),
            "allgather" => Self::AllGather(number(rest)?),
            "reducescatter" => Self::ReduceScatter(number(rest)?),
            "broadcast" => Self::Broadcast(number(rest)?),
            "reduce" => Self::Reduce(number(rest)?),
            "sendrecv" => Self::SendRecv(number(rest)?),
            "send" => pair(rest).map(|(rank, count)| Self::Send(rank, count))?,
            "recv" => pair(rest).map(|(rank, count)| Self::Recv(rank, count))?,
            "alltoall" => Self::AllToAll(number(rest)?),
            "nccl-alltoall" => Self::NcclAllToAll(number(rest)?),
            "ce" => Self::CopyEngine(number(rest)?),
            "group" => pair(rest).map(|(k, count)| Self::Group(k, count))?,
            "bcasts" => pair(rest).map(|(k, count)| Self::Broadcasts(k, count))?,
            "nested" => Self::Nested(number(rest)?),
            "comms" => Self::Comms(number(rest)?),
            "graph" => pair(rest).map(|(k, count)| Self::Graph(k, count))?,
            "split" => Self::Split(number(rest)?),
            "destroy" => Self::Destroy(number(rest)?),
            "start" => Self::Start(number(rest)?),
            "alone" => pair(rest).map(|(rank, count)| Self::Alone(rank, count))?,
            "unended" => Self::Unended(number(rest)?),
            "busy" => Self::Busy(rest.parse().map_err(|_| bad())?),
            "record" if rest == "on" || rest == "off" => Self::Record(rest == "on"),
            "sleep" => Self::Sleep(rest.parse().map_err(|_| bad())?),
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
            Self::Send(rank, count) => write!(f, "send {rank}x{count}"),
            Self::Recv(rank, count) => write!(f, "recv {rank}x{count}"),
            Self::AllToAll(count) => write!(f, "alltoall {count}"),
            Self::NcclAllToAll(count) => write!(f, "nccl-alltoall {count}"),
            Self::CopyEngine(count) => write!(f, "ce {count}"),
            Self::Group(k, count) => write!(f, "group {k}x{count}"),
            Self::Broadcasts(k, count) => write!(f, "bcasts {k}x{count}"),
            Self::Nested(count) => write!(f, "nested {count}"),
            Self::Comms(count) => write!(f, "comms {count}"),
            Self::Graph(k, count) => write!(f, "graph {k}x{count}"),
            Self::Split(count) => write!(f, "split {count}"),
            Self::Init => write!(f, "init another"),
            Self::InitNonblocking => write!(f, "init nonblocking"),
            Self::Destroy(index) => write!(f, "destroy {index}"),
            Self::Start(count) => write!(f, "start {count}"),
            Self::Alone(rank, count) => write!(f, "alone {rank}x{count}"),
            Self::Unended(count) => write!(f, "unended {count}"),
            Self::Busy(ms) => write!(f, "busy {ms}"),
            Self::Abort => write!(f, "abort"),
            Self::Skip => write!(f, "skip"),
            Self::Sleep(ms) => write!(f, "sleep {ms}"),
            Self::Record(on) => write!(f, "record {}", if *on { "on" } else { "off" }),
            Self::Barrier => write!(f, "barrier"),
            Self::Repeat(k, step) => write!(f, "repeat {k} {step}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_parse() {
        assert_eq!("allreduce:1048576".parse(), Ok(Step::AllReduce(1_048_576)));
        assert_eq!("group:4x65536".parse(), Ok(Step::Group(4, 65_536)));
        assert_eq!("barrier".parse(), Ok(Step::Barrier));
        assert_eq!("destroy:1".parse(), Ok(Step::Destroy(1)));
        let repeated = Step::Repeat(3, Box::new(Step::Graph(2, 5)));
        assert_eq!("repeat:3:graph:2x5".parse(), Ok(repeated));
        assert_eq!("repeat:3:repeat:2:graph:2x5".parse().map(|s: Step| s.repetitions()), Ok(6));
        let bad = ["allreduce", "group:4", "barrier:1", "repeat:3", "dance:1", "sleep:x", "abort:"];
        for bad in bad {
            assert!(bad.parse::<Step>().is_err(), "{bad}");
        }
    }

    #[test]
    fn steps_are_written_as_they_are_read() {
        for text in ["init", "init-nonblocking", "repeat:3:graph:2x5", "bcasts:3x8", "send:1x8"] {
            assert_eq!(text.parse::<Step>().unwrap().text(), text);
        }
    }

    #[test]
    fn steps_print_as_in_a_report() {
        for (text, printed) in [("reduce:300001", "reduce 300001"), ("graph:3x8", "graph 3x8")] {
            assert_eq!(text.parse::<Step>().unwrap().to_string(), printed);
        }
    }
}
