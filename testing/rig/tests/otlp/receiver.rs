// SPDX-License-Identifier: Apache-2.0
//! A collector that accepts everything while it is up, and can go down and up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The collector; it is up at first.
pub(super) struct Collector {
    pub(super) url: String,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_up: bool,
    connections: Vec<TcpStream>,
    bodies: Vec<Vec<u8>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no thread panicked")
}

impl Collector {
    pub(super) fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut collector = Collector {
            url: format!("http://{address}"),
            address,
            state: Arc::default(),
            accepts: None,
        };
        collector.listen(listener);
        collector
    }

    /// The answered requests, in order of arrival.
    pub(super) fn bodies(&self) -> Vec<Vec<u8>> {
        lock(&self.state).bodies.clone()
    }

    fn listen(&mut self, listener: TcpListener) {
        lock(&self.state).is_up = true;
        let state = Arc::clone(&self.state);
        self.accepts = Some(std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut all = lock(&state);
                if !all.is_up {
                    return;
                }
                all.connections.push(stream.try_clone().expect("a descriptor"));
                let state = Arc::clone(&state);
                std::thread::spawn(move || take(&stream, &state));
            }
        }));
    }

    /// Stops listening and closes every connection. Each request is either answered or not
    /// accepted.
    pub(super) fn go_down(&mut self) {
        let mut state = lock(&self.state);
        state.is_up = false;
        for connection in state.connections.drain(..) {
            // The other end may have closed it.
            let _closed = connection.shutdown(Shutdown::Both);
        }
        drop(state);
        // The listener checks for shutdown when a connection arrives.
        drop(TcpStream::connect(self.address).expect("it listens still"));
        self.accepts.take().expect("it was up").join().expect("no thread panicked");
    }

    /// Listens again at the same address.
    pub(super) fn come_back(&mut self) {
        self.listen(TcpListener::bind(self.address).expect("its port is free"));
    }
}

/// Answers requests until the end of the connection.
fn take(stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("post /v1/metrics "), "{head}");
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
        let mut body = vec![0; length.and_then(|n| n.parse().ok()).expect("a length")];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        // The collector does not go down between reading a request and answering it.
        let mut state = lock(state);
        if !state.is_up {
            return;
        }
        state.bodies.push(body);
        let mut answer = stream;
        answer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("it listens");
    }
}
