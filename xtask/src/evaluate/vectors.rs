// SPDX-License-Identifier: Apache-2.0
//! Verdicts from tables of vectors: on the simulated jobs of which recordings are judged, and on
//! real NCCL, from a live agent.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::case::{Fault, Folder, Group};
use super::score::{Cause, Score, words};
use super::tool::{json, text};
use crate::outcome::Outcome;

/// Faults of which a table may not show the class or the ranks, with the reason. Nothing but the
/// planted cause may be confirmed there.
const HIDDEN: &[(&str, &str)] = &[
    ("exit", "a process that ended in order is not in it"),
    ("extra-op", "calls are not in it, and their hashes are not of equal numbers of calls"),
    ("wrong-type", "the job has ended in order"),
    ("wrong-root", "the job may have ended in order"),
    ("p2p-unmatched", PEERS),
    ("p2p-size", "the sizes of sends and receives are not in it"),
    ("sm-exhausted", "the channels of kernels are not in it"),
    ("stream-blocked", PEERS),
    ("receiver-not-ready", PEERS),
];

/// What holds up a kernel behind a send or receive.
const PEERS: &str = "the peers of sends and receives that move no data are not in it";

/// The most ranks of a job of which the simulator makes a table with transfers.
const MOST: u64 = 1_024;

/// Judges a table of each hang and each control. False if one is not as its recordings are, or if
/// something is confirmed that was not planted.
pub(super) fn is_good(
    tool: &Path,
    scratch: &Path,
    faults: &[Fault],
    ranks: u64,
    seeds: u64,
) -> Outcome<bool> {
    if ranks > MOST {
        return Ok(true);
    }
    println!("\n{ranks} ranks, tables of vectors\n");
    println!("{:<22} {:>5}  said where it is not exact", "fault", "exact");
    let mut good = true;
    for fault in faults.iter().filter(|fault| fault.group != Group::Slow) {
        let hidden = HIDDEN.iter().find(|(name, _)| *name == fault.name);
        let (mut sum, mut said, mut is_wrong) = (Score::default(), Vec::new(), false);
        for seed in 1..=seeds {
            let judged = judge(tool, scratch, &fault.name, ranks, seed)?;
            let score = Score::of(&judged.planted, &judged.found);
            is_wrong |= !judged.is_honest() || hidden.is_none() && !score.is_exact();
            if !score.is_exact() {
                let (found, planted) = (words(&judged.found), words(&judged.planted));
                said.push(format!("{found} for {planted}"));
            }
            sum += &score;
        }
        let Score { runs, exact, .. } = sum;
        let why = hidden.map_or_else(String::new, |(_, why)| format!("({why}) "));
        let wrong = if is_wrong { "WRONG " } else { "" };
        println!("{:<22} {exact:>2}/{runs:<2}  {wrong}{why}{}", fault.name, said.join("; "));
        good &= !is_wrong;
    }
    Ok(good)
}

/// What was planted in a job, what is found in its table, and what of that is confirmed.
#[derive(Debug)]
struct Judged {
    planted: Vec<Cause>,
    found: Vec<Cause>,
    confirmed: Vec<Cause>,
}

impl Judged {
    /// True if nothing is confirmed that was not planted.
    fn is_honest(&self) -> bool {
        self.confirmed.iter().all(|cause| self.planted.contains(cause))
    }
}

fn judge(tool: &Path, scratch: &Path, fault: &str, ranks: u64, seed: u64) -> Outcome<Judged> {
    let folder = Folder::new(scratch.join(format!("table-{fault}-{ranks}-{seed}")))?;
    let mut simulate = Command::new(tool);
    simulate.args(["simulate", "--counters", "--fault", fault, "-o"]).arg(&folder.0);
    text(simulate.args(["--ranks", &ranks.to_string(), "--seed", &seed.to_string()]))?;
    let truth: Value = serde_json::from_str(&fs::read_to_string(folder.0.join("truth.json"))?)?;
    let findings = json(Command::new(tool).args(["diagnose", "--format", "json"]).arg(&folder.0))?;
    let mut confirmed = findings["findings"].clone();
    if let Some(all) = confirmed.as_array_mut() {
        all.retain(|one| one["confidence"] == "confirmed");
    }
    Ok(Judged {
        planted: Cause::list(&truth["verdicts"])?,
        found: Cause::list(&findings["findings"])?,
        confirmed: Cause::list(&confirmed)?,
    })
}

/// An agent that follows the recordings of a directory; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Agent {
    process: Child,
    address: String,
}

impl Agent {
    pub(super) fn start(tool: &Path, directory: &Path) -> Outcome<Agent> {
        let mut command = Command::new(tool);
        command.args(["agent", "--prom-listen", "127.0.0.1:0", "--dir"]).arg(directory);
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = process.stderr.take().ok_or("the agent has no stderr")?;
        let mut agent = Agent { process, address: String::new() };
        let mut lines = BufReader::new(stderr).lines();
        while agent.address.is_empty() {
            let line = lines.next().ok_or("the agent ended")??;
            let (_, rest) = line.split_once("http://").unwrap_or_default();
            agent.address = rest.split('/').next().unwrap_or_default().to_owned();
        }
        // It must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(agent)
    }

    /// The table that it serves now; `None` if it has none yet.
    pub(super) fn table(&self) -> Outcome<Option<Vec<u8>>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /vectors HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let is_there = answer.starts_with(b"HTTP/1.1 200");
        Ok(end.filter(|_| is_there).map(|end| answer.split_off(end + 4)))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // One that has already ended is no mistake here.
        let _killed = self.process.kill();
        let _status = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_planted_may_be_confirmed() {
        let cause =
            |class: &str| Cause { class: class.parse().expect("a class"), ranks: [1].into() };
        let judged = |planted, confirmed: &[Cause]| Judged {
            planted: vec![planted],
            found: vec![],
            confirmed: confirmed.to_vec(),
        };
        assert!(judged(cause("N1"), &[]).is_honest());
        assert!(judged(cause("N1"), &[cause("N1")]).is_honest());
        assert!(!judged(cause("H3b"), &[cause("N1")]).is_honest());
    }
}
