// SPDX-License-Identifier: Apache-2.0
//! The collectives that a simulated job calls.

use serde::{Deserialize, Serialize};

/// A collective of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "NCCL's names")]
pub enum Func {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
}

impl Func {
    pub(crate) const ALL: [Func; 4] =
        [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Func::AllReduce => "AllReduce",
            Func::AllGather => "AllGather",
            Func::ReduceScatter => "ReduceScatter",
            Func::Broadcast => "Broadcast",
        }
    }
}
