// SPDX-License-Identifier: Apache-2.0
//! What findings say: the subject, and what is wrong with it. All texts of titles are here, and
//! those of doubts in their table; no other code reads them.

use crate::doubt::Doubt;
use crate::finding::{Finding, How, Stop};
use crate::help::RankLocation;
pub use crate::ranks::{numbers, placed_rank, placed_ranks, ranks};
use ncclscope_operations::human;

impl Finding {
    /// The finding in one sentence, with the places of the ranks.
    #[must_use]
    pub fn title(&self) -> String {
        sentence(self, placed_subject)
    }

    /// The finding in one sentence, without the places of the ranks.
    #[must_use]
    pub fn sentence(&self) -> String {
        sentence(self, subject)
    }

    /// What else may explain it, in words.
    #[must_use]
    pub fn alternatives(&self) -> Vec<String> {
        self.doubts.iter().map(Doubt::text).collect()
    }
}

/// What a finding is about, without places: `rank 9`.
fn subject(finding: &Finding) -> String {
    subject_as(finding, ranks(&finding.root_ranks))
}

/// What a finding is about: `rank 9 (node-1, pid 77)`.
fn placed_subject(finding: &Finding) -> String {
    let Finding { root_ranks: roots, help, .. } = finding;
    let placed = match (&roots[..], &help.places[..]) {
        ([_], [RankLocation { rank, host, pid, .. }]) => placed_rank(*rank, host.as_deref(), *pid),
        (roots, places) if roots.len() == places.len() => {
            placed_ranks(roots, places.iter().map(|place| place.host.as_deref()))
        }
        (roots, _) => ranks(roots),
    };
    subject_as(finding, placed)
}

fn subject_as(finding: &Finding, ranks: String) -> String {
    match (&finding.subject, finding.root_ranks.is_empty(), finding.unknown_roots) {
        (Some(subject), ..) => subject.clone(),
        (None, true, 0) => finding.class.no_rank().to_owned(),
        (None, true, 1) => "an unknown rank".to_owned(),
        (None, true, more) => human::count(more, "unknown rank"),
        (None, false, 0) => ranks,
        (None, false, more) => format!("{ranks} and {}", human::count(more, "unknown rank")),
    }
}

/// The finding as a sentence with this subject.
fn sentence(finding: &Finding, subject: fn(&Finding) -> String) -> String {
    let said = match &finding.how {
        How::Said(sentence) => sentence.clone(),
        how => format!("{} {}", subject(finding), predicate(finding, how)),
    };
    match &finding.detail {
        Some(detail) => format!("{said}; {detail}"),
        None => said,
    }
}

/// What is wrong with the subject, as the rest of the sentence.
fn predicate(finding: &Finding, how: &How) -> String {
    let one = finding.root_ranks.len() + finding.unknown_roots == 1;
    let if_one = |one_is: &str, more_are: &str| if one { one_is } else { more_are }.to_owned();
    match how {
        How::OfClass => finding.class.predicate(one).to_owned(),
        How::Elsewhere => {
            if_one("calls NCCL", "call NCCL") + ", but not the operation that other ranks wait in"
        }
        How::Left => {
            if_one("has", "have")
                + " aborted or destroyed the communicator in which other ranks wait, and "
                + &if_one("does not call NCCL", "do not call NCCL")
        }
        How::Exited => "exited".to_owned(),
        How::BrokenOff => if_one(
            "is dead: its recording breaks off before all others",
            "are dead: their recordings break off before all others",
        ),
        How::Stopped(by) => stopped(*by, one).to_owned(),
        How::EndedFirst { is_broken_off, is_error, is_alone } => {
            ended_first(one, [*is_broken_off, *is_error, *is_alone]).to_owned()
        }
        How::Inside(function) => {
            format!("{} in {function}, which does not return", if_one("is", "are"))
        }
        How::TakesNoPart => if_one("takes no part", "take no part"),
        How::OtherOrder(most) => {
            let uses = if_one("uses", "use");
            format!("{uses} two communicators in another order than {}", ranks(most))
        }
        How::Said(text) => text.clone(),
    }
}

const fn stopped(by: Stop, is_one: bool) -> &'static str {
    match (by, is_one) {
        (Stop::Signal, true) => {
            "is stopped, by a signal (SIGSTOP) or a debugger: it exists and does not run"
        }
        (Stop::Signal, false) => {
            "are stopped, by a signal (SIGSTOP) or a debugger: they exist and do not run"
        }
        (Stop::Freezer, true) => {
            "is frozen, by its control group (a paused container): it exists and does not run"
        }
        (Stop::Freezer, false) => {
            "are frozen, by the control group (a paused container): they exist and do not run"
        }
        (Stop::Unanswering, true) => {
            "is stopped, dead or cut off from the network: NCCL's RAS gets no answer"
        }
        (Stop::Unanswering, false) => {
            "are stopped, dead or cut off from the network: NCCL's RAS gets no answer"
        }
        (Stop::Before, true) => "was stopped, until shortly before it ended: it did not run",
        (Stop::Before, false) => "were stopped, until shortly before they ended: they did not run",
    }
}

const fn ended_first(is_one: bool, [is_broken_off, is_error, is_alone]: [bool; 3]) -> &'static str {
    match (is_broken_off, is_alone, is_error) {
        (true, true, _) if is_one => "was ended by a signal, a crash or `_exit`",
        (true, true, _) => "were ended by a signal, a crash or `_exit`",
        (true, false, _) => "ended before the other ranks: by a signal, a crash or `_exit`",
        (false, true, _) => "exited with an error, and no other rank did",
        (false, false, true) => "exited before the other ranks, with an error",
        (false, false, false) => "ended before the other ranks, in order or with an error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Confidence, FindingClass};

    #[test]
    fn a_title_is_a_sentence_with_its_subject() {
        let place = |rank, host: &str| RankLocation {
            rank,
            host: Some(host.into()),
            pid: Some(7),
            ..RankLocation::default()
        };
        let mut slow = Finding::new(FindingClass::SlowRank, vec![8]);
        slow.help.places = vec![place(8, "a")];
        assert_eq!(slow.title(), "rank 8 (a, pid 7) is slow, and the other ranks wait for it");
        assert_eq!(slow.sentence(), "rank 8 is slow, and the other ranks wait for it");
        slow.root_ranks = vec![8, 9];
        assert_eq!(slow.title(), "ranks 8-9 are slow, and the other ranks wait for them");
        slow.help.places.push(place(9, "b"));
        assert!(slow.title().starts_with("ranks 8-9 (a, b) are slow"));
        let gone = Finding {
            unknown_roots: 1,
            how: How::Exited,
            detail: Some("it made one call fewer".into()),
            ..Finding::new(FindingClass::ProcessGone, vec![3])
        };
        let title = "rank 3 and 1 unknown rank exited; it made one call fewer";
        assert_eq!(gone.title(), title);
        let unknown = |unknown_roots| Finding {
            unknown_roots,
            ..Finding::new(FindingClass::NotRecorded, Vec::new())
        };
        assert!(unknown(1).title().starts_with("an unknown rank makes other ranks wait"));
        assert!(unknown(2).title().starts_with("2 unknown ranks make other ranks wait"));
        let unknown = Finding::new(FindingClass::Deadlock, Vec::new());
        assert_eq!(unknown.sentence(), "all members wait for each other in a cycle");
    }

    #[test]
    fn a_remark_lowers_no_finding() {
        let mut finding = Finding::new(FindingClass::HostStuck, vec![1]);
        finding.doubts.push(Doubt::Computes);
        assert_eq!(finding.confidence(), Confidence::Confirmed);
        finding.doubts.push(Doubt::StillCalls);
        assert_eq!(finding.confidence(), Confidence::Suspect);
        assert_eq!(finding.alternatives(), [Doubt::Computes.text(), Doubt::StillCalls.text()]);
    }
}
