// SPDX-License-Identifier: Apache-2.0
//! The built plugin with metrics collectors that refuse, discard, or delay requests: they must not
//! delay the process's exit.

use fake_nccl::build::plugin;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The result of a process.
struct Ended {
    /// The time from the end of `main` to the exit of the process.
    exit: Duration,
    /// Lines of the plugin's log.
    lines: Vec<String>,
}

/// Plays a job that exports to `url`, with windows longer than the job.
fn play(url: &str, end: &str) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-nccl"));
    command.arg(plugin()).args(["6", "allreduce", "--ops", "20", "--end", end]);
    command.env("NCCLSCOPE_DIR", dir.path()).env("NCCLSCOPE_LOG", "stderr");
    command.env("NCCLSCOPE_OTLP", url).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let last = output.lines().map(Result::unwrap).find(|line| line == "survived");
    let survived = Instant::now();
    assert!(last.is_some(), "{url}");
    let output = process.wait_with_output().unwrap();
    let exit = survived.elapsed();
    assert!(output.status.success(), "{url}: {output:?}");
    let lines = String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
    Ended { exit, lines }
}

/// Bodies of requests.
type Bodies = Arc<Mutex<Vec<Vec<u8>>>>;

/// A collector that calls `answer` with each connection and the number of its request.
fn collector(answer: fn(&TcpStream)) -> (String, Bodies) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let bodies = Bodies::default();
    let taken = Arc::clone(&bodies);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let taken = Arc::clone(&taken);
            std::thread::spawn(move || {
                while let Some(body) = request(&stream) {
                    taken.lock().unwrap().push(body);
                    answer(&stream);
                }
            });
        }
    });
    (url, bodies)
}

fn request(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

fn take(mut stream: &TcpStream) {
    // A process that has exited needs no answer.
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

/// The plugin's lines that contain `text`.
fn about<'a>(ended: &'a Ended, text: &str) -> Vec<&'a String> {
    ended.lines.iter().filter(|line| line.contains(text)).collect()
}

#[test]
fn a_collector_that_takes_has_the_last_window_and_no_process_waits() {
    for end in ["finalize", "exit"] {
        let (url, bodies) = collector(take);
        let ended = play(&url, end);
        assert!(ended.exit < Duration::from_millis(500), "{end}: {:?}", ended.exit);
        let bodies = bodies.lock().unwrap();
        let has =
            |text: &[u8]| bodies.iter().any(|body| body.windows(text.len()).any(|w| w == text));
        assert!(has(b"AllReduce") && has(b"nccl.operation.duration"), "{end}");
        assert_eq!(about(&ended, "metrics"), [""; 0]);
    }
}

#[test]
fn no_process_waits_for_a_collector_that_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for end in ["finalize", "exit"] {
        let ended = play(&url, end);
        assert!(ended.exit < Duration::from_millis(350), "{end}: {:?}", ended.exit);
        assert_eq!(about(&ended, "cannot export metrics to 127.0.0.1:").len(), 1, "{end}");
        assert_eq!(about(&ended, "the last metrics did not arrive").len(), 1, "{end}");
    }
}

#[test]
fn no_process_waits_long_for_a_black_hole() {
    let (url, bodies) = collector(|_| std::thread::sleep(Duration::from_secs(60)));
    let ended = play(&url, "finalize");
    assert!(ended.exit < Duration::from_millis(900), "{:?}", ended.exit);
    assert_eq!(about(&ended, "the last metrics did not arrive").len(), 1, "{:?}", ended.lines);
    assert_eq!(bodies.lock().unwrap().len(), 1);
}

#[test]
fn no_process_waits_long_for_a_slow_collector_which_has_the_last_window() {
    let (url, bodies) = collector(|stream| {
        std::thread::sleep(Duration::from_secs(3));
        take(stream);
    });
    let ended = play(&url, "exit");
    assert!(ended.exit < Duration::from_millis(900), "{:?}", ended.exit);
    assert_eq!(bodies.lock().unwrap().len(), 1, "it arrived, though no answer did");
}

#[test]
fn communicators_that_come_and_go_are_no_load_for_the_collector_or_the_process() {
    const COMMS: &str = "1500";
    let (url, bodies) = collector(take);
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_elastic"));
    command.arg(plugin()).args(["6", COMMS, "0"]).env("NCCLSCOPE_DIR", dir.path());
    command.env("NCCLSCOPE_OTLP", url).env("NCCLSCOPE_WINDOW", "0.5");
    let start = Instant::now();
    let output = command.output().unwrap();
    let took = start.elapsed();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("survived\n"), "{text}");
    let bodies = bodies.lock().unwrap();
    let most = 3 + took.as_millis() / 500;
    assert!((bodies.len() as u128) <= most, "{} requests in {took:?}", bodies.len());
    let largest = bodies.iter().map(Vec::len).max().unwrap();
    assert!(largest < 1 << 20, "{largest} bytes");
}
