// SPDX-License-Identifier: Apache-2.0
//! The process and its communicators, as reports name them.

use super::json::string as string_json;
use super::subject::Subject;
use crate::sys::cuda::Device;
use ncclscope_operations::ends::arrives_early;
use ncclscope_operations::human;
use ncclscope_operations::progress::{Facts, ForeignWork};
use ncclscope_trace::{Comm, Identity, StrId};
use std::collections::BTreeMap;

/// The process and its communicators, by name.
#[derive(Debug, Default)]
pub(crate) struct OwnProcess {
    host: String,
    pid: u32,
    global: Option<u32>,
    has_net_plugin: bool,
    comms: BTreeMap<u16, Comm>,
    devices: BTreeMap<u16, Device>,
    names: Vec<String>,
}

impl OwnProcess {
    /// Process `pid` of `host`, with its rank in the job if a launcher set one.
    pub(crate) fn new(host: &str, pid: u32, global: Option<u32>) -> OwnProcess {
        OwnProcess { host: host.to_owned(), pid, global, ..OwnProcess::default() }
    }

    pub(crate) fn of(identity: &Identity) -> OwnProcess {
        let host = identity.host.as_deref().unwrap_or_default();
        let own = OwnProcess::new(host, identity.pid.unwrap_or(0), identity.rank);
        OwnProcess { has_net_plugin: identity.net_plugin.is_some(), ..own }
    }

    /// True if received data of the operation may be reported before it has arrived.
    pub(super) fn arrives_early(&self, facts: &Facts) -> bool {
        arrives_early(self.has_net_plugin, self.name(facts.proto))
    }

    pub(super) fn comm(&mut self, comm: &Comm) {
        self.comms.insert(comm.index, comm.clone());
    }

    /// Forgets a communicator whose end was reported.
    pub(super) fn forget(&mut self, comm: u16) {
        self.comms.remove(&comm);
        self.devices.remove(&comm);
    }

    pub(super) fn device(&mut self, comm: u16, device: Device) {
        self.devices.insert(comm, device);
    }

    pub(super) fn first(&self) -> Option<Comm> {
        self.comms.values().next().cloned()
    }

    pub(super) fn string(&mut self, id: StrId, text: &str) {
        let at = usize::from(id.0);
        if at >= self.names.len() {
            self.names.resize(at + 1, String::new());
        }
        if let Some(name) = self.names.get_mut(at) {
            text.clone_into(name);
        }
    }

    /// Profiler API version of a communicator; 0 if unknown.
    pub(super) fn api_version(&self, comm: u16) -> u32 {
        self.comms.get(&comm).map_or(0, |comm| comm.api_version)
    }

    /// True if a communicator has several ranks on a host.
    pub(super) fn shares_hosts(&self, comm: u16) -> bool {
        self.comms.get(&comm).is_some_and(|comm| comm.nodes > 0 && comm.ranks > comm.nodes)
    }

    pub(super) fn known(&self, comm: u16) -> Option<&Comm> {
        self.comms.get(&comm)
    }

    pub(super) fn name(&self, id: StrId) -> &str {
        self.names.get(usize::from(id.0)).map_or("", String::as_str)
    }

    pub(super) fn text(&self, comm: u16) -> String {
        let global =
            self.global.map(|rank| format!(", rank {rank} of the job")).unwrap_or_default();
        let device = self.devices.get(&comm).map(|device| format!(", {device}"));
        format!("host {}, pid {}{global}{}", self.host, self.pid, device.unwrap_or_default())
    }

    pub(super) fn on_comm(&self, index: u16) -> String {
        let Some(comm) = self.comms.get(&index) else { return "an unknown communicator".into() };
        let name = comm.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
        // NCCL 2.23 to 2.26 do not report the number of ranks.
        let of = Some(comm.ranks).filter(|&ranks| ranks > 0);
        let of = of.map(|ranks| format!(" of {ranks}")).unwrap_or_default();
        format!("communicator {:#x}{name}, rank {}{of}", comm.hash, comm.rank)
    }

    /// Text such as `AllReduce 3 (262144 ncclFloat32)`.
    pub(super) fn operation(&self, facts: &Facts, number: u64) -> String {
        let Facts { func, datatype, count, peer, .. } = *facts;
        let func = Some(self.name(func)).filter(|name| !name.is_empty()).unwrap_or("operation");
        let peer = peer.map(|peer| format!(", rank {peer}")).unwrap_or_default();
        format!("{func} {number} ({count} {}{peer})", self.name(datatype))
    }

    /// Text such as `AllReduce 3 (262144 ncclFloat32) on communicator 0x1f, rank 0 of 8`.
    pub(super) fn what(&self, subject: &Subject) -> String {
        let what = match subject {
            Subject::Foreign(work) => return transfers_for_another(work),
            Subject::Op(op) => self.operation(&op.facts, op.number),
            Subject::Call(call) => {
                let func = Some(self.name(call.func)).filter(|name| !name.is_empty());
                let func = func.unwrap_or("a call");
                match (call.colls + call.p2ps).saturating_sub(1) {
                    0 => func.to_owned(),
                    more => format!("{func} and {}", human::count(more, "more call")),
                }
            }
        };
        format!("{what} on {}", self.on_comm(subject.comm()))
    }

    /// Process and communicator for programs: names of fields and their JSON.
    pub(super) fn fields(&self, index: u16, comm: Option<&Comm>) -> Vec<(&'static str, String)> {
        let global = self.global.map_or_else(|| "null".into(), |rank| rank.to_string());
        let mut fields = vec![
            ("host", string_json(&self.host)),
            ("pid", self.pid.to_string()),
            ("rank", global),
        ];
        if let Some(comm) = comm {
            let name = comm.name.as_deref().map_or_else(|| "null".into(), string_json);
            fields.push(("comm", string_json(&format!("{:#x}", comm.hash))));
            fields.push(("comm_name", name));
            let known = |known: bool, number: String| if known { number } else { "null".into() };
            fields.push(("comm_rank", known(comm.rank >= 0, comm.rank.to_string())));
            fields.push(("nranks", known(comm.ranks > 0, comm.ranks.to_string())));
        }
        let device = self.devices.get(&index);
        let text = |text: Option<&str>| text.map_or_else(|| "null".into(), string_json);
        let number = device.map_or_else(|| "null".into(), |device| device.index.to_string());
        fields.push(("device", number));
        fields.push(("device_pci", text(device.and_then(|device| device.pci.as_deref()))));
        fields.push(("device_uuid", text(device.and_then(|device| device.uuid.as_deref()))));
        fields
    }
}

/// Text such as `the send to rank 3 for process 4711 (PXN), rank 1 of its communicator,`.
fn transfers_for_another(work: &ForeignWork) -> String {
    let pid = work.owner.pid;
    let of = Some(work.owner.rank).filter(|&rank| rank >= 0);
    let of = of.map(|rank| format!(", rank {rank} of its communicator,")).unwrap_or_default();
    let peer = work.ops.first().map_or(-1, |op| op.peer);
    format!("the send to rank {peer} for process {pid} (PXN){of}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NCCL 2.23 to 2.26 do not report the number of ranks.
    #[test]
    fn an_unknown_number_of_ranks_is_left_out() {
        let mut own = OwnProcess::new("h", 7, None);
        let comm = Comm { index: 1, hash: 0x1f, rank: 3, ..Comm::default() };
        own.comm(&comm);
        assert_eq!(own.on_comm(1), "communicator 0x1f, rank 3");
        own.comm(&Comm { ranks: 8, ..comm });
        assert_eq!(own.on_comm(1), "communicator 0x1f, rank 3 of 8");
    }
}
