// SPDX-License-Identifier: Apache-2.0
//! A process that loads a plugin, plays a script, and ends in one of several ways.
//!
//! ```text
//! fake-nccl PLUGIN VERSION SCRIPT [--ops N] [--threads N] [--end END] [--log FILE] [--name NAME]
//!           [--logger LOGGER] [--keys N] [--tsc forbidden] [--nccl LIBRARY]
//!           [--rank RANK]
//! fake-nccl PLUGIN VERSION replay --file FILE [--log FILE]
//! ```
//!
//! SCRIPT is one of `fake_nccl::script::SCRIPTS`. END is `finalize`, `exit` (without finalize),
//! `kill` (SIGKILL, with a step in flight), `term` (SIGTERM), `fork`, `reload` (three times),
//! `comms` (16 of them), or, while N threads play, `term-busy`, `term-flag` and `term-exit`
//! (SIGTERM unhandled, noted and finalized, or handled by an exit), `kill-busy`, `exit-busy`,
//! `_exit-busy`, `fork-busy`, `exec-busy` and `dlclose`; `main-gone` is a process whose main thread
//! exits before the others. Communicators have the name NAME (`null`: NULL; a number: that many
//! letters), and a logger that is `real` or `garbage`. The process creates N `pthread` keys before
//! it loads the plugin; with `--tsc forbidden` it may not read the processor's time stamp counter.
//! RANK is the rank of two (default 0) that the process says it is. With `--nccl` the caller
//! is LIBRARY, `examples/rccl.rs`.
//!
//! The last round's callbacks go to the log's FILE. It prints the counts of
//! `fake_nccl::Log::counts`, a replay's handles as `handle ID HANDLE`, the logger's lines as
//! `logged COUNT`, the preloaded allocator's count as `allocated COUNT`, and last `survived`, if it
//! survives.

#![expect(clippy::print_stdout, reason = "it is a program")]

use fake_nccl::mask::Mask;
use fake_nccl::script::{self, Script};
use fake_nccl::{Log, Plugin, ScriptSetup, allocator, logger, replay};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::time::Duration;

const USAGE: &str = "usage: fake-nccl PLUGIN VERSION SCRIPT [--ops N] [--threads N] [--end END] \
                     [--log FILE] [--file FILE] [--name NAME] [--logger LOGGER] [--keys N] \
                     [--tsc forbidden] [--nccl LIBRARY] [--rank RANK]";

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
    let log = Log::new(options.contains_key("log"));
    let plugin = Plugin::load(path, version, log).expect("the plugin loads");
    let name = match options.get("name") {
        None => Some("fake".into()),
        Some(&"null") => None,
        Some(length) => Some("n".repeat(length.parse().expect("a number"))),
    };
    let name = name.map(|name| CString::new(name).expect("there is no NUL in it"));
    let logger = options.get("logger").map(|&kind| match kind {
        "garbage" => logger::garbage(),
        _ => logger::real(),
    });
    let plugin = plugin.telling(name, logger);
    match options.get("nccl") {
        None => plugin,
        Some(library) => {
            plugin.called_by_rccl(Mask::of(Path::new(library)).expect("the library loads"))
        }
    }
}

/// Between a communicator's `init` and its first operation.
const BOOTSTRAP: Duration = Duration::from_millis(40);

fn run(path: &Path, version: usize, script: Script, options: &Options<'_>) {
    let rank = i32::from(options.get("rank") == Some(&"1"));
    let end = options.get("end").copied().unwrap_or("finalize");
    let (ops, threads) = (number(options, "ops", 10), number(options, "threads", 1));
    take_keys(number(options, "keys", 0));
    if options.get("tsc") == Some(&"forbidden") {
        // SAFETY: from here on this thread, and those it starts, die of an instruction.
        unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
    }
    for _ in 0..if end == "reload" { 3 } else { 1 } {
        let plugin = load(path, version, options);
        let comms = if end == "comms" { 16 } else { 1 };
        let contexts: Vec<_> = (0..comms).map(|n| plugin.init(0xc0ffee + n, 2, rank)).collect();
        // NCCL connects the ranks after it has initialised the profiler: at least tens of
        // milliseconds.
        std::thread::sleep(BOOTSTRAP);
        for &context in &contexts {
            (script.play)(&ScriptSetup { plugin: &plugin, context, ops, threads });
        }
        fake_nccl::end::play(&plugin, &contexts, end, threads);
        tell(&plugin, options);
        if end == "reload" {
            plugin.unload();
        }
    }
}

/// Takes `pthread` keys, as other libraries of a process do; glibc stores the first 32 in the
/// thread itself.
fn take_keys(count: usize) {
    for _ in 0..count {
        let mut key = 0;
        // SAFETY: `key` is valid to write to, and there is no destructor.
        let result = unsafe { libc::pthread_key_create(&raw mut key, None) };
        assert_eq!(result, 0, "there is a key left");
    }
}

fn tell(plugin: &Plugin, options: &Options<'_>) {
    let allocations = allocator::allocations();
    println!("{}allocated {allocations}\nlogged {}", plugin.log().counts(), logger::lines());
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
