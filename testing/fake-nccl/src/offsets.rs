// SPDX-License-Identifier: Apache-2.0
//! Byte offsets of descriptor fields by API version, from NCCL's headers
//! (`src/include/plugin/profiler/profiler_v1.h` to `profiler_v7.h`). Written apart from the `abi`
//! crate, so that a slip in one shows against the other.

/// A field's offset in v1 to v7; `NO` where the version has none.
pub type Row = [usize; 7];
/// The version has no such field.
pub const NO: usize = usize::MAX;

/// Bytes of the whole descriptor.
pub const SIZE: Row = [120, 128, 120, 104, 112, 112, 136];
/// Bytes of `type`.
pub const TYPE_BYTES: Row = [1, 1, 1, 1, 8, 8, 8];
/// `parentObj` in every version.
pub const PARENT: usize = 8;
/// `rank` in every version.
pub const RANK: usize = 16;

/// Fields of Coll.
pub mod coll {
    use super::{NO, Row};
    /// Communicator's name.
    pub const NAME: Row = [24, 24, 24, NO, NO, NO, NO];
    /// Communicator's hash.
    pub const COMM_HASH: Row = [32, 32, 32, NO, NO, NO, NO];
    /// Sequence number.
    pub const SEQ: Row = [40, 40, 40, 24, 24, 24, 24];
    /// Function: a code in v1, then a string.
    pub const FUNC: Row = [48, 48, 48, 32, 32, 32, 32];
    /// Elements.
    pub const COUNT: Row = [72, 72, 72, 56, 56, 56, 56];
    /// Root rank.
    pub const ROOT: Row = [80, 80, 80, 64, 64, 64, 64];
    /// Datatype: a code in v1, then a string.
    pub const DATATYPE: Row = [84, 88, 88, 72, 72, 72, 72];
    /// Channels.
    pub const CHANNELS: Row = [104, 104, 96, 80, 80, 80, 80];
    /// Warps.
    pub const WARPS: Row = [105, 105, 97, 81, 81, 81, 81];
    /// Algorithm: a code in v1, then a string.
    pub const ALGO: Row = [106, 112, 104, 88, 88, 88, 88];
    /// Protocol: a code in v1, then a string.
    pub const PROTO: Row = [107, 120, 112, 96, 96, 96, 96];
    /// Traffic in bytes.
    pub const TRAFFIC: Row = [96, 96, NO, NO, NO, NO, NO];
    /// Handle of the group.
    pub const GROUP: Row = [NO, NO, NO, NO, 104, 104, 104];
    /// Kernel variant.
    pub const VARIANT: Row = [NO, NO, NO, NO, NO, NO, 112];
    /// Symmetric kernel.
    pub const SYMMETRIC: Row = [NO, NO, NO, NO, NO, NO, 120];
    /// User's tag.
    pub const USER_TAG: Row = [NO, NO, NO, NO, NO, NO, 128];
}

/// Fields of CollApi (v5 on).
pub mod coll_api {
    /// Function.
    pub const FUNC: usize = 24;
    /// Elements.
    pub const COUNT: usize = 32;
    /// Datatype.
    pub const DATATYPE: usize = 40;
    /// Root rank.
    pub const ROOT: usize = 48;
    /// Stream.
    pub const STREAM: usize = 56;
    /// Captured into a graph; one byte.
    pub const GRAPH: usize = 64;
    /// User's tag (v7).
    pub const USER_TAG: usize = 72;
}

/// Fields of GroupApi (v5 on).
pub mod group_api {
    /// Captured into a graph; one byte.
    pub const GRAPH: usize = 24;
    /// Depth.
    pub const DEPTH: usize = 28;
}

/// Fields of ProxyOp.
pub mod proxy_op {
    /// Process.
    pub const PID: usize = 24;
    /// Channel.
    pub const CHANNEL: usize = 28;
    /// The other rank.
    pub const PEER: usize = 32;
    /// Steps.
    pub const STEPS: usize = 36;
    /// Chunk size.
    pub const CHUNK: usize = 40;
    /// Send or receive.
    pub const IS_SEND: usize = 44;
}

/// Fields of KernelCh.
pub mod kernel_ch {
    /// Channel.
    pub const CHANNEL: usize = 24;
    /// GPU timer (v4 on).
    pub const PTIMER: usize = 32;
}
