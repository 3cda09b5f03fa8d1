// SPDX-License-Identifier: Apache-2.0
//! Runs the Python package's tests on the built plugin, tool and stand-in.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use rig::{build, wheel};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a file of `python/tests` with `python`.
#[track_caller]
fn run(python: &Path, file: &str, variables: &[(&str, &Path)]) -> String {
    // The package finds the tool beside the plugin.
    let _tool = build::tool();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let mut command = Command::new(python);
    command.arg(root.join("tests").join(file)).env("PYTHONPATH", root.join("src"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("NCCLSCOPE_PLUGIN", build::plugin());
    let output = command.envs(variables.iter().copied()).output().expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(!errors.contains("Ran 0 tests"), "{errors}");
    println!("{text}{errors}");
    text + &errors
}

/// The interpreters with torch that a variable names, separated by colons.
fn torch(variable: &str, is_required: bool) -> Vec<PathBuf> {
    let found = std::env::var_os(variable);
    if found.is_none() {
        let required = is_required && std::env::var_os("NCCLSCOPE_REQUIRE_TORCH").is_some();
        assert!(!required, "{variable} is not set: name a Python that has torch");
        println!("skipped: {variable} is not set");
    }
    found.iter().flat_map(std::env::split_paths).collect()
}

fn profiles(python: &Path) -> Option<String> {
    let nccl = wheel::find_or_skip("2.30.7")?;
    let cuda = &build::artifacts().expect("the stand-in builds").cuda;
    let variables = [("NCCLSCOPE_TEST_CUDA", &**cuda), ("NCCLSCOPE_TEST_NCCL", &*nccl)];
    Some(run(python, "test_torch.py", &variables))
}

#[test]
fn the_package_finds_and_calls_the_plugin() {
    run(Path::new("python3"), "test_package.py", &[]);
}

/// What a program prints; it must succeed.
#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// As `scripts/build-wheel` does, but with the build for tests.
fn wheel_with_tool(python: &Path, folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    said(Command::new("cp").arg("-r").arg(source).arg(folder.join("python")));
    let package = folder.join("python/src/ncclscope");
    std::fs::create_dir_all(package.join("bin")).expect("a directory");
    for (file, name) in [
        (build::tool(), "bin/ncclscope"),
        (build::agent(), "bin/ncclscope-agent"),
        (build::plugin(), "libnccl-profiler-ncclscope.so"),
    ] {
        // The file is small without debug information.
        said(Command::new("strip").arg("-o").arg(package.join(name)).arg(file));
    }
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation"]);
    pip.args(["--no-deps", "--no-index", "--wheel-dir"]).arg(folder.join("wheel"));
    said(pip.arg(folder.join("python")));
    let mut files = std::fs::read_dir(folder.join("wheel")).expect("a directory");
    files.next().expect("a wheel").expect("a file").path()
}

#[test]
fn a_wheel_with_the_tool_has_its_command() {
    let Some(python) = rig::python::with_or_skip("setuptools") else { return };
    let folder = tempfile::tempdir().expect("a directory");
    let wheel = wheel_with_tool(&python, folder.path());
    let venv = folder.path().join("venv");
    said(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let mut pip = Command::new(venv.join("bin/pip"));
    said(pip.args(["--disable-pip-version-check", "install", "--no-index"]).arg(wheel));

    let command = venv.join("bin/ncclscope");
    let mut tool = Command::new(&command);
    tool.env_remove("NCCLSCOPE_PLUGIN").env("PATH", "/usr/bin:/bin");
    let version = said(tool.arg("--version"));
    assert_eq!(version, said(Command::new(build::tool()).arg("--version")));
    assert!(version.starts_with("ncclscope "), "{version}");
    let mut plugin = Command::new(&command);
    let plugin = said(plugin.arg("plugin-path").env_remove("NCCLSCOPE_PLUGIN"));
    assert!(Path::new(plugin.trim()).starts_with(&venv), "{plugin}");
    said(Command::new(&command).args(["agent", "--once", "--dir"]).arg(folder.path()));
    let unreadable = Command::new(&command).args(["report", "/nowhere"]).output();
    assert_eq!(unreadable.expect("it starts").status.code(), Some(3));
}

#[test]
fn a_process_without_a_variable_loads_the_plugin_itself() {
    let cuda = &build::artifacts().expect("the stand-in builds").cuda;
    let releases = ["2.23.4", "2.27.3", "2.32.3"];
    let found: Vec<_> = releases.iter().filter_map(|v| wheel::find_or_skip(v)).collect();
    if found.is_empty() {
        return;
    }
    let nccl = std::env::join_paths(found).expect("no colons");
    let variables = [("NCCLSCOPE_TEST_CUDA", &**cuda), ("NCCLSCOPE_TEST_NCCL", Path::new(&nccl))];
    run(Path::new("python3"), "test_loading.py", &variables);
}

/// The profiles of one of the interpreters; there is at most one after `number`.
fn profiles_of_torch(number: usize) {
    let pythons = torch("NCCLSCOPE_TEST_TORCH_PYTHON", true);
    assert!(pythons.len() <= 2, "{pythons:?}");
    let Some(python) = pythons.get(number) else { return };
    let Some(said) = profiles(python) else { return };
    assert!(said.contains("Kineto's headers: True"), "{said}");
}

// One test for each interpreter: each takes half a minute.
#[test]
fn profiles_of_the_newest_torch_show_nccl() {
    profiles_of_torch(0);
}

#[test]
fn profiles_of_torch_2_8_show_nccl() {
    profiles_of_torch(1);
}

#[test]
fn a_hung_job_of_torch_raises() {
    for python in torch("NCCLSCOPE_TEST_TORCH_PYTHON", true) {
        let cuda = &build::artifacts().expect("the stand-in builds").cuda;
        run(&python, "test_abort.py", &[("NCCLSCOPE_TEST_CUDA", &**cuda)]);
    }
}

/// The oldest torch has no headers of Kineto, so its traces are merged.
#[test]
fn profiles_of_older_torches_show_nccl() {
    for python in torch("NCCLSCOPE_TEST_OLD_TORCH_PYTHON", false) {
        let Some(said) = profiles(&python) else { return };
        assert!(said.contains("\nOK"), "{said}");
    }
}
