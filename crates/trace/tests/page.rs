// SPDX-License-Identifier: Apache-2.0
//! `docs/trace-format.md` lists the records and the identity's keys as they are declared.

use ncclscope_trace::counters::{COUNTERS, CounterLocation};
use ncclscope_trace::identity::KEYS;
use ncclscope_trace::record::{FieldLayout, Meaning, START, layout};
use std::fmt::Write as _;
use std::path::Path;

/// `name type@word.bit`; without the bit if the field is a word, and with the number of words if it
/// is an array.
fn field(field: &FieldLayout) -> String {
    let FieldLayout { name, word, shift, bits, words, meaning } = *field;
    let kind = match meaning {
        Meaning::Unsigned => format!("u{bits}"),
        Meaning::Signed => format!("i{bits}"),
        Meaning::Flag => "flag".into(),
        Meaning::Text => "string".into(),
        Meaning::Handle => "handle".into(),
    };
    match (bits, words) {
        (64, 1) => format!("{name} {kind}@{word}"),
        (64, _) => format!("{name} {kind}[{words}]@{word}"),
        _ => format!("{name} {kind}@{word}.{shift}"),
    }
}

fn table() -> String {
    let mut table = String::from("| code | record | words | 2x32 | fields |\n");
    table.push_str("| --- | --- | --- | --- | --- |\n");
    for code in 0..=u8::MAX {
        let Some((name, layout)) = layout(code) else { continue };
        let halves = (0..16).filter(|word| layout.halves >> word & 1 != 0);
        let halves: Vec<String> = halves.map(|word: u32| word.to_string()).collect();
        // Word 1 of every record is the time stamp.
        let mut fields: Vec<&FieldLayout> = layout.fields.iter().filter(|f| f.word != 1).collect();
        fields.sort_by_key(|field| (field.word, field.shift));
        let fields: Vec<String> = fields.into_iter().map(field).collect();
        let (words, halves, fields) = (layout.words, halves.join(", "), fields.join(", "));
        let _ = writeln!(table, "| {code} | {name} | {words} | {halves} | {fields} |");
    }
    table
}

fn keys() -> String {
    let mut table = String::from("| key | value | meaning | from |\n| --- | --- | --- | --- |\n");
    for key in KEYS {
        let _ = writeln!(table, "| {} | {} |{} | {} |", key.name, key.unit, key.doc, key.source);
    }
    table
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/trace-format.md");
    std::fs::read_to_string(page).expect("the page")
}

#[test]
fn the_page_has_the_keys_of_the_identity() {
    let table = keys();
    assert!(page().contains(&table), "docs/trace-format.md must have this table:\n{table}");
}

#[test]
fn the_page_has_the_counters_where_they_lie() {
    let page = page();
    for (place, at, by_kind, name) in COUNTERS {
        let count = if by_kind { "[64]" } else { "" };
        let expected = match place {
            CounterLocation::Header => format!("| {at} | u64{count} | "),
            CounterLocation::Lanes => format!(":u64{count}@{at}`"),
        };
        assert!(page.contains(&expected), "{name}: {expected}");
    }
}

#[test]
fn the_page_has_the_records_as_they_are_declared() {
    let table = table();
    assert!(page().contains(&table), "docs/trace-format.md must have this table:\n{table}");
    assert!(layout(START).is_some_and(|(name, _)| name == "Group"));
}
