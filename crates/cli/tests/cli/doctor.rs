// SPDX-License-Identifier: Apache-2.0
//! `ncclscope doctor` with made-up installations.

use crate::common::{Outcome, Run, SYMBOLS, plugin_file, tool};
use ncclscope_trace::EventKind;
use scripts::{API, Call};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// An installation with a plugin that has all symbols, and with NCCL 2.28.9.
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        std::fs::write(place.plugin(), plugin_file(&SYMBOLS)).unwrap();
        std::fs::write(place.nccl(), "\0NCCL version 2.28.9+cuda12.9\0").unwrap();
        place
    }

    fn plugin(&self) -> PathBuf {
        self.dir.path().join("plugin.so")
    }

    fn nccl(&self) -> PathBuf {
        self.dir.path().join("libnccl.so.2")
    }

    fn tool(&self) -> Command {
        let mut command = tool();
        command.arg("doctor").arg("--nccl").arg(self.nccl()).arg("-o").arg(self.dir.path());
        command.env("NCCLSCOPE_PLUGIN", self.plugin());
        command
    }
}

/// A user unpacks someone's run directory, enters it, and calls `doctor`.
#[test]
fn nothing_of_the_current_directory_is_run() {
    let place = Place::new();
    let dir = place.dir.path();
    for module in ["sysconfig", "site", "sitecustomize", "usercustomize", "os"] {
        let planted = format!("open({:?}, 'w')", dir.join("PWNED"));
        std::fs::write(dir.join(module).with_extension("py"), planted).unwrap();
    }
    let program = dir.join("python3");
    std::fs::write(&program, format!("#!/bin/sh\ntouch {}", dir.join("PWNED").display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for path in [std::env::var("PATH").unwrap(), ".:/usr/bin:/bin".into()] {
        let mut doctor = tool();
        doctor.arg("doctor").current_dir(dir).env("PATH", path);
        doctor.env("NCCLSCOPE_PLUGIN", place.plugin());
        assert!(doctor.output().unwrap().stdout.len() > 100);
        assert!(!dir.join("PWNED").exists());
    }
}

#[test]
fn a_good_installation_has_no_failure() {
    let place = Place::new();
    let text = Outcome::of(&mut place.tool()).ends_with(0).stdout;
    let line = |word: &str| {
        let line = text.lines().find(|line| line.contains(word));
        line.unwrap_or_else(|| panic!("no {word:?} in:\n{text}"))
    };
    assert!(line("2.28.9+cuda12.9").starts_with("ok "), "{text}");
    assert!(line("2.28.9+cuda12.9").ends_with("profiler API v5"), "{text}");
    assert!(line("ncclProfiler_v1 to ncclProfiler_v7").starts_with("ok "), "{text}");
    assert!(line("is writable").starts_with("ok "), "{text}");
    assert!(line("  /dev/shm  ").contains("free"), "{text}");
    assert!(
        line("copy engines").contains("a known fault of NCCL 2.28.9 with collectives"),
        "{text}"
    );
    assert!(line("clock").contains("TSC"), "{text}");
}

fn json(command: &mut Command, code: i32) -> impl Fn(&str) -> (String, String) + use<> {
    let out = Outcome::of(command.args(["--format", "json"])).ends_with(code).stdout;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], "ncclscope.doctor/1");
    move |name| {
        let checks = json["checks"].as_array().unwrap().iter();
        let mut checks = checks.filter(|check| check["name"] == name);
        let check = checks.next().unwrap_or_else(|| panic!("no {name} in {json}"));
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        (text("status"), format!("{} {}", text("detail"), text("advice")))
    }
}

#[test]
fn quietly_only_what_is_wrong_is_told_with_the_host() {
    let place = Place::new();
    let quiet = |mode: &str| {
        let mut tool = place.tool();
        Outcome::of(tool.arg("--quiet").env("NCCLSCOPE_MODE", mode)).ends_with(0).stdout
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let off = quiet("off");
    let line = off.lines().find(|line| line.contains("NCCLSCOPE_MODE")).expect("a line");
    let says = format!("{host}: warn NCCLSCOPE_*: NCCLSCOPE_MODE=off: nothing is recorded");
    assert!(line.starts_with(&says), "{off}");
    let well = quiet("trace");
    assert!(well.lines().all(|line| line.starts_with(&host) && !line.contains(" ok ")), "{well}");
    assert!(!well.contains("NCCLSCOPE_MODE"), "{well}");
}

#[test]
fn a_limit_on_the_size_of_files_is_told() {
    let place = Place::new();
    for (kib, status) in [("64", "FAIL"), ("40960", "warn")] {
        let tool = place.tool();
        let mut limited = Command::new("bash");
        limited.args(["-c", &format!("ulimit -f {kib}; exec \"$@\""), "bash"]);
        limited.arg(tool.get_program()).args(tool.get_args()).arg("--quiet");
        limited.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let text = Outcome::of(&mut limited).stdout;
        let line = text.lines().find(|line| line.contains("ulimit -f")).unwrap_or(&text);
        assert!(line.contains(&format!(": {status} ulimit -f: files have at most")), "{text}");
    }
}

#[test]
fn values_are_shown_without_passwords() {
    let place = Place::new();
    let mut tool = place.tool();
    tool.env("NCCLSCOPE_OTLP", "http://me:secret@c:4318").env("NCCLSCOPE_RING_MB", "64");
    let text = Outcome::of(&mut tool).ends_with(0).stdout;
    assert!(text.contains("NCCLSCOPE_OTLP=http://c:4318"), "{text}");
    assert!(text.contains("NCCLSCOPE_RING_MB=64") && !text.contains("secret"), "{text}");
    let mut tool = place.tool();
    let text = Outcome::of(tool.env("NCCLSCOPE_OTLP", "http://me:se/cret@c:4318/x")).ends_with(0);
    assert!(!text.stdout.contains("cret"), "a slash does not end a password: {}", text.stdout);
}

#[test]
fn what_is_wrong_fails_with_code_4() {
    let place = Place::new();
    std::fs::write(place.plugin(), plugin_file(&["ncclProfiler_v3"])).unwrap();
    std::fs::write(place.nccl(), "NCCL version 2.22.3+cuda12.5\0").unwrap();
    let check = json(place.tool().env("NCCLSCOPE_RINGMB", "3"), 4);
    let (status, text) = check("plugin symbols");
    assert!(status == "fail" && text.contains("lacks ncclProfiler_v1, ncclProfiler_v2"), "{text}");
    let (status, text) = check("NCCL");
    assert!(status == "fail" && text.contains("no profiler interface"), "{text}");
    let (status, text) = check("NCCLSCOPE_*");
    assert!(status == "warn" && text.contains("did you mean NCCLSCOPE_RING_MB?"), "{text}");
}

#[test]
fn limits_of_releases_and_places_are_told() {
    let place = Place::new();
    std::fs::write(place.nccl(), "NCCL version 2.31.2+cuda12.9\0").unwrap();
    let mut command = place.tool();
    command.env("NCCLSCOPE_PLUGIN", "/absent.so").env("NCCL_PROFILER_PLUGIN", "none");
    let check = json(&mut command, 4);
    let (status, text) = check("kernel events");
    assert!(status == "ok" && text.contains("4 to 13 %") && text.contains("CUDA"), "{text}");
    assert_eq!(check("plugin").0, "fail");
    assert!(check("NCCL_PROFILER_PLUGIN").1.contains("no profiler"));
    for (name, value) in [("NCCLSCOPE_KERNEL", "off"), ("NCCLSCOPE_KERNEL", "auto")] {
        let mut command = place.tool();
        command.env(name, value).env("NCCLSCOPE_CUDA_EVENTS", "off");
        let (status, text) = json(&mut command, 0)("kernel events");
        assert!(status == "warn" && text.contains("show no end"), "{value}: {text}");
    }
    let mut command = tool();
    command.args(["doctor", "-o", "/proc/x", "--nccl"]).arg(Path::new("/absent"));
    let check = json(&mut command, 4);
    assert_eq!((check("directory").0, check("NCCL").0), ("fail".into(), "fail".into()));
    // A file that the user names must be one.
    std::fs::write(place.nccl(), "no version").unwrap();
    let check = json(tool().args(["doctor", "--nccl"]).arg(place.nccl()), 4);
    assert_eq!(check("NCCL").0, "fail");
}

/// No advice to turn on what may hang the job.
#[test]
fn kernel_events_of_a_later_rccl_are_off_and_stay_so() {
    let place = Place::new();
    for (version, status) in [("2.27.7", "ok"), ("2.30.4", "ok")] {
        std::fs::write(place.nccl(), format!("RCCL version : {version}-HEAD:96a25b5\0")).unwrap();
        let (found, text) = json(&mut place.tool(), 0)("kernel events");
        assert_eq!(found, status, "{text}");
        assert!(!text.contains("KERNEL=on"), "{text}");
        let mut command = place.tool();
        let (found, text) = json(command.env("NCCLSCOPE_KERNEL", "off"), 0)("kernel events");
        assert_eq!(found, if version == "2.27.7" { "warn" } else { "ok" }, "{text}");
    }
    std::fs::write(place.nccl(), "RCCL version : 2.22.3-HEAD:96a25b5\0").unwrap();
    let (found, text) = json(&mut place.tool(), 4)("NCCL");
    assert!(found == "fail" && text.contains("use RCCL 2.23 or later"), "{text}");
}

#[test]
fn a_release_that_takes_no_path_is_a_failure_where_one_is_given() {
    let place = Place::new();
    std::fs::write(place.nccl(), "NCCL version 2.27.3+cuda12.9\0").unwrap();
    let plugin = place.plugin();
    let (status, text) = json(&mut place.tool(), 0)("loading");
    let says = "run and env set NCCL_PROFILER_PLUGIN=libnccl-profiler-ncclscope.so, /";
    assert!(status == "ok" && text.starts_with(says), "{text}");
    let of = |value: &str, code| {
        let mut command = place.tool();
        command.env("NCCL_PROFILER_PLUGIN", value).env("LD_LIBRARY_PATH", place.dir.path());
        json(&mut command, code)("NCCL_PROFILER_PLUGIN")
    };
    let (status, text) = of(plugin.to_str().unwrap(), 4);
    assert!(status == "fail" && text.contains("is a path, and NCCL 2.27.3"), "{text}");
    assert!(text.contains("eval \"$(ncclscope env)\""), "{text}");
    std::fs::write(place.dir.path().join("libx.so"), plugin_file(&SYMBOLS)).unwrap();
    assert_eq!(of("libx.so", 0), ("ok".into(), "libx.so ".into()));
    std::fs::write(place.dir.path().join("cut.so"), &plugin_file(&SYMBOLS)[..150]).unwrap();
    let (status, text) = of(place.dir.path().join("cut.so").to_str().unwrap(), 4);
    assert!(status == "fail" && text.contains("cut.so is truncated to 150 of"), "{text}");
    let (status, text) = of("liby.so", 0);
    assert!(status == "warn" && text.contains("is in no folder of LD_LIBRARY_PATH"), "{text}");
    std::fs::write(place.nccl(), "NCCL version 2.28.9+cuda12.9\0").unwrap();
    assert_eq!(of(plugin.to_str().unwrap(), 0).0, "ok");
    let (status, text) = of("/nowhere/libx.so", 4);
    assert!(status == "fail" && text.starts_with("/nowhere/libx.so is missing"), "{text}");
}

/// Up to 2.25, NCCL loads a short plugin name as it is, without a prefix; the file with that name
/// beside the plugin is the tool.
#[test]
fn a_short_name_is_a_failure_with_the_releases_that_do_not_complete_it() {
    let place = Place::new();
    let file = |name: &str| place.dir.path().join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ncclscope"), file("ncclscope")).unwrap();
    std::fs::rename(place.plugin(), file("libnccl-profiler-ncclscope.so")).unwrap();
    for (release, code, is) in [("2.23.4", 4, "fail"), ("2.25.1", 4, "fail"), ("2.26.5", 0, "ok")] {
        std::fs::write(place.nccl(), format!("NCCL version {release}+cuda12.9\0")).unwrap();
        let mut command = place.tool();
        command.env("NCCL_PROFILER_PLUGIN", "ncclscope").env("LD_LIBRARY_PATH", place.dir.path());
        command.env("NCCLSCOPE_PLUGIN", file("libnccl-profiler-ncclscope.so"));
        let (status, text) = json(&mut command, code)("NCCL_PROFILER_PLUGIN");
        assert_eq!(status, is, "{text}");
        assert!(code == 0 || text.contains("is a short name, and NCCL 2.2"), "{text}");
        assert!(code == 0 || text.contains("use `ncclscope run`"), "{text}");
    }
}

#[test]
fn recordings_that_are_there_say_what_they_lack() {
    let place = Place::new();
    let recordings = |run: &Run| {
        let mut command = tool();
        command.args(["doctor", "-o", run.text(), "--nccl"]).arg(place.nccl());
        json(command.env("NCCLSCOPE_PLUGIN", place.plugin()), 0)("recordings")
    };
    let whole = Run::new(|p| p.collective(Call::ALL_REDUCE));
    assert_eq!(recordings(&whole), ("ok".into(), "2, nothing lost ".into()));
    let full = Run::new(|p| p.lose(API, EventKind::ProxyStep, 7));
    let (status, text) = recordings(&full);
    assert!(status == "warn" && text.contains("lanes were full: ProxyStep 14"), "{text}");
    assert!(text.contains("NCCLSCOPE_EVENTS=default,-ProxyStep records less"), "{text}");
    std::fs::write(whole.file("node-1-1001.nscope"), "").unwrap();
    let (status, text) = recordings(&whole);
    assert!(status == "warn" && text.contains("1 of 2 cannot be read"), "{text}");
}
