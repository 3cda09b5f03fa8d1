// SPDX-License-Identifier: Apache-2.0
//! Events without a record: the reader gets each of them, or learns that it missed some.

use crate::{PROCESS, fails, holds};
use loom::thread::spawn;
use ncclscope_recorder::missed::{CELLS, Miss, Missed, ReadPosition};
use ncclscope_recorder::model::Model;
use ncclscope_trace::{EventKind, Handle};

/// Number of calls after which a reader has waited for every late writer, one by one.
const CALLS: usize = 2 * CELLS + 1;

fn stop(thread: usize, number: u64) -> Miss {
    Miss::Stop(Handle::value(PROCESS, EventKind::KernelCh, thread, number))
}

fn missed() -> &'static Missed {
    Box::leak(Box::default())
}

/// Each thread loses a number of events, and a reader takes them during and after that.
fn losses<const THREADS: usize>(
    missed: &'static Missed,
    numbers: [u64; THREADS],
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let writer = |thread: usize| {
            let numbers = 0..numbers[thread];
            spawn(move || numbers.for_each(|number| missed.put(stop(thread, number))))
        };
        let writers: [_; THREADS] = std::array::from_fn(writer);
        let (mut place, mut found) = (ReadPosition::default(), Vec::new());
        let mut is_whole = missed.take(&mut place, PROCESS, &mut found);
        writers.into_iter().for_each(|writer| writer.join().expect("loses"));
        for _ in 0..CALLS {
            is_whole &= missed.take(&mut place, PROCESS, &mut found);
        }
        for (thread, number) in numbers.into_iter().enumerate() {
            let all: Vec<Miss> = (0..number).map(|number| stop(thread, number)).collect();
            let mut rest = all.iter();
            let of: Vec<Miss> = found.iter().filter(|miss| all.contains(miss)).copied().collect();
            let in_order = of.iter().all(|miss| rest.any(|next| next == miss));
            assert!(in_order, "not once each, in their order: {of:?}");
            assert!(!is_whole || of == all, "lost silently: {of:?}");
        }
        let last = missed.take(&mut place, PROCESS, &mut found);
        missed.put(stop(0, 100));
        found.clear();
        let is_seen = last && missed.take(&mut place, PROCESS, &mut found);
        assert!(is_seen && found == [stop(0, 100)], "blind for the next: {found:?}");
    }
}

#[test]
fn what_is_lost_is_taken_once_and_in_order_or_the_reader_learns_of_it() {
    let body = losses(missed(), [2, 2]);
    holds("missed, two threads", Model::default().preemptions(3), body);
}

/// The cells are reused more often than their lap counters can show.
#[test]
fn a_reader_knows_that_it_was_overtaken_by_all_laps() {
    let body = losses(missed(), [2 * CELLS as u64 + 1]);
    holds("missed, overtaken", Model::default(), body);
}

#[test]
fn mutant_a_cell_is_seen_before_the_turn_that_it_was_written_in() {
    let missed = missed();
    let at = std::ptr::from_ref(missed).addr();
    let memory = at..at + size_of_val(missed);
    let body = losses(missed, [2 * CELLS as u64 + 1]);
    fails("not once each", Model::default().weak(move |at| memory.contains(&at)), body);
}
