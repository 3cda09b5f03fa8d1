// SPDX-License-Identifier: Apache-2.0
/*!
Plays the log of a logging plugin on a real NCCL: the same callbacks in the same order, each
recorded thread on its own thread.

A line is `MICROSECONDS THREAD NAME VERB …`: `init` and `fini`, `start ctx=ok #ID KIND
parent=#ID(KIND) rank=N FIELD=VALUE…`, `stop #ID KIND`, `state #ID KIND state=N arg=N` (-1: NULL).
Missing fields are zero; process ids are replaced by ours.
*/

use crate::descr::Descr;
use crate::offsets::{NO, Row, coll, coll_api, group_api, kernel_ch, p2p, p2p_api, proxy_op};
use crate::play::bit;
use crate::plugin::Args;
use crate::{COUNT, Plugin};
use core::ffi::CStr;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// One callback.
#[derive(Debug, Clone)]
pub struct Call {
    /// The thread that made it.
    pub thread: u64,
    /// The callback.
    pub verb: Verb,
}

/// A callback and its arguments.
#[derive(Debug, Clone)]
pub enum Verb {
    /// `init`, with the fields of the version.
    Init(Fields),
    /// `finalize`.
    Finalize,
    /// `startEvent`.
    Start {
        /// The event's number in the file.
        id: u32,
        /// Its type's bit.
        bit: u64,
        /// Its parent's number; 0 for none.
        parent: u32,
        /// All other fields.
        fields: Fields,
    },
    /// `stopEvent` of an event's number.
    Stop(u32),
    /// `recordEventState`.
    State {
        /// The event's number.
        id: u32,
        /// NCCL's number of the state.
        state: i32,
        /// The first word of the arguments; `None` for NULL.
        arg: Option<u64>,
    },
}

/// Fields by name.
#[derive(Debug, Clone, Default)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    /// A field's number; 0 if the file does not have the field.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        let text = self.0.get(name).map_or("", String::as_str);
        let signed = text.parse::<i64>().map(i64::cast_unsigned);
        text.parse().or(signed).unwrap_or(0)
    }

    fn of(words: &[&str]) -> Fields {
        let pairs = words.iter().filter_map(|w| w.split_once('='));
        Fields(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    fn set(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_owned(), value.to_string());
    }
}

/// Reads a file.
///
/// # Panics
/// On an invalid line.
#[must_use]
pub fn parse(text: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = text.lines().filter(|l| !l.is_empty()).map(line).collect();
    complete(&mut calls);
    calls
}

fn line(text: &str) -> Call {
    let words: Vec<&str> = text.split_whitespace().collect();
    let thread = words[1].parse().expect("a thread");
    let verbs = ["init", "fini", "start", "stop", "state"];
    let at = words.iter().position(|w| verbs.contains(w)).expect("a verb");
    let rest = &words[at + 1..];
    let verb = match words[at] {
        "init" => Verb::Init(Fields::of(rest)),
        "fini" => Verb::Finalize,
        "start" => {
            let fields = Fields::of(rest);
            let parent = fields.0["parent"].split('(').next().unwrap_or("#0");
            Verb::Start { id: id(rest[1]), bit: bit_of(rest[2]), parent: id(parent), fields }
        }
        "stop" => Verb::Stop(id(rest[0])),
        _ => {
            let fields = Fields::of(rest);
            let arg = (fields.0["arg"] != "-1").then(|| fields.number("arg"));
            let state = fields.0["state"].parse().expect("a state");
            Verb::State { id: id(rest[0]), state, arg }
        }
    };
    Call { thread, verb }
}

fn id(word: &str) -> u32 {
    word.trim_start_matches('#').parse().expect("an event's number")
}

fn bit_of(kind: &str) -> u64 {
    match kind {
        "Group" => bit::GROUP,
        "Coll" => bit::COLL,
        "P2p" => bit::P2P,
        "ProxyOp" => bit::PROXY_OP,
        "ProxyStep" => bit::PROXY_STEP,
        "KernelCh" => bit::KERNEL_CH,
        "GroupApi" => bit::GROUP_API,
        "CollApi" => bit::COLL_API,
        "P2pApi" => bit::P2P_API,
        "KernelLaunch" => bit::KERNEL_LAUNCH,
        other => panic!("{other} is no kind that the files have"),
    }
}

/// Version 1's lines have neither step numbers nor directions: both are derived from the order and
/// the states.
fn complete(calls: &mut [Call]) {
    let mut sends = HashMap::new();
    for call in calls.iter() {
        if let Verb::State { id, state: state @ 0..8, .. } = call.verb {
            sends.insert(id, u64::from(state < 4));
        }
    }
    let mut steps: HashMap<u32, u64> = HashMap::new();
    for call in calls {
        let Verb::Start { id, bit, parent, fields } = &mut call.verb else { continue };
        if *bit == bit::PROXY_STEP && !fields.0.contains_key("step") {
            let next = steps.entry(*parent).or_default();
            fields.set("step", *next);
            *next += 1;
        }
        if let Some(&is_send) = sends.get(id).filter(|_| *bit == bit::PROXY_OP) {
            fields.set("isSend", is_send);
        }
    }
}

/// Plays the calls and returns the plugin's handles by the file's numbers.
///
/// # Panics
/// If a thread panics: the plugin broke a rule.
#[must_use]
pub fn play(plugin: &Plugin, calls: &[Call]) -> BTreeMap<u32, u64> {
    let state = Mutex::new(State::default());
    let (done, acknowledged) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut threads: HashMap<u64, mpsc::Sender<&Call>> = HashMap::new();
        for call in calls {
            let count = threads.len();
            let thread = threads.entry(call.thread).or_insert_with(|| {
                if count > 1 {
                    // NCCL's threads start at different times, and the drain thread prepares lanes
                    // between them.
                    std::thread::sleep(Duration::from_millis(300));
                }
                let (send, receive) = mpsc::channel::<&Call>();
                let (done, state) = (done.clone(), &state);
                scope.spawn(move || {
                    for call in receive {
                        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        state.make(plugin, call);
                        done.send(()).expect("the conductor lives");
                    }
                });
                send
            });
            thread.send(call).expect("the thread lives");
            acknowledged.recv_timeout(Duration::from_secs(10)).expect("the callback returns");
        }
    });
    state.into_inner().unwrap_or_else(PoisonError::into_inner).handles
}

#[derive(Default)]
struct State {
    context: u64,
    rank: i32,
    handles: BTreeMap<u32, u64>,
    strings: HashMap<String, &'static CStr>,
}

impl State {
    fn make(&mut self, plugin: &Plugin, call: &Call) {
        let handle = |id: &u32| self.handles.get(id).copied().unwrap_or(0);
        match &call.verb {
            Verb::Init(fields) => {
                let hash = fields.0.get("comm").map_or("0", String::as_str);
                let hash = u64::from_str_radix(hash, 16).unwrap_or(0);
                self.rank = low(fields.number("rank"));
                self.context = plugin.init(hash, low(fields.number("nranks")), self.rank);
            }
            Verb::Finalize => plugin.finalize(self.context),
            Verb::Start { id, bit, parent, fields } => {
                let rank = low(fields.number("rank"));
                let mut d = Descr::new(plugin.version(), *bit, handle(parent), rank);
                d.clear();
                self.fill(&mut d, plugin.version(), *bit, fields);
                let handle = plugin.start(self.context, &mut d);
                self.handles.insert(*id, handle);
            }
            Verb::Stop(id) => plugin.stop(handle(id)),
            Verb::State { id, state, arg } => {
                let mut args = arg.map(Args::word);
                if let Some(args) = &mut args {
                    args.put(8, &[0; 8]);
                }
                plugin.record(handle(id), *state, args.as_mut());
            }
        }
    }

    fn fill(&mut self, d: &mut Descr, version: usize, bit: u64, fields: &Fields) {
        if bit == bit::PROXY_OP {
            d.put(proxy_op::PID, &std::process::id().to_le_bytes());
        }
        if bit == bit::PROXY_STEP {
            d.put_step(low(fields.number("step")));
        }
        for (name, row, bytes) in places(bit) {
            let at = row[version - 1];
            let Some(text) = fields.0.get(*name).filter(|_| at != NO && version > 1) else {
                continue;
            };
            if *bytes == TEXT {
                d.put_str(at, Some(self.literal(text)));
            } else {
                d.put(at, &fields.number(name).to_le_bytes()[..*bytes]);
            }
        }
        // The only known field of version 1.
        if version == 1 && bit == bit::PROXY_OP {
            d.put(proxy_op::IS_SEND, &fields.number("isSend").to_le_bytes()[..4]);
        }
    }

    /// A static string for a name: NCCL's names are literals, with one address for each.
    fn literal(&mut self, text: &str) -> &'static CStr {
        if let Some(known) = self.strings.get(text) {
            return known;
        }
        let literal: &'static CStr =
            Box::leak(CString::new(text).expect("no NUL in a name").into_boxed_c_str());
        self.strings.insert(text.to_owned(), literal);
        literal
    }
}

/// In place of a field's length: the field is the address of a string.
const TEXT: usize = 0;

/// Fields of an event: name in the file, offset by version, bytes.
fn places(bit: u64) -> &'static [(&'static str, Row, usize)] {
    match bit {
        bit::COLL => &[
            ("seq", coll::SEQ, 8),
            ("func", coll::FUNC, TEXT),
            ("count", coll::COUNT, 8),
            ("root", coll::ROOT, 4),
            ("dt", coll::DATATYPE, TEXT),
            ("nCh", coll::CHANNELS, 1),
            ("nWarps", coll::WARPS, 1),
            ("algo", coll::ALGO, TEXT),
            ("proto", coll::PROTO, TEXT),
        ],
        bit::P2P => &[
            ("func", p2p::FUNC, TEXT),
            ("count", p2p::COUNT, 8),
            ("dt", p2p::DATATYPE, TEXT),
            ("peer", p2p::PEER, 4),
            ("nCh", p2p::CHANNELS, 1),
        ],
        bit::PROXY_OP => &[
            ("ch", [proxy_op::CHANNEL; COUNT], 1),
            ("peer", [proxy_op::PEER; COUNT], 4),
            ("nSteps", [proxy_op::STEPS; COUNT], 4),
            ("chunk", [proxy_op::CHUNK; COUNT], 4),
            ("isSend", [proxy_op::IS_SEND; COUNT], 4),
        ],
        bit::KERNEL_CH => {
            &[("ch", [kernel_ch::CHANNEL; COUNT], 1), ("pTimer", [kernel_ch::PTIMER; COUNT], 8)]
        }
        bit::GROUP_API => {
            &[("graph", [group_api::GRAPH; COUNT], 1), ("depth", [group_api::DEPTH; COUNT], 4)]
        }
        bit::COLL_API => &[
            ("func", [coll_api::FUNC; COUNT], TEXT),
            ("count", [coll_api::COUNT; COUNT], 8),
            ("dt", [coll_api::DATATYPE; COUNT], TEXT),
            ("root", [coll_api::ROOT; COUNT], 4),
        ],
        bit::P2P_API => &[
            ("func", [p2p_api::FUNC; COUNT], TEXT),
            ("count", [p2p_api::COUNT; COUNT], 8),
            ("dt", [p2p_api::DATATYPE; COUNT], TEXT),
        ],
        _ => &[],
    }
}

/// The low 32 bits, as NCCL's ints are.
const fn low(value: u64) -> i32 {
    let bytes = value.to_le_bytes();
    i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
