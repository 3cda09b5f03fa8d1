// SPDX-License-Identifier: Apache-2.0
/*!
TLS for the HTTP client of the agent.

The HTTP client is built without its TLS feature: a build of plugin and tool together would
otherwise link TLS into every rank. The client makes the connections, also through proxies; this
module only adds TLS to them.
*/

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use ureq::Error;
use ureq::unversioned::transport::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

/// A connector that uses TLS if the URL requires it.
pub(crate) fn connector(config: Arc<ClientConfig>) -> impl Connector {
    DefaultConnector::default().chain(Https(config))
}

/// Puts TLS around a connection to `https://`.
#[derive(Debug)]
struct Https(Arc<ClientConfig>);

impl Connector<Box<dyn Transport>> for Https {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        plain: Option<Box<dyn Transport>>,
    ) -> Result<Option<Box<dyn Transport>>, Error> {
        let plain = match plain {
            Some(plain) if details.needs_tls() => plain,
            as_it_is => return Ok(as_it_is),
        };
        let session = ClientConnection::new(Arc::clone(&self.0), server(details)?)
            .map_err(|error| Error::Other(error.into()))?;
        let mut stream = StreamOwned::new(
            session,
            TransportAdapter::new(plain, Arc::clone(&details.current_time)),
        );
        stream.sock.set_timeout(left(details));
        stream.conn.complete_io(&mut stream.sock)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(Box::new(Secured { buffers, stream })))
    }
}

/// The name for which the server's certificate must be valid.
fn server(details: &ConnectionDetails<'_>) -> Result<ServerName<'static>, Error> {
    let host = details.uri.host().unwrap_or_default();
    // An IPv6 address has brackets in a URL, but not in a certificate.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned()).map_err(|error| Error::Other(error.into()))
}

/// The remaining time for connecting.
fn left(details: &ConnectionDetails<'_>) -> NextTimeout {
    let mut timeout = details.timeout;
    if let (Duration::Exact(whole), Instant::Exact(begun), Instant::Exact(now)) =
        (timeout.after, details.now, (details.current_time)())
    {
        let spent = now.saturating_duration_since(begun);
        timeout.after = Duration::Exact(whole.saturating_sub(spent));
    }
    timeout
}

/// A connection with TLS.
struct Secured {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secured").finish_non_exhaustive()
    }
}

impl Transport for Secured {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        let output = self.buffers.output().get(..amount);
        let output = output.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let count = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_metrics::send::{Answer, Http, Target, Transport as _, client};
    use rustls::RootCertStore;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    /// The answer, within half a second, for a collector that accepts connections but sends
    /// nothing.
    fn silence(scheme: &str) -> Answer {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", silent.local_addr().unwrap());
        let tls =
            ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
        let tls = Arc::new(tls);
        let config = client(Duration::from_millis(500), "test").build();
        let http = Http::over(Target { url, headers: vec![] }, config, move || {
            connector(Arc::clone(&tls))
        });
        let begun = Instant::now();
        let answer = http.post(b"request");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        answer
    }

    #[test]
    fn a_handshake_has_the_time_limit_of_the_request() {
        for scheme in ["http", "https"] {
            let answer = silence(scheme);
            assert!(
                matches!(&answer, Answer::Later(None, why) if why.contains("timeout")),
                "{scheme}: {answer:?}"
            );
        }
    }
}
