// SPDX-License-Identifier: Apache-2.0
//! Layouts of real wheels, and a synthetic one that shares no offset with any of them.

use std::path::PathBuf;

use super::*;

/// Bytes from one member to the next in [`synthetic`].
const STRIDE: usize = 512;

/// A layout with every member at an offset that no release uses, so that code with hard-coded
/// offsets fails. Each member has space for arrays and nested structs.
pub(crate) fn synthetic(channels: usize) -> Layout {
    let mut structs = HashMap::new();
    for (names, members) in [
        (KernelArgs::NAMES, KernelArgs::MEMBERS),
        (WorkBatch::NAMES, WorkBatch::MEMBERS),
        (Comm::NAMES, Comm::MEMBERS),
        (Channel::NAMES, Channel::MEMBERS),
        (ConnInfo::NAMES, ConnInfo::MEMBERS),
        (ConnFifo::NAMES, ConnFifo::MEMBERS),
        (WorkColl::NAMES, WorkColl::MEMBERS),
        (WorkCollReg::NAMES, WorkCollReg::MEMBERS),
        (WorkP2p::NAMES, WorkP2p::MEMBERS),
        (WorkBcast::NAMES, WorkBcast::MEMBERS),
    ] {
        structs.insert(names[0].to_owned(), spread(members, STRIDE, channels));
    }
    let conn = structs[ConnInfo::NAMES[0]].size;
    let peer = spread(ChannelPeer::MEMBERS, 2 * conn, channels);
    structs.insert(ChannelPeer::NAMES[0].to_owned(), peer);
    Layout::of(&structs).expect("every member is there")
}

/// Places members one `stride` apart, in reverse order.
fn spread(names: &[&str], stride: usize, elements: usize) -> Struct {
    let place = |(i, name): (usize, &&str)| {
        let member = Member { bit: 8 * i * stride, width: 32, elements, pointee: Some(64) };
        ((*name).to_owned(), member)
    };
    // In reverse order the channels would come first, but they must be the last in memory.
    let last_first = names.iter().rev().filter(|name| **name != "channels");
    let ordered: Vec<_> = last_first.chain(names.iter().filter(|n| **n == "channels")).collect();
    let members = ordered.iter().map(|name| **name).collect::<Vec<_>>();
    let members = members.iter().enumerate().map(place).collect();
    Struct { size: names.len() * stride, members }
}

/// The wheel's library; prints a line if it is not installed.
fn wheel(version: &str) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let dir = std::env::var_os("NCCLSCOPE_NCCL_DIR")
        .map(PathBuf::from)
        .or_else(|| home().map(|cache| cache.join("ncclscope/nccl")))?;
    let path = dir.join(format!("cu12-{version}/libnccl.so.2"));
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("NCCLSCOPE_REQUIRE_NCCL").is_some_and(|value| value == "1");
    assert!(!required, "{} is missing: cargo xtask nccl fetch {version}", path.display());
    println!("skipped: {} is missing: cargo xtask nccl fetch {version}", path.display());
    None
}

#[test]
fn bits_cross_byte_borders() {
    let bytes = [0b1000_0000, 0xff, 0b0000_0101, 0];
    assert_eq!(Bits { first: 7, width: 11 }.get(&bytes), 0b011_1111_1111);
    assert_eq!(Bits { first: 18, width: 1 }.get(&bytes), 1);
    assert_eq!(Bits { first: 0, width: 32 }.get(&bytes), 0x0005_ff80);
}

#[test]
fn a_missing_member_is_named() {
    let batch = spread(&["nextJump"], 8, 1);
    let structs = HashMap::from([("ncclDevWorkBatch".to_owned(), batch)]);
    let error = WorkBatch::read(&structs).expect_err("members are missing");
    assert_eq!(error, "DWARF: struct ncclDevWorkBatch lacks member nextExtends");
    let error = Comm::read(&structs).expect_err("the struct is missing");
    assert_eq!(error, "DWARF lacks struct ncclKernelCommAndChannels or ncclDevCommAndChannels");
}

#[test]
fn a_file_without_dwarf_is_refused() {
    let error = Layout::read(&PathBuf::from("/proc/self/cmdline")).expect_err("no library");
    assert!(error.starts_with("/proc/self/cmdline: "), "{error}");
}

/// Properties that all releases share.
fn check_common(layout: &Layout) {
    assert_eq!((layout.args.size, layout.args.work_buf), (32, 24));
    assert_eq!(layout.args.work_storage_type, Bits { first: 128, width: 8 });
    assert_eq!(layout.batch.next_jump, Bits { first: 0, width: 14 });
    assert_eq!(layout.batch.work_type, Bits { first: 15, width: 2 });
    assert_eq!((layout.comm.abort_flag, layout.comm.work_consumed), (48, None));
    assert_eq!(layout.comm.work_started, Some(Counters { offset: 72, stride: 1024 }));
    assert_eq!(layout.comm.work_completed, Some(Counters { offset: 80, stride: 1024 }));
    assert_eq!(layout.comm.channels, Channels { offset: 96, count: 64 });
    assert_eq!((layout.channel.size, layout.channel.peers), (368, 0));
    assert_eq!((layout.peer.size, layout.peer.send, layout.peer.recv), (608, 0, 304));
    let conn = &layout.conn;
    assert_eq!((conn.size, conn.tail, conn.head, conn.step_size), (152, 48, 56, 72));
    assert_eq!((conn.conn_fifo, conn.step), (96, 104));
    assert_eq!(layout.p2p.size, 48);
    assert_eq!(layout.p2p.send_proto_ll, Bits { first: 8 * 46, width: 1 });
    assert_eq!(layout.p2p.profiler_enabled, Some(Bits { first: 8 * 46 + 6, width: 1 }));
    assert_eq!(layout.coll.profiler_enabled, Some(Bits { first: 31, width: 1 }));
    assert_eq!(layout.coll.red_op_arg_is_ptr, Bits { first: 24, width: 1 });
}

#[test]
fn layout_of_2_23_4() {
    let Some(path) = wheel("2.23.4") else { return };
    let layout = Layout::read(&path).expect("2.23.4 reads");
    assert_eq!((layout.comm.abort_flag, layout.comm.work_consumed), (56, Some(40)));
    assert_eq!((layout.comm.work_started, layout.comm.work_completed), (None, None));
    assert_eq!(layout.comm.channels, Channels { offset: 80, count: 32 });
    assert_eq!((layout.channel.size, layout.channel.work_counter), (368, None));
    assert_eq!((layout.coll.profiler_enabled, layout.p2p.profiler_enabled), (None, None));
    assert_eq!((layout.coll.net_reg_used, layout.p2p.send_net_reg), (None, None));
}

#[test]
fn layout_of_2_25_1() {
    let Some(path) = wheel("2.25.1") else { return };
    let layout = Layout::read(&path).expect("2.25.1 reads");
    assert_eq!((layout.comm.abort_flag, layout.comm.work_started), (56, None));
    assert_eq!(layout.comm.channels, Channels { offset: 80, count: 64 });
    assert_eq!((layout.channel.size, layout.channel.work_counter), (352, None));
    assert_eq!(layout.coll.net_reg_used, Some(Bits { first: 26, width: 1 }));
}

/// The counters of 2.26 are bare: one for all works of a channel.
#[test]
fn layout_of_2_26_5() {
    let Some(path) = wheel("2.26.5") else { return };
    let layout = Layout::read(&path).expect("2.26.5 reads");
    assert_eq!((layout.comm.abort_flag, layout.comm.work_consumed), (56, Some(40)));
    assert_eq!(layout.comm.work_started, Some(Counters { offset: 80, stride: 8 }));
    assert_eq!(layout.comm.work_completed, Some(Counters { offset: 88, stride: 8 }));
    assert_eq!((layout.channel.size, layout.channel.work_counter), (368, Some(352)));
}

#[test]
fn layout_of_2_27_7() {
    let Some(path) = wheel("2.27.7") else { return };
    let layout = Layout::read(&path).expect("2.27.7 reads");
    check_common(&layout);
    assert_eq!(layout.channel.work_counter, Some(352));
    assert_eq!((layout.comm.work_phases, layout.bcast), (None, None));
}

#[test]
fn layout_of_2_28_9() {
    let Some(path) = wheel("2.28.9") else { return };
    let layout = Layout::read(&path).expect("2.28.9 reads");
    check_common(&layout);
    assert_eq!((layout.coll.size, layout.coll.recvbuff, layout.coll.red_op_arg), (96, 8, 88));
    assert_eq!(layout.coll.chunk_grains_mid, Bits { first: 8 * 80 + 21, width: 21 });
    assert_eq!((layout.coll_reg.size, layout.channel.work_counter), (288, Some(352)));
    assert_eq!((layout.channel.ring_index, layout.channel.tree_up), (24, 36));
    assert_eq!((layout.fifo.size, layout.fifo.sent), (24, Int { offset: 8, size: 8 }));
    assert_eq!(layout.batch.func_id, Bits { first: 17, width: 15 });
    assert_eq!(layout.bcast, None);
}

#[test]
fn layout_of_2_30_7() {
    let Some(path) = wheel("2.30.7") else { return };
    let layout = Layout::read(&path).expect("2.30.7 reads");
    check_common(&layout);
    assert_eq!((layout.coll.size, layout.coll.recvbuff, layout.coll.red_op_arg), (128, 24, 112));
    assert_eq!((layout.coll_reg.size, layout.channel.work_counter), (320, Some(360)));
    assert_eq!((layout.channel.ring_index, layout.channel.tree_up), (32, 44));
    assert_eq!(layout.fifo.offset, Int { offset: 4, size: 4 });
    assert_eq!(layout.batch.func_id, Bits { first: 17, width: 15 });
    assert_eq!(layout.bcast.map(|bcast| (bcast.size, bcast.bytes_done)), Some((48, 32)));
}

#[test]
fn layout_of_2_32_3() {
    let Some(path) = wheel("2.32.3") else { return };
    let layout = Layout::read(&path).expect("2.32.3 reads");
    check_common(&layout);
    assert_eq!((layout.coll.size, layout.coll.recvbuff, layout.coll.red_op_arg), (96, 8, 88));
    assert_eq!((layout.coll_reg.size, layout.channel.work_counter), (288, Some(360)));
    assert_eq!(layout.fifo.offset, Int { offset: 8, size: 8 });
    assert_eq!(layout.fifo.size, 32);
    assert_eq!(layout.batch.func_id, Bits { first: 17, width: 11 });
    assert!(layout.bcast.is_some());
}
