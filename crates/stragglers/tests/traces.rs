// SPDX-License-Identifier: Apache-2.0
//! PyTorch's traces in the shapes that people have: of some ranks, of two jobs, of several cycles.

use ncclscope_findings::Confidence;
use ncclscope_stragglers::input::kineto::{self, Traces};
use ncclscope_stragglers::{Limits, SlowReport, analyze};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const DAY: u64 = 86_400_000_000;

/// A profile of 14 steps with an AllReduce each, in which rank `late` arrives last.
struct Profile {
    world: u32,
    /// Its begin, µs.
    begin: u64,
    late: u32,
}

impl Profile {
    const PLAIN: Profile = Profile { world: 8, begin: 1_700_000_000_000_000, late: 7 };

    fn trace(&self, rank: u32) -> String {
        let mut text = format!(
            "{{\"schemaVersion\": 1, \"distributedInfo\": {{\"rank\": {rank}, \
             \"world_size\": {}}}, \"traceEvents\": [",
            self.world
        );
        for step in 0..14 {
            let end = self.begin + (step + 1) * 34_000;
            // Each arrives a little after the one before.
            let dur = if rank == self.late { 1_000 } else { 9_000 - 300 * u64::from(rank % 28) };
            let comma = if step == 0 { "" } else { ", " };
            write!(
                text,
                "{comma}{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \
                 \"ncclDevKernel_AllReduce_Sum_f32_RING_LL\", \"pid\": 0, \"tid\": 7, \"ts\": {}, \
                 \"dur\": {dur}, \"args\": {{}}}}",
                end - dur
            )
            .unwrap();
        }
        text + "]}"
    }

    /// Writes the traces of these ranks.
    fn write(&self, folder: &Path, ranks: impl Iterator<Item = u32>) -> Vec<PathBuf> {
        let write = |rank: u32| {
            let path = folder.join(format!("r{rank}.{}.{}.json", self.world, self.begin));
            fs::write(&path, self.trace(rank)).unwrap();
            path
        };
        ranks.map(write).collect()
    }
}

fn judged(paths: &[PathBuf]) -> SlowReport {
    analyze(&kineto::read(paths).unwrap().job, &Limits::default())
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_rank_without_a_trace_may_be_the_cause() {
    let folder = folder();
    let whole = judged(&Profile::PLAIN.write(folder.path(), 0..8));
    assert_eq!(whole.findings[0].root_ranks, [7], "{whole:#?}");
    assert_eq!(whole.findings[0].confidence(), Confidence::Confirmed);
    let part = judged(&Profile { late: 3, ..Profile::PLAIN }.write(folder.path(), 0..4));
    let [finding] = &part.findings[..] else { panic!("{part:#?}") };
    assert_eq!((&finding.root_ranks[..], finding.confidence()), (&[3][..], Confidence::Suspect));
    let why = "ranks 4-7 may be the cause: no trace of 4 of 8 ranks";
    assert!(finding.alternatives().iter().any(|text| text == why), "{finding:#?}");
    assert_eq!(part.quiet, [format!("who makes the others wait: {why}")]);
    assert!(part.notes.iter().any(|note| note.starts_with("no trace of ranks 4-7: ")));
    let one = judged(&Profile::PLAIN.write(folder.path(), 0..7));
    assert!(one.quiet[0].ends_with("rank 7 may be the cause: no trace of 1 of 8 ranks"));
}

/// The traces of 12 ranks, of which some lack `distributedInfo`, under other names.
fn without_rank(
    late: u32,
    lacks: impl Fn(u32) -> bool,
    name: impl Fn(u32) -> String,
) -> SlowReport {
    let folder = folder();
    let profile = Profile { world: 12, late, ..Profile::PLAIN };
    let write = |rank: u32| {
        let path = folder.path().join(name(rank));
        let of_rank = format!("\"distributedInfo\": {{\"rank\": {rank}, \"world_size\": 12}}, ");
        let text = profile.trace(rank);
        let text = if lacks(rank) { text.replace(&of_rank, "") } else { text };
        fs::write(&path, text).unwrap();
        path
    };
    let mut paths: Vec<PathBuf> = (0..12).map(write).collect();
    paths.sort();
    judged(&paths)
}

#[test]
fn a_trace_without_its_rank_has_that_of_its_name() {
    let report = without_rank(2, |_| true, |rank| format!("rank{rank}.json"));
    assert_eq!(report.findings[0].root_ranks, [2], "{report:#?}");
    let note = "12 traces have no rank, as a profile that begins before `init_process_group`: \
                ranks are the numbers in the files' names";
    assert!(report.notes.iter().any(|one| one == note), "{:?}", report.notes);
    let some = without_rank(3, |rank| rank % 2 == 1, |rank| format!("t_rank-{rank}.pt.json"));
    assert_eq!(some.findings[0].root_ranks, [3], "{some:#?}");
    assert!(some.notes.iter().any(|note| note.starts_with("6 traces have no rank, ")));
}

#[test]
fn a_trace_without_a_rank_in_its_name_has_a_position() {
    for name in ["libkineto_activities_", "node_rank", "local_rank_", "myrank"] {
        let report = without_rank(2, |_| true, |rank| format!("{name}{}.json", 98 + rank));
        assert_eq!(report.findings[0].root_ranks, [2], "in the order of numbers: {report:#?}");
        let lists = format!(
            "ranks are positions: 0 is {name}98.json, 1 is {name}99.json, 2 is {name}100.json, "
        );
        assert!(report.notes.iter().any(|note| note.contains(&lists)), "{:?}", report.notes);
    }
    // What has a number in its name keeps it.
    let name = |rank| if rank == 1 { "x.json".to_owned() } else { format!("rank{rank}.json") };
    let mixed = without_rank(3, |rank| rank % 2 == 1, name);
    assert_eq!(mixed.findings[0].root_ranks, [3], "{mixed:#?}");
    let note = "ranks are the numbers in the files' names, or else positions: 1 is x.json";
    assert!(mixed.notes.iter().any(|one| one.ends_with(note)), "{:?}", mixed.notes);
    let one = without_rank(4, |rank| rank == 4, |rank| format!("host_{}.json", 900 + rank));
    assert_eq!(one.findings[0].root_ranks, [4], "the one that is free: {one:#?}");
    let note = "1 trace has no rank, as a profile that begins before `init_process_group`: ranks \
                are positions: 4 is host_904.json";
    assert!(one.notes.iter().any(|one| one == note), "{:?}", one.notes);
}

/// The report about 64 ranks in two halves, of which rank 3 is late: `group` has what a trace says
/// of a half's ranks, and `info` what it says of groups.
fn of_halves(
    group: impl Fn(&[u32]) -> String,
    info: impl Fn(&[u32]) -> String,
    half: impl Fn(u32) -> Vec<u32>,
) -> SlowReport {
    let folder = folder();
    let write = |rank: u32| {
        let path = folder.path().join(format!("r{rank}.json"));
        let ranks = half(rank);
        let late = if ranks.contains(&3) { 3 } else { 63 };
        let text = Profile { world: 64, late, ..Profile::PLAIN }.trace(rank);
        let args = format!(
            "\"args\": {{\"Process Group Name\": \"1\", \"Group size\": {}, \
             \"Process Group Ranks\": \"{}\"}}",
            ranks.len(),
            group(&ranks)
        );
        let world = format!("\"world_size\": 64, \"pg_config\": [{}]", info(&ranks));
        let text = text.replace("\"args\": {}", &args).replace("\"world_size\": 64", &world);
        fs::write(&path, text).unwrap();
        path
    };
    judged(&(0..64).map(write).collect::<Vec<_>>())
}

#[test]
fn groups_of_one_name_are_apart_however_many_ranks_they_have() {
    let all = |ranks: &[u32]| format!("{ranks:?}");
    let first = |ranks: &[u32]| all(&ranks[..30]).replace(']', ", ...]");
    let none = |_: &[u32]| String::new();
    let halves = |rank: u32| (rank / 32 * 32..rank / 32 * 32 + 32).collect::<Vec<_>>();
    let whole = of_halves(all, none, halves);
    assert_eq!(whole.collectives, 28, "{whole:#?}");
    let cut = of_halves(first, none, halves);
    assert_eq!((&cut.findings, cut.collectives), (&whole.findings, whole.collectives));
    // Groups at unequal distances have no list in args.
    let odd = |rank: u32| (0..64).filter(|it| it / 3 % 2 == rank / 3 % 2).collect::<Vec<_>>();
    let of_config = |ranks: &[u32]| format!("{{\"pg_name\": \"1\", \"ranks\": {ranks:?}}}");
    let whole = of_halves(all, none, odd);
    let listed = of_halves(|_: &[u32]| "[]".to_owned(), of_config, odd);
    assert_eq!((&listed.findings, listed.collectives), (&whole.findings, whole.collectives));
    assert_eq!(listed.collectives, 28);
}

#[test]
fn two_jobs_are_not_one() {
    let folder = folder();
    let mut paths = Profile::PLAIN.write(folder.path(), 0..8);
    let small = Profile { world: 2, begin: Profile::PLAIN.begin + 8 * DAY, late: 1 };
    paths.extend(small.write(folder.path(), 0..2));
    let report = judged(&paths);
    assert_eq!((report.workers, &report.findings[0].root_ranks[..]), (8, &[7][..]));
    let note = "r0.2.1700691200000000.json and 1 more trace are left out: of a job of 2 ranks; the \
                one that is judged has 8";
    assert!(report.notes[0].ends_with(note), "{:?}", report.notes);
    let error = kineto::read(&[paths[3].clone(), paths[9].clone()]).unwrap_err().to_string();
    assert!(error.contains("it is of a job of 8 ranks, and "), "{error}");
    assert!(error.ends_with(" of one of 2: name the traces of one job"), "{error}");
    // Of one size, but a day apart.
    let later = Profile { begin: Profile::PLAIN.begin + 2 * DAY, ..Profile::PLAIN };
    let paths = [Profile::PLAIN.write(folder.path(), 0..3), later.write(folder.path(), 3..8)];
    assert_eq!(judged(&paths.concat()).workers, 5);
}

#[test]
fn of_several_cycles_the_newest_whole_one_is_judged() {
    let folder = folder();
    let at = |cycle: u64, late, ranks| {
        let begin = Profile::PLAIN.begin + cycle * 60_000_000;
        Profile { begin, late, ..Profile::PLAIN }.write(folder.path(), ranks)
    };
    let report = judged(&[at(0, 2, 0..8), at(1, 5, 0..8), at(2, 6, 0..3)].concat());
    assert_eq!((report.workers, &report.findings[0].root_ranks[..]), (8, &[5][..]));
    let note = "and 10 more traces are left out: of 3 profiles, one after the other, the newest of \
                the most ranks counts";
    assert!(report.notes[0].ends_with(note), "{:?}", report.notes);
    // Copies are no cycles.
    let copy = folder.path().join("copy.json");
    fs::copy(&at(0, 2, 0..1)[0], &copy).unwrap();
    let error = kineto::read(&[at(0, 2, 0..1)[0].clone(), copy]).unwrap_err().to_string();
    assert!(error.contains("it is of rank 0 as is "), "{error}");
}

#[test]
fn one_trace_that_is_cut_off_does_not_hide_the_others() {
    let folder = folder();
    let paths = Profile::PLAIN.write(folder.path(), 0..8);
    fs::write(&paths[2], &fs::read(&paths[2]).unwrap()[..900]).unwrap();
    let Traces { job, unreadable } = kineto::read(&paths).unwrap();
    assert_eq!((job.workers.len(), &job.unrecorded[..]), (7, &[(2, 2)][..]));
    let [line] = &unreadable[..] else { panic!("{unreadable:?}") };
    assert!(line.starts_with(&format!("cannot read {}: ", paths[2].display())), "{line}");
    assert!(kineto::read(&paths[2..3]).is_err());
    // In an archive, and one that is cut off itself.
    let archive = folder.path().join("all.tar");
    let mut tar = tar::Builder::new(fs::File::create(&archive).unwrap());
    for path in &paths {
        tar.append_path_with_name(path, path.file_name().unwrap()).unwrap();
    }
    tar.append_path_with_name(&paths[2], "._r2.json").unwrap();
    tar.into_inner().unwrap();
    let found = kineto::read(std::slice::from_ref(&archive)).unwrap();
    assert_eq!((found.job.workers.len(), found.unreadable.len()), (7, 1));
    fs::write(&archive, &fs::read(&archive).unwrap()[..4_000]).unwrap();
    let found = kineto::read(&[archive]).unwrap();
    // The first is whole; the second and the archive end early.
    assert_eq!((found.job.workers.len(), found.unreadable.len()), (1, 2));
}

#[test]
fn traces_in_a_zip_are_read() {
    let folder = folder();
    let paths = Profile::PLAIN.write(folder.path(), 0..8);
    let archive = folder.path().join("traces.zip");
    let mut zip = zip::ZipWriter::new(fs::File::create(&archive).unwrap());
    let mut add = |name: &str, bytes: &[u8]| {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, bytes).unwrap();
    };
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        add(&format!("../traces/{name}"), &fs::read(path).unwrap());
        // As macOS packs a folder.
        add(&format!("__MACOSX/traces/._{name}"), b"\0\x05\x16\x07");
    }
    zip.finish().unwrap();
    let packed = fs::read(&archive).unwrap();
    let found = kineto::read(std::slice::from_ref(&archive)).unwrap();
    assert!(found.unreadable.is_empty(), "{:?}", found.unreadable);
    assert_eq!(analyze(&found.job, &Limits::default()), judged(&paths));
    // Damaged inside, and cut off before the directory at its end.
    let mut damaged = packed.clone();
    damaged[200..260].fill(0xff);
    fs::write(&archive, &damaged).unwrap();
    assert!(kineto::read(std::slice::from_ref(&archive)).is_err());
    fs::write(&archive, &packed[..packed.len() / 2]).unwrap();
    let error = kineto::read(&[archive]).unwrap_err().to_string();
    assert!(error.contains("traces.zip: "), "{error}");
}

#[test]
fn traffic_beside_nccl_is_named() {
    let folder = folder();
    let paths = Profile::PLAIN.write(folder.path(), 0..8);
    let of = |path: &Path, from: &str, to: &str| {
        fs::write(path, fs::read_to_string(path).unwrap().replacen(from, to, 3)).unwrap();
    };
    // Where the name of a kernel is changed, three of each of two ranks are of another library.
    let nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
    of(&paths[0], nccl, "void deep_ep::intranode::dispatch<8, 768>");
    of(&paths[1], nccl, "void vllm::cross_device_reduce_2stage<__half, 8>");
    let report = judged(&paths);
    let why = "communication beside NCCL is not judged, and may be why: 3 kernels of DeepEP, 3 \
               kernels of a custom all-reduce";
    assert_eq!(report.quiet, [format!("who makes the others wait: {why}")]);
    assert!(report.findings.iter().all(|of| of.confidence() == Confidence::Suspect), "{report:#?}");
    let text = Profile::PLAIN.trace(0).replace(nccl, "dpsk::ep::internode::dispatch");
    fs::write(&paths[0], text).unwrap();
    let error = kineto::read(&paths[..1]).unwrap_err().to_string();
    let why = "it shows no NCCL kernel, but communication beside NCCL, which is not judged: 14 \
               kernels of DeepEP";
    assert!(error.ends_with(why), "{error}");
}
