// SPDX-License-Identifier: Apache-2.0
//! HTTP: answers of a collector to the sender of metrics, and requests of clients to the agent.

use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use ncclscope_metrics::encode::otlp::parse_response;
use ncclscope_metrics::send::{Answer, Http, Target as Collector, Transport, client};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(super) const ANSWERS: Target = Target {
    name: "http-answers",
    samples: answers,
    mutate,
    read: read_answer,
    inputs: 300,
    found: &[],
};

pub(super) const REQUESTS: Target = Target {
    name: "http-requests",
    samples: requests,
    mutate,
    read: read_request,
    inputs: 300,
    found: &[],
};

/// Time limit of either side for one input.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer that the sender may keep.
const MOST_KEPT: usize = 64 << 10;

fn answers() -> Vec<Vec<u8>> {
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\n\u{3}\u{12}\u{1}x",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 204 No Content\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 503 Unavailable\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: http://localhost:1/x\r\nContent-Length: 0\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn requests() -> Vec<Vec<u8>> {
    [
        "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /vectors?job=a%20b HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        "HEAD / HTTP/1.0\r\nAccept: */*\r\n\r\n",
        "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Changes bytes, or inserts a long run of one byte.
fn mutate(random: &mut Random, data: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        mutate::any(random, data);
    }
    if random.below(20) == 0 {
        let at = random.below(data.len() + 1);
        let filler = *random.of(b"a:\n0 \0");
        data.splice(at..at, std::iter::repeat_n(filler, 1 << random.below(20)));
    }
}

/// Posts to a collector that answers with `data` and closes the connection.
fn read_answer(data: &[u8]) -> bool {
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return false };
    let Ok(address) = listener.local_addr() else { return false };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(data);
            let _ = stream.shutdown(Shutdown::Write);
            // Closing the connection with unread bytes would discard the answer.
            let _ = stream.read(&mut [0; 4096]);
        });
        let url = format!("http://{address}/v1/metrics");
        let target = Collector { url, headers: Vec::new() };
        let http = Http::new(target, client(PATIENCE, "fuzz").build());
        let answer = http.post(b"metrics");
        // Ends the accepting thread in any case.
        drop((http, TcpStream::connect(address)));
        match answer {
            Answer::Taken(body) => {
                assert!(body.len() <= MOST_KEPT, "{} bytes are kept", body.len());
                let _ = parse_response(&body);
                true
            }
            Answer::Later(pause, text) => pause.is_some() && !text.is_empty(),
            Answer::Remarked(..) => true,
            Answer::Refused(text) => text.contains("redirects are not followed"),
        }
    })
}

/// An agent that serves an empty directory.
#[derive(Debug)]
struct Agent {
    address: SocketAddr,
    /// A shell that ends the agent when its standard input closes, which happens at the latest when
    /// this process ends.
    _shell: Child,
    /// The agent's standard error, kept open so that the agent can write to it.
    _log: BufReader<ChildStderr>,
}

static AGENT: OnceLock<Agent> = OnceLock::new();

/// Shell script: the agent's directory is its first argument.
const SERVE: &str = r#""$0" agent --dir "$1" --prom-listen 127.0.0.1:0 </dev/null & read -r x
kill $!"#;

impl Agent {
    fn start() -> Result<Agent, String> {
        let tool = built::TOOL.path()?;
        let mut shell = Command::new("sh");
        // A directory that always exists and has no recordings.
        shell.args(["-c", SERVE]).arg(tool).arg("/proc/self/fdinfo");
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut shell = shell.spawn().map_err(|error| error.to_string())?;
        let mut log = BufReader::new(shell.stderr.take().ok_or("no standard error")?);
        let mut line = String::new();
        log.read_line(&mut line).map_err(|error| error.to_string())?;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let address = address.ok_or_else(|| format!("the agent says {line:?}"))?;
        Ok(Agent { address, _shell: shell, _log: log })
    }

    /// The agent's answer to `request`, up to the end of the connection.
    fn ask(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = Vec::new();
        // The agent may answer and close the connection before it has read everything.
        let _ = stream.write_all(request);
        // A client that has sent a complete request and then closes its side may get no answer.
        // With an incomplete request, the agent would wait for the rest.
        if !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let _ = stream.read_to_end(&mut answer);
        Ok(answer)
    }
}

/// Sends a request to an agent, which must then answer other requests at once.
fn read_request(data: &[u8]) -> bool {
    let agent = AGENT.get_or_init(|| Agent::start().unwrap_or_else(|error| panic!("{error}")));
    let begun = Instant::now();
    let answer = agent.ask(data).unwrap_or_default();
    assert!(begun.elapsed() < PATIENCE, "the connection stays");
    let other = agent.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let other = other.unwrap_or_else(|error| panic!("the agent serves no more: {error}"));
    assert!(other.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&other));
    answer.starts_with(b"HTTP/1.") && !answer.starts_with(b"HTTP/1.1 400")
}
