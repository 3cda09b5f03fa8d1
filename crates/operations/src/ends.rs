// SPDX-License-Identifier: Apache-2.0
/*!
Whether the stop of a kernel is its end: the one place that says so.

NCCL stops a KernelCh when thread 0 of the block is through with its own part, and waits for no
other thread before (`ncclKernelMain` of `src/device/common.h`). Where other threads of the block do
what is left, the stop is only the least that the operation took:

| operation | what thread 0 does | its stop is |
| --- | --- | --- |
| RING, COLLNET_DIRECT, AllGather of NVLS, symmetric | everything, or what comes last | the end |
| TREE | reduces towards the root, and does not pass the sums down | early |
| NVLS, NVLS_TREE | copies its data to where the switch adds it up | early |
| COLLNET_CHAIN | reduces along the chain | early |
| PAT | belongs to one of several groups of workers | early |
| Send, Recv | the first send of all that share the block | early |

After an early stop an operation is over when its network part is, when its CUDA event came, or when
a later kernel of its communicator started, for these run one after another. Otherwise its end is
not known: [`Over::Unknown`].
*/

/// Whether an operation is over whose kernel's channels have all stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// It is.
    Yes,
    /// It is not, or what comes after it could run.
    No,
    /// Nothing shows.
    Unknown,
}

/// What is known of an operation whose kernel's channels have all stopped early.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Early {
    /// It used the network, and that part has stopped.
    pub network: bool,
    /// Whether the kernel has ended, by CUDA events, where they tell.
    pub event: Option<bool>,
    /// A later kernel of the communicator has started.
    pub followed: bool,
    /// A later operation of the communicator has been handed over, and its kernel has not started.
    pub awaited: bool,
}

impl Early {
    /// Whether it is over.
    pub fn over(self) -> Over {
        match self.event {
            Some(true) => Over::Yes,
            _ if self.network || self.followed => Over::Yes,
            Some(false) => Over::No,
            None if self.awaited => Over::No,
            None => Over::Unknown,
        }
    }
}

/// Whether the stop of a collective's kernel is its end, by NCCL's names of function and algorithm.
/// Where NCCL names no algorithm, it is taken for the end; a new one's is not. Not for sends and
/// receives, whose stop never is.
pub fn is_stop_end(func: &str, algo: &str, is_symmetric: bool) -> bool {
    match algo {
        _ if is_symmetric => true,
        "" | "unknown" | "RING" | "COLLNET_DIRECT" => true,
        "NVLS" => func == "AllGather",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_the_end_where_thread_0_is_the_last() {
        for algo in ["RING", "COLLNET_DIRECT", ""] {
            assert!(is_stop_end("AllReduce", algo, false), "{algo}");
        }
        for algo in ["TREE", "NVLS", "NVLS_TREE", "COLLNET_CHAIN", "PAT", "NEW"] {
            assert!(!is_stop_end("AllReduce", algo, false), "{algo}");
            assert!(is_stop_end("AllReduce", algo, true), "symmetric {algo}");
        }
        assert!(is_stop_end("AllGather", "NVLS", false));
        assert!(!is_stop_end("ReduceScatter", "NVLS", false));
    }

    #[test]
    fn after_an_early_stop_something_else_must_show_the_end() {
        let none = Early::default();
        assert_eq!(none.over(), Over::Unknown);
        assert_eq!(Early { network: true, ..none }.over(), Over::Yes);
        assert_eq!(Early { followed: true, awaited: true, ..none }.over(), Over::Yes);
        assert_eq!(Early { awaited: true, ..none }.over(), Over::No);
        assert_eq!(Early { event: Some(false), ..none }.over(), Over::No);
        assert_eq!(Early { event: Some(true), awaited: true, ..none }.over(), Over::Yes);
    }
}
