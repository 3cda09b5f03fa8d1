// SPDX-License-Identifier: Apache-2.0
//! The metrics of this process: measures the records that the drain thread reads, and passes each
//! window to the sender. If no metrics are requested there is no meter.
//!
//! A meter belongs to the drain thread: nothing here takes a lock that a host thread takes, and
//! nothing waits for the network. At the end of the process a host thread waits for a [`Farewell`],
//! which needs no meter.

use crate::config::Otlp;
use crate::sys;
use ncclscope_metrics::encode::otlp::{self, Export};
use ncclscope_metrics::encode::{Cap, Labels, Limiter, families};
use ncclscope_metrics::send::environment::place;
use ncclscope_metrics::send::{Answer, Http, Lost, Sender, Target, Transport, client, part_of};
use ncclscope_metrics::{Collector, CommKey, Metrics};
use ncclscope_recorder::clock;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::progress::Progress;
use ncclscope_trace::{Comm, CommDevice, Mark, Record, StrId, TickMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of metric series of one rank.
const CAP: Cap = Cap::points(2000);

/// Maximum total size of the waiting requests, bytes.
const QUEUE_BYTES: usize = 16 << 20;

/// Minimum length of a window that ends because no communicator is left.
const SHORTEST: Duration = Duration::from_secs(1);

/// Maximum number of lines about the collector in the life of a process; all are different.
const LINES: usize = 8;

/// Measures records and exports windows of metrics.
#[derive(Debug)]
pub(crate) struct Meter {
    collector: Collector,
    limiter: Limiter,
    /// Totals since the process started, without those of destroyed communicators.
    total: Metrics,
    /// Destroyed communicators whose final figures were in the last export.
    gone: Vec<CommKey>,
    sender: Sender,
    lines: Arc<Mutex<Lines>>,
    resource: Vec<(String, String)>,
    labels: Labels,
    delta: bool,
    interval: Duration,
    /// A window ends early after this many events; 0: never.
    window_events: u64,
    /// When the next window ends and when the last one ended, ns of `CLOCK_MONOTONIC`.
    next: u64,
    closed: u64,
    /// When measuring began and when the last window ended, ns since 1970.
    began: u64,
    last: u64,
}

/// Lines about the collector for the log.
#[derive(Debug, Default)]
struct Lines {
    all: Vec<String>,
    taken: usize,
}

impl Lines {
    fn add(&mut self, line: String) {
        if self.all.len() < LINES && !self.all.contains(&line) {
            self.all.push(line);
        }
    }

    /// The lines since the last call.
    fn take(&mut self) -> Vec<String> {
        let new = self.all.get(self.taken..).unwrap_or_default().to_vec();
        self.taken = self.all.len();
        new
    }
}

/// Waits for the delivery of the last metrics, without the meter.
#[derive(Debug)]
pub(crate) struct Farewell {
    sender: Sender,
    lines: Arc<Mutex<Lines>>,
}

impl Farewell {
    /// Waits until everything is sent, at most a second, because the collector may not answer.
    /// Returns lines for the log. The caller must not hold a lock that other threads need.
    pub(crate) fn wait(self) -> Vec<String> {
        let left = self.sender.farewell();
        let mut lines = lock(&self.lines).take();
        if left > 0 {
            lines.push(format!("the last metrics did not arrive: {left} requests are left"));
        }
        lines
    }
}

/// Running totals of the events that are missing from the other totals, by kind. (Events that the
/// recording lost after they were measured are in the other totals.)
pub(crate) struct Losses {
    /// Events, stops and states lost because the thread's lane was full.
    pub(crate) lane_full: [u64; KINDS],
    pub(crate) ends: [u64; KINDS],
    /// Events lost because no lane was free for the thread.
    pub(crate) no_lane: [u64; KINDS],
    pub(crate) no_slot: [u64; KINDS],
    /// Ends of events that are not live.
    pub(crate) stale: u64,
    /// Unknown events and states.
    pub(crate) unknown: u64,
}

impl Meter {
    /// Reports libraries of the process that can communicate without NCCL.
    pub(crate) fn beside(&mut self, libraries: &[&'static str]) {
        self.collector.beside(libraries.iter().copied());
    }

    /// Takes a mark.
    pub(crate) fn mark(&mut self, mark: Mark) {
        self.collector.mark(&mark);
    }

    /// Starts the sending thread.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub(crate) fn start(
        target: Otlp,
        labels: Labels,
        resource: Vec<(String, String)>,
    ) -> std::io::Result<Meter> {
        let (interval, delta, began) = (target.interval, target.delta, since_epoch());
        let window_events = u64::from(target.window_events);
        // The connection is closed after each request: the application may close its descriptor
        // meanwhile and open something else under that number, which would get the data for the
        // collector.
        let client = client(target.timeout, concat!("ncclscope/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(0);
        let Otlp { url, headers, .. } = target;
        let (lines, place) = (Arc::<Mutex<Lines>>::default(), place(&url).to_owned());
        let target = Target { url, headers };
        // The lines are also counted, and reported with the next metrics that arrive.
        let heard = Arc::clone(&lines);
        let tell = move |why: &str| {
            lock(&heard).add(format!("cannot export metrics to {place}: {why}"));
        };
        let way = Way(Http::new(target, client.build()));
        let (sender, body) = Sender::over(way, QUEUE_BYTES, tell);
        sys::spawn_quiet("ncclscope/otlp", body)?;
        Ok(Meter {
            collector: Collector::default(),
            limiter: Limiter::new(CAP),
            total: Metrics::default(),
            gone: Vec::new(),
            sender,
            lines,
            resource,
            labels,
            delta,
            interval,
            window_events,
            next: clock::now_ns() + nanoseconds(shorter(interval)),
            closed: 0,
            began,
            last: began,
        })
    }

    pub(crate) fn string(&mut self, id: StrId, text: &str) {
        self.collector.string(id, text);
    }

    pub(crate) fn comm(&mut self, comm: &Comm) {
        self.collector.comm(comm);
    }

    pub(crate) fn device(&mut self, device: &CommDevice) {
        self.collector.device(device);
    }

    pub(crate) fn comm_end(&mut self, index: u16, ticks: u64) {
        self.collector.comm_end(index, ticks);
    }

    /// Measures a record of a lane; records must come in the lane's order.
    pub(crate) fn record(&mut self, lane: usize, record: &Record) {
        self.collector.record(lane, record);
    }

    /// Takes the watchdog's progress of a communicator.
    pub(crate) fn progress(&mut self, progress: &Progress) {
        self.collector.progress(progress);
    }

    /// True if the window's time is over, or if it has as many events as it may.
    pub(crate) fn is_due(&self) -> bool {
        let is_full = self.window_events > 0 && self.collector.events() >= self.window_events;
        is_full || clock::now_ns() >= self.next
    }

    /// Called when no communicator is left: true if the window may end now. Otherwise it will end
    /// soon, so that communicators that come and go one by one do not have a window each.
    pub(crate) fn may_end_now(&mut self) -> bool {
        let soon = self.closed + nanoseconds(self.interval.min(SHORTEST));
        let may_end = clock::now_ns() >= soon;
        if !may_end {
            self.next = self.next.min(soon);
        }
        may_end
    }

    /// Sets the ratio of ticks to time.
    pub(crate) fn clock(&mut self, clock: &TickMap) {
        self.collector.clock(clock);
    }

    /// Ends the window and passes it to the sender. The last window also contains destroyed
    /// communicators, and is sent at once.
    pub(crate) fn close(&mut self, clock: &TickMap, losses: &Losses, is_last: bool) {
        self.closed = clock::now_ns();
        self.next = self.closed + nanoseconds(self.wait_for_next());
        self.collector.lost_by_kind("lane_full", &losses.lane_full);
        self.collector.lost_by_kind("lost_end", &losses.ends);
        self.collector.lost_by_kind("no_lane", &losses.no_lane);
        self.collector.lost_by_kind("no_slot", &losses.no_slot);
        self.collector.lost("stale", "", losses.stale);
        self.collector.lost("unknown", "", losses.unknown);
        let Lost { dropped, refused } = self.sender.lost();
        self.collector.export_lost("queue_full", dropped);
        self.collector.export_lost("refused", refused);
        let end = if is_last { Collector::finish } else { Collector::close };
        let window = end(&mut self.collector, clock::now(), clock);
        let now = since_epoch();
        let (metrics, start) = if self.delta {
            (&window, self.last)
        } else {
            self.forget_the_gone();
            self.total.add_window(&window);
            (&self.total, self.began)
        };
        self.last = now;
        // The resource names the process's rank and device, if there is one.
        let labels =
            Labels { rank: self.labels.rank || !metrics.devices.is_empty(), ..self.labels };
        let families = self.limiter.apply(families(metrics, labels), self.delta);
        let export = Export {
            resource: &self.resource,
            version: env!("CARGO_PKG_VERSION"),
            start_ns: start,
            now_ns: now,
            delta: self.delta,
        };
        let lost = |cause| window.exports_lost.get(cause).copied().unwrap_or(0);
        let tells = match self.delta {
            true => Lost { dropped: lost("queue_full"), refused: lost("refused") },
            // Each request contains the whole sum.
            false => Lost::default(),
        };
        self.sender.send_what_tells(otlp::encode(&families, &export), tells);
    }

    /// Drops the figures of communicators whose final figures were in the last export.
    fn forget_the_gone(&mut self) {
        let mut gone = std::mem::replace(&mut self.gone, self.collector.take_gone());
        gone.retain(|comm| self.collector.living().all(|living| living != comm));
        if !gone.is_empty() {
            gone.sort_unstable();
            self.total.retain_comms(|comm| gone.binary_search(comm).is_err());
        }
    }

    /// Length of the next window. It is varied, because all ranks start together and lose their
    /// last communicators together: their windows must not all end at the same time forever.
    fn wait_for_next(&self) -> Duration {
        if self.is_due() { self.interval } else { shorter(self.interval) }
    }

    /// The lines about the collector since the last call.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        lock(&self.lines).take()
    }

    /// The wait for the delivery of the last metrics.
    pub(crate) fn farewell(&self) -> Farewell {
        Farewell { sender: self.sender.clone(), lines: Arc::clone(&self.lines) }
    }
}

/// The connection to the collector, whose responses are read.
struct Way(Http);

impl Transport for Way {
    fn post(&self, request: &[u8]) -> Answer {
        match self.0.post(request) {
            Answer::Taken(answer) => taken(answer),
            other => other,
        }
    }

    fn renew(&mut self) {
        self.0.renew();
    }
}

/// Decodes what the collector accepted, and its message.
fn taken(answer: Vec<u8>) -> Answer {
    let response = otlp::parse_response(&answer).unwrap_or_default();
    match response.line() {
        Some(line) => Answer::Remarked(response.rejected, line),
        None => Answer::Taken(answer),
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A random duration between half of `interval` and all of it.
fn shorter(interval: Duration) -> Duration {
    interval / 2 + part_of(interval / 2)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

fn since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::record::Coll;
    use ncclscope_trace::{Detail, EventKind, Handle, Start};

    fn target(window_events: u32) -> Otlp {
        Otlp {
            // Nothing listens on this port.
            url: "http://127.0.0.1:9/v1/metrics".into(),
            headers: Vec::new(),
            timeout: Duration::from_millis(100),
            interval: Duration::from_secs(86_400),
            window_events,
            delta: false,
            resource: Vec::new(),
        }
    }

    fn meter(window_events: u32) -> Meter {
        Meter::start(target(window_events), Labels::default(), Vec::new()).unwrap()
    }

    fn no_losses() -> Losses {
        let [lane_full, ends, no_lane, no_slot] = [[0; KINDS]; 4];
        Losses { lane_full, ends, no_lane, no_slot, stale: 0, unknown: 0 }
    }

    fn start_one(meter: &mut Meter, number: u64) {
        let (handle, parent) = (Handle::value(7, EventKind::Coll, 0, number), Handle::NULL);
        let detail = Detail::Coll(Coll::default());
        let start = Start { ticks: number, comm: 0, handle, parent, detail };
        meter.record(0, &Record::Start(start));
    }

    #[test]
    fn a_line_about_the_collector_comes_once() {
        let mut lines = Lines::default();
        (0..100).for_each(|at| lines.add(format!("reason {}", at / 10)));
        assert_eq!(lines.take().len(), LINES);
        lines.add("reason 1".into());
        assert_eq!(lines.take(), [""; 0]);
    }

    #[test]
    fn a_collector_that_rejects_points_is_told_of_and_counted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/metrics", listener.local_addr().unwrap());
        let mut meter = Meter::start(
            Otlp { url, timeout: Duration::from_secs(10), ..target(0) },
            Labels::default(),
            Vec::new(),
        )
        .unwrap();
        let clock = TickMap::new(vec![], 1_000_000_000);
        let losses = no_losses();
        for _ in 0..2 {
            meter.close(&clock, &losses, false);
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            while matches!(std::io::Read::read(&mut stream, &mut [0; 1 << 16]), Ok(1..)) {}
            // `partial_success` with 7 rejected points and a message.
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n";
            let body = b"\x0a\x0b\x08\x07\x12\x07too\nold";
            std::io::Write::write_all(&mut stream, &[&head[..], body].concat()).unwrap();
        }
        assert_eq!(meter.sender.farewell_within(Duration::from_secs(10)), 0);
        let lines = meter.take_lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].ends_with(": points were rejected: too\\nold"), "{lines:?}");
        meter.close(&clock, &losses, false);
        assert_eq!(meter.total.exports_lost.get("refused"), Some(&2));
    }

    #[test]
    fn windows_of_ranks_that_begin_together_do_not_end_together() {
        let ends: std::collections::BTreeSet<u64> = (0..4).map(|_| meter(0).next).collect();
        let spread = ends.last().unwrap() - ends.first().unwrap();
        assert!(spread > 60_000_000_000, "{spread} ns of a day");
    }

    #[test]
    fn a_full_window_is_due_before_its_time() {
        let (mut by_count, mut by_time) = (meter(1000), meter(0));
        for number in 1..1000 {
            start_one(&mut by_count, number);
            start_one(&mut by_time, number);
        }
        assert!(!by_count.is_due());
        start_one(&mut by_count, 1000);
        start_one(&mut by_time, 1000);
        assert!(by_count.is_due() && !by_time.is_due());
        let losses = no_losses();
        by_count.close(&TickMap::new(vec![], 1_000_000_000), &losses, false);
        assert!(!by_count.is_due(), "the next one is empty");
        let lost: Vec<_> = by_count.total.exports_lost.into_iter().collect();
        assert_eq!(lost, [("queue_full", 0), ("refused", 0)], "told where there is none, too");
    }
}
