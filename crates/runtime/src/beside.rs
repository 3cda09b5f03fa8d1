// SPDX-License-Identifier: Apache-2.0
/*!
Libraries in this process that can communicate without NCCL.

NCCL's events do not contain their traffic, so recordings and metrics name these libraries. Only the
names of mapped files are checked, so it is unknown whether the libraries are used. The drain thread
checks a few times in a process's life, since libraries are loaded when they are first needed.
*/

use std::fs;
use std::time::Duration;

/// Parts of library paths, and the names reported for them.
const LIBRARIES: &[(&str, &str)] = &[
    ("/libnvshmem", "nvshmem"),
    ("/deep_ep", "deep_ep"),
    ("/libmscclpp", "mscclpp"),
    ("/vllm/_C", "vllm"),
    ("/sgl_kernel/", "sglang"),
    ("/libtensorrt_llm", "tensorrt_llm"),
];

/// When the drain thread looks for the libraries, counted from its start.
const LOOKS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(60), Duration::from_secs(600)];

/// The time of the next look.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    age: Duration,
    done: usize,
}

impl Looks {
    /// `passed` is the time since the previous call. Returns the libraries if a look was due, else
    /// `None`.
    pub(crate) fn after(&mut self, passed: Duration) -> Option<Vec<&'static str>> {
        self.age += passed;
        let due = LOOKS.get(self.done)?;
        if self.age < *due {
            return None;
        }
        self.done += 1;
        Some(named(&fs::read_to_string("/proc/self/maps").unwrap_or_default()))
    }
}

/// The libraries among mapped files (`/proc/self/maps`), each once.
fn named(maps: &str) -> Vec<&'static str> {
    let is_mapped = |part: &str| maps.lines().any(|line| line.contains(part));
    LIBRARIES.iter().filter(|(part, _)| is_mapped(part)).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_the_names_of_their_files() {
        let maps = "7f1 r-xp 00000000 08:01 1 /usr/lib/libnvshmem_host.so.3\n\
                    7f2 r--p 00000000 08:01 1 /usr/lib/libnvshmem_host.so.3\n\
                    7f3 r-xp 00000000 08:01 2 /v/site-packages/vllm/_C.abi3.so\n\
                    7f4 r-xp 00000000 08:01 3 /usr/lib/libnccl.so.2\n";
        assert_eq!(named(maps), ["nvshmem", "vllm"]);
        assert_eq!(named(""), [""; 0]);
    }

    #[test]
    fn a_process_is_looked_at_three_times() {
        let mut looks = Looks::default();
        let times = (0..3_600).filter(|_| looks.after(Duration::from_secs(1)).is_some());
        assert_eq!(times.count(), LOOKS.len());
    }
}
