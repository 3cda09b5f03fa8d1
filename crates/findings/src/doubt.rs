// SPDX-License-Identifier: Apache-2.0
//! Reasons why a finding may be wrong: one table, with what each says, and whether it makes the
//! finding a suspicion. No other code reads the texts.

use crate::class::{Confidence, FindingClass};
use crate::faults::KnownFault;
use crate::ranks::{RANGES, ranks};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;

/// A finding with the doubt is only suspected.
const LOWERS: bool = true;
/// The doubt is a remark: the evidence holds all the same.
const REMARK: bool = false;

/// Defines [`Doubt`] from a table: variant, name in JSON, whether it lowers a finding, and text,
/// which answers "what else may it be?".
macro_rules! doubts {
    (
        fixed { $($fixed:ident $json:literal $lowers:ident $text:literal;)+ }
        facts { $(
            $(#[$doc:meta])+
            $of:ident($($fact:ident: $type:ty),+) $of_json:literal $of_lowers:ident $of_text:expr;
        )+ }
    ) => {
        /// A reason why a finding may be wrong, with the fact that causes it.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Doubt {
            $(#[doc = $text] $fixed,)+
            $($(#[$doc])+ $of($($type),+),)+
        }

        impl Doubt {
            /// Its name in JSON; several that differ only in words have one.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Doubt::$fixed => $json,)+
                    $(Doubt::$of(..) => $of_json,)+
                }
            }

            /// Whether a finding with this doubt is only suspected; else the doubt is a remark.
            #[must_use]
            pub const fn lowers(&self) -> bool {
                match self {
                    $(Doubt::$fixed => $lowers,)+
                    $(Doubt::$of(..) => $of_lowers,)+
                }
            }

            /// It in words, as an answer to "what else may it be?".
            #[must_use]
            pub fn text(&self) -> String {
                match self {
                    $(Doubt::$fixed => $text.to_owned(),)+
                    $(Doubt::$of($($fact),+) => $of_text,)+
                }
            }
        }
    };
}

doubts! {
    fixed {
        // What the input does not show.
        PeerNotRecorded "peer-not-recorded" LOWERS
            "some ranks that it communicates with were not recorded: it may have waited for one \
             of them";
        NotRecorded "not-recorded" LOWERS "there is no input that shows what it called";
        ProcessUnknown "process-unknown" LOWERS
            "the table of vectors identifies neither its job nor its process: ranks of two jobs \
             would be one here";
        InCall "in-call" LOWERS
            "it is in a call of NCCL, which may connect it to other ranks there: a table of \
             vectors does not tell to which, and what those do";
        OneOutput "one-output" LOWERS "one output of RAS does not show whether ranks advance";
        NotBefore "not-before" LOWERS "the earlier output of RAS does not have this rank";
        EndsNotShown "ends-not-shown" LOWERS
            "it waits for the end of the last operation that it launched, which another rank \
             holds up: RAS does not show ends";
        EndedBefore "ended-before" LOWERS
            "a process that ended in order, a minute or more before others did: RAS takes it \
             for dead";
        ObserverCutOff "observer-cut-off" LOWERS
            "the process that printed the events was itself stopped or cut off, and takes the \
             other processes for dead: ask RAS on another host (`ncclras -f json`)";
        MatchedByTime "matched-by-time" LOWERS
            "which kernels are one collective follows from their order and times alone";
        CallNotShown "call-not-shown" LOWERS
            "its peers called something else (H2), or its kernel has not started on all \
             channels (H3b): diagnose recordings of these ranks, which show both";
        TransfersNotShown "transfers-not-shown" LOWERS "its transfers are not in the input";
        // What the job was doing.
        CallsMayBeOver "calls-may-be-over" LOWERS
            "NCCL reports no end of what the other ranks have called: it may be over there, or \
             they alone were to call it";
        MayBeOver "may-be-over" LOWERS
            "its kernel has stopped on all channels, which need not be its end: the operation \
             may be complete, and other work on the stream may be delaying the next kernel \
             (H3a)";
        SomeMayBeOver "some-may-be-over" REMARK
            "one of them may be over: the stop of its kernel on all channels need not be its \
             end (H3a)";
        StoppedButDead "stopped-but-dead" LOWERS
            "the stop of a kernel on all channels need not be its end: its GPU may not have \
             finished it (H3c)";
        StillCalls "still-calls" LOWERS "it is late, not stuck: it still calls NCCL";
        InSequence "in-sequence" LOWERS
            "it waits in a send or receive, whose other side's progress the input does not \
             show";
        Computes "computes" REMARK "it computes, or waits for something outside NCCL";
        ConnectsUnseen "connects-unseen" REMARK
            "it connects in a call of NCCL, which reports no calls before 2.28";
        StuckBefore "stuck-before" REMARK
            "it is stuck outside NCCL before its side of the transfer";
        NotMembers "not-members" LOWERS
            "they are not members, and the other ranks wait for one another";
        EndsAlike "ends-alike" LOWERS "the end of another process came first: times do not show it";
        ExitUnseen "exit-unseen" LOWERS "it called `_exit(0)`: a recording shows no such end";
        ByDesign "by-design" LOWERS
            "all calls were made, only in different orders: harmless on streams that do not \
             depend on one another";
        OtherPrograms "other-programs" LOWERS
            "the ranks that it is compared with do something else in a step, as other stages of a \
             pipeline do: it may be meant to work longer";
        OneSideFinished "one-side-finished" LOWERS
            "one of them has finished a send or receive that the GPU or the network of the \
             other does not end: the input does not show it";
        CannotConnect "cannot-connect" LOWERS
            "the path between them: NCCL cannot connect them, because of an interface \
             (NCCL_SOCKET_IFNAME) or a firewall";
        // What else explains it.
        NoneStarted "none-started" LOWERS
            "no member's kernel has started: their GPUs may be busy with other work, while \
             their hosts are ahead";
        NeverStarted "never-started" REMARK
            "an NCCL kernel never started there, and its peers did not need it";
        ReportedEarly "reported-early" LOWERS
            "the data may be there, and the receiver's GPU does not take it: with LL and LL128 \
             a network plugin may report data before it came";
        GpuMayBeDead "gpu-may-be-dead" LOWERS
            "its GPU is dead (H3c): the input does not show how much its peer had given when it \
             was last heard from";
        KernelOrTransfer "by-elimination" LOWERS
            "a kernel that did not start, or a transfer: the input shows neither";
        UnseenNetwork "by-elimination" LOWERS
            "the network between them (N3): look at their links and NICs, and diagnose \
             recordings of these ranks, which show network transfers";
        UnprovenNetwork "by-elimination" LOWERS
            "the network between them (N3): their transfers wait for one another, and not all \
             of both ends is known for long enough";
        OneDevice "by-elimination" LOWERS
            "the GPU of one of them is dead (H3c), and the other ranks wait for its data";
        FewSamples "few-samples" LOWERS "there are too few samples to be sure";
        FewPeers "few-peers" LOWERS
            "there are too few links or ranks like it to know what is usual";
        MembersAlike "members-alike" LOWERS
            "either of the two: each has no other peer to compare with";
        GpuAtOneEnd "gpu-at-one-end" LOWERS
            "its transfers are on the network no longer than others: a GPU that fills or frees \
             its buffers slowly explains it, too";
    }
    facts {
        /// The input of a rank is damaged: what is wrong; `None` if tables of vectors are damaged.
        RankDamaged(rank: u32, what: Option<String>) "rank-damaged" LOWERS
            damaged(*rank, what.as_deref());
        /// Whether the last operations of a rank ended is lost.
        EndLost(rank: u32) "end-lost" LOWERS
            format!("the recording of rank {rank} ends early, and its end may be lost");
        /// Events of these ranks are missing.
        EventsLost(of: Vec<u32>) "events-lost" LOWERS
            format!(
                "events of {} are missing (lost, left out or not recorded), and may show another \
                 cause",
                ranks(of)
            );
        /// There is no trace of these ranks, of so many in all.
        TracesMissing(of: Vec<(u32, u32)>, all: u64) "traces-missing" LOWERS
            traces_missing(of, *all);
        /// The calls of these ranks are not known.
        CallsUnknown(of: Vec<u32>) "calls-unknown" LOWERS
            format!(
                "the other ranks are wrong, if {} made the same call as the named ranks: what was \
                 called there is not known",
                ranks(of)
            );
        /// So many more recordings are as doubtful as those that are named.
        MoreRanks(more: usize) "more-ranks" LOWERS
            format!("{} as doubtful", human::are(*more, "more recording"));
        /// Its recording stops so many ns before others; whether others had waited for it before.
        SilentSince(rank: u32, ns: u64, is_awaited: bool) "silent-since" LOWERS
            silent_since(*rank, *ns, *is_awaited);
        /// Two outputs of NCCL's RAS are only so many ns apart.
        ShortlyApart(ns: u64) "shortly-apart" LOWERS
            format!(
                "the two outputs of RAS are {} apart: a rank may be busy for longer (--hang-sec)",
                duration(*ns)
            );
        /// Communication beside NCCL is not judged.
        BesideNccl(what: String) "beside-nccl" LOWERS
            format!("communication beside NCCL is not judged, and may be why: {what}");
        /// The ranks waited for less than so many ns until they were killed, perhaps for these.
        KilledSoon(first: Vec<u32>, ns: u64) "killed-soon" LOWERS killed_soon(first, *ns);
        /// It may be another one of these ranks.
        OneOf(of: Vec<u32>) "one-of" LOWERS format!("another of {}", ranks(of));
        /// Another class explains it, too.
        OtherCause(class: FindingClass) "other-cause" LOWERS other_cause(*class);
        /// A slow link ends there: sender and receiver.
        SlowLinkThere(ends: [u32; 2]) "slow-link-there" LOWERS
            format!("the slow link from rank {} to rank {} may be why", ends[0], ends[1]);
        /// The last data did not reach it, on the way between these ranks of one host.
        PathNotSeen(of: Vec<u32>) "path-not-seen" LOWERS path_not_seen(of);
        /// The proxy thread of this rank was not looked at.
        ProxyNotSeen(rank: u32) "proxy-not-seen" LOWERS
            format!(
                "the proxy thread of rank {rank} does not take it (P1): no look at it is recorded"
            );
        /// A known fault of the job's release of NCCL looks like it.
        KnownFault(fault: &'static KnownFault, release: String) "known-fault" REMARK
            fault.sentence(release);
        /// These ranks share a GPU, by its name.
        SharedGpu(of: Vec<u32>, gpu: String) "shared-gpu" LOWERS
            format!(
                "{} share one GPU ({gpu}): their kernels take turns, which may be why",
                ranks(of)
            );
        /// The machine of this rank is busy: it was ready, and did not run for this share of time.
        BusyMachine(rank: u32, share: f64) "busy-machine" LOWERS
            format!(
                "rank {rank} was ready and did not run for {:.0} % of the time: its machine is \
                 busy, which may be why",
                100.0 * share
            );
    }
}

impl Doubt {
    /// The ranks of the fact that causes it; empty if it is about none in particular.
    #[must_use]
    pub fn ranks(&self) -> Vec<u32> {
        match self {
            Doubt::RankDamaged(rank, _)
            | Doubt::EndLost(rank)
            | Doubt::SilentSince(rank, ..)
            | Doubt::ProxyNotSeen(rank)
            | Doubt::BusyMachine(rank, _) => vec![*rank],
            Doubt::EventsLost(ranks)
            | Doubt::CallsUnknown(ranks)
            | Doubt::KilledSoon(ranks, _)
            | Doubt::OneOf(ranks)
            | Doubt::PathNotSeen(ranks)
            | Doubt::SharedGpu(ranks, _) => ranks.clone(),
            Doubt::SlowLinkThere(ends) => ends.to_vec(),
            _ => Vec::new(),
        }
    }

    /// The measured value of the fact, by a name that ends in the unit.
    pub(crate) fn figure(&self) -> Option<(&'static str, f64)> {
        Some(match self {
            Doubt::SilentSince(_, ns, _) => ("silent_ns", to_f64(*ns)),
            Doubt::ShortlyApart(ns) => ("apart_ns", to_f64(*ns)),
            Doubt::KilledSoon(_, ns) => ("wait_ns_min", to_f64(*ns)),
            Doubt::MoreRanks(count) => ("recordings", to_f64(*count as u64)),
            Doubt::BusyMachine(_, share) => ("delayed_share", *share),
            _ => return None,
        })
    }
}

/// The confidence of a finding with these doubts.
#[must_use]
pub fn confidence(doubts: &[Doubt]) -> Confidence {
    match doubts.iter().any(Doubt::lowers) {
        true => Confidence::Suspect,
        false => Confidence::Confirmed,
    }
}

fn duration(ns: u64) -> String {
    human::duration(to_f64(ns))
}

fn damaged(rank: u32, what: Option<&str>) -> String {
    match what {
        Some(what) => format!(
            "the recording of rank {rank} is damaged, and what it lacks is not known: {what}"
        ),
        None => {
            format!("tables of vectors are damaged, and what they lack of rank {rank} is not known")
        }
    }
}

fn traces_missing(of: &[(u32, u32)], all: u64) -> String {
    let count: u64 = of.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
    let named = human::list_of_ranges(of, RANGES);
    let noun = human::if_one(count, "rank", "ranks");
    format!("{noun} {named} may be the cause: no trace of {count} of {all} ranks")
}

fn silent_since(rank: u32, ns: u64, is_awaited: bool) -> String {
    let why = match is_awaited {
        true => "other hosts waited for it while it was still recorded",
        false => "no other recording of its host goes on longer",
    };
    format!(
        "the recording of rank {rank} was read or copied {} before others, or clocks disagree: \
         {why}",
        duration(ns)
    )
}

fn killed_soon(first: &[u32], ns: u64) -> String {
    let what = match first {
        [] => "another rank died, and the other ranks then waited for it".to_owned(),
        first => format!(
            "{} ended first, and the other ranks then waited for {}",
            ranks(first),
            human::if_one(first.len(), "it", "them")
        ),
    };
    let least = duration(ns);
    format!(
        "{what} until they were killed: a wait of less than {least} does not show which is the \
         cause"
    )
}

fn other_cause(class: FindingClass) -> String {
    match class {
        FindingClass::P2pMismatch => "the sends and receives of the ranks that wait do not match \
                                      (H2b): NCCL does not tell which rank a call connects to"
            .into(),
        class => format!("it {} ({})", class.predicate(true), class.code()),
    }
}

fn path_not_seen(of: &[u32]) -> String {
    let between = match of {
        [] => String::new(),
        of => format!(" between {} (H3d)", ranks(of)),
    };
    format!("the last data did not reach it: NVLink, shared memory or a device fault{between}")
}
