// SPDX-License-Identifier: Apache-2.0
//! Recordings of processes that live and write nothing: a signal or a control group stopped them.

use ncclscope_control::directories;
use ncclscope_control::table::LANES;
use ncclscope_control::variable::environment;
use ncclscope_trace::Follower;
use ncclscope_trace::lanes_file::{self, Owner};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

/// The file names of the recordings to which the lanes files of this machine belong. A directory of
/// recordings may have very many old ones, which need not be opened then.
pub(crate) fn names() -> HashSet<OsString> {
    let directory = LANES.value(&environment).unwrap_or_else(|| directories::LANES.into());
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let owners = files.filter_map(|file| Owner::of(&lanes_file::open(&file.path()).ok()?));
    owners.filter_map(|owner| Some(owner.recording.file_name()?.to_owned())).collect()
}

/// True if the process of the recording holds its lanes file.
pub(crate) fn lives(path: &Path, names: &HashSet<OsString>) -> bool {
    let is_held = |of: Follower| !of.header().closed && of.owner_is_gone() == Some(false);
    path.file_name().is_some_and(|name| names.contains(name))
        && Follower::open(path).is_ok_and(is_held)
}
