// SPDX-License-Identifier: Apache-2.0
//! The normalised view of descriptors in which every byte that NCCL does not set is garbage.
//! Offsets are written as numbers, so that the tests do not depend on the Rust types that they
//! check.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ptr;

use ncclscope_abi::net::{NetData, NetDescr, NetPluginId};
use ncclscope_abi::{
    Descr, EventType, EventView, Str, V1, V2, V3, V4, V5, V6, V7, Version, descr, for_each_version,
};

const GARBAGE: u8 = 0xa5;
const PARENT: u64 = 0xdead_beef_0000_0001;
const RANK: i32 = 3;
const GROUP: u64 = 0xdead_beef_0000_0002;
const STREAM: u64 = 0x5735_0000;
const SEND: u64 = 0x1000;
const RECV: u64 = 0x2000;
const HASH: u64 = 0x0123_4567_89ab_cdef;
static NAME: &CStr = c"world";
static FUNC: &CStr = c"AllReduce";
static TYPE: &CStr = c"ncclFloat32";
static ALGO: &CStr = c"RING";
static PROTO: &CStr = c"SIMPLE";

/// A descriptor of one version: garbage, except for what a test writes.
struct Raw<V: Version>(MaybeUninit<V::Descr>);

impl<V: Version> Raw<V> {
    /// A descriptor with this type and a header; everything else is garbage.
    fn new(bits: u64) -> Self {
        let mut raw = Self(MaybeUninit::uninit());
        // SAFETY: writes over exactly the descriptor.
        unsafe { ptr::write_bytes(raw.0.as_mut_ptr(), GARBAGE, 1) };
        let raw = match u8::try_from(bits) {
            Ok(byte) if V::NUMBER < 5 => raw.put(0, byte),
            _ => raw.put(0, bits),
        };
        raw.put(8, PARENT).put(16, RANK)
    }

    /// A descriptor with the header of this type; everything else is garbage.
    fn of(ty: EventType) -> Self {
        Self::new(ty.bit())
    }

    /// Writes `value` at byte `offset`.
    fn put<T: Copy>(mut self, offset: usize, value: T) -> Self {
        assert!(offset + size_of::<T>() <= size_of::<V::Descr>());
        let start = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: in the descriptor, as just asserted.
        let at = unsafe { start.add(offset) };
        // SAFETY: in the descriptor, and need not be aligned.
        unsafe { at.cast::<T>().write_unaligned(value) };
        self
    }

    /// Writes the address of `text` at byte `offset`.
    fn text(self, offset: usize, text: &'static CStr) -> Self {
        self.put(offset, text.as_ptr())
    }

    /// Writes NULL at each of the offsets.
    fn nulls(self, offsets: &[usize]) -> Self {
        offsets.iter().fold(self, |raw, &offset| raw.put(offset, ptr::null::<c_char>()))
    }

    /// The event's own part of the view; first checks the part that all events have.
    fn descr(&self) -> Descr {
        // SAFETY: every byte is set, so the header and each arm are; integers and pointers may hold
        // any bytes.
        let EventView { parent, rank, descr } = unsafe { V::view(self.0.as_ptr()) };
        assert_eq!((parent, rank), (PARENT, RANK));
        descr
    }
}

fn lit(text: &'static CStr) -> Str {
    Str::from_static(text)
}

/// The text behind a string of this test's or this crate's.
fn text(s: Str) -> Option<&'static CStr> {
    // SAFETY: all strings in these tests are literals.
    unsafe { s.to_cstr() }
}

/// Runs a test that is generic over the version for each version.
macro_rules! check_all {
    ($check:ident $(($v:ident = $($row:tt)*))*) => {
        $($check::<ncclscope_abi::$v>();)*
    };
}

/// Writes the fields of Coll that describe the operation, from version 2 on, at the version's
/// offsets.
fn put_coll<V: Version>(raw: Raw<V>, at: [usize; 11]) -> Raw<V> {
    let [seq, func, send, recv, count, root, datatype, channels, warps, algo, proto] = at;
    raw.put(seq, 77_u64)
        .text(func, FUNC)
        .put(send, SEND)
        .put(recv, RECV)
        .put(count, 1_usize << 40)
        .put(root, -1_i32)
        .text(datatype, TYPE)
        .put(channels, 24_u8)
        .put(warps, 16_u8)
        .text(algo, ALGO)
        .text(proto, PROTO)
}

/// The view expected after [`put_coll`].
fn coll() -> descr::Coll {
    descr::Coll {
        seq_number: 77,
        func: lit(FUNC),
        send_buff: SEND,
        recv_buff: RECV,
        count: 1 << 40,
        root: -1,
        datatype: lit(TYPE),
        n_channels: 24,
        n_warps: 16,
        algo: lit(ALGO),
        proto: lit(PROTO),
        ..Default::default()
    }
}

/// Writes the fields of P2p, from version 2 on, at the version's offsets.
fn put_p2p<V: Version>(raw: Raw<V>, at: [usize; 5]) -> Raw<V> {
    let [func, buff, datatype, count, peer] = at;
    raw.text(func, c"Send")
        .put(buff, SEND)
        .text(datatype, TYPE)
        .put(count, 9_usize)
        .put(peer, 5_i32)
}

/// Asserts that `descr` has what [`put_p2p`] wrote, and the remaining fields of `expected`.
fn assert_p2p(descr: Descr, expected: descr::P2p) {
    let Descr::P2p(p2p) = descr else { panic!("{descr:?}") };
    assert_eq!(text(p2p.func), Some(c"Send"));
    let func = p2p.func;
    let common =
        descr::P2p { func, buff: SEND, datatype: lit(TYPE), count: 9, peer: 5, ..expected };
    assert_eq!(p2p, common);
}

#[test]
fn events_that_never_changed() {
    fn check<V: Version>() {
        assert_eq!(Raw::<V>::of(EventType::Group).descr(), Descr::Group);
        assert_eq!(Raw::<V>::of(EventType::ProxyCtrl).descr(), Descr::ProxyCtrl);
        let op = Raw::<V>::of(EventType::ProxyOp)
            .put(24, 4711_i32)
            .put(28, 31_u8)
            .put(32, 6_i32)
            .put(36, 8_i32)
            .put(40, 4_194_304_i32);
        let mut expected = descr::ProxyOp {
            pid: 4711,
            channel_id: 31,
            peer: 6,
            n_steps: 8,
            chunk_size: 4_194_304,
            is_send: true,
        };
        let op = op.put(44, 1_i32);
        assert_eq!(op.descr(), Descr::ProxyOp(expected));
        expected.is_send = false;
        assert_eq!(op.put(44, 0_i32).descr(), Descr::ProxyOp(expected));
        let step = Raw::<V>::of(EventType::ProxyStep).put(24, 12_i32);
        assert_eq!(step.descr(), Descr::ProxyStep(descr::ProxyStep { step: 12 }));
    }
    for_each_version!(check_all, check);
}

#[test]
fn types_that_a_version_lacks_are_unknown_and_those_it_has_are_not() {
    fn check<V: Version>() {
        for ty in EventType::ALL {
            if V::NUMBER < 5 && ty.bit() > 255 {
                continue; // Such a type does not fit the byte.
            }
            let descr = Raw::<V>::of(ty).descr();
            if V::EVENTS.contains(ty) {
                assert_eq!(descr.event_type(), Some(ty), "v{}", V::NUMBER);
            } else {
                assert_eq!(descr, Descr::Unknown(ty.bit()), "v{}", V::NUMBER);
                assert_eq!(descr.event_type(), None);
            }
        }
        for bits in [0, 3, 255] {
            assert_eq!(Raw::<V>::new(bits).descr(), Descr::Unknown(bits));
        }
    }
    for_each_version!(check_all, check);
    for bits in [65536, 1 << 40, u64::MAX] {
        assert_eq!(Raw::<V5>::new(bits).descr(), Descr::Unknown(bits));
        assert_eq!(Raw::<V7>::new(bits).descr(), Descr::Unknown(bits));
    }
    assert_eq!(V1::EVENTS.bits(), 0x3f);
    assert_eq!(V3::EVENTS.bits(), 0xff);
    assert_eq!(V5::EVENTS.bits(), 0xfff);
    assert_eq!(V6::EVENTS.bits(), 0x7fff);
    assert_eq!(V7::EVENTS.bits(), 0xffff);
}

#[test]
fn version_1_names_its_codes() {
    let raw = Raw::<V1>::of(EventType::Coll)
        .text(24, NAME)
        .put(32, HASH)
        .put(40, 77_u64)
        .put(48, 4_u8)
        .put(56, SEND)
        .put(64, RECV)
        .put(72, 1_usize << 40)
        .put(80, -1_i32)
        .put(84, 7_u8)
        .put(96, 999_usize)
        .put(104, 24_u8)
        .put(105, 16_u8)
        .put(106, 1_u8)
        .put(107, 2_u8);
    let Descr::Coll(c) = raw.descr() else { panic!("{:?}", raw.descr()) };
    assert_eq!(
        [c.func, c.datatype, c.algo, c.proto].map(text),
        [FUNC, TYPE, ALGO, PROTO].map(Some)
    );
    let expected = descr::Coll {
        name: lit(NAME),
        comm_hash: NonZeroU64::new(HASH),
        traffic_bytes: NonZeroU64::new(999),
        func: c.func,
        datatype: c.datatype,
        algo: c.algo,
        proto: c.proto,
        ..coll()
    };
    assert_eq!(c, expected);

    let raw = Raw::<V1>::of(EventType::P2p)
        .text(24, NAME)
        .put(32, HASH)
        .put(40, 7_u8)
        .put(48, RECV)
        .put(56, 1_u8)
        .put(64, 9_usize)
        .put(72, 5_i32);
    let Descr::P2p(p) = raw.descr() else { panic!("{:?}", raw.descr()) };
    assert_eq!([p.func, p.datatype].map(text), [Some(c"Recv"), Some(c"ncclUint8")]);
    assert_eq!((p.name, p.comm_hash), (lit(NAME), NonZeroU64::new(HASH)));
    assert_eq!((p.buff, p.count, p.peer, p.n_channels, p.parent_group), (RECV, 9, 5, None, 0));
}

#[test]
fn version_1_on_a_later_nccl_says_nothing_of_the_communicator() {
    // Fields that the shim of NCCL 2.27 and later sets to zero, and codes outside the tables.
    let raw = Raw::<V1>::of(EventType::Coll).nulls(&[24, 32, 96]);
    let Descr::Coll(c) = raw.descr() else { panic!("{:?}", raw.descr()) };
    assert_eq!((text(c.name), c.comm_hash, c.traffic_bytes), (None, None, None));
    assert_eq!(
        [c.func, c.datatype, c.algo, c.proto].map(text),
        [c"Invalid", c"Unknown", c"Unknown", c"Unknown"].map(Some)
    );
}

#[test]
fn collectives_of_versions_2_to_7() {
    let named = descr::Coll { name: lit(NAME), comm_hash: NonZeroU64::new(HASH), ..coll() };
    let v2 = put_coll(
        Raw::<V2>::of(EventType::Coll).text(24, NAME).put(32, HASH).put(96, 999_usize),
        [40, 48, 56, 64, 72, 80, 88, 104, 105, 112, 120],
    );
    let expected = descr::Coll { traffic_bytes: NonZeroU64::new(999), ..named };
    assert_eq!(v2.descr(), Descr::Coll(expected));

    let v3 = put_coll(
        Raw::<V3>::of(EventType::Coll).text(24, NAME).put(32, HASH),
        [40, 48, 56, 64, 72, 80, 88, 96, 97, 104, 112],
    );
    assert_eq!(v3.descr(), Descr::Coll(named));

    let later = [24, 32, 40, 48, 56, 64, 72, 80, 81, 88, 96];
    let v4 = put_coll(Raw::<V4>::of(EventType::Coll), later);
    assert_eq!(v4.descr(), Descr::Coll(coll()));

    let grouped = descr::Coll { parent_group: GROUP, ..coll() };
    let v5 = put_coll(Raw::<V5>::of(EventType::Coll), later).put(104, GROUP);
    assert_eq!(v5.descr(), Descr::Coll(grouped));
    let v6 = put_coll(Raw::<V6>::of(EventType::Coll), later).put(104, GROUP);
    assert_eq!(v6.descr(), Descr::Coll(grouped));

    let v7 = put_coll(Raw::<V7>::of(EventType::Coll), later)
        .put(104, GROUP)
        .text(112, c"LSA_LL")
        .put(120, 1_u8)
        .put(128, 42_u64);
    let Descr::Coll(c) = v7.descr() else { panic!("{:?}", v7.descr()) };
    assert_eq!(text(c.kernel_variant), Some(c"LSA_LL"));
    let expected = descr::Coll {
        kernel_variant: c.kernel_variant,
        is_sym_coll: Some(true),
        user_tag: NonZeroU64::new(42),
        ..grouped
    };
    assert_eq!(c, expected);
    let plain = v7.nulls(&[112, 128]).put(120, 0_u8);
    let expected = descr::Coll { is_sym_coll: Some(false), ..grouped };
    assert_eq!(plain.descr(), Descr::Coll(expected));
}

#[test]
fn sends_and_receives_of_versions_2_to_7() {
    let none = descr::P2p::default();
    let named = descr::P2p { name: lit(NAME), comm_hash: NonZeroU64::new(HASH), ..none };
    let early = [40, 48, 56, 64, 72];
    let v2 = put_p2p(Raw::<V2>::of(EventType::P2p).text(24, NAME).put(32, HASH), early);
    assert_p2p(v2.descr(), named);
    let v3 = put_p2p(Raw::<V3>::of(EventType::P2p).nulls(&[24, 32]), early);
    assert_p2p(v3.descr(), none);

    let later = [24, 32, 40, 48, 56];
    let v4 = put_p2p(Raw::<V4>::of(EventType::P2p), later);
    assert_p2p(v4.descr(), none);
    assert_p2p(v4.put(60, 2_u8).descr(), none); // Set or garbage: unknown.

    let grouped = descr::P2p { n_channels: Some(2), parent_group: GROUP, ..none };
    let v5 = put_p2p(Raw::<V5>::of(EventType::P2p), later).put(60, 2_u8).put(64, GROUP);
    assert_p2p(v5.descr(), grouped);
    let v6 = put_p2p(Raw::<V6>::of(EventType::P2p), later).put(60, 2_u8).put(64, GROUP);
    assert_p2p(v6.descr(), grouped);
    let v7 = put_p2p(Raw::<V7>::of(EventType::P2p), later).put(60, 2_u8).put(64, GROUP);
    assert_p2p(v7.put(72, 42_u64).descr(), descr::P2p { user_tag: NonZeroU64::new(42), ..grouped });
}

#[test]
fn kernel_channels_and_phases() {
    let k = |p_timer| Descr::KernelCh(descr::KernelCh { channel_id: 9, p_timer });
    let v3 = Raw::<V3>::of(EventType::KernelCh).put(24, 9_u8);
    assert_eq!(v3.descr(), k(None));
    let v4 = Raw::<V4>::of(EventType::KernelCh).put(24, 9_u8).put(32, 123_u64);
    assert_eq!(v4.descr(), k(NonZeroU64::new(123)));
    assert_eq!(v4.put(32, 0_u64).descr(), k(None));
    let v7 = Raw::<V7>::of(EventType::KernelCh).put(24, 9_u8).put(32, 123_u64);
    assert_eq!(v7.descr(), k(NonZeroU64::new(123)));

    let raw = Raw::<V7>::of(EventType::KernelPhase)
        .put(24, 9_u8)
        .put(25, 1_u8)
        .nulls(&[32])
        .put(40, 123_u64);
    let expected = descr::KernelPhase {
        channel_id: 9,
        phase_id: 1,
        phase_name: Str::NULL,
        p_timer: NonZeroU64::new(123),
    };
    assert_eq!(raw.descr(), Descr::KernelPhase(expected));
}

#[test]
fn api_calls_read_one_byte_for_a_bool() {
    fn check<V: Version>(coll_tag: Option<usize>, p2p_tag: Option<usize>) {
        let tagged = |raw: Raw<V>, at: Option<usize>| match at {
            Some(at) => raw.put(at, 42_u64),
            None => raw,
        };
        let user_tag = coll_tag.and(NonZeroU64::new(42));
        // The bytes after the bool stay garbage: a bool of 0 must be read as false.
        for (byte, graph_captured) in [(0_u8, false), (1, true), (0xa5, true)] {
            let raw = Raw::<V>::of(EventType::GroupApi).put(24, byte).put(28, 2_i32);
            let expected = descr::GroupApi { graph_captured, group_depth: 2 };
            assert_eq!(raw.descr(), Descr::GroupApi(expected));

            let raw = Raw::<V>::of(EventType::CollApi)
                .text(24, FUNC)
                .put(32, 9_usize)
                .text(40, TYPE)
                .put(48, 1_i32)
                .put(56, STREAM)
                .put(64, byte);
            let expected = descr::CollApi {
                func: lit(FUNC),
                count: 9,
                datatype: lit(TYPE),
                root: 1,
                stream: STREAM,
                graph_captured,
                user_tag,
            };
            assert_eq!(tagged(raw, coll_tag).descr(), Descr::CollApi(expected));

            let raw = Raw::<V>::of(EventType::P2pApi)
                .text(24, FUNC)
                .put(32, 9_usize)
                .nulls(&[40])
                .put(48, STREAM)
                .put(56, byte);
            let expected = descr::P2pApi {
                func: lit(FUNC),
                count: 9,
                datatype: Str::NULL,
                stream: STREAM,
                graph_captured,
                user_tag,
            };
            assert_eq!(tagged(raw, p2p_tag).descr(), Descr::P2pApi(expected));
        }
        let raw = Raw::<V>::of(EventType::KernelLaunch).put(24, STREAM);
        assert_eq!(raw.descr(), Descr::KernelLaunch(descr::KernelLaunch { stream: STREAM }));
    }
    check::<V5>(None, None);
    check::<V6>(None, None);
    check::<V7>(Some(72), Some(64));
}

#[test]
fn copy_engines() {
    fn check<V: Version>(tag: Option<usize>) {
        let raw = Raw::<V>::of(EventType::CeColl)
            .put(24, 77_u64)
            .text(32, FUNC)
            .put(40, SEND)
            .put(48, RECV)
            .put(56, 9_usize)
            .put(64, -1_i32)
            .text(72, TYPE)
            .nulls(&[80])
            .put(88, 0_u8)
            .put(92, 4_u32)
            .put(96, 5_u32)
            .put(100, 77_u32)
            .put(104, STREAM);
        let raw = match tag {
            Some(at) => raw.put(at, 42_u64),
            None => raw,
        };
        let expected = descr::CeColl {
            seq_number: 77,
            func: lit(FUNC),
            send_buff: SEND,
            recv_buff: RECV,
            count: 9,
            root: -1,
            datatype: lit(TYPE),
            sync_strategy: Str::NULL,
            intra_batch_sync: false,
            batch_size: 4,
            num_batches: 5,
            ce_seq_num: 77,
            stream: STREAM,
            user_tag: tag.and(NonZeroU64::new(42)),
        };
        assert_eq!(raw.descr(), Descr::CeColl(expected));

        let raw = Raw::<V>::of(EventType::CeSync).put(24, 1_u8).put(28, 8_i32);
        assert_eq!(raw.descr(), Descr::CeSync(descr::CeSync { is_complete: true, n_ranks: 8 }));

        let raw = Raw::<V>::of(EventType::CeBatch).put(24, 3_i32).put(32, 999_usize).put(40, 0_u8);
        let expected = descr::CeBatch { num_ops: 3, total_bytes: 999, use_intra_sync: false };
        assert_eq!(raw.descr(), Descr::CeBatch(expected));
    }
    check::<V6>(None);
    check::<V7>(Some(112));
}

#[test]
fn null_strings_stay_null() {
    fn check<V: Version>(coll: &[usize], p2p: &[usize]) {
        let raw = Raw::<V>::of(EventType::Coll).nulls(coll);
        let Descr::Coll(c) = raw.descr() else { panic!("{:?}", raw.descr()) };
        let all = [c.name, c.func, c.datatype, c.algo, c.proto, c.kernel_variant];
        assert_eq!(all.map(text), [None; 6]);
        assert_eq!((c.func.addr(), c.func.is_null()), (0, true));
        let raw = Raw::<V>::of(EventType::P2p).nulls(p2p);
        let Descr::P2p(p) = raw.descr() else { panic!("{:?}", raw.descr()) };
        assert_eq!([p.name, p.func, p.datatype].map(text), [None; 3]);
    }
    check::<V2>(&[24, 48, 88, 112, 120], &[24, 40, 56]);
    check::<V3>(&[24, 48, 88, 104, 112], &[24, 40, 56]);
    check::<V4>(&[32, 72, 88, 96], &[24, 40]);
    check::<V5>(&[32, 72, 88, 96], &[24, 40]);
    check::<V6>(&[32, 72, 88, 96], &[24, 40]);
    check::<V7>(&[32, 72, 88, 96, 112], &[24, 40]);
}

/// The description of `data`, attached under `id`.
fn net_descr<V: Version>(id: i64, data: *const c_void) -> NetDescr {
    let raw = Raw::<V>::of(EventType::NetPlugin).put(24, id).put(32, data);
    let Descr::NetPlugin(event) = raw.descr() else { panic!("{:?}", raw.descr()) };
    assert_eq!((event.id, event.data), (NetPluginId(id), NetData(data)));
    // SAFETY: each caller passes NULL or what it names by the id, which outlives the call.
    unsafe { event.read() }
}

#[test]
fn network_plugins() {
    fn check<V: Version>() {
        // Kind and padding in one word: type 1 in the first byte, garbage in the seven after it.
        let head = 0xa5a5_a5a5_a5a5_a501_u64;
        let ib = [head, 0xa5a5_a5a5_0000_0002, 99, (17 << 32) | 1, 4096_u64];
        let data = ib.as_ptr().cast();
        let expected = NetDescr::IbQp { device: 2, wr_id: 99, opcode: 1, qp_num: 17, length: 4096 };
        assert_eq!(net_descr::<V>(0x10001, data), expected);
        let sock = [head, (1 << 32) | 33, 4096_u64];
        let expected = NetDescr::Socket { fd: 33, is_send: false, length: 4096 };
        assert_eq!(net_descr::<V>(0x20001, sock.as_ptr().cast()), expected);

        let other = [head + 1, 0, 0, 0, 0_u64];
        let other = other.as_ptr().cast();
        assert_eq!(net_descr::<V>(0x10001, other), NetDescr::Opaque);
        assert_eq!(net_descr::<V>(0x20001, other), NetDescr::Opaque);
        // With unknown ids, a pointer must not be dereferenced.
        let wild = ptr::without_provenance(8);
        for id in [0, -1, 0x10002, 0x30001, 0x0001_0001_0001] {
            assert_eq!(net_descr::<V>(id, wild), NetDescr::Opaque);
        }
        assert_eq!(net_descr::<V>(0x10001, ptr::null()), NetDescr::Opaque);
    }
    check::<V3>();
    check::<V4>();
    check::<V5>();
    check::<V6>();
    check::<V7>();
    assert_eq!((NetPluginId::SOCK_V1.kind(), NetPluginId::SOCK_V1.version()), (2, 1));
    assert_eq!((NetPluginId(0x0003_0007).kind(), NetPluginId(0x0003_0007).version()), (3, 7));
}
