// SPDX-License-Identifier: Apache-2.0
//! The cost of a verdict on a very large job: 131,072 ranks, one of which is late.
//!
//! Seconds depend on the machine. Therefore the processor time is compared with that for an eighth
//! of the ranks, which reveals work that is quadratic in the number of ranks. Memory is limited.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::case::Folder;
use super::score::Cause;
use super::tool::{json, text};
use crate::outcome::Outcome;

const RANKS: [u64; 2] = [16_384, 131_072];
/// Maximum growth of the processor time for eight times the ranks.
const GROWTH: u64 = 24;
/// The diagnosis runs within 1 GiB of address space; its arguments are the tool and the folder.
const DIAGNOSE: &str = r#"ulimit -v 1048576 && exec "$0" diagnose --format json "$1""#;
/// A clock tick of `/proc`, ms.
const TICK_MS: u64 = 10;

/// Prints the figures. False if they grow too much.
pub(super) fn is_good(tool: &Path, scratch: &Path) -> Outcome<bool> {
    let [few, many] = RANKS;
    let small = least(tool, scratch, few, 0)?;
    let limit = GROWTH * small.max(TICK_MS);
    let large = least(tool, scratch, many, limit)?;
    println!(
        "\n{} ranks: {large} ms of processor time to a verdict, within 1 GiB; {} ranks: {small} ms",
        RANKS[1], RANKS[0]
    );
    Ok(large <= limit)
}

/// Processor time for the right verdict on a job of `ranks`, ms: the least of three, because other
/// processes use the machine, too. It is not measured again once it is at most `enough`.
fn least(tool: &Path, scratch: &Path, ranks: u64, enough: u64) -> Outcome<u64> {
    let folder = Folder::new(scratch.join(format!("large-{ranks}")))?;
    let mut simulate = Command::new(tool);
    simulate.args(["simulate", "--counters", "--fault", "host-stuck"]);
    text(simulate.args(["--ranks", &ranks.to_string(), "-o"]).arg(&folder.0))?;
    let mut least = u64::MAX;
    for _ in 0..3 {
        least = least.min(diagnose(tool, &folder.0)?);
        if least <= enough {
            break;
        }
    }
    Ok(least)
}

/// Processor time for the right verdict, ms.
fn diagnose(tool: &Path, folder: &Path) -> Outcome<u64> {
    let before = children_ms()?;
    let found = json(Command::new("sh").args(["-c", DIAGNOSE]).arg(tool).arg(folder))?;
    let time = children_ms()? - before;
    let truth: Value = serde_json::from_str(&fs::read_to_string(folder.join("truth.json"))?)?;
    let (found, planted) = (Cause::list(&found["findings"])?, Cause::list(&truth["verdicts"])?);
    if found != planted {
        return Err(format!("{}: {found:?} for {planted:?}", folder.display()).into());
    }
    Ok(time)
}

/// Processor time of the child processes that were waited for, ms.
fn children_ms() -> Outcome<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    Ok(read(&stat).ok_or("/proc/self/stat has another form")?)
}

/// Sum of `cutime` and `cstime`, fields 14 and 15 after the name in parentheses (proc_pid_stat(5)).
fn read(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(13).map_while(|field| field.parse::<u64>().ok());
    Some((fields.next()? + fields.next()?) * TICK_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_read() {
        let stat = "7 (x ) y) S 1 7 7 0 -1 4 0 0 0 0 11 12 130 14 20 0 1 0 99";
        assert_eq!(read(stat), Some(1_440));
        assert_eq!(read("7 (x) S 1"), None);
        assert_eq!(read("7"), None);
    }
}
