// SPDX-License-Identifier: Apache-2.0
/*!
The writer thread: it alone writes the recording's file.

It gets [`Job`]s in order: blocks of records, which the drain thread encodes while it has them in
cache, and everything else that is written. Records keep their space in the lanes until they are
written, so that a kill loses none. If the file system is so slow that a lane becomes full, the
drain thread frees the space earlier; records that do not fit into the queue are counted.

A file system that refuses is like one that is slow: records wait, and are tried again with the next
job. So does all of it while the file cannot be created; only the watchdog needs no file.

If no thread can be started, the caller does the jobs itself with [`Recording::work`].
*/

mod failure;
mod opening;

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
use failure::Told;
use ncclscope_recorder::clock;
use ncclscope_trace::codec::{Block, Encoder, SPARE};
use ncclscope_trace::dump::Rest;
use ncclscope_trace::lanes_file::Owner;
use ncclscope_trace::layout::Header;
use ncclscope_trace::{ClockSync, Definition, Writer};
pub(crate) use opening::Opening;
use opening::Tries;
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
/// Size that a definition counts with when very many jobs wait, bytes.
const LATE_DEFINITION: usize = 256;

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

impl Job {
    /// The bytes that it takes of [`QUEUE_BYTES`]. What must not be left out takes none.
    fn weight(&self) -> usize {
        match self {
            Job::Block(block) => block.memory(),
            Job::Heartbeats(words) => size_of_val(words.as_slice()),
            Job::Clock(_) | Job::Sync { done: None, .. } => size_of::<Job>(),
            _ => 0,
        }
    }

    /// True if it need not wait until the records before it are written.
    fn is_independent(&self) -> bool {
        matches!(self, Job::Sync { .. } | Job::Checkpoint { .. })
    }
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
    /// A new communicator, or the end: a file that could not be created is tried at once.
    is_wanted: AtomicBool,
    is_closing: AtomicBool,
    /// The queue had no room for a definition.
    missed: AtomicBool,
    wake: Wake,
}

#[derive(Debug)]
enum Stage {
    Opening(Box<Opening>, Tries),
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
    told: Told,
}

impl Opening {
    /// The error is a line for the user.
    fn begin(&self, shared: &'static Shared) -> Result<Open, String> {
        let mut opening = self.clone();
        let mut line = None;
        if let Some(base) = opening.private.take() {
            (opening.dir, line) = own::place(&base, &opening.dir)?;
        }
        let dir = opening.dir.clone();
        let open = Open::create(opening).map_err(|error| failure::not_created(&dir, &error))?;
        line.into_iter().for_each(|line| shared.tell(line));
        Ok(open)
    }
}

impl Recording {
    /// Creates the file if there is none and it is time for that.
    fn create(&self, stage: &mut Stage, shared: &'static Shared) {
        let Stage::Opening(opening, tries) = stage else { return };
        let is_wanted = self.is_wanted.swap(false, Ordering::Relaxed);
        if !is_wanted && clock::now_ns() < tries.next {
            return;
        }
        match opening.begin(shared) {
            Ok(mut open) => {
                shared.opened(&open.path);
                // Not by an order: at the end the drain thread takes no more.
                if let Some(line) = tries.late() {
                    shared.problem(&line);
                    open.waiting.push_back(Definition::Note(line));
                }
                *stage = Stage::Open(Box::new(open));
            }
            Err(why) if self.is_closing.load(Ordering::Relaxed) => {
                shared.problem(&format!("{why}; nothing of this process was recorded"));
                // Without a recording, the lanes file serves no purpose.
                opening.lanes.iter().for_each(|lanes| lanes.remove());
                *stage = Stage::Over;
                self.refuse();
            }
            Err(why) => tries.failed(why, shared),
        }
    }

    /// A recording whose file does not exist yet.
    pub(crate) fn new(opening: Opening) -> Recording {
        Recording {
            jobs: Handover::new(QUEUE_BYTES),
            written: Lock::new(Vec::new()),
            done: AtomicU64::new(0),
            file: Lock::new(Stage::Opening(Box::new(opening), Tries::default())),
            has_thread: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            is_wanted: AtomicBool::new(true),
            is_closing: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            wake: Wake::new(),
        }
    }

    /// Starts the writer thread. The answer comes when it has tried to create the file.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub(crate) fn start(self: &Arc<Recording>, shared: &'static Shared) -> io::Result<Reply<()>> {
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

    fn run(&self, shared: &'static Shared, tried: Answer<()>) {
        let mut tried = Some(tried);
        while self.work(shared) {
            tried.take().into_iter().for_each(|tried| tried.give(()));
            // What failed is tried again with the next job, which comes within a second.
            self.wake.wait(None);
        }
    }

    /// Creates the file if there is none, writes the queued jobs and retries what failed. False
    /// once the recording is closed.
    pub(crate) fn work(&self, shared: &'static Shared) -> bool {
        let mut stage = self.file.lock();
        self.create(&mut stage, shared);
        let open = match &mut *stage {
            Stage::Open(open) => open,
            Stage::Opening(..) => {
                while self.jobs.next_that(Job::is_independent).is_some() {
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                return true;
            }
            Stage::Over => return false,
        };
        open.define_waiting();
        let mut blocks = Vec::new();
        loop {
            // A job to do after the blocks before it, or `Some(None)`: there is none.
            let then = match self.jobs.next() {
                Some(Job::Block(block)) => {
                    blocks.push(*block);
                    if blocks.len() < SPARE {
                        continue;
                    }
                    None
                }
                job => Some(job),
            };
            if !self.write(open, &mut blocks, shared) {
                self.wait_with(blocks, then.flatten());
                while let Some(job) = self.jobs.next_that(Job::is_independent) {
                    open.run(job, shared);
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                return true;
            }
            let Some(then) = then else { continue };
            let Some(job) = then else { break };
            let is_last = matches!(job, Job::Close { .. });
            open.run(job, shared);
            self.done.fetch_add(1, Ordering::Relaxed);
            if is_last {
                *stage = Stage::Over;
                return false;
            }
        }
        if self.missed.swap(false, Ordering::Relaxed) {
            shared.reintroduce();
        }
        true
    }

    /// Writes consecutive blocks, and keeps their memory for reuse. False if the file system
    /// refuses some, which remain; at the end they are counted as lost.
    fn write(&self, open: &mut Open, blocks: &mut Vec<Block>, shared: &'static Shared) -> bool {
        if blocks.is_empty() {
            return true;
        }
        let mut count = open.write(blocks, shared);
        if self.is_closing.load(Ordering::Relaxed) {
            open.writer.lose(&blocks[count..]);
            count = blocks.len();
        }
        self.done.fetch_add(count as u64, Ordering::Relaxed);
        let mut written = self.written.lock();
        let room = SPARE.saturating_sub(written.len());
        written.extend(blocks.drain(..count).take(room));
        blocks.is_empty()
    }

    /// Makes blocks that could not be written, and the job after them, the first of the queue.
    fn wait_with(&self, blocks: Vec<Block>, job: Option<Job>) {
        let blocks = blocks.into_iter().map(|block| Job::Block(Box::new(block)));
        for job in blocks.chain(job).rev() {
            let weight = job.weight();
            self.jobs.put_back(job, weight);
        }
    }

    /// Returns the memory of written blocks to the encoder.
    pub(crate) fn give_back(&self, encoder: &mut Encoder) {
        encoder.reuse(self.written.lock().drain(..));
    }

    /// Drops all jobs, and all their answers, because the process ends without a file.
    fn refuse(&self) {
        self.is_refused.store(true, Ordering::SeqCst);
        drop(self.jobs.take());
    }

    /// Queues a job; returns it if the queue is full.
    pub(crate) fn put(&self, job: Job) -> Result<(), Job> {
        let (mut weight, is_definition) = (job.weight(), matches!(job, Job::Define(_)));
        match &job {
            Job::Define(Definition::Comm(_)) => self.is_wanted.store(true, Ordering::Relaxed),
            Job::Close { .. } => {
                self.is_closing.store(true, Ordering::Relaxed);
                self.is_wanted.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        if is_definition && self.jobs.len() > WAITING {
            weight = LATE_DEFINITION;
        }
        let result = self.jobs.put(job, weight);
        if is_definition && result.is_err() {
            self.missed.store(true, Ordering::Relaxed);
        }
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
    fn create(opening: Opening) -> io::Result<Open> {
        let Opening { dir, private: _, header, ring_bytes, nonce, lanes } = opening;
        let dir = std::path::absolute(dir)?;
        let (writer, path) = directory::create(&dir, &header, ring_bytes, nonce)?;
        let owner = Owner::new(header.pid, header.process, path.clone());
        let file = Identity::of(writer.file().as_fd())
            .and_then(|file| {
                lanes.iter().try_for_each(|lanes| lanes.belongs_to(&owner)).map(|()| file)
            })
            .inspect_err(|_| drop(std::fs::remove_file(&path)))?;
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
            told: Told::default(),
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

    /// Writes blocks up to the first that the file system refuses, and frees the space of their
    /// records in the lanes. Returns their number.
    fn write(&mut self, blocks: &mut [Block], shared: &'static Shared) -> usize {
        let (count, result) = self.writer().append_blocks(blocks);
        self.keep(result, shared);
        for block in &blocks[..count] {
            let header = shared.recorder.region.lane_header(block.lane.into());
            header.into_iter().for_each(|header| header.take_until(block.end));
        }
        count
    }

    fn run(&mut self, job: Job, shared: &'static Shared) {
        match job {
            // Written with its neighbours, by [`Recording::write`].
            Job::Block(_) => {}
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
                let _ = self.sync(hz, shared);
                done.into_iter().for_each(|done| done.give(()));
            }
            Job::Checkpoint { hz, rest, done } => {
                let _ = self.sync(hz, shared);
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

    /// Reports a failed write, once for each kind of error.
    fn keep(&mut self, result: io::Result<()>, shared: &Shared) {
        let line = result.err().and_then(|error| self.told.line(&self.path, &error));
        if let Some(line) = line {
            shared.problem(&line);
            self.waiting.push_back(Definition::Note(line));
        }
    }

    /// Writes the header with its counters, and the lane headers, because the lanes file may be
    /// gone when the recording is read.
    /// False if the header could not be written.
    fn sync(&mut self, hz: u64, shared: &'static Shared) -> bool {
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
        let is_written = result.is_ok();
        self.keep(result, shared);
        is_written
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
                let key = "replaces".into();
                self.waiting.push_back(Definition::Identity { key, value: before });
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
        // What late callbacks still record is discarded. If the file system refuses to the end, the
        // lanes keep the last records, for a reader or for the next process.
        if self.sync(hz, shared) {
            self.lanes.iter().for_each(|lanes| lanes.remove());
        }
    }
}
