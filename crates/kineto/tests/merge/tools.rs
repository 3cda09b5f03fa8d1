// SPDX-License-Identifier: Apache-2.0
//! Other tools on merged traces: torch's own validator, and HolisticTraceAnalysis.

use crate::output::merge;
use crate::truth::{self, skip};
use crate::{HTA, dlrm};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints for each trace, before and after the merge: the validator's result, and the communication
/// that computation hides, by rank.
const SCRIPT: &str = r#"
import logging, sys
logging.disable(logging.CRITICAL)
from torch.profiler._trace_validator import validate_trace
from hta.trace_analysis import TraceAnalysis

def overlap(files):
    analysis = TraceAnalysis(trace_files=files)
    table = analysis.get_comm_comp_overlap(visualize=False)
    return {int(r): float(v) for r, v in zip(table["rank"], table.iloc[:, 1])}

count = (len(sys.argv) - 1) // 2
before, after = sys.argv[1:1 + count], sys.argv[1 + count:]
for old, new in zip(before, after):
    found = [[str(v) for v in validate_trace(path)[1]] for path in (old, new)]
    assert found[0] == found[1], found
    print("valid" if validate_trace(new)[0] else "as invalid as before")
old, new = (overlap(dict(enumerate(files))) for files in (before, after))
assert old == new, (old, new)
assert len(old) == count, old
print("overlap", old)
"#;

/// A Python that has torch and HolisticTraceAnalysis.
fn python() -> Option<PathBuf> {
    // The first in the list has HolisticTraceAnalysis too.
    let pythons = std::env::var_os("NCCLSCOPE_TEST_TORCH_PYTHON");
    let python: Option<PathBuf> = pythons.and_then(|list| std::env::split_paths(&list).next());
    if python.is_none() {
        assert!(
            std::env::var_os("NCCLSCOPE_REQUIRE_TORCH").is_none(),
            "NCCLSCOPE_TEST_TORCH_PYTHON is not set: name a Python that has torch and \
             HolisticTraceAnalysis"
        );
        skip("NCCLSCOPE_TEST_TORCH_PYTHON is not set");
    }
    python
}

fn check(python: &Path, files: &[PathBuf]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let merged = files.iter().map(|file| {
        let output = dir.path().join(file.file_name().unwrap());
        merge(file, &output);
        output
    });
    let merged: Vec<PathBuf> = merged.collect();
    let mut command = Command::new(python);
    let output = command.args(["-c", SCRIPT]).args(files).args(merged).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text
}

#[test]
fn torch_and_hta_find_the_same_as_before() {
    let Some(python) = python() else { return };
    let Some(path) = truth::real(HTA) else { return };
    let text = check(&python, &[path]);
    assert!(text.contains("valid\noverlap"), "{text}");
}

#[test]
fn hta_finds_the_same_in_all_ranks_of_a_job() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(mut files) = dlrm(dir.path()) else { return };
    files.sort();
    let text = check(&python, &files);
    assert_eq!(text.lines().count(), 9, "{text}");
}
