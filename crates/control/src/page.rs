// SPDX-License-Identifier: Apache-2.0
//! `docs/env.md`, made from the table of variables.

use crate::aliases::{AS_ABOVE, NOT_TAKEN};
use crate::releases;
use crate::table::VARIABLES;
use crate::variable::ReadBy;

/// The section on the additional work that events cause in NCCL; `cargo xtask event-costs`
/// generates its table.
const EVENT_COSTS: &str = include_str!("event-costs.md");

/// The page.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Environment variables\n\nMade from the table in `crates/control/src/table.rs` \
         (`cargo run -p ncclscope-control --example env-docs`); do not edit.\n\nAn invalid \
         value is reported in one line and the default is used. An empty value counts as \
         unset.\n\nA name after \"also\" is another profiler's variable with the same meaning. If \
         both are set, ours is used; one line in the log lists the others that are used.\n",
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
    out.push_str(EVENT_COSTS);
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
