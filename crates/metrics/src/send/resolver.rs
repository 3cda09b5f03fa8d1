// SPDX-License-Identifier: Apache-2.0
//! Resolves names on the sending thread.
//!
//! The HTTP client's own resolver starts a thread for every connection, and panics if it cannot
//! (3.5.1, `resolve_async`): in a container at its limit of processes that would end the sending
//! thread. The system's resolver has its own time limits.

use std::net::ToSocketAddrs;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Most addresses that are tried: as many as the client can hold.
const MOST: usize = 16;

/// A resolver that looks names up on the calling thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here;

impl Resolver for Here {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let whole = uri.scheme().zip(uri.authority());
        let place = whole.and_then(|(scheme, at)| DefaultResolver::host_and_port(scheme, at));
        let place = place.ok_or_else(|| Error::BadUri(uri.to_string()))?;
        let (family, mut found) = (config.ip_family(), self.empty());
        family
            .keep_wanted(place.to_socket_addrs()?)
            .take(MOST)
            .for_each(|address| found.push(address));
        if found.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}
