// SPDX-License-Identifier: Apache-2.0
//! What RAS reports of a rank beside its launches: the status of its communicator, and errors.

use super::output::{Member, Ras};
use crate::words;
use serde_json::Value;
use std::collections::BTreeMap;

/// NCCL's result for a call that goes on (`ncclInProgress`), which is no error.
const IN_PROGRESS: u64 = 7;
/// An error whose number the text form does not have.
pub(super) const UNKNOWN_ERROR: u64 = u64::MAX;

/// The status of a communicator on a rank, as RAS derives it (`rasACStatus` and
/// `rasClientRunComms`, src/ras/client_support.cc@v2.32.3-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    Init,
    Running,
    Finalize,
    Abort,
}

impl Status {
    pub(super) fn of(status: &Value) -> Status {
        let is = |flag: &str| status[flag] == true;
        match status["init_state"].as_u64() {
            _ if is("abort_flag") => Status::Abort,
            _ if is("finalize_called") || is("destroy_flag") => Status::Finalize,
            None | Some(0) => Status::Running,
            Some(_) => Status::Init,
        }
    }

    /// From RAS's name of it.
    pub(super) fn named(name: &str) -> Option<Status> {
        let all = [Status::Init, Status::Running, Status::Finalize, Status::Abort];
        all.into_iter().find(|status| status.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Status::Init => "INIT",
            Status::Running => "RUNNING",
            Status::Finalize => "FINALIZE",
            Status::Abort => "ABORT",
        }
    }
}

/// The error of a rank, asynchronous or of its initialization; 0 if there is none.
pub(super) fn error(status: &Value) -> u64 {
    let error = |key: &str| status[key].as_u64().filter(|&error| error != IN_PROGRESS);
    let found = [error("async_error"), error("init_state")].into_iter().flatten();
    found.max().unwrap_or(0)
}

/// The name of one of NCCL's results (`nccl.h`).
pub(super) fn error_name(error: u64) -> String {
    let known = match error {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        UNKNOWN_ERROR => return "an error".to_owned(),
        _ => return format!("error {error}"),
    };
    format!("error {error} ({known})")
}

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
