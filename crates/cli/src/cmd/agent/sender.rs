// SPDX-License-Identifier: Apache-2.0
//! The agent's way to a collector: a client with TLS, and a thread.

use super::target::Target;
use crate::failure::warn;
use ncclscope_otlp::Sender;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Starts the thread. The line says why not.
pub(super) fn start(target: &Target) -> Result<Sender, String> {
    let agent = client(target)?;
    let (url, headers) = (target.url.clone(), target.headers.clone());
    let tell = move |why: &str| warn(format_args!("cannot export to {url}: {why}"));
    let url = target.url.clone();
    let target = ncclscope_otlp::Target { url, headers, queue_bytes: usize::MAX };
    let (sender, body) = Sender::new(target, agent, tell);
    let thread = std::thread::Builder::new().name("otlp".into()).spawn(body);
    thread.map_err(|e| format!("cannot start a thread: {e}"))?;
    Ok(sender)
}

fn client(target: &Target) -> Result<ureq::Agent, String> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = &target.certificate {
        let pem =
            std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        if certificates.is_empty() {
            return Err(format!("no certificate (PEM) in {}", path.display()));
        }
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
    }
    let name = concat!("ncclscope-agent/", env!("CARGO_PKG_VERSION"));
    let config = ncclscope_otlp::client(target.timeout, name).tls_config(tls.build());
    Ok(ureq::Agent::new_with_config(config.build()))
}
