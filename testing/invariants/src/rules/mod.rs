// SPDX-License-Identifier: Apache-2.0
//! The rules, each a function of the model; [`check`] applies them all.

mod counts;
mod life;
mod losses;
mod order;
mod progress;
mod steps;
mod time;
mod tree;

use crate::{Expect, KindCount, Model, Verdict};
use ncclscope_operations::threads::Role;
use ncclscope_trace::Recording;

/// Maximum number of violations of one rule that a verdict lists; the others are counted.
const LISTED: usize = 20;

/// Checks a recording.
#[must_use]
pub fn check(recording: &Recording, expect: &Expect) -> Verdict {
    let file = recording.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let comm = recording.comms().first();
    let mut verdict = Verdict {
        file,
        api_version: comm.map_or(0, |comm| comm.api_version),
        nccl_version: comm.map_or(0, |comm| comm.nccl_version),
        comms: recording.comms().len(),
        stale: recording.header().stale,
        ..Verdict::default()
    };
    let model = Model::read(recording, &mut verdict);
    losses::check(&model, expect, &mut verdict);
    life::check(&model, expect, &mut verdict);
    tree::check(&model, expect, &mut verdict);
    steps::check(&model, expect, &mut verdict);
    time::check(&model, expect, &mut verdict);
    counts::check(&model, expect, &mut verdict);
    progress::check(&model, expect, &mut verdict);
    count(&model, &mut verdict);
    verdict.order = order::order(&model, has_api(&model));
    shorten(&mut verdict);
    verdict
}

/// Counts the events by kind.
fn count(model: &Model<'_>, verdict: &mut Verdict) {
    let lanes = model.recording.lanes();
    let has_api = has_api(model);
    for event in &model.events {
        let count: &mut KindCount = verdict.kinds.entry(event.kind().name()).or_default();
        count.started += 1;
        count.stopped += u64::from(event.stop.is_some());
        count.stopped_again += u64::from(event.stops.saturating_sub(1));
        let parent = model.parent(event).and_then(|parent| model.events[parent].stop);
        count.late += u64::from(parent.is_some_and(|stop| stop < event.start.ticks));
        let thread = Role::of(lanes[event.lane].header.kinds, has_api).name();
        count.threads.insert(thread);
        if event.steps.is_empty() {
            continue;
        }
        let steps = verdict.kinds.entry("ProxyStep").or_default();
        steps.started += event.steps.len() as u64;
        let stopped = event.steps.iter().filter(|step| steps::has_stopped(step));
        steps.stopped += stopped.count() as u64;
        steps.threads.insert(thread);
    }
}

/// Kinds that show that a process has API events.
const API: u32 = {
    use ncclscope_trace::EventKind as K;
    K::GroupApi.bit() | K::CollApi.bit() | K::P2pApi.bit() | K::KernelLaunch.bit()
};

fn has_api(model: &Model<'_>) -> bool {
    model.events.iter().any(|event| event.kind().bit() & API != 0)
}

/// Keeps the first violations of each rule.
fn shorten(verdict: &mut Verdict) {
    let mut seen = std::collections::BTreeMap::<_, usize>::new();
    verdict.violations.retain(|violation| {
        let count = seen.entry(violation.rule).or_default();
        *count += 1;
        *count <= LISTED
    });
    for (rule, count) in seen {
        if count > LISTED {
            verdict.violate(rule, format!("and {} more", count - LISTED));
        }
    }
}
