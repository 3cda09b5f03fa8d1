// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors.

use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use ncclscope_diagnose::{Options, diagnose, fr_out, input, text};
use ncclscope_trace::vectors::{self, Edge, Vector};

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
        peer: i32::try_from(process % 8).unwrap_or(0),
        edge: Edge {
            channel: 1,
            is_send: process.is_multiple_of(2),
            reached: Some(3),
            ..Edge::default()
        }
        .bits(),
        ..Vector::default()
    };
    let table = |late: fn(u32) -> bool| {
        let mut out = Vec::new();
        let all: Vec<Vector> = (0..24).map(|process| vector(process, late(process))).collect();
        vectors::write(&mut out, &all).map(|()| out).unwrap_or_default()
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
    let Ok(all) = vectors::read(data) else { return false };
    let job = input::vectors::build(&all, &std::collections::BTreeMap::new());
    let found = diagnose(&job, &Options::default());
    let _ = (text::render(&found, None, None), serde_json::to_string(&found).is_ok());
    let _ = fr_out::dumps(&job).take(1).map(|(_, dump)| fr_out::pickle(&dump).len()).sum::<usize>();
    true
}
