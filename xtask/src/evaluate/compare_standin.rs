// SPDX-License-Identifier: Apache-2.0
//! `ncclscope compare` on real NCCL: equal runs, a link that is slower, another algorithm.
//!
//! Three ranks in a ring whose links the rig slows down, so that the links and not the machine
//! decide how long an operation takes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::case::Folder;
use super::compare::changed;
use super::standin;
use super::tool::json;
use crate::nccl::Release;
use crate::outcome::Outcome;

/// Number of pairs of equal runs, none of which may be reported as different.
const EQUAL: usize = 10;
/// Value of `--fail-above` for these pairs, percent.
const ABOVE: &str = "5";
/// Number of training steps of a run.
const STEPS: usize = 64;
/// Bandwidth of each link, MB/s.
const MBPS: [u32; 3] = [20; 3];
/// Bandwidths if the link from rank 1 to rank 2 is 20 % slower, MB/s.
const ONE_SLOWER: [u32; 3] = [20, 16, 20];

/// Prints the result of each comparison. False if one is wrong.
pub(super) fn is_good(folder: &Path, release: &Release, scratch: &Path) -> Outcome<bool> {
    let runs = Folder::new(scratch.join("compare"))?;
    let job = Jobs { folder, release, scratch: &runs.0 };
    let before = job.run("before", MBPS, "")?;
    let mut good = true;
    for pair in 1..=EQUAL {
        let equal = job.run(&format!("equal-{pair}"), MBPS, "")?;
        let is_equal = job.passes(&before, &equal)?;
        let said = job.compare(&before, &equal)?;
        println!("equal pair {pair}: {} {}", shown(is_equal), in_short(&said));
        good &= is_equal;
    }
    let slower = job.compare(&before, &job.run("slower", ONE_SLOWER, "")?)?;
    let links: Vec<&Value> = changed(&slower, "slower")
        .map(|row| &row["key"])
        .filter(|key| key["kind"] == "link")
        .collect();
    let is_found = links.len() == 1 && links[0]["src"] == 1 && links[0]["dst"] == 2;
    println!("a link slower by 20 %: {} {}", shown(is_found), in_short(&slower));
    let tree = job.compare(&before, &job.run("tree", MBPS, "NCCL_ALGO = \"Tree\"")?)?;
    let differences = tree["config_differences"].as_array().cloned().unwrap_or_default();
    let differs = |what: &str| differences.iter().any(|d| d["what"].to_string().contains(what));
    let is_told =
        differs("NCCL_ALGO") && differs("AllReduce") && changed(&tree, "slower").count() > 0;
    println!("another algorithm: {} {}", shown(is_told), in_short(&tree));
    Ok(good && is_found && is_told)
}

fn shown(is_right: bool) -> &'static str {
    if is_right { "right" } else { "WRONG" }
}

fn in_short(comparison: &Value) -> String {
    let answer = &comparison["answer"];
    format!("{} {}", answer["state"], answer["what"])
}

/// Runs jobs and compares them.
#[derive(Debug, Clone, Copy)]
struct Jobs<'a> {
    /// The folder of the programs.
    folder: &'a Path,
    release: &'a Release,
    scratch: &'a Path,
}

impl Jobs<'_> {
    /// Records a job. Returns the directory of its recordings.
    fn run(&self, name: &str, mbps: [u32; 3], env: &str) -> Outcome<PathBuf> {
        let record = self.scratch.join(name);
        let file = record.with_extension("toml");
        fs::write(&file, scenario(mbps, env))?;
        standin::record(self.folder, self.release, (&file, &record), &[])?;
        Ok(record)
    }

    fn command(&self, [before, now]: [&Path; 2]) -> Command {
        let mut command = Command::new(self.folder.join("ncclscope"));
        command.arg("compare").arg(before).arg(now);
        command
    }

    fn compare(&self, before: &Path, now: &Path) -> Outcome<Value> {
        json(self.command([before, now]).args(["--format", "json"]))
    }

    /// True if no row is so much slower that a check of two images would fail.
    fn passes(&self, before: &Path, now: &Path) -> Outcome<bool> {
        let mut command = self.command([before, now]);
        let output = command.args(["--fail-above", ABOVE]).stdout(Stdio::null()).status()?;
        Ok(output.success())
    }
}

/// Training steps of one small operation and three large ones.
fn scenario(mbps: [u32; 3], env: &str) -> String {
    let step = r#""allreduce:1024", "repeat:3:allreduce:24576""#;
    let steps = vec![step; STEPS].join(", ");
    let link = |(rank, mbps)| {
        format!("[[fault]]\nkind = \"slow-link\"\nrank = {rank}\nstep = 1\nmbps = {mbps}\n")
    };
    let links: String = mbps.iter().enumerate().map(link).collect();
    format!(
        "topology = \"ring3\"\nsteps = [{steps}]\n\n[env]\nNCCL_PROTO = \"LL128\"\n\
         NCCL_MAX_NCHANNELS = \"1\"\n{env}\n\n{links}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_slows_each_link() {
        let text = scenario(ONE_SLOWER, "NCCL_ALGO = \"Tree\"");
        assert_eq!(text.matches("slow-link").count(), 3);
        assert_eq!(text.matches("mbps = 16").count(), 1);
        assert_eq!(text.matches("repeat:3").count(), STEPS);
    }
}
