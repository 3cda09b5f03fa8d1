// SPDX-License-Identifier: Apache-2.0
/*!
A table of progress vectors: one vector of 88 bytes for each communicator of each process, and more
only about what stands still.

Agents serve it at `/vectors`, and collectives of very many ranks use it in memory. Layout of a file
(`*.vectors`), little-endian: `NCCLVECT`, version `u32` = 3, 0 `u32`, vectors `u64`, jobs `u64`,
transfers `u64`, processes `u64`, when it was made in ns since 1970 `u64`, 0 `u64`; then

- the vectors, each `comm:u64 process:u32 rank:u32 nranks:u32 api:u32 enqueued:u32 started:u32
  done:u32 age_ms:u32 hash:u64 flags:u32 changed_ms:u32 born_ms:u32 hash_at:u32 job:u64 origin:u64
  p2p_enqueued:u32 p2p_done:u32`;
- the open transfers ([`OpenTransfer`]), of 36 bytes, by vector;
- the names of jobs, each `job:u64` and a text, which is `bytes:u32` and the bytes;
- the processes ([`ProcessFacts`]).

Another table may follow, so that tables of several agents can be concatenated.
*/

use crate::bytes::{u32_at, u64_at};
use crate::error::Error;
use crate::identity::Identity;
use crate::progress::progress_flags;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};

mod parts;
mod reach;

use parts::Cut;
pub use parts::{OpenTransfer, ProcessFacts, SetupFacts, TRANSFER_BYTES, ThreadFacts};
pub use reach::{ProcessPlace, Reach};

/// Bytes of a vector.
pub const VECTOR_BYTES: usize = 88;
/// Bytes of the file's header.
const HEAD: usize = 64;
/// Suffix of the file names.
pub const SUFFIX: &str = ".vectors";
const MAGIC: [u8; 8] = *b"NCCLVECT";
const VERSION: u32 = 3;

/// Bits of [`Vector::flags`] beyond [`crate::progress::progress_flags`], which are the lowest 8.
pub mod vector_flags {
    /// The process sent nothing for three periods and is not known to be stopped: it is dead or
    /// disconnected.
    pub const SILENT: u32 = 1 << 8;
    /// The process has operations in flight on another communicator.
    pub const BUSY_ELSEWHERE: u32 = 1 << 9;
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
    /// Time since the oldest operation in flight was issued, or since the one before completed if
    /// that was later, ms; 0 if there is none.
    pub age_ms: u32,
    /// Rolling hash over the first `hash_at` collectives.
    pub hash: u64,
    /// How many collectives `hash` covers.
    pub hash_at: u32,
    /// [`vector_flags`] and [`crate::progress::progress_flags`].
    pub flags: u32,
    /// Time since one of the counts last changed, ms.
    pub changed_ms: u32,
    /// Time since the oldest operation in flight was issued, ms; 0 if there is none.
    pub born_ms: u32,
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

/// The content of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The vectors.
    pub vectors: Vec<Vector>,
    /// The transfers that stand still, in the order of their vectors; those of a vector by their
    /// start.
    pub transfers: Vec<OpenTransfer>,
    /// Names by [`Vector::job`].
    pub jobs: BTreeMap<u64, String>,
    /// What is known of processes.
    pub processes: Vec<ProcessFacts>,
    /// When it was made, ns since 1970; 0 if unknown.
    pub made_ns: u64,
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

impl Vector {
    /// True if the rank's own watchdog reports a hang of the communicator.
    #[must_use]
    pub const fn is_stuck(&self) -> bool {
        self.flags & progress_flags::STUCK as u32 != 0
    }

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
        let last = [self.flags, self.changed_ms, self.born_ms, self.hash_at];
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
            changed_ms: word(52)?,
            born_ms: word(56)?,
            hash_at: word(60)?,
            job: u64_at(bytes, 64)?,
            origin: u64_at(bytes, 72)?,
            p2p_enqueued: word(80)?,
            p2p_done: word(84)?,
        })
    }
}

impl Table {
    /// The table as a file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let Table { vectors, transfers, jobs, processes, made_ns, .. } = self;
        let mut out = Vec::with_capacity(HEAD + vectors.len() * VECTOR_BYTES);
        out.extend(MAGIC);
        out.extend(u64::from(VERSION).to_le_bytes());
        for count in [vectors.len(), jobs.len(), transfers.len(), processes.len()] {
            out.extend((count as u64).to_le_bytes());
        }
        out.extend(made_ns.to_le_bytes());
        out.resize(HEAD, 0);
        out.extend(vectors.iter().flat_map(Vector::encode));
        transfers.iter().for_each(|transfer| transfer.encode(&mut out));
        for (job, name) in jobs {
            out.extend(job.to_le_bytes());
            parts::put_text(&mut out, name);
        }
        processes.iter().for_each(|process| process.encode(&mut out));
        out
    }

    /// Adds the content of another table.
    pub fn append(&mut self, mut other: Table) {
        let before = u32::try_from(self.vectors.len()).unwrap_or(u32::MAX);
        other.transfers.iter_mut().for_each(|it| it.vector = it.vector.saturating_add(before));
        self.vectors.append(&mut other.vectors);
        self.transfers.append(&mut other.transfers);
        self.jobs.append(&mut other.jobs);
        self.processes.append(&mut other.processes);
        self.damage.append(&mut other.damage);
        self.made_ns = self.made_ns.max(other.made_ns);
    }

    /// Removes the vectors for which `keep` is false, and their transfers.
    pub fn retain(&mut self, mut keep: impl FnMut(&Vector) -> bool) {
        let mut left = 0;
        let mut moved = Vec::with_capacity(self.vectors.len());
        self.vectors.retain(|vector| {
            let is_kept = keep(vector);
            moved.push(is_kept.then_some(left));
            left += u32::from(is_kept);
            is_kept
        });
        self.transfers.retain_mut(|transfer| {
            let to = moved.get(transfer.vector as usize).copied().flatten();
            transfer.vector = to.unwrap_or(u32::MAX);
            to.is_some()
        });
    }

    /// The part of the table about jobs for whose numbers `is_kept` is true.
    #[must_use]
    pub fn of_jobs(&self, is_kept: impl Fn(u64) -> bool) -> Table {
        let mut of = self.clone();
        of.jobs.retain(|&job, _| is_kept(job));
        of.processes.retain(|process| is_kept(process.job));
        of.retain(|vector| is_kept(vector.job));
        of
    }

    /// The transfers of the vector at a position.
    #[must_use]
    pub fn transfers_of(&self, vector: u32) -> &[OpenTransfer] {
        let from = self.transfers.partition_point(|it| it.vector < vector);
        let to = self.transfers.partition_point(|it| it.vector <= vector);
        &self.transfers[from..to]
    }
}

/// Whether a file that begins with `bytes` is a table of vectors.
#[must_use]
pub fn is_table(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// A file of `vectors` with the names of their `jobs`.
#[must_use]
pub fn table(vectors: &[Vector], jobs: &BTreeMap<u64, String>) -> Vec<u8> {
    Table { vectors: vectors.to_vec(), jobs: jobs.clone(), ..Table::default() }.bytes()
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

/// Decodes a table, and those that follow. Of a truncated one it returns what is whole, and
/// [`Table::damage`] says what is missing.
///
/// # Errors
/// [`Error::Empty`], [`Error::NotARecording`], [`Error::TruncatedHeader`], or
/// [`Error::OtherTable`] for another version.
pub fn read_table(bytes: &[u8]) -> Result<Table, Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    let (mut table, mut rest) = read_one(bytes)?;
    while is_table(rest) && table.damage.is_empty() {
        match read_one(rest) {
            Ok((next, behind)) => {
                table.append(next);
                rest = behind;
            }
            Err(error) => table.damage.push(format!("of the next table in it: {error}")),
        }
    }
    // Bytes after a truncated table are part of what is missing, so they get no line.
    if !rest.is_empty() && table.damage.is_empty() {
        let more = rest.len();
        table.damage.push(format!("it does not end where its header says ({more} B more)"));
    }
    // A damaged or forged one may have any order.
    table.transfers.sort_by_key(|transfer| transfer.vector);
    Ok(table)
}

/// Decodes the first table, and returns the bytes behind it.
fn read_one(bytes: &[u8]) -> Result<(Table, &[u8]), Error> {
    if !is_table(bytes) {
        return Err(Error::NotARecording);
    }
    let short = || Error::TruncatedHeader { len: bytes.len() as u64 };
    let (version, rest) = u32_at(bytes, 8).zip(bytes.get(HEAD..)).ok_or_else(short)?;
    if version != VERSION {
        return Err(Error::OtherTable { found: version, known: VERSION });
    }
    let word = |at| u64_at(bytes, at).ok_or_else(short);
    let counts = [word(16)?, word(24)?, word(32)?, word(40)?];
    let (vectors, rest) = fixed(rest, (counts[0], VECTOR_BYTES), Vector::decode);
    let (transfers, rest) = fixed(rest, (counts[2], TRANSFER_BYTES), OpenTransfer::decode);
    let mut cut = Cut(rest);
    let jobs = cut.all(counts[1], |cut| Some((cut.u64()?, cut.text()?)));
    let processes = cut.all(counts[3], ProcessFacts::decode);
    let damage = damage([
        ("vectors", vectors.len(), counts[0]),
        ("transfers", transfers.len(), counts[2]),
        ("names of jobs", jobs.len(), counts[1]),
        ("processes", processes.len(), counts[3]),
    ]);
    let (jobs, made_ns) = (jobs.into_iter().collect(), word(48)?);
    Ok((Table { vectors, transfers, jobs, processes, made_ns, damage }, cut.0))
}

/// Up to `count` items of `size` bytes, and the bytes behind them.
fn fixed<T>(
    bytes: &[u8],
    (count, size): (u64, usize),
    decode: impl Fn(&[u8]) -> Option<T>,
) -> (Vec<T>, &[u8]) {
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let mut items = Vec::with_capacity(most.min(bytes.len() / size));
    items.extend(bytes.chunks_exact(size).take(most).filter_map(decode));
    (items, bytes.get(most.saturating_mul(size)..).unwrap_or(&[]))
}

/// Lines about what is missing from a table: names, and the numbers read and announced.
fn damage(parts: [(&str, usize, u64); 4]) -> Vec<String> {
    let mut damage = Vec::new();
    for (what, read, promised) in parts {
        let is_size =
            promised.checked_mul(VECTOR_BYTES as u64).is_some_and(|bytes| bytes >> 48 == 0);
        if !is_size {
            damage.push(format!("its header has an impossible number of {what}"));
        } else if (read as u64) < promised {
            damage.push(format!("of {promised} {what} it has {read}"));
        }
    }
    damage
}

#[cfg(test)]
mod tests;
