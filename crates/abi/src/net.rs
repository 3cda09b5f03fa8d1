// SPDX-License-Identifier: Apache-2.0
//! What a network plugin attaches to its events: the id, and the layouts behind `netPlugin.data`.
//! NCCL `src/include/plugin/nccl_profiler.h`, `src/include/plugin/profiler/net_ib.h` and
//! `net_socket.h`@v2.30.7-1.
//!
//! NCCL's own InfiniBand and socket networks attach these in builds with `NET_PROFILER=1` only; an
//! external network plugin may attach anything under an id of its own.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::c_void;

/// Identifies the network of an event and the layout of its data: the kind of network in bits 16 to
/// 31, the version of the layout in bits 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct NetPluginId(pub i64);

impl NetPluginId {
    /// InfiniBand, layout version 1: [`NetIbDescrV1`].
    pub const IB_V1: Self = Self((1 << 16) | 1);
    /// Sockets, layout version 1: [`NetSockDescrV1`].
    pub const SOCK_V1: Self = Self((2 << 16) | 1);

    /// The kind of network; NCCL's own are 1 (InfiniBand) and 2 (sockets).
    #[inline]
    #[must_use]
    pub const fn kind(self) -> i64 {
        self.0 >> 16
    }

    /// The version of the layout.
    #[inline]
    #[must_use]
    pub const fn version(self) -> i64 {
        self.0 & 0xffff
    }
}

/// `ncclProfilerNetIbDescr_v1_t`: one work request posted to a queue pair. 40 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetIbDescrV1 {
    /// @0 1, `ncclProfileQp`: the layout has no other arm.
    pub r#type: u8,
    /// @8 The arm.
    pub qp: NetIbQpV1,
}

/// The only arm of [`NetIbDescrV1`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetIbQpV1 {
    /// @8 Index of the device.
    pub device: i32,
    /// @16 The work request's id.
    pub wr_id: u64,
    /// @24 `ibv_wr_opcode`; unset for receives.
    pub opcode: i32,
    /// @28 Number of the queue pair.
    pub qpNum: i32,
    /// @32 Bytes; unset for receives.
    pub length: usize,
}

/// `ncclProfilerNetSockDescr_v1_t`: one socket's part of a transfer. 24 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetSockDescrV1 {
    /// @0 1, `ncclProfileSocket`: the layout has no other arm.
    pub r#type: u8,
    /// @8 The arm.
    pub sock: NetSockV1,
}

/// The only arm of [`NetSockDescrV1`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetSockV1 {
    /// @8 The socket's file descriptor.
    pub fd: i32,
    /// @12 0 send, 1 receive.
    pub op: i32,
    /// @16 Bytes.
    pub length: usize,
}

const _: () = assert!(size_of::<NetIbDescrV1>() == 40);
const _: () = assert!(size_of::<NetSockDescrV1>() == 24);

/// The only value of `type` that both layouts define.
const ONLY_ARM: u8 = 1;

/// `netPlugin.data` of a NetPlugin event or update: valid during the call, with the layout that the
/// plugin's id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct NetData(pub *const c_void);

impl NetData {
    /// Copies the data that a start event attaches under `id`; [`NetDescr::Opaque`] if the id or
    /// the type in the data is unknown, or the pointer is NULL. The data of updates has no defined
    /// layout.
    ///
    /// # Safety
    /// The callback that passed the pointer must not have returned yet. If the id is
    /// [`NetPluginId::IB_V1`] or [`NetPluginId::SOCK_V1`], the pointer must be NULL or point to
    /// that layout.
    #[inline]
    #[must_use]
    pub unsafe fn read(self, id: NetPluginId) -> NetDescr {
        if self.0.is_null() {
            return NetDescr::Opaque;
        }
        match id {
            NetPluginId::IB_V1 => {
                // SAFETY: not NULL, and by the caller's promise this layout.
                let ib = unsafe { self.0.cast::<NetIbDescrV1>().read_unaligned() };
                ib.into()
            }
            NetPluginId::SOCK_V1 => {
                // SAFETY: not NULL, and by the caller's promise this layout.
                let sock = unsafe { self.0.cast::<NetSockDescrV1>().read_unaligned() };
                sock.into()
            }
            _ => NetDescr::Opaque,
        }
    }
}

/// The data of a network plugin's event, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetDescr {
    /// A work request on an InfiniBand queue pair.
    IbQp {
        /// Index of the device.
        device: i32,
        /// The work request's id.
        wr_id: u64,
        /// `ibv_wr_opcode`; garbage for receives.
        opcode: i32,
        /// Number of the queue pair.
        qp_num: i32,
        /// Bytes; garbage for receives.
        length: u64,
    },
    /// A transfer on a socket.
    Socket {
        /// The socket's file descriptor.
        fd: i32,
        /// Whether it sends.
        is_send: bool,
        /// Bytes.
        length: u64,
    },
    /// An unknown layout, or no data.
    Opaque,
}

impl From<NetIbDescrV1> for NetDescr {
    #[inline]
    fn from(ib: NetIbDescrV1) -> Self {
        if ib.r#type != ONLY_ARM {
            return Self::Opaque;
        }
        let NetIbQpV1 { device, wr_id, opcode, qpNum: qp_num, length } = ib.qp;
        Self::IbQp { device, wr_id, opcode, qp_num, length: length as u64 }
    }
}

impl From<NetSockDescrV1> for NetDescr {
    #[inline]
    fn from(sock: NetSockDescrV1) -> Self {
        if sock.r#type != ONLY_ARM {
            return Self::Opaque;
        }
        let NetSockV1 { fd, op, length } = sock.sock;
        Self::Socket { fd, is_send: op == 0, length: length as u64 }
    }
}
