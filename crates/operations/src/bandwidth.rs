// SPDX-License-Identifier: Apache-2.0
/*!
Bytes and bandwidth of an operation, by the definitions of nccl-tests (its `doc/PERFORMANCE.md`).

The *size* of an operation is the bytes that nccl-tests prints: all ranks' data together where each
rank contributes or receives a part (AllGather, ReduceScatter, AlltoAll, Gather, Scatter), one
rank's data otherwise. NCCL's Coll event counts what one rank passed to the API; for AllGather and
Broadcast in bytes, as ncclInt8 (NCCL `src/enqueue.cc:2733@v2.30.7-1`). NCCL has no name for
ncclUint8, and in older releases for no datatype of 8 bits, and passes `Unknown`
(`ncclDatatypeToString` of `src/collectives.cc`), which therefore counts as one byte.
*/

use crate::stats::to_f64;

/// Bytes of one element of a datatype by NCCL's name; `None` for a name of a later release.
#[must_use]
pub fn datatype_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "ncclInt8" | "ncclChar" | "ncclUint8" | "ncclFloat8e4m3" | "ncclFloat8e5m2" => 1,
        "Unknown" => 1,
        "ncclFloat16" | "ncclHalf" | "ncclBfloat16" => 2,
        "ncclInt32" | "ncclInt" | "ncclUint32" | "ncclFloat32" | "ncclFloat" => 4,
        "ncclInt64" | "ncclUint64" | "ncclFloat64" | "ncclDouble" => 8,
        _ => return None,
    })
}

/// Whether each rank's `count` is only its part of the data.
fn is_split(func: &str) -> bool {
    matches!(func, "AllGather" | "ReduceScatter" | "AlltoAll" | "AllToAll" | "Gather" | "Scatter")
}

/// The size in bytes of an operation of `count` elements. `None` if the datatype is unknown, or the
/// number of ranks is unknown and matters.
#[must_use]
pub fn size_bytes(func: &str, datatype: &str, count: u64, nranks: Option<u32>) -> Option<u64> {
    let part = count.checked_mul(datatype_bytes(datatype)?)?;
    if is_split(func) { part.checked_mul(u64::from(nranks?)) } else { Some(part) }
}

/// The factor from algbw to busbw. `None` if the number of ranks is unknown and
/// matters.
#[must_use]
pub fn bus_factor(func: &str, nranks: Option<u32>) -> Option<f64> {
    let share = |nranks: u32| f64::from(nranks.saturating_sub(1)) / f64::from(nranks.max(1));
    match func {
        "AllReduce" => Some(2.0 * share(nranks?)),
        func if is_split(func) => Some(share(nranks?)),
        _ => Some(1.0),
    }
}

/// Algorithm bandwidth in GB/s (10^9 bytes a second).
#[must_use]
pub fn algbw_gbs(bytes: u64, duration_ns: f64) -> Option<f64> {
    (duration_ns > 0.0).then(|| to_f64(bytes) / duration_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_nccl_tests() {
        let size = |func, datatype, count| size_bytes(func, datatype, count, Some(4));
        assert_eq!(size("AllReduce", "ncclFloat32", 1024), Some(4096));
        assert_eq!(size("AllGather", "ncclInt8", 1024), Some(4096));
        assert_eq!(size("ReduceScatter", "ncclFloat16", 10), Some(80));
        assert_eq!(size("Send", "ncclFloat8e5m2", 10), Some(10));
        assert_eq!(size("AllReduce", "ncclNovel", 10), None);
        assert_eq!(size("AllReduce", "Unknown", 10), Some(10), "as NCCL calls ncclUint8");
        assert_eq!(size_bytes("AllGather", "ncclInt8", 1, None), None);
        assert_eq!(size_bytes("Broadcast", "ncclInt8", 7, None), Some(7));
    }

    #[test]
    fn factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor("AllReduce", Some(2)), Some(1.0));
        assert_eq!(bus_factor("AllReduce", Some(4)), Some(1.5));
        assert_eq!(bus_factor("ReduceScatter", Some(4)), Some(0.75));
        assert_eq!(bus_factor("Broadcast", None), Some(1.0));
        assert_eq!(bus_factor("AllGather", None), None);
        assert_eq!(algbw_gbs(4096, 1000.0), Some(4.096));
        assert_eq!(algbw_gbs(4096, 0.0), None);
    }
}
