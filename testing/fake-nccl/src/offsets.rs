// SPDX-License-Identifier: Apache-2.0
//! Byte offsets of descriptor fields by API version, from NCCL's headers
//! (`src/include/plugin/profiler/profiler_v*.h`). Written independently of the `abi` crate, so that
//! an error in one is detected by the other.

use crate::COUNT;

/// A field's offset in each version; `NO` where the version has none.
pub type Row = [usize; COUNT];
/// The version has no such field.
pub const NO: usize = usize::MAX;

/// The offsets from v1 on; versions after the last entry have its offset.
const fn row<const N: usize>(offsets: [usize; N]) -> Row {
    let mut row = [NO; COUNT];
    let mut i = 0;
    while i < COUNT {
        row[i] = offsets[if i < N { i } else { N - 1 }];
        i += 1;
    }
    row
}

/// Bytes of the whole descriptor.
pub const SIZE: Row = row([120, 128, 120, 104, 112, 112, 136]);
/// Bytes of the longest descriptor.
pub const MOST_BYTES: usize = {
    let (mut most, mut i) = (0, 0);
    while i < COUNT {
        most = if SIZE[i] > most { SIZE[i] } else { most };
        i += 1;
    }
    most
};
/// Bytes of `type`.
pub const TYPE_BYTES: Row = row([1, 1, 1, 1, 8]);
/// `parentObj` in every version.
pub const PARENT: usize = 8;
/// `rank` in every version.
pub const RANK: usize = 16;

/// Fields of Coll.
pub mod coll {
    use super::{NO, Row, row};
    /// Communicator's name.
    pub const NAME: Row = row([24, 24, 24, NO]);
    /// Communicator's hash.
    pub const COMM_HASH: Row = row([32, 32, 32, NO]);
    /// Sequence number.
    pub const SEQ: Row = row([40, 40, 40, 24]);
    /// Function: a code in v1, then a string.
    pub const FUNC: Row = row([48, 48, 48, 32]);
    /// Elements.
    pub const COUNT: Row = row([72, 72, 72, 56]);
    /// Root rank.
    pub const ROOT: Row = row([80, 80, 80, 64]);
    /// Datatype: a code in v1, then a string.
    pub const DATATYPE: Row = row([84, 88, 88, 72]);
    /// Channels.
    pub const CHANNELS: Row = row([104, 104, 96, 80]);
    /// Warps.
    pub const WARPS: Row = row([105, 105, 97, 81]);
    /// Algorithm: a code in v1, then a string.
    pub const ALGO: Row = row([106, 112, 104, 88]);
    /// Protocol: a code in v1, then a string.
    pub const PROTO: Row = row([107, 120, 112, 96]);
    /// Traffic in bytes.
    pub const TRAFFIC: Row = row([96, 96, NO]);
    /// Handle of the group.
    pub const GROUP: Row = row([NO, NO, NO, NO, 104]);
    /// Kernel variant.
    pub const VARIANT: Row = row([NO, NO, NO, NO, NO, NO, 112]);
    /// Symmetric kernel.
    pub const SYMMETRIC: Row = row([NO, NO, NO, NO, NO, NO, 120]);
    /// User's tag.
    pub const USER_TAG: Row = row([NO, NO, NO, NO, NO, NO, 128]);
}

/// Fields of P2p.
pub mod p2p {
    use super::{NO, Row, row};
    /// Communicator's name.
    pub const NAME: Row = row([24, 24, 24, NO]);
    /// Communicator's hash.
    pub const COMM_HASH: Row = row([32, 32, 32, NO]);
    /// Function: a code in v1, then a string.
    pub const FUNC: Row = row([40, 40, 40, 24]);
    /// Datatype: a code in v1, then a string.
    pub const DATATYPE: Row = row([56, 56, 56, 40]);
    /// Elements.
    pub const COUNT: Row = row([64, 64, 64, 48]);
    /// The other rank.
    pub const PEER: Row = row([72, 72, 72, 56]);
    /// Channels. In v4 the field is garbage from NCCL 2.28 on, and garbage is played.
    pub const CHANNELS: Row = row([NO, NO, NO, NO, 60]);
    /// Handle of the group.
    pub const GROUP: Row = row([NO, NO, NO, NO, 64]);
    /// User's tag.
    pub const USER_TAG: Row = row([NO, NO, NO, NO, NO, NO, 72]);
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
    /// User's tag (v7 on).
    pub const USER_TAG: usize = 72;
}

/// Fields of P2pApi (v5 on).
pub mod p2p_api {
    /// Function.
    pub const FUNC: usize = 24;
    /// Elements.
    pub const COUNT: usize = 32;
    /// Datatype.
    pub const DATATYPE: usize = 40;
    /// Stream.
    pub const STREAM: usize = 48;
    /// Captured into a graph; one byte.
    pub const GRAPH: usize = 56;
    /// User's tag (v7 on).
    pub const USER_TAG: usize = 64;
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

/// Fields of NetPlugin (v3 on), and of the data behind `DATA` (NCCL
/// `src/include/plugin/profiler/net_ib.h` and `net_socket.h`@v2.30.7-1).
pub mod net_plugin {
    /// Kind of network and version of the data.
    pub const ID: usize = 24;
    /// The data, valid during the call.
    pub const DATA: usize = 32;
    /// `ID` of InfiniBand, version 1.
    pub const IB: u64 = 0x1_0001;
    /// `ID` of sockets, version 1.
    pub const SOCKET: u64 = 0x2_0001;
    /// IB data: device.
    pub const IB_DEVICE: usize = 8;
    /// IB data: work request.
    pub const IB_WR_ID: usize = 16;
    /// IB data: opcode.
    pub const IB_OPCODE: usize = 24;
    /// IB data: queue pair.
    pub const IB_QP: usize = 28;
    /// IB data: bytes.
    pub const IB_LENGTH: usize = 32;
    /// Socket data: file descriptor.
    pub const SOCKET_FD: usize = 8;
    /// Socket data: 0 send, 1 receive.
    pub const SOCKET_OP: usize = 12;
    /// Socket data: bytes.
    pub const SOCKET_LENGTH: usize = 16;
}

/// Fields of CeColl (v6 on).
pub mod ce_coll {
    /// Number of the collective on its communicator.
    pub const SEQ: usize = 24;
    /// Function.
    pub const FUNC: usize = 32;
    /// Elements.
    pub const COUNT: usize = 56;
    /// Root rank.
    pub const ROOT: usize = 64;
    /// Datatype.
    pub const DATATYPE: usize = 72;
    /// The synchronisation method.
    pub const SYNC: usize = 80;
    /// Synchronised inside batches; one byte.
    pub const INTRA_BATCH_SYNC: usize = 88;
    /// Copies of a batch.
    pub const BATCH_SIZE: usize = 92;
    /// Batches.
    pub const BATCHES: usize = 96;
    /// The sequence number again.
    pub const CE_SEQ: usize = 100;
    /// Stream.
    pub const STREAM: usize = 104;
    /// User's tag (v7 on).
    pub const USER_TAG: usize = 112;
}

/// Fields of CeSync (v6 on).
pub mod ce_sync {
    /// True for the closing synchronisation; one byte.
    pub const COMPLETE: usize = 24;
    /// Ranks.
    pub const RANKS: usize = 28;
}

/// Fields of CeBatch (v6 on).
pub mod ce_batch {
    /// Copies.
    pub const OPS: usize = 24;
    /// Bytes of all copies.
    pub const BYTES: usize = 32;
    /// Synchronised inside; one byte.
    pub const INTRA_SYNC: usize = 40;
}

/// Fields of KernelPhase (v7 on).
pub mod kernel_phase {
    /// Channel.
    pub const CHANNEL: usize = 24;
    /// Number of the phase, 0 to 2.
    pub const PHASE: usize = 25;
    /// The phase's name.
    pub const NAME: usize = 32;
    /// GPU timer.
    pub const PTIMER: usize = 40;
}
