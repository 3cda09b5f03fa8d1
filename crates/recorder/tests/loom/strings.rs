// SPDX-License-Identifier: Apache-2.0
//! Two threads intern strings while the drain thread looks for complete entries.

use crate::{RACE, fails, holds};
use loom::thread::spawn;
use ncclscope_recorder::Interner;
use ncclscope_recorder::interner::CAPACITY;
use ncclscope_recorder::model::Model;
use ncclscope_trace::StrId;
use ncclscope_trace::progress::name_hash;
use std::collections::HashMap;

/// Bytes of an entry: address, ready flag, hash and text.
const ENTRY: usize = size_of::<Interner>() / CAPACITY;
const ADDRESS: usize = 0;
const READY: usize = 8;
const HASH: usize = 12;

fn intern(table: &Interner, text: &'static [u8]) -> StrId {
    assert_eq!(text.last(), Some(&0));
    // SAFETY: the text is NUL-terminated (checked above) and static.
    unsafe { table.intern(text.as_ptr().cast()) }
}

/// Two different texts whose addresses hash to the same first entry, and that entry.
fn rivals() -> ([&'static [u8]; 2], usize) {
    let heap: &'static [u8] = Box::leak(b"ab\0cd\0".repeat(CAPACITY + 1).into_boxed_slice());
    let mut seen: HashMap<usize, &[u8]> = HashMap::new();
    for text in heap.chunks(3) {
        // In a new table, a text gets the entry to which its address hashes.
        let entry = usize::from(intern(&Interner::new(), text).0);
        match seen.insert(entry, text) {
            Some(other) if other != text => return ([other, text], entry),
            _ => {}
        }
    }
    unreachable!("more texts than entries, and all of them apart")
}

fn word(text: &[u8]) -> &str {
    std::str::from_utf8(&text[..2]).expect("letters")
}

fn texts() -> (&'static Interner, impl Fn() + Send + Sync + 'static) {
    let table: &'static Interner = Box::leak(Box::default());
    let ([a, b], entry) = rivals();
    let body = move || {
        let hashed = move |text: &'static [u8]| {
            let id = intern(table, text);
            assert_eq!(table.hash(id), name_hash(&text[..2]), "the hash comes with the number");
            id
        };
        let first = spawn(move || (hashed(a), intern(table, b)));
        let second = spawn(move || hashed(a));
        let found = |id: StrId| table.get(usize::from(id.0));
        if let Some((_, text)) = table.get(entry) {
            assert!(text == word(a) || text == word(b), "too early");
        }
        let (of_a, of_b) = first.join().expect("interns");
        // A text that both threads see for the first time at once may get two entries.
        let also_a = second.join().expect("interns");
        assert!(of_a != of_b && also_a != of_b, "two texts, two numbers");
        for (id, text) in [(of_a, a), (of_b, b), (also_a, a)] {
            assert_eq!(found(id), Some((id, word(text).into())), "complete in the end");
        }
        assert_eq!(table.misses(), 0);
    };
    (table, body)
}

fn model(table: &Interner, weak_field: Option<usize>) -> Model {
    let entries = std::ptr::from_ref(table).addr();
    let in_entry = move |at: usize| {
        let inside = (entries..entries + ENTRY * CAPACITY).contains(&at);
        inside.then(|| (at - entries) % ENTRY)
    };
    let plain = move |at| in_entry(at).is_some_and(|at| at >= HASH);
    let weak = move |at| in_entry(at).is_some_and(|at| Some(at) == weak_field);
    Model::default().plain(plain).weak(weak)
}

#[test]
fn a_text_is_seen_when_it_is_complete_and_shares_its_number_with_no_other() {
    let (table, body) = texts();
    holds("strings", model(table, None).preemptions(3), body);
}

#[test]
fn mutant_a_text_is_ready_before_it_is_there() {
    let (table, body) = texts();
    fails(RACE, model(table, Some(READY)), body);
}

#[test]
fn mutant_an_address_is_told_before_its_hash() {
    let (table, body) = texts();
    fails(RACE, model(table, Some(ADDRESS)), body);
}
