// SPDX-License-Identifier: Apache-2.0
/*!
Definitions: the strings, communicators and other items that records refer to by number. They are
never overwritten.

Each is `tag:u8, length:u32, body, crc32:u32 of tag, length and body`, one after another in the
definitions area; a first byte of 0 ends them. A link (`Item::Link`) is the last one in its area:
the definitions continue in a segment of the block ring, after its header.
*/

pub use crate::string::StrId;

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::counters::Counter;
use crate::error::Error;
use crate::files::read_up_to;
use crate::kind::EventKind;
use crate::layout::{BLOCKS, DEFINITIONS, EXTENT_HEAD, HEARTBEATS, Header, SEGMENT};
use crate::schema::{Declaration, put_name, take_name};
use crate::vendor::Vendor;
use crc32fast::hash as crc32;
use std::fs::File;
use std::sync::Arc;

/// A communicator, as NCCL passed it to `init`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Comm {
    /// The number that records use.
    pub index: u16,
    /// `commId`/`commHash`; 0 if the API version does not have it (v1 to v3).
    pub hash: u64,
    /// The name the application gave, if any.
    pub name: Option<String>,
    /// Nodes, 0 unknown.
    pub nodes: u32,
    /// Ranks, 0 unknown.
    pub ranks: u32,
    /// This process's rank in it; -1 unknown.
    pub rank: i32,
    /// Time of its `init`, in ticks.
    pub ticks: u64,
    /// Profiler API version that NCCL used (1 to 7).
    pub api_version: u32,
    /// NCCL's own version code (for example 22809), 0 unknown.
    pub nccl_version: u32,
    /// Whose NCCL it is; NVIDIA's in a recording that does not say.
    pub vendor: Vendor,
}

impl Comm {
    /// The release of its NCCL, as the tools show it.
    #[must_use]
    pub fn release(&self) -> Option<String> {
        self.vendor.release(self.nccl_version)
    }

    /// True if NCCL reports only that operations of this communicator are enqueued, with the
    /// process's activation mask: its ranks are on one node, so that there is no network, and no
    /// kernel channel events are requested.
    #[must_use]
    pub fn hides_ends(&self, mask: u32) -> bool {
        self.nodes == 1 && self.ranks > 1 && mask & EventKind::KernelCh.bit() == 0
    }

    /// True if CUDA events may show the ends of this communicator's operations, with the process's
    /// activation mask and its setting ([`crate::Identity::cuda_events`]).
    #[must_use]
    pub fn may_be_measured(&self, mask: u32, cuda_events: Option<&str>) -> bool {
        match cuda_events {
            Some("off") => false,
            Some("auto") => self.hides_ends(mask),
            _ => true,
        }
    }
}

/// The CUDA device that a communicator is on. A process with several ranks (JAX) has one for each,
/// which [`crate::Identity`] does not contain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommDevice {
    /// [`Comm::index`].
    pub comm: u16,
    /// The device as the process counts them.
    pub index: u32,
    /// Domain, bus, device and function on PCI; empty if the driver does not report it.
    pub pci: String,
    /// UUID as `nvidia-smi -L` shows it; empty if the driver does not report it.
    pub uuid: String,
}

/// An item that a recording contains once and that its records may refer to by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Definition {
    /// A string of the string table.
    String {
        /// Its number.
        id: StrId,
        /// Its text.
        text: String,
    },
    /// A communicator.
    Comm(Comm),
    /// A communicator was finalized.
    CommEnd {
        /// Its number.
        index: u16,
        /// When, in ticks.
        ticks: u64,
    },
    /// The device that a communicator is on.
    CommDevice(CommDevice),
    /// A message to the reader about the plugin itself or its configuration.
    Note(String),
    /// The role that the application gave a communicator: `tp`, `dp`, `pp`. The latest definition
    /// is valid.
    Role {
        /// [`Comm::hash`].
        hash: u64,
        /// The role.
        text: String,
    },
    /// The reports of the rank's own watchdog.
    Hang {
        /// When, in ticks.
        ticks: u64,
        /// Its lines.
        text: String,
    },
    /// A fact about the process ([`crate::identity`]). The latest value of a key is valid.
    Identity {
        /// Its subject.
        key: String,
        /// The value; an empty one removes the key.
        value: String,
    },
    /// Layout of a kind of record in this file.
    Record(Arc<Declaration>),
    /// Place and name of a counter in this file.
    Counter(Counter),
}

/// The beginning of the report of a hang. Other reports tell of one that is over, or are a drill.
pub const HANG_REPORT: &str = "HANG: ";

const STRING: u8 = 1;
const COMM: u8 = 2;
const COMM_END: u8 = 3;
const NOTE: u8 = 4;
const ROLE: u8 = 5;
const HANG: u8 = 6;
const LINK: u8 = 8;
const RECORD: u8 = 9;
const IDENTITY: u8 = 10;
const COUNTER: u8 = 11;
const COMM_DEVICE: u8 = 12;
/// Bytes of a definition besides its body: tag, length and checksum.
const FRAME: usize = 9;
pub(crate) const LINK_BYTES: u64 = FRAME as u64 + 4;
/// Most bytes of a name (`NAME_BYTES`) and of a longer text (`TEXT_BYTES`); the rest is cut off.
const NAME_BYTES: usize = 255;
const TEXT_BYTES: usize = 32 << 10;

/// The content of the definitions area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    Definition(Definition),
    /// The definitions continue in this segment of the block ring.
    Link(u32),
}

impl Item {
    /// Decodes the item at the start of `bytes` and returns its length. `None` at the end of the
    /// definitions, or if they are torn there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Item, usize)> {
        let (tag, body, total) = frame(bytes)?;
        let item = match tag {
            LINK => Item::Link(u32_at(body, 0)?),
            tag => Item::Definition(definition(tag, body)?),
        };
        Some((item, total))
    }
}

/// Bytes of definitions that are read at a time; no definition is longer.
const AT_ONCE: u64 = 64 << 10;
/// Upper bound of the bytes of a definition with its frame.
const LONGEST: usize = TEXT_BYTES + (1 << 10);

/// Reads the definitions of a file, in several calls if the file grows.
#[derive(Clone, Debug)]
pub(crate) struct Definitions {
    segments: u32,
    at: u64,
    end: u64,
    /// Bytes of definitions that were read: before the rings, and in segments of the block ring.
    pub(crate) read: [u64; 2],
    /// Number of links that were followed. It is bounded, because links of a damaged file may form
    /// a cycle.
    links: u32,
}

impl Definitions {
    /// Starts at the first definition of a file with that header.
    pub(crate) fn new(header: &Header) -> Definitions {
        let segments = header.segments;
        Definitions { segments, at: DEFINITIONS, end: HEARTBEATS, read: [0; 2], links: 0 }
    }

    /// Passes the next new definitions to `tell`. Returns false if there are no more.
    pub(crate) fn read(
        &mut self,
        file: &File,
        tell: &mut impl FnMut(Definition),
    ) -> Result<bool, Error> {
        let room = AT_ONCE.min(self.end.saturating_sub(self.at));
        let bytes = read_up_to(file, self.at, usize::try_from(room).unwrap_or(0))?;
        let mut rest = bytes.as_slice();
        let mut link = None;
        while link.is_none()
            && let Some((item, len)) = Item::decode(rest)
        {
            match item {
                Item::Definition(definition) => tell(definition),
                Item::Link(segment) => link = Some(segment),
            }
            rest = rest.get(len..).unwrap_or(&[]);
        }
        let read = (bytes.len() - rest.len()) as u64;
        self.at += read;
        self.read[usize::from(self.links != 0)] += read;
        match link {
            Some(segment) if segment < self.segments && self.links < self.segments => {
                self.links += 1;
                let begin = BLOCKS + u64::from(segment) * SEGMENT;
                (self.at, self.end) = (begin + EXTENT_HEAD.len() as u64, begin + SEGMENT);
            }
            // An invalid link ends the definitions.
            Some(_) => self.end = self.at,
            None => {}
        }
        // If the undecoded rest is longer than any definition, it is damaged, and nothing more can
        // be read.
        Ok(read != 0 && (link.is_some() || rest.len() < LONGEST))
    }
}

/// The bytes of a link to the segment in which the definitions continue.
pub(crate) fn link(segment: u32) -> Vec<u8> {
    let mut out = Vec::new();
    seal(LINK, &segment.to_le_bytes(), &mut out);
    out
}

impl Definition {
    /// Appends the definition's bytes to `out`. Names are cut after 255 bytes, texts after 32 KiB.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let tag = match self {
            Definition::String { id, text } => {
                body.extend(id.0.to_le_bytes());
                body.extend(beginning(text, NAME_BYTES).as_bytes());
                STRING
            }
            Definition::Comm(comm) => {
                encode_comm(comm, &mut body);
                COMM
            }
            Definition::CommEnd { index, ticks } => {
                body.extend(index.to_le_bytes());
                body.extend(ticks.to_le_bytes());
                COMM_END
            }
            Definition::CommDevice(device) => {
                body.extend(device.comm.to_le_bytes());
                body.extend(device.index.to_le_bytes());
                put_name(&device.pci, &mut body);
                put_name(&device.uuid, &mut body);
                COMM_DEVICE
            }
            Definition::Note(text) => {
                body.extend(beginning(text, TEXT_BYTES).as_bytes());
                NOTE
            }
            Definition::Role { hash, text } => {
                body.extend(hash.to_le_bytes());
                body.extend(beginning(text, NAME_BYTES).as_bytes());
                ROLE
            }
            Definition::Hang { ticks, text } => {
                body.extend(ticks.to_le_bytes());
                body.extend(beginning(text, TEXT_BYTES).as_bytes());
                HANG
            }
            Definition::Identity { key, value } => {
                let key = beginning(key, NAME_BYTES);
                body.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
                body.extend(key.as_bytes());
                body.extend(beginning(value, TEXT_BYTES).as_bytes());
                IDENTITY
            }
            Definition::Record(declaration) => {
                declaration.encode(&mut body);
                RECORD
            }
            Definition::Counter(counter) => {
                counter.encode(&mut body);
                COUNTER
            }
        };
        seal(tag, &body, out);
    }

    /// Decodes the definition at the start of `bytes` and returns its length. `None` at the end of
    /// the definitions, or if they are torn there.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Definition, usize)> {
        let (tag, body, total) = frame(bytes)?;
        Some((definition(tag, body)?, total))
    }
}

fn seal(tag: u8, body: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.push(tag);
    out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(body);
    let crc = crc32(out.get(start..).unwrap_or(&[]));
    out.extend(crc.to_le_bytes());
}

/// Tag, body and total length of the definition at the start of `bytes`; `None` if its checksum is
/// wrong.
fn frame(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let tag = *bytes.first()?;
    let len = usize::try_from(u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?)).ok()?;
    let total = len.checked_add(FRAME)?;
    let crc = u32::from_le_bytes(bytes.get(total - 4..total)?.try_into().ok()?);
    if tag == 0 || crc32(bytes.get(..total - 4)?) != crc {
        return None;
    }
    Some((tag, bytes.get(5..total - 4)?, total))
}

fn definition(tag: u8, body: &[u8]) -> Option<Definition> {
    let text = |from: usize| String::from_utf8_lossy(body.get(from..).unwrap_or(&[])).into();
    Some(match tag {
        STRING => Definition::String { id: StrId(u16_at(body, 0)?), text: text(2) },
        COMM => Definition::Comm(decode_comm(body)?),
        COMM_END => Definition::CommEnd { index: u16_at(body, 0)?, ticks: u64_at(body, 2)? },
        COMM_DEVICE => {
            let mut names = body.get(6..)?;
            let (pci, uuid) = (take_name(&mut names)?, take_name(&mut names)?);
            Definition::CommDevice(CommDevice {
                comm: u16_at(body, 0)?,
                index: u32_at(body, 2)?,
                pci,
                uuid,
            })
        }
        NOTE => Definition::Note(text(0)),
        ROLE => Definition::Role { hash: u64_at(body, 0)?, text: text(8) },
        HANG => Definition::Hang { ticks: u64_at(body, 0)?, text: text(8) },
        IDENTITY => {
            let end = 1 + usize::from(*body.first()?);
            let key = String::from_utf8_lossy(body.get(1..end)?).into_owned();
            Definition::Identity { key, value: text(end) }
        }
        RECORD => Declaration::read(body)
            .map_or_else(|| impossible("record with code", body, 8), Definition::Record),
        COUNTER => Counter::decode(body)
            .map_or_else(|| impossible("counter in place", body, 4), Definition::Counter),
        // A tag of a later minor version.
        other => Definition::Note(format!("definition of unknown tag {other}")),
    })
}

/// A note in place of a declaration whose checksum is right and whose content is invalid in this
/// version. It has the declaration's first byte, and the name at `name_at` if there is one. The
/// definitions after it are still read.
fn impossible(what: &str, body: &[u8], name_at: usize) -> Definition {
    let number = body.first().map_or_else(|| "?".to_owned(), u8::to_string);
    let name = body.get(name_at..).and_then(|mut rest| take_name(&mut rest));
    let name = name.map(|name| format!(" ({name:?})")).unwrap_or_default();
    Definition::Note(format!(
        "declaration of a {what} {number}{name} that this version cannot read"
    ))
}

/// The first `most` bytes of a text, cut between characters.
fn beginning(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    end.and_then(|end| text.get(..end)).unwrap_or("")
}

fn encode_comm(comm: &Comm, body: &mut Vec<u8>) {
    body.extend(comm.index.to_le_bytes());
    body.push(u8::from(comm.name.is_some()));
    body.push(comm.vendor.code());
    body.extend(comm.rank.to_le_bytes());
    body.extend(comm.hash.to_le_bytes());
    body.extend(comm.ticks.to_le_bytes());
    for word in [comm.nodes, comm.ranks, comm.api_version, comm.nccl_version] {
        body.extend(word.to_le_bytes());
    }
    let name = comm.name.as_deref().unwrap_or("");
    body.extend(beginning(name, NAME_BYTES).as_bytes());
}

fn decode_comm(body: &[u8]) -> Option<Comm> {
    let name = String::from_utf8_lossy(body.get(40..)?).into_owned();
    Some(Comm {
        index: u16_at(body, 0)?,
        name: (*body.get(2)? != 0).then_some(name),
        rank: u32_at(body, 4)?.cast_signed(),
        hash: u64_at(body, 8)?,
        ticks: u64_at(body, 16)?,
        nodes: u32_at(body, 24)?,
        ranks: u32_at(body, 28)?,
        api_version: u32_at(body, 32)?,
        nccl_version: u32_at(body, 36)?,
        vendor: Vendor::of_code(*body.get(3)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Definition> {
        vec![
            Definition::String { id: StrId(7), text: "AllReduce".into() },
            Definition::Comm(Comm {
                index: 1,
                hash: 0x1f2e,
                name: Some("tp".into()),
                nodes: 2,
                ranks: 16,
                rank: 3,
                ticks: 99,
                api_version: 5,
                nccl_version: 22809,
                vendor: Vendor::Nvidia,
            }),
            Definition::Comm(Comm { rank: -1, vendor: Vendor::Amd, ..Comm::default() }),
            Definition::CommEnd { index: 1, ticks: 100 },
            Definition::CommDevice(CommDevice {
                comm: 1,
                index: 7,
                pci: "0000:3b:00.0".into(),
                uuid: String::new(),
            }),
            Definition::Note("lanes are private".into()),
            Definition::Role { hash: 0xfeed_beef, text: "tp".into() },
            Definition::Hang { ticks: 7, text: "one line\nand another".into() },
            Definition::Identity { key: "rank".into(), value: "3".into() },
            Definition::Identity { key: "weather".into(), value: String::new() },
            Definition::Record(crate::schema::declarations().nth(3).expect("more").into()),
            Definition::Counter(crate::counters::declarations().nth(3).expect("there are more")),
        ]
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let name = Some("é".repeat(60_000));
        let mut bytes = Vec::new();
        Definition::Comm(Comm { name, ..Comm::default() }).encode(&mut bytes);
        let Some((Definition::Comm(comm), _)) = Definition::decode(&bytes) else { panic!() };
        assert_eq!(comm.name, Some("é".repeat(127)));
        bytes.clear();
        Definition::Note("x".repeat(100_000)).encode(&mut bytes);
        assert!(bytes.len() < 33 << 10);
    }

    #[test]
    fn behind_a_declaration_that_cannot_be_definitions_go_on() {
        let mut bytes = Vec::new();
        let name = || "hostile".to_owned();
        let record = Declaration { code: 0xff, name: name(), words: 3, halves: 0, fields: vec![] };
        Definition::Record(record.into()).encode(&mut bytes);
        let place = crate::counters::CounterLocation::Header;
        let counter = Counter { place, at: u16::MAX, by_kind: true, name: name() };
        Definition::Counter(counter).encode(&mut bytes);
        Definition::Note("behind".into()).encode(&mut bytes);
        let mut rest = &bytes[..];
        let mut notes = Vec::new();
        while let Some((definition, len)) = Definition::decode(rest) {
            let Definition::Note(text) = definition else { panic!("{definition:?}") };
            notes.push(text);
            rest = &rest[len..];
        }
        let expected = [
            "declaration of a record with code 255 (\"hostile\") that this version cannot read",
            "declaration of a counter in place 0 (\"hostile\") that this version cannot read",
            "behind",
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn a_link_is_no_definition() {
        let bytes = link(77);
        assert_eq!(bytes.len() as u64, LINK_BYTES);
        assert_eq!(Item::decode(&bytes), Some((Item::Link(77), bytes.len())));
        assert_eq!(Item::decode(&bytes[..12]), None);
    }

    #[test]
    fn round_trip_and_torn_end() {
        let mut bytes = Vec::new();
        for definition in samples() {
            definition.encode(&mut bytes);
        }
        let (mut at, mut seen) = (0, Vec::new());
        while let Some((definition, len)) = Definition::decode(&bytes[at..]) {
            seen.push(definition);
            at += len;
        }
        assert_eq!((seen, at), (samples(), bytes.len()));
        for cut in 0..bytes.len() {
            // Wherever the bytes are cut, decoding ends without a wrong definition.
            let (mut at, mut count) = (0, 0);
            while let Some((definition, len)) = Definition::decode(&bytes[at..cut]) {
                assert_eq!(definition, samples()[count]);
                (at, count) = (at + len, count + 1);
            }
        }
    }
}
