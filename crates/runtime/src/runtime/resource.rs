// SPDX-License-Identifier: Apache-2.0
//! The attributes of this process in metrics (OpenTelemetry's resource).

use crate::config::Otlp;
use ncclscope_trace::Identity;

/// OpenTelemetry's resource attributes. The user's values replace ours.
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
        ("nccl.job.name", identity.job_name.clone()),
        ("nccl.run.id", identity.run.clone()),
        ("nccl.process.rank", identity.rank.map(|rank| rank.to_string())),
        ("nccl.device.index", identity.device.map(|device| device.to_string())),
        ("nccl.device.uuid", identity.device_uuid.clone()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rank_tells_its_job_its_place_there_and_its_device() {
        let target = Otlp {
            url: String::new(),
            headers: Vec::new(),
            timeout: Duration::ZERO,
            interval: Duration::ZERO,
            window_events: 0,
            delta: false,
            resource: vec![("nccl.job.id".into(), "mine".into())],
        };
        let mut identity = Identity::default();
        identity.set("job_name", "train");
        for (key, value) in [("job", "4711.0"), ("rank", "9"), ("device", "1"), ("host", "node")] {
            identity.set(key, value);
        }
        identity.set("device_uuid", "GPU-1f");
        let resource = resource(&target, &identity);
        let of = |name: &str| {
            let mut values = resource.iter().filter(|(known, _)| known == name);
            let value = values.next().map(|(_, value)| value.as_str());
            assert!(values.next().is_none(), "{name} once");
            value
        };
        assert_eq!(of("nccl.job.id"), Some("mine"), "the user's value replaces ours");
        assert_eq!((of("nccl.process.rank"), of("nccl.device.index")), (Some("9"), Some("1")));
        assert_eq!((of("nccl.device.uuid"), of("host.name")), (Some("GPU-1f"), Some("node")));
        assert_eq!((of("nccl.job.name"), of("nccl.run.id")), (Some("train"), None));
    }
}
