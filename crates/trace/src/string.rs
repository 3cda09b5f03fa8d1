// SPDX-License-Identifier: Apache-2.0
//! The number by which records refer to a string. Definitions have the texts.

/// Number of a string in the recording's string table; 0 is "none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct StrId(pub u16);

impl StrId {
    /// No string: NCCL gave NULL, or the version has no such field.
    pub const NONE: StrId = StrId(0);
}
