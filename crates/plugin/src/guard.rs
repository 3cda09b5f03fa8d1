// SPDX-License-Identifier: Apache-2.0
//! The guard around every entry: no panic reaches NCCL.

use ncclscope_abi::NcclResult;
use ncclscope_runtime::Runtime;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`. If it panics, recording ends for this process, and NCCL gets success: an error
/// would make it unload the plugin while other communicators use it.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce()) -> NcclResult {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        Runtime::get().contain();
    }
    NcclResult::SUCCESS
}

/// Like [`guard`], for code that may return `None` to leave the work to another function; also
/// returns `None` after a panic.
#[inline(always)]
pub(crate) fn attempt<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_panic| {
        Runtime::get().contain();
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_recorder::gate;
    use ncclscope_runtime::CommInfo;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Environment variable of the child process that panics; a process has only one runtime.
    const IS_CHILD: &str = "PANICS_IN_A_CALLBACK";

    /// Starts recording and panics in a callback.
    fn panic_in_a_callback() {
        let (hash, name) = (0xc0ffee, None);
        let info = CommInfo { hash, name, nodes: 1, ranks: 2, rank: 0, api_version: 6 };
        let _ = Runtime::get().attach(info, 0, None, None);
        assert!(gate::is_started());
        assert_eq!(guard(|| panic!("on purpose")), NcclResult::SUCCESS);
        assert!(gate::is_dead() && attempt(|| Some(1)) == Some(1));
        assert_eq!(attempt::<()>(|| panic!("on purpose")), None);
        // Waits until the parent has read the line, which may take long on a slow machine.
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(std::io::stdin().read_to_end(&mut Vec::new())));
        told.recv_timeout(Duration::from_secs(60)).expect("the line comes").unwrap();
    }

    #[test]
    fn a_panic_is_contained_and_ends_the_recording_with_a_line() {
        if std::env::var_os(IS_CHILD).is_some() {
            return panic_in_a_callback();
        }
        let run = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "guard::tests::a_panic_is_contained_and_ends_the_recording_with_a_line",
        ]);
        child.env(IS_CHILD, "1").env("NCCLSCOPE_DIR", run.path()).env("NCCLSCOPE_LANES", "off");
        child.env("NCCLSCOPE_CONTROL", "off").env("NCCLSCOPE_LOG", "stderr");
        child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut said = Vec::new();
        for line in lines {
            let is_last = line.starts_with("ncclscope: a defect of the plugin (a panic)");
            said.push(line);
            if is_last {
                drop(child.stdin.take());
            }
        }
        assert!(child.wait().unwrap().success(), "{said:#?}");
        let ours = said.iter().filter(|line| line.starts_with("ncclscope: "));
        assert_eq!(ours.count(), 1, "{said:#?}");
    }
}
