// SPDX-License-Identifier: Apache-2.0
/*!
Finds and opens the recordings of a run.

If some recordings of a directory cannot be read, each of them gets a warning, and the verb prints
the result of the others and exits with the code for bad input. A report that silently lacks a rank
would be worse than one that fails a script.
*/

use crate::io::formats::{self, ABOUT_RUN};
use crate::io::terminal::{self, Progress};
use ncclscope_console::failure::{BAD_INPUT, Failure, tell, warn};
use ncclscope_diagnose::CommandEnd;
use ncclscope_node::files::{NAMED, first_lines, first_of};
pub(crate) use ncclscope_node::files::{
    allow_open_files, damage, host_name, name_damaged, recordings_in, warn_of_damaged,
};
use ncclscope_operations::human;
use ncclscope_operations::parallel::in_order;
use ncclscope_trace::names::is_recording;
use ncclscope_trace::runs::{NAMELESS, ProcessFacts, Run, Runs};
use ncclscope_trace::{Recording, open_to_read};
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Least number of parts in which recordings are opened by several threads, and most recordings of
/// a part.
const PARTS: usize = 64;
const MOST_AT_ONCE: usize = 16;
/// Maximum number of directories with recordings that are named.
const PLACES: usize = 3;
/// Maximum number of directory entries that are looked at to find such directories.
const LOOKED_AT: usize = 4096;
/// Number of directory levels below a directory of runs that are searched.
const DEPTH: usize = 4;
/// Maximum size of a saved report, bytes.
pub(crate) const SAVED_MAX: u64 = 1 << 30;
/// JSON files beside recordings that are not reports.
const NOT_REPORTS: [&str; 2] = [ABOUT_RUN, "truth.json"];
/// Extensions of archives.
const ARCHIVES: [&str; 7] = [".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2", ".zip"];
/// Maximum size of a `run.json` that is read, bytes: Linux limits a command to 2 MiB.
const ABOUT_MAX: u64 = 16 << 20;

/// The recordings of a run.
#[derive(Debug)]
pub(crate) struct Input {
    /// The readable recordings, one for each process.
    pub(crate) recordings: Vec<Recording>,
    /// The content of `run.json`, if `ncclscope run` created the directory.
    pub(crate) run: Option<serde_json::Value>,
    /// If there are two runs: the readable recordings of the other one.
    pub(crate) other: Vec<Recording>,
    /// Why recordings cannot be read or are left out: one line each, up to [`NAMED`] of a kind.
    pub(crate) unreadable: Vec<String>,
    /// Number of recordings that could not be read.
    bad: usize,
}

impl Input {
    /// Opens recordings, and those in run directories. If there are several runs, keeps the one
    /// with id `run`, else the newest, and names the others.
    pub(crate) fn open(paths: &[PathBuf], run: Option<&str>) -> Result<Input, Failure> {
        let (mut files, mut about, mut empty) = (Vec::new(), None, Vec::new());
        for path in paths {
            let cannot_read = |e| Failure::input(format!("cannot read {}: {e}", path.display()));
            if !std::fs::metadata(path).map_err(cannot_read)?.is_dir() {
                files.push(path.clone());
                continue;
            }
            let found = match recordings_in(path) {
                Ok(found) => found,
                Err(error) => {
                    empty.push(cannot_read(error));
                    continue;
                }
            };
            if found.is_empty() {
                empty.push(nothing_in(path));
            }
            tell_archives(path);
            about = about.or_else(|| about_run(path));
            files.extend(found);
        }
        if files.is_empty()
            && let Some(failure) = empty.pop()
        {
            empty.into_iter().for_each(|failure| warn(failure.text()));
            return Err(failure);
        }
        let mut input = Input::open_all(&files, paths)?;
        input.bad += empty.len();
        empty.into_iter().for_each(|failure| warn(failure.text()));
        input.run = about;
        input.keep(run)?;
        input.name_clockless();
        terminal::say(1, || input.summary(files.len()));
        Ok(input)
    }

    /// Opens the recordings of one run, of which the directory `about` may have a description.
    pub(crate) fn of_run(files: &[PathBuf], about: Option<&Path>) -> Result<Input, Failure> {
        let mut input = Input::open_all(files, &[])?;
        input.run = about.and_then(about_run);
        Ok(input)
    }

    /// Names recordings of which nothing says whose they are.
    fn name_nameless(&mut self, facts: &[ProcessFacts], nameless: &[usize]) {
        let line = |&at: &usize| format!("{} {NAMELESS}", facts[at].path.display());
        let lines = first_of(nameless.iter().map(line), "left out for the same reason");
        lines.iter().for_each(warn);
        self.unreadable.extend(lines);
        self.bad += nameless.len();
    }

    /// Names recordings whose clock is not known although that of others is: their end was cut off.
    fn name_clockless(&mut self) {
        if !self.recordings.iter().any(Recording::has_clock) {
            return;
        }
        // A process that was killed at its start has no records.
        let lacks_clock = |one: &&Recording| !one.has_clock() && one.first_ticks() != 0;
        let line = |one: &Recording| {
            let path = one.path().display();
            format!(
                "{path} is cut off: no comparison of its clock is left, and its times are unknown"
            )
        };
        let cut_off = self.recordings.iter().filter(lacks_clock);
        self.bad += cut_off.clone().count();
        first_of(cut_off.map(line), "cut off in the same way").iter().for_each(warn);
    }

    /// Leaves out recordings whose clock is not known, which would be far from the others in a
    /// trace. [`Input::open`] has named those with records; damaged ones without are named here.
    pub(crate) fn leave_out_clockless(&mut self) {
        if self.recordings.iter().any(Recording::has_clock) {
            let lacks_all = |one: &&Recording| !one.has_clock() && one.first_ticks() == 0;
            let damaged = self.recordings.iter().filter(lacks_all).filter_map(damage);
            let left_out =
                damaged.map(|line| format!("{line}; it is left out, as nothing of it has a time"));
            self.bad += warn_of_damaged(left_out);
            self.recordings.retain(Recording::has_clock);
        }
    }

    /// A summary of what is read, for `-v`.
    fn summary(&self, files: usize) -> String {
        let bytes: u64 =
            self.recordings.iter().flat_map(Recording::lanes).map(|lane| lane.bytes()).sum();
        let run = self.recordings.first().and_then(|one| one.identity().run.as_deref());
        let run = run.map_or_else(String::new, |run| format!(" of run {run}"));
        let (chosen, bytes) =
            (human::count(self.recordings.len(), "recording"), human::bytes(bytes));
        format!("read {chosen} of {files}{run}, with {bytes} of records")
    }

    fn open_all(files: &[PathBuf], named: &[PathBuf]) -> Result<Input, Failure> {
        allow_open_files()?;
        let mut input = Input {
            recordings: Vec::with_capacity(files.len()),
            run: None,
            other: Vec::new(),
            unreadable: Vec::new(),
            bad: 0,
        };
        let (mut failed, mut passed_over) = (None, 0_usize);
        let mut progress = Progress::new("opening recordings", files.len() as u64);
        let open = |file: &PathBuf| {
            let recording = Recording::open(file)?.with_content()?;
            // The run of a recording is needed next, which requires its last blocks.
            let _ = recording.last_ticks();
            Ok::<_, ncclscope_trace::Error>(recording)
        };
        let mut take = |index: usize, recording| {
            progress.at(index as u64 + 1);
            let file = &files[index];
            terminal::say(2, || format!("opened {}", file.display()));
            match recording {
                Ok(recording) => input.recordings.push(recording),
                Err(error) => {
                    let advice = formats::reader(file).map(|verb| format!(": {verb}"));
                    let advice = advice.unwrap_or_default();
                    let line = format!("cannot read {}: {error}{advice}", file.display());
                    if input.unreadable.len() < NAMED {
                        input.unreadable.push(line.clone());
                    }
                    // A file that the user named must be readable, others of its directory not.
                    if named.contains(file) {
                        failed.get_or_insert(line);
                    } else {
                        passed_over += 1;
                        (passed_over <= NAMED).then(|| warn(line));
                    }
                    input.bad += 1;
                }
            }
        };
        // Passing each of thousands from thread to thread would take longer than to open it.
        let at_once = (files.len() / PARTS).clamp(1, MOST_AT_ONCE);
        let parts: Vec<&[PathBuf]> = files.chunks(at_once).collect();
        let open_all = |part: &&[PathBuf]| part.iter().map(open).collect::<Vec<_>>();
        in_order(&parts, open_all, |at, opened| {
            opened.into_iter().zip(at * at_once..).for_each(|(one, index)| take(index, one));
        });
        drop(progress);
        if let more @ 1.. = passed_over.saturating_sub(NAMED) {
            warn(format_args!("{} unreadable", human::are(more, "more recording")));
        }
        if let Some(line) = failed {
            return Err(Failure::input(line));
        }
        if input.recordings.is_empty() {
            let places: Vec<String> = named.iter().map(|path| path.display().to_string()).collect();
            let what = match files.len() {
                1 => "the recording cannot be read".to_owned(),
                count => format!("none of the {count} recordings can be read"),
            };
            return Err(Failure::input(format!("{what} in {}", places.join(", "))));
        }
        Ok(input)
    }

    /// Keeps one recording of each process of one run, and prints what is left out.
    fn keep(&mut self, run: Option<&str>) -> Result<(), Failure> {
        let facts: Vec<ProcessFacts> = self.recordings.iter().map(ProcessFacts::of).collect();
        let runs = Runs::split(&facts);
        let Some(chosen) = runs.choose(run).map_err(Failure::input)? else { return Ok(()) };
        runs.notes(&facts, chosen).iter().for_each(tell);
        self.name_nameless(&facts, &runs.nameless);
        let other = match &runs.runs[..] {
            [a, b] if a.id == chosen.id => &b.members[..],
            [a, _] => &a.members,
            _ => &[],
        };
        let mut recordings: Vec<Option<Recording>> = self.recordings.drain(..).map(Some).collect();
        self.other = other.iter().filter_map(|&at| recordings[at].take()).collect();
        let members: BTreeSet<usize> = chosen.members.iter().copied().collect();
        self.recordings = members.iter().filter_map(|&at| recordings[at].take()).collect();
        Ok(())
    }

    /// Names the damaged recordings after they were processed, one line each up to [`NAMED`].
    /// Returns the exit code.
    pub(crate) fn finish(&self) -> ExitCode {
        match self.bad + name_damaged(&self.recordings) {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(BAD_INPUT),
        }
    }
}

/// The error that a directory has no recordings, with the verb that reads its content instead.
fn nothing_in(directory: &Path) -> Failure {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let other = files.iter().find_map(|file| formats::reader(file));
    let why = below(directory).or(other).unwrap_or_else(|| {
        "NCCL did not load the plugin (`ncclscope doctor` checks that), no process used NCCL, the \
         job ended before its first communicator, with which a recording begins, or the files \
         could not be written, as lines of ncclscope in the job's log say"
            .into()
    });
    Failure::input(format!("no recordings (*.nscope) in {}: {why}", directory.display()))
}

/// The directories below that have recordings, as the end of a sentence.
pub(crate) fn below(directory: &Path) -> Option<String> {
    let mut left: VecDeque<PathBuf> = [directory.to_owned()].into();
    let (mut places, mut entries) = (BTreeSet::new(), 0);
    // Of a whole file system, the beginning.
    let is_enough =
        |places: &BTreeSet<PathBuf>, entries| entries > LOOKED_AT || places.len() > PLACES;
    while !is_enough(&places, entries)
        && let Some(directory) = left.pop_front()
    {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            entries += 1;
            if is_enough(&places, entries) {
                break;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push_back(entry.path());
            } else if is_recording(&entry.file_name().to_string_lossy()) {
                places.extend(entry.path().parent().map(Path::to_owned));
            }
        }
    }
    let more = if places.len() > PLACES { ", and others" } else { "" };
    let first: Vec<String> =
        places.iter().take(PLACES).map(|place| place.display().to_string()).collect();
    (!first.is_empty()).then(|| {
        format!("recordings are in {}{more}: name the directory of a run", first.join(", "))
    })
}

/// Prints that the archives of a directory are not read.
pub(crate) fn tell_archives(directory: &Path) {
    let is_one = |name: &str| ARCHIVES.iter().any(|end| name.ends_with(end));
    tell_left_out(directory, is_one, "to read an archive, unpack it");
}

/// Prints that files with such names in a directory are not read, with advice.
pub(crate) fn tell_left_out(directory: &Path, is_one: impl Fn(&str) -> bool, advice: &str) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| is_one(name)).collect();
    names.sort();
    let Some(first) = names.first().map(|name| directory.join(name)) else { return };
    let more = match names.len() - 1 {
        0 => String::new(),
        more => format!(" and {}", human::count(more, "more file")),
    };
    let are = human::if_one(names.len(), "is", "are");
    tell(format_args!("{}{more} {are} not read: {advice}", first.display()));
}

/// The recordings of one run.
#[derive(Debug)]
pub(crate) struct RunInput {
    /// Id of the run, or name of its directory.
    pub(crate) name: String,
    /// Its recordings, one for each process.
    pub(crate) recordings: Vec<Recording>,
}

/// Opens a recording, or all recordings below a directory, grouped by run, the oldest first. Also
/// returns the number of unreadable ones.
pub(crate) fn open_runs(path: &Path) -> Result<(Vec<RunInput>, usize), Failure> {
    let cannot_read = |e| Failure::input(format!("cannot read {}: {e}", path.display()));
    let Below { files, unreadable } = if std::fs::metadata(path).map_err(cannot_read)?.is_dir() {
        files_below(path, is_recording).map_err(cannot_read)?
    } else {
        Below { files: vec![path.to_owned()], unreadable: Vec::new() }
    };
    warn_of_unreadable(&unreadable);
    if files.is_empty() {
        return Err(Failure::input(format!(
            "no recordings (*.nscope) below {}, no saved reports (*.json), and no files of NCCL \
             Inspector or nccl-tests",
            path.display()
        )));
    }
    let named = [path.to_owned()];
    let Input { recordings, bad, .. } = Input::open_all(&files, &named)?;
    let facts: Vec<ProcessFacts> = recordings.iter().map(ProcessFacts::of).collect();
    let runs = Runs::split(&facts);
    runs.copies(&facts).iter().for_each(tell);
    let line = |&at: &usize| format!("{} {NAMELESS}", facts[at].path.display());
    let nameless = first_of(runs.nameless.iter().map(line), "left out for the same reason");
    nameless.iter().for_each(warn);
    let bad = bad + runs.nameless.len() + unreadable.len();
    let mut recordings: Vec<Option<Recording>> = recordings.into_iter().map(Some).collect();
    let mut take = |run: &Run| RunInput {
        name: run.id.clone(),
        recordings: run.members.iter().filter_map(|&at| recordings[at].take()).collect(),
    };
    let runs: Vec<RunInput> = runs.runs.iter().map(&mut take).collect();
    Ok((runs, bad))
}

/// The saved reports at a path: a JSON file, or all JSON files of a directory without recordings.
pub(crate) fn saved_in(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let cannot_read = |e| Failure::input(format!("cannot read {}: {e}", path.display()));
    let is_json = |name: &str| name.ends_with(".json") && !NOT_REPORTS.contains(&name);
    if !std::fs::metadata(path).map_err(cannot_read)?.is_dir() {
        let mut first = [0];
        let read = open_to_read(path).and_then(|mut file| file.read(&mut first));
        let is_saved = read.map_err(cannot_read)? == 1 && first == *b"{";
        return Ok(if is_saved { vec![path.to_owned()] } else { Vec::new() });
    }
    if !files_below(path, is_recording).map_err(cannot_read)?.files.is_empty() {
        return Ok(Vec::new());
    }
    Ok(files_below(path, is_json).map_err(cannot_read)?.files)
}

/// The recordings in a directory and below it, sorted. What cannot be read gets a warning.
pub(crate) fn all_below(directory: &Path) -> Vec<PathBuf> {
    match files_below(directory, is_recording) {
        Ok(Below { files, unreadable }) => {
            warn_of_unreadable(&unreadable);
            files
        }
        Err(error) => {
            warn(format_args!("cannot read {}: {error}", directory.display()));
            Vec::new()
        }
    }
}

/// The directories below a directory, sorted, as deep as recordings are looked for.
pub(crate) fn directories_below(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![(directory.to_owned(), 0)]);
    while let Some((directory, depth)) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if depth < DEPTH && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push((entry.path(), depth + 1));
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// The files that have such names in a directory without recordings and below it, sorted.
pub(crate) fn named_below(directory: &Path, is_one: fn(&str) -> bool) -> Vec<PathBuf> {
    let found = |is_one| files_below(directory, is_one).map_or_else(|_| Vec::new(), |it| it.files);
    if found(is_recording as fn(&str) -> bool).is_empty() { found(is_one) } else { Vec::new() }
}

/// What is in a directory and below it.
struct Below {
    /// The files with the wanted names, sorted.
    files: Vec<PathBuf>,
    /// Directories that cannot be read, one line each.
    unreadable: Vec<String>,
}

/// The files with such names in a directory and below it. An error if the directory itself cannot
/// be read.
fn files_below(directory: &Path, is_one: fn(&str) -> bool) -> io::Result<Below> {
    let mut unreadable = Vec::new();
    let (mut files, mut left) = (Vec::new(), vec![(directory.to_owned(), 0)]);
    while let Some((directory, depth)) = left.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if depth > 0 => {
                unreadable.push(format!("cannot read {}: {error}", directory.display()));
                continue;
            }
            Err(error) => return Err(error),
        };
        for entry in entries {
            let looked_at = entry.and_then(|entry| Ok((entry.file_type()?, entry)));
            let (kind, entry) = match looked_at {
                Ok(looked_at) => looked_at,
                Err(error) => {
                    unreadable.push(format!("cannot read all of {}: {error}", directory.display()));
                    continue;
                }
            };
            // Links to directories are not followed, because they may form a cycle.
            if kind.is_dir() {
                if depth < DEPTH {
                    left.push((entry.path(), depth + 1));
                }
            } else if is_one(&entry.file_name().to_string_lossy()) {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(Below { files, unreadable })
}

/// The error that a file is JSON that ncclscope printed; `None` if it is another file.
pub(crate) fn not_an_input(path: &Path) -> Option<Failure> {
    let what = formats::own_json(path)?;
    Some(Failure::input(format!("{} is {what}: name recordings", path.display())))
}

/// The content of `run.json` in this directory; `None` if there is none.
pub(crate) fn about_run(directory: &Path) -> Option<serde_json::Value> {
    let mut bytes = Vec::new();
    let file = open_to_read(&directory.join(ABOUT_RUN)).ok()?;
    file.take(ABOUT_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// How the command of a run ended, from `run.json`; `None` if it has not, or if that is unknown.
pub(crate) fn command_end(run: &serde_json::Value) -> Option<CommandEnd> {
    let number = |key: &str| run[key].as_u64();
    let small = |key: &str| number(key).and_then(|number| u8::try_from(number).ok());
    Some(CommandEnd {
        exit_code: small("exit_code")?,
        signal: small("signal"),
        asked: small("asked"),
        rank: number("rank").and_then(|rank| u32::try_from(rank).ok()),
    })
}

/// Prints these lines of one for each file, up to [`NAMED`], and how many more there are.
pub(crate) fn warn_of_files(lines: &[String]) {
    let more = |more| format!("the same is true of {}", human::count(more, "more file"));
    first_lines(lines.iter().cloned(), more).iter().for_each(warn);
}

/// Prints these lines about directories, up to [`NAMED`], and how many more there are.
fn warn_of_unreadable(directories: &[String]) {
    let more = |more| format!("{more} more directories cannot be read");
    first_lines(directories.iter().cloned(), more).iter().for_each(warn);
}
