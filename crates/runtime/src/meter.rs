// SPDX-License-Identifier: Apache-2.0
//! Metrics of this process: measures what the drain thread reads, and hands each window to the
//! sender. Where nobody asked for metrics there is no meter, and nothing is measured.

use crate::config::Otlp;
use crate::sys;
use ncclscope_analyze::metrics::{Collector, Metrics};
use ncclscope_export::metrics::otlp::{self, Export};
use ncclscope_export::metrics::{Cap, Labels, Limiter, families};
use ncclscope_otlp::{Lost, Sender, Target, client};
use ncclscope_recorder::clock;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::schema;
use ncclscope_trace::{Comm, Record, StrId, TickMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Series of one rank at most.
const CAP: Cap = Cap::points(2000);

/// Bytes of requests that wait at most.
const QUEUE_BYTES: usize = 16 << 20;

/// Measures, and exports.
#[derive(Debug)]
pub(crate) struct Meter {
    collector: Collector,
    limiter: Limiter,
    /// What happened since the process began.
    total: Metrics,
    sender: Sender,
    resource: Vec<(String, String)>,
    labels: Labels,
    delta: bool,
    interval: Duration,
    /// When the next window ends, ns of `CLOCK_MONOTONIC`.
    next: u64,
    /// ns since the epoch: when the process began to be measured, and the last window ended.
    began: u64,
    last: u64,
}

/// Running totals of what is in no figure, by kind of event. (What the recording lost after it was
/// measured is in the figures.)
pub(crate) struct Losses {
    /// Lost because the thread's lane was full.
    pub(crate) lane_full: [u64; KINDS],
    /// Lost because no lane was free for the thread.
    pub(crate) no_lane: [u64; KINDS],
    /// Ends of events that were no live event.
    pub(crate) stale: u64,
    /// Events and states that are not known.
    pub(crate) unknown: u64,
}

impl Meter {
    /// Starts the sending thread.
    ///
    /// # Errors
    /// The system's, if there can be no more threads.
    pub(crate) fn start(
        target: Otlp,
        labels: Labels,
        resource: Vec<(String, String)>,
    ) -> std::io::Result<Meter> {
        let (interval, delta, began) = (target.interval, target.delta, since_epoch());
        let client = client(target.timeout, concat!("ncclscope/", env!("CARGO_PKG_VERSION")));
        let agent = ureq::Agent::new_with_config(client.build());
        let Otlp { url, headers, .. } = target;
        let target = Target { url, headers, queue_bytes: QUEUE_BYTES };
        // What goes wrong is counted, and told with the next metrics that arrive.
        let (sender, body) = Sender::new(target, agent, |_| {});
        sys::spawn_quiet("ncclscope/otlp", body)?;
        Ok(Meter {
            collector: Collector::default(),
            limiter: Limiter::new(CAP),
            total: Metrics::default(),
            sender,
            resource,
            labels,
            delta,
            interval,
            next: clock::now_ns() + nanoseconds(interval),
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

    /// Words of a lane, whole records.
    pub(crate) fn words(&mut self, lane: usize, words: &[u64]) {
        let mut rest = words;
        while let Some(&head) = rest.first() {
            let Some((len, _)) = schema(head.to_le_bytes()[0]) else { return };
            let Some((record, after)) = rest.split_at_checked(len) else { return };
            if let Some(record) = Record::unpack(record) {
                self.collector.record(lane, &record);
            }
            rest = after;
        }
    }

    /// True when the window's time is over.
    pub(crate) fn is_due(&self) -> bool {
        clock::now_ns() >= self.next
    }

    /// How long a tick is.
    pub(crate) fn clock(&mut self, clock: &TickMap) {
        self.collector.clock(clock);
    }

    /// Ends the window and hands it to the sender. The last one holds what is over, at once.
    pub(crate) fn close(&mut self, clock: &TickMap, losses: &Losses, is_last: bool) {
        self.next = clock::now_ns() + nanoseconds(self.interval);
        self.collector.lost_by_kind("lane_full", &losses.lane_full);
        self.collector.lost_by_kind("no_lane", &losses.no_lane);
        self.collector.lost("stale", "", losses.stale);
        self.collector.lost("unknown", "", losses.unknown);
        let Lost { dropped, refused } = self.sender.lost();
        self.collector.lost("export_queue_full", "", dropped);
        self.collector.lost("export_refused", "", refused);
        let end = if is_last { Collector::finish } else { Collector::close };
        let window = end(&mut self.collector, clock::now(), clock);
        let now = since_epoch();
        let (metrics, start) = if self.delta {
            (&window, self.last)
        } else {
            self.total.merge(&window);
            (&self.total, self.began)
        };
        self.last = now;
        let families = self.limiter.apply(families(metrics, self.labels), self.delta);
        let export = Export {
            resource: &self.resource,
            version: env!("CARGO_PKG_VERSION"),
            start_ns: start,
            now_ns: now,
            delta: self.delta,
        };
        self.sender.send(otlp::encode(&families, &export));
    }

    /// Waits until everything is sent, for a while at most.
    pub(crate) fn flush(&self, patience: Duration) {
        self.sender.flush(patience);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

fn since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanoseconds)
}
