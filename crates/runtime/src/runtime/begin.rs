// SPDX-License-Identifier: Apache-2.0
//! The start at the first communicator of the process: configuration, memory, threads.

use super::Runtime;
use super::resource::resource;
use crate::config::Config;
use crate::drain::{self, Drain};
use crate::identity::{IdentityOptions, job_id, of_process};
use crate::lanes;
use crate::library::Release;
use crate::log::Severity;
use crate::memory::Memory;
use crate::meter::Meter;
use crate::orders::Order;
use crate::recording::{Opening, Recording};
use crate::state::{Phase, State};
use crate::sys::wake::Wake;
use crate::watchdog::{OwnProcess, Watchdog};
use crate::window::ClockReading;
use crate::{probe, socket, sys};
use core::sync::atomic::Ordering;
use ncclscope_control::table;
use ncclscope_control::value::{CudaEvents, FirstWindow, Mode};
use ncclscope_control::window::RecordingWindow;
use ncclscope_recorder::{clock, gate, registry};
use ncclscope_trace::layout::Header;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long `init` waits for the recording's file, to report at once if there is none. A file
/// system that takes longer gets the records when it answers.
const OPEN_PATIENCE: Duration = Duration::from_millis(20);

impl Runtime {
    /// Sets up everything. On failure nothing is recorded, and a line in the log gives the reason.
    pub(super) fn begin(&'static self, nccl: Release) {
        sys::register(super::life::in_child, super::life::at_exit);
        let (host, pid) = (sys::host_name(), sys::pid());
        let (config, lines) = read_environment(&host, pid);
        let _ = self.settings.set(config.settings.clone());
        self.shared.log.send_to(config.get(&table::LOG));
        lines.iter().for_each(|line| self.shared.problem(line));
        if config.mode == Mode::Off {
            self.shared.log.say(Severity::Info, "nothing is recorded");
            self.shared.lock().phase = Phase::Off;
            return;
        }
        if clock::is_forbidden() {
            self.shared.problem(
                "the process may not read the processor's counter (PR_SET_TSC), not even by \
                 clock_gettime: nothing is recorded",
            );
            self.shared.lock().phase = Phase::Off;
            return;
        }
        if config.get(&table::HANG_ACTION).exec.is_some() {
            sys::exec::keep_environment();
        }
        self.shared.nonce.store(sys::nonce() | 1, Ordering::Relaxed);
        let Some(drain) = self.open(&config, &host, pid, nccl) else {
            self.shared.lock().phase = Phase::Off;
            return;
        };
        lines.into_iter().for_each(|line| self.shared.order(Order::Note(line), 0));
        *self.drain.lock() = Some(Box::new(drain));
        registry::install();
        self.start_threads(&config);
        self.go(&config, nccl);
    }

    /// Creates the memory, the recording, and the drain that connects them.
    fn open(&'static self, config: &Config, host: &str, pid: u32, nccl: Release) -> Option<Drain> {
        clock::choose(config.get(&table::CLOCK));
        let nonce = self.shared.nonce.load(Ordering::Relaxed);
        let process = nonce % 1023 + 1;
        self.shared.recorder.set_process(u64::from(process));
        let memory = Memory::reserve(&self.shared.recorder, config.lanes.as_deref(), pid, nonce);
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                self.shared
                    .problem(&format!("no memory: {error}; recording and the watchdog are off"));
                return None;
            }
        };
        if let (Some(why), Some(folder)) = (memory.why_private(), &config.lanes) {
            self.shared.tell(format!(
                "no lanes file in {}: {why}; records wait in private memory, and a SIGKILL loses \
                 up to 80 ms of them",
                folder.display()
            ));
        }
        let header = Header {
            pid,
            process,
            clock: clock::source(),
            hz: 0,
            host: host.to_owned(),
            mask: config.mask(nccl.vendor, nccl.version),
            lanes_file: memory.lanes().map(|lanes| lanes.path().to_owned()),
            ..Header::default()
        };
        let lanes = memory.lanes().cloned();
        let recording = Arc::new(Recording::new(Opening {
            dir: config.dir.clone(),
            private: config.private.clone(),
            header,
            ring_bytes: config.ring_bytes,
            nonce,
            lanes,
        }));
        // If no thread can be started, the calling thread creates the file.
        match recording.start(&self.shared) {
            Ok(tried) => drop(tried.wait(OPEN_PATIENCE)),
            Err(_) => drop(recording.work(&self.shared)),
        }
        let options = IdentityOptions::of(config);
        let identity = of_process(&options, (host, pid), nonce, nccl);
        let (limit, actions) = (config.get(&table::HANG_SEC), config.get(&table::HANG_ACTION));
        let mut watchdog = Watchdog::new(OwnProcess::of(&identity), limit, actions);
        watchdog.cuda_events(config.get(&table::CUDA_EVENTS));
        let mut drain = Drain::new(&self.shared, memory, recording, watchdog);
        if let Some(target) = config.otlp.clone() {
            let resource = resource(&target, &identity);
            match Meter::start(target, config.labels(), resource) {
                Ok(meter) => drain.measure(meter),
                Err(error) => self.shared.problem(&format!("no metrics: {error}")),
            }
        }
        drain.identify(identity);
        Some(drain)
    }

    fn start_threads(&'static self, config: &Config) {
        let stale = config.lanes.clone();
        let wake = Arc::new(Wake::new());
        let woken = Arc::clone(&wake);
        let body = move || drain_thread(Runtime::get(), stale.as_deref(), &woken);
        match sys::spawn_quiet("ncclscope/drain", body) {
            Ok(()) => self.shared.lock().drain = Some(wake),
            Err(_) => {
                let line =
                    "no thread could be started: records are written at finalize and exit only";
                self.shared.tell(line.to_owned());
                self.drain.lock().iter_mut().for_each(|drain| while drain.grow(1) {});
            }
        }
    }

    /// Starts recording: activation mask, drain thread, first window.
    fn go(&'static self, config: &Config, nccl: Release) {
        {
            let mut state = self.shared.lock();
            state.mask = Some(config.mask(nccl.vendor, nccl.version));
            state.nccl_version = nccl.version;
            // The writer thread may have panicked.
            if gate::is_dead() {
                state.phase = Phase::Off;
                return;
            }
            state.phase = Phase::Running;
            gate::open();
            self.first_window(&mut state, config.get(&table::START));
        }
        if config.get(&table::CUDA_EVENTS) == CudaEvents::On
            && let Err(line) = probe::begin(&self.shared.recorder, CudaEvents::On)
        {
            self.shared.problem(&line);
        }
        for (request, signal) in config.get(&table::SIGNAL) {
            if !sys::signal::listen(signal, request) {
                let line = format!("signal {signal} is in use by the process and is not used");
                self.shared.problem(&line);
            }
        }
        if let Some(dir) = config.socket_directory() {
            self.listen(dir);
        }
    }

    /// Requests the first window of the process.
    fn first_window(&'static self, state: &mut State, configured: FirstWindow) {
        gate::stop();
        let FirstWindow::On(request) = state.early.take().unwrap_or(configured) else { return };
        let turn = state.schedule.request(request, ClockReading::read()).or_else(|why| {
            self.shared.tell(format!("{}: {why}; the default is used", table::START.name));
            state.schedule.request(RecordingWindow::default(), ClockReading::read())
        });
        self.turn(state, turn.unwrap_or(None));
    }

    /// Starts the thread that opens the control socket and answers on it.
    fn listen(&'static self, dir: PathBuf) {
        let nonce = self.shared.nonce.load(Ordering::Relaxed);
        let no_socket = |dir: &Path, error: std::io::Error| {
            let dir = dir.display();
            self.shared
                .problem(&format!("no control socket in {dir}: {error}; everything else works"));
        };
        let place = dir.clone();
        // Read here and not on the thread, so that the application does not change the environment
        // meanwhile.
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let job = job_id(table::JOB.value(&get).as_deref(), &get).unwrap_or_default();
        let body = move || match socket::open(&place, nonce, job) {
            Ok((file, server)) => {
                self.shared.lock().socket = Some(file);
                server.run(self);
            }
            Err(error) => no_socket(&place, error),
        };
        let contained = move || {
            if std::panic::catch_unwind(AssertUnwindSafe(body)).is_err() {
                self.shared.contain();
            }
        };
        if let Err(error) = sys::spawn_quiet("ncclscope/control", contained) {
            no_socket(&dir, error);
        }
    }
}

fn read_environment(host: &str, pid: u32) -> (Config, Vec<String>) {
    let names: Vec<String> =
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    let (mut config, mut lines) = Config::read(&|name| std::env::var_os(name), &names, host, pid);
    if config.mode != Mode::Off {
        lines.extend(config.settle(sys::file_limit()));
    }
    (config, lines)
}

fn drain_thread(runtime: &'static Runtime, stale_lanes: Option<&Path>, wake: &Wake) {
    let body = AssertUnwindSafe(|| {
        // The memory for this process's own threads comes first.
        while !gate::is_dead() && runtime.tick(false, false, 0).is_some_and(|load| load.is_early) {
            wake.wait(Some(Duration::from_millis(1)));
        }
        stale_lanes.into_iter().for_each(lanes::adopt_stale);
        drain::thread::run(runtime, wake);
    });
    if std::panic::catch_unwind(body).is_err() {
        runtime.shared.contain();
    }
    runtime.shared.tell_of_panics();
}
