// SPDX-License-Identifier: Apache-2.0
//! A process that loads a plugin, plays some operations, and ends in one of several ways.
//!
//! `fake-nccl PLUGIN VERSION OPS END`, where END is `finalize`, `exit` (without finalize), `kill`
//! (SIGKILL, with a step in flight), `term` (SIGTERM), `fork`, `reload` (three times) or `comms`
//! (16 of them).
//! Prints `survived` last, where it does survive.

#![expect(clippy::print_stdout, clippy::exit, reason = "it is a program")]

use fake_nccl::plugin::Args;
use fake_nccl::{Player, Plugin};
use std::path::Path;

const CHANNELS: u8 = 2;
const STEPS: i32 = 4;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [plugin, version, ops, end] = args.as_slice() else {
        println!("usage: fake-nccl PLUGIN VERSION OPS END");
        std::process::exit(2);
    };
    let version = version.parse().expect("a version");
    let ops = ops.parse().expect("a number of operations");
    run(Path::new(plugin), version, ops, end);
    println!("survived");
}

fn run(path: &Path, version: usize, ops: usize, end: &str) {
    let rounds = if end == "reload" { 3 } else { 1 };
    for _ in 0..rounds {
        let mut plugin = Plugin::load(path, version).expect("the plugin loads");
        let comms = if end == "comms" { 16 } else { 1 };
        let contexts: Vec<_> = (0..comms).map(|n| plugin.init(0xc0ffee + n, 2, 0)).collect();
        for &context in &contexts {
            play(&plugin, context, ops);
        }
        finish(&plugin, &contexts, end);
        if end == "reload" {
            plugin.unload();
        }
    }
}

/// One thread enqueues, another is the proxy.
fn play(plugin: &Plugin, context: u64, ops: usize) {
    let (send, receive) = std::sync::mpsc::channel::<u64>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let player = Player::new(plugin, context, 0);
            for coll in receive {
                player.proxy(fake_nccl::play::Enqueued { coll }, CHANNELS, STEPS);
            }
        });
        let mut player = Player::new(plugin, context, 0);
        for _ in 0..ops {
            send.send(player.enqueue(1 << 20, CHANNELS).coll).expect("the proxy lives");
        }
        drop(send);
    });
}

fn finish(plugin: &Plugin, contexts: &[u64], end: &str) {
    let first = contexts[0];
    match end {
        "exit" => {}
        "kill" => {
            let mut player = Player::new(plugin, first, 0);
            let enqueued = player.enqueue(1 << 20, CHANNELS);
            let op = player.start_op(enqueued.coll, 0, true, std::process::id());
            let step = player.start_step(op, 0);
            plugin.record(step, 8, Some(&mut Args([0; 16])));
            signal(libc::SIGKILL);
        }
        "term" => signal(libc::SIGTERM),
        "fork" => fork(plugin, contexts[0]),
        _ => {
            for &context in contexts {
                plugin.finalize(context);
            }
        }
    }
}

fn signal(number: i32) {
    // SAFETY: no preconditions.
    let own = unsafe { libc::getpid() };
    // SAFETY: a signal to this very process.
    unsafe { libc::kill(own, number) };
}

/// Parent and child both go on; the child's events belong to nobody.
fn fork(plugin: &Plugin, context: u64) {
    // SAFETY: the child only calls the plugin and exits.
    let child = unsafe { libc::fork() };
    play(plugin, context, 10);
    plugin.finalize(context);
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: `status` is valid to write to.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child failed");
}
