// SPDX-License-Identifier: Apache-2.0
//! The layouts of NCCL's device structs, read from the library's own DWARF.
//!
//! NCCL changes these structs between releases without notice. Because the wheels carry debug
//! information, no offset is written down here: a new release needs no new table, only, where
//! NCCL renamed a struct or a member, one more name. Names are those of `src/include/device.h`.

mod dwarf;

use std::collections::HashMap;
use std::path::Path;

use dwarf::{Member, Struct};

/// An unsigned bit field or a whole integer of at most 57 bits at any bit position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// Least significant bit, counted from the start of the struct.
    pub first: usize,
    /// Width in bits.
    pub width: usize,
}

impl Bits {
    /// Extracts the field from `bytes`, the struct's memory.
    ///
    /// # Panics
    ///
    /// `bytes` is shorter than the struct.
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u64 {
        let end = (self.first + self.width).div_ceil(8);
        let mut word = [0; 8];
        let field = &bytes[self.first / 8..end];
        word[..field.len()].copy_from_slice(field);
        (u64::from_le_bytes(word) >> (self.first % 8)) & (u64::MAX >> (64 - self.width))
    }
}

/// A signed integer member whose width differs between releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int {
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes, 4 or 8.
    pub size: usize,
}

/// How a channel's profiler counters are stored (`workStarted`, `workCompleted`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Offset of the pointer in the kernel's communicator.
    pub offset: usize,
    /// Bytes from one channel to the next: 8 is one bare counter (2.26), more are slots of
    /// `{u64 counter, u64 timestamp}` (from 2.27), in `workPhases` 64 slots of
    /// `{u64 counter, u64 timestamps[4]}`.
    pub stride: usize,
}

/// The kernel communicator's array of channels (`channels` of `ncclKernelCommAndChannels`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// Offset of the array in bytes.
    pub offset: usize,
    /// Number of channels.
    pub count: usize,
}

/// The conversion of a member's location.
trait FromMember: Sized {
    fn from_member(found: Option<&Member>) -> Option<Self>;
}

impl FromMember for usize {
    fn from_member(found: Option<&Member>) -> Option<Self> {
        found.map(|member| member.bit / 8)
    }
}

impl FromMember for Bits {
    fn from_member(found: Option<&Member>) -> Option<Self> {
        let fits = |member: &&Member| (1..=57).contains(&member.width);
        found.filter(fits).map(|member| Self { first: member.bit, width: member.width })
    }
}

impl FromMember for Int {
    fn from_member(found: Option<&Member>) -> Option<Self> {
        let fits = |member: &&Member| matches!(member.width, 32 | 64);
        found.filter(fits).map(|member| Self { offset: member.bit / 8, size: member.width / 8 })
    }
}

impl FromMember for Counters {
    fn from_member(found: Option<&Member>) -> Option<Self> {
        let member = found?;
        member.pointee.map(|stride| Self { offset: member.bit / 8, stride })
    }
}

impl FromMember for Channels {
    fn from_member(found: Option<&Member>) -> Option<Self> {
        found.map(|member| Self { offset: member.bit / 8, count: member.elements })
    }
}

impl<P: FromMember> FromMember for Option<P> {
    fn from_member(found: Option<&Member>) -> Option<Self> {
        Some(P::from_member(found))
    }
}

/// Declares the layout of one C struct: every field is the place of the member named beside it.
macro_rules! layout {
    (
        $(#[$about:meta])*
        $name:ident of $($of:literal)|+ {
            $($(#[$doc:meta])* $field:ident: $place:ty = $member:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            /// Size of the struct in bytes.
            pub size: usize,
            $($(#[$doc])* pub $field: $place,)*
        }

        impl $name {
            /// The struct's names, the newest first.
            const NAMES: &[&str] = &[$($of),+];
            #[cfg(test)]
            const MEMBERS: &[&str] = &[$($member),*];

            fn read(structs: &HashMap<String, Struct>) -> Result<Self, String> {
                let (name, found) = Self::NAMES
                    .iter()
                    .find_map(|name| structs.get(*name).map(|found| (name, found)))
                    .ok_or_else(|| format!("DWARF lacks struct {}", Self::NAMES.join(" or ")))?;
                let missing = |member: &str| format!("DWARF: struct {name} lacks member {member}");
                Ok(Self {
                    size: found.size,
                    $($field: <$place as FromMember>::from_member(found.members.get($member))
                        .ok_or_else(|| missing($member))?,)*
                })
            }
        }
    };
}

layout! {
    /// The kernel's one argument; the batches follow it in memory.
    KernelArgs of "ncclDevKernelArgs" {
        /// Pointer to the kernel's communicator.
        comm: usize = "comm",
        /// `u64`, one bit per channel that takes part.
        channel_mask: usize = "channelMask",
        /// 0: works follow the arguments, 1: they are in a FIFO, 2: in a persistent buffer.
        work_storage_type: Bits = "workStorageType",
        /// `u32`, mask for addresses in the work buffer.
        work_mask: usize = "workMask",
        /// Pointer to the work buffer.
        work_buf: usize = "workBuf",
    }
}

layout! {
    /// A batch: up to 64 works of one type for one channel.
    WorkBatch of "ncclDevWorkBatch" {
        /// Distance to the channel's next batch, 0 for none.
        next_jump: Bits = "nextJump",
        /// The next batch belongs to the same step.
        next_extends: Bits = "nextExtends",
        /// 0 p2p, 1 coll, 2 registered coll, 3 broadcast.
        work_type: Bits = "workType",
        /// Index into `ncclDevFuncTable`.
        func_id: Bits = "funcId",
        /// `u32`, address of the first work.
        offset_base: usize = "offsetBase",
        /// `u64`, bit k set: there is a work k work sizes after the base.
        offset_bitset: usize = "offsetBitset",
    }
}

layout! {
    /// The kernel's communicator and, behind it, its channels. The older name is that of the
    /// releases up to 2.27; from 2.28 `ncclDevComm` is an unrelated public struct.
    Comm of "ncclKernelCommAndChannels" | "ncclDevCommAndChannels" {
        /// `i32`.
        rank: usize = "comm.rank",
        /// `i32`.
        n_ranks: usize = "comm.nRanks",
        /// `i32[3]`, bytes of a connection's buffer by protocol: LL, LL128, SIMPLE.
        buff_sizes: usize = "comm.buffSizes",
        /// `i32`, bytes of a p2p step.
        p2p_chunk_size: usize = "comm.p2pChunkSize",
        /// Pointer to a `u32` that becomes non-zero when the kernel must give up.
        abort_flag: usize = "comm.abortFlag",
        /// Up to 2.26, pointer to a `u32` per channel: FIFO bytes read so far.
        work_consumed: Option<usize> = "comm.workConsumed",
        /// From 2.26, works begun.
        work_started: Option<Counters> = "comm.workStarted",
        /// From 2.26, works done.
        work_completed: Option<Counters> = "comm.workCompleted",
        /// In 2.31 only, when the phases of a work began.
        work_phases: Option<Counters> = "comm.workPhases",
        /// The channels.
        channels: Channels = "channels",
    }
}

layout! {
    /// A channel as the kernel sees it.
    Channel of "ncclDevChannel" {
        /// Pointer to an array of pointers to peers.
        peers: usize = "peers",
        /// `i32`, rank before this one on the ring.
        ring_prev: usize = "ring.prev",
        /// `i32`, rank after this one on the ring.
        ring_next: usize = "ring.next",
        /// Pointer to `i32[nRanks]`: ranks along the ring, this one first.
        ring_user_ranks: usize = "ring.userRanks",
        /// `i32`, this rank's place on the ring.
        ring_index: usize = "ring.index",
        /// `i32`, parent in the tree or -1.
        tree_up: usize = "tree.up",
        /// `i32[3]`, children in the tree, -1 ends the list.
        tree_down: usize = "tree.down",
        /// From 2.26, `u64`, works done since the communicator began.
        work_counter: Option<usize> = "workCounter",
    }
}

layout! {
    /// Connections to one peer: two to send on, two to receive on.
    ChannelPeer of "ncclDevChannelPeer" {
        /// `ncclConnInfo[2]`, index 0 for collectives, 1 for p2p.
        send: usize = "send",
        /// `ncclConnInfo[2]`.
        recv: usize = "recv",
    }
}

layout! {
    /// One direction of a connection.
    ConnInfo of "ncclConnInfo" {
        /// `char*[3]` by protocol.
        buffs: usize = "buffs",
        /// Pointer to the `u64` that the sender advances.
        tail: usize = "tail",
        /// Pointer to the `u64` that the receiver advances.
        head: usize = "head",
        /// `i32`, bytes of a SIMPLE slot.
        step_size: usize = "stepSize",
        /// Pointer to `ncclConnFifo[8]` or null.
        conn_fifo: usize = "connFifo",
        /// `u64`, step counter between kernels.
        step: usize = "step",
    }
}

layout! {
    /// What kernel and proxy exchange about one slot.
    ConnFifo of "ncclConnFifo" {
        /// 1: the slot lies at `offset`.
        mode: Int = "mode",
        /// Bytes from the start of the buffer.
        offset: Int = "offset",
        /// Bytes sent, -1 when the proxy has taken them.
        sent: Int = "size",
    }
}

layout! {
    /// A collective.
    WorkColl of "ncclDevWorkColl" {
        /// First channel.
        channel_lo: Bits = "channelLo",
        /// Last channel.
        channel_hi: Bits = "channelHi",
        /// `red_op_arg` points to the scalar.
        red_op_arg_is_ptr: Bits = "redOpArgIsPtr",
        /// The network reads and writes the user's buffers itself (from 2.24).
        net_reg_used: Option<Bits> = "netRegUsed",
        /// From 2.26.
        profiler_enabled: Option<Bits> = "profilerEnabled",
        /// `u32`.
        root: usize = "root",
        /// Pointer.
        recvbuff: usize = "recvbuff",
        /// Pointer.
        sendbuff: usize = "sendbuff",
        /// `u64`, elements of the first channel.
        count_lo: usize = "cbd.countLo",
        /// `u64`, elements of every channel between.
        count_mid: usize = "cbd.countMid",
        /// `u64`, elements of the last channel.
        count_hi: usize = "cbd.countHi",
        /// Grains per chunk in the first channel.
        chunk_grains_lo: Bits = "cbd.chunkGrainsLo",
        /// Grains per chunk between.
        chunk_grains_mid: Bits = "cbd.chunkGrainsMid",
        /// Grains per chunk in the last channel.
        chunk_grains_hi: Bits = "cbd.chunkGrainsHi",
        /// `u64`, the reduction's scalar.
        red_op_arg: usize = "redOpArg",
    }
}

layout! {
    /// A collective with registered buffers; begins with a `ncclDevWorkColl`.
    WorkCollReg of "ncclDevWorkCollReg" {
        /// The collective.
        coll: usize = "coll",
    }
}

layout! {
    /// A send and a receive.
    WorkP2p of "ncclDevWorkP2p" {
        /// Pointer.
        send_addr: usize = "sendAddr",
        /// Pointer.
        recv_addr: usize = "recvAddr",
        /// `u64`.
        send_bytes: usize = "sendBytes",
        /// `u64`.
        recv_bytes: usize = "recvBytes",
        /// `i32`.
        send_rank: usize = "sendRank",
        /// `i32`.
        recv_rank: usize = "recvRank",
        /// Channels for p2p, a power of two.
        n_p2p_channels: Bits = "nP2pChannels",
        /// Channel of part 0.
        channel_base: Bits = "channelBase",
        /// Parts of the send.
        n_send_channels: Bits = "nSendChannels",
        /// Parts of the receive.
        n_recv_channels: Bits = "nRecvChannels",
        /// Chunk bytes, 8-bit floating point.
        send_chunk_size: Bits = "sendChunkSize_u32fp8",
        /// Chunk bytes, 8-bit floating point.
        recv_chunk_size: Bits = "recvChunkSize_u32fp8",
        /// LL rather than SIMPLE.
        send_proto_ll: Bits = "sendProtoLL",
        /// LL rather than SIMPLE.
        recv_proto_ll: Bits = "recvProtoLL",
        /// The network reads the user's buffer itself.
        send_net_reg: Option<Bits> = "sendNetReg",
        /// The network writes the user's buffer itself.
        recv_net_reg: Option<Bits> = "recvNetReg",
        /// From 2.26.
        profiler_enabled: Option<Bits> = "profilerEnabled",
    }
}

layout! {
    /// One of the grouped broadcasts (AllGatherV, from 2.29).
    WorkBcast of "ncclDevWorkBcast" {
        /// `i32`, hops from the root to this rank.
        ring_depth: usize = "ringDepth",
        /// `i32`, bytes.
        chunk_size: usize = "chunkSize",
        /// Pointer.
        sendbuff: usize = "sendbuff",
        /// Pointer.
        recvbuff: usize = "recvbuff",
        /// `u64`.
        bytes: usize = "bytes",
        /// `u64`, bytes before the part that this channel moves.
        bytes_done: usize = "bytes_done",
    }
}

/// Every layout the kernel player uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// `ncclDevKernelArgs`.
    pub args: KernelArgs,
    /// `ncclDevWorkBatch`.
    pub batch: WorkBatch,
    /// `ncclKernelCommAndChannels`.
    pub comm: Comm,
    /// `ncclDevChannel`.
    pub channel: Channel,
    /// `ncclDevChannelPeer`.
    pub peer: ChannelPeer,
    /// `ncclConnInfo`.
    pub conn: ConnInfo,
    /// `ncclConnFifo`.
    pub fifo: ConnFifo,
    /// `ncclDevWorkColl`.
    pub coll: WorkColl,
    /// `ncclDevWorkCollReg`.
    pub coll_reg: WorkCollReg,
    /// `ncclDevWorkP2p`.
    pub p2p: WorkP2p,
    /// `ncclDevWorkBcast`, absent before 2.29.
    pub bcast: Option<WorkBcast>,
}

impl Layout {
    /// Reads the layouts of the NCCL library at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, carries no DWARF, or lacks a struct or a member, which the
    /// message names.
    pub fn read(path: &Path) -> Result<Self, String> {
        let wanted = [
            KernelArgs::NAMES,
            WorkBatch::NAMES,
            Comm::NAMES,
            Channel::NAMES,
            ChannelPeer::NAMES,
            ConnInfo::NAMES,
            ConnFifo::NAMES,
            WorkColl::NAMES,
            WorkCollReg::NAMES,
            WorkP2p::NAMES,
            WorkBcast::NAMES,
        ];
        Self::of(&dwarf::structs(path, &wanted)?)
    }

    fn of(structs: &HashMap<String, Struct>) -> Result<Self, String> {
        let bcast = structs.contains_key("ncclDevWorkBcast");
        Ok(Self {
            args: KernelArgs::read(structs)?,
            batch: WorkBatch::read(structs)?,
            comm: Comm::read(structs)?,
            channel: Channel::read(structs)?,
            peer: ChannelPeer::read(structs)?,
            conn: ConnInfo::read(structs)?,
            fifo: ConnFifo::read(structs)?,
            coll: WorkColl::read(structs)?,
            coll_reg: WorkCollReg::read(structs)?,
            p2p: WorkP2p::read(structs)?,
            bcast: bcast.then(|| WorkBcast::read(structs)).transpose()?,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
