// SPDX-License-Identifier: Apache-2.0
//! The queue that hands items from one of the runtime's threads to another. The tests compile the
//! product's own file, with loom's lock in place of the system's.

use crate::holds;
use loom::sync::Arc;
use loom::thread::spawn;
use ncclscope_recorder::model::Model;

#[path = "../../../runtime/src/handover.rs"]
mod queue;

use queue::Handover;

/// Two threads put two items each into a queue of three; a third thread takes them.
#[test]
fn what_is_handed_over_arrives_once_in_its_order_or_is_given_back() {
    holds("handover", Model::default(), || {
        let queue = Arc::new(Handover::new(3));
        let put = |thread: u32| {
            let queue = Arc::clone(&queue);
            move || (0..2).filter(|n| queue.put((thread, *n), 1).is_err()).count() as u64
        };
        let others = [spawn(put(1)), spawn(put(2))];
        let mut taken: Vec<(u32, u32)> = queue.next().into_iter().collect();
        taken.extend(queue.take());
        let refused: u64 = others.map(|other| other.join().expect("hands over")).iter().sum();
        taken.extend(queue.take());
        assert_eq!(taken.len() as u64 + refused, 4, "each is taken or given back");
        assert_eq!(queue.refused(), refused);
        for thread in [1, 2] {
            let of: Vec<_> = taken.iter().filter(|(t, _)| *t == thread).map(|(_, n)| *n).collect();
            assert!(of.is_sorted_by(|a, b| a < b), "in the order of its thread: {taken:?}");
        }
    });
}
