// SPDX-License-Identifier: Apache-2.0
//! The key of a row of operations.

/// What the operations of a row have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) comm: String,
    pub(crate) func: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) algo: Option<String>,
    pub(crate) proto: Option<String>,
    pub(crate) channels: Option<u16>,
}
