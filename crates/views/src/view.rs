// SPDX-License-Identifier: Apache-2.0
//! The identity of a process in a trace: its ranks and communicators, with their names and numbers.

use crate::ident::Hash;
use crate::scene::Scene;
use ncclscope_operations::timeline::comm_name;
use ncclscope_trace::Comm;
use std::collections::{HashMap, HashSet};

/// A rank: one process of the trace.
#[derive(Clone, Debug)]
pub struct View {
    /// Its communicators; each of several becomes a group of tracks.
    pub groups: Vec<Group>,
    /// Unique over all recordings.
    pub uuid: u64,
    /// Process number in the trace. It is not the process id, because several ranks may share a
    /// process, and several hosts a process id. It is at least 2^30, and different from the numbers
    /// of tracks.
    pub pid: u32,
    /// `rank 0 (host 4711, GPU 3)`: the rank in the job, or if that is unknown, in the largest
    /// communicator.
    pub name: String,
}

impl View {
    /// Prefix of the names of a communicator's tracks, in formats without groups of tracks; empty
    /// if there is one communicator.
    #[must_use]
    pub fn prefix(&self, group: &Group) -> String {
        if self.groups.len() > 1 { format!("{}: ", group.name) } else { String::new() }
    }
}

/// A rank as a member of one communicator.
#[derive(Clone, Debug)]
pub struct Group {
    /// Position of the communicator; `None` for events without a known one.
    pub comm: Option<usize>,
    /// Unique over all recordings.
    pub uuid: u64,
    /// `world 0x1f2e3d4c: rank 0 of 2`.
    pub name: String,
}

impl Scene<'_, '_> {
    /// The ranks of the process. It is one rank with all communicators, unless a communicator has
    /// several members in this process (several devices), or the API version gives no hashes (v1 to
    /// v3). In the last case it is unknown which communicators belong together, and each counts as
    /// a rank.
    #[must_use]
    pub fn views(&self) -> Vec<View> {
        let groups = self.groups();
        if has_one_device(self.comms()) {
            return vec![self.whole()];
        }
        let mut views: Vec<View> = groups.into_iter().map(|group| self.view(vec![group])).collect();
        // A communicator that was created again may have the name of the earlier one.
        let mut seen: HashMap<String, u32> = HashMap::new();
        for view in &mut views {
            let times = seen.entry(view.name.clone()).or_default();
            *times += 1;
            if *times > 1 {
                view.name.push_str(&format!(" #{times}"));
            }
            self.keep_shown(view);
        }
        views.retain(|view| !view.groups.is_empty());
        views
    }

    /// The process as one view, however many ranks it has.
    #[must_use]
    pub fn whole(&self) -> View {
        let mut view = self.view(self.groups());
        self.keep_shown(&mut view);
        view
    }

    /// Keeps the communicators that are shown. The view has its name and number from all.
    fn keep_shown(&self, view: &mut View) {
        view.groups.retain(|group| self.shows_comm(group.comm));
    }

    fn groups(&self) -> Vec<Group> {
        let (timeline, comms) = (self.timeline(), self.comms());
        let mut groups: Vec<Group> = (0..comms.len()).map(|at| self.group(Some(at))).collect();
        if comms.is_empty() || timeline.events().any(|(_, e)| timeline.comm_of(e).is_none()) {
            groups.push(self.group(None));
        }
        groups
    }

    fn comms(&self) -> &[Comm] {
        self.timeline().recording().comms()
    }

    fn view(&self, groups: Vec<Group>) -> View {
        let recording = self.timeline().recording();
        let (header, comms) = (recording.header(), recording.comms());
        let identity = recording.identity();
        let device = identity.device.map_or_else(String::new, |index| format!(", GPU {index}"));
        let place = format!("({} {}{device})", header.host, header.pid);
        let ranks = |at: &usize| (comms[*at].ranks, std::cmp::Reverse(*at));
        let largest = groups.iter().filter_map(|group| group.comm).max_by_key(ranks);
        // Only a view with all communicators of the process can have the process's rank in the job.
        let of_job = identity.rank.filter(|_| groups.len() > 1 || comms.len() <= 1);
        let mut name = match (of_job, largest) {
            (Some(rank), _) => format!("rank {rank} {place}"),
            (None, None) => format!("no communicator {place}"),
            (None, Some(at)) => format!("rank {} {place}", self.rank_text(at)),
        };
        let mut id = Hash::new("rank").number(self.uuid());
        if let ([group], true) = (&*groups, comms.len() > 1) {
            id = id.number(group.uuid);
            if let Some(at) = group.comm {
                name.push(' ');
                name.push_str(self.comm_name(at));
            }
        }
        View { groups, uuid: id.id(), pid: id.id32() & 0x3fff_ffff | 0x4000_0000, name }
    }

    fn group(&self, comm: Option<usize>) -> Group {
        let id = Hash::new("communicator").number(self.uuid());
        let Some(at) = comm else {
            return Group { comm, uuid: id.id(), name: "no known communicator".into() };
        };
        let comm = &self.comms()[at];
        let known = |number: u32| if number == 0 { "?".into() } else { number.to_string() };
        let name = format!(
            "{}{}: rank {} of {}",
            comm.name.as_ref().map_or(String::new(), |name| format!("{name} ")),
            comm_name(comm),
            self.rank_text(at),
            known(comm.ranks)
        );
        let uuid = id.number(comm.hash).number(u64::from(comm.index) + 1).id();
        Group { comm: Some(at), uuid, name }
    }

    fn rank_text(&self, comm: usize) -> String {
        self.rank(comm).map_or_else(|| "?".into(), |rank| rank.to_string())
    }
}

/// Whether all communicators of the process belong to one device: their hashes are known and
/// different.
fn has_one_device(comms: &[Comm]) -> bool {
    let mut seen = HashSet::new();
    comms.len() <= 1 || comms.iter().all(|comm| comm.hash != 0 && seen.insert(comm.hash))
}
