// SPDX-License-Identifier: Apache-2.0
/*!
The writer thread: it alone writes the recording's file.

It gets [`Job`]s in order: blocks of records, which the drain thread encodes while it has them in
cache, and everything else that is written. Records keep their space in the lanes until they are
written, so that a kill loses none. If the file system is so slow that a lane becomes full, the
drain thread frees the space earlier; records that do not fit into the queue are counted.

If no thread can be started, the caller does the jobs itself with [`Recording::work`].
*/

use crate::directory;
use crate::handover::Handover;
use crate::lanes::LanesFile;
use crate::orders::Dumped;
use crate::own;
use crate::reply::{Answer, Reply};
use crate::shared::Shared;
use crate::sys;
use crate::sys::descriptor::{self, Identity};
use crate::sys::lock::Lock;
use crate::sys::wake::Wake;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ncclscope_trace::codec::{Block, Encoder, SPARE};
use ncclscope_trace::dump::Rest;
use ncclscope_trace::lanes_file::Owner;
use ncclscope_trace::layout::Header;
use ncclscope_trace::{ClockSync, Definition, Writer};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum size of the records that wait for the file, bytes: four seconds at the highest rate of
/// steps of a 400 Gb/s network, many minutes of an ordinary job.
const QUEUE_BYTES: usize = 16 << 20;
/// Maximum number of definitions that wait while the file system accepts no writes.
const WAITING: usize = 1 << 16;

/// What is needed to create a recording.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) dir: PathBuf,
    /// The part of the directory's path that must belong to this user.
    pub(crate) private: Option<PathBuf>,
    pub(crate) header: Header,
    pub(crate) ring_bytes: u64,
    /// A number that other processes are unlikely to have.
    pub(crate) nonce: u32,
    pub(crate) lanes: Option<Arc<LanesFile>>,
}

/// A job for the writer thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Records of a lane, or records of the plugin itself.
    Block(Box<Block>),
    /// Progress records.
    Heartbeats(Vec<u64>),
    /// A comparison of the clocks.
    Clock(ClockSync),
    /// Whether something is stuck: meanwhile the events that led to it are kept.
    Freeze(bool),
    Define(Definition),
    /// Writes the header with all counters; `hz` is the number of ticks per second.
    Sync {
        hz: u64,
        done: Option<Answer<()>>,
    },
    /// Copies the present recording, with the steps in flight.
    Checkpoint {
        hz: u64,
        rest: Vec<Rest>,
        done: Answer<Dumped>,
    },
    /// The last job: closes the recording, with the steps in flight.
    Close {
        hz: u64,
        rest: Vec<Rest>,
        done: Answer<()>,
    },
}

/// The recording's file and the jobs that wait for it.
#[derive(Debug)]
pub(crate) struct Recording {
    jobs: Handover<Job>,
    /// Blocks that were written, kept to reuse their memory.
    written: Lock<Vec<Block>>,
    /// The number of jobs done.
    done: AtomicU64,
    file: Lock<Stage>,
    has_thread: AtomicBool,
    is_refused: AtomicBool,
    wake: Wake,
}

#[derive(Debug)]
enum Stage {
    Opening(Box<Opening>),
    Open(Box<Open>),
    Over,
}

/// The open file.
#[derive(Debug)]
struct Open {
    writer: Writer,
    /// Identity of the file to which the writer's descriptor must lead.
    file: Identity,
    /// The host has closed the file, and it could not be opened again.
    is_gone: bool,
    path: PathBuf,
    nonce: u32,
    lanes: Option<Arc<LanesFile>>,
    /// Definitions that are not written yet.
    waiting: VecDeque<Definition>,
    waiting_lost: u64,
    has_failed: bool,
}

impl Recording {
    /// A recording whose file does not exist yet.
    pub(crate) fn new(opening: Opening) -> Recording {
        Recording {
            jobs: Handover::new(QUEUE_BYTES),
            written: Lock::new(Vec::new()),
            done: AtomicU64::new(0),
            file: Lock::new(Stage::Opening(Box::new(opening))),
            has_thread: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            wake: Wake::new(),
        }
    }

    /// Starts the writer thread. The answer is the file's path, or a line that says why there is
    /// none.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub(crate) fn start(
        self: &Arc<Recording>,
        shared: &'static Shared,
    ) -> io::Result<Reply<Result<PathBuf, String>>> {
        let (reply, answer) = Reply::new();
        let recording = Arc::clone(self);
        let body = move || {
            let body = || recording.run(shared, answer);
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
                shared.contain();
            }
        };
        sys::spawn_quiet("ncclscope/writer", body)?;
        self.has_thread.store(true, Ordering::Relaxed);
        Ok(reply)
    }

    fn run(&self, shared: &'static Shared, opened: Answer<Result<PathBuf, String>>) {
        let result = self.open(shared);
        if let Err(line) = &result {
            shared.give_up(line);
            self.refuse();
            return opened.give(result);
        }
        opened.give(result);
        while self.work(shared) {
            // Failed writes are retried with the next job, which comes within a second.
            self.wake.wait(None);
        }
    }

    /// Creates the file and returns its path. The error is a line for the user.
    pub(crate) fn open(&self, shared: &'static Shared) -> Result<PathBuf, String> {
        let mut stage = self.file.lock();
        let Stage::Opening(opening) = std::mem::replace(&mut *stage, Stage::Over) else {
            return Err("the recording was opened before".into());
        };
        let lanes = opening.lanes.clone();
        let open = Open::begin(*opening, shared).inspect_err(|_| {
            // Without a recording, the lanes file serves no purpose.
            lanes.iter().for_each(|lanes| lanes.remove());
        })?;
        let path = open.path.clone();
        *stage = Stage::Open(Box::new(open));
        shared.opened(&path);
        Ok(path)
    }

    /// Writes the queued jobs and retries failed definitions. False once the recording is closed.
    pub(crate) fn work(&self, shared: &'static Shared) -> bool {
        let mut stage = self.file.lock();
        let Stage::Open(open) = &mut *stage else { return false };
        open.define_waiting();
        let mut blocks = Vec::new();
        while let Some(job) = self.jobs.next() {
            if let Job::Block(block) = job {
                blocks.push(*block);
                if blocks.len() == SPARE {
                    self.write(open, &mut blocks, shared);
                }
                continue;
            }
            self.write(open, &mut blocks, shared);
            let is_last = matches!(job, Job::Close { .. });
            open.run(job, shared);
            self.done.fetch_add(1, Ordering::Relaxed);
            if is_last {
                *stage = Stage::Over;
                return false;
            }
        }
        self.write(open, &mut blocks, shared);
        true
    }

    /// Writes consecutive blocks, and keeps their memory for reuse.
    fn write(&self, open: &mut Open, blocks: &mut Vec<Block>, shared: &'static Shared) {
        if !blocks.is_empty() {
            open.write(blocks, shared);
            self.done.fetch_add(blocks.len() as u64, Ordering::Relaxed);
            let mut written = self.written.lock();
            let room = SPARE.saturating_sub(written.len());
            written.extend(blocks.drain(..).take(room));
        }
    }

    /// Returns the memory of written blocks to the encoder.
    pub(crate) fn give_back(&self, encoder: &mut Encoder) {
        encoder.reuse(self.written.lock().drain(..));
    }

    /// Drops all jobs, and all their answers, because there is no file and will be none.
    fn refuse(&self) {
        self.is_refused.store(true, Ordering::SeqCst);
        drop(self.jobs.take());
    }

    /// Queues a job; returns it if the queue is full.
    pub(crate) fn put(&self, job: Job) -> Result<(), Job> {
        let weight = match &job {
            Job::Block(block) => block.memory(),
            Job::Heartbeats(words) => size_of_val(words.as_slice()),
            _ => 0,
        };
        let result = self.jobs.put(job, weight);
        if self.is_refused.load(Ordering::SeqCst) {
            drop(self.jobs.take());
        }
        result
    }

    /// Starts the queued work: on the writer thread, or on the calling thread if there is none.
    pub(crate) fn wake(&self, shared: &'static Shared) {
        if self.has_thread.load(Ordering::Relaxed) {
            self.wake.wake();
        } else {
            self.work(shared);
        }
    }

    /// Number of jobs done.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl Open {
    /// Creates the first file. The error is a line for the user.
    fn begin(mut opening: Opening, shared: &'static Shared) -> Result<Open, String> {
        if let Some(base) = opening.private.take() {
            let (dir, line) = own::place(&base, &opening.dir)?;
            opening.dir = dir;
            line.into_iter().for_each(|line| shared.tell(line));
        }
        let dir = opening.dir.clone();
        Open::create(opening).map_err(|error| {
            format!(
                "cannot record in {}: {error}; recording and the watchdog are off",
                dir.display()
            )
        })
    }

    fn create(opening: Opening) -> io::Result<Open> {
        let Opening { dir, private: _, header, ring_bytes, nonce, lanes } = opening;
        let dir = std::path::absolute(dir)?;
        let (writer, path) = directory::create(&dir, &header, ring_bytes, nonce)?;
        let file = Identity::of(writer.file().as_fd())
            .inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        let owner = Owner::new(header.pid, header.process, path.clone());
        lanes.iter().try_for_each(|lanes| lanes.belongs_to(&owner))?;
        let waiting = VecDeque::new();
        Ok(Open {
            writer,
            file,
            is_gone: false,
            path,
            nonce,
            lanes,
            waiting,
            waiting_lost: 0,
            has_failed: false,
        })
    }

    /// The writer, after a check of its descriptor. The host may have closed the descriptor and
    /// reused its number for a file of its own. Then the writer continues in the file of that name;
    /// if that cannot be opened, all further records are counted as unwritten.
    fn writer(&mut self) -> &mut Writer {
        if !self.file.is(self.writer.file()) {
            let again = descriptor::open_again(&self.path, self.file);
            self.is_gone = again.is_err();
            if let Ok(file) = again.or_else(|_| descriptor::refusing()) {
                self.file = Identity::of(file.as_fd()).unwrap_or(self.file);
                descriptor::let_go(self.writer.go_on_in(file));
            }
        }
        &mut self.writer
    }

    /// Writes blocks, and frees the space of their records in the lanes.
    fn write(&mut self, blocks: &mut [Block], shared: &'static Shared) {
        let result = self.writer().append_blocks(blocks);
        self.keep(result, shared);
        for block in blocks {
            let header = shared.recorder.region.lane_header(block.lane.into());
            header.into_iter().for_each(|header| header.take_until(block.end));
        }
    }

    fn run(&mut self, job: Job, shared: &'static Shared) {
        match job {
            Job::Block(mut block) => self.write(std::slice::from_mut(&mut *block), shared),
            Job::Heartbeats(words) => {
                let result = self.writer().append_heartbeats(&words);
                self.keep(result, shared);
            }
            Job::Clock(sync) => {
                let result = self.writer().append_clock(&sync);
                self.keep(result, shared);
            }
            Job::Freeze(true) => self.writer.freeze_events(),
            Job::Freeze(false) => self.writer.thaw_events(),
            Job::Define(definition) => {
                if self.waiting.len() < WAITING {
                    self.waiting.push_back(definition);
                } else {
                    self.waiting_lost += 1;
                }
                self.define_waiting();
            }
            Job::Sync { hz, done } => {
                self.sync(hz, shared);
                done.into_iter().for_each(|done| done.give(()));
            }
            Job::Checkpoint { hz, rest, done } => {
                self.sync(hz, shared);
                done.give(self.writer().checkpoint().map(|checkpoint| (checkpoint, rest)));
            }
            Job::Close { hz, rest, done } => {
                for Rest { lane, position, words } in rest {
                    let result = self.writer().append(lane, position, &words);
                    self.keep(result, shared);
                }
                self.close(hz, shared);
                done.give(());
            }
        }
    }

    /// Writes the waiting definitions, up to the first one that cannot be written now.
    fn define_waiting(&mut self) {
        while let Some(definition) = self.waiting.pop_front() {
            if self.writer().define(&definition).is_err() {
                self.waiting.push_front(definition);
                return;
            }
        }
    }

    /// Notes a failed write, and reports the first one. The writer counts the lost records.
    fn keep(&mut self, result: io::Result<()>, shared: &Shared) {
        if result.is_err() && !std::mem::replace(&mut self.has_failed, true) {
            shared.problem(&format!(
                "cannot write {}: what does not fit is counted as lost; free some space",
                self.path.display()
            ));
        }
    }

    /// Writes the header with its counters, and the lane headers, because the lanes file may be
    /// gone when the recording is read.
    fn sync(&mut self, hz: u64, shared: &'static Shared) {
        let recorder = &shared.recorder;
        if self.writer().is_unlinked().unwrap_or(false) || self.is_gone {
            self.begin_anew(shared);
        }
        self.lanes.iter().for_each(|lanes| lanes.find_again());
        let header = self.writer.header_mut();
        header.hz = hz;
        shared.count(header);
        header.definitions_lost += std::mem::take(&mut self.waiting_lost);
        let lanes = recorder.lanes().filter(|(_, header)| header.was_used());
        let lanes: Vec<_> = lanes.map(|(lane, header)| (lane, header.snapshot())).collect();
        for (lane, bytes) in lanes {
            let result = self.writer().write_lane(lane, &bytes);
            self.keep(result, shared);
        }
        let result = self.writer().sync_header();
        self.keep(result, shared);
    }

    /// Creates a new file when the old one's name was removed, because its records would be lost
    /// when the process ends.
    fn begin_anew(&mut self, shared: &'static Shared) {
        let header = self.writer.header();
        let Some(dir) = self.path.parent() else { return };
        let fresh = Header {
            pid: header.pid,
            process: header.process,
            clock: header.clock,
            host: header.host.clone(),
            mask: header.mask,
            lanes_file: header.lanes_file.clone(),
            ..Header::default()
        };
        let ring_bytes = u64::from(header.segments) * ncclscope_trace::layout::SEGMENT;
        let lanes = self.lanes.clone();
        let (dir, nonce) = (dir.to_owned(), self.nonce);
        let opening = Opening { dir, private: None, header: fresh, ring_bytes, nonce, lanes };
        match Open::create(opening) {
            Ok(open) => {
                shared.problem(&format!(
                    "{} was removed: recording goes on in {}, without what came before",
                    self.path.display(),
                    open.path.display()
                ));
                let before = self.path.display().to_string();
                *self = open;
                // The report of the new file must not look like that of the whole job.
                self.waiting.push_back(Definition::Note(format!(
                    "{before} was removed while it was recorded: what came before is missing"
                )));
                shared.opened(&self.path);
                shared.reintroduce();
            }
            Err(error) => self.keep(Err(error), shared),
        }
    }

    /// Closes the recording and truncates the file to its content.
    fn close(&mut self, hz: u64, shared: &'static Shared) {
        let end = self.writer.blocks_end();
        let result = self.writer().file().set_len(end);
        self.keep(result, shared);
        let unwritten = self.waiting.len() as u64;
        let header = self.writer.header_mut();
        header.closed = true;
        header.lanes_file = None;
        header.definitions_lost += unwritten;
        self.sync(hz, shared);
        // What late callbacks still record is discarded.
        self.lanes.iter().for_each(|lanes| lanes.remove());
    }
}
