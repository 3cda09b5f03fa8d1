// SPDX-License-Identifier: Apache-2.0
//! Makes a picture from a reading: rates, and what is wrong with which rank.

use crate::picture::{Flag, FunctionRate, LinkRate, Operation, Picture, Row};
use crate::reading::{Flight, Life, Rank, Reading};
use crate::units::age;
use crate::waiting;
use crate::work::{Comm, Function, Link, Work};
use ncclscope_findings::{Finding, FindingClass};
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet};

/// Judges a reading. An operation in flight for `stall_s` counts as stalled, for `hang_s` as hung.
#[must_use]
pub fn judge(reading: &Reading, stall_s: f64, hang_s: f64) -> Picture {
    let span = reading.span_s;
    let waits = waits(reading);
    let limits = Limits { stall_s, hang_s };
    let rows = reading.ranks.iter().zip(waits);
    let mut ranks: Vec<Row> = rows.map(|(rank, waits)| row(reading, rank, waits, limits)).collect();
    ranks.sort_by(|a, b| {
        let key = |row: &Row| (row.job.clone(), row.rank.unwrap_or(u32::MAX), row.host.clone());
        key(a).cmp(&key(b)).then(a.pid.cmp(&b.pid))
    });
    Picture {
        schema: "ncclscope.top/2",
        source: reading.source.clone(),
        at: reading.at.clone(),
        span_s: span,
        stall_s,
        functions: over_all(&ranks),
        ranks,
        findings: findings(&reading.findings),
        notes: reading.notes.clone(),
    }
}

/// The share of time in which each rank waits for others, if known.
fn waits(reading: &Reading) -> Vec<Option<f64>> {
    let mut waits = vec![None; reading.ranks.len()];
    let mut jobs: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, rank) in reading.ranks.iter().enumerate() {
        jobs.entry(&rank.job).or_default().push(at);
    }
    for ranks in jobs.into_values() {
        let works = ranks.iter().map(|&at| &reading.ranks[at].work);
        for (&at, wait) in ranks.iter().zip(waiting::of(works, reading.span_s)) {
            waits[at] = wait.share.map(|share| share.min(1.0));
        }
    }
    waits
}

/// The findings of each job as text, each once: those that are certain first.
fn findings(all: &[(String, Finding)]) -> Vec<String> {
    let mut all: Vec<_> = all.iter().map(|(job, one)| (one.is_suspect(), job, one)).collect();
    all.sort_by_key(|(is_suspect, ..)| *is_suspect);
    let mut said = BTreeSet::new();
    let mut texts = Vec::new();
    for (_, job, finding) in all {
        if said.insert((job, finding.title())) {
            let age = finding.age_ns.map(|ns| format!(", {}", age(to_f64(ns) / 1e9)));
            texts.push(in_a_line(finding, &age.unwrap_or_default()));
        }
    }
    texts
}

#[derive(Clone, Copy)]
struct Limits {
    stall_s: f64,
    hang_s: f64,
}

fn row(reading: &Reading, rank: &Rank, waits: Option<f64>, limits: Limits) -> Row {
    let (flags, why) = flags(reading, rank, limits);
    let is_over = matches!(rank.life, Life::Ended | Life::Killed);
    let oldest = rank.oldest().filter(|_| !is_over);
    let is_waiting = flags.contains(&Flag::Waits);
    let span = reading.span_s;
    let functions = functions(rank, span);
    let sum = |of: fn(&Function) -> f64| rank.work.functions.values().map(of).sum::<f64>();
    // Adding 0 turns -0, the sum of nothing, into 0.
    let per_s = |sum: f64| if span > 0.0 { (sum + 0.0) / span } else { 0.0 };
    let mut all = Function::default();
    let collectives = rank.work.functions.iter().filter(|(key, _)| !key.is_p2p);
    collectives.for_each(|(_, function)| all.merge(function));
    let sent = rank.work.links.iter().filter(|(key, _)| key.is_send);
    let sent: Vec<f64> = sent.map(|(_, link)| link.bytes).collect();
    Row {
        job: rank.job.clone(),
        rank: rank.rank,
        host: rank.host.clone(),
        device: rank.device,
        pid: rank.pid,
        flags,
        why,
        operation: oldest.map(operation),
        in_flight: rank.flights.iter().map(operation).collect(),
        operations_per_s: per_s(sum(|function| function.count)),
        busbw_gbs: all.bandwidth().map(|rate| rate / 1e9),
        sent_gbs: (!sent.is_empty()).then(|| per_s(sent.iter().sum::<f64>()) / 1e9),
        // While the rank waits, no operation ends that would show the waiting.
        waiting: if is_waiting { Some(1.0) } else { waits },
        functions,
        links: links(&rank.work, span),
        facts: rank.facts.clone(),
        members: 1,
    }
}

/// What is wrong with a rank, the worst first, and the reason as text.
fn flags(reading: &Reading, rank: &Rank, limits: Limits) -> (Vec<Flag>, String) {
    let mut found: Vec<(Flag, String)> = Vec::new();
    let all = reading.findings.iter().filter(|(job, _)| *job == rank.job).map(|(_, one)| one);
    let mut of_job: Vec<&Finding> = all.collect();
    // With a finding that is certain, the ranks that a suspicion names are likely victims.
    if of_job.iter().any(|finding| !finding.is_suspect()) {
        of_job.retain(|finding| !finding.is_suspect());
    }
    let is_root = |one: &Finding| rank.rank.is_some_and(|rank| one.root_ranks.contains(&rank));
    let root = of_job.iter().find(|finding| is_root(finding));
    match rank.life {
        Life::Running => {}
        Life::Stopped => {
            // The finding says what stops it.
            let by = "SIGSTOP, a debugger, or a frozen container";
            let gone = root.filter(|finding| finding.class == FindingClass::ProcessGone);
            let unknown = || format!("the process is stopped ({by})");
            let why = gone.map_or_else(unknown, |finding| in_a_line(finding, ""));
            found.push((Flag::Stopped, why));
        }
        Life::Silent => found.push((Flag::Silent, "the process has stopped to write".into())),
        Life::Killed => found.push((Flag::Killed, "the process was killed, or crashed".into())),
        Life::Ended => return (vec![Flag::Ended], "the process exited".into()),
    }
    let stalled = |seconds: f64| if seconds >= limits.hang_s { Flag::Hung } else { Flag::Stalled };
    let waits = rank.oldest().map_or(0.0, |flight| flight.age_s);
    if let Some(finding) = root {
        let flag = stalled(finding.age_ns.map_or(waits, |ns| to_f64(ns) / 1e9));
        found.push((flag, in_a_line(finding, "")));
    } else if rank.life == Life::Running && waits >= limits.stall_s {
        let named = of_job.iter().find(|finding| !finding.root_ranks.is_empty());
        let what = rank.oldest().map_or_else(String::new, in_words);
        found.push(match named {
            Some(named) => {
                (Flag::Waits, format!("{what} has waited for {}", age(waits)) + &for_whom(named))
            }
            None => (stalled(waits), format!("{what} has been in flight for {}", age(waits))),
        });
    }
    if rank.says_hung {
        found.push((Flag::Hung, "the rank's own watchdog says that it hangs".into()));
    }
    // The watchdog of a victim cannot know that the cause is elsewhere.
    if found.iter().any(|(flag, _)| *flag == Flag::Waits) {
        found.retain(|(flag, _)| *flag != Flag::Hung);
    }
    let is_still = rank.work.functions.values().all(|function| function.count == 0.0);
    if let Some(why) = rank.no_end.as_ref().filter(|_| is_still && rank.flights.is_empty()) {
        let text = "whether it waits in its last operation is not visible, because";
        found.push((Flag::Hidden, format!("{text} {why}")));
    }
    found.sort_by_key(|(flag, _)| *flag);
    found.dedup_by_key(|(flag, _)| *flag);
    let why = found.first().map(|(_, why)| why.clone()).unwrap_or_default();
    (found.into_iter().map(|(flag, _)| flag).collect(), why)
}

/// The finding in a sentence, its class, whether it is suspected, and `more`.
fn in_a_line(finding: &Finding, more: &str) -> String {
    let suspect = if finding.is_suspect() { ", suspect" } else { "" };
    format!("{} ({}{suspect}{more})", finding.title(), finding.class.name())
}

fn for_whom(finding: &Finding) -> String {
    let ranks = &finding.root_ranks;
    let named: Vec<String> = ranks.iter().take(4).map(u32::to_string).collect();
    let more = if ranks.len() > named.len() { ", …" } else { "" };
    let s = if ranks.len() == 1 { "" } else { "s" };
    let perhaps = if finding.is_suspect() { ", perhaps" } else { "" };
    format!("{perhaps} for rank{s} {}{more}", named.join(", "))
}

/// A short text for an operation.
fn in_words(flight: &Flight) -> String {
    let func = if flight.func.is_empty() { "an operation" } else { flight.func.as_str() };
    match &flight.comm.name {
        name if name.is_empty() => func.to_owned(),
        name => format!("{func} of {name}"),
    }
}

fn operation(flight: &Flight) -> Operation {
    Operation {
        func: flight.func.clone(),
        comm: flight.comm.hash_text(),
        role: flight.comm.name.clone(),
        bytes: flight.bytes,
        peer: flight.peer,
        age_s: flight.age_s,
        in_flight: flight.count,
    }
}

/// The rates of a rank's functions, the one with the most bytes first.
fn functions(rank: &Rank, span_s: f64) -> Vec<FunctionRate> {
    if span_s <= 0.0 {
        return Vec::new();
    }
    let rate = |comm: &Comm, func: &str, of: &Function| FunctionRate {
        job: rank.job.clone(),
        comm: comm.hash_text(),
        role: comm.name.clone(),
        func: func.to_owned(),
        per_s: of.count / span_s,
        io_gbs: of.bytes / span_s / 1e9,
        busbw_gbs: of.bandwidth().map(|rate| rate / 1e9),
        duration_s: of.duration(),
    };
    let all = rank.work.functions.iter();
    let mut rates: Vec<_> = all.map(|(key, of)| rate(&key.comm, &key.func, of)).collect();
    rates.sort_by(by_weight);
    rates
}

fn by_weight(a: &FunctionRate, b: &FunctionRate) -> std::cmp::Ordering {
    b.io_gbs.total_cmp(&a.io_gbs).then(b.per_s.total_cmp(&a.per_s))
}

/// The rates of a rank's links, the one with the most bytes first.
fn links(work: &Work, span_s: f64) -> Vec<LinkRate> {
    if span_s <= 0.0 {
        return Vec::new();
    }
    let in_network = |of: &Link| (of.seconds > 0.0).then(|| of.bytes / of.seconds / 1e9);
    let all = work.links.iter().map(|(key, of)| LinkRate {
        comm: key.comm.hash_text(),
        role: key.comm.name.clone(),
        peer: key.peer,
        direction: if key.is_send { "send" } else { "recv" },
        gbs: of.bytes / span_s / 1e9,
        transfer_gbs: in_network(of),
        per_s: of.transfers / span_s,
    });
    let mut rates: Vec<LinkRate> = all.collect();
    rates.sort_by(|a, b| b.gbs.total_cmp(&a.gbs));
    rates
}

/// The functions of several ranks, by job: the rates of the rank with the highest rate, and the
/// bandwidth and duration of the rank that waits least.
pub(crate) fn over_all(rows: &[Row]) -> Vec<FunctionRate> {
    let mut all: BTreeMap<(&str, &str, &str), FunctionRate> = BTreeMap::new();
    for function in rows.iter().flat_map(|row| &row.functions) {
        let key = (function.job.as_str(), function.role.as_str(), function.func.as_str());
        let sum = all.entry(key).or_insert_with(|| FunctionRate {
            job: function.job.clone(),
            role: function.role.clone(),
            func: function.func.clone(),
            ..FunctionRate::default()
        });
        sum.per_s = sum.per_s.max(function.per_s);
        sum.io_gbs = sum.io_gbs.max(function.io_gbs);
        sum.busbw_gbs = best(sum.busbw_gbs, function.busbw_gbs, f64::max);
        sum.duration_s = best(sum.duration_s, function.duration_s, f64::min);
    }
    let mut all: Vec<FunctionRate> = all.into_values().collect();
    all.sort_by(by_weight);
    all
}

fn best(a: Option<f64>, b: Option<f64>, which: fn(f64, f64) -> f64) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(which(a, b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::FunctionKey;
    use ncclscope_findings::{Doubt, How, Stop};

    fn rank(rank: u32, age_s: f64) -> Rank {
        let comm = Comm::new(1, "dp");
        let func = "AllReduce".to_owned();
        let flight = Flight { func: func.clone(), comm: comm.clone(), age_s, ..Flight::default() };
        let function = Function {
            count: 20.0,
            bytes: 4e9,
            timed: 20.0,
            seconds: 0.2,
            measured: 20.0,
            bandwidths: 40e9,
        };
        let key = FunctionKey { comm: comm.clone(), func, is_p2p: false };
        let link = LinkKey { comm, rank: 0, peer: 1, is_send: true };
        let moved = Link { transfers: 10.0, bytes: 2e9, seconds: 0.5 };
        let work = Work { functions: [(key, function)].into(), links: [(link, moved)].into() };
        let flights = (age_s > 0.0).then_some(flight).into_iter().collect();
        let (rank, pid) = (Some(rank), Some(100 + rank));
        Rank { rank, pid, flights, work, host: "n1".into(), ..Rank::default() }
    }
    use crate::work::LinkKey;

    fn flags_of(picture: &Picture) -> Vec<Option<Flag>> {
        picture.ranks.iter().map(Row::flag).collect()
    }

    #[test]
    fn rates_are_per_second() {
        let reading =
            Reading { ranks: vec![rank(1, 0.1), rank(0, 0.0)], span_s: 2.0, ..Reading::default() };
        let picture = judge(&reading, 1.0, 30.0);
        let [first, second] = &picture.ranks[..] else { panic!("{picture:?}") };
        assert_eq!((first.rank, second.rank), (Some(0), Some(1)), "by rank");
        assert_eq!((first.operations_per_s, first.busbw_gbs), (10.0, Some(2.0)));
        assert_eq!((first.sent_gbs, first.waiting), (Some(1.0), Some(0.0)));
        let link = &first.links[0];
        assert_eq!((link.direction, link.gbs, link.transfer_gbs), ("send", 1.0, Some(4.0)));
        assert_eq!(first.functions[0].io_gbs, 2.0);
        assert_eq!(picture.functions[0].per_s, 10.0, "not the sum over ranks");
        assert_eq!(second.operation.as_ref().unwrap().func, "AllReduce");
        assert_eq!(flags_of(&picture), [None, None]);
    }

    #[test]
    fn a_rank_whose_last_operation_shows_no_end_is_fine_only_while_it_goes_on() {
        let still = |no_end: Option<&str>, age_s: f64| {
            let no_end = no_end.map(str::to_owned);
            Rank { no_end, work: Work::default(), ..rank(0, age_s) }
        };
        let off = Some("CUDA events are off");
        let ranks = [still(off, 0.0), still(None, 0.0), still(off, 60.0)];
        let goes_on = Rank { no_end: off.map(str::to_owned), ..rank(0, 0.0) };
        let flags = ranks.into_iter().chain([goes_on]).map(|rank| {
            let picture = judge(&Reading { ranks: vec![rank], ..Reading::default() }, 1.0, 30.0);
            let row = &picture.ranks[0];
            assert!(row.flag() != Some(Flag::Hidden) || row.why.ends_with("events are off"));
            row.flag()
        });
        let wanted = [Some(Flag::Hidden), None, Some(Flag::Hung), None];
        assert_eq!(flags.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn each_job_has_functions_of_its_own() {
        let mut ranks = vec![rank(0, 0.0), rank(1, 0.0), rank(0, 0.0)];
        ranks.iter_mut().for_each(|rank| rank.job = "a".into());
        ranks[2].job = "b".into();
        let of_b = ranks[2].work.functions.values_mut().next().unwrap();
        (of_b.count, of_b.bytes) = (2.0, 1e9);
        let reading = Reading { ranks, span_s: 2.0, ..Reading::default() };
        let picture = judge(&reading, 1.0, 30.0);
        let shown: Vec<_> =
            picture.functions.iter().map(|of| (of.job.as_str(), of.per_s, of.io_gbs)).collect();
        assert_eq!(shown, [("a", 10.0, 2.0), ("b", 1.0, 0.5)]);
        assert!(picture.ranks.iter().all(|row| row.functions[0].job == row.job));
    }

    #[test]
    fn who_is_at_fault_is_told_from_who_waits() {
        let mut ranks = vec![rank(0, 2.5), rank(1, 0.0), rank(2, 0.5)];
        let late = |root| Finding {
            age_ns: Some(2_500_000_000),
            ..Finding::new(FindingClass::HostStuck, vec![root])
        };
        ranks[0].says_hung = true;
        let of_job = |finding| (String::new(), finding);
        let stuck = "rank 1 stopped calling NCCL: its thread is stuck outside NCCL";
        let mut reading = Reading { ranks, findings: vec![of_job(late(1))], ..Reading::default() };
        let picture = judge(&reading, 1.0, 30.0);
        assert_eq!(flags_of(&picture), [Some(Flag::Waits), Some(Flag::Stalled), None]);
        assert_eq!(picture.ranks[0].why, "AllReduce of dp has waited for 2.5 s for rank 1");
        assert_eq!(picture.ranks[0].waiting, Some(1.0));
        assert_eq!(picture.findings, [format!("{stuck} (host-stuck, 2.5 s)")]);
        reading.findings[0].1.age_ns = Some(31_000_000_000);
        assert_eq!(judge(&reading, 1.0, 30.0).ranks[1].flag(), Some(Flag::Hung));
        reading.findings[0].1.doubts.push(Doubt::StillCalls);
        reading.findings.push(reading.findings[0].clone());
        let picture = judge(&reading, 1.0, 30.0);
        assert_eq!(picture.findings, [format!("{stuck} (host-stuck, suspect, 31 s)")]);
        assert_eq!(flags_of(&picture), [Some(Flag::Waits), Some(Flag::Hung), None]);
        assert_eq!(
            picture.ranks[0].why,
            "AllReduce of dp has waited for 2.5 s, perhaps for rank 1"
        );
        reading.findings.push(of_job(Finding { age_ns: Some(31_000_000_000), ..late(2) }));
        let picture = judge(&reading, 1.0, 30.0);
        let flags = [Some(Flag::Waits), None, Some(Flag::Hung)];
        assert_eq!(flags_of(&picture), flags, "a suspicion beside a certain verdict marks no rank");
        reading.findings.clear();
        let picture = judge(&reading, 1.0, 30.0);
        assert_eq!(picture.ranks[0].flags, [Flag::Hung, Flag::Stalled], "no other is at fault");
        reading.ranks[0].life = Life::Stopped;
        reading.ranks[0].says_hung = false;
        reading.ranks[2].life = Life::Ended;
        let picture = judge(&reading, 1.0, 30.0);
        assert_eq!(flags_of(&picture), [Some(Flag::Stopped), None, Some(Flag::Ended)]);
        assert!(picture.ranks[0].is_bad() && !picture.ranks[2].is_bad());
        let frozen = Finding {
            how: How::Stopped(Stop::Freezer),
            age_ns: Some(31_000_000_000),
            ..Finding::new(FindingClass::ProcessGone, vec![0])
        };
        reading.findings = vec![of_job(frozen)];
        let row = judge(&reading, 1.0, 30.0).ranks.remove(0);
        assert_eq!(row.flags, [Flag::Stopped, Flag::Hung], "the cause first");
        let says = "rank 0 is frozen, by its control group (a paused container): it exists and \
                    does not run (process-gone)";
        assert_eq!(row.why, says, "the finding says what stops it");
    }

    #[test]
    fn what_is_not_known_is_null() {
        let reading = Reading { ranks: vec![Rank::default()], span_s: 1.0, ..Reading::default() };
        let json = serde_json::to_value(judge(&reading, 1.0, 30.0)).unwrap();
        assert_eq!(json["schema"], "ncclscope.top/2");
        let row = &json["ranks"][0];
        assert_eq!(row["operations_per_s"].to_string(), "0.0");
        assert_eq!(
            (&json["span_ns"], &json["stall_ns"]),
            (&1_000_000_000.into(), &1_000_000_000.into())
        );
        for field in ["job", "rank", "device", "pid", "operation", "busbw_gbs", "waiting_share"] {
            assert!(row[field].is_null(), "{field}: {row}");
        }
    }
}
