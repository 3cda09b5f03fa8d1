// SPDX-License-Identifier: Apache-2.0
/*!
Serves the latest text at `/metrics` and the latest vectors at `/vectors`, one request a connection,
one connection at a time: Prometheus
asks every few seconds. Who is slow is cut off.
*/

use crate::http::{self, Request};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a request may take to arrive, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is served.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    text: Latest,
    vectors: Latest,
}

/// Bytes that are replaced now and then.
type Latest = Arc<Mutex<Arc<[u8]>>>;

impl Page {
    /// Replaces the text.
    pub(super) fn set(&self, text: &str) {
        put(&self.text, text.as_bytes().into());
    }

    /// Replaces the vectors.
    pub(super) fn set_vectors(&self, table: Vec<u8>) {
        put(&self.vectors, table.into());
    }
}

fn put(latest: &Latest, bytes: Arc<[u8]>) {
    *latest.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
}

fn get(latest: &Latest) -> Arc<[u8]> {
    latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Listens on `address` and serves from a thread of its own. Returns the address in use.
pub(super) fn start(address: SocketAddr, page: Page) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    // A client that goes away is its own affair.
    http::serve(listener, move |stream| drop(answer(&stream, &page)))?;
    Ok(address)
}

fn answer(stream: &TcpStream, page: &Page) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = Request::read(stream, PATIENCE)?;
    let (method, path) = (request.method(), request.target().split('?').next().unwrap_or(""));
    let text = |text: &str| -> Arc<[u8]> { text.as_bytes().into() };
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", get(&page.text))
        }
        ("GET" | "HEAD", "/vectors") => ("200 OK", "application/octet-stream", get(&page.vectors)),
        ("GET" | "HEAD", "/") => {
            ("200 OK", plain, text("ncclscope agent: see /metrics and /vectors\n"))
        }
        ("GET" | "HEAD", _) => ("404 Not Found", plain, text("see /metrics and /vectors\n")),
        _ => ("405 Method Not Allowed", plain, text("GET only\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let mut out = head.into_bytes();
    if method != "HEAD" {
        out.extend_from_slice(&body);
    }
    let mut to = stream;
    to.write_all(&out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

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
        page.set_vectors(b"NCCLVECT".to_vec());
        let vectors = ask(address, "GET /vectors HTTP/1.1\r\n\r\n");
        assert!(vectors.ends_with("\r\n\r\nNCCLVECT"), "{vectors}");
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(address, "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(start(address, page).is_err(), "the port is taken");
    }
}
