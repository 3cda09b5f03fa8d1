// SPDX-License-Identifier: Apache-2.0
/*!
The threads of a process that are in a function that creates or ends a communicator.

A thread that waits in the kernel shows its stack pointer (`/proc/PID/task/TID/syscall`); what lies
above it are the frames of the calls that have not returned. If the first return address into a
library other than CUDA's and the C library's is into NCCL's, the thread is in NCCL, and the first
one into an exported function of NCCL is that of the call. (Bytes of a frame that were never written
may hold an old return address: in NCCL's frames some lead into the application, so that these do
not end the search; those in frames of an application that has not called NCCL do not begin it.)
*/

use crate::maps::{Mapping, Maps};
use crate::symbols::{Function, functions};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The functions, without the `p` of their other names (`pncclCommSplit`).
const FUNCTIONS: [&str; 12] = [
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommInitRankScalable",
    "ncclCommInitAll",
    "ncclCommSplit",
    "ncclCommShrink",
    "ncclCommGrow",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclCommRevoke",
    "ncclCommGetUniqueId",
];

/// What `syscall` says of a thread that runs or is ready to, whose stack pointer is not known. NCCL
/// waits in short sleeps, so that such a thread is looked at again: so often, after such a time.
const RUNNING: &str = "running";
const ROUNDS: usize = 200;
const ROUND: Duration = Duration::from_millis(2);

/// Maximum number of threads that are looked at, and of bytes of a stack.
const THREADS: usize = 2048;
const STACK: usize = 64 << 10;

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread that made it.
    pub tid: u32,
    /// NCCL's function, such as `ncclCommInitRankConfig`.
    pub function: &'static str,
}

/// The calls of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// By thread.
    pub calls: Vec<Call>,
    /// Some thread ran, or waited for a processor, whenever it was looked at: whether it is in such
    /// a function is not known.
    pub is_partial: bool,
}

/// The calls of a process, whose directory in `/proc` this is. Empty if it is of another user, or
/// if the system does not show stacks.
#[must_use]
pub fn calls(process: &Path) -> Calls {
    let maps = Maps::read(process);
    let code = Code::of(&maps);
    let Ok(memory) = File::open(process.join("mem")) else { return Calls::default() };
    if code.functions.is_empty() {
        return Calls::default();
    }
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let threads = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let mut all = Vec::new();
    let mut left: Vec<u32> = threads.take(THREADS).collect();
    for _ in 0..ROUNDS {
        left.retain(|&tid| {
            let path = process.join("task").join(tid.to_string()).join("syscall");
            let text = fs::read_to_string(path).unwrap_or_default();
            let stack = stack_pointer(&text).and_then(|sp| stack(&memory, sp));
            let function = stack.and_then(|stack| code.call_on(&stack));
            all.extend(function.map(|function| Call { tid, function }));
            text.starts_with(RUNNING)
        });
        if left.is_empty() {
            break;
        }
        std::thread::sleep(ROUND);
    }
    all.sort_by_key(|call: &Call| call.tid);
    Calls { calls: all, is_partial: !left.is_empty() }
}

/// The stack pointer in the text of `syscall`: `running`, or `NUMBER ARGUMENTS… SP PC`.
fn stack_pointer(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [.., sp, _] = words[..] else { return None };
    u64::from_str_radix(sp.strip_prefix("0x")?, 16).ok()
}

/// The words of a stack from its pointer on.
fn stack(memory: &File, from: u64) -> Option<Vec<u64>> {
    let mut bytes = vec![0; STACK];
    // A read that leaves the stack's mapping is short.
    let read = memory.read_at(&mut bytes, from).ok()?;
    let words = bytes.get(..read)?.chunks_exact(8);
    Some(words.filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?))).collect())
}

/// The code of a process.
struct Code<'m> {
    maps: &'m Maps,
    /// The functions of each mapped file of NCCL.
    functions: BTreeMap<PathBuf, Vec<Function>>,
}

impl<'m> Code<'m> {
    fn of(maps: &'m Maps) -> Code<'m> {
        let files = maps.iter().map(|mapping| &mapping.file).filter(|file| is_nccl(file));
        let wanted = |name: &str| name.starts_with("nccl") || name.starts_with("pnccl");
        let of_file = |file: &PathBuf| (file.clone(), functions(file, wanted));
        let all: BTreeMap<_, _> = files.map(of_file).filter(|(_, all)| !all.is_empty()).collect();
        Code { maps, functions: all }
    }

    /// NCCL's function on a stack, if a call of it is in progress.
    fn call_on(&self, stack: &[u64]) -> Option<&'static str> {
        let mut code = stack.iter().filter_map(|&word| Some((word, self.maps.at(word)?)));
        let first = code.find(|(_, mapping)| !is_below(mapping))?;
        let function = |(word, mapping): (u64, &Mapping)| {
            let place = word - mapping.range.start + mapping.offset;
            let functions = self.functions.get(&mapping.file)?;
            functions.iter().find(|(_, range)| range.contains(&place))
        };
        self.functions.get(&first.1.file)?;
        let (name, _) = std::iter::once(first).chain(code).find_map(function)?;
        bare(name)
    }
}

/// True for code that NCCL itself calls: the C library, CUDA's, HIP's, and the kernel's.
fn is_below(mapping: &Mapping) -> bool {
    let name = mapping.file.file_name().unwrap_or_default().to_string_lossy();
    let system = ["libc.", "libc-", "libpthread", "ld-linux", "libstdc++", "libgcc_s", "[v"];
    let of_nccl = [
        "libnccl_profiler",
        "libnccl-",
        "librccl-",
        "libcuda",
        "libamdhip64",
        "libhsa-runtime64",
        "libcpu_cuda",
        "libnvidia",
        "libibverbs",
        "libmlx5",
    ];
    system.iter().chain(&of_nccl).any(|part| name.starts_with(part))
}

/// True if the file may have NCCL's functions.
fn is_nccl(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    // PyTorch may contain NCCL.
    ["libnccl.so", "librccl.so", "libtorch_cuda", "libtorch_hip"]
        .iter()
        .any(|it| name.starts_with(it))
}

/// The function of an exported name.
fn bare(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix('p').unwrap_or(name);
    FUNCTIONS.into_iter().find(|&function| function == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_pointer_is_the_last_but_one_word() {
        let text = "7 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc10 0x7f33\n";
        assert_eq!(stack_pointer(text), Some(0x7f_fc10));
        assert_eq!(stack_pointer("-1 0x7ffc10 0x7f33"), Some(0x7f_fc10));
        assert_eq!(stack_pointer("running\n"), None);
        assert_eq!(stack_pointer(""), None);
    }

    #[test]
    fn names_have_one_form() {
        assert_eq!(bare("pncclCommSplit"), Some("ncclCommSplit"));
        assert_eq!(bare("ncclCommSplit"), Some("ncclCommSplit"));
        assert_eq!(bare("ncclAllReduce"), None);
    }

    /// NCCL at 1000 with a split at 1800 and an AllReduce at 1900, CUDA at 2000, the application
    /// at 3000.
    #[test]
    fn the_call_in_progress_is_that_of_the_first_frames() {
        let maps = Maps::parse(
            "1000-1fff r-xp 00000000 0:0 1 /l/libnccl.so.2\n\
             2000-2fff r-xp 00000000 0:0 2 /l/libcudart.so.12\n\
             3000-3fff r-xp 00000000 0:0 3 /l/train\n",
        );
        let all = vec![
            ("pncclCommSplit".to_owned(), 0x800..0x880),
            ("ncclAllReduce".to_owned(), 0x900..0x980),
        ];
        let functions = [(PathBuf::from("/l/libnccl.so.2"), all)].into();
        let code = Code { maps: &maps, functions };
        let split = [0x1, 0x2010, 0x1010, 0x3010, 0x1810, 0x3020];
        assert_eq!(code.call_on(&split), Some("ncclCommSplit"), "0x3010 is an old address");
        assert_eq!(code.call_on(&[0x2010, 0x1010, 0x1910, 0x3020, 0x1810]), None, "AllReduce");
        assert_eq!(code.call_on(&[0x2010, 0x3010, 0x1010, 0x1810]), None, "the application");
        assert_eq!(code.call_on(&[0x2010, 0x1010]), None, "a thread of NCCL's own");
        assert_eq!(code.call_on(&[]), None);
    }

    /// A process without NCCL, and one that is not there.
    #[test]
    fn without_nccl_there_is_no_call() {
        assert_eq!(calls(Path::new("/proc/self")), Calls::default());
        assert_eq!(calls(Path::new("/proc/nothing")), Calls::default());
    }
}
