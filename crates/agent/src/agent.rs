// SPDX-License-Identifier: Apache-2.0
//! The agent's loop: reads recordings each second, and exports each window that ends.

use crate::output::{self, Output};
use crate::page::Page;
use crate::target::{Target, variable};
use crate::{sender, server};
use ncclscope_console::failure::{BAD_INPUT, Failure, tell, warn, warn_lines};
use ncclscope_console::options::{AgentArgs, Label};
use ncclscope_control::table;
use ncclscope_metrics::encode::Labels;
use ncclscope_metrics::send::environment::place;
use ncclscope_metrics::send::{Sender, part_of};
use ncclscope_node::files::{allow_open_files, damage, host_name, warn_of_damaged};
use ncclscope_node::judged::{Judge, Judged};
use ncclscope_node::node::{ByProcess, Node};
use ncclscope_node::unrecorded::{Patience, Unrecorded};
use ncclscope_trace::Recording;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often recordings are read: often enough that blocks are read before they are overwritten,
/// whatever the interval.
const POLL: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(15);
/// How long the agent waits for the collector when it ends.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &AgentArgs) -> Result<ExitCode, Failure> {
    let directories = directories(args);
    let host = host_name();
    let labels = labels(&args.labels);
    let compat = output::compat(variable(table::PROM_COMPAT.name).as_deref())?;
    let mut output = Output::new(labels, compat, args.max_series, &host);
    allow_open_files()?;
    if args.once {
        if let Some(missing) = directories.iter().find(|directory| !directory.is_dir()) {
            return Err(Failure::input(format!("{}: no such directory", missing.display())));
        }
        let mut node = Node::new(directories, &host).per_rank(labels.rank).once();
        node.poll();
        node.close(Instant::now(), true);
        blame(&mut node, &mut Judge::default(), args);
        let text = output.prometheus(&node, 0);
        std::io::stdout().lock().write_all(text.as_bytes())?;
        let is_readable = node.count().unreadable == 0 && node.unreadable().next().is_none();
        // Of a recording that is still written the end is missing, too.
        let opened = node.complete().filter_map(|path| Recording::open(path).ok());
        let damaged = warn_of_damaged(opened.filter_map(|recording| damage(&recording)));
        let is_whole = is_readable && damaged == 0;
        return Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(BAD_INPUT) });
    }
    let interval = interval(args)?;
    let target = Target::find(args.otlp.as_deref(), &host, &variable)?;
    if target.is_none() && args.prom_listen.is_none() && args.textfile.is_none() {
        return Err(Failure::usage(
            "nothing to export to: give --prom-listen, --textfile or --otlp, or --once to see what \
             there is",
        ));
    }
    let signals = stop_signals()?;
    let mut patience = Patience::default();
    let node = Node::new(directories.clone(), &host).per_rank(labels.rank);
    let mut node = node.only_own_host(!args.any_host);
    let mut exports = Exports::start(args, target)?;
    let mut judge = Judge::default();
    node.begin();
    if let Some(address) = exports.address {
        tell(format_args!("serving http://{address}/metrics"));
    }
    // The first window has a random length, because a job starts the agents of all nodes at the
    // same time and they must not all export together.
    let mut window = interval / 2 + part_of(interval / 2);
    loop {
        let stop = watch(&mut node, window, &signals, &exports);
        window = interval;
        let closed = node.close(Instant::now(), stop);
        blame(&mut node, &mut judge, args);
        exports.export(&node.with_findings(closed), &node, &mut output);
        // A process that hangs before its first communicator records nothing.
        let unrecorded = Unrecorded::find(&directories);
        patience.look(&unrecorded, Instant::now()).into_iter().for_each(warn_lines);
        if stop {
            exports.finish();
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Notes why jobs hang, after a window was closed.
fn blame(node: &mut Node, judge: &mut Judge, args: &AgentArgs) {
    let jobs = judge.look(node, args.hang.hang_sec);
    node.blame(jobs.iter().flat_map(Judged::blamed));
}

/// Reads recordings for the length of a window. True if a signal ends the agent.
fn watch(node: &mut Node, interval: Duration, signals: &Receiver<()>, exports: &Exports) -> bool {
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let stop = match signals.recv_timeout(left.min(POLL)) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            // The signal thread is gone, so that no signals will come.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(left.min(POLL));
                false
            }
        };
        node.poll();
        if let Some(page) = &exports.page {
            page.set_vectors(node.vectors());
            // Until the first window ends, the page has only the number of processes.
            page.begin(|| output::own(node.count(), 0));
        }
        if stop || Instant::now() >= end {
            return stop;
        }
    }
}

/// A channel that gets a message for SIGTERM and SIGINT.
fn stop_signals() -> Result<Receiver<()>, Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|e| Failure::environment(format!("cannot handle signals: {e}")))?;
    let (sender, receiver) = mpsc::channel();
    // The thread sleeps until a signal comes, and ends with the process.
    std::thread::spawn(move || signals.forever().try_for_each(|_| sender.send(())));
    Ok(receiver)
}

fn directories(args: &AgentArgs) -> Vec<PathBuf> {
    if !args.dir.is_empty() {
        return args.dir.clone();
    }
    vec![std::env::var_os(table::DIR.name).map_or_else(|| ".".into(), PathBuf::from)]
}

fn labels(asked: &[Label]) -> Labels {
    Labels {
        rank: asked.contains(&Label::Rank),
        peer: asked.contains(&Label::Peer),
        channel: asked.contains(&Label::Channel),
    }
}

fn interval(args: &AgentArgs) -> Result<Duration, Failure> {
    if let Some(seconds) = args.interval {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let name = "OTEL_METRIC_EXPORT_INTERVAL";
    let Some(value) = variable(name) else { return Ok(INTERVAL) };
    let milliseconds = value.parse().ok().filter(|ms| (100..=86_400_000).contains(ms));
    milliseconds.map(Duration::from_millis).ok_or_else(|| {
        Failure::usage(format!("{name}={value}: expected milliseconds from 100 to 86400000"))
    })
}

/// The destinations of metrics.
#[derive(Debug)]
struct Exports {
    page: Option<Page>,
    address: Option<SocketAddr>,
    textfile: Option<PathBuf>,
    otlp: Option<(Sender, Target)>,
    textfile_failed: bool,
}

impl Exports {
    fn start(args: &AgentArgs, target: Option<Target>) -> Result<Exports, Failure> {
        let serve = |address: SocketAddr| {
            let page = Page::default();
            let address = server::start(address, page.clone()).map_err(|e| {
                Failure::environment(format!(
                    "cannot listen on {address}: {e}; choose another with --prom-listen"
                ))
            })?;
            Ok::<_, Failure>((page, address))
        };
        let (page, address) = args.prom_listen.map(serve).transpose()?.unzip();
        let otlp = match target {
            None => None,
            Some(target) => {
                let sender = sender::start(&target).map_err(Failure::environment)?;
                Some((sender, target))
            }
        };
        if let Some(directory) = &args.textfile
            && !directory.is_dir()
        {
            let text = format!("--textfile {}: no such directory", directory.display());
            return Err(Failure::environment(text));
        }
        let textfile = args.textfile.clone();
        Ok(Exports { page, address, textfile, otlp, textfile_failed: false })
    }

    /// Exports a window that was closed.
    fn export(&mut self, window: &ByProcess, node: &Node, output: &mut Output) {
        if let Some((sender, target)) = &self.otlp {
            sender.send(output.otlp(window, node, target));
        }
        if self.page.is_none() && self.textfile.is_none() {
            return;
        }
        let lost = self.otlp.as_ref().map(|(sender, _)| sender.lost()).unwrap_or_default();
        let text = output.prometheus(node, lost.dropped + lost.refused);
        if let Some(page) = &self.page {
            page.set(&text);
        }
        if let Some(directory) = &self.textfile {
            let result = output::write_textfile(directory, &text);
            let failed = result.is_err();
            if let Err(error) = result
                && !self.textfile_failed
            {
                warn(format_args!("cannot write to {}: {error}", directory.display()));
            }
            self.textfile_failed = failed;
        }
    }

    fn finish(&self) {
        let Some((sender, target)) = &self.otlp else { return };
        let left = sender.farewell_within(target.timeout.min(LAST_PATIENCE));
        if left != 0 {
            warn(format_args!("{left} exports did not reach {}", place(&target.url)));
        }
    }
}
