// SPDX-License-Identifier: Apache-2.0
//! Flight Recorder dumps in the forms that people have: as text, without entries, with other names,
//! with leftovers of other jobs. Dumps of others, with their truth, are in `../shared/data/field`.

#[path = "common/others.rs"]
mod others;

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, diagnose, open};
use ncclscope_findings::{Confidence, FindingClass};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// The diagnosis of a path, and the warnings.
fn of(path: &Path) -> (Diagnosis, Vec<String>) {
    let input = open(&[path.to_owned()], &InputOptions::default()).unwrap();
    (diagnose(&input.job, &Options::default()), input.warnings)
}

/// The diagnosis of a folder of others; prints a line if it is not there.
fn of_others(folder: &str) -> Option<(Diagnosis, Vec<String>)> {
    Some(of(&others::find(&format!("field/{folder}"))?))
}

fn found(diagnosis: &Diagnosis) -> Vec<(FindingClass, Vec<u32>)> {
    diagnosis.findings.iter().map(|one| (one.class, one.root_ranks.clone())).collect()
}

#[test]
fn dumps_of_others_give_their_truth() {
    let stuck = [(FindingClass::HostStuck, vec![9, 14])];
    for folder in ["fr-json-real-form", "fr-names-with-time"] {
        let Some((diagnosis, warnings)) = of_others(folder) else { return };
        assert_eq!((found(&diagnosis), warnings), (stuck.to_vec(), vec![]), "{folder}");
        assert_eq!(diagnosis.findings[0].confidence(), Confidence::Confirmed);
    }
    let late = [(FindingClass::HostStuck, vec![2])];
    for folder in ["pickle", "json", "json-as-written"] {
        let Some((diagnosis, _)) = of_others(&format!("fr-torch-2.15/{folder}")) else { return };
        assert_eq!(found(&diagnosis), late, "{folder}: {diagnosis:#?}");
    }
    for folder in ["fr-json-tutorial-crash", "fr-json-tutorial-crash/fr-pickle"] {
        let Some((diagnosis, _)) = of_others(folder) else { return };
        assert_eq!(diagnosis.findings[0].class, FindingClass::CallMismatch, "{folder}");
        assert_eq!(diagnosis.findings[0].op.as_ref().and_then(|op| op.number), Some(3), "{folder}");
    }
    let Some((diagnosis, _)) = of_others("fr-coalesced-size") else { return };
    assert_eq!(diagnosis.findings[0].class, FindingClass::CallMismatch, "{diagnosis:#?}");
    let Some((diagnosis, _)) = of_others("fr-torchcomms-send-recv") else { return };
    let is_mismatch = |class: FindingClass| {
        matches!(class, FindingClass::CallMismatch | FindingClass::P2pMismatch)
    };
    assert!(!diagnosis.findings.iter().any(|one| is_mismatch(one.class)), "{diagnosis:#?}");
}

/// TorchTitan's default, 20,000 entries a rank with a stack of 28 frames each, put by the script of
/// others before the entries of two ranks of a real hang.
#[test]
fn real_dumps_of_torchtitans_size_give_their_truth() {
    let Some(script) = others::find("field/fr-torchtitan-size/big.py") else { return };
    let Some(shared) = others::find("flight-recorder") else { return };
    let place = tempfile::tempdir().unwrap();
    // It reads `../shared/data`.
    let work = place.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let shared = shared.canonicalize().unwrap();
    symlink(shared.ancestors().nth(2).unwrap(), place.path().join("shared")).unwrap();
    let script = script.canonicalize().unwrap();
    python(&work, &[script.to_str().unwrap(), "20000", "28", "shared", "2"]);
    let big = work.join("data/big");
    for rank in 2..16 {
        let name = format!("_dump_{rank}");
        std::fs::copy(shared.join("lock_gil_1st").join(&name), big.join(&name)).unwrap();
    }
    let (diagnosis, warnings) = of(&big);
    assert_eq!(found(&diagnosis), [(FindingClass::HostStuck, vec![9, 14])], "{warnings:?}");
    assert_eq!(warnings, [""; 0]);
}

/// The same, with entries of our own: rank 1 of three has not called the last AllReduce.
#[test]
fn dumps_of_torchtitans_size_are_read() {
    const SCRIPT: &str = r#"
import pickle
frames = [{"name": f"f{n}", "filename": f"/a/module_{n}.py", "line": n} for n in range(400)]
for rank in range(3):
    calls = 20000 - (rank == 1)
    entries = [{"record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"), "op_id": n,
        "collective_seq_id": n + 1, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 10**18 + n * 10**6, "input_sizes": [[64]], "input_dtypes": ["Float"],
        "output_sizes": [[64]], "output_dtypes": ["Float"], "retired": n < 19999,
        "state": "completed" if n < 19999 else "scheduled", "is_p2p": False,
        "frames": [frames[(n + k) % 400] for k in range(28)]} for n in range(calls)]
    status = {"last_enqueued_collective": calls, "last_started_collective": 19999,
        "last_completed_collective": 19999}
    dump = {"version": "2.10", "entries": entries, "pg_status": {"0": status},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}}
    pickle.dump(dump, open(f"_dump_{rank}", "wb"), protocol=2)
"#;
    let place = tempfile::tempdir().unwrap();
    python(place.path(), &["-c", SCRIPT]);
    let (diagnosis, warnings) = of(place.path());
    assert_eq!(found(&diagnosis), [(FindingClass::HostStuck, vec![1])], "{warnings:?}");
    assert_eq!(warnings, [""; 0]);
}

/// Runs Python in a folder.
fn python(folder: &Path, arguments: &[&str]) {
    let status = Command::new("python3").current_dir(folder).args(arguments).status();
    assert!(status.expect("python3 starts").success());
}

/// The dump of a rank that has called and completed so many AllReduces of the default group of
/// four, so many seconds after a fixed time.
fn dump(called: u64, done: u64, at_s: u64) -> Value {
    let entry = |seq: u64| {
        json!({"record_id": seq, "pg_id": 0, "process_group": ["0", "default_pg"],
            "collective_seq_id": seq, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_790_000_000_000_000_000_u64 + at_s * 1_000_000_000 + seq,
            "input_sizes": [[4]], "input_dtypes": ["Float"], "is_p2p": false,
            "state": if seq <= done { "completed" } else { "scheduled" }})
    };
    let entries: Vec<Value> = (called.saturating_sub(2)..=called).map(entry).collect();
    json!({"version": "2.10", "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": called.to_string(),
            "last_started_collective": "-1", "last_completed_collective": done.to_string()}}})
}

fn write(folder: &Path, name: &str, dump: &Value) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, dump.to_string()).unwrap();
}

#[test]
fn numbers_as_text_missing_entries_and_folders_of_nodes_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut late = dump(90, 90, 0);
    late.as_object_mut().unwrap().remove("entries");
    for rank in 0..4 {
        let dump = if rank == 2 { late.clone() } else { dump(91, 90, 0) };
        write(
            dir.path(),
            &format!("node{}/trace_rank_{rank}_17900000{rank}.json", rank / 2),
            &dump,
        );
    }
    let (diagnosis, warnings) = of(dir.path());
    let late = (FindingClass::HostStuck, vec![2]);
    assert_eq!((found(&diagnosis), warnings), (vec![late], vec![]), "{diagnosis:#?}");
}

#[test]
fn a_group_that_one_dump_does_not_list_has_the_ranks_that_another_lists() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..4 {
        let mut dump = dump(if rank == 2 { 90 } else { 91 }, 90, 0);
        if rank == 1 {
            dump["pg_config"] = json!({});
        }
        write(dir.path(), &format!("_dump_{rank}"), &dump);
    }
    let (diagnosis, _) = of(dir.path());
    assert_eq!(found(&diagnosis), [(FindingClass::HostStuck, vec![2])]);
    assert!(!diagnosis.notes.iter().any(|note| note.contains("do not list")));
}

/// A rank without operations, of another job.
#[test]
fn a_leftover_without_operations_has_no_time() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..4 {
        let mut dump = dump(91, 90, 0);
        if rank == 3 {
            dump.as_object_mut().unwrap().remove("entries");
            dump["pg_status"]["0"]["last_enqueued_collective"] = json!("7");
            dump["pg_status"]["0"]["last_completed_collective"] = json!("7");
        }
        write(dir.path(), &format!("_dump_{rank}"), &dump);
    }
    let (diagnosis, _) = of(dir.path());
    let note = "the dump of rank 3 is left out: of another job or another time; calls and";
    assert!(diagnosis.notes.iter().any(|line| line.starts_with(note)), "{:#?}", diagnosis.notes);
}

#[test]
fn an_empty_dump_is_told_and_its_rank_is_without_input() {
    let dir = tempfile::tempdir().unwrap();
    for rank in [0, 1, 3] {
        write(dir.path(), &format!("_dump_{rank}"), &dump(91, 90, 0));
    }
    std::fs::write(dir.path().join("_dump_2"), "").unwrap();
    std::fs::write(dir.path().join("done"), "").unwrap();
    let (diagnosis, warnings) = of(dir.path());
    assert!(
        matches!(&warnings[..], [one] if one.ends_with("_dump_2: it is empty")),
        "{warnings:?}"
    );
    assert_eq!(diagnosis.silent_ranks, [2]);
    assert_eq!(found(&diagnosis), [(FindingClass::NotRecorded, vec![2])]);
}

#[test]
fn dumps_of_another_job_are_left_out() {
    for (called, done) in [(40, 39), (900, 899)] {
        let dir = tempfile::tempdir().unwrap();
        for rank in 0..2 {
            write(dir.path(), &format!("_dump_{rank}"), &dump(91, 90, 1_080));
            write(dir.path(), &format!("_dump_{}", rank + 2), &dump(called, done, 0));
        }
        let (diagnosis, _) = of(dir.path());
        let is_told = |note: &String| {
            note.starts_with("the dumps of ranks 2-3 are left out") && note.contains("18 min")
        };
        assert!(diagnosis.notes.iter().any(is_told), "{:#?}", diagnosis.notes);
        assert_eq!(diagnosis.silent_ranks, [2, 3]);
        assert!(diagnosis.findings.iter().all(|one| one.confidence() == Confidence::Suspect));
    }
}

/// Where a rank at fault called last, and where the others wait, from their stacks.
#[test]
fn the_lines_of_the_users_script_are_evidence() {
    let dir = tempfile::tempdir().unwrap();
    let stack = |line: u64| {
        let torch = "torch/distributed/distributed_c10d.py";
        json!([{"name": "all_reduce", "filename": torch, "line": 1},
            {"name": "step", "filename": "/home/u/train.py", "line": line}])
    };
    for rank in 0..4 {
        let mut dump = if rank == 2 { dump(90, 90, 0) } else { dump(91, 90, 0) };
        let line = if rank == 2 { 17 } else { 31 };
        for entry in dump["entries"].as_array_mut().unwrap() {
            entry["frames"] = stack(line);
        }
        write(dir.path(), &format!("_dump_{rank}"), &dump);
    }
    let (diagnosis, _) = of(dir.path());
    let texts: Vec<&str> = diagnosis.findings[0].evidence.iter().map(|one| &*one.text).collect();
    let wanted = [
        "rank 2 called last at /home/u/train.py:17 in step",
        "ranks 0-1, 3 wait at /home/u/train.py:31 in step",
    ];
    assert_eq!(texts[texts.len() - 2..], wanted, "{texts:#?}");
    let Some((diagnosis, _)) = of_others("fr-torch-2.15/pickle") else { return };
    let texts = diagnosis.findings[0].evidence.iter().map(|one| &*one.text).collect::<Vec<_>>();
    assert!(texts.contains(&"rank 2 called last at frgen.py:17 in <module>"), "{texts:#?}");
    assert!(texts.contains(&"ranks 0-1, 3 wait at frgen.py:31 in <module>"), "{texts:#?}");
}

/// Sets when the dumps of a folder were written, relative to the time of their calls.
fn set_written(folder: &Path, after_ms: i64) {
    let at = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    let by = Duration::from_millis(after_ms.unsigned_abs());
    let at = if after_ms < 0 { at - by } else { at + by };
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(at).unwrap();
    }
}

#[test]
fn dumps_of_a_running_job_are_judged_by_the_age_of_what_is_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let write_all = |timeout_ms: u64| {
        for rank in 0..4 {
            let mut dump = dump(if rank == 2 { 90 } else { 91 }, 90, 0);
            for entry in dump["entries"].as_array_mut().unwrap() {
                entry["timeout_ms"] = timeout_ms.into();
            }
            write(dir.path(), &format!("_dump_{rank}"), &dump);
        }
    };
    let late = vec![(FindingClass::HostStuck, vec![2])];
    write_all(600_000);
    // The last is a copy, and a time before the calls tells nothing.
    for (after_ms, is_hang) in
        [(1, false), (29_000, false), (31_000, true), (86_400_000, true), (-3_600_000, true)]
    {
        set_written(dir.path(), after_ms);
        let (diagnosis, _) = of(dir.path());
        let expected = if is_hang { late.clone() } else { vec![] };
        assert_eq!(found(&diagnosis), expected, "{after_ms} ms: {diagnosis:#?}");
        let is_told = diagnosis.notes.iter().any(|note| note.ends_with("the job may run"));
        assert_eq!(is_told, !is_hang, "{:#?}", diagnosis.notes);
    }
    // PyTorch's own timeout was shorter.
    write_all(3_000);
    set_written(dir.path(), 5_000);
    assert_eq!(found(&of(dir.path()).0), late);
}

/// The dumps of four ranks in a hang, of which rank 2 is late: name and content.
fn hang() -> Vec<(String, Vec<u8>)> {
    let one = |rank: u64| {
        let dump = dump(if rank == 2 { 90 } else { 91 }, 90, 0);
        (format!("dumps/_dump_{rank}"), dump.to_string().into_bytes())
    };
    (0..4).map(one).collect()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(content).unwrap();
    out.finish().unwrap()
}

fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mtime(1_790_000_060);
        out.append_data(&mut header, name, &content[..]).unwrap();
    }
    out.into_inner().unwrap()
}

fn zip(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in files {
        out.start_file(&**name, zip::write::SimpleFileOptions::default()).unwrap();
        out.write_all(content).unwrap();
    }
    out.finish().unwrap().into_inner()
}

#[test]
fn dumps_in_archives_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let late = vec![(FindingClass::HostStuck, vec![2])];
    let mut files = hang();
    // What is no dump, and an archive in an archive, are ignored.
    files.push(("dumps/py-spy.log".into(), b"Thread 1".to_vec()));
    files.push(("more.tgz".into(), gzip(&tar(&hang()))));
    let archives = [("d.tar", tar(&files)), ("d.tgz", gzip(&tar(&files))), ("d.zip", zip(&files))];
    for (name, content) in archives {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let (diagnosis, warnings) = of(&path);
        assert_eq!((found(&diagnosis), warnings), (late.clone(), vec![]), "{name}");
        std::fs::remove_file(path).unwrap();
    }
    for (name, content) in hang() {
        let path = dir.path().join(format!("node{}/{name}.gz", &name[name.len() - 1..]));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, gzip(&content)).unwrap();
    }
    let (diagnosis, warnings) = of(dir.path());
    assert_eq!((found(&diagnosis), warnings), (late.clone(), vec![]));
    // Beside dumps they are copies.
    for (name, content) in hang() {
        std::fs::write(dir.path().join(name.replace('/', "-")), content).unwrap();
    }
    std::fs::write(dir.path().join("copy.zip"), zip(&hang())).unwrap();
    let (diagnosis, warnings) = of(dir.path());
    assert_eq!((found(&diagnosis), warnings), (late, vec![]));
}

#[test]
fn archives_that_unfold_to_too_much_or_are_damaged_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("_dump_0.gz");
    let error = |content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        open(std::slice::from_ref(&path), &InputOptions::default()).unwrap_err()
    };
    // Megabytes that are no dump come first.
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut header = tar::Header::new_gnu();
    header.set_size(2 << 30);
    header.set_path("zeros").unwrap();
    header.set_cksum();
    bomb.write_all(header.as_bytes()).unwrap();
    (0..1 << 10).for_each(|_| bomb.write_all(&[0; 1 << 20]).unwrap());
    assert!(error(&bomb.finish().unwrap()).contains("unfolds to more than 256 times its size"));
    let mut large = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    large.write_all(b"{\"version\": \"2.9\", \"entries\": [").unwrap();
    (0..257).for_each(|_| large.write_all(&[b' '; 1 << 20]).unwrap());
    assert!(error(&large.finish().unwrap()).contains("_dump_0: it is larger than 256 MiB"));
    let whole = gzip(&tar(&hang()));
    assert!(error(&whole[..whole.len() / 2]).contains("cannot read"));
    assert!(error(&gzip(b"hello")).contains("nothing to diagnose"));
}

/// The folder that Ray Train's hang detector writes.
#[test]
fn the_folder_of_rays_hang_detector_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for (rank, (_, content)) in hang().into_iter().enumerate() {
        let dump = serde_json::from_slice(&content).unwrap();
        write(dir.path(), &format!("hang_detector/flight_recorder/rank_{rank}.json"), &dump);
        let text = json!("no stack");
        write(dir.path(), &format!("hang_detector/stack_traces/rank_{rank}.log"), &text);
    }
    let failed = json!({"ray_train_dump_error": "timed out"});
    write(dir.path(), "hang_detector/flight_recorder/rank_3.json", &failed);
    write(dir.path(), "hang_detector/nvidia_smi/node_192.0.2.1.log", &json!("smi"));
    // Rank 2 has stopped after the first of three polls.
    for (minute, counts) in [(0, [80, 80, 80, 80]), (1, [91, 91, 90, 91]), (2, [91, 91, 90, 91])] {
        let rank = |(rank, count): (u32, u64)| {
            json!({"rank": rank, "host": "a", "pid": 10 + rank, "cuda_dev": rank,
                "status": {"async_error": 0}, "collective_counts": {"AllReduce": count}})
        };
        let ranks: Vec<Value> = (0..).zip(counts).map(rank).collect();
        let time = format!("2026-09-21 14:0{minute}:00");
        let ras = json!({"nccl_version": "2.30.1", "timestamp": time,
            "communicators": [{"hash": "0xabc", "size": 4, "ranks": ranks, "missing_ranks": []}]});
        let name = format!("hang_detector/nccl_ras/ncclras_2026-09-21-14-0{minute}-00.json");
        write(dir.path(), &name, &ras);
    }
    let report = dir.path().join("hang_detector/nccl_ras/ncclras_report.txt");
    std::fs::write(report, "NCCL version 2.30.1 compiled with CUDA 13.0\n").unwrap();
    let late = vec![(FindingClass::HostStuck, vec![2])];
    for folder in [dir.path().to_owned(), dir.path().join("hang_detector")] {
        let (diagnosis, warnings) = of(&folder);
        assert_eq!((found(&diagnosis), warnings), (late.clone(), vec![]), "{diagnosis:#?}");
        assert_eq!(diagnosis.silent_ranks, [3]);
    }
    // Without Flight Recorder the outputs of RAS decide: the last two.
    let (diagnosis, _) = of(&dir.path().join("hang_detector/nccl_ras"));
    assert_eq!(found(&diagnosis), late, "{diagnosis:#?}");
    assert_eq!(diagnosis.findings[0].confidence(), Confidence::Confirmed);
}
