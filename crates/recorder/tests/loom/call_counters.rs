// SPDX-License-Identifier: Apache-2.0
//! The call counters: a snapshot that the reader accepts is of one moment.

use crate::{fails, holds};
use loom::thread::spawn;
use ncclscope_recorder::call_counters::{self, Call};
use ncclscope_recorder::model::Model;
use ncclscope_trace::progress::roll;

const COMM: u16 = 3;
const CALL: Call = Call { func: 1, datatype: 2, root: 0, count: 3 };

/// The hash after `calls` calls.
fn hash(calls: u64) -> u64 {
    (0..calls).fold(0, |hash, _| roll(hash, CALL.func, CALL.datatype, CALL.root, CALL.count))
}

/// Three calls, with a concurrent reader.
fn calls() -> impl Fn() + Send + Sync + 'static {
    || {
        assert!(call_counters::watch(COMM), "there is a cell");
        let caller = spawn(|| (0..3).for_each(|_| call_counters::called(COMM, CALL)));
        if let Some(counts) = call_counters::counts(COMM) {
            assert_eq!(counts.hash, hash(counts.api), "torn: of another call");
        }
        caller.join().expect("calls");
        assert_eq!(call_counters::counts(COMM).map(|counts| counts.api), Some(3));
        call_counters::leave(COMM);
    }
}

#[test]
fn a_reader_sees_the_hash_of_the_call_that_it_sees() {
    holds("call counters, read while called", Model::default().preemptions(3), calls());
}

#[test]
fn mutant_the_next_calls_hash_passes_the_number_of_the_one_before() {
    // The two hashes follow the number of calls in memory; only their orderings are weakened.
    let hashes = call_counters::hashes_of(1);
    let model = Model::default().preemptions(3).weak(move |at| hashes.contains(&at));
    fails("torn", model, calls());
}

/// A communicator ends while another one begins, in a table with few cells: both are counted
/// correctly.
#[test]
fn a_cell_is_one_communicators_at_a_time() {
    holds("call counters, cells", Model::default().preemptions(3), || {
        for comm in 0..2 {
            assert!(call_counters::watch(comm));
            call_counters::called(comm, CALL);
        }
        let come = |comm| {
            spawn(move || {
                let has = call_counters::watch(comm);
                if has {
                    call_counters::called(comm, CALL);
                    assert_eq!(
                        call_counters::counts(comm).map(|counts| counts.api),
                        Some(1),
                        "its own"
                    );
                    call_counters::leave(comm);
                }
                has
            })
        };
        let (a, b) = (come(10), come(11));
        call_counters::leave(1);
        let found = [a, b].map(|comm| comm.join().expect("comes"));
        assert!(found.contains(&true), "there is a cell for one at least");
        assert_eq!(call_counters::counts(0).map(|counts| counts.api), Some(1), "it lives");
        call_counters::leave(0);
    });
}
