// SPDX-License-Identifier: Apache-2.0
//! NCCL's functions by their names: what a kernel does, and which functions have a root.

/// The function of an NCCL kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// AllReduce.
    AllReduce,
    /// AllGather.
    AllGather,
    /// ReduceScatter.
    ReduceScatter,
    /// Broadcast.
    Broadcast,
    /// Reduce.
    Reduce,
    /// Sends, receives, and functions that consist of them.
    SendRecv,
}

impl Kind {
    /// The kind of kernel for NCCL's name of a function; `None` for an unknown name.
    #[must_use]
    pub fn of_function(name: &str) -> Option<Kind> {
        Some(match name {
            "AllReduce" => Kind::AllReduce,
            "AllGather" => Kind::AllGather,
            "ReduceScatter" => Kind::ReduceScatter,
            "Broadcast" | "Bcast" => Kind::Broadcast,
            "Reduce" => Kind::Reduce,
            "Send" | "Recv" | "SendRecv" | "AlltoAll" | "AllToAll" | "Gather" | "Scatter" => {
                Kind::SendRecv
            }
            _ => return None,
        })
    }

    /// NCCL's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "AllReduce",
            Kind::AllGather => "AllGather",
            Kind::ReduceScatter => "ReduceScatter",
            Kind::Broadcast => "Broadcast",
            Kind::Reduce => "Reduce",
            Kind::SendRecv => "SendRecv",
        }
    }
}

/// Functions that move data from one rank to all, or from all to one.
const ROOTED: [&str; 5] = ["Broadcast", "Bcast", "Reduce", "Gather", "Scatter"];

/// Whether a function has a root. Then not every member waits for every other, and members may end
/// at very different times. Accepts lower-case names, as PyTorch writes them.
#[must_use]
pub fn is_rooted(func: &str) -> bool {
    ROOTED.iter().any(|rooted| rooted.eq_ignore_ascii_case(func))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_a_root() {
        assert!(["Broadcast", "Reduce", "gather", "scatter"].into_iter().all(is_rooted));
        let others = ["AllReduce", "ReduceScatter", "AllGather", "Send", "SendRecv", ""];
        assert!(!others.into_iter().any(is_rooted));
    }

    #[test]
    fn kinds_have_the_names_of_functions() {
        for name in ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "SendRecv"] {
            assert_eq!(Kind::of_function(name).map(Kind::name), Some(name));
        }
        assert_eq!(Kind::of_function("Scatter"), Some(Kind::SendRecv));
        assert_eq!(Kind::of_function("ncclNovel"), None);
    }
}
