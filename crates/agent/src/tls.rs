// SPDX-License-Identifier: Apache-2.0
//! TLS to a collector: the trusted certificates, and the agent's own.

use crate::target::Target;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// The certificates for a connection, as PEM.
#[derive(Debug)]
pub(crate) struct Tls {
    /// Trusted certificates; `None` means those of the system, or Mozilla's if it has none.
    given: Option<Vec<u8>>,
    /// Client certificates and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Reads the files. The error is a line that names the unusable file.
    pub(crate) fn read(target: &Target) -> Result<Tls, String> {
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

    /// The configuration for HTTP. The error is a line with the reason.
    pub(crate) fn http(&self) -> Result<ClientConfig, String> {
        let trusted = match &self.given {
            Some(pem) => certificates(pem),
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        if trusted.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        } else {
            roots.add_parsable_certificates(trusted);
        }
        let wrong = |error: rustls::Error| format!("cannot use TLS: {error}");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_root_certificates(roots);
        match self.identity.as_ref().and_then(|(chain, key)| Some((chain, private_key(key)?))) {
            Some((chain, key)) => {
                builder.with_client_auth_cert(certificates(chain), key).map_err(wrong)
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }

    pub(crate) fn grpc(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new();
        let config = match &self.given {
            Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
            None if rustls_native_certs::load_native_certs().certs.is_empty() => {
                config.with_webpki_roots()
            }
            None => config.with_native_roots(),
        };
        match &self.identity {
            Some((chain, key)) => config.identity(Identity::from_pem(chain, key)),
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

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

fn private_key(pem: &[u8]) -> Option<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).ok()
}
