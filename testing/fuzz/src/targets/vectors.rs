// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors.

use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use ncclscope_diagnose::{Options, diagnose, fr_out, input, text};
use ncclscope_trace::vectors::{
    self, OpenTransfer, ProcessFacts, SetupFacts, Table, ThreadFacts, Vector,
};

pub(super) const TARGET: Target =
    Target { name: "vectors", samples, mutate, read, inputs: 2000, found: &[] };

fn samples() -> Vec<Vec<u8>> {
    let vector = |process: u32, late: bool| Vector {
        comm: 7 + u64::from(process / 8),
        process,
        rank: process % 8,
        nranks: 8,
        api: 10,
        enqueued: if late { 9 } else { 10 },
        started: if late { 9 } else { 10 },
        done: 9,
        age_ms: 60_000,
        hash: 3,
        hash_at: 8,
        origin: u64::from(process) + 1,
        ..Vector::default()
    };
    let transfer = |vector: u32| OpenTransfer {
        vector,
        peer: i32::try_from((vector + 1) % 8).unwrap_or(0),
        channel: 1,
        is_send: vector.is_multiple_of(2),
        reached: Some(3),
        steps: 8,
        posted: 4,
        still_ms: 60_000,
        ..OpenTransfer::default()
    };
    let facts = |process: u32| ProcessFacts {
        process,
        origin: u64::from(process) + 1,
        host: "node".into(),
        heard_ns: 9 << 40,
        setup: Some(SetupFacts { function: "ncclCommSplit".into(), ..SetupFacts::default() }),
        threads: vec![ThreadFacts { state: b'S', kinds: 16, ..ThreadFacts::default() }],
        ..ProcessFacts::default()
    };
    let table = |late: fn(u32) -> bool| {
        let vectors = (0..24).map(|process| vector(process, late(process))).collect();
        let (transfers, processes) =
            ((0..24).map(transfer).collect(), (0..24).map(facts).collect());
        Table { vectors, transfers, processes, ..Table::default() }.bytes()
    };
    vec![table(|_| false), table(|process| process == 5), table(|process| process % 3 == 0)]
}

fn mutate(random: &mut Random, data: &mut Vec<u8>) {
    // The header has the size of one record.
    let header = vectors::VECTOR_BYTES.min(data.len());
    match random.below(20) {
        0 => mutate::any(random, data),
        1 => mutate::bytes(random, data, 0..header),
        _ => {
            let end = data.len();
            mutate::bytes(random, data, header..end);
        }
    }
}

fn read(data: &[u8]) -> bool {
    let Ok(table) = vectors::read_table(data) else { return false };
    let options = Options::default();
    let job = input::vectors::build(&table, options.hang);
    let found = diagnose(&job, &options);
    let _ = (text::render(&found, None, None), serde_json::to_string(&found).is_ok());
    let _ = fr_out::dumps(&job).take(1).map(|(_, dump)| fr_out::pickle(&dump).len()).sum::<usize>();
    true
}
