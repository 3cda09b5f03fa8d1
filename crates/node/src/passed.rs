// SPDX-License-Identifier: Apache-2.0
/*!
Recordings that the agent does not follow, and when it tries them again.

No recording is skipped permanently: an error may be temporary, a file may be replaced, and a
process that was silent may continue.
*/

use crate::process::Counted;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause after the first error; it doubles with each further one up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Pause before the second check of a file's state; it doubles with each check up to [`RAREST`], so
/// that a year of recordings causes few checks.
const LOOK: Duration = Duration::from_secs(60);
const RAREST: Duration = Duration::from_secs(3600);

/// Why a recording is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its process has ended or was silent for long; valid until the file changes.
    Over,
    /// It is from another host, or a copy; valid until the path leads to another file.
    Elsewhere,
    /// Its header is not written yet.
    Begins,
    /// It cannot be read, for the given reason.
    Unreadable(String),
}

/// Recordings that are not followed.
#[derive(Debug, Default)]
pub(crate) struct Passed(BTreeMap<PathBuf, Entry>);

/// A recording that was passed over.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    reason: Reason,
    state: State,
    again: Instant,
    pause: Duration,
    /// What its process does before it is followed belongs to earlier windows.
    pub(crate) is_old: bool,
    /// Up to where it was counted when it was last followed, if it was.
    pub(crate) counted: Option<Counted>,
}

/// Time, size and identity of a file; zeros if it does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    modified: (i64, i64),
    size: u64,
    file: (u64, u64),
}

impl State {
    fn of(path: &Path) -> State {
        let Ok(of) = std::fs::metadata(path) else { return State::default() };
        let modified = (of.mtime(), of.mtime_nsec());
        State { modified, size: of.size(), file: (of.dev(), of.ino()) }
    }
}

impl Entry {
    /// True if the file changed after its process was considered ended, so that the process
    /// continues.
    pub(crate) fn was_over(&self) -> bool {
        self.reason == Reason::Over
    }
}

impl Passed {
    /// Passes over `path`; `before` is its entry if it was passed over already. True if the reason
    /// is new.
    pub(crate) fn add(
        &mut self,
        path: PathBuf,
        reason: Reason,
        is_old: bool,
        before: Option<&Entry>,
    ) -> bool {
        let is_new = before.is_none_or(|before| before.reason != reason);
        let pause = match (&reason, before) {
            (Reason::Begins, _) => Duration::ZERO,
            (Reason::Unreadable(_), Some(before)) if !is_new => (before.pause * 2).min(LONGEST),
            (Reason::Unreadable(_), _) => FIRST,
            _ => LOOK,
        };
        let (state, again) = (State::of(&path), Instant::now() + pause);
        let counted = before.and_then(|before| before.counted.clone());
        self.0.insert(path, Entry { reason, state, again, pause, is_old, counted });
        is_new
    }

    /// Passes over a recording that was followed until now.
    pub(crate) fn retire(&mut self, path: PathBuf, counted: Option<Counted>) {
        self.add(path.clone(), Reason::Over, true, None);
        self.0.entry(path).and_modify(|entry| entry.counted = counted);
    }

    /// Forgets a file that is gone.
    pub(crate) fn remove(&mut self, path: &Path) {
        self.0.remove(path);
    }

    /// Removes and returns the recordings that may be followed now, of those whose pause is over.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(PathBuf, Entry)> {
        let mut due = Vec::new();
        for (path, entry) in self.0.iter_mut().filter(|(_, entry)| entry.again <= now) {
            let state = State::of(path);
            entry.again = now + entry.pause;
            let may_follow = match entry.reason {
                Reason::Over => state != entry.state,
                Reason::Elsewhere => state.file != entry.state.file,
                Reason::Begins | Reason::Unreadable(_) => true,
            };
            if may_follow {
                due.push((path.clone(), entry.clone()));
            } else {
                entry.pause = (entry.pause * 2).min(RAREST);
            }
        }
        due.iter().for_each(|(path, _)| self.remove(path));
        due
    }

    /// Number of recordings whose first page is not written yet.
    pub(crate) fn beginning(&self) -> usize {
        self.0.values().filter(|entry| entry.reason == Reason::Begins).count()
    }

    /// Number of recordings that cannot be read.
    pub(crate) fn unreadable(&self) -> usize {
        let is_unreadable = |entry: &&Entry| matches!(entry.reason, Reason::Unreadable(_));
        self.0.values().filter(is_unreadable).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_looked_at_again() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name);
        let mut passed = Passed::default();
        for (name, reason) in [("over", Reason::Over), ("elsewhere", Reason::Elsewhere)] {
            std::fs::write(file(name), "a").unwrap();
            assert!(passed.add(file(name), reason, true, None));
        }
        let later = Instant::now() + LOOK;
        assert!(passed.due(later).is_empty(), "neither changed");
        for name in ["over", "elsewhere"] {
            std::fs::write(file(name), "ab").unwrap();
        }
        assert!(passed.due(later).is_empty(), "now and then only");
        let due = passed.due(later + LOOK);
        assert_eq!(due.len(), 1, "another host's grows all the time");
        assert!(due[0].0 == file("over") && due[0].1.was_over() && due[0].1.is_old);
        std::fs::write(file("new"), "a").unwrap();
        std::fs::rename(file("new"), file("elsewhere")).unwrap();
        assert_eq!(passed.due(later + 3 * LOOK)[0].0, file("elsewhere"));
    }

    #[test]
    fn what_stays_as_it_is_is_looked_at_ever_less_often() {
        let mut passed = Passed::default();
        passed.add(PathBuf::from("/nowhere"), Reason::Over, true, None);
        let (start, mut looks) = (Instant::now(), 0);
        for minute in 1..=1440 {
            let before = passed.0[Path::new("/nowhere")].again;
            assert!(passed.due(start + minute * LOOK).is_empty());
            looks += u32::from(passed.0[Path::new("/nowhere")].again != before);
        }
        assert!((24..=30).contains(&looks), "{looks} looks in a day");
    }

    #[test]
    fn an_error_is_tried_again_ever_less_often() {
        let mut passed = Passed::default();
        let why = Reason::Unreadable("too many open files".into());
        let (path, mut now) = (PathBuf::from("/nowhere"), Instant::now());
        assert!(passed.add(path.clone(), why.clone(), false, None));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(passed.unreadable(), 1);
            now += LONGEST;
            let (path, before) = passed.due(now).remove(0);
            pauses.push(before.pause.as_secs());
            assert!(!passed.add(path, why.clone(), false, Some(&before)), "one warning");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        let (path, before) = passed.due(now + LONGEST).remove(0);
        let other = Reason::Unreadable("it is damaged".into());
        assert!(passed.add(path, other, false, Some(&before)));
    }
}
