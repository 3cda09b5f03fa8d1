// SPDX-License-Identifier: Apache-2.0
/*!
The identity of this process, from launchers, the kernel, NCCL and the CUDA driver.

Only the variables that are named here, and NCCL's own, are read from the environment. Collection
starts on a thread of ours at the first communicator; `init` adds what NCCL passes later.
*/

use crate::caller;
use crate::config::Config;
use crate::library::Release;
use crate::sys::cuda::Device;
use ncclscope_control::launcher::{JobPosition, mpi_launch, slurm_step};
use ncclscope_control::table;
use ncclscope_control::value::CudaEvents;
use ncclscope_trace::{Comm, Definition, Identity, Vendor};
use std::ffi::OsString;
use std::fs;
use std::io::Read;

/// Maximum bytes kept of a job's name.
const JOB_NAME_BYTES: usize = 128;
/// Maximum bytes kept of the command line.
const COMMAND_BYTES: u64 = 1 << 10;
/// Bytes read of the kernel's list of processors: the first one is enough.
const CPU_BYTES: u64 = 4 << 10;
/// How the names of network plugins begin, with NCCL and with RCCL.
const NET_PLUGINS: [&str; 2] = ["libnccl-net", "librccl-net"];
/// Maximum number of NCCL's variables that are kept; `VARIABLE_BYTES` is kept of each value.
const VARIABLES: usize = 128;
const VARIABLE_BYTES: usize = 256;
/// NCCL variables that are not kept, because they differ from launch to launch or may hold
/// credentials, so that no comparison of two runs needs them. NCCL does not read `NCCL_VERSION`:
/// NVIDIA's images set it to the package they were built with, which need not be the NCCL that
/// runs.
const LEFT_OUT: [&str; 5] =
    ["NCCL_COMM_ID", "NCCL_DEBUG_FILE", "NCCL_PROFILER_OTEL_", "NCCL_INSPECTOR_", "NCCL_VERSION"];
/// Number of live communicators (the oldest) that are searched for another rank of this process.
const OLDEST: usize = 64;

/// Returns a variable's value; `None` if it is unset or empty.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

#[derive(Debug, Clone)]
pub(crate) struct IdentityOptions {
    /// `NCCLSCOPE_JOB`.
    pub(crate) job: Option<String>,
    /// `NCCLSCOPE_COMMAND`.
    pub(crate) command: bool,
    /// `NCCLSCOPE_CUDA_EVENTS`.
    pub(crate) cuda_events: CudaEvents,
}

impl IdentityOptions {
    pub(crate) fn of(config: &Config) -> IdentityOptions {
        IdentityOptions {
            job: config.get(&table::JOB),
            command: config.get(&table::COMMAND),
            cuda_events: config.get(&table::CUDA_EVENTS),
        }
    }
}

/// The identity of this process from the environment, the kernel and what the caller knows: host
/// name, process id, nonce, and NCCL's release.
pub(crate) fn of_process(
    options: &IdentityOptions,
    (host, pid): (&str, u32),
    nonce: u32,
    nccl: Release,
) -> Identity {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let stat = fs::read_to_string("/proc/self/stat");
    Identity {
        host: Some(host.to_owned()),
        pid: Some(pid),
        nonce: Some(format!("{nonce:08x}")),
        nccl: nccl.vendor.release(nccl.version),
        boot_id: boot.ok().map(|text| text.trim().to_owned()),
        start_ticks: stat.ok().and_then(|stat| start_ticks(&stat)),
        net_plugin: net_plugin(&get, || fs::read_to_string("/proc/self/maps").ok()),
        cpu: start_of("/proc/cpuinfo", CPU_BYTES)
            .and_then(|text| cpu(&String::from_utf8_lossy(&text))),
        command: options.command.then(command).flatten(),
        cuda_events: Some(options.cuda_events.name().to_owned()),
        other: nccl_variables(std::env::vars_os()),
        ..of_environment(options.job.as_deref(), &get)
    }
}

fn of_environment(job: Option<&str>, get: Get<'_>) -> Identity {
    let place = JobPosition::of(get);
    Identity {
        job: job_id(job, get),
        job_name: job_name(get),
        run: run(get),
        rank: place.rank,
        local_rank: place.local_rank,
        node_rank: place.node_rank,
        world_size: place.world_size,
        slurm_job: get("SLURM_JOB_ID"),
        k8s_pod: get("K8S_POD_NAME").or_else(|| get("POD_NAME")),
        k8s_node: get("K8S_NODE_NAME").or_else(|| get("NODE_NAME")),
        k8s_namespace: get("K8S_NAMESPACE").or_else(|| get("POD_NAMESPACE")),
        ..Identity::default()
    }
}

/// The variables that NCCL reads, sorted by name.
fn nccl_variables(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let is_kept = |(name, value): &(String, String)| {
        name.starts_with("NCCL_")
            && name.len() <= usize::from(u8::MAX)
            && !value.is_empty()
            && !LEFT_OUT.iter().any(|begin| name.starts_with(begin))
    };
    let mut kept: Vec<(String, String)> = all.filter_map(text).filter(is_kept).collect();
    kept.sort_unstable();
    kept.truncate(VARIABLES);
    kept.iter_mut().for_each(|(_, value)| cut(value, VARIABLE_BYTES));
    kept
}

/// Cuts a text to at most this many bytes, at a character boundary.
fn cut(text: &mut String, bytes: usize) {
    let most = text.len().min(bytes);
    text.truncate((0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0));
}

/// The job's id: that of `NCCLSCOPE_JOB` (`said`), else that of the launcher.
pub(crate) fn job_id(said: Option<&str>, get: Get<'_>) -> Option<String> {
    let of_kubernetes = || {
        let name = kubernetes_job(get)?;
        Some(get("JOB_UID").map_or_else(|| name.clone(), |uid| format!("{name}/{uid}")))
    };
    said.map(str::to_owned)
        .or_else(|| slurm(get))
        .or_else(|| torchelastic(get))
        .or_else(of_kubernetes)
}

/// Slurm's job, with the step if that started the ranks.
fn slurm(get: Get<'_>) -> Option<String> {
    step(get).or_else(|| get("SLURM_JOB_ID"))
}

/// The Slurm step whose tasks are the ranks or start them.
fn step(get: Get<'_>) -> Option<String> {
    let (job, step) = (get("SLURM_JOB_ID")?, slurm_step(get)?);
    mpi_launch(get).is_none().then(|| format!("{job}.{step}"))
}

/// The name of the Kubernetes job; outside of Kubernetes the variable may mean anything.
fn kubernetes_job(get: Get<'_>) -> Option<String> {
    get("JOB_NAME").filter(|_| get("KUBERNETES_SERVICE_HOST").is_some())
}

/// torchrun's run id; `none` says that it has none.
fn torchelastic(get: Get<'_>) -> Option<String> {
    get("TORCHELASTIC_RUN_ID").filter(|id| id != "none")
}

/// The job's name. Bounded, because it is a label of every metric series.
fn job_name(get: Get<'_>) -> Option<String> {
    let mut name =
        get("SLURM_JOB_NAME").or_else(|| kubernetes_job(get)).or_else(|| torchelastic(get))?;
    cut(&mut name, JOB_NAME_BYTES);
    Some(name)
}

/// An id that the ranks of one launch share and no other launch has. The id of a batch job without
/// a step is not enough, because the job may launch several times.
fn run(get: Get<'_>) -> Option<String> {
    let with = |id: String, name: &str| match get(name) {
        Some(count) => format!("{id}#{count}"),
        None => id,
    };
    let step = step(get);
    // Slurm's own PMI only repeats the step.
    let mpi = mpi_launch(get).or_else(|| get("PMI_JOBID").filter(|id| step.as_ref() != Some(id)));
    let parts = [
        step.map(|id| with(id, "SLURM_RESTART_COUNT")),
        torchelastic(get).map(|id| with(id, "TORCHELASTIC_RESTART_COUNT")),
        mpi,
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Start time of a process in clock ticks after boot, from its `stat`. The second field, the name
/// in parentheses, may contain any character.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// The network plugin among the mapped files. NCCL initialises its networks before its profilers
/// (`src/init.cc`, `commAlloc`), so that it is mapped by now.
fn net_plugin(get: Get<'_>, maps: impl FnOnce() -> Option<String>) -> Option<String> {
    let own = ["ib", "socket"];
    if get("NCCL_NET").is_some_and(|name| own.contains(&name.to_ascii_lowercase().as_str())) {
        return None;
    }
    let named = get("NCCL_NET_PLUGIN").filter(|name| name != "none").unwrap_or_default();
    let named: Vec<&str> = named.split(',').filter_map(|name| name.rsplit('/').next()).collect();
    let is_it = |file: &str| {
        NET_PLUGINS.iter().any(|begin| file.starts_with(begin))
            || named.contains(&file) && file.contains(".so")
    };
    let maps = maps()?;
    let mut files = maps.lines().filter_map(|line| line.split_once('/')?.1.rsplit('/').next());
    files.find(|file| is_it(file)).map(str::to_owned)
}

/// The first `most` bytes of a file.
fn start_of(file: &str, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The first processor of `/proc/cpuinfo`: on x86 such as `AuthenticAMD 25/17 AMD EPYC 9454`, on
/// Arm such as `0x41 0xd4f`.
fn cpu(info: &str) -> Option<String> {
    let value = |key: &str| {
        let mut lines = info.lines().take_while(|line| !line.trim().is_empty());
        lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim_end() == key).then(|| value.trim())
        })
    };
    let number = [value("cpu family"), value("model")].into_iter().flatten().collect::<Vec<_>>();
    let arm = ["CPU implementer", "CPU part"].map(value);
    let parts = [value("vendor_id"), Some(&*number.join("/")), value("model name")];
    let parts = parts.into_iter().chain(arm).flatten().filter(|part| !part.is_empty());
    let text = parts.collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

fn command() -> Option<String> {
    let bytes = start_of("/proc/self/cmdline", COMMAND_BYTES)?;
    let words: Vec<_> = bytes.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    let text = words.join(" ");
    Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
}

/// The part of this process's identity that is known so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    identity: Identity,
    has_several_devices: bool,
}

impl Known {
    /// Sets what is known at the beginning.
    pub(crate) fn begin(&mut self, identity: Identity) -> Vec<Definition> {
        self.change(|known| *known = identity)
    }

    pub(crate) fn definitions(&self) -> Vec<Definition> {
        self.identity.since(&Identity::default())
    }

    /// A communicator is added to `others`, which are sorted from the oldest.
    pub(crate) fn comm<'a>(
        &mut self,
        comm: &Comm,
        others: impl Iterator<Item = &'a Comm>,
    ) -> Vec<Definition> {
        // Only the oldest ones are searched: a process with several ranks creates them first.
        let is_other = |it: &Comm| it.hash == comm.hash && it.rank != comm.rank;
        let has_several =
            self.identity.rank.is_some() && comm.hash != 0 && others.take(OLDEST).any(is_other);
        self.change(|known| {
            if has_several {
                (known.rank, known.local_rank) = (None, None);
            }
            known.nccl = known.nccl.take().or_else(|| comm.release());
            if comm.vendor == Vendor::Amd {
                known.timer_ns = Some(caller::timer_ns());
            }
            known.profiler_api.get_or_insert(comm.api_version);
        })
    }

    /// Notes the device of a communicator.
    pub(crate) fn device(&mut self, device: &Device) -> Vec<Definition> {
        let index = u32::try_from(device.index).ok();
        self.has_several_devices |= self.identity.device.is_some() && self.identity.device != index;
        let only = Some(device).filter(|_| !self.has_several_devices);
        self.change(|known| {
            known.device = only.and(index);
            known.device_pci = only.and_then(|only| only.pci.clone());
            known.device_uuid = only.and_then(|only| only.uuid.clone());
            known.device_name = only.and_then(|only| only.name.clone());
            known.cuda = known.cuda.take().or_else(|| device.driver.map(cuda_version));
        })
    }

    /// Notes the status with which the process exits.
    pub(crate) fn exits(&mut self, status: u8) -> Vec<Definition> {
        self.change(|known| known.exit_status = Some(status.into()))
    }

    /// Notes libraries of the process that can communicate without NCCL.
    pub(crate) fn beside(&mut self, libraries: &[&str]) -> Vec<Definition> {
        let text = (!libraries.is_empty()).then(|| libraries.join(","));
        self.change(|known| known.beside = text)
    }

    fn change(&mut self, change: impl FnOnce(&mut Identity)) -> Vec<Definition> {
        let before = self.identity.clone();
        change(&mut self.identity);
        self.identity.since(&before)
    }
}

/// CUDA's version from its code: 12080 is 12.8.
fn cuda_version(code: i32) -> String {
    format!("{}.{}", code / 1_000, code % 1_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Identity {
        let get = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        of_environment(None, &get)
    }

    #[test]
    fn one_launcher_tells_the_whole_place() {
        // srun starts torchrun, which starts the rank.
        let found = of(&[
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NTASKS", "2"),
            ("RANK", "11"),
            ("LOCAL_RANK", "3"),
            ("GROUP_RANK", "1"),
            ("WORLD_SIZE", "16"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ]);
        let place = [found.rank, found.local_rank, found.node_rank, found.world_size];
        assert_eq!(place, [Some(11), Some(3), Some(1), Some(16)]);
        assert_eq!((found.job.as_deref(), found.run.as_deref()), (Some("4711.0"), Some("4711.0")));
        let found = of(&[("OMPI_COMM_WORLD_RANK", "2"), ("SLURM_LOCALID", "9"), ("RANK", "x")]);
        assert_eq!((found.rank, found.local_rank), (Some(2), None));
        assert_eq!(of(&[]), Identity::default());
    }

    #[test]
    fn a_run_is_named_only_by_what_one_launch_has() {
        let run = |variables: &[(&str, &str)]| of(variables).run;
        assert_eq!(run(&[("SLURM_JOB_ID", "7")]), None, "a batch script may launch many");
        let torch = [("TORCHELASTIC_RUN_ID", "a1"), ("TORCHELASTIC_RESTART_COUNT", "2")];
        assert_eq!(run(&torch).as_deref(), Some("a1#2"));
        let mpi = [("SLURM_JOB_ID", "7"), ("PMIX_NAMESPACE", "prterun-n1-99@1")];
        assert_eq!(run(&mpi).as_deref(), Some("prterun-n1-99@1"));
        let pmi2 = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "1"), ("PMI_JOBID", "7.1")];
        assert_eq!(run(&pmi2).as_deref(), Some("7.1"));
        let pmix = ("PMIX_NAMESPACE", "slurm.pmix.7.1");
        assert_eq!(run(&[&pmi2[..2], &[pmix]].concat()).as_deref(), Some("7.1"));
    }

    /// mpirun of Open MPI 4.1 in a batch job of two nodes: it starts the ranks of its own node
    /// itself, and those of the other node by a daemon that is a step of Slurm.
    #[test]
    fn ranks_of_one_mpirun_are_of_one_job_and_run() {
        let first = [
            ("SLURM_JOB_ID", "6"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            ("PMIX_NAMESPACE", "920190977"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        let other = [
            ("SLURM_JOB_ID", "6"),
            ("SLURM_STEP_ID", "5"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("PMIX_NAMESPACE", "920190977"),
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        let [first, other] = [of(&first), of(&other)];
        assert_eq!((first.job.as_deref(), first.run.as_deref()), (Some("6"), Some("920190977")));
        assert_eq!((&other.job, &other.run), (&first.job, &first.run));
        assert_eq!((first.rank, other.rank), (Some(1), Some(2)));
    }

    #[test]
    fn a_network_plugin_is_what_is_mapped_and_used() {
        let of = |variables: &[(&str, &str)], file: &str| {
            let get = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let maps =
                "7f00-7f10 r-xp 00000000 08:01 42   /usr/lib/libnccl.so.2\n7f20-7f30 rw-p 0\n";
            net_plugin(&get, || Some(format!("{maps}7f40-7f50 r--p 00000000 08:01 43   {file}\n")))
        };
        let ofi = "/opt/aws/lib/libnccl-net-ofi.so";
        assert_eq!(of(&[], ofi).as_deref(), Some("libnccl-net-ofi.so"));
        assert_eq!(
            of(&[("NCCL_NET", "AWS Libfabric")], ofi).as_deref(),
            Some("libnccl-net-ofi.so")
        );
        assert_eq!(of(&[("NCCL_NET", "Socket")], ofi), None);
        assert_eq!(of(&[], "/usr/lib/libmlx5.so.1"), None);
        let own = [("NCCL_NET_PLUGIN", "/opt/libfast.so")];
        assert_eq!(of(&own, "/opt/libfast.so").as_deref(), Some("libfast.so"));
        assert_eq!(of(&[("NCCL_NET_PLUGIN", "none")], "/usr/lib/none"), None);
    }

    #[test]
    fn a_job_of_kubernetes_is_taken_only_there() {
        let mut variables = vec![("JOB_NAME", "train"), ("JOB_UID", "c0de")];
        assert_eq!(of(&variables).job, None, "other systems use the name, too");
        variables.push(("KUBERNETES_SERVICE_HOST", "10.0.0.1"));
        assert_eq!(of(&variables).job.as_deref(), Some("train/c0de"));
    }

    #[test]
    fn a_job_has_the_name_that_its_launcher_gave_it() {
        let name = |variables: &[(&str, &str)]| of(variables).job_name;
        let torch = ("TORCHELASTIC_RUN_ID", "a1");
        assert_eq!(name(&[]), None);
        assert_eq!(name(&[("TORCHELASTIC_RUN_ID", "none")]), None);
        assert_eq!(name(&[torch]).as_deref(), Some("a1"));
        let slurm = ("SLURM_JOB_NAME", "train");
        assert_eq!(name(&[torch, slurm]).as_deref(), Some("train"), "the outermost has the name");
        assert_eq!(name(&[("JOB_NAME", "pod")]), None, "other systems use the name, too");
        let kubernetes = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        assert_eq!(name(&[("JOB_NAME", "pod"), kubernetes]).as_deref(), Some("pod"));
        let long = format!("a{}", "\u{e9}".repeat(200));
        let cut = name(&[("SLURM_JOB_NAME", &long)]).expect("a name");
        assert_eq!((cut.len(), long.starts_with(&cut)), (127, true), "whole characters");
    }

    #[test]
    fn variables_of_nccl_are_kept_but_no_credentials() {
        let long = "\u{e9}".repeat(200);
        let all = [
            ("PATH", "/bin"),
            ("NCCL_PROTO", "LL128"),
            ("NCCL_ALGO", "Tree"),
            ("NCCL_COMM_ID", "10.0.0.1:4000"),
            ("NCCL_PROFILER_OTEL_TELEMETRY_ENDPOINT", "https://me:secret@collector"),
            ("NCCL_NET", ""),
            ("NCCL_VERSION", "2.28.3-1"),
            ("NCCL_TOPO_FILE", &long),
        ];
        let all = all.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let found = nccl_variables(all.into_iter());
        let of = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let cut = ("NCCL_TOPO_FILE", &long[..VARIABLE_BYTES]);
        assert_eq!(found, [("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"), cut].map(of));
        let many = (0..500).map(|at| (format!("NCCL_{at:03}").into(), "1".into()));
        assert_eq!(nccl_variables(many).len(), VARIABLES);
    }

    #[test]
    fn this_process_is_found() {
        let job = Some("mine".to_owned());
        let options = IdentityOptions { job, command: false, cuda_events: CudaEvents::Auto };
        let found = of_process(
            &options,
            ("n1", 7),
            0xab,
            Release { version: 23_007, ..Release::default() },
        );
        assert_eq!((found.host.as_deref(), found.pid), (Some("n1"), Some(7)));
        let texts = [found.nonce.as_deref(), found.nccl.as_deref()];
        assert_eq!(texts, [Some("000000ab"), Some("2.30.7")]);
        assert_eq!((found.job.as_deref(), found.command), (Some("mine"), None));
        assert_eq!(found.cuda_events.as_deref(), Some("auto"));
        assert_eq!(found.boot_id.map(|id| id.len()), Some(36));
        assert!(found.start_ticks.is_some_and(|ticks| ticks > 0));
        let with = IdentityOptions { command: true, ..options };
        let text = of_process(&with, ("n1", 7), 1, Release::default()).command.expect("a command");
        assert!(!text.is_empty() && text.len() <= 3 << 10);
        assert_eq!(
            start_ticks("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99"),
            Some(99)
        );
    }

    #[test]
    fn a_process_with_several_ranks_has_no_rank_of_its_own() {
        let mut known = Known::default();
        known.begin(Identity { rank: Some(0), world_size: Some(2), ..Identity::default() });
        let comm = |rank| Comm { hash: 9, rank, nccl_version: 22_809, ..Comm::default() };
        known.comm(&comm(0), [].iter());
        let told = known.comm(&comm(1), [comm(0)].iter());
        assert_eq!(told, [Definition::Identity { key: "rank".into(), value: String::new() }]);
        let Identity { rank, world_size, nccl, .. } = known.identity;
        assert_eq!((rank, world_size, nccl.as_deref()), (None, Some(2), Some("2.28.9")));
    }

    #[test]
    fn the_first_processor_is_the_model() {
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\
                   model name\t: AMD EPYC 9454\nstepping\t: 1\n\nprocessor\t: 1\nCPU part\t: 0x1\n";
        assert_eq!(cpu(x86).as_deref(), Some("AuthenticAMD 25/17 AMD EPYC 9454"));
        let arm = "processor\t: 0\nBogoMIPS\t: 2.0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
        assert_eq!(cpu(arm).as_deref(), Some("0x41 0xd4f"));
        assert_eq!(cpu("processor\t: 0\n"), None);
    }

    #[test]
    fn a_device_is_told_only_if_it_is_the_only_one() {
        let name = || Some("H100".to_owned());
        let device =
            |index| Device { index, name: name(), pci: None, uuid: None, driver: Some(12_080) };
        let mut known = Known::default();
        assert_eq!(known.device(&device(0)).len(), 3);
        assert_eq!(known.device(&device(0)), []);
        assert_eq!(known.identity.cuda.as_deref(), Some("12.8"));
        for index in [1, 0, 1] {
            known.device(&device(index));
            let Identity { device, device_name, .. } = &known.identity;
            assert_eq!((device, device_name), (&None, &None));
        }
    }
}
