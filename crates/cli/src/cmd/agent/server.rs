// SPDX-License-Identifier: Apache-2.0
/*!
Serves the latest text at `/metrics`, one request a connection, one connection at a time: Prometheus
asks every few seconds. Who is slow is cut off.
*/

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a request may take to arrive, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request that are read.
const REQUEST: usize = 16 << 10;

/// The text that is served.
#[derive(Clone, Debug, Default)]
pub(super) struct Page(Arc<Mutex<Arc<str>>>);

impl Page {
    /// Replaces the text.
    pub(super) fn set(&self, text: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }

    fn get(&self) -> Arc<str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Listens on `address` and serves from a thread of its own. Returns the address in use.
pub(super) fn start(address: SocketAddr, page: Page) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("http".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // A client that goes away is its own affair.
                Ok(stream) => drop(answer(&stream, &page)),
                // Out of descriptors, most likely: not to be asked again at once.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(address)
}

fn answer(stream: &TcpStream, page: &Page) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let first = read_request(stream)?;
    let mut words = first.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let (status, kind, body): (_, _, Arc<str>) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", "text/plain; version=0.0.4", page.get()),
        ("GET" | "HEAD", "/") => ("200 OK", "text/plain", "ncclscope agent: see /metrics\n".into()),
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "see /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "GET only\n".into()),
    };
    let mut out = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    if method != "HEAD" {
        out += &body;
    }
    let mut to = stream;
    to.write_all(out.as_bytes())
}

/// Reads a request's head and returns its first line. Closing with unread bytes would make the
/// system throw the answer away.
fn read_request(mut stream: &TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let (mut head, mut part) = (Vec::new(), [0; 4096]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < REQUEST {
        // In all, not for each read: who sends a byte a second must not stay.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            read => head.extend_from_slice(part.get(..read).unwrap_or(&[])),
        }
    }
    Ok(String::from_utf8_lossy(&head).lines().next().unwrap_or("").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn only_the_page_is_served_and_nobody_blocks_it() {
        let page = Page::default();
        let address = start(([127, 0, 0, 1], 0).into(), page.clone()).unwrap();
        page.set("a 1\n");
        let silent = TcpStream::connect(address).unwrap();
        let answer = ask(address, "GET /metrics?x=y HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("Content-Length: 4\r\n") && answer.ends_with("\r\n\r\na 1\n"));
        drop(silent);
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(address, "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(start(address, page).is_err(), "the port is taken");
    }
}
