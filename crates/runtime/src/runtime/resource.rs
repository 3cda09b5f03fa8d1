// SPDX-License-Identifier: Apache-2.0
//! What metrics say of this process.

use crate::config::Otlp;
use ncclscope_trace::Identity;

/// OpenTelemetry's resource attributes. The user's word wins.
pub(super) fn resource(target: &Otlp, identity: &Identity) -> Vec<(String, String)> {
    let host = identity.host.clone().unwrap_or_default();
    let pid = identity.pid.unwrap_or(0);
    let known = [
        ("service.name", Some("ncclscope".to_owned())),
        ("service.instance.id", Some(format!("{host}-{pid}"))),
        ("host.name", Some(host)),
        ("process.pid", Some(pid.to_string())),
        ("nccl.version", identity.nccl.clone()),
        ("nccl.plugin.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("nccl.job.id", identity.job.clone()),
        ("nccl.run.id", identity.run.clone()),
        ("slurm.job.id", identity.slurm_job.clone()),
        ("k8s.pod.name", identity.k8s_pod.clone()),
        ("k8s.node.name", identity.k8s_node.clone()),
        ("k8s.namespace.name", identity.k8s_namespace.clone()),
    ];
    let mut resource = target.resource.clone();
    for (name, value) in known {
        if let Some(value) = value.filter(|_| !resource.iter().any(|(known, _)| known == name)) {
            resource.push((name.to_owned(), value));
        }
    }
    resource
}
