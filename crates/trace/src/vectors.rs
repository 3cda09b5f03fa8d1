// SPDX-License-Identifier: Apache-2.0
/*!
A table of progress vectors: one vector of 88 bytes for each communicator of each process.

Collectors of very many ranks use it in memory, and as the file format (`*.vectors`) for jobs of
which only the counters are known. Layout, little-endian: `NCCLVECT`, version `u32` = 2, 0 `u32`,
vectors `u64`, jobs `u64`, 32 bytes of 0; then the vectors, each `comm:u64 process:u32 rank:u32
nranks:u32 api:u32 enqueued:u32 started:u32 done:u32 age_ms:u32 hash:u64 flags:u32 peer:i32 edge:u32
hash_at:u32 job:u64 origin:u64 p2p_enqueued:u32 p2p_done:u32`; then the names of jobs, each `job:u64
bytes:u32` and the text. Version 1 has vectors without the last four fields, and no names.
*/

use crate::bytes::{u32_at, u64_at};
use crate::error::Error;
use crate::identity::Identity;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};

/// Bytes of a vector.
pub const VECTOR_BYTES: usize = 88;
/// Bytes of the file's header (`HEAD`), and of a vector of version 1.
const HEAD: usize = 64;
/// Suffix of the file names.
pub const SUFFIX: &str = ".vectors";
const MAGIC: [u8; 8] = *b"NCCLVECT";
const VERSION: u32 = 2;

/// Bits of [`Vector::flags`] beyond [`crate::progress::progress_flags`], which are the lowest 8.
pub mod vector_flags {
    /// The process sent nothing for three periods and is not known to be stopped: it is dead or
    /// disconnected.
    pub const SILENT: u32 = 1 << 8;
    /// The process has operations in flight on another communicator.
    pub const BUSY_ELSEWHERE: u32 = 1 << 9;
    /// Sends and receives are not counted (version 1 of the table).
    pub const NO_P2P: u32 = 1 << 10;
    /// The process has called sends or receives that NCCL has not enqueued, perhaps because it is
    /// connecting to their peers.
    pub const IN_P2P_CALL: u32 = 1 << 11;
    /// The process exists, and a signal or a debugger stopped it.
    pub const STOPPED: u32 = 1 << 12;
    /// The process exists, and is frozen with its control group.
    pub const FROZEN: u32 = 1 << 13;
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
    /// Number of collectives before the first that is not complete.
    pub done: u32,
    /// Age of the oldest operation in flight, ms; 0 if there is none.
    pub age_ms: u32,
    /// Rolling hash over the first `hash_at` collectives.
    pub hash: u64,
    /// How many collectives `hash` covers.
    pub hash_at: u32,
    /// [`vector_flags`] and [`crate::progress::progress_flags`].
    pub flags: u32,
    /// Peer of the network link that has waited longest; -1 if there is none.
    pub peer: i32,
    /// The link that has waited longest ([`Edge`]): bits 0..8 channel, bit 8 send, bits 9..11
    /// states that its oldest step reached, bit 11 whether a step is in flight, bit 12
    /// [`Edge::may_be_early`].
    pub edge: u32,
    /// The job and its launch ([`job_number`]); 0 unknown.
    pub job: u64,
    /// A number that identifies the process ([`origin_number`]); 0 if unknown, `process` then
    /// identifies it.
    pub origin: u64,
    /// Sends and receives enqueued.
    pub p2p_enqueued: u32,
    /// Sends and receives that are complete.
    pub p2p_done: u32,
}

/// The vectors of a table, and the names of their jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The vectors.
    pub vectors: Vec<Vector>,
    /// Names by [`Vector::job`].
    pub jobs: BTreeMap<u64, String>,
    /// What is missing from a table that was read, one line each.
    pub damage: Vec<String>,
}

/// The number of a process's job and launch; 0 if neither is known.
#[must_use]
pub fn job_number(identity: &Identity) -> u64 {
    match (&identity.job, &identity.run) {
        (None, None) => 0,
        known => number(&known),
    }
}

/// A number that identifies a process; 0 if nothing is known of it.
#[must_use]
pub fn origin_number(identity: &Identity) -> u64 {
    number(&identity.process())
}

/// A hash that is the same in every build of the tool, and not 0.
fn number(of: &impl Hash) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    of.hash(&mut hasher);
    hasher.finish().max(1)
}

/// FNV-1a, because the standard library's hashes differ between its versions.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        let step =
            |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, step);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A network link, as [`Vector::edge`] holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Edge {
    /// Channel.
    pub channel: u8,
    /// A send; else a receive.
    pub is_send: bool,
    /// Number of states that its oldest step reached, 0 to 3; `None` if no step is in flight.
    pub reached: Option<u8>,
    /// A receive that the network may report as complete before its data arrived (a network plugin,
    /// with LL or LL128).
    pub may_be_early: bool,
}

impl Edge {
    /// The bits of [`Vector::edge`].
    #[must_use]
    pub fn bits(self) -> u32 {
        let reached = self.reached.map_or(0, |reached| u32::from(reached & 3) << 9 | 1 << 11);
        let early = u32::from(self.may_be_early) << 12;
        u32::from(self.channel) | u32::from(self.is_send) << 8 | reached | early
    }

    /// The link that [`Vector::edge`] encodes.
    #[must_use]
    pub fn of(bits: u32) -> Edge {
        let [channel, second, ..] = bits.to_le_bytes();
        let reached = (second & 8 != 0).then_some(second >> 1 & 3);
        Edge { channel, is_send: second & 1 != 0, reached, may_be_early: second & 16 != 0 }
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
        for (to, word) in rest[8..24].chunks_exact_mut(4).zip(last) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        rest[24..32].copy_from_slice(&self.job.to_le_bytes());
        rest[32..40].copy_from_slice(&self.origin.to_le_bytes());
        rest[40..44].copy_from_slice(&self.p2p_enqueued.to_le_bytes());
        rest[44..].copy_from_slice(&self.p2p_done.to_le_bytes());
        out
    }

    /// Reads a vector; `None` if `bytes` are too few.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Vector> {
        let first = Vector::decode_first(bytes)?;
        Some(Vector {
            job: u64_at(bytes, 64)?,
            origin: u64_at(bytes, 72)?,
            p2p_enqueued: u32_at(bytes, 80)?,
            p2p_done: u32_at(bytes, 84)?,
            ..first
        })
    }

    /// Reads a vector of version 1.
    fn decode_first(bytes: &[u8]) -> Option<Vector> {
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
            ..Vector::default()
        })
    }
}

/// Whether a file that begins with `bytes` is a table of vectors.
#[must_use]
pub fn is_table(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Encodes a table of `vectors` with the names of their `jobs`.
#[must_use]
pub fn table(vectors: &[Vector], jobs: &BTreeMap<u64, String>) -> Vec<u8> {
    let mut out = vec![0; HEAD];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&(vectors.len() as u64).to_le_bytes());
    out[24..32].copy_from_slice(&(jobs.len() as u64).to_le_bytes());
    out.extend(vectors.iter().flat_map(Vector::encode));
    for (job, name) in jobs {
        out.extend(job.to_le_bytes());
        out.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(name.bytes());
    }
    out
}

/// Writes a table of a job without a name.
///
/// # Errors
/// An error of `out`.
pub fn write(out: &mut dyn Write, vectors: &[Vector]) -> io::Result<()> {
    out.write_all(&table(vectors, &BTreeMap::new()))
}

/// The vectors of a table; see [`read_table`].
///
/// # Errors
/// As [`read_table`].
pub fn read(bytes: &[u8]) -> Result<Vec<Vector>, Error> {
    read_table(bytes).map(|table| table.vectors)
}

/// Decodes a table. Of a truncated one it returns the whole vectors and names, and
/// [`Table::damage`] says what is missing.
///
/// # Errors
/// [`Error::Empty`], [`Error::NotARecording`], [`Error::TruncatedHeader`], or
/// [`Error::NewerFormat`] for a later version.
pub fn read_table(bytes: &[u8]) -> Result<Table, Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    if !is_table(bytes) {
        return Err(Error::NotARecording);
    }
    let (Some(version), Some(count), Some(jobs), Some(rest)) =
        (u32_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24), bytes.get(HEAD..))
    else {
        return Err(Error::TruncatedHeader { len: bytes.len() as u64 });
    };
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    match version {
        1 => {
            let vectors = rest.chunks_exact(HEAD).take(most).filter_map(Vector::decode_first);
            let unknown = |v: Vector| Vector { flags: v.flags | vector_flags::NO_P2P, ..v };
            let vectors: Vec<Vector> = vectors.map(unknown).collect();
            let behind = rest.len().saturating_sub(most.saturating_mul(HEAD));
            let damage = damage((vectors.len(), count), (0, 0), behind);
            Ok(Table { vectors, damage, ..Table::default() })
        }
        VERSION => {
            let vectors = rest.chunks_exact(VECTOR_BYTES).take(most);
            let vectors: Vec<Vector> = vectors.filter_map(Vector::decode).collect();
            let behind = rest.get(most.saturating_mul(VECTOR_BYTES)..).unwrap_or(&[]);
            let (names, behind) = names(behind, jobs);
            let damage = damage((vectors.len(), count), (names.len(), jobs), behind.len());
            Ok(Table { vectors, jobs: names.into_iter().collect(), damage })
        }
        later => {
            let major = u16::try_from(later).unwrap_or(u16::MAX);
            let found = crate::version::FormatVersion { major, minor: 0 };
            Err(Error::NewerFormat { found })
        }
    }
}

/// Lines about what is missing from a table. `vectors` and `names` are the number read and the
/// number announced; `behind` is the number of bytes after them.
fn damage(vectors: (usize, u64), names: (usize, u64), behind: usize) -> Vec<String> {
    let mut damage = Vec::new();
    for (what, (read, promised)) in [("vectors", vectors), ("names of jobs", names)] {
        let is_size =
            promised.checked_mul(VECTOR_BYTES as u64).is_some_and(|bytes| bytes >> 48 == 0);
        if !is_size {
            damage.push(format!("its header has an impossible number of {what}"));
        } else if (read as u64) < promised {
            damage.push(format!("of {promised} {what} it has {read}"));
        }
    }
    // Bytes after a truncated table are part of what is missing, so they get no line.
    if behind > 0 && damage.is_empty() {
        damage.push(format!("it does not end where its header says ({behind} B more)"));
    }
    damage
}

/// Up to `count` names of jobs, and the bytes after them.
fn names(mut bytes: &[u8], count: u64) -> (Vec<(u64, String)>, &[u8]) {
    let mut names = Vec::new();
    for _ in 0..count {
        let (Some(job), Some(length)) = (u64_at(bytes, 0), u32_at(bytes, 8)) else { break };
        let end = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(12);
        let Some(text) = bytes.get(12..end) else { break };
        names.push((job, String::from_utf8_lossy(text).into_owned()));
        bytes = bytes.get(end..).unwrap_or(&[]);
    }
    (names, bytes)
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
            job: u64::from(n) << 33,
            origin: u64::MAX - 9,
            p2p_enqueued: n + 11,
            p2p_done: n + 12,
        }
    }

    #[test]
    fn an_edge_comes_back() {
        assert_eq!(Edge::of(0), Edge::default());
        for reached in [None, Some(0), Some(1), Some(2), Some(3)] {
            for is_send in [false, true] {
                let edge = Edge { channel: 200, is_send, reached, may_be_early: !is_send };
                assert_eq!(Edge::of(edge.bits()), edge);
            }
        }
    }

    #[test]
    fn a_table_comes_back_and_a_cut_one_gives_what_is_whole() {
        let vectors: Vec<_> = (0..5).map(sample).collect();
        let jobs = BTreeMap::from([(7, "4711.0".to_owned()), (9, "b".to_owned())]);
        let mut bytes = table(&vectors, &jobs);
        let whole = Table { vectors: vectors.clone(), jobs, damage: vec![] };
        assert_eq!(read_table(&bytes).unwrap(), whole);
        let ends = [HEAD + 5 * VECTOR_BYTES + 18, bytes.len()];
        for cut in 0..bytes.len() {
            match read_table(&bytes[..cut]) {
                Ok(found) => {
                    let whole = ((cut - HEAD) / VECTOR_BYTES).min(5);
                    assert_eq!(found.vectors, vectors[..whole]);
                    let names = ends.iter().filter(|&&end| end <= cut).count();
                    assert_eq!(found.jobs.len(), names, "{cut}");
                    let of_vectors = format!("of 5 vectors it has {whole}");
                    let of_names = format!("of 2 names of jobs it has {names}");
                    let expected =
                        if whole < 5 { &[of_vectors, of_names][..] } else { &[of_names] };
                    assert_eq!(found.damage, expected, "{cut}");
                }
                Err(_) => assert!(cut < HEAD),
            }
        }
        let damage = |bytes: &[u8]| read_table(bytes).unwrap().damage;
        let two = [&bytes[..], &bytes].concat();
        let more = format!("it does not end where its header says ({} B more)", bytes.len());
        assert_eq!(damage(&two), [more]);
        bytes[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
        assert_eq!(damage(&bytes)[0], "its header has an impossible number of vectors");
        bytes[8] = 3;
        assert!(matches!(read(&bytes), Err(Error::NewerFormat { .. })));
        assert!(matches!(read(b"NCCLSCOP"), Err(Error::NotARecording)));
        let mut one = Vec::new();
        write(&mut one, &vectors).unwrap();
        assert_eq!(read(&one).unwrap(), vectors);
    }

    #[test]
    fn a_table_of_version_1_has_no_jobs_and_counts_no_sends() {
        let mut bytes = table(&[], &BTreeMap::new());
        (bytes[8], bytes[16]) = (1, 2);
        for n in 0..2 {
            bytes.extend(&sample(n).encode()[..64]);
        }
        let found = read(&bytes).unwrap();
        let (job, origin, p2p_enqueued, p2p_done) = (0, 0, 0, 0);
        let flags = sample(1).flags | vector_flags::NO_P2P;
        let expected = Vector { job, origin, p2p_enqueued, p2p_done, flags, ..sample(1) };
        assert_eq!(found[1], expected);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn jobs_and_processes_have_a_number_each() {
        let mut one = Identity { pid: Some(7), host: Some("a".into()), ..Identity::default() };
        assert_eq!(job_number(&one), 0);
        one.set("job", "4711.0");
        let mut again = one.clone();
        again.set("run", "4711.0 1");
        let other = Identity { pid: Some(8), ..one.clone() };
        assert!(job_number(&one) != 0 && job_number(&one) != job_number(&again));
        assert_eq!(job_number(&one), job_number(&other));
        assert_eq!(origin_number(&one), origin_number(&again));
        assert_ne!(origin_number(&one), origin_number(&other));
    }
}
