// SPDX-License-Identifier: Apache-2.0
//! Checks verdicts when recordings are missing.

use std::fs;
use std::path::{Path, PathBuf};

use super::case::{Case, Folder};
use super::circumstance::recordings;
use super::dice::Dice;
use super::score::Score;
use crate::outcome::Outcome;

/// Shares of the healthy ranks without a recording, percent.
pub(super) const SHARES: &[u64] = &[0, 1, 5, 10, 25, 50];
/// Number of random choices of silent ranks for each share.
const DRAWS: u64 = 3;

/// The scores of a case for each of [`SHARES`]. The ranks with the fault are never silent.
pub(super) fn curve(case: &Case, tool: &Path, scratch: &Path) -> Outcome<Vec<Score>> {
    let whole = Folder::new(scratch.join(format!("whole-{}", case.name())))?;
    case.simulate(tool, &whole.0)?;
    let planted = case.judge(tool, &whole.0)?.planted;
    let kept = |rank: &u64| planted.iter().any(|cause| cause.ranks.contains(rank));
    let truth = whole.0.join("truth.json");
    let ranked: Vec<(u64, PathBuf)> = (0..).zip(recordings(&whole.0)?).collect();
    let (faulty, healthy): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|(rank, _)| kept(rank));
    let mut scores = Vec::new();
    for &share in SHARES {
        let mut sum = Score::default();
        for draw in 0..if share == 0 { 1 } else { DRAWS } {
            let mut seen: Vec<&PathBuf> = healthy.iter().map(|(_, path)| path).collect();
            let silent = usize::try_from((healthy.len() as u64 * share).div_ceil(100))?;
            Dice::new(case.seed * 100 + draw).shuffle(&mut seen);
            seen.truncate(healthy.len() - silent);
            seen.extend(faulty.iter().map(|(_, path)| path).chain([&truth]));
            let part = Folder::new(scratch.join(format!("part-{}", case.name())))?;
            for file in seen {
                fs::hard_link(file, part.0.join(file.file_name().unwrap_or_default()))?;
            }
            sum += &case.judge(tool, &part.0)?.score;
        }
        scores.push(sum);
    }
    Ok(scores)
}
