// SPDX-License-Identifier: Apache-2.0
/*!
The rule that decides whether an operation is over, and whether the stop of a kernel is its end.

NCCL stops a KernelCh when thread 0 of the block has finished its own part, and does not wait for
the other threads (`ncclKernelMain` of `src/device/common.h`). If other threads of the block do the
rest, the time until the stop is only a lower bound of the operation's duration:

| operation | what thread 0 does | its stop is |
| --- | --- | --- |
| RING, COLLNET_DIRECT, AllGather of NVLS, symmetric | everything, or what comes last | the end |
| TREE | reduces towards the root, and does not pass the sums down | early |
| NVLS, NVLS_TREE | copies its data to where the switch adds it up | early |
| COLLNET_CHAIN | reduces along the chain | early |
| PAT | belongs to one of several groups of workers | early |
| Send, Recv | the first send of all that share the block | early |

After an early stop an operation is over when its network part is over, when its CUDA event has
arrived, or when a later kernel of its communicator or of its CUDA stream has started, because these
run one after another. Otherwise its end is unknown: [`Over::Unknown`]. [`Signs::over`] is the
complete rule.
*/

/// Whether the network may report that received data has arrived before it has: NCCL does not ask
/// for the completion of receives of LL and LL128, whose kernel polls for the data itself
/// (`src/transport/net.cc`, `ncclParamNetOptionalRecvCompletion`). NCCL's own networks still report
/// the actual completion; plugins such as aws-ofi-nccl do not. `protocol` is empty if NCCL does not
/// report it, as for sends and receives.
#[must_use]
pub fn arrives_early(has_net_plugin: bool, protocol: &str) -> bool {
    has_net_plugin && protocol != "SIMPLE"
}

/// Whether an operation is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The operation is over.
    Yes,
    /// The operation is not over: if it were, the operation after it could run.
    No,
    /// No record shows it.
    Unknown,
}

/// The state of a collective, send or receive.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Signs {
    /// Its own event stopped: NCCL has enqueued it.
    pub enqueued: bool,
    /// Number of children that have not stopped: ProxyOps that move data over the network, and
    /// kernel channels.
    pub open: usize,
    /// Channels on which its kernel was seen.
    pub kernels: usize,
    /// It used the network.
    pub network: bool,
    /// A part that NCCL should report is still missing: its kernel, channels of its kernel, or its
    /// network part.
    pub awaits: bool,
    /// The driver reports that its launch has not ended.
    pub runs: bool,
    /// Whether its launch has ended according to the CUDA events so far; `None` if unknown.
    pub event: Option<bool>,
    /// The stop of its kernel is not its end.
    pub stops_early: bool,
    /// A later kernel of the communicator, or of the CUDA stream, has started.
    pub followed: bool,
    /// A later operation of the communicator is enqueued, and its kernel has not started.
    pub awaited: bool,
    /// Another rank of this process has not entered it.
    pub absent: bool,
}

impl Signs {
    /// Whether the operation is over. Reports, metrics and the watchdog all use this rule.
    #[must_use]
    pub fn over(&self) -> Over {
        if !self.enqueued || self.runs || self.open > 0 || self.awaits {
            return Over::No;
        }
        if self.kernels == 0 && !self.network {
            return if self.event == Some(false) { Over::No } else { Over::Unknown };
        }
        if self.kernels > 0 && self.stops_early { self.after_early_stop() } else { Over::Yes }
    }

    fn after_early_stop(&self) -> Over {
        match self.event {
            Some(true) => Over::Yes,
            _ if self.network || self.followed => Over::Yes,
            Some(false) => Over::No,
            None if self.awaited || self.absent => Over::No,
            None => Over::Unknown,
        }
    }
}

/// Whether the stop of a collective's kernel is its end, by NCCL's names of function and algorithm.
/// True if NCCL names no algorithm, false for an unknown algorithm. Do not call it for symmetric
/// kernels, whose stop is always the end, or for sends and receives, whose stop never is.
#[must_use]
pub fn is_stop_end(func: &str, algo: &str) -> bool {
    match algo {
        "" | "unknown" | "RING" | "COLLNET_DIRECT" => true,
        "NVLS" => func == "AllGather",
        _ => false,
    }
}

/// Whether the first data that a rank sends is its own, so that the rank has arrived when its GPU
/// delivers that data. In other algorithms the rank may forward data of others.
#[must_use]
pub fn sends_own_first(func: &str, algo: &str) -> bool {
    func == "Send" || algo == "RING" && waits_for_all(func)
}

/// Whether no rank can end a collective before all ranks have arrived, because each needs data of
/// each.
#[must_use]
pub fn waits_for_all(func: &str) -> bool {
    matches!(func, "AllReduce" | "AllGather" | "ReduceScatter" | "AlltoAll" | "AllToAll")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_the_end_where_thread_0_is_the_last() {
        for algo in ["RING", "COLLNET_DIRECT", ""] {
            assert!(is_stop_end("AllReduce", algo), "{algo}");
        }
        for algo in ["TREE", "NVLS", "NVLS_TREE", "COLLNET_CHAIN", "PAT", "NEW"] {
            assert!(!is_stop_end("AllReduce", algo), "{algo}");
        }
        assert!(is_stop_end("AllGather", "NVLS"));
        assert!(!is_stop_end("ReduceScatter", "NVLS"));
    }

    #[test]
    fn a_ranks_first_send_in_a_ring_is_its_own() {
        assert!(sends_own_first("AllReduce", "RING") && sends_own_first("Send", ""));
        for (func, algo) in [("AllReduce", "TREE"), ("Broadcast", "RING"), ("Recv", "")] {
            assert!(!sends_own_first(func, algo), "{func} {algo}");
        }
        assert!(waits_for_all("ReduceScatter") && !waits_for_all("Reduce"));
    }

    #[test]
    fn after_an_early_stop_something_else_must_show_the_end() {
        let none = Signs { enqueued: true, kernels: 1, stops_early: true, ..Signs::default() };
        assert_eq!(none.over(), Over::Unknown);
        assert_eq!(Signs { network: true, ..none }.over(), Over::Yes);
        assert_eq!(Signs { followed: true, awaited: true, ..none }.over(), Over::Yes);
        assert_eq!(Signs { awaited: true, ..none }.over(), Over::No);
        assert_eq!(Signs { absent: true, ..none }.over(), Over::No);
        assert_eq!(Signs { event: Some(false), ..none }.over(), Over::No);
        assert_eq!(Signs { event: Some(true), awaited: true, ..none }.over(), Over::Yes);
        assert_eq!(Signs { stops_early: false, awaited: true, ..none }.over(), Over::Yes);
    }

    #[test]
    fn what_has_not_stopped_or_is_still_to_come_is_not_over() {
        let done = Signs { enqueued: true, kernels: 2, network: true, ..Signs::default() };
        assert_eq!(done.over(), Over::Yes);
        let open = [
            Signs { enqueued: false, ..done },
            Signs { open: 1, ..done },
            Signs { awaits: true, ..done },
            Signs { runs: true, ..done },
        ];
        assert!(open.iter().all(|signs| signs.over() == Over::No));
        let childless = Signs { enqueued: true, ..Signs::default() };
        assert_eq!(childless.over(), Over::Unknown);
        assert_eq!(Signs { event: Some(false), ..childless }.over(), Over::No);
    }
}
