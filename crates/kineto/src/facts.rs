// SPDX-License-Identifier: Apache-2.0
/*!
Reads what PyTorch records about a collective: its names for functions, datatypes and process
groups.

The names are those of `record_param_comms` in Kineto's traces (pytorch
`torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`, `ParamCommsUtils.hpp`).
*/

use ncclscope_operations::function::Kind;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The function of a kernel, from its name; `None` for NCCL's generic kernels.
#[must_use]
pub fn kind_of_kernel(name: &str) -> Option<Kind> {
    // ReduceScatter before Reduce, because the latter is a part of the name.
    let names = [
        ("AllReduce", Kind::AllReduce),
        ("AllGather", Kind::AllGather),
        ("ReduceScatter", Kind::ReduceScatter),
        ("Broadcast", Kind::Broadcast),
        ("SendRecv", Kind::SendRecv),
        ("Reduce", Kind::Reduce),
    ];
    names.into_iter().find(|(text, _)| name.contains(text)).map(|(_, kind)| kind)
}

/// The function for PyTorch's "Collective name", or for the text after `nccl:` in an annotation.
#[must_use]
pub fn kind_of_collective(name: &str) -> Option<Kind> {
    let plain: String =
        name.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_lowercase();
    // Longer names before names that are a part of them.
    let names = [
        ("allreduce", Kind::AllReduce),
        ("allgather", Kind::AllGather),
        ("reducescatter", Kind::ReduceScatter),
        ("broadcast", Kind::Broadcast),
        ("barrier", Kind::AllReduce),
        ("reduce", Kind::Reduce),
        ("alltoall", Kind::SendRecv),
        ("gather", Kind::SendRecv),
        ("scatter", Kind::SendRecv),
        ("send", Kind::SendRecv),
        ("recv", Kind::SendRecv),
    ];
    names.into_iter().find(|(text, _)| plain.contains(text)).map(|(_, kind)| kind)
}

/// A process group of PyTorch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Group {
    /// "Process Group Name", a number in quotes by default.
    pub name: String,
    /// "Process Group Description", such as `default_pg`.
    pub description: String,
    /// "Group size"; 0 if unknown.
    pub size: u32,
    /// "Process Group Ranks": ranks in the job. Empty if they are unknown: PyTorch writes those of
    /// groups at equal distances, and of others only `pg_config` of "distributedInfo" has them.
    pub ranks: Vec<u32>,
    /// There are more: PyTorch writes the first 30 and `...` (`kTruncatLength`,
    /// `torch/csrc/profiler/util.cpp`).
    pub is_cut: bool,
}

impl Group {
    /// Completes the ranks from a list of those of groups by name, if it has this one.
    pub(crate) fn complete(&mut self, all: &BTreeMap<String, Vec<u32>>) {
        let known = all.get(&self.name).filter(|known| known.starts_with(&self.ranks));
        if let Some(known) = known.filter(|known| known.len() > self.ranks.len()) {
            (self.ranks, self.is_cut) = (known.clone(), false);
        }
    }
}

/// Reads a list of ranks, and whether it is cut off.
fn ranks(text: &str) -> (Vec<u32>, bool) {
    let (listed, is_cut) = match text.split_once("...") {
        Some((listed, _)) => (format!("{}]", listed.trim_end().trim_end_matches(',')), true),
        None => (text.to_owned(), false),
    };
    let ranks: Vec<u32> = serde_json::from_str(&listed).unwrap_or_default();
    let is_cut = is_cut && !ranks.is_empty();
    (ranks, is_cut)
}

/// The known facts about a collective.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Its process group: index of [`crate::Trace::groups`].
    pub group: Option<usize>,
    /// Its function.
    pub kind: Option<Kind>,
    /// Its size in bytes as nccl-tests define it. `None` if it is unknown, or if the collective
    /// consists of several operations.
    pub bytes: Option<u64>,
    /// PyTorch's number of the collective in its group ("Seq").
    pub seq: Option<u64>,
}

impl Facts {
    /// Reads the args of an event; `group` returns the index of a process group.
    pub fn of_args(args: &Map<String, Value>, group: impl FnOnce(Group) -> usize) -> Facts {
        let text = |key: &str| args.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| args.get(key).and_then(Value::as_u64);
        let collective = text("Collective name");
        let name = text("Process Group Name");
        let (ranks, is_cut) = ranks(text("Process Group Ranks"));
        Facts {
            group: (!name.is_empty()).then(|| {
                group(Group {
                    name: name.into(),
                    description: text("Process Group Description").into(),
                    size: number("Group size").and_then(|n| n.try_into().ok()).unwrap_or(0),
                    ranks,
                    is_cut,
                })
            }),
            kind: kind_of_collective(collective),
            bytes: size(collective, args),
            seq: number("Seq"),
        }
    }
}

/// The size of a collective in bytes, by nccl-tests' definition.
fn size(collective: &str, args: &Map<String, Value>) -> Option<u64> {
    let count = |key: &str| args.get(key).and_then(Value::as_u64).filter(|&n| n != 0);
    let (sent, received) = (count("In msg nelems"), count("Out msg nelems"));
    let elements = match kind_of_collective(collective)? {
        _ if collective.contains("barrier") => None,
        Kind::AllGather => received,
        Kind::SendRecv if collective.contains("send") => sent,
        Kind::SendRecv if collective.contains("recv") => received.or(sent),
        Kind::SendRecv => None,
        _ => sent.or(received),
    };
    elements?.checked_mul(element_bytes(args.get("dtype")?.as_str()?)?)
}

/// Bytes of an element of PyTorch's datatype.
fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "Byte" | "Char" | "Bool" | "Float8_e4m3fn" | "Float8_e5m2" => 1,
        "Short" | "Half" | "BFloat16" => 2,
        "Int" | "Float" => 4,
        "Long" | "Double" | "ComplexFloat" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kinds_by_all_names() {
        let kernel = kind_of_kernel;
        assert_eq!(
            kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"),
            Some(Kind::ReduceScatter)
        );
        assert_eq!(kernel("ncclKernel_Reduce_RING_LL_Sum_float"), Some(Kind::Reduce));
        assert_eq!(kernel("ncclSymkDevKernel_AllReduce_RSxLD_AGxST"), Some(Kind::AllReduce));
        assert_eq!(kernel("ncclDevKernel_Generic_1"), None);
        let collective = kind_of_collective;
        assert_eq!(collective("_reduce_scatter_base"), Some(Kind::ReduceScatter));
        assert_eq!(collective("all_gather_into_tensor_coalesced"), Some(Kind::AllGather));
        assert_eq!(collective("_reduce_oop"), Some(Kind::Reduce));
        assert_eq!(collective("all_to_allv"), Some(Kind::SendRecv));
        assert_eq!(collective("barrier"), Some(Kind::AllReduce));
        assert_eq!(collective("wait"), None);
    }

    #[test]
    fn sizes_as_nccl_tests_count_them() {
        let size = |name: &str| {
            let args = json!({"In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16"});
            size(name, args.as_object().unwrap())
        };
        assert_eq!(size("allreduce"), Some(20));
        assert_eq!(size("_allgather_base"), Some(80));
        assert_eq!(size("_reduce_scatter_base"), Some(20));
        assert_eq!((size("send"), size("recv")), (Some(20), Some(80)));
        assert_eq!((size("all_to_all"), size("barrier"), size("wait")), (None, None, None));
    }

    #[test]
    fn groups_of_args() {
        let args = json!({"Process Group Name": "1", "Process Group Description": "tp",
            "Group size": 2, "Process Group Ranks": "[4, 5]", "Seq": 7,
            "Collective name": "allreduce"});
        let mut seen = None;
        let facts = Facts::of_args(args.as_object().unwrap(), |group| {
            seen = Some(group);
            3
        });
        assert_eq!((facts.group, facts.seq, facts.bytes), (Some(3), Some(7), None));
        let group = Group {
            name: "1".into(),
            description: "tp".into(),
            size: 2,
            ranks: vec![4, 5],
            is_cut: false,
        };
        assert_eq!(seen, Some(group));
        let cut = json!({"Process Group Name": "0", "Process Group Ranks": "[4, 5, ...]"});
        let mut first = None;
        Facts::of_args(cut.as_object().unwrap(), |group| {
            first = Some(group);
            0
        });
        let mut group = first.unwrap();
        assert_eq!((&group.ranks[..], group.is_cut), (&[4, 5][..], true));
        group.complete(&BTreeMap::from([("0".to_owned(), vec![0, 1, 2])]));
        assert_eq!((&group.ranks[..], group.is_cut), (&[4, 5][..], true), "that is another");
        group.complete(&BTreeMap::from([("0".to_owned(), vec![4, 5, 7])]));
        assert_eq!((&group.ranks[..], group.is_cut), (&[4, 5, 7][..], false));
    }
}
