// SPDX-License-Identifier: Apache-2.0
//! TLS on the way to a collector: whom the agent trusts, and what it shows of itself.

use super::target::Target;
use std::path::Path;
use tonic::transport::{Certificate as GrpcCertificate, ClientTlsConfig, Identity as GrpcIdentity};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// What a connection needs, as PEM.
#[derive(Debug)]
pub(super) struct Tls {
    /// Trusted; otherwise the system's certificates are, or Mozilla's where it has none.
    given: Option<Vec<u8>>,
    /// Certificates and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Reads the files. The line says which cannot be used.
    pub(super) fn read(target: &Target) -> Result<Tls, String> {
        let given = target.certificate.as_deref().map(read_certificates).transpose()?;
        let identity = match &target.identity {
            None => None,
            Some(of) => {
                let key = read(&of.key)?;
                private_key(&key).ok_or_else(|| format!("no key (PEM) in {}", of.key.display()))?;
                Some((read_certificates(&of.certificate)?, key))
            }
        };
        Ok(Tls { given, identity })
    }

    /// For HTTP.
    pub(super) fn http(&self) -> TlsConfig {
        let trusted: Vec<_> = match &self.given {
            Some(pem) => certificates(pem),
            None => {
                let system = rustls_native_certs::load_native_certs().certs;
                system.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
            }
        };
        let roots = if trusted.is_empty() {
            RootCerts::WebPki
        } else {
            RootCerts::new_with_certs(&trusted)
        };
        let identity = self.identity.as_ref().and_then(|(chain, key)| {
            Some(ClientCert::new_with_certs(&certificates(chain), private_key(key)?))
        });
        TlsConfig::builder().root_certs(roots).client_cert(identity).build()
    }

    /// For gRPC.
    pub(super) fn grpc(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new();
        let config = match &self.given {
            Some(pem) => config.ca_certificate(GrpcCertificate::from_pem(pem)),
            None if rustls_native_certs::load_native_certs().certs.is_empty() => {
                config.with_webpki_roots()
            }
            None => config.with_native_roots(),
        };
        match &self.identity {
            Some((chain, key)) => config.identity(GrpcIdentity::from_pem(chain, key)),
            None => config,
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// A file with one certificate or more.
fn read_certificates(path: &Path) -> Result<Vec<u8>, String> {
    let pem = read(path)?;
    if certificates(&pem).is_empty() {
        return Err(format!("no certificate (PEM) in {}", path.display()));
    }
    Ok(pem)
}

fn certificates(pem: &[u8]) -> Vec<Certificate<'static>> {
    let items = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    items.collect()
}

fn private_key(pem: &[u8]) -> Option<PrivateKey<'static>> {
    PrivateKey::from_pem(pem).ok()
}
