// SPDX-License-Identifier: Apache-2.0
/*!
Merges causes that are one fault: paths that meet in one rank or host, and more causes of one class
than a reader can use.

All of this takes n log n steps for n causes: if a fabric fails, every link of it is a cause.
*/

use crate::job::Job;
use crate::stuck_operation::{Cause, Link};
use crate::words;
use ncclscope_findings::{Evidence, FindingClass};
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// If there are more causes of one class than this, they become one.
const MAX_ALIKE: usize = 8;

/// Merges causes inside operations into the faults behind them, in the order of their first causes.
/// `moved` are paths on which data still came.
pub(crate) fn merge(job: &Job, mut all: Vec<Cause>, moved: &BTreeSet<Link>) -> Vec<Cause> {
    let links = stalled_links(&all);
    blame_shared_ends(&mut all, moved, Some);
    blame_shared_ends(&mut all, moved, |process| host(job, process));
    all = merge_by(all, |one| Some((one.key(), one.edge)));
    // Causes with the same ranks but different paths: the evidence names the paths. What one of
    // them proves is not a suspicion.
    all = merge_by(all, |one| Some((one.class, one.roots.clone())));
    let mut alike: BTreeMap<Key, usize> = BTreeMap::new();
    all.iter().for_each(|one| *alike.entry(one.key()).or_default() += 1);
    all = merge_by(all, |one| Some(one.key()).filter(|key| alike.get(key) > Some(&MAX_ALIKE)));
    for one in &mut all {
        // Several causes may have the same evidence, which is kept once.
        let mut seen = HashSet::new();
        one.evidence.retain(|line| seen.insert(line.text.clone()));
        one.tell_links(job, &links);
    }
    all
}

/// The class, and whether the cause is only suspected.
type Key = (FindingClass, bool);

fn stalled_links(causes: &[Cause]) -> BTreeSet<Link> {
    let stalled = causes.iter().filter(|cause| cause.class == FindingClass::NetworkStalled);
    stalled.filter_map(|cause| cause.edge).collect()
}

fn host(job: &Job, process: u32) -> Option<&str> {
    job.processes.get(process as usize)?.host.as_deref()
}

/// If several stalled paths share one end (a rank or a host), no other end is shared by as many,
/// and no other path of that end moved data in a direction in which they stand, the fault is at
/// that end.
fn blame_shared_ends<E: Ord + Clone>(
    causes: &mut [Cause],
    moved: &BTreeSet<Link>,
    end_of: impl Fn(u32) -> Option<E>,
) {
    let ends = |(from, to): Link| end_of(from).zip(end_of(to)).filter(|(from, to)| from != to);
    let stalled = stalled_links(causes);
    let mut peers: BTreeMap<E, BTreeSet<E>> = BTreeMap::new();
    // The ends that send, and those that receive, on a stalled path.
    let (mut out, mut into) = (BTreeSet::new(), BTreeSet::new());
    for (from, to) in stalled.iter().filter_map(|&link| ends(link)) {
        peers.entry(from.clone()).or_default().insert(to.clone());
        peers.entry(to.clone()).or_default().insert(from.clone());
        out.insert(from);
        into.insert(to);
    }
    // The ends that move data in a direction in which others of their paths stand.
    let mut alive = BTreeSet::new();
    for (from, to) in moved.difference(&stalled).filter_map(|&link| ends(link)) {
        alive.extend(out.get(&from).cloned());
        alive.extend(into.get(&to).cloned());
    }
    let count = |end: &E| peers.get(end).map_or(0, BTreeSet::len);
    let is_shared = |end: &E| {
        let is_largest = || peers[end].iter().all(|peer| count(peer) < count(end));
        count(end) > 1 && is_largest() && !alive.contains(end)
    };
    let shared: BTreeSet<&E> = peers.keys().filter(|end| is_shared(end)).collect();
    for cause in causes.iter_mut() {
        let stalled = cause.edge.filter(|_| cause.class == FindingClass::NetworkStalled);
        let Some(link) = stalled else { continue };
        let Some((from, to)) = ends(link) else { continue };
        for (end, process) in [(from, link.0), (to, link.1)] {
            if shared.contains(&end) {
                cause.roots = [process].into();
                cause.edge = None;
            }
        }
    }
}

/// Merges causes with the same key into the first of them; causes without a key are kept unchanged.
fn merge_by<K: Ord>(all: Vec<Cause>, key: impl Fn(&Cause) -> Option<K>) -> Vec<Cause> {
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    let mut merged: Vec<Cause> = Vec::new();
    for one in all {
        let new = merged.len();
        let place = key(&one).map_or(new, |key| *places.entry(key).or_insert(new));
        match merged.get_mut(place) {
            Some(same) => same.add(one),
            None => merged.push(one),
        }
    }
    merged
}

impl Cause {
    fn key(&self) -> Key {
        (self.class, self.is_suspect())
    }

    fn add(&mut self, mut other: Cause) {
        if !other.is_suspect() && self.is_suspect() {
            std::mem::swap(self, &mut other);
        }
        self.edge = self.edge.filter(|edge| other.edge == Some(*edge));
        self.evidence.extend(other.evidence);
        self.roots.extend(other.roots);
        self.comms.extend(other.comms);
    }

    /// Inserts the number of stalled links and their location before the evidence.
    fn tell_links(&mut self, job: &Job, links: &BTreeSet<Link>) {
        if self.class != FindingClass::NetworkStalled || self.edge.is_some() {
            return;
        }
        let of_it = |(from, to): &&Link| self.roots.contains(from) || self.roots.contains(to);
        let links: Vec<&Link> = links.iter().filter(of_it).collect();
        let text = match shared_host(job, &self.roots) {
            Some(host) => {
                self.detail = Some(format!("all stalled paths share the network of {host}"));
                format!("all {} stalled links of these ranks are of host {host}", links.len())
            }
            None if self.roots.len() == 1 && links.len() > 1 => {
                self.detail = Some("all stalled paths share its network interface".into());
                let end = self.roots.first().map(|&root| words::rank(job, root));
                format!(
                    "all {} stalled paths begin or end at {}: its network interface, or the port \
                     that it is connected to",
                    links.len(),
                    end.unwrap_or_default()
                )
            }
            None if links.len() > MAX_ALIKE => {
                let ends = links.iter().flat_map(|&&(from, to)| [from, to]);
                let hosts: BTreeSet<&str> = ends.filter_map(|one| host(job, one)).collect();
                let hosts = match hosts.len() {
                    0 => String::new(),
                    many => format!(" between {many} hosts"),
                };
                format!("{} links stand still{hosts}", links.len())
            }
            None => return,
        };
        let figures = [("links", to_f64(links.len() as u64))];
        let line = Evidence::about(self.class, text).with(figures);
        self.evidence.insert(0, line);
    }
}

/// The host of these processes, if they are several and all on the same host.
fn shared_host<'a>(job: &'a Job, processes: &BTreeSet<u32>) -> Option<&'a str> {
    let first = host(job, *processes.first()?)?;
    let is_one = processes.iter().all(|&process| host(job, process) == Some(first));
    (processes.len() > 1 && is_one).then_some(first)
}
