// SPDX-License-Identifier: Apache-2.0
//! `ncclscope view`: requests to its server without a browser.

use crate::common::{Outcome, Run, ncclscope, tool};
use scripts::Call;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running viewer; killed when it is dropped.
pub(crate) struct Viewer {
    child: Child,
    /// The page's address.
    pub(crate) url: String,
}

impl Viewer {
    pub(crate) fn start(args: &[&str], temporary: &Path) -> Viewer {
        let mut command = tool();
        command.arg("view").args(args).env("TMPDIR", temporary).env_remove("BROWSER");
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the tool starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Viewer { child, url: url.trim().into() }
    }

    /// Requests something below the page's address.
    fn ask(&self, method: &str, place: &str) -> (String, Vec<u8>) {
        let rest = self.url.strip_prefix("http://").unwrap();
        let (address, path) = rest.split_once('/').unwrap();
        request(address, &format!("{method} /{path}{place} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
    }

    pub(crate) fn ends(mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(address: &str, text: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
}

pub(crate) fn exported(run: &Run) -> Vec<u8> {
    let path = run.file("expected.pftrace");
    ncclscope(&["export", run.text(), "-o", path.to_str().unwrap()]).ends_with(0);
    std::fs::read(path).unwrap()
}

#[test]
fn the_way_from_another_machine_has_the_port_that_is_served() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let temporary = tempfile::tempdir().unwrap();
    let mut command = tool();
    command.args(["view", run.text(), "--no-open", "--port", "0"]).env("TMPDIR", temporary.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut url, told) = (String::new(), BufReader::new(child.stderr.take().unwrap()));
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let _viewer = Viewer { child, url: url.clone() };
    let way = told.lines().map(Result::unwrap).find(|line| line.contains("ssh -L")).unwrap();
    let port = url.strip_prefix("http://127.0.0.1:").unwrap().split('/').next().unwrap();
    assert!(way.contains(&format!("ssh -L {port}:127.0.0.1:{port} ")), "{url} {way}");
}

#[test]
fn the_trace_is_served_at_its_address_alone_until_it_is_handed_over() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let expected = exported(&run);
    let temporary = tempfile::tempdir().unwrap();
    let viewer = Viewer::start(&[run.text(), "--no-open"], temporary.path());
    assert!(viewer.url.starts_with("http://127.0.0.1:"), "{}", viewer.url);
    let token = viewer.url.trim_end_matches('/').rsplit('/').next().unwrap().to_owned();
    assert_eq!(token.len(), 32);
    // Other users may not read the file either.
    let made: Vec<PathBuf> =
        std::fs::read_dir(&temporary).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(made.len(), 1);
    let mode = std::os::unix::fs::PermissionsExt::mode(&made[0].metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);

    let (head, page) = viewer.ask("GET", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{head}");
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains(r#"ui = "https://ui.perfetto.dev""#), "{page}");
    assert!(viewer.ask("GET", "trace") == (viewer.ask("GET", "trace").0, expected));
    for (method, place) in [("GET", "other"), ("POST", "trace"), ("GET", "done"), ("", "")] {
        assert!(viewer.ask(method, place).0.starts_with("HTTP/1.1 404"), "{method} {place}");
    }
    let (address, _) = viewer.url["http://".len()..].split_once('/').unwrap();
    for target in ["/", "/trace", &format!("/{}/trace", token.replace(&token[..1], "x"))] {
        let (head, _) = request(address, &format!("GET {target} HTTP/1.1\r\n\r\n"));
        assert!(head.starts_with("HTTP/1.1 404"), "{target}: {head}");
    }
    // Browsers open connections that they do not use, and other users may, too.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begin = std::time::Instant::now();
    assert!(viewer.ask("POST", "done").0.starts_with("HTTP/1.1 200"));
    assert!(begin.elapsed() < Duration::from_secs(10), "a silent client has 20 s");
    viewer.ends();
    drop(silent);
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn a_trace_is_shown_as_it_is_and_ctrl_c_ends() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let expected = exported(&run);
    let path = run.file("expected.pftrace");
    let temporary = tempfile::tempdir().unwrap();
    let viewer = Viewer::start(&[path.to_str().unwrap(), "--no-open"], temporary.path());
    assert_eq!(viewer.ask("GET", "trace").1, expected);
    let killed = Command::new("kill").arg("-INT").arg(viewer.child.id().to_string()).status();
    assert!(killed.unwrap().success());
    viewer.ends();
    assert!(path.exists());
}

#[test]
fn ctrl_c_while_the_trace_is_written_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().to_str().unwrap();
    ncclscope(&["simulate", "-o", run, "--ranks", "32", "--steps", "40"]).ends_with(0);
    let temporary = tempfile::tempdir().unwrap();
    let made = || std::fs::read_dir(temporary.path()).unwrap().count();
    let mut command = tool();
    command.args(["view", run, "--no-open"]).env("TMPDIR", temporary.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while made() == 0 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").arg("-INT").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    let status = child.wait().unwrap();
    // A fast machine has already written the trace; then the server ends.
    assert!(status.code() == Some(0) || status.signal() == Some(2), "{status}");
    assert_eq!(made(), 0);
}

#[test]
fn a_filter_chooses_what_is_shown() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let filter = ["--rank", "1", "--events", "Coll,KernelCh"];
    let path = run.file("part.pftrace");
    let export = ["export", run.text(), "-o", path.to_str().unwrap()];
    ncclscope(&[&export[..], &filter].concat()).ends_with(0);
    let expected = std::fs::read(&path).unwrap();
    assert!(expected.len() < exported(&run).len());
    let temporary = tempfile::tempdir().unwrap();
    let args = [&[run.text(), "--no-open"], &filter[..]].concat();
    let viewer = Viewer::start(&args, temporary.path());
    assert!(viewer.ask("GET", "trace").1 == expected);
    assert!(viewer.ask("POST", "done").0.starts_with("HTTP/1.1 200"));
    viewer.ends();
    for option in ["--rank", "--run"] {
        let trace = ncclscope(&["view", path.to_str().unwrap(), option, "1"]).ends_with(2);
        assert!(trace.stderr.contains("a trace is shown as it is"), "{trace:#?}");
    }
}

#[test]
fn bad_input_is_one_line() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    for path in [run.file("absent"), run.file("absent.pftrace"), "/dev/null".into()] {
        let outcome = ncclscope(&["view", "--no-open", path.to_str().unwrap()]).ends_with(3);
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    }
    let outcome = ncclscope(&["view", run.text(), "--ui", "javascript:alert(1)"]).ends_with(2);
    assert!(outcome.stderr.contains("is not the address of a page"), "{outcome:#?}");
}

/// Perfetto's UI would only say that it cannot open the file.
#[test]
fn json_of_ncclscope_that_is_no_trace_is_not_shown() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let saved = run.file("saved.json");
    let report = ncclscope(&["report", run.text(), "--format", "json"]).stdout;
    std::fs::write(&saved, report).unwrap();
    let truth = run.file("truth.json");
    std::fs::write(&truth, r#"{"schema": "ncclscope.truth/1", "fault": "none"}"#).unwrap();
    for (path, what) in [
        (saved, "saved.json is a saved report (ncclscope.report/3), not a trace: name "),
        (truth, "truth.json is the truth about a simulated job (ncclscope.truth/1), not a trace"),
    ] {
        let outcome = ncclscope(&["view", "--no-open", path.to_str().unwrap()]).ends_with(3);
        assert!(outcome.stderr.contains(what), "{outcome:#?}");
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.lines().count()), ("", 1));
    }
    // A trace in JSON is.
    let trace = run.file("trace.json");
    ncclscope(&["export", run.text(), "-o", trace.to_str().unwrap()]).ends_with(0);
    let temporary = tempfile::tempdir().unwrap();
    let viewer = Viewer::start(&[trace.to_str().unwrap(), "--no-open"], temporary.path());
    assert_eq!(viewer.ask("GET", "trace").1, std::fs::read(&trace).unwrap());
    viewer.ask("POST", "done");
    viewer.ends();
}

#[test]
fn the_browser_of_the_user_is_opened() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let note = run.file("opened");
    let script = run.file("browser.sh");
    let text = format!(
        "#!/bin/sh\n(echo \"$*\"; stat -c %a \"$1\"; cat \"$1\") > {0}.tmp && mv {0}.tmp {0}\n",
        note.display()
    );
    std::fs::write(&script, text).unwrap();
    Outcome::of(Command::new("chmod").arg("+x").arg(&script)).ends_with(0);
    let mut command = tool();
    command.arg("view").arg(run.text()).env("BROWSER", &script).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let viewer = Viewer { child, url: url.trim().into() };
    while !note.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = std::fs::read_to_string(&note).unwrap();
    let [argument, mode, page] = told.splitn(3, '\n').collect::<Vec<_>>()[..] else {
        panic!("{told}")
    };
    let token = viewer.url.trim_end_matches('/').rsplit('/').next().unwrap();
    // Other users can see the command line but cannot read the page.
    assert!(argument.ends_with("open.html") && !argument.contains(token), "{told}");
    assert!(mode == "600" && page.contains(&format!("url={}\"", viewer.url)), "{told}");
    viewer.ask("POST", "done");
    viewer.ends();
}
