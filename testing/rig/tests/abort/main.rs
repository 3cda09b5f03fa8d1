// SPDX-License-Identifier: Apache-2.0
//! Compiles and runs the C recipe of `docs/hang.md`: a job with a stuck kernel exits.

use rig::{build, wheel};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds after which an operation is stuck.
const LIMIT: u64 = 2;
/// Time for a rank to exit after that, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The part of `nccl.h` that the recipe needs.
const HEADER: &str = "\
    #pragma once\n\
    typedef struct ncclComm* ncclComm_t;\n\
    int ncclCommAbort(ncclComm_t comm);\n";

/// The page's block of C that includes `nccl.h`.
fn recipe() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hang.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut blocks = page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains("<nccl.h>")).expect("a recipe").to_owned()
}

fn compile(folder: &Path) -> PathBuf {
    std::fs::write(folder.join("nccl.h"), HEADER).expect("a file");
    std::fs::write(folder.join("recipe.h"), recipe()).expect("a file");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abort/rank.c");
    let program = folder.join("rank");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]).arg(folder);
    cc.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"));
    cc.arg("-o").arg(&program).arg(source).arg("-ldl");
    let output = cc.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// The exit code of a rank, and how many seconds its last operation was in flight.
fn ends_in_time(mut rank: Child, start: Instant) -> Option<(i32, u64)> {
    loop {
        if rank.try_wait().expect("a child").is_some() {
            let output = rank.wait_with_output().expect("it ended");
            let said = String::from_utf8_lossy(&output.stdout);
            return Some((output.status.code()?, said.trim().parse().ok()?));
        }
        if start.elapsed() > PATIENCE {
            rank.kill().expect("it runs");
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stuck_job_is_ended_by_the_recipe() {
    let cuda = &build::artifacts().expect("the stand-in builds").cuda;
    let plugin = build::plugin();
    for version in ["2.27.3", "2.28.9", "2.32.3"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().expect("a folder");
        let program = compile(folder.path());
        let named = folder.path().join("libnccl-profiler-ncclscope.so");
        std::os::unix::fs::symlink(&plugin, &named).expect("a link");
        let start = Instant::now();
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let mut command = Command::new(&program);
                command.arg(cuda).arg(&nccl).arg(rank.to_string()).arg(folder.path().join("id"));
                let common = [
                    ("NCCL_SOCKET_IFNAME", "lo"),
                    ("NCCL_NET", "Socket"),
                    ("NCCL_IB_DISABLE", "1"),
                    ("NCCL_CUMEM_ENABLE", "0"),
                    ("NCCL_CUMEM_HOST_ENABLE", "0"),
                    ("NCCL_PROFILER_PLUGIN", "libnccl-profiler-ncclscope.so"),
                    ("CPU_CUDA_FAULTS", "stuck:rank=1,launch=2,step=3"),
                ];
                command.envs(common).env("NCCL_HOSTID", format!("host{rank}"));
                command.env("LD_LIBRARY_PATH", folder.path()).env("NCCLSCOPE_DIR", folder.path());
                command.env("NCCLSCOPE_HANG_SEC", LIMIT.to_string());
                command.stdout(Stdio::piped()).spawn().expect("it starts")
            })
            .collect();
        for rank in ranks {
            let (code, seconds) = ends_in_time(rank, start).expect("it ends");
            assert_eq!(code, 7, "{version}");
            // The check runs once a second.
            assert!((LIMIT..LIMIT + 6).contains(&seconds), "{version}: after {seconds} s");
        }
    }
}
