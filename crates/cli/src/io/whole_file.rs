// SPDX-License-Identifier: Apache-2.0
//! Output files that appear complete or not at all, and that never replace a recording, what else
//! is kept of a run, or what the verb reads.

use crate::io::formats::{ABOUT_RUN, own_json};

use crate::io::pipe;
use ncclscope_console::failure::Failure;
use ncclscope_kineto::file::Output;
use ncclscope_node::fresh;
use ncclscope_trace::layout::MAGIC;
use ncclscope_trace::names::is_recording_path;
use ncclscope_trace::{open_to_read, vectors};
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Refuses paths that cannot be written, before minutes of reading.
pub(crate) fn is_place(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        let text = format!("cannot write {}: it is a directory: name a file in it", path.display());
        return Err(Failure::environment(text));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        && !folder.exists()
    {
        let (path, folder) = (path.display(), folder.display());
        let text = format!("cannot write {path}: there is no directory {folder}: make it first");
        return Err(Failure::environment(text));
    }
    keep_run(path)
}

/// Refuses to replace what is kept of a run (a recording, `run.json`, `truth.json`, a table of
/// vectors, a saved report), and a name of recordings. Any verb's own results may be replaced.
fn keep_run(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let mut first = Vec::new();
    let read = open_to_read(path).and_then(|file| file.take(8).read_to_end(&mut first));
    let what = match read {
        Ok(_) if first == MAGIC => Some("a recording".to_owned()),
        Ok(_) if vectors::is_table(&first) => Some("a table of vectors".to_owned()),
        _ => own_json(path),
    };
    if let Some(what) = what {
        return Err(Failure::usage(format!("{shown} is {what}: name another file")));
    }
    if is_recording_path(path) {
        return Err(Failure::usage(format!("{shown} is named like a recording: use another name")));
    }
    Ok(())
}

/// Refuses to replace a file that is read, which may be the only copy. A directory in `inputs`
/// stands for its `run.json`: [`is_place`] protects the rest of it.
pub(crate) fn keep_inputs(inputs: &[PathBuf], outputs: &[PathBuf]) -> Result<(), Failure> {
    let file_of = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        about.is_file().then(|| (about.dev(), about.ino()))
    };
    let read = |input: &PathBuf| file_of(input).or_else(|| file_of(&input.join(ABOUT_RUN)));
    let inputs: BTreeSet<(u64, u64)> = inputs.iter().filter_map(read).collect();
    let is_input = |path: &&PathBuf| file_of(path).is_some_and(|file| inputs.contains(&file));
    match outputs.iter().find(is_input) {
        Some(path) => {
            let path = path.display();
            Err(Failure::usage(format!("{path} is one of the inputs: name another file")))
        }
        None => Ok(()),
    }
}

/// Writes a file that gets its name when it is complete. Until then it has no name if the file
/// system supports that, so that a kill leaves nothing behind; else a temporary one.
pub(crate) fn create<T>(
    path: &Path,
    write: impl FnOnce(File) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failed = |e: io::Error| Failure::write(path, &e);
    is_place(path)?;
    // A pipe or a device cannot be replaced.
    if pipe::is_one(path) {
        return pipe::open(path).map_err(failed).and_then(write);
    }
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let name = PathBuf::from(name);
    let unnamed = unnamed(path);
    let file = match &unnamed {
        Some(file) => file.try_clone(),
        None => fresh::create(&name),
    };
    let named = || {
        if let Some(file) = &unnamed {
            link(file, &name)?;
        }
        std::fs::rename(&name, path)
    };
    let written = file.map_err(failed).and_then(write);
    let result = written.and_then(|written| named().map_err(failed).map(|()| written));
    if result.is_err() {
        let _ = std::fs::remove_file(&name);
    }
    result
}

/// Like [`create`], but compressed if the file's name ends in `.gz`.
pub(crate) fn create_packed<T>(
    path: &Path,
    write: impl FnOnce(&mut Output) -> Result<T, Failure>,
) -> Result<T, Failure> {
    create(path, |file| {
        let mut out = Output::new(file, is_packed(path));
        let written = write(&mut out)?;
        out.finish().map_err(|e| Failure::write(path, &e))?;
        Ok(written)
    })
}

/// True if a file is compressed, according to its name.
pub(crate) fn is_packed(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "gz")
}

/// The directory of a process's own open files.
const OPEN_FILES: &str = "/proc/self/fd";

/// A file without a name in the directory of `path`; `None` if that is not supported.
fn unnamed(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::TMPFILE.bits().cast_signed());
    let file = options.open(folder.unwrap_or_else(|| Path::new("."))).ok()?;
    // The path through which the file gets its name.
    Path::new(OPEN_FILES).is_dir().then_some(file)
}

fn link(file: &File, name: &Path) -> io::Result<()> {
    let _ = std::fs::remove_file(name);
    let from = format!("{OPEN_FILES}/{}", file.as_raw_fd());
    Ok(linkat(CWD, from, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_is_there_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        let path = folder.path().join("result");
        let cannot = |error: io::Error| Failure::write(&path, &error);
        std::fs::write(&path, "before").unwrap();
        create(&path, |mut file| {
            file.write_all(b"half").unwrap();
            assert_eq!(count(), 1, "a kill leaves nothing");
            assert_eq!(std::fs::read(&path).unwrap(), b"before");
            file.write_all(b" whole").map_err(cannot)
        })
        .unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), count()), (b"half whole".to_vec(), 1));
        let failure = create(&path, |_| Err::<(), _>(Failure::environment("no"))).unwrap_err();
        assert_eq!((failure.text(), count()), ("no".into(), 1));
    }
}
