// SPDX-License-Identifier: Apache-2.0
//! What metrics say of this process.

use crate::config::Otlp;

/// OpenTelemetry's resource attributes. The user's word wins.
pub(super) fn resource(
    target: &Otlp,
    host: &str,
    pid: u32,
    nccl_version: u32,
) -> Vec<(String, String)> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (major, minor, patch) =
        (nccl_version / 10_000, nccl_version / 100 % 100, nccl_version % 100);
    let known = [
        ("service.name", Some("ncclscope".to_owned())),
        ("service.instance.id", Some(format!("{host}-{pid}"))),
        ("host.name", Some(host.to_owned())),
        ("process.pid", Some(pid.to_string())),
        ("nccl.version", (nccl_version != 0).then(|| format!("{major}.{minor}.{patch}"))),
        ("nccl.plugin.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("slurm.job.id", variable("SLURM_JOB_ID")),
        ("k8s.pod.name", variable("K8S_POD_NAME").or_else(|| variable("POD_NAME"))),
        ("k8s.node.name", variable("K8S_NODE_NAME").or_else(|| variable("NODE_NAME"))),
        ("k8s.namespace.name", variable("K8S_NAMESPACE").or_else(|| variable("POD_NAMESPACE"))),
    ];
    let mut resource = target.resource.clone();
    for (name, value) in known {
        if let Some(value) = value.filter(|_| !resource.iter().any(|(known, _)| known == name)) {
            resource.push((name.to_owned(), value));
        }
    }
    resource
}
