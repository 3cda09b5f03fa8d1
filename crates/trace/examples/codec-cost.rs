// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of coding records: `cargo run --release -p ncclscope-trace --example
//! codec-cost RECORDING`. For the records of the recording's lanes it prints ns per record to
//! encode and to decode (the best of many rounds), bytes per record, and the records per second
//! that a reader and a follower read from the file.

#![expect(clippy::print_stdout, reason = "it is a program")]

use ncclscope_trace::codec::{Block, Decoder, Encoder, MAX_BLOCK_WORDS, parse};
use ncclscope_trace::record::Packed;
use ncclscope_trace::schema::Schema;
use ncclscope_trace::{Follower, Record, Recording};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const ROUNDS: usize = 40;

fn words(record: &Record) -> Option<Packed> {
    Some(match *record {
        Record::Start(start) => start.pack(),
        Record::Stop { ticks, handle } => Record::stop(ticks, handle),
        Record::State { ticks, handle, state, small, arg } => {
            Record::state(ticks, handle, state, small, arg)
        }
        Record::Step(step) => step.pack(),
        _ => return None,
    })
}

/// The words of the lanes' records, in blocks as a writer makes them.
fn blocks(recording: &Recording) -> Vec<Vec<u64>> {
    let mut blocks = Vec::new();
    for lane in 0..recording.lanes().len() {
        let mut block = Vec::new();
        for packed in recording.records(lane).filter_map(|record| words(&record)) {
            if block.len() + packed.words().len() > MAX_BLOCK_WORDS / 2 {
                blocks.push(std::mem::take(&mut block));
            }
            block.extend_from_slice(packed.words());
        }
        blocks.push(block);
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// The shortest time of many rounds.
fn best(mut round: impl FnMut()) -> Duration {
    let time = |()| {
        let begin = Instant::now();
        round();
        begin.elapsed()
    };
    (0..ROUNDS).map(|_| ()).map(time).min().unwrap_or_default()
}

fn main() {
    let path = std::env::args_os().nth(1).expect("codec-cost RECORDING");
    let path = Path::new(&path);
    let recording = Recording::open(path).expect("it is a recording");
    let blocks = blocks(&recording);
    let (mut encoder, schema, mut coded) = (Encoder::default(), Schema::default(), Vec::new());
    let (mut records, mut bytes) = (0, 0);
    let mut block_of = |words: &[u64]| -> Block {
        encoder.encode(0, &mut 0, &mut black_box(words)).expect("there are words")
    };
    for words in &blocks {
        let mut block = block_of(words);
        coded.push(block.placed(0, 0).to_vec());
        bytes += block.len();
        records += parse(block.placed(0, 0)).map_or(0, |(header, ..)| header.records);
    }
    let encode = best(|| {
        blocks.iter().for_each(|words| _ = black_box(block_of(words).placed(0, 0)));
    });
    let check = best(|| coded.iter().for_each(|block| _ = black_box(parse(black_box(block)))));
    let decode = best(|| {
        for block in &coded {
            let (header, _, payload) = parse(block).expect("it is whole");
            Decoder::new(&header, payload, &schema).for_each(|record| _ = black_box(record));
        }
    });
    let read = best(|| {
        let recording = Recording::open(path).expect("it is a recording");
        let lanes = 0..recording.lanes().len();
        lanes.flat_map(|lane| recording.records(lane)).for_each(|record| _ = black_box(record));
    });
    let follow = best(|| {
        let mut follower = Follower::open(path).expect("it is a recording");
        follower.poll(|news| _ = black_box(news)).expect("it can be read");
    });
    let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(records);
    let millions = |time: Duration| f64::from(records) / time.as_secs_f64() / 1e6;
    println!("{records} records in {} blocks, {bytes} bytes", blocks.len());
    println!("bytes {:.2} a record", bytes as f64 / f64::from(records));
    println!("encode {:.1} ns, checksum {:.1} ns a record", each(encode), each(check));
    println!(
        "decode {:.1} M/s, read {:.1} M/s, follow {:.1} M/s",
        millions(decode),
        millions(read),
        millions(follow)
    );
}
