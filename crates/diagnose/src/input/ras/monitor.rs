// SPDX-License-Identifier: Apache-2.0
/*!
The events that NCCL's RAS prints from 2.29 on (`ncclras -m`, the command `MONITOR`), as text or as
JSON objects one after the other: which processes joined, do not answer, came back, or count as
dead. An event names a process, never a rank (src/ras/client_support.cc@v2.32.3-1).

The events of the group LIFECYCLE are of the whole job, those of the group TRACE only of the few
processes to which the process that prints them has connections.
*/

use super::time::seconds;
use ncclscope_operations::human::{are, if_one};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What precedes the events, or follows them.
const AROUND: [&str; 6] = [
    "OK",
    "SERVER PROTOCOL ",
    "RAS Monitor Mode",
    "=====",
    "Monitoring stopped",
    "Connection closed by the NCCL job",
];

/// The host and the id of a process.
pub(super) type Place = (String, u32);

/// What an event shows of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    /// It joined the job.
    New,
    /// It answers.
    Answers,
    /// It does not answer.
    Silent,
    /// A connection to it was closed.
    Closed,
    /// RAS has given it up, after a minute, and speaks no more to it.
    Dead,
    /// Nothing, except that the job has it.
    Nothing,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    time: String,
    shows: Shows,
    place: Place,
    gpus: Vec<u32>,
}

/// The events of one stream or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Monitor {
    events: Vec<Event>,
}

/// What the events show of one process; times as NCCL prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) gpus: Vec<u32>,
    pub(super) closed: Option<String>,
    pub(super) silent: Option<String>,
    pub(super) dead: Option<String>,
    /// It did not answer, and came back.
    pub(super) back: Option<String>,
}

/// An event in its JSON form.
#[derive(Deserialize)]
struct JsonEvent {
    timestamp: String,
    event: String,
    #[serde(default)]
    peer: JsonPeer,
}

/// Without a process if RAS knows only an address.
#[derive(Default, Deserialize)]
struct JsonPeer {
    host: Option<String>,
    pid: Option<u32>,
    #[serde(default)]
    cuda_devs: Vec<u32>,
}

/// What a line of a stream is.
enum Line {
    Event(Event),
    /// An event without a process, or what is around the events.
    Other,
    Damaged,
}

/// True if a file with these first bytes is a stream of events.
pub(crate) fn is_monitor(first: &[u8]) -> bool {
    let first = String::from_utf8_lossy(first);
    let has_banner = first.lines().any(|line| line.starts_with(AROUND[2]));
    let rest = first.lines().find(|line| !is_around(line)).unwrap_or_default();
    let at = first.find(rest).unwrap_or_default();
    if rest.starts_with('{') {
        let strings: Vec<&str> = first[at..].split('"').skip(1).step_by(2).take(6).collect();
        let name = match strings[..] {
            ["timestamp", _, "group", _, "event", name] => name,
            _ => "",
        };
        return is_of_peer(name);
    }
    let event = time_and_rest(rest);
    has_banner && rest.is_empty() || event.is_some_and(|(_, name, _)| is_of_peer(name))
}

/// Reads a stream; also returns what of it cannot be read, a sentence.
pub(crate) fn read(bytes: &[u8]) -> (Monitor, Option<String>) {
    let text = String::from_utf8_lossy(bytes);
    let mut reader = Reader::default();
    match text.lines().any(|line| time_and_rest(line).is_some()) {
        true => reader.text(&text),
        false => reader.json(&text),
    }
    let damage = reader.damage_text();
    (Monitor { events: reader.events }, damage)
}

/// Logs of other programs have lines of the same form.
fn is_of_peer(name: &str) -> bool {
    name.starts_with("PEER_")
}

fn is_around(line: &str) -> bool {
    line.trim().is_empty() || AROUND.iter().any(|text| line.starts_with(text))
}

/// The time, the name and the rest of `[YYYY-MM-DD HH:MM:SS] NAME: …`.
fn time_and_rest(line: &str) -> Option<(&str, &str, &str)> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] ")?;
    let (name, rest) = rest.split_once(':')?;
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    (is_name && is_time(time)).then_some((time, name, rest.trim()))
}

fn is_time(time: &str) -> bool {
    time.len() == 19 && time.contains(' ') && seconds(time).is_some()
}

/// What an event with this name shows.
fn shows(name: &str) -> Shows {
    match name {
        "PEER_NEW" => Shows::New,
        "PEER_CONNECTED" | "PEER_RECOVERED" => Shows::Answers,
        "PEER_UNRESPONSIVE" | "PEER_KEEPALIVE_TIMEOUT" => Shows::Silent,
        "PEER_DISCONNECTED" => Shows::Closed,
        "PEER_DEAD" | "PEER_TIMEOUT_DEAD" => Shows::Dead,
        _ => Shows::Nothing,
    }
}

/// Reads a stream.
#[derive(Default)]
struct Reader {
    events: Vec<Event>,
    /// Parts that are no event, and the line of the first.
    damaged: usize,
    first: usize,
}

impl Reader {
    fn text(&mut self, text: &str) {
        for (line, number) in text.split_inclusive('\n').zip(1..) {
            match text_line(line) {
                Line::Event(event) => self.events.push(event),
                Line::Other => {}
                Line::Damaged => self.damage(|| number),
            }
        }
    }

    /// Objects one after the other; what is damaged ends at the next line that begins one.
    fn json(&mut self, text: &str) {
        let mut at = text.find('{').unwrap_or(text.len());
        while at < text.len() {
            let mut objects = serde_json::Deserializer::from_str(&text[at..]).into_iter();
            let mut end = at;
            while let Some(Ok(object)) = objects.next() {
                match json_event(object) {
                    Line::Event(event) => self.events.push(event),
                    Line::Other => {}
                    Line::Damaged => self.damage(|| line_number(text, end)),
                }
                end = at + objects.byte_offset();
            }
            let next = text[end..].find("\n{").map_or(text.len(), |next| end + next + 1);
            if !text[end..next].lines().all(is_around) {
                self.damage(|| line_number(text, end));
            }
            at = next;
        }
    }

    /// Counts a damaged part. Only of the first is the line looked for, which takes as long as the
    /// text before it.
    fn damage(&mut self, line: impl FnOnce() -> usize) {
        if self.damaged == 0 {
            self.first = line();
        }
        self.damaged += 1;
    }

    /// What cannot be read.
    fn damage_text(&self) -> Option<String> {
        let Reader { damaged, first, .. } = *self;
        (damaged > 0).then(|| {
            format!(
                "{} no event of RAS's MONITOR or cut off, {} at line {first}: the rest is used",
                are(damaged, "part"),
                if_one(damaged, "that", "the first")
            )
        })
    }
}

/// The number of the line of the first text from a position on.
fn line_number(text: &str, at: usize) -> usize {
    let start = text.len() - text[at..].trim_start().len();
    text[..start].matches('\n').count() + 1
}

/// `[TIME] NAME: Process PID on node HOST managing GPUs 0,1 …`, or an address in place of the
/// process.
fn text_line(line: &str) -> Line {
    let is_whole = line.ends_with('\n');
    let line = line.trim_end();
    if is_around(line) {
        return Line::Other;
    }
    let Some((time, name, rest)) = time_and_rest(line) else { return Line::Damaged };
    let words: Vec<&str> = rest.split(' ').collect();
    match words[..] {
        ["Process", pid, "on", "node", host, "managing", "GPU" | "GPUs", gpus, ..] => {
            let Ok(pid) = pid.parse() else { return Line::Damaged };
            let gpus = gpus.split(',').filter_map(|gpu| gpu.parse().ok()).collect();
            let place = (host.to_owned(), pid);
            Line::Event(Event { time: time.to_owned(), shows: shows(name), place, gpus })
        }
        ["Process", ..] => Line::Damaged,
        _ if is_whole => Line::Other,
        _ => Line::Damaged,
    }
}

fn json_event(object: Value) -> Line {
    match serde_json::from_value::<JsonEvent>(object) {
        Ok(JsonEvent { timestamp: time, event, peer }) if is_time(&time) => {
            let JsonPeer { host, pid, cuda_devs: gpus } = peer;
            let event = |place| Event { time, shows: shows(&event), place, gpus };
            host.zip(pid).map_or(Line::Other, |place| Line::Event(event(place)))
        }
        _ => Line::Damaged,
    }
}

impl Monitor {
    /// Adds the events of another stream.
    pub(crate) fn add(&mut self, other: Monitor) {
        self.events.extend(other.events);
        // Those of one second stay in their order.
        self.events.sort_by(|a, b| a.time.cmp(&b.time));
    }

    /// What the events show of each process.
    pub(super) fn peers(&self) -> BTreeMap<Place, Peer> {
        let mut peers: BTreeMap<Place, Peer> = BTreeMap::new();
        for event in &self.events {
            let peer = peers.entry(event.place.clone()).or_default();
            if !event.gpus.is_empty() {
                peer.gpus.clone_from(&event.gpus);
            }
            peer.take(event);
        }
        peers
    }
}

impl Peer {
    fn take(&mut self, event: &Event) {
        let time = || event.time.clone();
        match event.shows {
            Shows::New => *self = Peer { gpus: std::mem::take(&mut self.gpus), ..Peer::default() },
            // RAS does not speak to a process again that it has given up, though that may go on.
            _ if self.dead.is_some() => {}
            Shows::Answers => {
                let was_silent = self.silent.take().is_some();
                self.back = if was_silent { Some(time()) } else { self.back.take() };
                self.closed = None;
            }
            Shows::Silent => {
                self.silent.get_or_insert_with(time);
            }
            Shows::Closed => self.closed = Some(time()),
            Shows::Dead => self.dead = Some(time()),
            Shows::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMS: [&[u8]; 2] = [
        include_bytes!("../../../tests/monitor/killed-2.30.7.txt"),
        include_bytes!("../../../tests/monitor/killed-2.32.3.json"),
    ];

    #[test]
    fn each_cut_gives_the_events_before_it() {
        for stream in STREAMS {
            let (whole, damage) = read(stream);
            assert_eq!((whole.events.len(), damage), (12, None));
            for at in 0..stream.len() {
                let (part, _) = read(&stream[..at]);
                let same = whole.events.starts_with(&part.events);
                assert!(same, "{at}: {:?}", part.events.last());
            }
        }
    }

    #[test]
    fn a_million_damaged_parts_take_no_longer_than_they_are_long() {
        let (monitor, damage) = read("{\n".repeat(1 << 20).as_bytes());
        assert_eq!(monitor.events.len(), 0);
        assert!(damage.unwrap().starts_with("1048576 parts are no event of RAS's MONITOR"));
    }

    #[test]
    fn each_changed_byte_spoils_at_most_two_events() {
        for stream in STREAMS {
            let events = read(stream).0.events.len();
            for (at, byte) in
                (0..stream.len()).step_by(5).flat_map(|at| [(at, b'{'), (at, b'\n'), (at, 0xff)])
            {
                let mut other = stream.to_vec();
                other[at] = byte;
                let found = read(&other).0.events.len();
                assert!((events - 2..=events).contains(&found), "byte {at}: {found} of {events}");
                is_monitor(&other);
            }
        }
    }
}
