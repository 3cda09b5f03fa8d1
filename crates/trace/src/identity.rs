// SPDX-License-Identifier: Apache-2.0
/*!
The identity of a recording's process: its place in the job, on the host and among the devices.

Each fact is a definition of its own, a key and a text (`Definition::Identity`). The latest text of
a key counts; an empty one removes it. Facts that become known later, such as the device, are added,
and a reader shows keys of a later version unchanged. The known keys are declared here; a test
compares the table in `docs/trace-format.md` with them.

Host and process id are in the header, because readers of only the first page need them too.
*/

use crate::define::Definition;
use crate::layout::Header;
use std::fmt::Display;
use std::str::FromStr;

pub use crate::vendor::nccl_version;

/// A key that this version knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Its text.
    pub name: &'static str,
    /// The field of [`Identity`] that holds it.
    pub kind: &'static str,
    /// What the value is, or its unit.
    pub unit: &'static str,
    /// The source from which the plugin reads it.
    pub source: &'static str,
    /// Its meaning.
    pub doc: &'static str,
}

/// Declares the known keys, and the structure that holds them.
macro_rules! identity {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty, $unit:literal, $source:literal;)*) => {
        /// The identity of a recording's process. Unknown facts are `None`.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub struct Identity {
            $($(#[doc = $doc])+ pub $name: Option<$kind>,)*
            /// Keys that this version does not know, and values that it cannot parse, unchanged.
            pub other: Vec<(String, String)>,
        }

        /// The known keys.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            kind: stringify!($kind),
            unit: $unit,
            source: $source,
            doc: concat!($($doc),+),
        }),*];

        impl Identity {
            /// Sets the value of a key; an empty value removes the key.
            pub fn set(&mut self, key: &str, value: &str) {
                self.other.retain(|(known, _)| known != key);
                let is_read = match key {
                    $(stringify!($name) => take(&mut self.$name, value),)*
                    _ => false,
                };
                if !is_read && !value.is_empty() {
                    self.other.push((key.to_owned(), value.to_owned()));
                }
            }

            /// The known facts, as keys and values.
            #[must_use]
            pub fn entries(&self) -> Vec<(&str, String)> {
                let mut entries = Vec::new();
                $(entries.extend(give(stringify!($name), self.$name.as_ref()));)*
                entries.extend(self.other.iter().map(|(key, text)| (key.as_str(), text.clone())));
                entries
            }
        }
    };
}

identity! {
    /// The job, as the user or the launcher says: `4711.0` in Slurm, `NAME/UID` in Kubernetes.
    job: String, "text",
        "`NCCLSCOPE_JOB`, `SLURM_JOB_ID` and `SLURM_STEP_ID`, `TORCHELASTIC_RUN_ID`, \
         `JOB_NAME` and `JOB_UID` in Kubernetes";
    /// The job's name, up to 128 bytes. Later jobs may have it, too.
    job_name: String, "text",
        "`SLURM_JOB_NAME`, `JOB_NAME` in Kubernetes, `TORCHELASTIC_RUN_ID`";
    /// The launch that this process's ranks share.
    run: String, "text",
        "`TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT`, `PMIX_NAMESPACE`, \
         `PMI_JOBID`, each after Slurm's job, step and `SLURM_RESTART_COUNT`";
    /// Host name, up to its first dot.
    host: String, "text", "the header";
    /// The kernel's boot.
    boot_id: String, "UUID", "`/proc/sys/kernel/random/boot_id`";
    /// Process id, in the process's own namespace.
    pid: u32, "number", "the header";
    /// When the process began.
    start_ticks: u64, "clock ticks after boot", "`/proc/self/stat`, field 22";
    /// A number that other processes are unlikely to have.
    nonce: String, "8 hexadecimal digits", "the kernel's random numbers";
    /// The process's rank in its job. Unknown where the process has several ranks.
    rank: u32, "number",
        "`RANK`, `OMPI_COMM_WORLD_RANK`, `MV2_COMM_WORLD_RANK`, `PMI_RANK`, `SLURM_PROCID`, \
         `PMIX_RANK`, `JAX_PROCESS_ID`: the first that is set; Slurm's only in a step";
    /// Its number among the job's processes on its node.
    local_rank: u32, "number",
        "the same launcher's: `LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_RANK`, \
         `MV2_COMM_WORLD_LOCAL_RANK`, `MPI_LOCALRANKID`, `SLURM_LOCALID`, the last also with \
         `srun --mpi`";
    /// The node's number in the job.
    node_rank: u32, "number",
        "the same launcher's: `GROUP_RANK`, `SLURM_NODEID`, the last also with `srun --mpi`";
    /// Processes of the job.
    world_size: u32, "number",
        "the same launcher's: `WORLD_SIZE`, `OMPI_COMM_WORLD_SIZE`, `MV2_COMM_WORLD_SIZE`, \
         `PMI_SIZE`, `SLURM_NTASKS`, `JAX_NUM_PROCESSES`";
    /// CUDA device, as the process counts them. Unknown where communicators are on several.
    device: u32, "number", "the CUDA driver, at `init`";
    /// Its domain, bus, device and function.
    device_pci: String, "PCI address", "the CUDA driver, at `init`";
    /// Its UUID, as `nvidia-smi -L` shows it.
    device_uuid: String, "UUID", "the CUDA driver, at `init`";
    /// Its model. Unknown where communicators are on several devices.
    device_name: String, "text", "the CUDA driver, at `init`";
    /// The processor: vendor, family, model and name.
    cpu: String, "text", "`/proc/cpuinfo`";
    /// NCCL's version; AMD's is `RCCL MAJOR.MINOR.PATCH`.
    nccl: String, "`MAJOR.MINOR.PATCH`", "`ncclGetVersion`, at `init`";
    /// Length of a tick of the GPU's timer; 0: unknown, so kernels have no times. Missing with
    /// NVIDIA's NCCL, which passes ns.
    timer_ns: u32, "ns", "`hipDeviceGetAttribute` of the HIP that RCCL uses, at `init`";
    /// The latest CUDA that the driver supports.
    cuda: String, "`MAJOR.MINOR`", "the CUDA driver, at `init`";
    /// The profiler API that NCCL speaks.
    profiler_api: u32, "number", "the table of functions that NCCL takes";
    /// Libraries in the process that can communicate without NCCL, with commas between them.
    beside: String, "text", "the names of mapped files";
    /// The network plugin that NCCL has loaded; none with its own networks (IB, Socket) alone.
    net_plugin: String, "file name", "`/proc/self/maps`: `libnccl-net*`, `librccl-net*` or what \
         `NCCL_NET_PLUGIN` names, unless `NCCL_NET` is `IB` or `Socket`";
    /// The command line, its words with spaces between them, up to 1 KiB.
    command: String, "text", "`/proc/self/cmdline`, unless `NCCLSCOPE_COMMAND` is `off`";
    /// Which kernels are timed by CUDA events.
    cuda_events: String, "`auto`, `on` or `off`", "`NCCLSCOPE_CUDA_EVENTS`";
    /// The process's recording before this one, which was removed while it was written.
    replaces: String, "path", "the plugin, when it finds its file without a name";
    /// The status with which the process exited, if it ended by `exit`.
    exit_status: u32, "number", "what was passed to `exit`, its low eight bits";
    /// Slurm's job alone.
    slurm_job: String, "text", "`SLURM_JOB_ID`";
    /// Kubernetes' pod.
    k8s_pod: String, "text", "`K8S_POD_NAME`, `POD_NAME`";
    /// Kubernetes' node.
    k8s_node: String, "text", "`K8S_NODE_NAME`, `NODE_NAME`";
    /// Kubernetes' namespace.
    k8s_namespace: String, "text", "`K8S_NAMESPACE`, `POD_NAMESPACE`";
}

/// The part of the identity that distinguishes a process from all others, as far as it is known.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId {
    host: String,
    boot_id: Option<String>,
    pid: u32,
    start_ticks: Option<u64>,
    nonce: Option<String>,
}

impl Identity {
    /// The identity as far as a header has it: host and process id.
    #[must_use]
    pub fn of(header: &Header) -> Identity {
        let mut identity = Identity { pid: Some(header.pid), ..Identity::default() };
        identity.set("host", &header.host);
        identity
    }

    /// The job's id; without one, that of its launch.
    #[must_use]
    pub fn job_id(&self) -> Option<&str> {
        self.job.as_deref().or(self.run.as_deref())
    }

    /// The part of the identity that distinguishes the process from all others.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        ProcessId {
            host: self.host.clone().unwrap_or_default(),
            boot_id: self.boot_id.clone(),
            pid: self.pid.unwrap_or(0),
            start_ticks: self.start_ticks,
            nonce: self.nonce.clone(),
        }
    }

    /// The identity of the process's host: the boot if it is known, else the name.
    #[must_use]
    pub fn machine(&self) -> &str {
        self.boot_id.as_deref().or(self.host.as_deref()).unwrap_or("")
    }

    /// `rank 11 (process 4711 on node-3)`, as far as it is known.
    #[must_use]
    pub fn whose(&self) -> String {
        let host = self.host.as_ref().map_or_else(String::new, |host| format!(" on {host}"));
        let process = format!("process {}{host}", self.pid.unwrap_or(0));
        match self.rank {
            Some(rank) => format!("rank {rank} ({process})"),
            None => process,
        }
    }

    /// Definitions of the facts that are new or changed since `before`, without those of the
    /// header. A fact that is no longer known has an empty value.
    #[must_use]
    pub fn since(&self, before: &Identity) -> Vec<Definition> {
        let (now, before) = (self.entries(), before.entries());
        let is_there = |key: &str| now.iter().any(|(known, _)| *known == key);
        let gone = before.iter().filter(|(key, _)| !is_there(key)).map(|(key, _)| (*key, ""));
        let new = now.iter().filter(|entry| !before.contains(entry));
        gone.chain(new.map(|(key, value)| (*key, value.as_str())))
            .filter(|(key, _)| !matches!(*key, "host" | "pid"))
            .map(|(key, value)| Definition::Identity { key: key.into(), value: value.into() })
            .collect()
    }
}

/// Whether the values of a key are numbers, as far as this version knows.
#[must_use]
pub fn is_number(key: &str) -> bool {
    KEYS.iter().any(|known| known.name == key && known.kind != "String")
}

/// Parses a value into `place`; an empty one clears it. False if the value cannot be parsed.
fn take<T: FromStr>(place: &mut Option<T>, value: &str) -> bool {
    *place = value.parse().ok().filter(|_| !value.is_empty());
    place.is_some()
}

fn give<T: Display>(key: &'static str, value: Option<&T>) -> Option<(&'static str, String)> {
    Some((key, value?.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_value_holds_and_an_empty_one_takes_it_back() {
        let mut identity = Identity::default();
        for (key, value) in [("rank", "3"), ("device", "1"), ("device", "0"), ("weather", "rain")] {
            identity.set(key, value);
        }
        assert_eq!((identity.rank, identity.device), (Some(3), Some(0)));
        assert_eq!(identity.other, [("weather".to_owned(), "rain".to_owned())]);
        identity.set("rank", "");
        identity.set("weather", "");
        assert_eq!(identity, Identity { device: Some(0), ..Identity::default() });
    }

    #[test]
    fn a_value_that_cannot_be_read_is_shown_as_it_is() {
        let mut identity = Identity::default();
        identity.set("rank", "3/4");
        assert_eq!(identity.entries(), [("rank", "3/4".to_owned())]);
        identity.set("rank", "3");
        assert_eq!(identity.entries(), [("rank", "3".to_owned())]);
    }

    #[test]
    fn hosts_of_one_name_are_told_apart_by_their_boot() {
        let header = Header { pid: 7, host: "node".into(), ..Header::default() };
        let [mut a, mut b] = [Identity::of(&header), Identity::of(&header)];
        assert_eq!((a.process(), a.machine()), (b.process(), "node"));
        a.set("boot_id", "6f0c");
        b.set("boot_id", "9d11");
        assert!(a.process() != b.process() && a.machine() != b.machine());
        let boot = Definition::Identity { key: "boot_id".into(), value: "6f0c".into() };
        assert_eq!(a.since(&Identity::default()), [boot]);
        let none = Definition::Identity { key: "boot_id".into(), value: String::new() };
        assert_eq!(Identity::of(&header).since(&a), [none]);
    }
}
