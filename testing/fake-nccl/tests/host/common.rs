// SPDX-License-Identifier: Apache-2.0
//! Compiles hosts, runs them with the built plugin, and reads their recordings.

pub(crate) use fake_nccl::build::plugin;
use ncclscope_trace::{EventKind, Record, Recording};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// The host `NAME.c`, compiled with `options`.
pub(crate) fn compile(name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host").join(format!("{name}.c"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let host = folder.join(format!("host-{name}{}", options.concat().replace('/', "_")));
    // Other tests may compile or run the same host.
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let own = folder.join(format!("host-{name}-{}-{number}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    cc.arg(&own).arg(&source).args(options).arg("-ldl");
    // An instrumented plugin needs the sanitizer's runtime, which the program brings.
    cc.args(std::env::var_os("ASAN_OPTIONS").map(|_| "-fsanitize=address"));
    assert!(cc.status().unwrap().success(), "{name}.c does not compile");
    std::fs::rename(&own, &host).unwrap();
    host
}

/// The result of a host.
pub(crate) struct Played {
    pub(crate) output: Output,
    /// The directories of the host's recordings and of its lanes.
    pub(crate) run: TempDir,
    pub(crate) lanes: TempDir,
}

/// Private directories of a run.
pub(crate) fn folders() -> (TempDir, TempDir) {
    let lanes = tempfile::Builder::new().prefix("ncclscope-test-").tempdir_in("/dev/shm");
    (tempfile::tempdir().unwrap(), lanes.unwrap())
}

/// Runs `command`, a host or a shell that executes one, with private directories for recordings and
/// lanes.
pub(crate) fn play(command: &mut Command, env: &[(&str, &str)]) -> Played {
    let (run, lanes) = folders();
    command.env("NCCLSCOPE_DIR", run.path()).env("NCCLSCOPE_LANES", lanes.path());
    command.env("NCCLSCOPE_LOG", "stderr").env("NCCLSCOPE_CONTROL", "off");
    command.envs(env.iter().copied());
    Played { output: command.output().unwrap(), run, lanes }
}

/// Runs the host `plain` with this many operations.
pub(crate) fn plain(host: &Path, operations: usize, env: &[(&str, &str)]) -> Played {
    play(Command::new(host).arg(plugin()).arg(operations.to_string()), env)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

impl Played {
    /// Asserts that the host exited normally.
    pub(crate) fn ended(&self) {
        let stdout = String::from_utf8_lossy(&self.output.stdout);
        assert!(self.output.status.success(), "{:?}", self.output);
        assert!(stdout.ends_with("survived\n"), "{:?}", self.output);
    }

    /// Asserts that the host exited normally and left no lanes file.
    pub(crate) fn survived(&self) {
        self.ended();
        assert_eq!(files(self.lanes.path()), [] as [PathBuf; 0], "lanes are left over");
    }

    /// The standard error.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The number that the host printed after `word`.
    pub(crate) fn number(&self, word: &str) -> u32 {
        let stdout = String::from_utf8_lossy(&self.output.stdout);
        let number = stdout.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
        number.unwrap_or_else(|| panic!("{word}: {:?}", self.output))
    }

    /// The host's recordings.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        files(self.run.path())
    }

    pub(crate) fn recording(&self) -> Recording {
        let mut files = self.files();
        // There may also be dumps and hang reports.
        files.retain(|file| file.extension().is_some_and(|extension| extension == "nscope"));
        assert_eq!(files.len(), 1, "{files:?} {:?}", self.output);
        Recording::open(&files[0]).unwrap()
    }

    /// The number of operations in the only recording.
    pub(crate) fn operations(&self) -> usize {
        let recording = self.recording();
        assert_eq!(recording.problems(), &[] as &[String]);
        operations(&recording)
    }
}

/// The number of collectives in a recording.
pub(crate) fn operations(recording: &Recording) -> usize {
    let records = (0..recording.lanes().len()).flat_map(|lane| recording.records(lane));
    let is_coll =
        |record: &Record| matches!(record, Record::Start(s) if s.handle.kind() == EventKind::Coll);
    records.filter(is_coll).count()
}
