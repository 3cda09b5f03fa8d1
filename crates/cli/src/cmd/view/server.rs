// SPDX-License-Identifier: Apache-2.0
/*!
Serves one trace, and the page that passes it to the UI, to a browser of this machine.

The address contains 128 random bits, and the server answers no other address, so that neither
another user of the machine nor a foreign web page can read the trace.
*/

use super::http::{self, Request};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a browser may take to send a request, or to read more of an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of connections; a browser opens a handful. Of more, the oldest that has sent no
/// request is closed, because other users of the machine can connect, too.
const CONNECTIONS: usize = 32;
/// The page, with placeholders.
const PAGE: &str = include_str!("page.html");

/// The trace that is served, and the viewer that shows it.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) path: PathBuf,
    /// The title that the viewer shows.
    pub(super) title: String,
    /// The viewer's address.
    pub(super) ui: String,
}

/// A server that runs as long as the process.
#[derive(Debug)]
pub(super) struct Server {
    url: String,
    port: u16,
}

#[derive(Debug)]
struct Service {
    trace: Trace,
    prefix: String,
    end: Sender<()>,
    connections: Mutex<Connections>,
}

/// The open connections.
#[derive(Debug, Default)]
struct Connections {
    accepted: u64,
    /// Number of connections, whether or not they have sent their request.
    count: usize,
    /// Those that have sent no request, the oldest first.
    waiting: BTreeMap<u64, TcpStream>,
}

impl Server {
    /// Serves `trace` on a port (0: a free one) below a path that starts with `token`. Sends to
    /// `end` when the page has passed the trace to the viewer.
    pub(super) fn start(
        trace: Trace,
        port: u16,
        token: &str,
        end: Sender<()>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let prefix = format!("/{token}/");
        let address = listener.local_addr()?;
        let url = format!("http://{address}{prefix}");
        let service = Service { trace, prefix, end, connections: Mutex::default() };
        let service = Arc::new(service);
        http::serve(listener, move |stream| accept(&service, stream))?;
        Ok(Server { url, port: address.port() })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

/// Answers on a thread of its own, because a browser opens connections before it needs them.
fn accept(service: &Arc<Service>, stream: TcpStream) {
    let service = Arc::clone(service);
    let Some(number) = service.connections().add(&stream) else { return };
    // A client that disconnects is ignored; if there is no thread, it must ask again.
    let of_thread = Arc::clone(&service);
    let thread = std::thread::Builder::new().name("request".into()).spawn(move || {
        let _ = of_thread.answer(&stream, number);
        of_thread.connections().remove(number);
    });
    if thread.is_err() {
        service.connections().remove(number);
    }
}

impl Connections {
    /// Adds a connection, and returns its number; `None` if all have sent requests.
    fn add(&mut self, stream: &TcpStream) -> Option<u64> {
        let own = stream.try_clone().ok()?;
        if self.count >= CONNECTIONS {
            // Its thread reads the end of the connection, and removes it.
            let (_, oldest) = self.waiting.pop_first()?;
            let _ = oldest.shutdown(Shutdown::Both);
        }
        self.accepted += 1;
        self.count += 1;
        self.waiting.insert(self.accepted, own);
        Some(self.accepted)
    }

    fn remove(&mut self, number: u64) {
        self.waiting.remove(&number);
        self.count -= 1;
    }
}

impl Service {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, stream: &TcpStream, number: u64) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = Request::read(stream, PATIENCE)?;
        self.connections().waiting.remove(&number);
        match (request.method(), request.target().strip_prefix(&self.prefix)) {
            ("GET", Some("")) => text(stream, "200 OK", "text/html", &self.page()),
            ("GET", Some("trace")) => self.send_trace(stream),
            ("POST", Some("done")) => {
                text(stream, "200 OK", "text/plain", "")?;
                let _ = self.end.send(());
                Ok(())
            }
            _ => text(stream, "404 Not Found", "text/plain", "nothing is here\n"),
        }
    }

    fn page(&self) -> String {
        let name = self.trace.path.file_name().unwrap_or_default().to_string_lossy();
        let string = |text: &str| {
            // A JSON string is valid JavaScript. `<` is escaped because it could end the script,
            // and `{` because the text could be that of a place below.
            let quoted = serde_json::Value::from(text).to_string();
            quoted.replace('<', "\\u003c").replace('{', "\\u007b")
        };
        PAGE.replace("{UI}", &string(&self.trace.ui))
            .replace("{TITLE}", &string(&self.trace.title))
            .replace("{FILE}", &string(&name))
    }

    fn send_trace(&self, mut stream: &TcpStream) -> io::Result<()> {
        let file = File::open(&self.trace.path)?;
        let length = file.metadata()?.len();
        stream.write_all(head("200 OK", "application/octet-stream", length).as_bytes())?;
        io::copy(&mut file.take(length), &mut stream)?;
        Ok(())
    }
}

fn text(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let kind = format!("{kind}; charset=utf-8");
    let whole = head(status, &kind, body.len() as u64) + body;
    stream.write_all(whole.as_bytes())
}

fn head(status: &str, kind: &str, length: u64) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
         style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'\r\n\
         Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
}
