// SPDX-License-Identifier: Apache-2.0
//! File descriptors of the plugin that the host closes and whose numbers its own files get.

use crate::common::{compile, play, plugin};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The plugin continues to write to the recording, and never to the host's files.
#[test]
fn a_host_that_closes_all_files_keeps_its_own_and_is_recorded() {
    let host = compile("files", &[]);
    // One of the host's sockets may get the descriptor number of a socket of the plugin: tries
    // several numbers.
    for socket in ["3", "1002"] {
        let [own, control] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut command = Command::new(&host);
        command.arg(plugin()).arg(own.path()).arg(control.path()).env("SOCKET", socket);
        let played = play(&mut command, &[("NCCLSCOPE_CONTROL", control.path().to_str().unwrap())]);
        played.survived();
        assert_eq!(played.stderr(), "");
        let recording = played.files().into_iter().find(|file| file.is_file()).unwrap();
        let recording = ncclscope_trace::Recording::open(&recording).unwrap();
        assert_eq!(recording.problems(), &[] as &[String]);
        assert_eq!(crate::common::operations(&recording), 100 + 20 * 400, "socket {socket}");
        assert_eq!(recording.header().unwritten, [0; ncclscope_trace::kind::KINDS]);
    }
}

/// A host without standard file descriptors: the plugin's files must not get their numbers.
#[test]
fn a_host_without_standard_files_gets_none_of_ours() {
    let host = compile("plain", &[]);
    let mut command = Command::new("bash");
    command.args(["-c", "\"$@\" <&- >&- 2>&-; echo $? survived", "bash"]);
    command.arg(host).arg(plugin()).arg("100");
    // The host's last output goes to the closed descriptor 1, which is not the plugin's concern.
    let played = play(&mut command, &[]);
    assert_eq!(String::from_utf8_lossy(&played.output.stdout), "4 survived\n");
    let recording = played.recording();
    assert_eq!(crate::common::operations(&recording), 100);
}

/// A collector that answers each request and keeps connections open as in HTTP/1.1; counts
/// requests.
fn collect(listener: TcpListener, requests: Arc<AtomicUsize>) {
    for stream in listener.incoming() {
        let requests = Arc::clone(&requests);
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream.unwrap());
            loop {
                let (mut line, mut length) = (String::new(), 0);
                while line != "\r\n" {
                    line.clear();
                    if stream.read_line(&mut line).unwrap_or(0) == 0 {
                        return;
                    }
                    let header = line.to_ascii_lowercase();
                    let value = header.strip_prefix("content-length:");
                    length = value.map_or(length, |value| value.trim().parse().unwrap());
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                requests.fetch_add(1, Ordering::Relaxed);
                stream
                    .get_mut()
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
            }
        });
    }
}

/// No connection is kept open until the next request: its descriptor number might belong to the
/// host by then.
#[test]
fn metrics_are_sent_on_connections_of_their_own() {
    let host = compile("files", &[]);
    let [own, control] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    std::thread::spawn(move || collect(collector, count));
    let mut command = Command::new(&host);
    command.arg(plugin()).arg(own.path()).arg(control.path()).env("SOCKET", "3");
    let env = [
        ("NCCLSCOPE_CONTROL", control.path().to_str().unwrap()),
        ("NCCLSCOPE_OTLP", &url),
        ("NCCLSCOPE_WINDOW", "0.3"),
    ];
    play(&mut command, &env).survived();
    assert!(requests.load(Ordering::Relaxed) > 3);
}
