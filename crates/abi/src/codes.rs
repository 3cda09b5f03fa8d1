// SPDX-License-Identifier: Apache-2.0
//! Version 1 passes function, data type, algorithm and protocol as numbers; these are the names
//! that later versions pass for them. NCCL `src/include/nccl_common.h`@v2.23.4-1 and later.
//!
//! Each table is as long as NCCL's today. A number beyond its end gets the name that NCCL's own
//! conversion falls back to.

use crate::names::Names;
use core::ffi::CStr;

/// `ncclFunc_t`: Broadcast 0 … WaitSignal 14 (8 and up since 2.28; version 1 only sees 0 to 7).
pub const FUNCS: [&CStr; 15] = TABLES.funcs.all();

/// `ncclDataType_t`, the public numbers. The table has `ncclUint8`, which NCCL's own conversion
/// (`src/collectives.cc`) omits: from version 2 on NCCL passes `Unknown` for it.
pub const DATATYPES: [&CStr; 12] = TABLES.datatypes.all();

/// `NCCL_ALGO_*`.
pub const ALGOS: [&CStr; 7] = TABLES.algos.all();

/// `NCCL_PROTO_*`.
pub const PROTOS: [&CStr; 3] = TABLES.protos.all();

const INVALID: &CStr = TABLES.beyond.all()[0];
const UNKNOWN: &CStr = TABLES.beyond.all()[1];

/// All tables in one object, so that names of different tables also lie at multiples of the stride.
#[repr(C)]
struct Tables {
    funcs: Names<15>,
    datatypes: Names<12>,
    algos: Names<7>,
    protos: Names<3>,
    beyond: Names<2>,
}

static TABLES: Tables = Tables {
    funcs: Names::new([
        c"Broadcast",
        c"Reduce",
        c"AllGather",
        c"ReduceScatter",
        c"AllReduce",
        c"SendRecv",
        c"Send",
        c"Recv",
        c"AlltoAll",
        c"Scatter",
        c"Gather",
        c"AllGatherV",
        c"PutSignal",
        c"Signal",
        c"WaitSignal",
    ]),
    datatypes: Names::new([
        c"ncclInt8",
        c"ncclUint8",
        c"ncclInt32",
        c"ncclUint32",
        c"ncclInt64",
        c"ncclUint64",
        c"ncclFloat16",
        c"ncclFloat32",
        c"ncclFloat64",
        c"ncclBfloat16",
        c"ncclFloat8e4m3",
        c"ncclFloat8e5m2",
    ]),
    algos: Names::new([
        c"TREE",
        c"RING",
        c"COLLNET_DIRECT",
        c"COLLNET_CHAIN",
        c"NVLS",
        c"NVLS_TREE",
        c"PAT",
    ]),
    protos: Names::new([c"LL", c"LL128", c"SIMPLE"]),
    beyond: Names::new([c"Invalid", c"Unknown"]),
};

/// Name of a function's number; `Invalid` for any other.
#[inline]
#[must_use]
pub fn func(code: u8) -> &'static CStr {
    lookup(&FUNCS, code, INVALID)
}

/// Name of a data type's number; `Unknown` for any other.
#[inline]
#[must_use]
pub fn datatype(code: u8) -> &'static CStr {
    lookup(&DATATYPES, code, UNKNOWN)
}

/// Name of an algorithm's number; `Unknown` for any other.
#[inline]
#[must_use]
pub fn algo(code: u8) -> &'static CStr {
    lookup(&ALGOS, code, UNKNOWN)
}

/// Name of a protocol's number; `Unknown` for any other.
#[inline]
#[must_use]
pub fn proto(code: u8) -> &'static CStr {
    lookup(&PROTOS, code, UNKNOWN)
}

/// The entry at `code`, or `other` past the end.
#[inline]
fn lookup(table: &[&'static CStr], code: u8, other: &'static CStr) -> &'static CStr {
    table.get(usize::from(code)).copied().unwrap_or(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::STRIDE;

    #[test]
    fn numbers_within_and_beyond_the_tables() {
        assert_eq!(func(4), c"AllReduce");
        assert_eq!(func(7), c"Recv");
        assert_eq!(func(15), c"Invalid");
        assert_eq!(datatype(1), c"ncclUint8");
        assert_eq!(datatype(11), c"ncclFloat8e5m2");
        assert_eq!(datatype(0xa5), c"Unknown");
        assert_eq!((algo(1), algo(6), algo(7)), (c"RING", c"PAT", c"Unknown"));
        assert_eq!((proto(0), proto(2), proto(255)), (c"LL", c"SIMPLE", c"Unknown"));
    }

    #[test]
    fn names_lie_a_stride_apart_across_all_tables() {
        let tables = [&FUNCS[..], &DATATYPES, &ALGOS, &PROTOS, &[INVALID, UNKNOWN]].concat();
        let begin = tables[0].as_ptr().addr();
        let places = tables.iter().map(|name| name.as_ptr().addr() - begin);
        assert!(places.eq((0..39).map(|place| place * STRIDE)));
    }
}
