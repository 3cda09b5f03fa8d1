// SPDX-License-Identifier: Apache-2.0
//! The profiler gets thread 0's stop, and every work counts.

use super::super::Launch;
use super::super::faults::Faults;
use super::*;
use crate::layout::Counters;
use std::time::Instant;

/// Elements of a collective: few enough for the buffers of a connection.
const COUNT: usize = 300;
/// How long a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A world of two ranks without the phases of 2.31, which waits for all threads.
fn two() -> World {
    let mut world = World::new(2, functions());
    world.player.layout.comm.work_phases = None;
    world
}

/// The work number and the time in slot `n` of a rank's channel.
fn slot(world: &World, (rank, channel): (usize, usize), of: Counters, n: usize) -> (u64, u64) {
    let base = world.comms[rank].add(of.offset).load_addr();
    let slot = base.add(channel * of.stride + n * 16);
    (slot.load_u64(), slot.add(8).load_u64())
}

/// Whether the channel of the rank has reported the end of its first work.
fn stopped(world: &World, at: (usize, usize)) -> bool {
    slot(world, at, world.layout().comm.work_completed.expect("synthetic"), 1).0 == 1
}

/// Starts `launches` without their peer. The channels of rank 1 in `ends` must report an end, on a
/// busy machine after some time, and 100 ms later no others.
fn alone(world: &World, launches: &[Launch], ends: [bool; CHANNELS], about: &str) {
    let told = std::thread::scope(|scope| {
        scope.spawn(|| world.run(launches));
        let told = || std::array::from_fn(|channel| stopped(world, (1, channel)));
        let begin = Instant::now();
        while (0..CHANNELS).any(|at| ends[at] && !told()[at]) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        let told = told();
        world.abort_flags.iter().for_each(|flag| flag.store_u32(1));
        told
    });
    assert_eq!(told, ends, "{about}");
}

fn all_reduce(world: &mut World, name: &str) -> Launch {
    let buffs = (world.alloc(4 * COUNT), world.alloc(4 * COUNT));
    world.launch(1, id(name), COLL, &[coll_work(world, name, COUNT, buffs, 0)])
}

#[test]
fn a_leaf_of_a_tree_stops_when_its_own_data_is_sent() {
    for (name, is_early) in [
        ("AllReduce_Sum_f32_TREE_SIMPLE", true),
        ("AllReduce_Sum_f32_TREE_LL", true),
        ("AllReduce_Sum_f32_RING_SIMPLE", false),
    ] {
        let mut world = two();
        let launch = all_reduce(&mut world, name);
        alone(&world, &[launch], [is_early; CHANNELS], name);
        // With the phases of 2.31, no thread is ahead of the others.
        let mut world = World::new(2, functions());
        let launch = all_reduce(&mut world, name);
        alone(&world, &[launch], [false; CHANNELS], &format!("{name} with phases"));
    }
}

#[test]
fn a_receive_stops_with_the_send_beside_it() {
    let bytes = 4096;
    for (sends, receives) in [(1, 1), (1, 0), (0, 1)] {
        let mut world = two();
        let buffs = (world.alloc(bytes), world.alloc(bytes));
        let mut work = p2p_work(&world, 1, buffs, (0, bytes));
        let place = &world.layout().p2p;
        put_bits(&mut work, place.n_send_channels, sends);
        put_bits(&mut work, place.n_recv_channels, receives);
        put_bits(&mut work, place.profiler_enabled.expect("synthetic"), 1);
        let launch = world.launch(1, id("SendRecv"), P2P, &[work]);
        // One part, on channel 1; the other channel has nothing to do.
        let about = format!("{sends} sends, {receives} receives");
        alone(&world, &[launch], [true, sends == 1], &about);
    }
}

#[test]
fn an_early_stop_waits_for_nothing() {
    let mut world = two();
    world.player.faults = Faults::parse("early:rank=1").expect("good");
    let launch = all_reduce(&mut world, "AllReduce_Sum_f32_RING_SIMPLE");
    alone(&world, &[launch], [true; CHANNELS], "an early stop");
}

/// A batch that is followed by another one ends for all threads of the block at once.
#[test]
fn between_batches_all_threads_wait() {
    let mut world = two();
    let mut launch = all_reduce(&mut world, "AllReduce_Sum_f32_TREE_SIMPLE");
    let (args, batch) = (&world.layout().args, &world.layout().batch);
    for channel in 0..CHANNELS {
        // Channel 0's next batch is that of channel 1.
        let at = &mut launch.args[args.size + channel * batch.size..][..batch.size];
        put_bits(at, batch.next_jump, if channel == 0 { 1 } else { 0 });
    }
    alone(&world, &[launch], [false, true], "two batches");
}

/// NCCL's device code counts broadcasts, and its host does not from 2.31 on.
#[test]
fn works_that_are_not_profiled_count() {
    let mut world = two();
    let (input, output) = (world.alloc(64), world.alloc(64));
    let bcast = |rank: usize| {
        let place = world.layout().bcast.as_ref().expect("synthetic");
        let mut work = vec![0; place.size];
        put(&mut work, place.ring_depth, rank as u64);
        put(&mut work, place.chunk_size, SIMPLE_SLOT as u64);
        put(&mut work, place.sendbuff, input.get());
        put(&mut work, place.recvbuff, output.get());
        put(&mut work, place.bytes, 64);
        world.launch(rank, id("AllGatherV_RING_SIMPLE"), BCAST, &[work])
    };
    let bcasts = [bcast(0), bcast(1)];
    world.run(&bcasts);
    let name = "AllReduce_Sum_f32_RING_SIMPLE";
    let buffs = [0, 1].map(|_| (world.alloc(4 * COUNT), world.alloc(4 * COUNT)));
    let launch = |rank: usize| {
        let work = coll_work(&world, name, COUNT, buffs[rank], 0);
        world.launch(rank, id(name), COLL, &[work])
    };
    world.run(&[launch(0), launch(1)]);
    let started = world.layout().comm.work_started.expect("synthetic");
    assert_eq!(slot(&world, (0, 0), started, 1), (0, 0), "the broadcast is not reported");
    assert_eq!(slot(&world, (0, 0), started, 2).0, 2, "what follows is the second");
}
