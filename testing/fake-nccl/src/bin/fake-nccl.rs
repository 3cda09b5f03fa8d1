// SPDX-License-Identifier: Apache-2.0
//! A process that loads a plugin, plays a script, and ends in one of several ways.
//!
//! ```text
//! fake-nccl PLUGIN VERSION SCRIPT [--ops N] [--threads N] [--end END] [--log FILE]
//! fake-nccl PLUGIN VERSION replay --file FILE [--log FILE]
//! ```
//!
//! SCRIPT is one of `fake_nccl::script::SCRIPTS`. END is `finalize`, `exit` (without finalize),
//! `kill` (SIGKILL, with a step in flight), `term` (SIGTERM), `fork`, `reload` (three times) or
//! `comms` (16 of them). The last round's callbacks go to the log's FILE; what was played is
//! printed as `fake_nccl::Log::counts` has it, a replay's handles as `handle ID HANDLE`, and
//! `survived` last, where it does survive.

#![expect(clippy::print_stdout, clippy::exit, reason = "it is a program")]

use fake_nccl::plugin::Args;
use fake_nccl::script::{self, CHANNELS, Script};
use fake_nccl::{Log, Player, Plugin, Stage, replay};
use std::collections::HashMap;
use std::path::Path;

const USAGE: &str = "usage: fake-nccl PLUGIN VERSION SCRIPT [--ops N] [--threads N] [--end END] \
                     [--log FILE] [--file FILE]";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((plugin, version, script, options)) = read(&args) else {
        println!("{USAGE}");
        std::process::exit(2);
    };
    if script == "replay" {
        play_again(plugin, version, &options);
    } else {
        let Some(script) = script::find(script) else {
            println!("{USAGE}\nno script {script}");
            std::process::exit(2);
        };
        run(plugin, version, script, &options);
    }
    println!("survived");
}

type Options<'a> = HashMap<&'a str, &'a str>;

fn read(args: &[String]) -> Option<(&Path, usize, &str, Options<'_>)> {
    let [plugin, version, script, options @ ..] = args else { return None };
    let mut found = HashMap::new();
    for pair in options.chunks(2) {
        let [name, value] = pair else { return None };
        found.insert(name.strip_prefix("--")?, value.as_str());
    }
    Some((Path::new(plugin), version.parse().ok()?, script, found))
}

fn number(options: &Options<'_>, name: &str, default: usize) -> usize {
    options.get(name).map_or(default, |text| text.parse().expect("a number"))
}

fn load(path: &Path, version: usize, options: &Options<'_>) -> Plugin {
    Plugin::load(path, version, Log::new(options.contains_key("log"))).expect("the plugin loads")
}

fn run(path: &Path, version: usize, script: Script, options: &Options<'_>) {
    let end = options.get("end").copied().unwrap_or("finalize");
    let (ops, threads) = (number(options, "ops", 10), number(options, "threads", 1));
    for _ in 0..if end == "reload" { 3 } else { 1 } {
        let plugin = load(path, version, options);
        let comms = if end == "comms" { 16 } else { 1 };
        let contexts: Vec<_> = (0..comms).map(|n| plugin.init(0xc0ffee + n, 2, 0)).collect();
        for &context in &contexts {
            (script.play)(&Stage { plugin: &plugin, context, ops, threads });
        }
        finish(&plugin, &contexts, end);
        tell(&plugin, options);
        if end == "reload" {
            plugin.unload();
        }
    }
}

fn tell(plugin: &Plugin, options: &Options<'_>) {
    print!("{}", plugin.log().counts());
    if let Some(file) = options.get("log") {
        std::fs::write(file, plugin.log().lines()).expect("the log can be written");
    }
}

fn play_again(path: &Path, version: usize, options: &Options<'_>) {
    let text = std::fs::read_to_string(options["file"]).expect("the callbacks can be read");
    let plugin = load(path, version, options);
    for (id, handle) in replay::play(&plugin, &replay::parse(&text)) {
        println!("handle {id} {handle:x}");
    }
    tell(&plugin, options);
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
        "fork" => fork(plugin, first),
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
    let play = script::find("allreduce").expect("it is there").play;
    play(&Stage { plugin, context, ops: 10, threads: 1 });
    plugin.finalize(context);
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: `status` is valid to write to.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child failed");
}
