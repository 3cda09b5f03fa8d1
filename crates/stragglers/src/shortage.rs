// SPDX-License-Identifier: Apache-2.0
/*!
Processes that are short of processor time, or were paused (S8).

The plugin notes each second for how long threads were ready and did not run, and how late its own
timers were (`ncclscope_trace::progress::Shortage`). On a machine whose processors are all busy, all
processes are short of time. A process therefore counts only if it is far shorter than the others,
measured by the ratio of the time that it lacked to the time that it got. (Shares of time would not
do: no share is three times a half, but a process that gets a tenth of a processor is far slower
than others that get half of one.)

A proxy thread that does not run leaves its links idle and makes its rank late. So transfers of such
a process in such a time say nothing about a link ([`crate::input`] leaves them out), and a slow
rank is the effect.
*/

use crate::finding::Finding;
use crate::looked::{Because, Log, Seen};
use crate::model::{CpuShortage, Job};
use crate::onset::Onset;
use crate::rules::Rule;
use ncclscope_findings::{Doubt, Evidence, FindingClass, SlowPart};
use ncclscope_limits::slow;
use ncclscope_operations::human::{self, percent};
use ncclscope_statistics::median_of_others;

/// How a process shows that it is short of processor time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// Its timers were late.
    Late,
    /// One of its threads was ready but did not run.
    Delayed,
    /// The quota of its control group was used up.
    Throttled,
}

impl Sign {
    const ALL: [Sign; 3] = [Sign::Late, Sign::Delayed, Sign::Throttled];

    fn name(self) -> &'static str {
        match self {
            Sign::Late => "its timers were late",
            Sign::Delayed => "a thread of it was ready and did not run",
            Sign::Throttled => "the quota of its control group was used up",
        }
    }
}

/// A process that is far shorter of processor time than the others, by one sign.
pub(crate) struct Starved<'a> {
    pub(crate) of: &'a CpuShortage,
    sign: Sign,
    /// Share of the time for this process; `usual` is the median of the others.
    share: f64,
    usual: f64,
}

/// The processes that are short of processor time, far more than the others.
pub(crate) fn starved<'a>(shortages: &'a [CpuShortage]) -> Vec<Starved<'a>> {
    // A machine that is busy everywhere delays all processes alike, but a quota is that of one
    // process.
    let signs = Sign::ALL.map(|sign| compare(shortages, sign));
    let mut found: Vec<Starved<'_>> = Vec::new();
    for one in signs.into_iter().flatten().filter(|one| one.is_above()) {
        if found.iter().all(|known| known.of.worker != one.of.worker) {
            found.push(one);
        }
    }
    found
}

/// Compares one measure of each process with that of the others.
fn compare(shortages: &[CpuShortage], sign: Sign) -> Vec<Starved<'_>> {
    let share = |of: &CpuShortage| {
        of.share(match sign {
            Sign::Late => of.late,
            Sign::Delayed => of.delay,
            // The former is a sum over processors.
            Sign::Throttled => of.throttled.min(of.delay),
        })
    };
    let mut all: Vec<f64> = shortages.iter().map(share).collect();
    all.sort_unstable_by(f64::total_cmp);
    let row = |of| {
        let share = share(of);
        Starved { of, sign, share, usual: median_of_others(&all, share) }
    };
    shortages.iter().map(row).collect()
}

impl Starved<'_> {
    fn is_above(&self) -> bool {
        self.nearness() >= 1.0
    }

    /// How near it is to both limits: 1 reaches them.
    fn nearness(&self) -> f64 {
        let odds = |share: f64| share / (1.0 - share.min(slow::SHORT_MOST));
        let of_usual = slow::SHORTER * odds(self.usual);
        let by_factor = if of_usual > 0.0 { odds(self.share) / of_usual } else { f64::INFINITY };
        (self.share / slow::SHORT).min(by_factor)
    }
}

pub(crate) fn find(job: &Job, log: &mut Log) -> Vec<Finding> {
    if log.is_on() {
        note(job, log);
    }
    let mut starved = starved(&job.shortages);
    starved.sort_by(|a, b| b.share.total_cmp(&a.share));
    starved.iter().map(|one| finding(job, one)).collect()
}

/// Notes what each process lacked, by the sign that shows most.
fn note(job: &Job, log: &mut Log) {
    let all = Sign::ALL.map(|sign| compare(&job.shortages, sign));
    for at in 0..job.shortages.len() {
        let of_signs = all.iter().map(|of| &of[at]);
        let Some(most) = of_signs.max_by(|a, b| a.nearness().total_cmp(&b.nearness())) else {
            continue;
        };
        let rank = job.workers[most.of.worker].rank;
        log.saw(Rule::ShortOfCpu, || Seen {
            subject: format!("rank {rank}"),
            ranks: vec![rank],
            saw: format!(
                "{} for {} of the time, the others {}",
                most.sign.name(),
                percent(most.share),
                percent(most.usual)
            ),
            because: match most.is_above() {
                true => Because::Found,
                false if most.share < slow::SHORT => {
                    Because::Not(format!("less than {} of the time", percent(slow::SHORT)))
                }
                false => Because::Not(format!(
                    "less than {} times as short as the others: the machine is busy",
                    slow::SHORTER
                )),
            },
            nearness: most.nearness(),
        });
    }
}

/// Lowers findings to suspicions where ranks waited for processors, even if no more than others:
/// then the machine is busy, and the proxy thread may be what is slow. That is so where such a rank
/// waited for longer than the finding costs; of a link, also where it waited for long. A link that
/// costs less than a rank at its end waited is none: returns a note of each.
pub(crate) fn doubt(job: &Job, findings: &mut Vec<Finding>) -> Vec<String> {
    let mut notes = Vec::new();
    findings.retain_mut(|finding| {
        let Some((of, share)) = longest(job, finding) else { return true };
        let is_longer = |cost: Option<f64>| cost.is_some_and(|cost| share >= cost);
        let (is_link, is_doubtful) = match finding.class {
            FindingClass::SlowLink | FindingClass::SlowNic | FindingClass::SlowNodePath => {
                (is_longer(finding.most_lost_share), share >= slow::SHORT)
            }
            FindingClass::TransfersSlowed => (false, is_longer(finding.most_lost_share)),
            FindingClass::SlowRank | FindingClass::GpuNotConsuming => {
                (false, is_longer(finding.lost_share))
            }
            _ => (false, false),
        };
        let rank = job.workers[of.worker].rank;
        if is_link {
            let title = &finding.title;
            notes.push(format!(
                "{title}, by less time than its end waited for processors: rank {rank} was ready \
                 and did not run for {:.0} %",
                100.0 * share
            ));
        } else if is_doubtful {
            finding.doubts.push(Doubt::BusyMachine(rank, share));
        }
        !is_link
    });
    notes
}

/// The rank of a finding, or of all if it names none, that waited for processors for the longest
/// part of the time, and that part.
fn longest<'a>(job: &'a Job, finding: &Finding) -> Option<(&'a CpuShortage, f64)> {
    let is_root = |of: &&CpuShortage| {
        let rank = job.workers[of.worker].rank;
        finding.root_ranks.is_empty() || finding.root_ranks.contains(&rank)
    };
    let all = job.shortages.iter().filter(is_root);
    let delays = all.map(|of| (of, of.share(of.late.max(of.delay)))).filter(|(_, by)| *by > 0.0);
    delays.max_by(|a, b| a.1.total_cmp(&b.1))
}

fn finding(job: &Job, starved: &Starved<'_>) -> Finding {
    let (of, root) = (starved.of, SlowPart::from(&job.workers[starved.of.worker]));
    let what = match starved.sign {
        Sign::Late => {
            format!("{}, the worst by {}", Sign::Late.name(), human::duration(of.longest))
        }
        sign => sign.name().to_owned(),
    };
    let rank = job.workers[of.worker].rank;
    let text = format!(
        "for {:.0} % of {} {what}; median of the others {:.1} %",
        100.0 * starved.share,
        human::duration(of.watched),
        100.0 * starved.usual,
    );
    let figures = [("share", starved.share), ("others_share", starved.usual)];
    let line = |text: String| Evidence::of(FindingClass::ShortOfCpu, rank, text);
    let mut evidence = vec![line(text).with(figures)];
    if of.share(of.throttled) >= slow::SHORT {
        let held = human::duration(of.throttled);
        let text = format!("the CPU quota of its control group held its threads up for {held}");
        evidence.push(line(text).with([("throttled_ns", of.throttled)]));
    }
    Finding {
        title: format!("{} is short of processor time, or was paused", root.name()),
        root: Some(root),
        root_ranks: vec![rank],
        lost_share: Some(starved.share),
        onset: of.since.map(Onset::Real),
        evidence,
        ..Finding::of(FindingClass::ShortOfCpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Worker;
    use ncclscope_findings::{Confidence, confidence as of_doubts};

    /// The ranks found, worst first, for these shares of late timers and delayed threads.
    fn found(shares: &[(f64, f64)]) -> Vec<u32> {
        let shortage = |(worker, (late, delay)): (usize, &(f64, f64))| CpuShortage {
            worker,
            watched: 1e10,
            late: late * 1e10,
            delay: delay * 1e10,
            longest: 2e7,
            throttled: 0.0,
            since: None,
        };
        let job = Job {
            workers: (0..8).map(|rank| Worker::new(rank, "")).collect(),
            shortages: shares.iter().enumerate().map(shortage).collect(),
            ..Job::default()
        };
        let all = find(&job, &mut Log::new(None));
        all.into_iter().flat_map(|finding| finding.root_ranks).collect()
    }

    #[test]
    fn a_process_is_short_if_the_others_are_not() {
        let late = |shares: &[f64]| found(&shares.iter().map(|&l| (l, 0.2)).collect::<Vec<_>>());
        assert_eq!(late(&[0.0, 0.3, 0.01, 0.02]), [1]);
        assert_eq!(late(&[0.0, 0.03, 0.0, 0.0]), [0; 0], "too little to matter");
        assert_eq!(late(&[0.4, 0.5, 0.6, 0.5]), [0; 0], "the machine is busy everywhere");
        assert_eq!(late(&[0.4, 0.5, 0.9, 0.5]), [2], "it gets a fifth of what they get");
        assert_eq!(late(&[1.0, 1.0, 1.0]), [0; 0], "nothing runs");
        assert_eq!(late(&[0.0, 0.3, 0.5, 0.0, 0.0]), [2, 1], "the worst first");
        let both = [(0.0, 0.1), (0.01, 0.1), (0.0, 0.9), (0.2, 0.1)];
        assert_eq!(found(&both), [2, 3], "each measure counts");
        assert_eq!(found(&[]), [0; 0]);
    }

    #[test]
    fn what_is_slow_on_a_busy_machine_is_a_suspicion() {
        let shortage = |delay| CpuShortage {
            worker: 1,
            watched: 1e10,
            late: 0.0,
            delay,
            longest: 0.0,
            throttled: 0.0,
            since: None,
        };
        let none = Finding::of(FindingClass::SlowLink);
        let confidence = |delay, class, lost| {
            let job = Job {
                workers: (0..3).map(|rank| Worker::new(rank, "")).collect(),
                shortages: vec![shortage(delay)],
                ..Job::default()
            };
            let mut found = vec![Finding {
                root_ranks: vec![2, 1],
                lost_share: Some(lost),
                ..Finding::of(class)
            }];
            found[0].most_lost_share = Some(lost);
            let notes = doubt(&job, &mut found);
            assert_eq!(notes.len() + found.len(), 1);
            let found = found.first().unwrap_or(&none);
            (of_doubts(&found.doubts), found.doubts.len())
        };
        let link = FindingClass::SlowLink;
        assert_eq!(confidence(2e9, link, 0.5), (Confidence::Suspect, 1));
        assert_eq!(confidence(1e8, link, 0.5), (Confidence::Confirmed, 0));
        assert_eq!(confidence(1e8, link, 0.009), (Confidence::Confirmed, 0), "it is none");
        let slowed = FindingClass::TransfersSlowed;
        assert_eq!(confidence(2e9, slowed, 0.1), (Confidence::Suspect, 1));
        assert_eq!(confidence(2e9, slowed, 0.5), (Confidence::Confirmed, 0));
        // A fifth of the time without a processor explains a tenth of the time, and not half of it.
        for class in [FindingClass::SlowRank, FindingClass::GpuNotConsuming] {
            assert_eq!(confidence(2e9, class, 0.1), (Confidence::Suspect, 1));
            assert_eq!(confidence(2e9, class, 0.5), (Confidence::Confirmed, 0));
            assert_eq!(confidence(1e8, class, 0.009), (Confidence::Suspect, 1));
        }
        assert_eq!(confidence(2e9, FindingClass::ShortOfCpu, 0.1), (Confidence::Confirmed, 0));
    }

    #[test]
    fn a_quota_that_is_used_up_shows_on_a_busy_machine() {
        let shortage = |worker: usize| CpuShortage {
            worker,
            watched: 1e10,
            late: 4e9,
            delay: 5e9,
            longest: 2e7,
            throttled: if worker == 2 { 3e9 } else { 0.0 },
            since: None,
        };
        let job = Job {
            workers: (0..4).map(|rank| Worker::new(rank, "")).collect(),
            shortages: (0..4).map(shortage).collect(),
            ..Job::default()
        };
        let [found] = &find(&job, &mut Log::new(None))[..] else { panic!("one") };
        assert_eq!(found.root_ranks, [2]);
        assert!(found.evidence[0].text.contains("the quota of its control group was used up"));
    }
}
