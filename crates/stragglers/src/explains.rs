// SPDX-License-Identifier: Apache-2.0
/*!
Which findings are effects of other findings: one table, applied row by row.

Where a repair can be replayed, no row is needed: what has no gain left after a repair is no finding
([`crate::work`]). The rows are about what the replay does not see: transfers, and processes and
GPUs that also make everything else late.
*/

use crate::finding::Finding;
use crate::looked::{Because, Log, Seen};
use ncclscope_findings::{Doubt, FindingClass as Class};
use ncclscope_operations::human::percent;

/// What a cause and its effect have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    /// A rank.
    Rank,
    /// The effect is a link, and the cause is at its sender.
    Sender,
    /// The cause is a link that ends at a rank of the effect.
    End,
    /// The cause is in all communicators of the effect, and not from the first step on.
    Communicators,
}

/// What becomes of the effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// It is no finding.
    Drop,
    /// It is a note, which says why it may be slow.
    Note(&'static str),
    /// It is a suspicion, and comes last.
    Doubt,
}

/// A row: findings of these classes explain those.
struct Row {
    causes: &'static [Class],
    effects: &'static [Class],
    relation: Relation,
    /// Only if the cause costs as much as the effect.
    is_dearer: bool,
    then: Then,
}

const ROWS: [Row; 6] = [
    // The threads that report transfers are late, too.
    Row {
        causes: &[Class::ShortOfCpu],
        effects: &[Class::GpuNotConsuming],
        relation: Relation::Rank,
        is_dearer: false,
        then: Then::Drop,
    },
    // It is late for the next operation, and leaves its links idle.
    Row {
        causes: &[Class::ShortOfCpu, Class::GpuNotConsuming],
        effects: &[
            Class::SlowRank,
            Class::SlowLaunch,
            Class::SlowLink,
            Class::SlowNic,
            Class::SlowNodePath,
        ],
        relation: Relation::Rank,
        is_dearer: false,
        then: Then::Drop,
    },
    // After a pause, a connection is slow on its own account.
    Row {
        causes: &[Class::SlowRank, Class::SlowLaunch],
        effects: &[Class::SlowLink],
        relation: Relation::Sender,
        is_dearer: true,
        then: Then::Note("sends after pauses"),
    },
    Row {
        causes: &[Class::SlowNodePath],
        effects: &[Class::SlowLink],
        relation: Relation::Sender,
        is_dearer: true,
        then: Then::Note("is in a slow communicator without network"),
    },
    Row {
        causes: &[Class::SlowLink, Class::SlowNic],
        effects: &[Class::TransfersSlowed],
        relation: Relation::Communicators,
        is_dearer: false,
        then: Then::Drop,
    },
    // A rank that sends or receives slowly is late, too.
    Row {
        causes: &[Class::SlowLink],
        effects: &[Class::SlowRank, Class::SlowLaunch],
        relation: Relation::End,
        is_dearer: true,
        then: Then::Doubt,
    },
];

/// The findings that no other one explains, and notes about some of the rest.
pub(crate) fn apply(mut findings: Vec<Finding>, log: &mut Log) -> (Vec<Finding>, Vec<String>) {
    let mut notes = Vec::new();
    for row in &ROWS {
        // What each cause is, and the link, if it is one.
        let cause_of = |effect: &Finding| {
            let cause = findings.iter().find(|one| row.explains(one, effect))?;
            Some((format!("{} of {}", cause.class.code(), cause.subject()), cause.edge))
        };
        let causes: Vec<_> = findings.iter().map(cause_of).collect();
        let mut left = Vec::new();
        for (mut effect, cause) in findings.into_iter().zip(causes) {
            let Some((cause, edge)) = cause else {
                left.push(effect);
                continue;
            };
            log.explained(|| row.seen(&effect, &cause));
            match row.then {
                Then::Drop => {}
                Then::Note(why) => notes.extend(note(&effect, why)),
                Then::Doubt => {
                    effect.doubts.extend(edge.map(Doubt::SlowLinkThere));
                    left.push(effect);
                }
            }
        }
        findings = left;
    }
    (findings, notes)
}

impl Row {
    /// What the row says of an effect.
    fn seen(&self, effect: &Finding, cause: &str) -> Seen {
        let costs =
            cost(effect).map_or_else(String::new, |cost| format!(" costs {}", percent(cost)));
        let what = match self.relation {
            Relation::Rank => "the same rank",
            Relation::Sender => "its sender",
            Relation::End => "a link that ends there",
            Relation::Communicators => "the same communicators, since then",
        };
        let why = format!("{cause} explains it: {what}");
        Seen {
            subject: effect.subject(),
            ranks: effect.root_ranks.clone(),
            saw: format!("{}{costs}", effect.class.code()),
            because: match self.then {
                Then::Doubt => Because::CannotTell(why),
                Then::Drop | Then::Note(_) => Because::Not(why),
            },
            nearness: 0.0,
        }
    }

    fn explains(&self, cause: &Finding, effect: &Finding) -> bool {
        let is_root = |rank: &u32| cause.root_ranks.contains(rank);
        let are_related = match self.relation {
            Relation::Rank => effect.root_ranks.iter().any(is_root),
            Relation::Sender => effect.edge.is_some_and(|[src, _]| is_root(&src)),
            Relation::End => {
                let ends = cause.edge.into_iter().flatten();
                ends.into_iter().any(|rank| effect.root_ranks.contains(&rank))
            }
            Relation::Communicators => {
                !cause.is_from_first_step
                    && effect.comm_texts.iter().all(|comm| cause.comm_texts.contains(comm))
            }
        };
        self.causes.contains(&cause.class)
            && self.effects.contains(&effect.class)
            && are_related
            && (!self.is_dearer || cost(cause) >= cost(effect))
    }
}

/// What a finding costs, or may cost at most, as a share of the run.
fn cost(of: &Finding) -> Option<f64> {
    of.lost_share.or(of.most_lost_share)
}

fn note(link: &Finding, why: &str) -> Option<String> {
    let [src, dst] = link.edge?;
    let factor = link.factor.unwrap_or(1.0);
    Some(format!(
        "the link from rank {src} to rank {dst} took {factor:.1} times as long as others: rank \
         {src} {why}, which may be why"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(class: Class, ranks: &[u32], cost: f64) -> Finding {
        let (root_ranks, edge) = (ranks.to_vec(), None);
        let finding = Finding { root_ranks, edge, ..Finding::of(class) };
        match class {
            Class::SlowLink => Finding {
                edge: ranks.first().copied().zip(ranks.get(1).copied()).map(Into::into),
                most_lost_share: Some(cost),
                comm_texts: vec!["dp".into()],
                ..finding
            },
            Class::TransfersSlowed => Finding { comm_texts: vec!["dp".into()], ..finding },
            _ => Finding { lost_share: Some(cost), ..finding },
        }
    }

    fn left(findings: Vec<Finding>) -> (Vec<Class>, usize) {
        let (left, notes) = apply(findings, &mut Log::new(None));
        (left.iter().map(|one| one.class).collect(), notes.len())
    }

    #[test]
    fn a_process_without_processor_explains_all_of_its_rank() {
        let all = [Class::SlowRank, Class::GpuNotConsuming, Class::SlowNic, Class::ShortOfCpu];
        let all = || all.iter().map(|&class| of(class, &[3], 0.5)).collect::<Vec<_>>();
        assert_eq!(left(all()), (vec![Class::ShortOfCpu], 0));
        let other = [all(), vec![of(Class::SlowRank, &[4], 0.1)]].concat();
        assert_eq!(left(other), (vec![Class::ShortOfCpu, Class::SlowRank], 0));
    }

    #[test]
    fn a_link_and_a_rank_at_its_end_explain_one_another_by_cost() {
        let both = |ranks: [u32; 2], link, rank| {
            let ends = of(Class::SlowLink, &ranks, link);
            apply(vec![ends, of(Class::SlowRank, &[3], rank)], &mut Log::new(None)).0
        };
        let of_class = |found: Vec<Finding>| found.iter().map(|one| one.class).collect::<Vec<_>>();
        assert_eq!(of_class(both([3, 5], 0.1, 0.2)), [Class::SlowRank], "it sends after pauses");
        let found = both([3, 5], 0.3, 0.2);
        assert_eq!(found[1].doubts, [Doubt::SlowLinkThere([3, 5])]);
        assert_eq!(of_class(found), [Class::SlowLink, Class::SlowRank]);
        // The receiver does not make a link slow.
        assert_eq!(both([5, 3], 0.1, 0.2).len(), 2);
    }

    #[test]
    fn a_link_that_became_slow_explains_slower_transfers_there() {
        let slowed = of(Class::TransfersSlowed, &[], 0.0);
        let link = of(Class::SlowLink, &[3, 5], 0.1);
        assert_eq!(left(vec![slowed.clone(), link.clone()]), (vec![Class::SlowLink], 0));
        let more = Finding { comm_texts: vec!["dp".into(), "pp".into()], ..slowed.clone() };
        assert_eq!(left(vec![more, link.clone()]).0.len(), 2);
        let always = Finding { is_from_first_step: true, ..link };
        assert_eq!(left(vec![slowed, always]).0.len(), 2);
    }
}
