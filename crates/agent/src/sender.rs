// SPDX-License-Identifier: Apache-2.0
//! The delivery to a collector by HTTP or gRPC, on its own thread.

use crate::answer::taken;
use crate::grpc::Grpc;
use crate::https;
use crate::target::{Protocol, Target};
use crate::tls::Tls;
use flate2::Compression;
use flate2::write::GzEncoder;
use ncclscope_console::failure::warn;
use ncclscope_metrics::send::environment::place;
use ncclscope_metrics::send::{Answer, Http, Sender, Transport};
use std::io::Write;
use std::sync::Arc;

const USER_AGENT: &str = concat!("ncclscope-agent/", env!("CARGO_PKG_VERSION"));

/// Maximum total size of the waiting requests, bytes.
const QUEUE_BYTES: usize = 256 << 20;

/// Starts the delivery thread. The error is a line with the reason.
pub(crate) fn start(target: &Target) -> Result<Sender, String> {
    match target.protocol {
        Protocol::Http => spawn(Post::new(target)?, target),
        Protocol::Grpc => spawn(Grpc::new(target, USER_AGENT)?, target),
    }
}

fn spawn(transport: impl Transport, target: &Target) -> Result<Sender, String> {
    let place = place(&target.url).to_owned();
    let tell = move |why: &str| warn(format_args!("cannot export to {place}: {why}"));
    let (sender, body) = Sender::over(transport, QUEUE_BYTES, tell);
    let thread = std::thread::Builder::new().name("otlp".into()).spawn(body);
    thread.map_err(|e| format!("cannot start a thread: {e}"))?;
    Ok(sender)
}

/// HTTP with TLS and compression.
#[derive(Debug)]
struct Post {
    http: Http,
    gzip: bool,
}

impl Post {
    fn new(target: &Target) -> Result<Post, String> {
        let tls = Arc::new(Tls::read(target)?.http()?);
        let config = ncclscope_metrics::send::client(target.timeout, USER_AGENT).build();
        let mut headers = target.headers.clone();
        if target.gzip {
            headers.push(("content-encoding".into(), "gzip".into()));
        }
        let place = ncclscope_metrics::send::Target { url: target.url.clone(), headers };
        Ok(Post {
            http: Http::over(place, config, move || https::connector(Arc::clone(&tls))),
            gzip: target.gzip,
        })
    }
}

impl Transport for Post {
    fn post(&self, request: &[u8]) -> Answer {
        let answer = if self.gzip {
            match compress(request) {
                Ok(request) => self.http.post(&request),
                Err(error) => Answer::Refused(error.to_string()),
            }
        } else {
            self.http.post(request)
        };
        match answer {
            Answer::Taken(answer) => taken(answer),
            other => other,
        }
    }

    fn renew(&mut self) {
        self.http.renew();
    }
}

fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}
