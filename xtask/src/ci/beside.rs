// SPDX-License-Identifier: Apache-2.0
//! Runs commands beside a job that mostly waits, at the lowest priority and a few at a time: builds
//! in their own target folders, and jobs whose results do not depend on speed.

use std::collections::{BTreeMap, VecDeque};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::job::{Done, Job, JobResult, TESTS, timed};
use crate::process;

/// The results of jobs that ended, by name. Errors are text, because `Outcome`'s cannot leave its
/// thread.
type Results = BTreeMap<&'static str, Result<(JobResult, String), String>>;

/// Maximum number of commands beside the tests: most are builds, which share the processors.
const BESIDE_TESTS: usize = 3;
/// Maximum number of commands beside another job: most wait for processes that wait.
const BESIDE_OTHERS: usize = 4;

/// The threads that run the commands, and the results. By default there are none.
#[derive(Default)]
pub(super) struct Beside {
    threads: Vec<JoinHandle<()>>,
    results: Arc<Mutex<Results>>,
    stop: Arc<AtomicBool>,
}

impl Beside {
    /// Starts the commands that `jobs` run beside the job of this name.
    pub(super) fn start(&mut self, name: &str, jobs: &[Job], limit: Duration) {
        let prepared = |job: &Job| if name == TESTS { job.prepare } else { None };
        // Each job with the command that prepares it, or with `None` if the whole job runs here.
        let work_of = |job: &Job| match (job.with == Some(name), prepared(job)) {
            (true, _) => Some((*job, None)),
            (false, Some(words)) => Some((*job, Some(words))),
            (false, None) => None,
        };
        let mut work: Vec<_> = jobs.iter().filter_map(work_of).collect();
        // A job that runs its tests one by one must not be the last, or a processor would be idle.
        work.sort_by_key(|(_, prepare)| prepare.is_some());
        let jobs = Arc::new(Mutex::new(VecDeque::from(work)));
        let deadline = Instant::now() + limit;
        let threads = if name == TESTS { BESIDE_TESTS } else { BESIDE_OTHERS };
        for _ in 0..threads {
            let (jobs, results) = (Arc::clone(&jobs), Arc::clone(&self.results));
            let stop = Arc::clone(&self.stop);
            let next = move || lock(&jobs).pop_front();
            self.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed)
                    && let Some((job, prepare)) = next()
                {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let done = quietly(&job, prepare.unwrap_or(job.command), left);
                    if prepare.is_none() {
                        lock(&results).insert(job.name, done);
                    }
                }
            }));
        }
    }

    /// Waits for all commands; unless there is `need`, only for those that are running.
    pub(super) fn finish(&mut self, need: bool) {
        if !need {
            self.stop.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            // If a thread panicked, its jobs run later in their turn.
            let _ = thread.join();
        }
    }

    /// The result of a job that ran here, if it did; prints its output.
    pub(super) fn take(&self, name: &str) -> Option<Done> {
        let done = lock(&self.results).remove(name)?;
        if let Ok((_, output)) = &done {
            eprint!("{output}");
        }
        Some(done.map_err(Into::into))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `words` at the lowest priority, and returns the output.
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
        let job = |name, command, prepare, with| Job { name, command, prepare, with, ..Job::NONE };
        let jobs = [
            job("not", "false", None, None),
            job("part", "false", Some("true"), None),
            job("all", "nice", None, Some(TESTS)),
            job("wrong", "false", None, Some(TESTS)),
            job("later", "nice", Some("false"), Some("other")),
        ];
        let mut beside = Beside::default();
        beside.start("other", &jobs, Duration::from_secs(60));
        beside.finish(true);
        assert!(beside.take("all").is_none(), "it runs beside the tests");
        assert_eq!(beside.take("later").expect("it ran").expect("it ends").0, JobResult::Passed);
        beside.start(TESTS, &jobs, Duration::from_secs(60));
        beside.finish(true);
        assert!(beside.take("later").is_none(), "it is only prepared");
        assert!(beside.take("not").is_none() && beside.take("part").is_none());
        let done = beside.take("all").expect("it ran").expect("nice runs");
        assert_eq!(done, (JobResult::Passed, "19\n".into()));
        assert_eq!(beside.take("wrong").expect("it ran").expect("it ends").0, JobResult::Failed);
        assert!(beside.take("all").is_none(), "a result is for one job");
    }

    #[test]
    fn what_is_not_needed_is_not_begun() {
        let slow = Job { name: "slow", command: "sleep 0.2", with: Some(TESTS), ..Job::NONE };
        let mut beside = Beside::default();
        beside.start(TESTS, &[slow; 50], Duration::from_secs(60));
        let begin = Instant::now();
        beside.finish(false);
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}
