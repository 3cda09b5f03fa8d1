// SPDX-License-Identifier: Apache-2.0
//! The steps. Sizes are bytes; times are milliseconds unless a name says otherwise.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Rank, ms, threads};

/// Node types (`cudaGraphNodeType`): a call of a host function, and a kernel.
const HOST_NODE: i32 = 3;
const KERNEL_NODE: i32 = 0;

/// A step's name and numbers.
struct Words<'t> {
    name: &'t str,
    numbers: Vec<u64>,
}

impl<'t> Words<'t> {
    fn of(text: &'t str) -> Result<Self, String> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let numbers = words.map(str::parse).collect::<Result<_, _>>();
        Ok(Self { name, numbers: numbers.map_err(|_| format!("{text}: no numbers"))? })
    }

    fn number(&self, at: usize, otherwise: u64) -> u64 {
        self.numbers.get(at).copied().unwrap_or(otherwise)
    }

    fn size(&self, at: usize, otherwise: u64) -> usize {
        usize::try_from(self.number(at, otherwise)).unwrap_or(usize::MAX)
    }
}

fn repeat(times: u64, mut body: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    (0..times).try_for_each(|_| body())
}

impl Rank<'_> {
    /// Runs a step.
    ///
    /// # Errors
    /// An error of NCCL or CUDA, or an unknown step.
    pub(super) fn step(&mut self, text: &str) -> Result<(), String> {
        let words = Words::of(text)?;
        let (bytes, times) = (words.size(0, 4), words.number(1, 1));
        match words.name {
            "allreduce" => self.timed(words.name, bytes, times, Self::all_reduce),
            "broadcast" => self.timed(words.name, bytes, times, Self::broadcast),
            "broadcasts" => self.timed(words.name, bytes, times, Self::broadcasts),
            "sendrecv" => self.timed(words.name, bytes, times, Self::send_recv),
            "queue" => self.queue(bytes, times),
            "sync" => self.sync(),
            "spin" => self.gpu.spin(&self.stream, words.number(0, 1000)),
            "graph" => self.make_graph(bytes, times),
            "replay" => self.replay(words.number(0, 1)),
            "null" => self.on_default_stream(bytes, times),
            "capture-beside" => self.capture_beside(bytes, times),
            "timer" => self.timer(words.number(0, 1000)),
            "counts" => self.counts(),
            "usage" => self.usage(words.number(0, 1000)),
            "pin" => self.pin(),
            "sleep" => {
                std::thread::sleep(Duration::from_millis(words.number(0, 1000)));
                Ok(())
            }
            "barrier" => self.meeting.barrier(),
            "mark" => {
                self.say("mark", &[]);
                Ok(())
            }
            "stray" => self.gpu.stray(&self.stream),
            "reset" => self.gpu.reset(),
            "exit" => leave(),
            name => Err(format!("there is no step {name}")),
        }
    }

    /// Makes the buffers at least `bytes` long for each rank.
    fn make_room(&mut self, bytes: usize) -> Result<usize, String> {
        let count = bytes.div_ceil(size_of::<f32>()).max(1);
        if self.buffers.as_ref().is_none_or(|(room, ..)| *room < count) {
            let new = (count, self.cuda.floats(count)?, self.cuda.floats(count)?);
            if let Some((_, send, recv)) = self.buffers.replace(new) {
                self.held.extend([send, recv]);
            }
        }
        Ok(count)
    }

    /// Enqueues an operation a number of times, and waits for the last one.
    fn timed(
        &mut self,
        name: &str,
        bytes: usize,
        times: u64,
        call: fn(&Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        let count = self.make_room(bytes)?;
        let begin = Instant::now();
        repeat(times, || call(self, count))?;
        self.stream.synchronize()?;
        let us = begin.elapsed().as_secs_f64() * 1e6 / times.max(1) as f64;
        self.say(name, &[("bytes", bytes as f64), ("times", times as f64), ("us", us)]);
        Ok(())
    }

    fn comm(&self) -> Result<&rig::nccl::Comm<'_>, String> {
        self.comm.as_ref().ok_or_else(|| "there is no communicator".to_owned())
    }

    fn pair(&self) -> Result<(&rig::cuda::Floats<'_>, &rig::cuda::Floats<'_>), String> {
        let (_, send, recv) = self.buffers.as_ref().ok_or("there are no buffers")?;
        Ok((send, recv))
    }

    fn all_reduce(&self, count: usize) -> Result<(), String> {
        let (send, recv) = self.pair()?;
        self.comm()?.all_reduce(send, recv, count, &self.stream)
    }

    fn broadcast(&self, count: usize) -> Result<(), String> {
        let (send, recv) = self.pair()?;
        self.comm()?.broadcast(send, recv, count, 0, &self.stream)
    }

    /// A Broadcast from each of the first two ranks, in one group.
    fn broadcasts(&self, count: usize) -> Result<(), String> {
        let (send, recv) = self.pair()?;
        let (comm, half) = (self.comm()?, count.div_ceil(2));
        self.nccl.group(|| {
            comm.broadcast(send, recv, half, 0, &self.stream)?;
            comm.broadcast(send, recv, half, 1, &self.stream)
        })
    }

    fn send_recv(&self, count: usize) -> Result<(), String> {
        let (send, recv) = self.pair()?;
        let signed = |rank: usize| i32::try_from(rank % self.ranks).map_err(|e| e.to_string());
        let (next, before) = (signed(self.number + 1)?, signed(self.number + self.ranks - 1)?);
        let comm = self.comm()?;
        self.nccl.group(|| {
            comm.send(send, count, next, &self.stream)?;
            comm.recv(recv, count, before, &self.stream)
        })
    }

    /// Enqueues AllReduces without waiting: measures the cost of a call for its caller.
    fn queue(&mut self, bytes: usize, times: u64) -> Result<(), String> {
        let count = self.make_room(bytes)?;
        let begin = Instant::now();
        repeat(times, || self.all_reduce(count))?;
        let us = begin.elapsed().as_secs_f64() * 1e6 / times.max(1) as f64;
        self.say("queue", &[("bytes", bytes as f64), ("times", times as f64), ("us", us)]);
        Ok(())
    }

    fn sync(&self) -> Result<(), String> {
        let begin = Instant::now();
        self.stream.synchronize()?;
        self.say("sync", &[("ms", ms(begin.elapsed()))]);
        Ok(())
    }

    /// Captures AllReduces into a graph.
    fn make_graph(&mut self, bytes: usize, times: u64) -> Result<(), String> {
        let count = self.make_room(bytes)?;
        let begin = Instant::now();
        let graph = self.stream.capture(|| repeat(times, || self.all_reduce(count)))?;
        let of = |kind| graph.kinds.iter().filter(|&&k| k == kind).count() as f64;
        let values = [
            ("operations", times as f64),
            ("nodes", graph.kinds.len() as f64),
            ("kernels", of(KERNEL_NODE)),
            ("host", of(HOST_NODE)),
            ("ms", ms(begin.elapsed())),
        ];
        self.say("graph", &values);
        self.graph = Some(graph);
        Ok(())
    }

    /// Replays the graph, and waits for each replay: with host nodes in the graph (kernel channel
    /// events), `cudaGraphLaunch` of a rank that is ahead waits under the lock of the context,
    /// which the other rank of the process needs for its own launch, and both wait forever.
    fn replay(&self, times: u64) -> Result<(), String> {
        let graph = self.graph.as_ref().ok_or("there is no graph")?;
        let begin = Instant::now();
        repeat(times, || {
            graph.launch(&self.stream)?;
            self.stream.synchronize()
        })?;
        let us = begin.elapsed().as_secs_f64() * 1e6 / times.max(1) as f64;
        self.say("replay", &[("times", times as f64), ("us", us)]);
        Ok(())
    }

    fn on_default_stream(&mut self, bytes: usize, times: u64) -> Result<(), String> {
        let own = std::mem::replace(&mut self.stream, self.cuda.default_stream());
        let done = self.timed("null", bytes, times, Self::all_reduce);
        self.stream = own;
        done
    }

    /// Runs AllReduces while another thread captures in the mode that restricts other threads most.
    fn capture_beside(&mut self, bytes: usize, times: u64) -> Result<(), String> {
        let count = self.make_room(bytes)?;
        let (cuda, gpu, device) = (self.cuda, self.gpu, self.device);
        let (begun, has_begun) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                cuda.set_device(device)?;
                let stream = cuda.stream()?;
                gpu.begin_capture(&stream)?;
                // Errors of the channels are ignored: if the other side is gone, the thread runs to
                // its end.
                let _ = begun.send(());
                let _ = is_done.recv();
                gpu.end_capture(&stream)
            });
            let began = has_begun.recv().is_ok();
            let worked = repeat(times, || self.all_reduce(count))
                .and_then(|()| self.gpu.synchronize_beside_capture(&self.stream));
            drop(done);
            let captured = other.join().map_err(|_| "the other thread panicked")?;
            let status = if let (true, Ok(())) = (began, &captured) { 1.0 } else { 0.0 };
            self.say("captured", &[("whole", status)]);
            worked
        })
    }

    /// Measures the GPU's timer: its granularity, its rate against the host's clock over `span_ms`
    /// milliseconds, and its error against CUDA events.
    fn timer(&self, span_ms: u64) -> Result<(), String> {
        let stamps = self.gpu.stamps(&self.stream, crate::gpu::STAMPS)?;
        let (host, first) = (Instant::now(), self.gpu.stamps(&self.stream, 1)?[0]);
        std::thread::sleep(Duration::from_millis(span_ms));
        let (elapsed, last) = (host.elapsed(), self.gpu.stamps(&self.stream, 1)?[0]);
        let gpu_ns = last.saturating_sub(first) as f64;
        let slope = gpu_ns / elapsed.as_nanos() as f64;
        let mut worst: f64 = 0.0;
        for ms in [1, 5, 20] {
            let (timer, events) = self.gpu.compare(&self.stream, ms)?;
            worst = worst.max((events - timer as f64).abs());
        }
        let values = [
            ("granularity_ns", crate::facts::granularity(stamps) as f64),
            ("ppm", (slope - 1.0) * 1e6),
            ("worst_event_error_ns", worst),
        ];
        self.say("timer", &values);
        Ok(())
    }

    /// Prints the stand-in's counts, and the number of NCCL's threads.
    fn counts(&self) -> Result<(), String> {
        let counts = self.gpu.counts().ok_or("only the stand-in counts")?;
        let threads = threads::all().iter().filter(|t| t.is_nccl()).count() as f64;
        let half = counts.len() / 2;
        let name = |at: usize| {
            ["kernel", "host", "memop", "record", "wait", "copy", "set", "graph"]
                .get(at % half.max(1))
                .copied()
                .unwrap_or("?")
        };
        let mut line = format!("{} counts threads={threads}", self.number);
        for (at, count) in counts.iter().enumerate() {
            let prefix = if at < half { "" } else { "node_" };
            line += &format!(" {prefix}{}={count}", name(at));
        }
        println!("{line}");
        Ok(())
    }

    /// Prints the processor time of NCCL's threads over `over_ms` milliseconds, in percent of one
    /// core, and the process's memory.
    fn usage(&self, over_ms: u64) -> Result<(), String> {
        let begin = (Instant::now(), threads::all());
        std::thread::sleep(Duration::from_millis(over_ms));
        let percent = threads::nccl_percent(&begin.1, &threads::all(), begin.0.elapsed());
        let values =
            [("nccl_percent", percent), ("rss_mib", threads::rss_mib()), ("ms", over_ms as f64)];
        self.say("usage", &values);
        Ok(())
    }

    /// Pins NCCL's threads to one core, on which another thread of this process runs to the end.
    fn pin(&self) -> Result<(), String> {
        let pinned = threads::pin_nccl_to_busy_core()?;
        self.say("pin", &[("threads", pinned as f64)]);
        Ok(())
    }
}

/// Ends the process through `exit`, as an application does that forgets its communicators.
fn leave() -> Result<(), String> {
    // SAFETY: no precondition; the effect of the exit handlers is what the part observes.
    unsafe { libc::exit(0) }
}
