// SPDX-License-Identifier: Apache-2.0
//! What runs beside the tests, at the lowest priority, one after the other: builds in target
//! folders of their own, and jobs whose results do not depend on how fast they run.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Done, Job, JobResult, timed};
use crate::process;

/// What of a job runs beside the tests.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Nothing,
    /// A command that does some of its work. The job does what this left undone, and says what is
    /// wrong with it.
    Command(&'static str),
    /// The whole job.
    All,
}

/// The jobs that ended, by name. An error is text here: `Outcome`'s cannot leave its thread.
type Results = BTreeMap<&'static str, Result<(JobResult, String), String>>;

/// The thread that runs them, and what is ready. By default there is none.
#[derive(Default)]
pub(super) struct Beside {
    thread: Option<JoinHandle<()>>,
    results: Arc<Mutex<Results>>,
    stop: Arc<AtomicBool>,
}

impl Beside {
    /// Starts what `jobs` have to run beside the tests.
    pub(super) fn start(jobs: &[Job], limit: Duration) -> Self {
        let beside = Self::default();
        let jobs: Vec<Job> = jobs.to_vec();
        let (results, stop) = (Arc::clone(&beside.results), Arc::clone(&beside.stop));
        let deadline = Instant::now() + limit;
        let work = move || {
            for job in jobs {
                let left = deadline.saturating_duration_since(Instant::now());
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                match job.beside {
                    Part::Nothing => {}
                    Part::Command(words) => drop(quietly(&job, words, left)),
                    Part::All => {
                        let done = quietly(&job, job.command, left);
                        lock(&results).insert(job.name, done);
                    }
                }
            }
        };
        Self { thread: Some(std::thread::spawn(work)), ..beside }
    }

    /// Waits for all of it, or, unless there is `need`, for the command that runs.
    pub(super) fn finish(&mut self, need: bool) {
        if !need {
            self.stop.store(true, Ordering::Relaxed);
        }
        if let Some(thread) = self.thread.take() {
            // A panic leaves its jobs to be run in their turn.
            let _ = thread.join();
        }
    }

    /// How the job ended, if it ran here; its output is printed.
    pub(super) fn take(&self, name: &str) -> Option<Done> {
        let done = lock(&self.results).remove(name)?;
        if let Ok((_, output)) = &done {
            eprint!("{output}");
        }
        Some(done.map_err(Into::into))
    }
}

fn lock(results: &Mutex<Results>) -> MutexGuard<'_, Results> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `words` at the lowest priority, and keeps what they print.
fn quietly(job: &Job, words: &str, limit: Duration) -> Result<(JobResult, String), String> {
    let mut command = timed(job, &format!("nice -n 19 {words}"), limit);
    let begin = Instant::now();
    let output = process::without_our_package(&mut command).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = [output.stdout, output.stderr].concat();
    let result = JobResult::of(output.status, begin.elapsed() >= limit);
    Ok((result, String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_jobs_end_beside_and_others_do_not() {
        let job = |name, command, beside| Job { name, command, beside, ..Job::NONE };
        let jobs = [
            job("not", "false", Part::Nothing),
            job("part", "false", Part::Command("true")),
            job("all", "nice", Part::All),
            job("wrong", "false", Part::All),
        ];
        let mut beside = Beside::start(&jobs, Duration::from_secs(60));
        beside.finish(true);
        assert!(beside.take("not").is_none() && beside.take("part").is_none());
        let done = beside.take("all").expect("it ran").expect("nice runs");
        assert_eq!(done, (JobResult::Passed, "19\n".into()));
        assert_eq!(beside.take("wrong").expect("it ran").expect("it ends").0, JobResult::Failed);
        assert!(beside.take("all").is_none(), "a result is for one job");
    }

    #[test]
    fn what_is_not_needed_is_not_begun() {
        let slow = Job { name: "slow", command: "sleep 0.2", beside: Part::All, ..Job::NONE };
        let mut beside = Beside::start(&[slow; 50], Duration::from_secs(60));
        let begin = Instant::now();
        beside.finish(false);
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}
