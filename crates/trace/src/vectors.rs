// SPDX-License-Identifier: Apache-2.0
/*!
A table of progress vectors: one of 64 bytes for each communicator of each process.

It is what a collector of very many ranks works on, and a file (`*.vectors`) of jobs of which only
counters are known. Layout, little-endian: `NCCLVECT`, version `u32` = 1, 0 `u32`, count `u64`, 40
bytes of 0; then the vectors, each
`comm:u64 process:u32 rank:u32 nranks:u32 api:u32 enqueued:u32 started:u32 done:u32 age_ms:u32
hash:u64 flags:u32 peer:i32 edge:u32 hash_at:u32`.
*/

use crate::define::{u32_at, u64_at};
use crate::error::Error;
use std::io::{self, Write};

/// Bytes of a vector, and of the file's header.
pub const VECTOR_BYTES: usize = 64;
/// How file names end.
pub const SUFFIX: &str = ".vectors";
const MAGIC: [u8; 8] = *b"NCCLVECT";
const VERSION: u32 = 1;

/// Bits of [`Vector::flags`] beyond [`crate::progress::progress_flags`], which are the lowest 8.
pub mod vector_flags {
    /// The process sent nothing for three periods: dead, or cut off.
    pub const SILENT: u32 = 1 << 8;
    /// The process has operations in flight on another communicator.
    pub const BUSY_ELSEWHERE: u32 = 1 << 9;
}

/// Counts of one communicator in one process; see [`crate::progress::Progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Vector {
    /// [`crate::Comm::hash`].
    pub comm: u64,
    /// Rank of the process in its job.
    pub process: u32,
    /// Its rank in the communicator.
    pub rank: u32,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// Collectives called.
    pub api: u32,
    /// Collectives enqueued.
    pub enqueued: u32,
    /// Collectives up to the latest whose kernel started.
    pub started: u32,
    /// Collectives before the first that is not complete.
    pub done: u32,
    /// Age of the oldest operation in flight, ms; 0 with none.
    pub age_ms: u32,
    /// Rolling hash over the first `hash_at` collectives.
    pub hash: u64,
    /// How many collectives `hash` covers.
    pub hash_at: u32,
    /// [`vector_flags`] and [`crate::progress::progress_flags`].
    pub flags: u32,
    /// Peer of the network link that has waited longest; -1 none.
    pub peer: i32,
    /// That link: bits 0..8 channel, bit 8 send, bits 9..11 states that its oldest step reached,
    /// bit 11 whether a step is in flight.
    pub edge: u32,
}

/// A network link, as [`Vector::edge`] holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Edge {
    /// Channel.
    pub channel: u8,
    /// A send; else a receive.
    pub is_send: bool,
    /// States that its oldest step reached, 0 to 3; `None` with no step in flight.
    pub reached: Option<u8>,
}

impl Edge {
    /// The bits of [`Vector::edge`].
    #[must_use]
    pub fn bits(self) -> u32 {
        let reached = self.reached.map_or(0, |reached| u32::from(reached & 3) << 9 | 1 << 11);
        u32::from(self.channel) | u32::from(self.is_send) << 8 | reached
    }

    /// The link that bits stand for.
    #[must_use]
    pub fn of(bits: u32) -> Edge {
        let [channel, second, ..] = bits.to_le_bytes();
        let reached = (second & 8 != 0).then_some(second >> 1 & 3);
        Edge { channel, is_send: second & 1 != 0, reached }
    }
}

impl Vector {
    /// The vector's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; VECTOR_BYTES] {
        let mut out = [0; VECTOR_BYTES];
        let (first, rest) = out.split_at_mut(40);
        first[..8].copy_from_slice(&self.comm.to_le_bytes());
        let counts = [
            self.process,
            self.rank,
            self.nranks,
            self.api,
            self.enqueued,
            self.started,
            self.done,
            self.age_ms,
        ];
        for (to, count) in first[8..].chunks_exact_mut(4).zip(counts) {
            to.copy_from_slice(&count.to_le_bytes());
        }
        rest[..8].copy_from_slice(&self.hash.to_le_bytes());
        let last = [self.flags, self.peer.cast_unsigned(), self.edge, self.hash_at];
        for (to, word) in rest[8..].chunks_exact_mut(4).zip(last) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads a vector; `None` if `bytes` are too few.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Vector> {
        let bytes = bytes.get(..VECTOR_BYTES)?;
        let word = |at| u32_at(bytes, at);
        Some(Vector {
            comm: u64_at(bytes, 0)?,
            process: word(8)?,
            rank: word(12)?,
            nranks: word(16)?,
            api: word(20)?,
            enqueued: word(24)?,
            started: word(28)?,
            done: word(32)?,
            age_ms: word(36)?,
            hash: u64_at(bytes, 40)?,
            flags: word(48)?,
            peer: word(52)?.cast_signed(),
            edge: word(56)?,
            hash_at: word(60)?,
        })
    }
}

/// True if a file that begins so is a table of vectors.
#[must_use]
pub fn is_table(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// A table's bytes.
#[must_use]
pub fn table(vectors: &[Vector]) -> Vec<u8> {
    let mut out = vec![0; VECTOR_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&(vectors.len() as u64).to_le_bytes());
    out.extend(vectors.iter().flat_map(Vector::encode));
    out
}

/// Writes a table.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut dyn Write, vectors: &[Vector]) -> io::Result<()> {
    out.write_all(&table(vectors))
}

/// Reads a table. One that was cut off gives the vectors that are whole.
///
/// # Errors
/// [`Error::Empty`], [`Error::NotARecording`], [`Error::TruncatedHeader`], or
/// [`Error::NewerFormat`] for a later version.
pub fn read(bytes: &[u8]) -> Result<Vec<Vector>, Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    if !is_table(bytes) {
        return Err(Error::NotARecording);
    }
    let (Some(version), Some(count), Some(rest)) =
        (u32_at(bytes, 8), u64_at(bytes, 16), bytes.get(VECTOR_BYTES..))
    else {
        return Err(Error::TruncatedHeader { len: bytes.len() as u64 });
    };
    if version != VERSION {
        let major = u16::try_from(version).unwrap_or(u16::MAX);
        let found = crate::version::FormatVersion { major, minor: 0 };
        return Err(Error::NewerFormat { found });
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok(rest.chunks_exact(VECTOR_BYTES).take(count).filter_map(Vector::decode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: u32) -> Vector {
        Vector {
            comm: u64::from(n) << 40 | 7,
            process: n,
            rank: n + 1,
            nranks: n + 2,
            api: n + 3,
            enqueued: n + 4,
            started: n + 5,
            done: n + 6,
            age_ms: n + 7,
            hash: u64::MAX - u64::from(n),
            hash_at: n + 8,
            flags: n + 9,
            peer: -1,
            edge: n + 10,
        }
    }

    #[test]
    fn an_edge_comes_back() {
        assert_eq!(Edge::of(0), Edge::default());
        for reached in [None, Some(0), Some(1), Some(2), Some(3)] {
            for is_send in [false, true] {
                let edge = Edge { channel: 200, is_send, reached };
                assert_eq!(Edge::of(edge.bits()), edge);
            }
        }
    }

    #[test]
    fn a_table_comes_back_and_a_cut_one_gives_what_is_whole() {
        let vectors: Vec<_> = (0..5).map(sample).collect();
        let mut bytes = Vec::new();
        write(&mut bytes, &vectors).unwrap();
        assert_eq!(read(&bytes).unwrap(), vectors);
        for cut in 0..bytes.len() {
            match read(&bytes[..cut]) {
                Ok(found) => assert_eq!(found, vectors[..(cut - 64) / 64]),
                Err(_) => assert!(cut < VECTOR_BYTES),
            }
        }
        bytes[8] = 2;
        assert!(matches!(read(&bytes), Err(Error::NewerFormat { .. })));
        assert!(matches!(read(b"NCCLSCOP"), Err(Error::NotARecording)));
    }
}
