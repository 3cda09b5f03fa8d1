// SPDX-License-Identifier: Apache-2.0
//! Finds the recording of the process that wrote a trace.

use crate::trace::Identity;
use ncclscope_trace::Recording;

/// The index of the recording of a trace's process; `None` if there is none, or several match
/// equally well.
///
/// Process id and rank in the communicator of all ranks must agree if the trace has them. Of equal
/// matches the one with the same host name is chosen.
#[must_use]
pub fn choose(identity: &Identity, recordings: &[Recording]) -> Option<usize> {
    let scores = recordings.iter().map(|recording| score(identity, recording));
    let scores: Vec<Option<u32>> = scores.collect();
    let best = scores.iter().flatten().max()?;
    let mut with_best = (0..scores.len()).filter(|&at| scores[at].as_ref() == Some(best));
    let found = with_best.next()?;
    // A trace without any identity matches only if there is one recording.
    let is_known = *best > 0 || recordings.len() == 1;
    (is_known && with_best.next().is_none()).then_some(found)
}

/// How well a recording matches; `None` if a fact contradicts.
fn score(identity: &Identity, recording: &Recording) -> Option<u32> {
    let header = recording.header();
    let mut score = 0;
    if let Some(pid) = identity.pid {
        if pid != header.pid {
            return None;
        }
        score += 2;
    }
    if let Some((rank, all)) = identity.rank {
        let mut worlds = recording.comms().iter().filter(|comm| comm.ranks == all).peekable();
        if worlds.peek().is_some() {
            let is_mine = |mine: i32| mine < 0 || mine.cast_unsigned() == rank;
            if !worlds.any(|comm| is_mine(comm.rank)) {
                return None;
            }
            score += 4;
        }
    }
    score += u32::from(identity.host.as_ref() == Some(&header.host));
    Some(score)
}

impl Identity {
    /// The identity as text.
    #[must_use]
    pub fn text(&self) -> String {
        let rank = self.rank.map(|(rank, all)| format!("rank {rank} of {all}"));
        let pid = self.pid.map(|pid| format!("process {pid}"));
        let host = self.host.as_ref().map(|host| format!("on {host}"));
        let known: Vec<String> = [rank, pid, host].into_iter().flatten().collect();
        if known.is_empty() { "an unknown process".into() } else { known.join(", ") }
    }
}
