// SPDX-License-Identifier: Apache-2.0
//! What the agent refuses, which recordings it finds, and where it exports.

use crate::program::{Outcome, Run};
use crate::{agent, ncclscope, run_agent};
use ncclscope_trace::layout::BLOCKS;
use scripts::{Call, Process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for waits, long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn two_operations() -> Run {
    Run::new(|process| {
        process.collective(Call::ALL_REDUCE);
        process.collective(Call::ALL_REDUCE);
    })
}

/// The sum of a metric's series that have all of `labels`.
fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| {
        let is_it = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        is_it && labels.iter().all(|label| line.contains(label))
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn once_tells_everything_that_is_there() {
    let run = two_operations();
    let outcome = run_agent(&["--once", "--dir", run.text()]).ends_with(0);
    assert_eq!(outcome.stderr, "");
    let text = outcome.stdout;
    assert_eq!(sum(&text, "nccl_operations_total", &["\"AllReduce\""]), 4.0, "{text}");
    assert_eq!(sum(&text, "nccl_events_started_total", &["\"Coll\""]), 4.0, "{text}");
    assert!(!text.contains("nccl_rank="), "only if asked for: {text}");
    let args = ["--once", "--dir", run.text(), "--labels", "rank,peer,channel"];
    let text = run_agent(&args).ends_with(0).stdout;
    assert_eq!(sum(&text, "nccl_operations_total", &["nccl_rank=\"1\""]), 2.0, "{text}");
    let per_peer = sum(&text, "nccl_link_transfers_total", &["nccl_peer_rank=\"0\""]);
    assert!(per_peer > 0.0 && text.contains("nccl_channel_id=\"1\""), "{text}");
}

#[test]
fn what_another_process_sends_counts_for_the_rank_whose_data_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let [mut sender, mut proxy] = [0, 1].map(|rank| {
        let mut process = Process::new(rank, 4);
        process.header.host = "node-0".into();
        process.comm.nodes = 2;
        process
    });
    sender.comm.index = 3;
    for _ in 0..20 {
        sender.send_by(&mut proxy, 2, 1 << 10);
    }
    let once = || {
        let args = ["--once", "--dir", dir.path().to_str().unwrap()];
        run_agent(&[&args[..], &["--labels", "rank,peer,channel"]].concat()).ends_with(0).stdout
    };
    let path = sender.write(dir.path()).unwrap();
    proxy.write(dir.path()).unwrap();
    let text = once();
    let link = ["nccl_rank=\"0\"", "nccl_peer_rank=\"2\"", "nccl_direction=\"send\""];
    let link_sum = |text: &str, link: &[&str]| sum(text, "nccl_link_io_bytes_total", link);
    assert_eq!(link_sum(&text, &link), 20.0 * 4096.0, "{text}");
    assert_eq!(link_sum(&text, &[]), 20.0 * 4096.0, "and once: {text}");
    let own = [link[0], "\"Send\"", "nccl_network=\"true\""];
    assert_eq!(sum(&text, "nccl_operations_total", &own), 20.0, "{text}");
    let channel = [&link[..], &["nccl_channel_id=\"0\""]].concat();
    assert_eq!(sum(&text, "nccl_channel_io_bytes_total", &channel), 20.0 * 4096.0, "{text}");
    // Without the sender's recording, the link is counted with what belongs to no known
    // communicator.
    std::fs::remove_file(path).unwrap();
    let text = once();
    assert_eq!(link_sum(&text, &["0000000000000000"]), 20.0 * 4096.0, "{text}");
}

#[test]
fn a_process_tells_its_jobs_name_and_what_communicates_beside_nccl() {
    let run = Run::new(|process| {
        process.identity.job = Some("4711.0".into());
        process.identity.job_name = Some("train".into());
        process.identity.beside = Some("deep_ep,nvshmem".into());
        // The process is not over: the libraries of processes that are over are not shown.
        process.header.closed = false;
        process.collective(Call::ALL_REDUCE);
    });
    let text = run_agent(&["--once", "--dir", run.text()]).ends_with(0).stdout;
    let job = ["nccl_job_id=\"4711.0\"", "nccl_job_name=\"train\""];
    assert_eq!(sum(&text, "nccl_operations_total", &job), 2.0, "{text}");
    for library in ["nccl_library=\"deep_ep\"", "nccl_library=\"nvshmem\""] {
        assert_eq!(sum(&text, "nccl_invisible_libraries", &[library]), 2.0, "{text}");
    }
}

#[test]
fn once_fails_after_the_rest_if_a_recording_cannot_be_read() {
    let run = two_operations();
    std::fs::write(run.file("x.nscope"), "this is no recording").unwrap();
    let outcome = run_agent(&["--once", "--dir", run.text()]).ends_with(3);
    assert!(outcome.stderr.contains("x.nscope"), "{outcome:#?}");
    let text = outcome.stdout;
    assert_eq!(sum(&text, "nccl_operations_total", &["\"AllReduce\""]), 4.0, "{text}");
    assert_eq!(sum(&text, "ncclscope_agent_unreadable_recordings", &[]), 1.0, "{text}");
}

#[test]
fn once_names_recordings_of_which_a_part_is_missing() {
    let job = tempfile::tempdir().unwrap();
    let run = job.path().join("run");
    let args = ["simulate", "--ranks", "8", "--seed", "3", "-o", run.to_str().unwrap()];
    ncclscope(&args).ends_with(0);
    let once = ["--once", "--any-host", "--dir", run.to_str().unwrap()];
    assert_eq!(run_agent(&once).ends_with(0).stderr, "");
    let mut files = std::fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension() == Some("nscope".as_ref())).unwrap();
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    let stderr = run_agent(&once).ends_with(3).stderr;
    assert!(stderr.contains(&format!("{} is damaged: ", file.display())), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

/// Processes that were killed close no recording, and here left no lanes.
#[test]
fn once_names_damaged_recordings_of_killed_processes() {
    let job = tempfile::tempdir().unwrap();
    let run = job.path().join("run");
    let args = ["simulate", "--ranks", "4", "--fault", "killed", "-o", run.to_str().unwrap()];
    ncclscope(&args).ends_with(0);
    let once = ["--once", "--any-host", "--dir", run.to_str().unwrap()];
    assert_eq!(run_agent(&once).ends_with(0).stderr, "");
    let mut files = std::fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().path());
    let path = files.find(|path| path.extension() == Some("nscope".as_ref())).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let place = BLOCKS + 100;
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place).unwrap();
    for outcome in [run_agent(&once), ncclscope(&["report", run.to_str().unwrap()])] {
        let stderr = outcome.ends_with(3).stderr;
        assert!(stderr.contains(&format!("{} is damaged: ", path.display())), "{stderr}");
    }
}

#[test]
fn copies_are_told_of_by_their_originals() {
    let run = two_operations();
    let dumps = run.file("dump-1");
    std::fs::create_dir(&dumps).unwrap();
    let mut copy = Process::new(0, 2);
    copy.collective(Call::ALL_REDUCE);
    copy.header.copy = true;
    copy.write(&dumps).unwrap();
    let operations = |dir: &Path| {
        let args = ["--once", "--dir", dir.to_str().unwrap()];
        let text = run_agent(&args).ends_with(0).stdout;
        sum(&text, "nccl_operations_total", &["\"AllReduce\""])
    };
    assert_eq!((operations(run.path()), operations(&dumps)), (4.0, 1.0));
}

#[test]
fn losses_are_told_by_cause_and_kind() {
    let run = Run::new(|process| {
        process.lose(1, ncclscope_trace::EventKind::ProxyStep, 5);
        process.collective(Call::ALL_REDUCE);
    });
    let text = run_agent(&["--once", "--dir", run.text()]).ends_with(0).stdout;
    let labels = ["\"lane_full\"", "\"ProxyStep\""];
    assert_eq!(sum(&text, "nccl_events_lost_total", &labels), 10.0, "{text}");
    assert_eq!(sum(&text, "ncclscope_agent_lost_events_total", &[]), 10.0, "{text}");
    assert!(
        text.contains("nccl_events_lost_total{nccl_loss_cause=\"no_lane\",host_name="),
        "{text}"
    );
}

#[test]
fn the_cap_on_series_holds_and_says_what_it_cost() {
    let run = two_operations();
    let args = ["--once", "--dir", run.text(), "--max-series", "1"];
    let text = run_agent(&args).ends_with(0).stdout;
    assert!(sum(&text, "ncclscope_series_dropped_total", &[]) > 0.0, "{text}");
    let overflow = ["otel_metric_overflow=\"true\""];
    assert_eq!(sum(&text, "nccl_operations_total", &overflow), 4.0, "{text}");
}

#[test]
fn other_projects_names_are_given_on_request() {
    let run = two_operations();
    for (project, name) in
        [("inspector", "nccl_bus_bandwidth_gbs{"), ("mosaic", "nccl_profiler_collective_")]
    {
        let mut command = agent();
        command.args(["--once", "--dir", run.text()]);
        let outcome = Outcome::of(command.env("NCCLSCOPE_PROM_COMPAT", project)).ends_with(0);
        assert!(outcome.stdout.contains(name), "{outcome:#?}");
        assert!(!outcome.stdout.contains("nccl_operations_total"), "{outcome:#?}");
    }
}

/// Shell script that opens the file whose path it reads, and runs until its input ends.
const HOLDS_A_FILE: &str = r#"read path; exec 3<"$path"; echo; read end"#;

#[test]
fn labels_that_no_recording_has_come_from_the_ranks_environment() {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", HOLDS_A_FILE]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("SLURM_JOB_ID", "4242").env("LOCAL_RANK", "5").env("CUDA_VISIBLE_DEVICES", "3");
    let mut rank = command.spawn().unwrap();
    let mut process = Process::new(0, 2);
    process.header.pid = rank.id();
    process.collective(Call::ALL_REDUCE);
    let file = process.write(place.path()).unwrap();
    let labels = |project: &str| {
        let mut command = agent();
        command.args(["--once", "--dir", place.path().to_str().unwrap()]);
        let text = Outcome::of(command.env("NCCLSCOPE_PROM_COMPAT", project)).ends_with(0).stdout;
        let line = text.lines().find(|line| line.starts_with("nccl_") && line.contains('{'));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let of_nobody = r#"version="v5.1",slurm_job_id="unknown",node="node-0",gpu="unknown""#;
    let of_rank = r#"version="v5.1",slurm_job_id="4242",node="node-0",gpu="GPU3""#;
    assert!(labels("inspector").contains(of_nobody), "a process of that number may be another's");
    writeln!(rank.stdin.as_ref().unwrap(), "{}", file.display()).unwrap();
    let mut line = String::new();
    BufReader::new(rank.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(labels("inspector").contains(of_rank), "{}", labels("inspector"));
    assert!(labels("mosaic").contains(r#"local_rank="5""#), "{}", labels("mosaic"));
    drop(rank.stdin.take());
    rank.wait().unwrap();
    assert!(labels("inspector").contains(of_nobody), "it is gone");
}

#[test]
fn wrong_usage_is_one_clear_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args: [(&[&str], i32, &str); 8] = [
        (&["--dir", "."], 2, "nothing to export to"),
        (&["--textfile", ".", "--interval", "0"], 2, "expected seconds from 0.1"),
        (&["--otlp", "collector:4318"], 2, "begins with http:// or https://"),
        (&["--prom-listen", "9400"], 2, "invalid"),
        (&["--once", "--labels", "host"], 2, "possible values: rank, peer, channel"),
        (&["--prom-listen", &address], 4, "choose another with --prom-listen"),
        (&["--textfile", "/nowhere"], 4, "no such directory"),
        (&["--once", "--dir", "/nowhere"], 3, "no such directory"),
    ];
    for (args, code, says) in args {
        let outcome = run_agent(args).ends_with(code);
        assert!(outcome.stderr.contains(says), "{args:?}: {outcome:#?}");
        assert_eq!(outcome.stderr.matches("error:").count(), 1, "{args:?}: {outcome:#?}");
    }
    let mut command = agent();
    command.args(["--once"]).env("NCCLSCOPE_PROM_COMPAT", "dcgm");
    let outcome = Outcome::of(&mut command).ends_with(2);
    assert!(outcome.stderr.contains("expected inspector or mosaic"), "{outcome:#?}");
}

/// A running agent; killed when it is dropped.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) stderr: BufReader<ChildStderr>,
}

impl Agent {
    fn start(args: &[&str]) -> Agent {
        Agent::spawn(agent().args(args))
    }

    pub(crate) fn spawn(command: &mut Command) -> Agent {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Agent { child, stderr }
    }

    /// The address on which the agent serves.
    pub(crate) fn address(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ncclscope: serving http://");
        address
            .and_then(|rest| rest.strip_suffix("/metrics"))
            .unwrap_or_else(|| panic!("{line}"))
            .into()
    }

    /// Ends the agent as a service manager does. Returns the rest of what it wrote.
    pub(crate) fn terminate(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();

        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{said}");
        said
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Scrapes the agent until the sum of a metric is `expected`.
pub(crate) fn wait_for(address: &str, name: &str, expected: f64) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = scrape(address);
        if sum(&text, name, &[]) == expected {
            return text;
        }
        assert!(Instant::now() < end, "{name} is not {expected}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Writes a closed recording of `operations` operations into a directory, in one step.
fn put(rank: i32, directory: &Path, operations: usize) {
    let beside = tempfile::tempdir_in(directory.parent().unwrap()).unwrap();
    let mut process = Process::new(rank, 2);
    (0..operations).for_each(|_| process.collective(Call::ALL_REDUCE));
    let file = process.write(beside.path()).unwrap();
    std::fs::rename(&file, directory.join(file.file_name().unwrap())).unwrap();
}

#[test]
fn processes_come_and_go_and_no_counter_falls() {
    let place = tempfile::tempdir().unwrap();
    let (run, out) = (place.path().join("run"), place.path().join("out"));
    let job = run.join("job-1");
    std::fs::create_dir_all(&job).unwrap();
    std::fs::create_dir(&out).unwrap();
    put(5, &job, 7);
    let (run, file) = (run.to_str().unwrap(), out.join("ncclscope.prom"));
    let args = ["--dir", run, "--prom-listen", "127.0.0.1:0", "--interval", "0.2", "--any-host"];
    let mut agent = Agent::start(&[&args, &["--textfile", out.to_str().unwrap()][..]].concat());
    let address = agent.address();
    let text = wait_for(&address, "ncclscope_agent_processes", 0.0);
    assert!(!text.contains("nccl_operations_total"), "what had ended is history: {text}");
    put(0, &job, 2);
    wait_for(&address, "nccl_operations_total", 2.0);
    put(1, &job, 3);
    let text = wait_for(&address, "nccl_operations_total", 5.0);
    assert_eq!(sum(&text, "nccl_operations_in_flight", &[]), 0.0, "{text}");
    std::fs::remove_dir_all(&job).unwrap();
    wait_for(&address, "ncclscope_agent_processes", 0.0);
    let text = wait_for(&address, "nccl_operations_total", 5.0);
    assert_eq!(agent.terminate(), "");
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(sum(&written, "nccl_operations_total", &[]), 5.0, "{written}");
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1, "nothing temporary is left");
}

#[test]
fn recordings_of_other_hosts_are_theirs() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let args =
        ["--dir", run.to_str().unwrap(), "--prom-listen", "127.0.0.1:0", "--interval", "0.2"];
    let mut agent = Agent::start(&args);
    let address = agent.address();
    wait_for(&address, "ncclscope_agent_processes", 0.0);
    put(0, &run, 2);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut ours = Process::new(1, 2);
    ours.header.host = host.trim().split('.').next().unwrap().to_owned();
    ours.collective(Call::ALL_REDUCE);
    let beside = tempfile::tempdir_in(place.path()).unwrap();
    let file = ours.write(beside.path()).unwrap();
    std::fs::rename(&file, run.join("ours.nscope")).unwrap();
    wait_for(&address, "nccl_operations_total", 1.0);
    assert_eq!(agent.terminate(), "");
}

/// Reads one request and answers it. Returns its head in lower case and its body.
pub(crate) fn receive(listener: &TcpListener, answer: &str) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(&stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    (head, body)
}

#[test]
fn the_last_window_reaches_the_collector_before_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let args = ["--dir", run.to_str().unwrap(), "--any-host", "--interval", "3600"];
    let mut command = agent();
    command.args(args).args(["--otlp", &url, "--prom-listen", "127.0.0.1:0"]);
    let mut agent = Agent::spawn(command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret"));
    agent.address();
    put(0, &run, 2);
    let collector = std::thread::spawn(move || {
        let first = receive(&listener, "503 Service Unavailable\r\nRetry-After: 0");
        let again = receive(&listener, "200 OK");
        (first, again)
    });
    let said = agent.terminate();
    assert!(said.contains("503") && said.lines().count() == 1, "{said}");
    let ((head, first), (_, again)) = collector.join().unwrap();
    assert!(head.starts_with("post /v1/metrics ") && head.contains("x-key: secret"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    assert_eq!(first, again, "a request is sent again as it was");
    let has = |text: &str| first.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("nccl.operations") && has("AllReduce") && has("host.name"));
}
