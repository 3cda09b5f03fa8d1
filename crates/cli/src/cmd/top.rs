// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope top`: the ranks of a node or job, live.

It reads the same data as the agent: the recordings that the ranks write in any case, and
information about their processes in `/proc`. Or it queries an agent. It does not affect the ranks,
and sends them no requests.
*/

mod hang;
mod live;
mod place;
mod plain;
mod prometheus;
mod remote;
mod screen;
mod watch;

use crate::args::{Format, TopArgs};
use crate::io::output;
use live::Live;
use ncclscope_console::failure::{ENVIRONMENT, FINDINGS, Failure, tell};
use remote::Remote;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use watch::{Source, Watch, printable};

/// How long `--once` waits for rates: longer than two windows of an agent.
const PATIENCE: Duration = Duration::from_secs(40);

/// How often `--once` looks for ranks that have just started; `BEGINNING_AT_MOST` limits for how
/// long. A rank that ended in its first second, or an empty file, never becomes a running one.
const BEGINNING: Duration = Duration::from_millis(100);
const BEGINNING_AT_MOST: Duration = Duration::from_secs(3);

/// Number of readings with rates that `--once` takes: with those before, enough for the test to
/// show a straggler. (An agent's windows are longer.)
const ENOUGH: u32 = 5;

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let source: Box<dyn Source> = match &args.agent {
        Some(address) => Box::new(Remote::new(address)?),
        None => Box::new(Live::new(place::directories(args)?, args.interval)?),
    };
    let watch = Watch::new(source, args.stall_sec, args.hang_sec);
    if args.once {
        return once(watch, args);
    }
    match screen::obstacle() {
        Some(why) => {
            tell(format_args!("{why}: this is one picture, as with --once"));
            once(watch, args)
        }
        None => screen::show(watch, Duration::from_secs_f64(args.interval)),
    }
}

/// Prints one picture. The first readings contain operations in flight but no rates, and not the
/// ranks that have just started.
fn once(mut watch: Watch, args: &TopArgs) -> Result<ExitCode, Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    let (begin, mut picture) = (Instant::now(), watch.look()?);
    let end = begin + PATIENCE;
    while watch.is_beginning() && begin.elapsed() < BEGINNING_AT_MOST {
        std::thread::sleep(interval.min(BEGINNING));
        picture = watch.look()?;
    }
    let mut with_rates = 0;
    while !picture.ranks.is_empty() && with_rates < ENOUGH && Instant::now() < end {
        std::thread::sleep(interval);
        picture = watch.look()?;
        with_rates += u32::from(watch.has_rates());
    }
    if watch.is_too_early() {
        let text = "too early to tell whether a rank is slow: `top` without --once shows it later";
        picture.notes.push(text.into());
    }
    match args.format {
        Format::Json => output::json(&picture)?,
        Format::Text => output::text(&plain::text(&picture.clone().printable(printable)))?,
    }
    let is_bad = picture.ranks.iter().any(ncclscope_top::Row::is_bad);
    Ok(match picture.ranks.is_empty() {
        true => ExitCode::from(ENVIRONMENT),
        false if is_bad => ExitCode::from(FINDINGS),
        false => ExitCode::SUCCESS,
    })
}
