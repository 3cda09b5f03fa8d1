// SPDX-License-Identifier: Apache-2.0
/*!
Readings from an agent: `/metrics` for the work of the ranks, `/vectors` for their operations in
flight.

The agent measures once per its own interval: rates are of the time between its last two windows.
Vectors are updated each second, and identify the process of each rank of a communicator.
*/

use super::hang;
use super::prometheus::{Sample, samples};
use super::watch::Source;
use ncclscope_answer::Moment;
use ncclscope_console::failure::Failure;
use ncclscope_diagnose::NoEnd;
use ncclscope_metrics::send::client;
use ncclscope_top::{Comm, Function, FunctionKey, Life, Link, LinkKey, Rank, Reading, Work};
use ncclscope_trace::vectors::{Table, read_table, vector_flags};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum total time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum sizes of answers, bytes.
const LONGEST_METRICS: u64 = 64 << 20;
const LONGEST_VECTORS: u64 = 64 << 20;

/// The key of a process: job number and job rank.
type Key = (u64, u32);

/// An agent that is read over HTTP.
pub(super) struct Remote {
    address: String,
    http: ureq::Agent,
    /// The agent's counters at the end of its last window.
    totals: Option<Totals>,
    /// What each rank did in the last window.
    works: BTreeMap<Key, Work>,
    span: Duration,
}

/// The agent's counters at one reading.
#[derive(Debug, Default)]
struct Totals {
    windows: f64,
    /// When the window ended; `None` for the first reading, whose window ended some time before.
    ended: Option<Instant>,
    /// By communicators without a name, because an application may name one later.
    works: BTreeMap<Key, Work>,
    /// The names of communicators, by hash.
    names: BTreeMap<u64, Comm>,
}

impl Remote {
    pub(super) fn new(address: &str) -> Result<Remote, Failure> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        let port = address.rsplit_once(':').and_then(|(host, port)| {
            port.parse::<u16>().ok().filter(|_| !host.is_empty() && host.chars().all(is_plain))
        });
        if port.is_none() {
            return Err(Failure::usage(format!("--agent {address}: expected HOST:PORT")));
        }
        let user_agent = concat!("ncclscope/", env!("CARGO_PKG_VERSION"));
        let http = client(PATIENCE, user_agent).build().new_agent();
        let (works, span) = (BTreeMap::new(), Duration::ZERO);
        Ok(Remote { address: address.to_owned(), http, totals: None, works, span })
    }

    fn get(&self, path: &str, longest: u64) -> Result<Vec<u8>, Failure> {
        let url = format!("http://{}{path}", self.address);
        let failed = |why: String| {
            Failure::environment(format!(
                "cannot read {url}: {why}; is `ncclscope agent --prom-listen` there?"
            ))
        };
        let mut answer = self.http.get(&url).call().map_err(|error| failed(error.to_string()))?;
        if answer.status().as_u16() != 200 {
            return Err(failed(format!("it answers {}", answer.status())));
        }
        let body = answer.body_mut().with_config().limit(longest).read_to_vec();
        body.map_err(|error| failed(error.to_string()))
    }

    /// Takes the counters. If a window has ended, their growth is what the ranks did in it. Returns
    /// the length of that window if it was seen from its beginning.
    fn count(&mut self, text: &str, table: &Table) -> Option<Duration> {
        let mut now = Totals::default();
        let owners: BTreeMap<(u64, u32), Key> = table
            .vectors
            .iter()
            // Without a hash, communicators cannot be told apart.
            .filter(|vector| vector.comm != 0)
            .map(|vector| ((vector.comm, vector.rank), (vector.job, vector.process)))
            .collect();
        for sample in samples(text) {
            if sample.name == "ncclscope_agent_windows_total" {
                now.windows = sample.value;
            }
            let Some((comm, rank)) = place(&sample) else { continue };
            let Some(owner) = owners.get(&(comm.hash, rank)) else { continue };
            let unnamed = Comm { name: String::new(), ..comm };
            now.names.insert(comm.hash, comm);
            add(now.works.entry(*owner).or_default(), unnamed, &sample);
        }
        if self.totals.as_ref().is_some_and(|before| before.windows == now.windows) {
            return None;
        }
        let mut fresh = None;
        if let Some(before) = self.totals.take() {
            now.ended = Some(Instant::now());
            if let Some(began) = before.ended {
                let none = Work::default();
                let grown = |(key, work): (&Key, &Work)| {
                    let grown = work.since(before.works.get(key).unwrap_or(&none));
                    (*key, named(grown, &now.names))
                };
                self.works = now.works.iter().map(grown).collect();
                self.span = began.elapsed();
                fresh = Some(self.span);
            }
        }
        self.totals = Some(now);
        fresh
    }

    fn ranks(&self, table: &Table, hangs: &hang::Hangs) -> Vec<Rank> {
        let name = |hash| self.totals.as_ref()?.names.get(&hash).cloned();
        let mut ranks: BTreeMap<Key, Rank> = BTreeMap::new();
        for vector in &table.vectors {
            let key = (vector.job, vector.process);
            let rank = ranks.entry(key).or_insert_with(|| Rank {
                job: table.jobs.get(&vector.job).cloned().unwrap_or_default(),
                rank: Some(vector.process),
                host: self.host().to_owned(),
                work: self.works.get(&key).cloned().unwrap_or_default(),
                fresh: self.works.get(&key).cloned().unwrap_or_default(),
                says_hung: hangs.stuck.contains(&key),
                ..Rank::default()
            });
            if vector.flags & vector_flags::SILENT != 0 {
                rank.life = Life::Silent;
            }
            if vector.flags & (vector_flags::STOPPED | vector_flags::FROZEN) != 0 {
                rank.life = Life::Stopped;
            }
            let comm = name(vector.comm).unwrap_or_else(|| Comm::new(vector.comm, ""));
            rank.flights.extend(hang::flight(vector, comm));
            if hang::hides_ends(vector) {
                rank.no_end = Some(NoEnd::Unknown.text().to_owned());
            }
        }
        ranks.into_values().collect()
    }

    fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or("", |(host, _)| host)
    }

    fn notes(&self, text: &str, ranks: &[Rank]) -> Vec<String> {
        let has_ranks = samples(text).any(|sample| place(&sample).is_some());
        let mut notes = Vec::new();
        if ranks.is_empty() {
            notes.push(format!("the agent of {} sees no running rank", self.address));
        } else if !has_ranks && self.totals.as_ref().is_some_and(|totals| totals.windows > 0.0) {
            notes.push("no rates: start the agent with --labels rank,peer".into());
        }
        notes
    }
}

impl Source for Remote {
    fn read(&mut self, limit: Duration) -> Result<Reading, Failure> {
        let text = self.get("/metrics", LONGEST_METRICS)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let bytes = self.get("/vectors", LONGEST_VECTORS)?;
        let table = read_table(&bytes).map_err(|error| {
            Failure::input(format!("cannot read http://{}/vectors: {error}", self.address))
        })?;
        let fresh = self.count(&text, &table);
        let hangs = hang::find(&table, limit);
        let ranks = self.ranks(&table, &hangs);
        Ok(Reading {
            source: format!("agent {}", self.address),
            at: Moment::now().rfc3339(),
            span_s: self.span.as_secs_f64(),
            fresh_s: fresh.unwrap_or_default().as_secs_f64(),
            notes: self.notes(&text, &ranks),
            ranks,
            findings: hangs.findings,
        })
    }

    fn has_rates(&self) -> bool {
        !self.span.is_zero()
    }
}

/// The communicator of a sample, and the rank in it.
fn place(sample: &Sample<'_>) -> Option<(Comm, u32)> {
    let rank = sample.label("nccl_rank").parse().ok()?;
    let hash = u64::from_str_radix(sample.label("nccl_communicator_hash"), 16).ok()?;
    let role = sample.label("nccl_communicator_role");
    let name = if role.is_empty() { sample.label("nccl_communicator_name") } else { role };
    Some((Comm::new(hash, name), rank))
}

/// The work with the names of its communicators.
fn named(work: Work, names: &BTreeMap<u64, Comm>) -> Work {
    let name = |comm: Comm| names.get(&comm.hash).cloned().unwrap_or(comm);
    let Work { functions, links } = work;
    let functions = functions.into_iter();
    let links = links.into_iter();
    Work {
        functions: functions
            .map(|(key, of)| (FunctionKey { comm: name(key.comm), ..key }, of))
            .collect(),
        links: links.map(|(key, of)| (LinkKey { comm: name(key.comm), ..key }, of)).collect(),
    }
}

/// Adds a counter to a rank's work.
fn add(work: &mut Work, comm: Comm, sample: &Sample<'_>) {
    let value = sample.value;
    let is_timed = sample.label("nccl_timing") != "enqueue";
    if let Some(name) = sample.name.strip_prefix("nccl_operation") {
        let func = sample.label("nccl_operation_name");
        if func.is_empty() {
            return;
        }
        let is_p2p = sample.label("nccl_operation_type") != "collective";
        let key = FunctionKey { comm, func: func.to_owned(), is_p2p };
        let function: &mut Function = work.functions.entry(key).or_default();
        match name {
            "s_total" => function.count += value,
            "_io_bytes_total" => function.bytes += value,
            "_duration_seconds_sum" if is_timed => function.seconds += value,
            "_duration_seconds_count" if is_timed => function.timed += value,
            "_bus_bandwidth_bytes_per_second_sum" => function.bandwidths += value,
            "_bus_bandwidth_bytes_per_second_count" => function.measured += value,
            _ => {}
        }
    } else if let Some(name) = sample.name.strip_prefix("nccl_link") {
        let number = |label: &str| sample.label(label).parse().ok();
        let (Some(rank), Some(peer)) = (number("nccl_rank"), number("nccl_peer_rank")) else {
            return;
        };
        let is_send = sample.label("nccl_direction") == "send";
        let link: &mut Link = work.links.entry(LinkKey { comm, rank, peer, is_send }).or_default();
        match name {
            "_transfers_total" => link.transfers += value,
            "_io_bytes_total" => link.bytes += value,
            "_transfer_duration_seconds_sum" => link.seconds += value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::vectors::{Vector, table};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn metrics(windows: u32, operations: u32) -> String {
        let labels = "nccl_operation_name=\"AllReduce\",nccl_operation_type=\"collective\",\
                      nccl_communicator_hash=\"00000000000000aa\",nccl_communicator_role=\"dp\",\
                      nccl_timing=\"kernel\",nccl_rank=\"1\"";
        let link = "nccl_communicator_hash=\"00000000000000aa\",nccl_communicator_role=\"dp\",\
                    nccl_direction=\"send\",nccl_rank=\"1\",nccl_peer_rank=\"0\"";
        format!(
            "ncclscope_agent_windows_total {windows}\n\
             nccl_operations_total{{{labels}}} {operations}\n\
             nccl_operation_duration_seconds_sum{{{labels}}} {}\n\
             nccl_operation_duration_seconds_count{{{labels}}} {operations}\n\
             nccl_link_transfers_total{{{link}}} {operations}\n\
             nccl_link_io_bytes_total{{{link}}} {}\n",
            f64::from(operations) / 100.0,
            operations * 1000
        )
    }

    fn vectors() -> Table {
        let vector = |rank: u32, enqueued: u32| Vector {
            comm: 0xaa,
            process: 10 + rank,
            rank,
            nranks: 2,
            api: enqueued,
            enqueued,
            done: 4,
            started: enqueued,
            hash_at: enqueued,
            age_ms: if enqueued > 4 { 2_500 } else { 0 },
            job: 5,
            ..Vector::default()
        };
        let jobs = [(5, "train".into())].into();
        Table { vectors: vec![vector(0, 4), vector(1, 5)], jobs, ..Table::default() }
    }

    /// Answers requests like an agent: each path has its answers, in order.
    fn agent(answers: Vec<(u16, Vec<u8>)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(&[head.as_bytes(), &body].concat());
            }
        });
        address
    }

    #[test]
    fn an_agents_counters_and_vectors_make_a_reading() {
        let table = vectors();
        let bytes = table_bytes(&table);
        let mut answers = Vec::new();
        for (windows, operations) in [(1, 50), (1, 50), (2, 100), (3, 400), (3, 400)] {
            answers.push((200, metrics(windows, operations).into_bytes()));
            answers.push((200, bytes.clone()));
        }
        let mut remote = Remote::new(&agent(answers)).unwrap();
        let limit = Duration::from_secs(1);
        assert!(remote.read(limit).unwrap().notes.is_empty() && !remote.has_rates());
        remote.read(limit).unwrap();
        remote.read(limit).unwrap();
        assert!(!remote.has_rates(), "no window was seen from its beginning");
        let reading = remote.read(limit).unwrap();
        assert!(remote.has_rates() && reading.fresh_s == reading.span_s && reading.span_s > 0.0);
        let [late, waits] = &reading.ranks[..] else { panic!("{reading:?}") };
        assert_eq!(
            (late.rank, late.job.as_str(), late.host.as_str()),
            (Some(10), "train", "127.0.0.1")
        );
        assert_eq!(waits.fresh, waits.work);
        let flight = waits.oldest().unwrap();
        assert_eq!((flight.comm.name.as_str(), flight.age_s, flight.count), ("dp", 2.5, 1));
        let function = waits.work.functions.values().next().unwrap();
        assert_eq!((function.count, function.timed), (300.0, 300.0));
        assert!((function.seconds - 3.0).abs() < 1e-9);
        assert_eq!(waits.work.links.values().next().unwrap().bytes, 300_000.0);
        assert_eq!(reading.findings[0].1.root_ranks, [10], "{reading:?}");
        let again = remote.read(limit).unwrap();
        assert_eq!((again.fresh_s, again.span_s), (0.0, reading.span_s), "the same window");
    }

    #[test]
    fn a_role_that_is_set_later_does_not_count_all_work_anew() {
        let mut answers = Vec::new();
        for windows in 1..5 {
            let role = if windows < 4 { "" } else { "tp" };
            let text =
                metrics(windows, 1000 + 100 * windows).replace("\"dp\"", &format!("{role:?}"));
            answers.extend([(200, text.into_bytes()), (200, table_bytes(&vectors()))]);
        }
        let mut remote = Remote::new(&agent(answers)).unwrap();
        let mut read = || remote.read(Duration::from_secs(1)).unwrap();
        let readings = [read(), read(), read(), read()];
        for (reading, name) in readings.iter().skip(2).zip(["00000000", "tp"]) {
            let work = &reading.ranks[1].work;
            let (key, function) = work.functions.first_key_value().unwrap();
            assert_eq!((key.comm.name.as_str(), function.count), (name, 100.0), "{reading:?}");
            let (key, link) = work.links.first_key_value().unwrap();
            assert_eq!((key.comm.name.as_str(), link.transfers), (name, 100.0), "{reading:?}");
        }
    }

    #[test]
    fn work_on_unknown_communicators_is_no_ranks() {
        let mut table = vectors();
        table.vectors.iter_mut().for_each(|vector| vector.comm = 0);
        let mut answers = Vec::new();
        for windows in 1..4 {
            let text = metrics(windows, 100 * windows).replace("00000000000000aa", "0");
            answers.extend([(200, text.into_bytes()), (200, table_bytes(&table))]);
        }
        let mut remote = Remote::new(&agent(answers)).unwrap();
        let mut read = || remote.read(Duration::from_secs(1)).unwrap();
        let [_, _, reading] = [read(), read(), read()];
        assert!(reading.ranks.len() == 2, "{reading:?}");
        assert!(reading.ranks.iter().all(|rank| rank.work == Work::default()), "{reading:?}");
    }

    fn table_bytes(of: &Table) -> Vec<u8> {
        table(&of.vectors, &of.jobs)
    }

    #[test]
    fn what_is_no_agent_is_one_clear_error() {
        for wrong in ["host", "host:x", ":9417", "a/b:1", "user@host:1"] {
            assert!(Remote::new(wrong).is_err(), "{wrong}");
        }
        let fails = |answers| {
            let mut remote = Remote::new(&agent(answers)).unwrap();
            remote.read(Duration::from_secs(1)).unwrap_err().text()
        };
        assert!(fails(vec![(503, vec![])]).contains("it answers 503"));
        let html = || (200, b"<html>".to_vec());
        assert!(fails(vec![html(), html()]).contains("/vectors: "));
        let large = usize::try_from(LONGEST_METRICS).unwrap() + 1;
        assert!(fails(vec![(200, vec![b'x'; large])]).contains("/metrics: "));
        assert!(fails(vec![]).contains("is `ncclscope agent --prom-listen` there?"));
    }
}
