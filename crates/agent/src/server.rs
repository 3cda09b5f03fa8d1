// SPDX-License-Identifier: Apache-2.0
/*!
Serves the latest text at `/metrics` and the latest vectors at `/vectors`.

One thread handles all connections, one request for each. A connection has time limits for sending
its request and for its whole life. If there are more connections than a bound, the oldest
connection of the address with the most is closed. So neither slow clients nor many clients keep
another client from its answer.
*/

use crate::page::Page;
use http::uri::Authority;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How long a request may take to arrive.
    request: Duration,
    /// Maximum lifetime of a connection: longer than any scrape that Prometheus waits for.
    whole: Duration,
    connections: usize,
}

const LIMITS: Limits =
    Limits { request: Duration::from_secs(2), whole: Duration::from_secs(30), connections: 64 };

/// Maximum number of bytes of a request that are read.
const REQUEST_BYTES: usize = 16 << 10;
/// Pause after a failed accept, most likely for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens on `address` and serves `page` on its own thread. Returns the address in use.
pub(crate) fn start(address: SocketAddr, page: Page) -> io::Result<SocketAddr> {
    serve(std::net::TcpListener::bind(address)?, page, LIMITS)
}

fn serve(listener: std::net::TcpListener, page: Page, limits: Limits) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(async { TcpListener::from_std(listener) })?;
    std::thread::Builder::new().name("http".into()).spawn(move || {
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, accept(&listener, &page, limits));
    })?;
    Ok(address)
}

async fn accept(listener: &TcpListener, page: &Page, limits: Limits) {
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let is_local = stream.local_addr().is_ok_and(|own| own.ip().is_loopback());
                let task = tokio::task::spawn_local(answer(stream, page.clone(), limits, is_local));
                connections.add(from.ip(), task.abort_handle(), limits.connections);
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn answer(stream: TcpStream, page: Page, limits: Limits, is_local: bool) {
    let service = service_fn(move |request| {
        let response = respond(&request, &page, is_local);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = http1::Builder::new();
    connection.timer(TokioTimer::new()).header_read_timeout(limits.request).keep_alive(false);
    connection.max_buf_size(REQUEST_BYTES);
    let connection = connection.serve_connection(TokioIo::new(stream), service);
    // Errors of a client that disconnects or is too slow are ignored.
    let _ = tokio::time::timeout(limits.whole, connection).await;
}

/// True if a request through the loopback interface names this host, and not a site whose name
/// leads here (DNS rebinding): its pages in a browser of this host could read the answer.
fn names_this_host(request: &Request<Incoming>) -> bool {
    let header = request.headers().get(http::header::HOST);
    let named = header.map(|host| Authority::try_from(host.as_bytes()));
    let is_ours = |name: &str| {
        let name = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    };
    named.is_none_or(|named| named.is_ok_and(|named| is_ours(named.host())))
        && request.uri().host().is_none_or(is_ours)
}

fn respond(request: &Request<Incoming>, page: &Page, is_local: bool) -> Response<Full<Bytes>> {
    let plain = "text/plain; charset=utf-8";
    let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let (status, kind, body) = match (request.method().as_str(), request.uri().path()) {
        _ if is_local && !names_this_host(request) => {
            (421, plain, text("name this host by its address, or localhost\n"))
        }
        ("GET" | "HEAD", "/metrics") => {
            (200, "text/plain; version=0.0.4; charset=utf-8", page.text())
        }
        ("GET" | "HEAD", "/vectors") => {
            (200, "application/octet-stream", page.vectors(job(request)))
        }
        ("GET" | "HEAD", "/") => (200, plain, text("ncclscope agent: see /metrics and /vectors\n")),
        ("GET" | "HEAD", _) => (404, plain, text("see /metrics and /vectors\n")),
        _ => (405, plain, text("GET only\n")),
    };
    let (status, kind, body) = match body {
        Some(body) => (status, kind, body),
        None => (503, plain, Bytes::from_static(b"the recordings are read for the first time\n")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    let kind = http::HeaderValue::from_static(kind);
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// The job of `/vectors?job=ID`.
fn job(request: &Request<Incoming>) -> Option<String> {
    let mut pairs = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, job) = pairs.find(|(name, _)| *name == "job")?;
    Some(percent_encoding::percent_decode_str(job).decode_utf8_lossy().into_owned())
}

/// The connections of each address, the oldest first.
#[derive(Debug, Default)]
struct Connections(BTreeMap<IpAddr, VecDeque<AbortHandle>>);

impl Connections {
    /// Adds a connection. If there are `most` already, ends the oldest one of the address with the
    /// most.
    fn add(&mut self, from: IpAddr, task: AbortHandle, most: usize) {
        self.0.values_mut().for_each(|tasks| tasks.retain(|task| !task.is_finished()));
        self.0.retain(|_, tasks| !tasks.is_empty());
        self.0.entry(from).or_default().push_back(task);
        if self.0.values().map(VecDeque::len).sum::<usize>() > most {
            let largest = self.0.values_mut().max_by_key(|tasks| tasks.len());
            let oldest = largest.and_then(VecDeque::pop_front);
            oldest.iter().for_each(AbortHandle::abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn send(address: SocketAddr, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut answer = String::new();
        send(address, request).read_to_string(&mut answer).unwrap();
        answer
    }

    fn page(text: &str) -> Page {
        let page = Page::default();
        page.set(text);
        page
    }

    fn serve_with(page: &Page, limits: Limits) -> SocketAddr {
        let listener = std::net::TcpListener::bind((LOCAL, 0)).unwrap();
        serve(listener, page.clone(), limits).unwrap()
    }

    /// An empty page would look like a node without processes.
    #[test]
    fn before_the_recordings_were_read_there_is_no_page() {
        let page = Page::default();
        let address = start((LOCAL, 0).into(), page.clone()).unwrap();
        for path in ["/metrics", "/vectors"] {
            let answer = ask(address, &format!("GET {path} HTTP/1.1\r\n\r\n"));
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.ends_with("the recordings are read for the first time\n"), "{answer}");
        }
        page.begin(|| "a 0\n".into());
        page.begin(|| "a 1\n".into());
        let answer = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("a 0\n"), "{answer}");
    }

    /// A page of another site, whose name its owner lets lead to 127.0.0.1.
    #[test]
    fn a_foreign_name_for_the_loopback_address_is_refused() {
        let address = start((LOCAL, 0).into(), page("a 1\n")).unwrap();
        for (host, status) in [
            ("localhost:9", 200),
            ("LOCALHOST", 200),
            ("127.0.0.1:9470", 200),
            ("[::1]:9470", 200),
            ("evil.example:9470", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("", 421),
        ] {
            let answer = ask(address, &format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
            assert_eq!(answer.contains("a 1"), status == 200, "{host}: {answer}");
        }
        let absolute = "GET http://evil.example/metrics HTTP/1.1\r\n\r\n";
        assert!(ask(address, absolute).starts_with("HTTP/1.1 421 "));
    }

    #[test]
    fn only_the_page_is_served_and_a_silent_client_blocks_none() {
        let page = page("a 1\n");
        let address = start((LOCAL, 0).into(), page.clone()).unwrap();
        let silent = TcpStream::connect(address).unwrap();
        let answer = ask(address, "GET /metrics?x=y HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("content-length: 4\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\na 1\n"), "{answer}");
        drop(silent);
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("content-length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(address, "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "\r\n\r\nnonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(REQUEST_BYTES));
        let mut refusal = String::new();
        let _ = send(address, &long).read_to_string(&mut refusal);
        assert!(!refusal.starts_with("HTTP/1.1 200"), "{refusal}");
        assert!(start(address, page).is_err(), "the port is taken");
    }

    #[test]
    fn a_client_that_reads_slowly_is_cut_off_and_holds_up_no_other() {
        let page = page(&"a".repeat(64 << 20));
        let limits = Limits { whole: Duration::from_millis(300), ..LIMITS };
        let address = serve_with(&page, limits);
        let mut slow = send(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        // The client reads a hundredth of what it could: reading everything would take minutes.
        let (mut got, mut part) = (0, [0; 16 << 10]);
        while let Ok(read @ 1..) = slow.read(&mut part) {
            got += read;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(got > 0 && got < 64 << 20, "{got}");
    }

    #[test]
    fn of_too_many_connections_the_oldest_of_the_busiest_address_ends() {
        let page = page("a 1\n");
        let hour = Duration::from_secs(3600);
        let address = serve_with(&page, Limits { request: hour, whole: hour, connections: 8 });
        let mut idle: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let answer = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("a 1\n"), "{answer}");
        let mut nothing = String::new();
        assert!(matches!(idle[0].read_to_string(&mut nothing), Ok(0) | Err(_)), "{nothing}");
    }

    #[test]
    fn another_address_keeps_its_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let task = || runtime.spawn(std::future::pending::<()>());
        let mut connections = Connections::default();
        let (prometheus, hostile) = (task(), [task(), task(), task()]);
        connections.add([10, 0, 0, 1].into(), prometheus.abort_handle(), 3);
        for task in &hostile {
            connections.add([10, 0, 0, 2].into(), task.abort_handle(), 3);
        }
        let [first, others @ ..] = hostile;
        assert!(runtime.block_on(first).unwrap_err().is_cancelled());
        assert!(!prometheus.is_finished() && others.iter().all(|task| !task.is_finished()));
    }
}
