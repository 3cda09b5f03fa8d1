// SPDX-License-Identifier: Apache-2.0
/*!
OTLP over gRPC (OTLP specification 1.9, "OTLP/gRPC"). The requests are encoded already.

Each request has a runtime and a connection of its own: there is one in seconds, and between them
nothing would answer the collector's pings, follow a changed address, or notice that it went away.
*/

use super::sender::taken;
use super::target::Target;
use super::tls::Tls;
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

const EXPORT: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// `Any.type_url` of a `google.rpc.RetryInfo` ends with it.
const RETRY_INFO: &[u8] = b"/google.rpc.RetryInfo";

/// The way to a collector.
#[derive(Debug)]
pub(super) struct Grpc {
    endpoint: Endpoint,
    headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    timeout: Duration,
    gzip: bool,
}

impl Grpc {
    /// The way to `target`. The line says why there is none.
    pub(super) fn new(target: &Target, user_agent: &str) -> Result<Grpc, String> {
        let endpoint = Endpoint::from_shared(target.url.clone())
            .and_then(|endpoint| endpoint.user_agent(user_agent));
        let mut endpoint =
            endpoint.map_err(|e| format!("{}: {}", place(&target.url), chain(&e)))?;
        if target.url.starts_with("https://") {
            let tls = Tls::read(target)?.grpc();
            let with = endpoint.tls_config(tls);
            endpoint = with.map_err(|e| format!("cannot speak TLS: {}", chain(&e)))?;
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
        // The library panics on an answer whose details are no base64.
        let answer = catch_unwind(AssertUnwindSafe(|| runtime.block_on(exchange)));
        // A name that is still looked up is not waited for.
        runtime.shutdown_background();
        match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => Answer::Later(None, format!("no answer in {:?}", self.timeout)),
            Err(_) => Answer::Refused("the answer makes no sense".into()),
        }
    }
}

/// What a status means, after the specification's table of codes.
fn refusal(status: &Status) -> Answer {
    let asked = retry_delay(status.details());
    // The connection broke: that is not the collector's word.
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
        // Only one that says when will have room again.
        Code::ResourceExhausted if asked.is_some() => Answer::Later(asked, why),
        _ => Answer::Refused(why),
    }
}

/// An error and what caused it.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// `RetryInfo.retry_delay` in the details of a `google.rpc.Status`.
fn retry_delay(status: &[u8]) -> Option<Duration> {
    let is_retry_info =
        |any: &&[u8]| field(any, 1).next().is_some_and(|url| url.bytes().ends_with(RETRY_INFO));
    let info = field(status, 3).map(Value::bytes).find(is_retry_info)?;
    let delay = field(field(info, 2).next()?.bytes(), 1).next()?.bytes();
    let number = |name| field(delay, name).next().map_or(0, Value::number);
    Some(Duration::new(number(1), u32::try_from(number(2)).ok()?.min(999_999_999)))
}

/// A field of a protobuf message.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> &'a [u8] {
        if let Value::Bytes(bytes) = self { bytes } else { &[] }
    }

    fn number(self) -> u64 {
        if let Value::Number(number) = self { number } else { 0 }
    }
}

/// The values of a field, as far as the message makes sense. Numbers of fixed width are none.
fn field(mut message: &[u8], name: u64) -> impl Iterator<Item = Value<'_>> {
    let values = std::iter::from_fn(move || {
        let key = varint(&mut message)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                Value::Bytes(message.split_off(..length)?)
            }
            _ => return None,
        };
        Some((key >> 3, value))
    });
    values.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Messages that are bytes already.
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

    /// A field of bytes.
    fn bytes(name: u8, content: &[u8]) -> Vec<u8> {
        [&[name << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }

    /// `Status { code: 8, details: [Any { RetryInfo { 2.5 s } }] }`
    fn with_retry_info() -> Vec<u8> {
        let info = bytes(1, &[0x08, 2, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01]);
        let url = bytes(1, b"type.googleapis.com/google.rpc.RetryInfo");
        [vec![0x08, 8], bytes(2, b"x"), bytes(3, &[url, bytes(2, &info)].concat())].concat()
    }

    #[test]
    fn the_collectors_pause_is_found() {
        let details = with_retry_info();
        assert_eq!(retry_delay(&details), Some(Duration::from_millis(2500)));
        assert_eq!(retry_delay(&[]), None);
        assert_eq!(retry_delay(&[0xff; 40]), None);
        assert!((0..details.len()).all(|length| retry_delay(&details[..length]).is_none()));
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

    /// Answers one call with `headers` alone, in HTTP/2's plainest form. The collector's URL.
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
                    // `:status: 200`; then names and values, neither indexed nor compressed.
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
        assert_eq!(post(url), Answer::Refused("the answer makes no sense".into()));
    }
}
