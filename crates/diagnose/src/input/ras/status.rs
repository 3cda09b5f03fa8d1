// SPDX-License-Identifier: Apache-2.0
//! What RAS reports of a rank beside its launches: the status of its communicator, and errors.

use serde_json::Value;

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

    pub(super) const fn name(self) -> &'static str {
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
