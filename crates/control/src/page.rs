// SPDX-License-Identifier: Apache-2.0
//! `docs/env.md`, made from the table of variables.

use crate::aliases::{AS_ABOVE, NOT_TAKEN};
use crate::releases;
use crate::table::VARIABLES;
use crate::variable::ReadBy;

/// The table that `cargo xtask event-costs` prints.
const EVENT_COSTS: &str = include_str!("event-costs.md");

const EVENT_COSTS_HEAD: &str = "
## What events make NCCL do more

What NCCL adds to streams and graphs for each kind of event, counted on the CPU stand-in (`cargo
xtask event-costs`). An operation is one launch here.

";

const EVENT_COSTS_FOOT: &str = "
Only kernel channel events make NCCL do additional work. In a graph, each launch among ranks of one
node gets a host function, which waits for CUDA's callback thread at each replay. Up to 2.30 one
progress thread per communicator polls while work is queued (on an H100, a whole core), and the
first operation waits for 256 round trips to it.

`NCCLSCOPE_KERNEL=auto` leaves them on up to 2.28, where nothing else shows when operations inside
one node end. Inference that replays graphs pays at each replay, on an H100 16 us for each operation
of 64 KiB with NCCL 2.32.3, and 6 us with 2.30.7: set `NCCLSCOPE_KERNEL=off` there (`ncclscope
doctor` advises this). NCCL 2.30.3 may crash with them in graphs (NVIDIA/nccl#2112).
";

/// The page.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Environment variables\n\nMade from the table in `crates/control/src/table.rs` \
         (`cargo run -p ncclscope-control --example env-docs`); do not edit.\n\nAn invalid \
         value is reported in one line and the default is used. An empty value counts as \
         unset.\n\nA name after \"also\" is another profiler's variable with the same meaning. If \
         both are set, ours is used; one line in the log lists the aliases that are used.\n",
    );
    let sections: [(&[ReadBy], &str); 3] = [
        (&[ReadBy::Plugin, ReadBy::PluginOnDemand], "Read by the plugin"),
        (&[ReadBy::Tool], "Read by the tool"),
        (&[ReadBy::Tests], "Read by the project's tests"),
    ];
    for (read_by, title) in sections {
        out.push_str(&format!(
            "\n## {title}\n\n| variable | values | default | meaning |\n| --- | --- | --- | --- |\n"
        ));
        for variable in VARIABLES.iter().filter(|it| read_by.contains(&it.read_by())) {
            let names: Vec<String> =
                variable.names().iter().map(|name| format!("`{name}`")).collect();
            let [values, unset, meaning] = variable.row();
            let names = names.join(", also ");
            out.push_str(&format!("| {names} | {values} | {unset} | {meaning} |\n"));
        }
    }
    out.push_str(&format!(
        "\n## Kernel channel events by release\n\nWhat `NCCLSCOPE_KERNEL=auto` does, from the \
         table in `crates/control/src/releases.rs`:\n\n{}",
        releases::markdown()
    ));
    out.extend([EVENT_COSTS_HEAD, EVENT_COSTS, EVENT_COSTS_FOOT]);
    out.push_str(
        "\n## Other profilers' variables that are ignored\n\nThey have another meaning, or none, \
         in ncclscope. One line in the log names those that are set.\n\n| variable | why not \
         |\n| --- | --- |\n",
    );
    for group in NOT_TAKEN.chunk_by(|_, (_, why)| *why == AS_ABOVE) {
        let names: Vec<String> = group.iter().map(|(name, _)| format!("`{name}`")).collect();
        let why = group.first().map_or("", |(_, why)| *why);
        out.push_str(&format!("| {} | {why} |\n", names.join(", ")));
    }
    out
}
