// SPDX-License-Identifier: Apache-2.0
//! The ranks that others waited for in collectives: sums, while the answer says who is slow.

use super::content::Content;
use super::page::{Page, rank_text};
use ncclscope_answer::{Answer, State};
use ncclscope_operations::human::{duration, percent};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::schema::LateRank;

/// Names at most `most` of the ranks.
pub(super) fn write(page: &mut Page, Content { report, answer, .. }: Content<'_>, most: usize) {
    let ranks: &[LateRank] = &report.late_ranks;
    if ranks.is_empty() {
        return;
    }
    page.heading("LATE RANKS, and how long all others together waited for them in collectives");
    let shown = &ranks[..most.min(ranks.len())];
    if let Some(text) = explanation(answer, shown) {
        page.wrapped("  ", text);
    }
    for late in shown {
        let host = late.host.as_ref().map_or_else(String::new, |host| format!(" ({host})"));
        let comm = late.comm_name.as_ref().or(late.comm.as_ref());
        let comm = comm.map_or_else(String::new, |comm| format!(" of {comm}"));
        let name = rank_text(late.rank, late.comm_rank);
        let time = duration(to_f64(late.waiting_ns));
        let share = percent(late.share);
        page.entry(&format!("{name}{comm}{host}: {time}, {share} of the time in collectives"));
    }
}

/// What the rows are, if the answer does not name the first one's rank.
fn explanation(answer: &Answer, rows: &[LateRank]) -> Option<&'static str> {
    let is_named =
        |late: &LateRank| late.rank.is_some_and(|rank| answer.root_ranks.contains(&rank));
    if rows.first().is_some_and(is_named) {
        return None;
    }
    match answer.state {
        State::Fine => Some("ranks wait for one another in every job; none of these is slow"),
        State::Slow => Some(
            "these came last to collectives, whatever delayed them; the answer above names what \
             slows the job down",
        ),
        State::Hung => Some(
            "these came last to collectives that completed; the answer above names what holds up \
             those that did not",
        ),
        State::Crashed => Some(
            "these came last to collectives that completed; the answer above names what ended \
             first",
        ),
        State::Unknown => Some(
            "ranks wait for one another in every job; whether one of these is slow is not known",
        ),
    }
}
