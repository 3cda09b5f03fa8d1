// SPDX-License-Identifier: Apache-2.0
//! The attributes of a process that all of its metrics have.

use ncclscope_metrics::encode::{ProcessAttributes, places};
use ncclscope_trace::Identity;

/// The attributes of a process, as far as known to the agent of `agent_host`. With `per_rank`, each
/// rank has its own.
pub(crate) fn of(identity: &Identity, agent_host: &str, per_rank: bool) -> ProcessAttributes {
    let host = identity.host.as_deref().filter(|host| *host != agent_host);
    let mut place = ProcessAttributes::default();
    place.text(places::JOB, identity.job.as_deref());
    place.text(places::JOB_NAME, identity.job_name.as_deref());
    place.text(places::HOST, host);
    if per_rank {
        place.int(places::PROCESS_RANK, identity.rank);
        place.int(places::DEVICE, identity.device);
        place.text(places::DEVICE_UUID, identity.device_uuid.as_deref());
    }
    place
}
