// SPDX-License-Identifier: Apache-2.0
//! Notes about what RAS reports of ranks beside their launches.

use super::output::{Member, Ras};
use super::status::{Status, error_name};
use crate::words;
use std::collections::BTreeMap;

impl Ras {
    /// A note for each error that NCCL reports.
    pub(super) fn errors(&self) -> impl Iterator<Item = String> {
        let all = self.comms.iter().flat_map(|(name, _, members)| {
            members.iter().filter(|member| member.error != 0).map(move |member| (name, member))
        });
        all.map(|(name, member)| {
            format!(
                "NCCL reports {} on {}: look at NCCL's log of that process",
                error_name(member.error),
                member.named(name)
            )
        })
    }

    /// A note for each communicator and status, if it is not that it runs.
    pub(super) fn statuses(&self) -> impl Iterator<Item = String> {
        self.comms.iter().flat_map(|(name, size, members)| {
            let mut by_status: BTreeMap<Status, Vec<&Member>> = BTreeMap::new();
            for member in members {
                if let Some(status) = member.status.filter(|&status| status != Status::Running) {
                    by_status.entry(status).or_default().push(member);
                }
            }
            by_status.into_iter().map(move |(status, of)| {
                let who = match of[..] {
                    _ if of.len() == *size as usize => format!("all ranks of communicator {name}"),
                    [one] => one.named(name),
                    _ => {
                        let ranks: Vec<u32> = of.iter().map(|member| member.rank).collect();
                        format!("{} of communicator {name}", words::named_ranks(&ranks))
                    }
                };
                let others = if of.len() == *size as usize { "" } else { ", unlike other ranks" };
                format!("RAS: the status of {who} is {}{others}", status.name())
            })
        })
    }
}
