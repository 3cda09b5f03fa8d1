// SPDX-License-Identifier: Apache-2.0
//! Why a rank of a job stops before its end.

/// Why a rank stops.
#[derive(Debug)]
pub enum Failure {
    /// A result is wrong.
    Wrong(String),
    /// An error of CUDA, NCCL or the system.
    Refused(String),
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}
