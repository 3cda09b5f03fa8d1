// SPDX-License-Identifier: Apache-2.0
//! What the runtime's threads hand to one another: the queue, and the lanes on their way into the
//! file. The product's own files, with loom's lock in the place of the system's.

use crate::sys::lock::Lock;
use crate::{World, fails, holds, numbers, put};
use loom::sync::Arc;
use loom::thread::spawn;
use ncclscope_recorder::model::Model;

#[path = "../../../runtime/src/handover.rs"]
mod queue;
#[path = "../../../runtime/src/tracks.rs"]
mod tracks;

use queue::Handover;
use tracks::Tracks;

/// Two threads hand over two items each, of which three fit; a third takes.
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

/// Words from a position on, in the order in which they were written.
type File = Arc<Lock<Vec<(u64, Vec<u64>)>>>;

/// A producer, the drain thread that reads and rescues, and the file's thread. `told` is when the
/// drain thread says that what it rescued is written.
fn lane_into_file(told: Told) -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let body = move || {
        let (tracks, file) = (Arc::new(Tracks::new()), File::new(Lock::new(Vec::new())));
        let read = move || [world.header(0).head()];
        let producer = spawn(move || assert!(put(world.lane(0), 0) && put(world.lane(0), 1)));
        let writer = {
            let (tracks, file) = (Arc::clone(&tracks), Arc::clone(&file));
            spawn(move || write(world, &tracks, &file))
        };
        tracks.ready(&read());
        if let Some(rescued) = tracks.rescue(0, (world.header(0), world.ring(0))) {
            (told == Told::Before).then(|| tracks.written(0));
            tracks.ready(&read());
            file.lock().push(rescued);
            (told == Told::After).then(|| tracks.written(0));
        }
        producer.join().expect("pushes");
        writer.join().expect("writes");
        tracks.ready(&read());
        write(world, &tracks, &file);
        let file = file.lock();
        let starts: Vec<u64> = file.iter().map(|(from, _)| *from).collect();
        assert!(starts.is_sorted(), "out of order: {starts:?}");
        let words: Vec<u64> = file.iter().flat_map(|(_, words)| words).copied().collect();
        assert_eq!(numbers(&words), [0, 1], "not each is written once");
        assert_eq!([world.header(0).tail()], read(), "a place is lost to the producer");
    };
    (world, body)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Before,
    After,
}

/// What the file's thread does.
fn write(world: World, tracks: &Tracks, file: &File) {
    let (lane, mut words) = ((world.header(0), world.ring(0)), Vec::new());
    let end = tracks.heads().first().copied().unwrap_or(0);
    if let Some(range) = tracks.take(0, lane, (end, 100), &mut words) {
        file.lock().push((range.start, words));
        lane.0.take_until(range.end);
    }
}

#[test]
fn a_lanes_words_are_written_once_and_in_order() {
    let (world, body) = lane_into_file(Told::After);
    holds("lane into file", world.model().preemptions(3), body);
}

#[test]
fn mutant_what_is_rescued_counts_as_written_at_once() {
    let (world, body) = lane_into_file(Told::Before);
    fails("out of order", world.model().preemptions(3), body);
}
