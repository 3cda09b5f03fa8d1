// SPDX-License-Identifier: Apache-2.0
//! The small HTTP server of `view`: accepts connections, and reads one request from each.

use crate::io::timed::Timed;
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum number of bytes of a request that are read.
const REQUEST: usize = 16 << 10;

/// The first line of a request.
#[derive(Debug)]
pub(crate) struct Request {
    line: String,
}

impl Request {
    /// Reads the head of a request, at most for `patience`; the requests that we answer have no
    /// body. Closing the connection with unread bytes would make the system discard the answer.
    pub(crate) fn read(stream: &TcpStream, patience: Duration) -> io::Result<Request> {
        let mut stream = Timed { stream, deadline: Instant::now() + patience };
        let (mut head, mut part) = (Vec::new(), [0; 4096]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < REQUEST {
            match stream.read(&mut part)? {
                0 => break,
                read => head.extend_from_slice(part.get(..read).unwrap_or(&[])),
            }
        }
        let line = String::from_utf8_lossy(&head).lines().next().unwrap_or("").to_owned();
        Ok(Request { line })
    }

    /// The method, such as `GET`; empty if it is missing.
    pub(crate) fn method(&self) -> &str {
        self.word(0)
    }

    /// The target, such as `/metrics?x=y`; empty if it is missing.
    pub(crate) fn target(&self) -> &str {
        self.word(1)
    }

    fn word(&self, at: usize) -> &str {
        self.line.split_ascii_whitespace().nth(at).unwrap_or("")
    }
}

/// Passes each connection to `answer`, on a thread of its own.
///
/// # Errors
/// The system's error if no thread can be started.
pub(crate) fn serve(
    listener: TcpListener,
    answer: impl Fn(TcpStream) + Send + 'static,
) -> io::Result<()> {
    std::thread::Builder::new().name("http".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => answer(stream),
                // Most likely out of descriptors: retrying at once would fail again.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(())
}
