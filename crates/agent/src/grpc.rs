// SPDX-License-Identifier: Apache-2.0
/*!
OTLP over gRPC (OTLP specification 1.9, "OTLP/gRPC"). The requests are already encoded.

Each request has its own runtime and connection. Requests are seconds apart, and between them no
thread would answer the collector's pings, follow a changed address, or notice a closed connection.
*/

use crate::answer::taken;
use crate::target::Target;
use crate::tls::Tls;
use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use ncclscope_metrics::send::environment::place;
use ncclscope_metrics::send::{Answer, Transport};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

const EXPORT: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// A connection to a collector.
#[derive(Debug)]
pub(crate) struct Grpc {
    endpoint: Endpoint,
    headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    timeout: Duration,
    gzip: bool,
}

impl Grpc {
    /// Prepares the connection to `target`. The error is a line with the reason.
    pub(crate) fn new(target: &Target, user_agent: &str) -> Result<Grpc, String> {
        let endpoint = Endpoint::from_shared(target.url.clone())
            .and_then(|endpoint| endpoint.user_agent(user_agent));
        let mut endpoint =
            endpoint.map_err(|e| format!("{}: {}", place(&target.url), chain(&e)))?;
        if target.url.starts_with("https://") {
            let tls = Tls::read(target)?.grpc();
            let with = endpoint.tls_config(tls);
            endpoint = with.map_err(|e| format!("cannot use TLS: {}", chain(&e)))?;
        }
        let headers = target.headers.iter().map(|(name, value)| {
            let wrong = || format!("{name}: gRPC has no header of this name or value");
            let key = name.to_ascii_lowercase().parse().map_err(|_| wrong())?;
            Ok((key, value.parse().map_err(|_| wrong())?))
        });
        let headers = headers.collect::<Result<_, String>>()?;
        Ok(Grpc { endpoint, headers, timeout: target.timeout, gzip: target.gzip })
    }

    async fn export(&self, body: &[u8]) -> Answer {
        let channel = match self.endpoint.connect().await {
            Ok(channel) => channel,
            Err(error) => return Answer::Later(None, chain(&error)),
        };
        let mut client = Client::new(channel);
        if self.gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        if let Err(error) = client.ready().await {
            return Answer::Later(None, chain(&error));
        }
        let mut request = Request::new(body.to_vec());
        request.set_timeout(self.timeout);
        for (name, value) in &self.headers {
            request.metadata_mut().append(name.clone(), value.clone());
        }
        match client.unary(request, PathAndQuery::from_static(EXPORT), Raw).await {
            Ok(answer) => taken(answer.into_inner()),
            Err(status) => refusal(&status),
        }
    }
}

impl Transport for Grpc {
    fn post(&self, request: &[u8]) -> Answer {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return Answer::Later(None, error.to_string()),
        };
        let exchange =
            async { tokio::time::timeout(self.timeout, self.export(request)).await.ok() };
        // The library panics if the details of an answer are not valid base64.
        let answer = catch_unwind(AssertUnwindSafe(|| runtime.block_on(exchange)));
        // Does not wait for a name that is still being looked up.
        runtime.shutdown_background();
        match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => Answer::Later(None, format!("no answer in {:?}", self.timeout)),
            Err(_) => Answer::Refused("the answer is invalid".into()),
        }
    }
}

/// The meaning of a status, according to the specification's table of codes.
fn refusal(status: &Status) -> Answer {
    let asked = retry_delay(status);
    // The connection broke, so that the status is not from the collector.
    if let Some(source) = status.source() {
        return Answer::Later(asked, chain(source));
    }
    let why = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Answer::Later(asked, why),
        // The request can be retried only if the collector says when.
        Code::ResourceExhausted if asked.is_some() => Answer::Later(asked, why),
        _ => Answer::Refused(why),
    }
}

/// How long the collector asks us to wait, from the details of its answer.
fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

/// An error and its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// A codec for messages that are already encoded.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use tonic_types::ErrorDetails;

    /// Asks for 2.5 s.
    fn with_retry_info() -> Vec<u8> {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(2500)));
        Status::with_error_details(Code::ResourceExhausted, "x", details).details().to_vec()
    }

    #[test]
    fn the_collectors_pause_is_found() {
        let status =
            |details: Vec<u8>| Status::with_details(Code::ResourceExhausted, "x", details.into());
        let details = with_retry_info();
        assert_eq!(retry_delay(&status(details.clone())), Some(Duration::from_millis(2500)));
        assert_eq!(retry_delay(&status(vec![])), None);
        assert_eq!(retry_delay(&status(vec![0xff; 40])), None);
        let cut = |length: usize| status(details[..length].to_vec());
        assert!((0..details.len()).all(|length| retry_delay(&cut(length)).is_none()));
    }

    #[test]
    fn what_may_change_is_sent_again() {
        let is_later = |status: &Status| matches!(refusal(status), Answer::Later(..));
        let later: Vec<i32> =
            (1..17).filter(|&code| is_later(&Status::new(Code::from_i32(code), "x"))).collect();
        assert_eq!(later, [1, 4, 10, 11, 14, 15]);
        let full = |details: Vec<u8>| {
            refusal(&Status::with_details(Code::ResourceExhausted, "full", details.into()))
        };
        let why = "ResourceExhausted: full".to_owned();
        assert_eq!(full(vec![]), Answer::Refused(why.clone()));
        let pause = Some(Duration::from_millis(2500));
        assert_eq!(full(with_retry_info()), Answer::Later(pause, why));
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// A collector that answers one call with only `headers`, in the simplest form of HTTP/2.
    /// Returns its URL.
    fn collector(headers: &'static [(&str, &str)]) -> String {
        const PREFACE: usize = 24;
        const HEADERS: u8 = 1;
        const SETTINGS: u8 = 4;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            stream.read_exact(&mut [0; PREFACE]).unwrap();
            let mut head = [0; 9];
            while stream.read_exact(&mut head).is_ok() {
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; usize::try_from(length).unwrap()];
                stream.read_exact(&mut payload).unwrap();
                if head[3] == HEADERS {
                    // `:status: 200`, followed by names and values that are neither indexed nor
                    // compressed.
                    let mut block = vec![0x88];
                    for (name, value) in headers {
                        block.push(0);
                        for text in [name, value] {
                            block.push(u8::try_from(text.len()).unwrap());
                            block.extend_from_slice(text.as_bytes());
                        }
                    }
                    stream.write_all(&frame(HEADERS, 5, 1, &block)).unwrap();
                }
            }
        });
        url
    }

    fn post(url: String) -> Answer {
        let get = |name: &str| (name == "OTEL_EXPORTER_OTLP_PROTOCOL").then(|| "grpc".to_owned());
        let target = Target::find(Some(&url), "node-1", &get).unwrap().unwrap();
        Grpc::new(&target, "test").unwrap().post(b"request")
    }

    #[test]
    fn answers_without_sense_are_refused_and_nothing_ends() {
        let url = collector(&[("content-type", "application/grpc"), ("grpc-status", "7")]);
        assert_eq!(post(url), Answer::Refused("PermissionDenied: ".into()));
        let url = collector(&[
            ("content-type", "application/grpc"),
            ("grpc-status", "8"),
            ("grpc-status-details-bin", "!!!"),
        ]);
        assert_eq!(post(url), Answer::Refused("the answer is invalid".into()));
    }
}
