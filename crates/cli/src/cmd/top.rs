// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope top`: the ranks of a node or job, live.

It reads what the agent reads: the recordings that the ranks write in any case, and what `/proc`
shows of their processes. Or it asks an agent. No rank notices it, and none is asked anything.
*/

mod hang;
mod here;
mod live;
mod place;
mod plain;
mod prometheus;
mod remote;
mod screen;

use crate::args::{Format, TopArgs};
use crate::failure::{ENVIRONMENT, FINDINGS, Failure, tell};
use crate::output::{self, in_a_line};
use live::Live;
use ncclscope_top::{Patience, Picture, Reading, judge};
use remote::Remote;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long `--once` waits for rates: longer than two windows of an agent.
const PATIENCE: Duration = Duration::from_secs(40);

/// How many readings with rates it takes: so many show a straggler.
const ENOUGH: u32 = 3;

/// Where readings come from.
trait Source: Send {
    /// The next reading, `limit` being how long an operation may be in flight before it counts as
    /// stalled.
    fn read(&mut self, limit: Duration) -> Result<Reading, Failure>;

    /// Enough was read for rates.
    fn has_rates(&self) -> bool;
}

/// A source, and what was learnt from its readings.
struct Watch {
    source: Box<dyn Source>,
    patience: Patience,
    hang_s: f64,
    read_at: Option<Instant>,
}

impl Watch {
    fn new(args: &TopArgs) -> Result<Watch, Failure> {
        let source: Box<dyn Source> = match &args.agent {
            Some(address) => Box::new(Remote::new(address)?),
            None => Box::new(Live::new(place::directories(args)?, args.interval)),
        };
        let (least, most) = (args.stall_sec.as_secs_f64(), args.hang_sec.as_secs_f64());
        let patience = Patience::new(least.min(most), most);
        Ok(Watch { source, patience, hang_s: most, read_at: None })
    }

    /// The next picture.
    fn look(&mut self) -> Result<Picture, Failure> {
        let reading = self.source.read(Duration::from_secs_f64(self.patience.limit_s()))?;
        let elapsed =
            self.read_at.replace(Instant::now()).map_or(0.0, |at| at.elapsed().as_secs_f64());
        self.patience.learn(&reading, elapsed);
        let mut picture = judge(&reading, self.patience.limit_s(), self.hang_s);
        self.patience.settle(&mut picture);
        Ok(picture)
    }
}

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let watch = Watch::new(args)?;
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

/// Prints one picture. The first readings show what is in flight and no rates yet.
fn once(mut watch: Watch, args: &TopArgs) -> Result<ExitCode, Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    let end = Instant::now() + PATIENCE;
    let mut picture = watch.look()?;
    let mut with_rates = 0;
    while !picture.ranks.is_empty() && with_rates < ENOUGH && Instant::now() < end {
        std::thread::sleep(interval);
        picture = watch.look()?;
        with_rates += u32::from(watch.source.has_rates());
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

/// Text of processes, of which nothing acts on a terminal.
fn printable(text: &str) -> String {
    in_a_line(text).replace('\t', "\\t")
}
