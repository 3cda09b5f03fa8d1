// SPDX-License-Identifier: Apache-2.0
//! Descriptors written for older API versions: read back, they equal the newer descriptor without
//! the fields that the older version lacks.

use core::ffi::CStr;
use core::num::NonZeroU64;
use ncclscope_abi::descr::{
    CeBatch, CeColl, CeSync, Coll, CollApi, GroupApi, KernelCh, KernelLaunch, KernelPhase,
    NetPlugin, P2p, P2pApi, ProxyOp, ProxyStep,
};
use ncclscope_abi::net::{NetData, NetPluginId};
use ncclscope_abi::older::{Older, Parents};
use ncclscope_abi::{Descr, EventView, Str, V1, V2, V3, V4, V5, V6, V7, Version, v7};

const TAG: Option<NonZeroU64> = NonZeroU64::new(9);

fn text(text: &'static CStr) -> Str {
    Str::from_static(text)
}

fn coll() -> Coll {
    Coll {
        seq_number: 3,
        func: text(c"AllReduce"),
        send_buff: 0x1000,
        recv_buff: 0x2000,
        count: 1 << 40,
        root: 2,
        datatype: text(c"ncclFloat32"),
        n_channels: 8,
        n_warps: 16,
        algo: text(c"RING"),
        proto: text(c"SIMPLE"),
        is_sym_coll: Some(true),
        user_tag: TAG,
        ..Coll::default()
    }
}

fn p2p() -> P2p {
    P2p {
        func: text(c"Recv"),
        buff: 0x3000,
        datatype: text(c"ncclInt8"),
        count: 5,
        peer: 7,
        n_channels: Some(4),
        user_tag: TAG,
        ..P2p::default()
    }
}

/// One event of each type.
fn all() -> Vec<Descr> {
    let func = text(c"AllGather");
    let datatype = text(c"ncclInt8");
    let (count, stream, user_tag) = (6, 0x77, TAG);
    let p_timer = NonZeroU64::new(99);
    vec![
        Descr::Group,
        Descr::Coll(coll()),
        Descr::P2p(p2p()),
        Descr::ProxyOp(ProxyOp {
            pid: 42,
            channel_id: 1,
            peer: 2,
            n_steps: 3,
            chunk_size: 4,
            is_send: true,
        }),
        Descr::ProxyStep(ProxyStep { step: 11 }),
        Descr::ProxyCtrl,
        Descr::KernelCh(KernelCh { channel_id: 5, p_timer }),
        Descr::NetPlugin(NetPlugin {
            id: NetPluginId(0x10001),
            data: NetData(core::ptr::without_provenance_mut(0x88)),
        }),
        Descr::GroupApi(GroupApi { graph_captured: true, group_depth: 2 }),
        Descr::CollApi(CollApi {
            func,
            count,
            datatype,
            root: 1,
            stream,
            graph_captured: true,
            user_tag,
        }),
        Descr::P2pApi(P2pApi { func, count, datatype, stream, graph_captured: true, user_tag }),
        Descr::KernelLaunch(KernelLaunch { stream }),
        Descr::CeColl(CeColl {
            seq_number: 1,
            func,
            send_buff: 2,
            recv_buff: 3,
            count,
            root: 4,
            datatype,
            sync_strategy: text(c"UC"),
            intra_batch_sync: true,
            batch_size: 5,
            num_batches: 6,
            ce_seq_num: 7,
            stream,
            user_tag,
        }),
        Descr::CeSync(CeSync { is_complete: true, n_ranks: 3 }),
        Descr::CeBatch(CeBatch { num_ops: 1, total_bytes: 2, use_intra_sync: true }),
        Descr::KernelPhase(KernelPhase {
            channel_id: 1,
            phase_id: 2,
            phase_name: text(c"compute"),
            p_timer,
        }),
    ]
}

/// The part of an event that remains in an API version.
fn left(descr: Descr, version: u8) -> Descr {
    match descr {
        Descr::Coll(coll) => Descr::Coll(Coll { is_sym_coll: None, user_tag: None, ..coll }),
        Descr::P2p(p2p) => {
            // It is unknown whether NCCL sets `n_channels` in version 4.
            let n_channels = p2p.n_channels.filter(|_| version >= 5);
            Descr::P2p(P2p { n_channels, user_tag: None, ..p2p })
        }
        Descr::KernelCh(KernelCh { channel_id, .. }) if version < 4 => {
            Descr::KernelCh(KernelCh { channel_id, p_timer: None })
        }
        Descr::CollApi(api) => Descr::CollApi(CollApi { user_tag: None, ..api }),
        Descr::P2pApi(api) => Descr::P2pApi(P2pApi { user_tag: None, ..api }),
        Descr::CeColl(coll) => Descr::CeColl(CeColl { user_tag: None, ..coll }),
        other => other,
    }
}

/// The names of a descriptor as texts: version 1 has codes, which come back as other literals.
fn names(descr: &Descr) -> Vec<Option<&'static CStr>> {
    let strings = match descr {
        Descr::Coll(coll) => vec![coll.func, coll.datatype, coll.algo, coll.proto],
        Descr::P2p(p2p) => vec![p2p.func, p2p.datatype],
        _ => vec![],
    };
    // SAFETY: literals.
    strings.into_iter().map(|string| unsafe { string.to_cstr() }).collect()
}

fn check<V: Version<Descr: Older>>() {
    for descr in all() {
        let view = EventView { parent: 0, rank: 6, descr };
        let event = descr.event_type().expect("a known type");
        // SAFETY: the strings are literals.
        let made = unsafe { V::Descr::describe(&view) };
        assert_eq!(made.is_some(), event.since() <= V::NUMBER, "v{} {event:?}", V::NUMBER);
        let Some(made) = made else { continue };
        // SAFETY: a whole descriptor of this version.
        let again = unsafe { V::view(&raw const made) };
        assert_eq!((again.rank, again.parent), (6, 0));
        let expected = left(descr, V::NUMBER);
        assert_eq!(names(&again.descr), names(&expected), "v{} {event:?}", V::NUMBER);
        if V::NUMBER > 1 {
            assert_eq!(again.descr, expected, "v{}", V::NUMBER);
        }
    }
}

#[test]
fn a_descriptor_for_an_older_plugin_says_the_same() {
    check::<V1>();
    check::<V2>();
    check::<V3>();
    check::<V4>();
    check::<V5>();
    check::<V6>();
}

#[test]
fn version_1_falls_back_as_nccls_conversion_does() {
    let strange = Coll {
        func: text(c"AlltoAll"),
        datatype: text(c"ncclBfloat16"),
        algo: text(c"AGxLL_R"),
        proto: Str::NULL,
        ..coll()
    };
    let view = EventView { parent: 0, rank: 0, descr: Descr::Coll(strange) };
    // SAFETY: the strings are literals or null.
    let made = unsafe { ncclscope_abi::v1::EventDescr::describe(&view) }.expect("it has Coll");
    // SAFETY: a whole descriptor.
    let again = unsafe { V1::view(&raw const made) };
    let expected = [c"Send", c"ncclFloat64", c"PAT", c"SIMPLE"].map(Some);
    assert_eq!(names(&again.descr), expected);
}

#[test]
fn parents_are_set_where_the_version_has_them() {
    let group = core::ptr::without_provenance_mut(0x20);
    let parent = core::ptr::without_provenance_mut(0x10);
    // SAFETY: of integers and raw pointers only.
    let mut descr: v7::EventDescr = unsafe { core::mem::zeroed() };
    for (r#type, expected) in [(2, 0x20), (4, 0x20), (1, 0), (16, 0)] {
        // SAFETY: as above.
        descr.payload = unsafe { core::mem::zeroed() };
        descr.r#type = r#type;
        descr.set_parent(parent);
        descr.set_group(group);
        // SAFETY: a whole descriptor.
        let view = unsafe { V7::view(&raw const descr) };
        let has = match view.descr {
            Descr::Coll(coll) => coll.parent_group,
            Descr::P2p(p2p) => p2p.parent_group,
            Descr::ProxyStep(step) => u64::from(step.step.cast_unsigned()),
            _ => 0,
        };
        assert_eq!((view.parent, has), (0x10, expected), "{type}", type = r#type);
    }
}
