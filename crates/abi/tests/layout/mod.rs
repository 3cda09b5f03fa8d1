// SPDX-License-Identifier: Apache-2.0
//! Offset and size of every field of the ABI: one table, which `pinned.rs` compares with the Rust
//! types and `dwarf.rs` compares with libnccl.

use std::collections::BTreeMap;
use std::mem::offset_of;

use ncclscope_abi::{net, v1, v2, v3, v4, v5, v6, v7};

/// Offset and size of a field in its type, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// One field of a type, an arm of a union, or a field in an arm.
#[derive(Debug)]
pub(crate) struct Field {
    /// Path in C, such as `coll.count`; anonymous members add nothing to it.
    pub(crate) path: String,
    /// Offset and size by the table.
    pub(crate) pinned: Place,
    /// Offset and size in the Rust type.
    pub(crate) rust: Place,
}

/// One C type.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Size by the table.
    pub(crate) pinned_size: usize,
    /// Size of the Rust type.
    pub(crate) rust_size: usize,
    /// All fields and union arms, including those within arms.
    pub(crate) fields: Vec<Field>,
}

/// C types by name.
pub(crate) type Layouts = BTreeMap<&'static str, Layout>;

/// A field's [`Place`]. `_project` only determines the type and is never called.
fn place<T, F>(offset: usize, _project: fn(*const T) -> *const F) -> Place {
    Place { offset, size: size_of::<F>() }
}

/// One entry of the table: `-`, or an offset, from which a [`Field`] is made.
macro_rules! entry {
    ($out:ident, $c:expr, $ty:ty, $inner:tt, $path:tt, $size:literal, -) => {};
    ($out:ident, $c:expr, $ty:ty, [$($inner:tt)*], [$($path:tt)+], $size:literal, $at:literal) => {
        $out.entry($c).or_default().fields.push(Field {
            path: stringify!($($path)+).replace("r#", "").replace(' ', ""),
            pinned: Place { offset: $at, size: $size },
            rust: place(offset_of!($ty, $($inner)* $($path)+), |t: *const $ty| {
                // SAFETY: never run; only the type of the result matters.
                unsafe { &raw const (*t).$($inner)* $($path)+ }
            }),
        });
    };
}

/// One type: its C name, its Rust name, then `size: n` and a line per field: `path, size: offset`.
macro_rules! one {
    ($out:ident, $c:expr, $ty:ty, $bytes:literal, $inner:tt,
     $($($path:ident).+, $size:literal: $at:tt;)*) => {
        let layout = $out.entry($c).or_default();
        layout.pinned_size = $bytes;
        layout.rust_size = size_of::<$ty>();
        $(entry!($out, $c, $ty, $inner, [$($path).+], $size, $at);)*
    };
}

/// One type of all versions. The first line holds its size, the others a field each: path,
/// size, offset in version 1, 2, … A field whose size depends on the version has a line per size.
macro_rules! all {
    ($out:ident, $c:literal, $ty:ident, $inner:tt,
     size: $s1:tt $s2:tt $s3:tt $s4:tt $s5:tt $s6:tt $s7:tt;
     $($($p:ident).+, $size:literal: $a1:tt $a2:tt $a3:tt $a4:tt $a5:tt $a6:tt $a7:tt;)*) => {
        one!($out, concat!($c, "_v1_t"), v1::$ty, $s1, $inner, $($($p).+, $size: $a1;)*);
        one!($out, concat!($c, "_v2_t"), v2::$ty, $s2, $inner, $($($p).+, $size: $a2;)*);
        one!($out, concat!($c, "_v3_t"), v3::$ty, $s3, $inner, $($($p).+, $size: $a3;)*);
        one!($out, concat!($c, "_v4_t"), v4::$ty, $s4, $inner, $($($p).+, $size: $a4;)*);
        one!($out, concat!($c, "_v5_t"), v5::$ty, $s5, $inner, $($($p).+, $size: $a5;)*);
        one!($out, concat!($c, "_v6_t"), v6::$ty, $s6, $inner, $($($p).+, $size: $a6;)*);
        one!($out, concat!($c, "_v7_t"), v7::$ty, $s7, $inner, $($($p).+, $size: $a7;)*);
    };
}

/// Fields common to all event descriptors.
fn header(out: &mut Layouts) {
    all! { out, "ncclProfilerEventDescr", EventDescr, [],
        size:         120 128 120 104 112 112 136;
        r#type, 1:      0   0   0   0   -   -   -;
        r#type, 8:      -   -   -   -   0   0   0;
        parentObj, 8:   8   8   8   8   8   8   8;
        rank, 4:       16  16  16  16  16  16  16;
    }
}

/// Fields of Coll descriptors.
fn coll(out: &mut Layouts) {
    all! { out, "ncclProfilerEventDescr", EventDescr, [payload.],
        size:                  120 128 120 104 112 112 136;
        coll, 96:               24   -  24   -   -   -   -;
        coll, 104:               -  24   -   -   -   -   -;
        coll, 80:                -   -   -  24   -   -   -;
        coll, 88:                -   -   -   -  24  24   -;
        coll, 112:               -   -   -   -   -   -  24;
        coll.name, 8:           24  24  24   -   -   -   -;
        coll.commHash, 8:       32  32  32   -   -   -   -;
        coll.seqNumber, 8:      40  40  40  24  24  24  24;
        coll.func, 1:           48   -   -   -   -   -   -;
        coll.func, 8:            -  48  48  32  32  32  32;
        coll.sendBuff, 8:       56  56  56  40  40  40  40;
        coll.recvBuff, 8:       64  64  64  48  48  48  48;
        coll.count, 8:          72  72  72  56  56  56  56;
        coll.root, 4:           80  80  80  64  64  64  64;
        coll.datatype, 1:       84   -   -   -   -   -   -;
        coll.datatype, 8:        -  88  88  72  72  72  72;
        coll.op, 4:             88   -   -   -   -   -   -;
        coll.trafficBytes, 8:   96  96   -   -   -   -   -;
        coll.nMaxChannels, 1:  104 104  96   -   -   -   -;
        coll.nChannels, 1:       -   -   -  80  80  80  80;
        coll.nWarps, 1:        105 105  97  81  81  81  81;
        coll.algo, 1:          106   -   -   -   -   -   -;
        coll.algo, 8:            - 112 104  88  88  88  88;
        coll.proto, 1:         107   -   -   -   -   -   -;
        coll.proto, 8:           - 120 112  96  96  96  96;
        coll.isCollnet, 4:     108   -   -   -   -   -   -;
        coll.isNvls, 4:        112   -   -   -   -   -   -;
        coll.parentGroup, 8:     -   -   -   - 104 104 104;
        coll.kernelVariant, 8:   -   -   -   -   -   - 112;
        coll.isSymColl, 1:       -   -   -   -   -   - 120;
        coll.userTag, 8:         -   -   -   -   -   - 128;
    }
}

/// Fields of the descriptors of P2p and of the events below it.
fn p2p_and_below(out: &mut Layouts) {
    all! { out, "ncclProfilerEventDescr", EventDescr, [payload.],
        size:                  120 128 120 104 112 112 136;
        p2p, 56:                24  24  24   -   -   -  24;
        p2p, 40:                 -   -   -  24   -   -   -;
        p2p, 48:                 -   -   -   -  24  24   -;
        p2p.name, 8:            24  24  24   -   -   -   -;
        p2p.commHash, 8:        32  32  32   -   -   -   -;
        p2p.func, 1:            40   -   -   -   -   -   -;
        p2p.func, 8:             -  40  40  24  24  24  24;
        p2p.buff, 8:            48  48  48  32  32  32  32;
        p2p.datatype, 1:        56   -   -   -   -   -   -;
        p2p.datatype, 8:         -  56  56  40  40  40  40;
        p2p.count, 8:           64  64  64  48  48  48  48;
        p2p.peer, 4:            72  72  72  56  56  56  56;
        p2p.nChannels, 1:        -   -   -  60  60  60  60;
        p2p.parentGroup, 8:      -   -   -   -  64  64  64;
        p2p.userTag, 8:          -   -   -   -   -   -  72;
        proxyOp, 24:            24  24  24  24  24  24  24;
        proxyOp.pid, 4:         24  24  24  24  24  24  24;
        proxyOp.channelId, 1:   28  28  28  28  28  28  28;
        proxyOp.peer, 4:        32  32  32  32  32  32  32;
        proxyOp.nSteps, 4:      36  36  36  36  36  36  36;
        proxyOp.chunkSize, 4:   40  40  40  40  40  40  40;
        proxyOp.isSend, 4:      44  44  44  44  44  44  44;
        proxyStep, 4:           24  24  24  24  24  24  24;
        proxyStep.step, 4:      24  24  24  24  24  24  24;
        kernelCh, 1:             -   -  24   -   -   -   -;
        kernelCh, 16:            -   -   -  24  24  24  24;
        kernelCh.channelId, 1:   -   -  24  24  24  24  24;
        kernelCh.pTimer, 8:      -   -   -  32  32  32  32;
        netPlugin, 16:           -   -  24  24  24  24  24;
        netPlugin.id, 8:         -   -  24  24  24  24  24;
        netPlugin.data, 8:       -   -  32  32  32  32  32;
        kernelPhase, 24:           - - - - - - 24;
        kernelPhase.channelId, 1:  - - - - - - 24;
        kernelPhase.phaseId, 1:    - - - - - - 25;
        kernelPhase.phaseName, 8:  - - - - - - 32;
        kernelPhase.pTimer, 8:     - - - - - - 40;
    }
}

/// Fields of the descriptors of API calls and kernel launches.
fn api(out: &mut Layouts) {
    all! { out, "ncclProfilerEventDescr", EventDescr, [payload.],
        size:                120 128 120 104 112 112 136;
        groupApi, 8:               - - - - 24 24 24;
        groupApi.graphCaptured, 1: - - - - 24 24 24;
        groupApi.groupDepth, 4:    - - - - 28 28 28;
        collApi, 48:               - - - - 24 24  -;
        collApi, 56:               - - - -  -  - 24;
        collApi.func, 8:           - - - - 24 24 24;
        collApi.count, 8:          - - - - 32 32 32;
        collApi.datatype, 8:       - - - - 40 40 40;
        collApi.root, 4:           - - - - 48 48 48;
        collApi.stream, 8:         - - - - 56 56 56;
        collApi.graphCaptured, 1:  - - - - 64 64 64;
        collApi.userTag, 8:        - - - -  -  - 72;
        p2pApi, 40:                - - - - 24 24  -;
        p2pApi, 48:                - - - -  -  - 24;
        p2pApi.func, 8:            - - - - 24 24 24;
        p2pApi.count, 8:           - - - - 32 32 32;
        p2pApi.datatype, 8:        - - - - 40 40 40;
        p2pApi.stream, 8:          - - - - 48 48 48;
        p2pApi.graphCaptured, 1:   - - - - 56 56 56;
        p2pApi.userTag, 8:         - - - -  -  - 64;
        kernelLaunch, 8:           - - - - 24 24 24;
        kernelLaunch.stream, 8:    - - - - 24 24 24;
    }
}

/// Fields of the descriptors of copy engine events.
fn copy_engines(out: &mut Layouts) {
    all! { out, "ncclProfilerEventDescr", EventDescr, [payload.],
        size:                120 128 120 104 112 112 136;
        ceColl, 88:                  - - - - -  24   -;
        ceColl, 96:                  - - - - -   -  24;
        ceColl.seqNumber, 8:         - - - - -  24  24;
        ceColl.func, 8:              - - - - -  32  32;
        ceColl.sendBuff, 8:          - - - - -  40  40;
        ceColl.recvBuff, 8:          - - - - -  48  48;
        ceColl.count, 8:             - - - - -  56  56;
        ceColl.root, 4:              - - - - -  64  64;
        ceColl.datatype, 8:          - - - - -  72  72;
        ceColl.syncStrategy, 8:      - - - - -  80  80;
        ceColl.intraBatchSync, 1:    - - - - -  88  88;
        ceColl.batchSize, 4:         - - - - -  92  92;
        ceColl.numBatches, 4:        - - - - -  96  96;
        ceColl.ceSeqNum, 4:          - - - - - 100 100;
        ceColl.stream, 8:            - - - - - 104 104;
        ceColl.userTag, 8:           - - - - -   - 112;
        ceCollSync, 8:               - - - - -  24  24;
        ceCollSync.isComplete, 1:    - - - - -  24  24;
        ceCollSync.nRanks, 4:        - - - - -  28  28;
        ceCollBatch, 24:             - - - - -  24  24;
        ceCollBatch.numOps, 4:       - - - - -  24  24;
        ceCollBatch.totalBytes, 8:   - - - - -  32  32;
        ceCollBatch.useIntraSync, 1: - - - - -  40  40;
    }
}

/// State arguments.
fn state_args(out: &mut Layouts) {
    all! { out, "ncclProfilerEventStateArgs", StateArgs, [],
        size:                          16 16 16 8 8 8 8;
        proxyOp, 16:                    0  0  0 - - - -;
        proxyOp.transSize, 8:           0  0  0 - - - -;
        proxyOp.steps, 4:               8  8  8 - - - -;
        proxyStep, 8:                   -  -  - 0 0 0 0;
        proxyStep.transSize, 8:         -  -  - 0 0 0 0;
        proxyCtrl, 4:                   0  0  0 0 0 0 0;
        proxyCtrl.appendedProxyOps, 4:  0  0  0 0 0 0 0;
        netPlugin, 8:                   -  -  - 0 0 0 0;
        netPlugin.data, 8:              -  -  - 0 0 0 0;
        kernelCh, 8:                    -  -  - 0 0 0 0;
        kernelCh.pTimer, 8:             -  -  - 0 0 0 0;
    }
}

/// Adds the function tables: all have one layout, and the version only determines the types of the
/// functions.
macro_rules! tables {
    ($out:ident $(($v:ident = $number:literal, $module:ident, $table:ident, $symbol:ident,
        $($row:tt)*))*) => {$(
        one! { $out, concat!(stringify!($symbol), "_t"), ncclscope_abi::$table, 48, [],
            name, 8: 0;
            init, 8: 8;
            startEvent, 8: 16;
            stopEvent, 8: 24;
            recordEventState, 8: 32;
            finalize, 8: 40;
        }
    )*};
}

/// Function tables.
fn function_tables(out: &mut Layouts) {
    ncclscope_abi::for_each_version!(tables, out);
}

/// Types that network plugins attach. A libnccl built without `NET_PROFILER=1` does not have them.
pub(crate) const NET_TYPES: [&str; 2] =
    ["ncclProfilerNetIbDescr_v1_t", "ncclProfilerNetSockDescr_v1_t"];

/// Adds the [`NET_TYPES`].
fn network(out: &mut Layouts) {
    one! { out, NET_TYPES[0], net::NetIbDescrV1, 40, [],
        r#type, 1: 0;
        qp, 32: 8;
        qp.device, 4: 8;
        qp.wr_id, 8: 16;
        qp.opcode, 4: 24;
        qp.qpNum, 4: 28;
        qp.length, 8: 32;
    }
    one! { out, NET_TYPES[1], net::NetSockDescrV1, 24, [],
        r#type, 1: 0;
        sock, 16: 8;
        sock.fd, 4: 8;
        sock.op, 4: 12;
        sock.length, 8: 16;
    }
}

/// The whole table.
pub(crate) fn layouts() -> Layouts {
    let mut out = Layouts::new();
    header(&mut out);
    coll(&mut out);
    p2p_and_below(&mut out);
    api(&mut out);
    copy_engines(&mut out);
    state_args(&mut out);
    function_tables(&mut out);
    network(&mut out);
    out
}
