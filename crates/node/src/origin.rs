// SPDX-License-Identifier: Apache-2.0
/*!
Reads values for other projects' labels from a rank's environment, because no recording contains
them.

Only a few variables are read, as they were when the process started. The module checks that the
environment belongs to the rank: another process, or one of another container, may have the same
process id.
*/

use ncclscope_control::launcher::local_rank;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Facts about a process from its environment; unknown ones are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// `SLURM_JOB_ID`.
    pub(crate) slurm_job_id: String,
    /// Local rank as set by the launcher.
    pub(crate) local_rank: String,
    /// `GPU` and its index, if the process sees only one.
    pub(crate) gpu: String,
    /// `GPU` and its UUID, if the process sees only one and it is named by UUID.
    pub(crate) gpu_uuid: String,
}

impl Origin {
    /// The facts of process `pid`, if it has the file `recording` open and its environment is
    /// readable.
    pub(crate) fn of(pid: u32, recording: &Path) -> Origin {
        let process = Path::new("/proc").join(pid.to_string());
        if !has_open(&process, recording) {
            return Origin::default();
        }
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        Origin::parse(&String::from_utf8_lossy(&environment))
    }

    /// Parses `name=value` entries that end with a zero byte.
    fn parse(environment: &str) -> Origin {
        let variable = |name: &str| {
            let mut pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
            pairs.find(|(known, _)| *known == name).map(|(_, value)| value.trim())
        };
        let local_rank = local_rank(|name| variable(name).map(str::to_owned));
        let devices = variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let is_index = !devices.is_empty() && devices.bytes().all(|byte| byte.is_ascii_digit());
        let is_uuid = devices.starts_with("GPU-") && !devices.contains(',');
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        Origin {
            slurm_job_id: text(variable("SLURM_JOB_ID")),
            local_rank: local_rank.map_or_else(String::new, |rank| rank.to_string()),
            gpu: if is_index { format!("GPU{devices}") } else { String::new() },
            gpu_uuid: text(is_uuid.then_some(devices)),
        }
    }
}

/// True if a descriptor of the process (its directory in /proc) leads to `file`.
fn has_open(process: &Path, file: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let Ok(wanted) = std::fs::metadata(file).map(identity) else { return false };
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut leads_to = descriptors.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    leads_to.any(|metadata| identity(metadata) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[&str]) -> [String; 4] {
        let of = Origin::parse(&variables.join("\0"));
        [of.slurm_job_id, of.local_rank, of.gpu, of.gpu_uuid]
    }

    #[test]
    fn what_the_environment_tells_for_certain_is_known() {
        assert_eq!(parse(&[]), ["", "", "", ""]);
        let variables = ["A=B", "SLURM_JOB_ID=42", "SLURM_LOCALID=1", "CUDA_VISIBLE_DEVICES=3", ""];
        assert_eq!(parse(&variables), ["42", "1", "GPU3", ""]);
        assert_eq!(parse(&["CUDA_VISIBLE_DEVICES=GPU-1f2e"]), ["", "", "", "GPU-1f2e"]);
        for several in ["0,1", "GPU-1,GPU-2", "", "MIG-1", "all"] {
            assert_eq!(parse(&[&format!("CUDA_VISIBLE_DEVICES={several}")]), [""; 4], "{several}");
        }
        assert_eq!(parse(&["SLURM_LOCALID=1", "LOCAL_RANK=0"])[1], "0", "who starts last is right");
        // For ranks of mpirun, Slurm's variables describe mpirun's daemon.
        let mpirun = ["SLURM_LOCALID=0", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_LOCAL_RANK=1"];
        assert_eq!(parse(&mpirun)[1], "1");
    }

    #[test]
    fn a_process_is_known_by_what_it_has_open() {
        let place = tempfile::tempdir().unwrap();
        let (ours, another) = (place.path().join("ours"), place.path().join("another"));
        let kept = std::fs::File::create(&ours).unwrap();
        drop(std::fs::File::create(&another).unwrap());
        let this = Path::new("/proc/self");
        assert!(has_open(this, &ours));
        assert!(!has_open(this, &another) && !has_open(this, &place.path().join("none")));
        assert_eq!(Origin::of(std::process::id(), &another), Origin::default());
        drop(kept);
        assert!(!has_open(this, &ours));
        assert!(!has_open(Path::new("/proc/0"), &another));
    }
}
