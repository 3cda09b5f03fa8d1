// SPDX-License-Identifier: Apache-2.0
//! The arguments of a slice in a profile: those that it has in any trace, and the result of the
//! join.

use crate::event::EXTERNAL_ID;
use crate::rank::Rank;
use ncclscope_views::args::Args;
use ncclscope_views::scene::{Slice, SliceSource};
use serde_json::{Map, Value};

/// The arguments of a slice. Other tools interpret only `Seq` and `External id` of these names, and
/// these have the meaning that the tools expect.
pub(crate) fn args(rank: &Rank<'_, '_>, slice: &Slice) -> Map<String, Value> {
    let scene = rank.scene();
    let Ok(Value::Object(mut args)) = serde_json::to_value(Args { scene, slice }) else {
        return Map::new();
    };
    if let Some(id) = args.remove("external_id") {
        args.insert(EXTERNAL_ID.into(), id);
    }
    if let SliceSource::Operation(index) = slice.what {
        join_args(rank, index, &mut |key: &str, value: Value| {
            if !value.is_null() {
                args.insert(key.into(), value);
            }
        });
    }
    args
}

/// Arguments about the join of an operation, and about its kernel in the profile.
fn join_args(rank: &Rank<'_, '_>, index: u32, say: &mut dyn FnMut(&str, Value)) {
    let Some(pair) = rank.pair_of(index) else {
        say("join_key", "none".into());
        return;
    };
    let kernel = &rank.trace().kernels[pair.kernel];
    say("join_key", pair.key.name().into());
    say("join_confidence", pair.confidence.name().into());
    say("join_residual_ns", pair.residual_ns.into());
    say("kernel_correlation", kernel.correlation.into());
    say("kernel_external_id", kernel.external_id.into());
    say("Seq", kernel.facts.seq.into());
    if let Some(group) = kernel.facts.group.map(|at| &rank.trace().groups[at]) {
        say("process_group", group.name.as_str().into());
        say("process_group_description", group.description.as_str().into());
    }
}
