// SPDX-License-Identifier: Apache-2.0
//! The directory of recordings: it belongs to this user, may have any name, and is not moved.

use crate::common::{compile, operations, play, plugin};
use fake_nccl::namespaces;
use ncclscope_trace::Recording;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs a host with the default directory, in a private `/tmp` that the commands `before` prepare.
/// `None` if private mounts are not permitted.
fn in_own_tmp(before: &str, env: &[(&str, &str)]) -> Option<Output> {
    // The host and the plugin may lie below the old `/tmp`. The last output: each entry with its
    // mode, without following links.
    let script = format!(
        "mount -t tmpfs none /mnt && cp \"$1\" /mnt/host && cp \"$2\" /mnt/plugin.so && \
         mount -t tmpfs -o mode=1777 none /tmp && mkdir /tmp/other && {before} && \
         /mnt/host /mnt/plugin.so 10 && cd /tmp && find . -mindepth 1 -printf '%m %y %P\\n' | sort"
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    command.arg(compile("plain", &[])).arg(plugin());
    for name in ["NCCLSCOPE_DIR", "SLURM_TMPDIR", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"] {
        command.env_remove(name);
    }
    command.env("NCCLSCOPE_LOG", "stderr").env("USER", "ann").envs(env.iter().copied());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if namespaces::are_forbidden(&stderr) {
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

/// The lines of `find`, without process ids and nonces.
fn found(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| *line != "survived" && !line.ends_with(" other"));
    let cut = |line: &str| match line.split_once(".nscope") {
        Some((before, _)) => format!("{}/*.nscope", before.rsplit_once('/').unwrap().0),
        None => line.to_owned(),
    };
    lines.map(cut).collect()
}

#[test]
fn the_default_directory_is_its_users_alone() {
    // A job id chosen by the user, and torchrun without an id: control sockets are elsewhere.
    for (env, job) in [(("SLURM_JOB_ID", "0"), "0"), (("TORCHELASTIC_RUN_ID", "none"), "ann")] {
        let Some(output) = in_own_tmp("umask 0", &[env]) else { return };
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let below = [
            "700 d ncclscope-0".to_owned(),
            format!("600 f ncclscope-0/{job}/*.nscope"),
            format!("700 d ncclscope-0/{job}"),
        ];
        let mut expected = below.to_vec();
        expected.sort();
        assert_eq!(found(&output), expected);
    }
}

#[test]
fn what_another_user_may_have_put_there_is_not_followed() {
    for (before, why) in [
        ("ln -s /tmp/other /tmp/ncclscope-0", "it is a symbolic link"),
        ("mkdir -m 777 /tmp/ncclscope-0", "other users can write to it (mode 777)"),
        ("touch /tmp/ncclscope-0", "it is not a directory"),
    ] {
        let Some(output) = in_own_tmp(before, &[("NCCLSCOPE_CONTROL", "off")]) else { return };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let line = format!("ncclscope: /tmp/ncclscope-0: {why}; recording to /tmp/ncclscope-0.");
        assert!(stderr.starts_with(&line), "{stderr}");
        let found = found(&output);
        let recordings: Vec<_> = found.iter().filter(|line| line.ends_with(".nscope")).collect();
        assert_eq!(recordings.len(), 1, "{found:?}");
        assert!(recordings[0].contains(" ncclscope-0."), "{found:?}");
    }
}

/// Users can still share a directory, and not what they record in it.
#[test]
fn a_requested_directory_may_belong_to_any_user() {
    let before = "mkdir -m 777 /tmp/shared && mkdir -m 2777 /tmp/ncclscope-0";
    let env = [("NCCLSCOPE_DIR", "/tmp/shared"), ("NCCLSCOPE_CONTROL", "off")];
    let Some(output) = in_own_tmp(before, &env) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let found = found(&output);
    assert!(found.contains(&"600 f shared/*.nscope".to_owned()), "{found:?}");
}

#[test]
fn a_directory_may_have_any_bytes_for_a_name() {
    let host = compile("plain", &[]);
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(OsStr::from_bytes(b"o\xffut"));
    let mut command = Command::new("env");
    let mut variable = std::ffi::OsString::from("NCCLSCOPE_DIR=");
    variable.push(&odd);
    // The variable comes last, so that it takes effect.
    command.arg(variable).arg(OsStr::from_bytes(b"NCCLSCOPE_MODE=\xff"));
    command.arg(&host).arg(plugin()).arg("10");
    let played = play(&mut command, &[]);
    played.survived();
    assert!(played.files().is_empty(), "{:?}", played.files());
    let line = "ncclscope: NCCLSCOPE_MODE: its value is not UTF-8; the default is used\n";
    assert_eq!(played.stderr(), line);
    let files: Vec<_> = std::fs::read_dir(&odd).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(Recording::open(&files[0]).unwrap().header().closed);
}

#[test]
fn a_relative_directory_stays_where_it_was() {
    let host = compile("moves", &[]);
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("env");
    let done = folder.path().join("done");
    command.arg("NCCLSCOPE_DIR=run").arg(&host).arg(plugin()).arg(&done);
    command.current_dir(folder.path());
    let action = format!("exec:touch {}", done.display());
    let played = play(&mut command, &[("NCCLSCOPE_HANG_ACTION", &action)]);
    played.survived();
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(folder.path()), ["done", "run"], "{:?}", played.output);
    let run = names(&folder.path().join("run"));
    assert_eq!(run.len(), 3, "a dump, the hang's report, the recording: {run:?}");
    assert!(run.iter().any(|name| name.starts_with("dump-")), "{run:?}");
    assert!(run.iter().any(|name| name.contains(".hang-")), "{run:?}");
}

/// The copies of a host's recording, each in a directory beside it, and the modes of these
/// directories.
fn copies(run: &Path) -> Vec<(Recording, u32)> {
    let mut copies = Vec::new();
    for dir in std::fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path()) {
        let found = std::fs::symlink_metadata(&dir).unwrap();
        if found.is_dir() {
            for file in std::fs::read_dir(dir).unwrap() {
                let copy = Recording::open(&file.unwrap().path()).unwrap();
                copies.push((copy, found.mode() & 0o777));
            }
        }
    }
    copies
}

#[test]
fn dumps_of_one_second_have_a_directory_each_and_follow_no_link() {
    let host = compile("redumps", &[]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let elsewhere = tempfile::tempdir().unwrap();
    for plants in [false, true] {
        // A directory of one user, with private content.
        let run = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir();
        let run = run.unwrap();
        for second in now..now + if plants { 60 } else { 0 } {
            let link = run.path().join(format!("dump-{second}"));
            std::os::unix::fs::symlink(elsewhere.path(), link).unwrap();
        }
        let mut command = Command::new("env");
        command.arg(format!("NCCLSCOPE_DIR={}", run.path().display()));
        command.arg(&host).arg(plugin()).arg("5");
        play(&mut command, &[]).survived();
        let copies = copies(run.path());
        let found = copies.iter().map(|(copy, mode)| (operations(copy), *mode));
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        let mut expected = [(100, 0o700); 6];
        expected[0].0 = 0;
        assert_eq!(found, expected, "{plants}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
