// SPDX-License-Identifier: Apache-2.0
//! A process that creates, uses and destroys many communicators.
//!
//! ```text
//! elastic PLUGIN VERSION COMMS [LIVING]
//! ```
//!
//! LIVING of the communicators exist at a time, by default one; with 0 each is destroyed before the
//! next one. Prints `init_us WORST MEAN`, `rss_kib FIRST LAST` (after a tenth of them, and after
//! all), and `survived`.

#![expect(clippy::print_stdout, reason = "it is a program")]

use fake_nccl::script::setup::CHANNELS;
use fake_nccl::{Log, Player, Plugin};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).map(|text| text.parse::<usize>().expect("a number"));
    let (Some(version), Some(comms)) = (number(1), number(2)) else {
        println!("usage: elastic PLUGIN VERSION COMMS [LIVING]");
        std::process::exit(2);
    };
    let living = number(3).unwrap_or(1);
    let plugin = Plugin::load(Path::new(&args[0]), version, Log::new(false)).expect("it loads");
    let (mut worst, mut sum, mut first_rss) = (Duration::ZERO, Duration::ZERO, 0);
    let mut alive = VecDeque::new();
    for comm in 0..comms {
        let start = Instant::now();
        let context = plugin.init(0xc0_ffee + comm as u64, 2, 0);
        let took = start.elapsed();
        // The first communicator starts all threads of the plugin.
        if comm > 0 {
            worst = worst.max(took);
            sum += took;
        }
        let mut player = Player::new(&plugin, context, 0);
        let enqueued = player.enqueue(1 << 10, CHANNELS);
        player.proxy(enqueued, CHANNELS, 1);
        alive.push_back(context);
        if alive.len() > living
            && let Some(context) = alive.pop_front()
        {
            plugin.finalize(context);
        }
        // Communicators that exist only for microseconds would fill the lanes.
        std::thread::sleep(Duration::from_micros(200));
        if comm == comms / 10 {
            first_rss = resident_kib();
        }
    }
    alive.into_iter().for_each(|context| plugin.finalize(context));
    let mean = sum / u32::try_from(comms).expect("a number");
    println!("init_us {} {}", worst.as_micros(), mean.as_micros());
    println!("rss_kib {first_rss} {}", resident_kib());
    println!("survived");
}

fn resident_kib() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4
}
