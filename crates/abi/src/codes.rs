// SPDX-License-Identifier: Apache-2.0
//! Version 1 passes function, data type, algorithm and protocol as numbers; these are the names
//! that later versions pass for them. NCCL `src/include/nccl_common.h`@v2.23.4-1 and later.
//!
//! Every table ends where NCCL's does today. A number beyond it gets the name that NCCL's own
//! conversion falls back to.

use core::ffi::CStr;

/// `ncclFunc_t`: Broadcast 0 … WaitSignal 14 (8 and up since 2.28; version 1 only sees 0 to 7).
pub const FUNCS: [&CStr; 15] = placed(0);

/// `ncclDataType_t`, the public numbers. `ncclUint8` is here, though NCCL's own conversion
/// (`src/collectives.cc`) has forgotten it and says `Unknown` from version 2 on.
pub const DATATYPES: [&CStr; 12] = placed(15);

/// `NCCL_ALGO_*`.
pub const ALGOS: [&CStr; 7] = placed(27);

/// `NCCL_PROTO_*`.
pub const PROTOS: [&CStr; 3] = placed(34);

const INVALID: &CStr = name(37);
const UNKNOWN: &CStr = name(38);

/// The tables in their order, and the names of numbers beyond them.
const NAMES: [&CStr; 39] = [
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
    c"TREE",
    c"RING",
    c"COLLNET_DIRECT",
    c"COLLNET_CHAIN",
    c"NVLS",
    c"NVLS_TREE",
    c"PAT",
    c"LL",
    c"LL128",
    c"SIMPLE",
    c"Invalid",
    c"Unknown",
];

/// Bytes from one name to the next. The recorder looks names up by their addresses, and takes forty
/// instructions more for one whose place in its table another has. No two of forty names at this
/// distance share a place, wherever the library is loaded; the recorder's interner has the test.
const STRIDE: usize = 21;

static PLACES: [[u8; STRIDE]; NAMES.len()] = {
    let mut places = [[0; STRIDE]; NAMES.len()];
    let mut i = 0;
    while i < NAMES.len() {
        let text = NAMES[i].to_bytes();
        places[i].split_at_mut(text.len()).0.copy_from_slice(text);
        i += 1;
    }
    places
};

/// The name at a place.
const fn name(place: usize) -> &'static CStr {
    match CStr::from_bytes_until_nul(&PLACES[place]) {
        Ok(name) => name,
        Err(_) => panic!("a name that is too long"),
    }
}

/// The names from a place on.
const fn placed<const N: usize>(from: usize) -> [&'static CStr; N] {
    let mut names = [c""; N];
    let mut i = 0;
    while i < N {
        names[i] = name(from + i);
        i += 1;
    }
    names
}

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
    fn no_name_is_cut_and_none_is_left_out() {
        let tables = [&FUNCS[..], &DATATYPES, &ALGOS, &PROTOS, &[INVALID, UNKNOWN]].concat();
        assert_eq!(tables, NAMES);
    }
}
