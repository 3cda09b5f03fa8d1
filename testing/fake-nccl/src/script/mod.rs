// SPDX-License-Identifier: Apache-2.0
//! Scripts by name: NCCL's callbacks in one situation, or one of its faults, played by separate
//! threads where NCCL has them.

mod chaos;
mod faults;
mod hang;
mod loads;
mod operations;
mod rccl;
pub mod setup;
mod strain;
mod windows;

use setup::ScriptSetup;

/// A script.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// Its name on the command line.
    pub name: &'static str,
    /// The first API version that has its events.
    pub since: usize,
    /// Plays the callbacks of the script.
    pub play: fn(&ScriptSetup<'_>),
}

const fn script(name: &'static str, since: usize, play: fn(&ScriptSetup<'_>)) -> Script {
    Script { name, since, play }
}

/// All scripts.
pub const SCRIPTS: &[Script] = &[
    script("allreduce", 1, operations::allreduce),
    script("sendrecv", 1, operations::sendrecv),
    script("intra", 3, operations::intra),
    script("grouped", 1, operations::grouped),
    script("nested", 5, operations::nested),
    script("graph", 1, operations::graph),
    script("pxn", 1, operations::pxn),
    script("ce", 6, operations::ce),
    script("phases", 7, operations::phases),
    script("rccl", 4, rccl::rccl),
    script("net", 3, operations::net),
    script("ctrl", 1, operations::ctrl),
    script("nonblocking", 5, operations::nonblocking),
    script("nulls", 1, faults::nulls),
    script("nameless", 1, faults::nameless),
    script("verbose", 1, faults::verbose),
    script("twice", 1, faults::twice),
    script("late", 1, faults::late),
    script("sealed", 1, faults::sealed),
    script("unknown", 1, faults::unknown),
    script("strangers", 1, chaos::strangers),
    script("chaos", 1, chaos::chaos),
    script("wild", 1, faults::wild),
    script("restarts", 1, faults::restarts),
    script("peer-wait", 4, faults::peer_wait),
    script("unstopped", 1, faults::unstopped),
    script("toggle", 5, faults::toggle),
    script("ptimers", 4, faults::ptimers),
    script("channels", 1, loads::channels),
    script("unmatched", 1, loads::unmatched),
    script("open", 1, loads::open),
    script("inits", 1, loads::inits),
    script("threads", 1, loads::threads),
    script("cycles", 1, loads::cycles),
    script("burst", 1, strain::burst),
    script("interrupted", 1, strain::interrupted),
    script("reentered", 1, strain::reentered),
    script("stacks", 1, strain::stacks),
    script("allocates", 1, strain::allocates),
    script("races", 1, strain::races),
    script("windows", 1, windows::windows),
    script("toggles", 1, windows::toggles),
    script("sampled", 1, windows::sampled),
    script("application", 1, windows::application),
    script("signalled", 1, windows::signalled),
    script("hang-kernel", 4, hang::kernel),
    script("hang-channel", 4, hang::channel),
    script("hang-sends-nothing", 4, hang::sends_nothing),
    script("hang-peer", 4, hang::peer),
    script("hang-wire", 4, hang::wire),
    script("hang-flush", 4, hang::flush),
    script("hang-takes-nothing", 4, hang::takes_nothing),
    script("hang-upstream", 4, hang::upstream),
    script("hang-proxy", 4, hang::proxy),
    script("hang-launch", 5, hang::launch),
    script("hang-returns", 5, hang::returns),
    script("hang-enqueues", 4, hang::enqueues),
    script("hang-group", 5, hang::group),
    script("hang-pxn-wire", 4, hang::pxn_wire),
    script("hang-pxn-gpu", 4, hang::pxn_gpu),
    script("hang-quiet", 3, hang::quiet),
    script("hang-lossy", 4, hang::lossy),
    script("hang-leaks", 4, hang::leaks),
    script("hang-refused", 4, hang::refused),
    script("hang-many", 4, hang::many),
    script("hang-stopped", 4, hang::stopped),
    script("hang-blocked", 4, hang::blocked),
    script("hang-drill", 1, hang::drill),
];

/// The script with this name.
#[must_use]
pub fn find(name: &str) -> Option<Script> {
    SCRIPTS.iter().copied().find(|s| s.name == name)
}
