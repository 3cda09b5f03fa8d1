// SPDX-License-Identifier: Apache-2.0
//! In which order each thread starts and stops the kinds of events, for docs/nccl-events.md. No
//! rule: it only describes.

use crate::Model;
use ncclscope_operations::threads::Role;
use ncclscope_trace::record::STEP_SHIFT;
use ncclscope_trace::{EventKind, Record};
use std::collections::BTreeMap;

/// For each role of a thread, the first start (`+`) and the first stop (`-`) of each kind, in the
/// order of time. KernelCh is left out: the GPU decides when it comes.
pub(super) fn order(model: &Model<'_>, has_api: bool) -> BTreeMap<&'static str, Vec<String>> {
    let mut order: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for (lane, header) in model.recording.lanes().iter().enumerate() {
        let mut firsts: Vec<(u64, String)> = Vec::new();
        for record in model.recording.records(lane) {
            let known = match record {
                Record::Start(start) => vec![(start.ticks, '+', start.detail.kind())],
                Record::Stop { ticks, handle } => vec![(ticks, '-', handle.kind())],
                Record::Step(step) => vec![
                    (step.ticks, '+', EventKind::ProxyStep),
                    (step.ticks + (step.end << STEP_SHIFT), '-', EventKind::ProxyStep),
                ],
                _ => continue,
            };
            let known = known.into_iter().filter(|(.., kind)| *kind != EventKind::KernelCh);
            firsts.extend(known.map(|(ticks, way, kind)| (ticks, format!("{way}{kind}"))));
        }
        firsts.sort_by_key(|&(ticks, _)| ticks);
        let role = order.entry(Role::of(header.header.kinds, has_api).name()).or_default();
        for (_, what) in firsts {
            if !role.contains(&what) {
                role.push(what);
            }
        }
    }
    order.retain(|_, firsts| !firsts.is_empty());
    order
}
