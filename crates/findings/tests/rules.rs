// SPDX-License-Identifier: Apache-2.0
//! Rules that derive the cause from one rank's state.

use ncclscope_findings::rank::{Ahead, Kernel, Launch, Pending, RankState, Thread, Transfer};
use ncclscope_findings::{FindingClass, RankFinding, apply_rules};

fn transfer(is_send: bool, channel: u8, reached: impl Into<Option<u8>>) -> Transfer {
    let reached = reached.into();
    let (steps, done, ready) = (8, 1, 1);
    Transfer { is_send, channel, peer: 1, steps, done, ready, reached, ..Transfer::default() }
}

fn send(channel: u8, reached: impl Into<Option<u8>>) -> Transfer {
    transfer(true, channel, reached)
}

fn receive(channel: u8, reached: impl Into<Option<u8>>) -> Transfer {
    transfer(false, channel, reached)
}

/// The state of a rank whose kernel runs, with these transfers.
fn with(transfers: &[Transfer]) -> RankState {
    let kernel = Kernel { channels: 2, started: 2, has_started: Some(true), ..Kernel::default() };
    RankState { kernel, transfers: transfers.to_vec(), ..RankState::default() }
}

#[track_caller]
fn expect(state: &RankState, class: Option<FindingClass>, says: &str) -> RankFinding {
    let found = apply_rules(state);
    assert!(found.class == class && found.why.contains(says), "{found:?}");
    found
}

#[test]
fn the_oldest_step_shows_which_side_holds_up_a_transfer() {
    use FindingClass::{FlushStalled, GpuNotProducing, NetworkStalled};
    let one = |transfer| with(&[transfer]);
    expect(&one(send(0, 0)), Some(GpuNotProducing), "produces no data");
    expect(
        &one(send(0, 1)),
        Some(GpuNotProducing),
        "produces no data for rank 1 of the communicator on channel 0",
    );
    let waits = expect(&one(send(0, 2)), None, "rank 1 of the communicator takes no data");
    assert_eq!(waits.peer, Some(1));
    expect(&one(send(0, 3)), Some(NetworkStalled), "is not delivered");
    expect(&one(receive(0, 1)), None, "it waits for data from rank 1");
    expect(&one(receive(0, 2)), Some(FlushStalled), "is not flushed");
}

#[test]
fn a_gpu_that_may_get_its_data_on_its_host_is_not_accused() {
    use FindingClass::GpuNotProducing;
    let in_host = |transfers: &[Transfer]| RankState { shares_host: true, ..with(transfers) };
    expect(&in_host(&[send(0, 1)]), None, "waits for data of another GPU on its host");
    // It receives on another channel only.
    expect(&in_host(&[send(0, 1), receive(1, None)]), None, "another GPU on its host");
    let both = [send(0, 1), receive(0, None)];
    expect(&in_host(&both), Some(GpuNotProducing), "produces no data");
}

#[test]
fn data_that_is_not_taken_is_n1_where_the_gpu_has_data_to_pass_on() {
    use FindingClass::{GpuNotConsuming, GpuNotProducing};
    let passes_on = with(&[receive(0, 3), send(0, None)]);
    expect(&passes_on, Some(GpuNotProducing), "has data to pass on and takes none");
    expect(&with(&[receive(0, 3), send(0, 1)]), Some(GpuNotProducing), "produces no data");
    // All of the data is sent, or the transfer is of another channel.
    let sent = Transfer { done: 8, ..send(0, None) };
    expect(&with(&[receive(0, 3), sent]), Some(GpuNotConsuming), "does not take");
    expect(&with(&[receive(0, 3), send(1, None)]), Some(GpuNotConsuming), "on channel 0");
}

#[test]
fn a_gpu_that_waits_for_another_rank_on_the_same_channel_stands_still_for_that() {
    // A tree: the data of one child has arrived, and that of the other has not.
    expect(&with(&[send(0, 1), receive(0, 3), receive(0, 1)]), None, "it waits for data");
    let other = with(&[receive(1, 1), send(0, 1), receive(0, 3)]);
    expect(&other, Some(FindingClass::GpuNotProducing), "on channel 0");
}

#[test]
fn a_receive_that_the_own_network_does_not_take_is_n2_once_the_kernel_runs() {
    let not_ready = Some(FindingClass::ReceiverNotReady);
    let says = "does not take the receive from rank 1 of the communicator on channel 0";
    expect(&with(&[send(0, 1), receive(0, 0)]), not_ready, says);
    // With registered application buffers, the receive is posted before the kernel runs.
    let unseen = |transfers: &[Transfer]| {
        let kernel = Kernel::default();
        RankState { kernel, ..with(transfers) }
    };
    let untouched = Transfer { done: 0, ready: 0, ..receive(0, 0) };
    expect(&unseen(&[untouched]), None, "no data has come");
    expect(&unseen(&[untouched, send(0, 1)]), not_ready, says);
}

#[test]
fn data_that_is_only_told_to_be_there_shows_no_cause() {
    let told = |channel, reached| Transfer { may_be_early: true, ..receive(channel, reached) };
    let says = "with the protocols LL and LL128 a network plugin may do before it came";
    for reached in [2, 3] {
        let found = expect(&with(&[told(0, reached)]), None, says);
        assert_eq!((found.peer, found.transfer), (Some(1), Some(told(0, reached))));
        expect(&with(&[told(0, reached), send(0, None)]), None, says);
        expect(&with(&[told(0, reached), send(0, 1)]), None, says);
    }
    // Other channels, sends, and what the network accepts are still evidence.
    let other = with(&[told(0, 3), send(1, 1)]);
    expect(&other, Some(FindingClass::GpuNotProducing), "on channel 1");
    expect(&with(&[told(0, 3), send(0, 3)]), Some(FindingClass::NetworkStalled), "delivered");
    expect(&with(&[told(0, 0)]), Some(FindingClass::ReceiverNotReady), "does not take the receive");
    expect(&with(&[told(0, 1)]), None, "it waits for data from rank 1");
}

#[test]
fn a_rank_that_may_not_have_entered_is_no_fault_of_the_path_to_it() {
    let nothing = Transfer { done: 0, ready: 0, ..receive(0, 1) };
    let alone = with(&[send(0, 3), nothing]);
    expect(&alone, None, "no data has come from rank 1");
    let all_in = RankState { have_peers_entered: true, ..alone };
    expect(&all_in, Some(FindingClass::NetworkStalled), "is not delivered");
}

#[test]
fn a_proxy_thread_with_work_must_use_what_it_gets() {
    const S: u64 = 1_000_000_000;
    let thread = |state, cpu_ns, delay_ns| {
        let place = "futex_wait".into();
        let proxy = Thread { tid: 7, state, place, span_ns: 10 * S, cpu_ns, delay_ns };
        let base = with(&[send(0, 1)]);
        RankState { proxy_threads: vec![proxy], awaits_proxy: true, ..base }
    };
    let stalled = Some(FindingClass::ProxyStalled);
    expect(&thread(b'D', S / 100, S / 2), stalled, "has work and does not run: D, in futex_wait");
    expect(&thread(b'T', 9 * S, 0), stalled, "is stopped");
    expect(&thread(b'R', 0, 10 * S), stalled, "gets no CPU time");
    let busy = Some(FindingClass::GpuNotProducing);
    for (cpu, delay) in [(9 * S, 0), (S, 9 * S), (S / 100, 5 * S)] {
        expect(&thread(b'R', cpu, delay), busy, "produces no data");
    }
    let why = "its kernel stands still, or its peers called something else";
    expect(&thread(0, 0, 0), busy, &format!("{why}; NCCL's proxy thread 7 has ended"));
    let idle = RankState { awaits_proxy: false, ..thread(b'S', 0, 0) };
    expect(&idle, busy, "produces no data");
    let unseen = Transfer { in_progress: false, still_ns: S, ..send(0, None) };
    expect(&with(&[unseen]), stalled, "which has not looked at it");
    let late = Transfer { still_ns: S - 1, ..unseen };
    expect(&with(&[late]), None, "none of their steps is in flight");
}

#[test]
fn kernels_calls_and_launches() {
    let kernel = |started, stopped, needs_all| {
        let has_started = Some(started > 0);
        let kernel =
            Kernel { channels: 2, started, stopped, has_started, needs_all, stops_early: false };
        RankState { kernel, ..RankState::default() }
    };
    expect(&kernel(0, 0, true), Some(FindingClass::KernelNotStarted), "other work is before it");
    for (is_same_stream, text) in [(true, "is behind operation 3"), (false, "may be behind")] {
        let behind = Some(Ahead { number: 3, is_same_stream });
        expect(&RankState { behind, ..kernel(0, 0, true) }, None, text);
    }
    let runs = RankState { launch: Launch::Running, ..kernel(0, 0, true) };
    expect(&runs, None, "its kernel has not ended since its turn came");
    expect(&kernel(1, 0, true), Some(FindingClass::KernelPartlyStarted), "1 of 2 channels");
    expect(&kernel(1, 0, false), None, "its kernel runs");
    let done = RankState { launch: Launch::Done, ..kernel(2, 1, true) };
    expect(&done, Some(FindingClass::ProxyStalled), "NCCL has not reported that");
    let lost = RankState { launch: Launch::Failed { status: 719 }, ..kernel(0, 0, true) };
    expect(&lost, Some(FindingClass::GpuDead), "error 719");
    let call = RankState { pending: Some(Pending::OpenGroup), ..RankState::default() };
    expect(&call, Some(FindingClass::CallNotEnqueued), "ncclGroupEnd");
}

#[test]
fn where_no_rank_is_known_all_verbs_say_so_in_the_same_words() {
    use FindingClass as C;
    let words = [C::ProcessGone, C::Deadlock, C::GpuNotConsuming, C::TransfersSlowed];
    let words = words.map(C::no_rank);
    assert_eq!(words, ["an unknown rank", "all members", "all members", "all ranks alike"]);
}
