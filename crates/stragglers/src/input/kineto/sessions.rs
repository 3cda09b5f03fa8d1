// SPDX-License-Identifier: Apache-2.0
/*!
Which traces are of one job and one profile of it.

Traces of different `world_size` are of different jobs. A rank with several traces was profiled in
several cycles, as `tensorboard_trace_handler` writes them; traces belong to one cycle if they begin
closer together than half the time from cycle to cycle. Without a rank that repeats, traces that no
clock error explains are of different runs.
*/

use crate::input::Error;
use crate::input::kernels::DAY;
use ncclscope_kineto::Trace;
use ncclscope_operations::human;
use std::collections::{BTreeMap, BTreeSet};

/// The traces that are judged, and remarks about the others.
type Chosen = (Vec<Trace>, Vec<String>);

/// Chooses the traces of the job with the most ranks, and of it the newest profile that has the
/// most ranks.
///
/// # Errors
/// Two jobs have as many ranks.
pub(super) fn choose(traces: Vec<Trace>) -> Result<Chosen, Error> {
    let (traces, mut notes) = one_job(traces)?;
    let (traces, note) = one_profile(traces);
    notes.extend(note);
    Ok((traces, notes))
}

fn one_job(traces: Vec<Trace>) -> Result<Chosen, Error> {
    let mut jobs: BTreeMap<Option<u32>, Vec<Trace>> = BTreeMap::new();
    for trace in traces {
        jobs.entry(trace.identity.rank.map(|(_, world)| world)).or_default().push(trace);
    }
    // A profile that began before the process group does not have the world's size.
    let unknown = jobs.remove(&None).unwrap_or_default();
    let mut jobs: Vec<(Option<u32>, Vec<Trace>)> = jobs.into_iter().collect();
    jobs.sort_by_key(|(_, traces)| ranks(traces));
    let (world, mut chosen) = jobs.pop().unwrap_or_default();
    let size = world.unwrap_or(0);
    if let Some((other, of)) = jobs.last()
        && ranks(of) == ranks(&chosen)
        && let (Some(one), Some(two)) = (chosen.first(), of.first())
    {
        let (path, other) = (two.path.display(), other.unwrap_or(0));
        let what = format!(
            "it is of a job of {}, and {path} of one of {other}: name the traces of one job",
            human::count(size as usize, "rank")
        );
        return Err(Error::new(&one.path, what));
    }
    let note = |(other, of): (Option<u32>, Vec<Trace>)| {
        let (of, other) = (left_out(&of)?, other.unwrap_or(0));
        Some(format!("{of}: of a job of {other} ranks; the one that is judged has {size}"))
    };
    let notes = jobs.into_iter().filter_map(note).collect();
    chosen.extend(unknown);
    Ok((chosen, notes))
}

/// The number of ranks that have a trace.
fn ranks(traces: &[Trace]) -> usize {
    traces.iter().map(|trace| trace.identity.rank).collect::<BTreeSet<_>>().len()
}

/// The traces of one profile, and a remark about others. All traces if two of a rank overlap.
fn one_profile(mut traces: Vec<Trace>) -> (Vec<Trace>, Option<String>) {
    let Some(period) = period(&traces) else { return (traces, None) };
    traces.sort_by_key(|trace| trace.window.0);
    let hosts: BTreeSet<&Option<String>> = traces.iter().map(|t| &t.identity.host).collect();
    // Ranks of one host have one clock, and a profile of both has a collective of both.
    let is_one_clock = hosts.len() == 1 && !hosts.contains(&None);
    let mut profiles: Vec<Vec<Trace>> = Vec::new();
    for trace in traces {
        let is_of = |profile: &&mut Vec<Trace>| {
            let begin = profile.iter().map(|one| one.window.0).min().unwrap_or(0);
            let end = profile.iter().map(|one| one.window.1).max().unwrap_or(0);
            match period {
                Some(period) => trace.window.0 - begin <= period / 2,
                None => trace.window.0 - end <= if is_one_clock { 0 } else { DAY },
            }
        };
        match profiles.last_mut().filter(is_of) {
            Some(profile) => profile.push(trace),
            None => profiles.push(vec![trace]),
        }
    }
    let count = profiles.len();
    // Of equals, the last: the newest.
    let newest = (0..count).max_by_key(|&at| ranks(&profiles[at]));
    let chosen = newest.map(|at| profiles.swap_remove(at)).unwrap_or_default();
    let others: Vec<Trace> = profiles.into_iter().flatten().collect();
    let note = left_out(&others).map(|of| {
        format!(
            "{of}: of {count} profiles, one after the other, the newest of the most ranks counts"
        )
    });
    (chosen, note)
}

/// The shortest time between two traces of a rank, ns: `Some(None)` if no rank has two, `None` if
/// two of a rank overlap, so that they are of different jobs or copies of each other.
fn period(traces: &[Trace]) -> Option<Option<i64>> {
    let mut by_rank: BTreeMap<(u32, u32), Vec<(i64, i64)>> = BTreeMap::new();
    for trace in traces {
        by_rank.entry(trace.identity.rank?).or_default().push(trace.window);
    }
    let mut shortest: Option<i64> = None;
    for windows in by_rank.values_mut() {
        windows.sort_unstable();
        for pair in windows.windows(2) {
            let [(begin, end), (next, _)] = pair else { continue };
            if next <= end {
                return None;
            }
            shortest = Some(shortest.unwrap_or(i64::MAX).min(next - begin));
        }
    }
    Some(shortest)
}

/// `A and 2 more files are left out`; `None` without files.
fn left_out(traces: &[Trace]) -> Option<String> {
    let first = traces.first()?.path.display();
    Some(match traces.len() - 1 {
        0 => format!("{first} is left out"),
        more => format!("{first} and {} are left out", human::count(more, "more trace")),
    })
}
