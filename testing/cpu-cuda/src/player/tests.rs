// SPDX-License-Identifier: Apache-2.0
//! Whole launches between ranks of this process, over a layout that no NCCL release has.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::block::Block;
use super::conn::{Proto, Use};
use super::fake::{CHANNELS, LL_SLOT, SIMPLE_SLOT, World, put, put_bits};
use super::function::{Algo, Coll, Function};
use super::memory::Addr;
use super::prims::{Op, Prims, Setup, Slicing};
use super::reduce::{DataType, RedOp, Reduction};
use crate::layout::Bits;

mod faults;
mod stops;

const COLL: u64 = 1;
const P2P: u64 = 0;
const BCAST: u64 = 3;

/// Functions by id, as the launches below use them.
fn functions() -> Vec<Function> {
    [
        "AllReduce_Sum_f32_RING_SIMPLE",
        "AllReduce_Sum_f32_RING_LL",
        "AllReduce_Sum_f32_RING_LL128",
        "AllReduce_Sum_f32_TREE_SIMPLE",
        "AllReduce_Sum_f32_TREE_LL",
        "AllReduce_Sum_f32_TREE_LL128",
        "AllGather_RING_SIMPLE",
        "AllGather_RING_LL",
        "AllGather_RING_LL128",
        "ReduceScatter_Sum_f32_RING_SIMPLE",
        "ReduceScatter_Sum_f32_RING_LL",
        "ReduceScatter_Sum_f32_RING_LL128",
        "Broadcast_RING_SIMPLE",
        "Broadcast_RING_LL",
        "Broadcast_RING_LL128",
        "Reduce_Sum_f32_RING_SIMPLE",
        "Reduce_Sum_f32_RING_LL",
        "Reduce_Sum_f32_RING_LL128",
        "SendRecv",
        "AllGatherV_RING_SIMPLE",
        "AllReduce_Sum_f32_NVLS_SIMPLE",
    ]
    .map(Function::parse)
    .to_vec()
}

fn id(name: &str) -> usize {
    let wanted = Function::parse(name);
    functions().iter().position(|function| *function == wanted).expect("listed above")
}

/// A collective of `count` elements over both channels, the second with the smaller part.
fn coll_work(world: &World, name: &str, count: usize, buffs: (Addr, Addr), root: u64) -> Vec<u8> {
    let place = &world.layout().coll;
    let mut work = vec![0; place.size];
    let mut set = |offset, value| put(&mut work, offset, value);
    let last = count / 3;
    set(place.sendbuff, buffs.0.get());
    set(place.recvbuff, buffs.1.get());
    set(place.count_lo, (count - last) as u64);
    set(place.count_hi, last as u64);
    set(place.root, root);
    let (grain, chunk) = match Function::parse(name) {
        Function::Coll(.., Proto::Ll) => (16, LL_SLOT / 2),
        Function::Coll(.., Proto::Ll128) => (1920, 3840),
        Function::Coll(_, _, _, Algo::Tree, _)
        | Function::Coll(Coll::Broadcast | Coll::Reduce, ..) => (512, SIMPLE_SLOT),
        _ => (512, 4 * SIMPLE_SLOT),
    };
    put_bits(&mut work, place.channel_hi, CHANNELS as u64 - 1);
    put_bits(&mut work, place.chunk_grains_lo, (chunk / grain) as u64);
    put_bits(&mut work, place.chunk_grains_hi, (chunk / grain) as u64);
    put_bits(&mut work, place.profiler_enabled.expect("synthetic"), 1);
    work
}

/// Element `i` of a rank's input: small integers, so that sums are exact.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn value(rank: usize, i: usize) -> f32 {
    ((rank + 1) * (i % 251 + 1)) as f32
}

fn floats(count: usize, f: impl Fn(usize) -> f32) -> Vec<u8> {
    (0..count).flat_map(|i| f(i).to_le_bytes()).collect()
}

fn download(addr: Addr, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    addr.copy_to(&mut out);
    out
}

/// Runs a collective on `n_ranks` ranks: inputs of `ins` floats, outputs of `outs`, counted as
/// `count` elements of the function's type. Returns what each rank got.
fn run(name: &str, n_ranks: usize, count: usize, ins: usize, outs: usize) -> Vec<Vec<u8>> {
    let mut world = World::new(n_ranks, functions());
    let buffs: Vec<_> = (0..n_ranks)
        .map(|rank| (world.upload(&floats(ins, |i| value(rank, i))), world.alloc(4 * outs)))
        .collect();
    // Twice: the second launch continues at the steps where the first stopped.
    for _ in 0..2 {
        let launch = |rank: usize| {
            let work = coll_work(&world, name, count, buffs[rank], 1);
            world.launch(rank, id(name), COLL, &[work])
        };
        world.run(&(0..n_ranks).map(launch).collect::<Vec<_>>());
    }
    assert_eq!(world.player.failure(), None, "{name}");
    buffs.iter().map(|buffs| download(buffs.1, 4 * outs)).collect()
}

const COUNTS: [usize; 5] = [1, 5, 1000, 4099, 60_001];

fn sum(n_ranks: usize, i: usize) -> f32 {
    (0..n_ranks).map(|rank| value(rank, i)).sum()
}

#[test]
fn all_reduce_on_rings_and_trees() {
    for name in [
        "AllReduce_Sum_f32_RING_SIMPLE",
        "AllReduce_Sum_f32_RING_LL",
        "AllReduce_Sum_f32_RING_LL128",
        "AllReduce_Sum_f32_TREE_SIMPLE",
        "AllReduce_Sum_f32_TREE_LL",
        "AllReduce_Sum_f32_TREE_LL128",
    ] {
        for n_ranks in [2, 4] {
            for count in COUNTS {
                let expected = floats(count, |i| sum(n_ranks, i));
                for (rank, got) in run(name, n_ranks, count, count, count).iter().enumerate() {
                    assert!(*got == expected, "{name} {n_ranks} ranks {count}: rank {rank}");
                }
            }
        }
    }
}

#[test]
fn all_gather() {
    for name in ["AllGather_RING_SIMPLE", "AllGather_RING_LL", "AllGather_RING_LL128"] {
        for count in COUNTS {
            let expected = (0..3).flat_map(|rank| floats(count, |i| value(rank, i))).collect();
            let expected: Vec<u8> = expected;
            for got in run(name, 3, 4 * count, count, 3 * count) {
                assert!(got == expected, "{name} {count}");
            }
        }
    }
}

#[test]
fn reduce_scatter() {
    for name in [
        "ReduceScatter_Sum_f32_RING_SIMPLE",
        "ReduceScatter_Sum_f32_RING_LL",
        "ReduceScatter_Sum_f32_RING_LL128",
    ] {
        for count in COUNTS {
            for (rank, got) in run(name, 3, count, 3 * count, count).iter().enumerate() {
                let expected = floats(count, |i| sum(3, rank * count + i));
                assert!(*got == expected, "{name} {count}: rank {rank}");
            }
        }
    }
}

#[test]
fn broadcast_and_reduce_with_root_one() {
    for count in COUNTS {
        for name in ["Broadcast_RING_SIMPLE", "Broadcast_RING_LL", "Broadcast_RING_LL128"] {
            for got in run(name, 3, 4 * count, count, count) {
                assert!(got == floats(count, |i| value(1, i)), "{name} {count}");
            }
        }
        for name in
            ["Reduce_Sum_f32_RING_SIMPLE", "Reduce_Sum_f32_RING_LL", "Reduce_Sum_f32_RING_LL128"]
        {
            let got = run(name, 3, count, count, count);
            assert!(got[1] == floats(count, |i| sum(3, i)), "{name} {count}");
            assert!(got[0].iter().all(|&byte| byte == 0), "{name}: only the root gets a result");
        }
    }
}

/// A send of `bytes` to the other of two ranks and a receive from it.
fn p2p_work(
    world: &World,
    rank: usize,
    (input, output): (Addr, Addr),
    (ll, bytes): (u64, usize),
) -> Vec<u8> {
    let place = &world.layout().p2p;
    let mut work = vec![0; place.size];
    put(&mut work, place.send_addr, input.get());
    put(&mut work, place.recv_addr, output.get());
    put(&mut work, place.send_bytes, bytes as u64);
    put(&mut work, place.recv_bytes, bytes as u64);
    put(&mut work, place.send_rank, 1 - rank as u64);
    put(&mut work, place.recv_rank, 1 - rank as u64);
    let mut set = |bits: Bits, value| put_bits(&mut work, bits, value);
    set(place.n_p2p_channels, CHANNELS as u64);
    set(place.channel_base, 1);
    set(place.n_send_channels, CHANNELS as u64);
    set(place.n_recv_channels, CHANNELS as u64);
    // 512 and 4096 bytes as 8-bit floating point.
    let chunk = if ll == 1 { 7 << 3 } else { 10 << 3 };
    set(place.send_chunk_size, chunk);
    set(place.recv_chunk_size, chunk);
    set(place.send_proto_ll, ll);
    set(place.recv_proto_ll, ll);
    work
}

/// Both of two ranks send `bytes` to the other in one batch; both must get them.
fn exchange(world: &mut World, ll: u64, bytes: usize) {
    let data = |rank: usize| floats(bytes.div_ceil(4), |i| value(rank, i))[..bytes].to_vec();
    let buffs: Vec<_> =
        (0..2).map(|rank| (world.upload(&data(rank)), world.alloc(bytes))).collect();
    let launch = |rank: usize| {
        let work = p2p_work(world, rank, buffs[rank], (ll, bytes));
        world.launch(rank, id("SendRecv"), P2P, &[work])
    };
    world.run(&[launch(0), launch(1)]);
    assert_eq!(world.player.failure(), None);
    for (rank, (_, output)) in buffs.iter().enumerate() {
        assert!(download(*output, bytes) == data(1 - rank), "{bytes} bytes, LL {ll}");
    }
}

#[test]
fn send_and_receive() {
    for bytes in [0, 1, 7, 4096, 30_000, 100_000] {
        exchange(&mut World::new(2, functions()), 0, bytes);
        exchange(&mut World::new(2, functions()), 1, bytes);
    }
}

/// The protocols use the same step counter in turns.
#[test]
fn protocols_alternate_on_one_connection() {
    let mut world = World::new(2, functions());
    for ll in [0, 1, 1, 0, 1, 0] {
        exchange(&mut world, ll, 9001);
    }
}

/// The data that rank 0 sends on channel 1, which has the first part.
fn sender(world: &World) -> Addr {
    let layout = world.layout();
    let peers = world.channel(0, 1).add(layout.channel.peers).load_addr();
    peers.add(8).load_addr().add(layout.peer.send + layout.conn.size)
}

#[test]
fn a_line_holds_two_words_each_with_a_flag() {
    let mut world = World::new(2, functions());
    exchange(&mut world, 1, 12);
    let buff = sender(&world).add(world.layout().conn.buffs).load_addr();
    let words = |i: usize| value(0, i).to_bits();
    let lines: Vec<_> = (0..8).map(|i| buff.add(4 * i).load_u32()).collect();
    assert_eq!(lines, [words(0), 1, words(1), 1, words(2), 1, 0, 1], "step 0 has flag 1");
    assert_eq!(buff.add(32).load_u64(), 0, "two lines are enough");
}

/// Shortly before the flag's 31st bit changes, whole slots are written.
#[test]
fn old_flags_are_cleaned_in_time() {
    let mut world = World::new(2, functions());
    let (conn, step) = (world.layout().conn.clone(), 0x7fff_fff8);
    let send = sender(&world);
    let peers = world.channel(1, 1).add(world.layout().channel.peers).load_addr();
    let recv = peers.load_addr().add(world.layout().peer.recv + conn.size);
    for end in [send, recv] {
        end.add(conn.step).store_u64(step);
    }
    send.add(conn.head).load_addr().store_u64(step);
    exchange(&mut world, 1, 1);
    let buff = send.add(conn.buffs).load_addr();
    for word in 0..LL_SLOT / 8 {
        assert_eq!(buff.add(8 * word + 4).load_u32(), 0x7fff_fff9, "word {word}");
    }
    assert_eq!(send.add(conn.step).load_u64(), step + 1);
}

/// A connection whose slots a proxy hands out: the credit begins at none and the slot's place is
/// the proxy's choice.
#[test]
fn a_proxy_may_choose_the_slot() {
    let mut world = World::new(2, functions());
    let (conn, fifo) = (world.layout().conn.clone(), world.layout().fifo.clone());
    let send = sender(&world);
    let entries = world.alloc(8 * fifo.size);
    entries.add(fifo.mode.offset).store_u32(1);
    entries.add(fifo.offset.offset).store_u32(3 * 4096);
    send.add(conn.conn_fifo).store_u64(entries.get());
    let (head, tail) = (send.add(conn.head).load_addr(), send.add(conn.tail).load_addr());
    let buff = send.add(conn.buffs + 8 * Proto::Simple as usize).load_addr();
    head.store_u64(0_u64.wrapping_sub(8));
    let input = world.upload(&[1, 2, 3, 4, 5]);
    let broken = AtomicBool::new(false);
    let block = Block::new(world.layout(), world.comms[0], 1, &broken);
    let reduction = Reduction { op: RedOp::Sum, ty: DataType::U8, arg: 0 };
    let (slicing, of) = (Slicing::ONE, Use::P2p);
    let setup = Setup { proto: Proto::Simple, slicing, of, reduction, input, output: input };
    let mut prims = Prims::open(&block, setup, &[], &[1]);
    let early = std::thread::scope(|scope| {
        let proxy = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            let early = tail.load_u64();
            head.store_u64(0);
            early
        });
        let send = Op { send: true, src: Some(0), ..Op::default() };
        prims.play(send, 5).expect("the credit comes");
        proxy.join().expect("it only stores")
    });
    assert_eq!((early, tail.load_u64()), (0, 1), "nothing is sent without credit");
    assert_eq!(entries.add(fifo.sent.offset).load_u64(), 5);
    assert_eq!(download(buff.add(3 * 4096), 5), [1, 2, 3, 4, 5]);
    assert_eq!(download(buff, 5), [0; 5], "slot 0 is left alone");
}

/// Two broadcasts with different roots in one batch.
#[test]
fn grouped_broadcasts() {
    let (n_ranks, bytes) = (3, 10_001_usize);
    let mut world = World::new(n_ranks, functions());
    let data = |root: usize| floats(bytes.div_ceil(4), |i| value(root, i))[..bytes].to_vec();
    let inputs = [world.upload(&data(0)), world.upload(&data(1))];
    let outputs: Vec<_> = (0..2 * n_ranks).map(|_| world.alloc(bytes)).collect();
    let launch = |rank: usize| {
        let place = world.layout().bcast.as_ref().expect("synthetic");
        let work = |root: usize| {
            let mut work = vec![0; place.size];
            put(&mut work, place.ring_depth, ((rank + n_ranks - root) % n_ranks) as u64);
            put(&mut work, place.chunk_size, SIMPLE_SLOT as u64);
            put(&mut work, place.sendbuff, inputs[root].get());
            put(&mut work, place.recvbuff, outputs[2 * rank + root].get());
            put(&mut work, place.bytes, bytes as u64);
            work
        };
        let works = [work(0), work(1)];
        world.launch(rank, id("AllGatherV_RING_SIMPLE"), BCAST, &works)
    };
    world.run(&(0..n_ranks).map(launch).collect::<Vec<_>>());
    assert_eq!(world.player.failure(), None);
    for (i, output) in outputs.iter().enumerate() {
        assert!(download(*output, bytes) == data(i % 2), "output {i}");
    }
}

#[test]
fn an_abort_ends_a_launch_that_waits() {
    let mut world = World::new(2, functions());
    let name = "AllReduce_Sum_f32_RING_LL";
    let buffs = (world.alloc(4000), world.alloc(4000));
    let launch = world.launch(0, id(name), COLL, &[coll_work(&world, name, 1000, buffs, 0)]);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| world.player.run(&launch));
        std::thread::sleep(Duration::from_millis(50));
        world.abort_flags[0].store_u32(1);
    });
    assert!(begun.elapsed() < Duration::from_secs(5), "the peer never came");
    assert_eq!(world.player.failure(), None, "an abort is no failure");
}

#[test]
fn an_unknown_function_is_a_failure_not_a_hang() {
    let mut world = World::new(2, functions());
    let name = "AllReduce_Sum_f32_NVLS_SIMPLE";
    let buffs = (world.alloc(64), world.alloc(64));
    world.player.run(&world.launch(0, id(name), COLL, &[coll_work(&world, name, 4, buffs, 0)]));
    let failure = world.player.failure().expect("it must fail");
    assert_eq!(failure, "the player does not know AllReduce_Sum_f32_NVLS_SIMPLE");
}

#[test]
fn the_profilers_counters_advance() {
    let mut world = World::new(2, functions());
    let name = "AllReduce_Sum_f32_RING_SIMPLE";
    let buffs: Vec<_> = (0..2).map(|_| (world.alloc(400), world.alloc(400))).collect();
    let launch = |rank: usize| {
        let profiled = coll_work(&world, name, 100, buffs[rank], 0);
        let mut silent = profiled.clone();
        put_bits(&mut silent, world.layout().coll.profiler_enabled.expect("synthetic"), 0);
        world.launch(rank, id(name), COLL, &[silent, profiled])
    };
    world.run(&[launch(0), launch(1)]);
    let place = &world.layout().comm;
    for channel in 0..CHANNELS {
        // Work 2 is profiled; 64-byte arrays in this layout hold four slots of 16 bytes.
        let slot = |counters: crate::layout::Counters| {
            let base = world.comms[0].add(counters.offset).load_addr();
            let slot = base.add(channel * counters.stride + 2 * 16);
            (slot.load_u64(), slot.add(8).load_u64())
        };
        let (started, begun) = slot(place.work_started.expect("synthetic"));
        let (completed, ended) = slot(place.work_completed.expect("synthetic"));
        assert_eq!((started, completed), (2, 2));
        assert!(begun > 1_600_000_000_000_000_000, "nanoseconds since 1970");
        assert!(begun <= ended);
        let counter = world.layout().channel.work_counter.expect("synthetic");
        assert_eq!(world.channel(0, channel).add(counter).load_u64(), 2);
    }
}

#[test]
fn types_of_moved_data_need_no_reduction() {
    let moved = Function::parse("Broadcast_RING_SIMPLE");
    let Function::Coll(_, op, ty, ..) = moved else { panic!("{moved:?}") };
    assert_eq!((op, ty), (RedOp::Sum, DataType::U8));
}
