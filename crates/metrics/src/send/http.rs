// SPDX-License-Identifier: Apache-2.0
//! OTLP over HTTP, by its specification (1.9, "OTLP/HTTP").

use super::resolver::Here;
use super::transport::{Answer, Transport};
use std::fmt;
use std::time::Duration;
use ureq::config::Config;
use ureq::unversioned::transport::{Connector, DefaultConnector};

/// Most bytes of a response that are read.
const ANSWER_BYTES: u64 = 64 << 10;

/// The destination of requests.
#[derive(Clone, Debug)]
pub struct Target {
    /// The collector's URL, path included.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
}

/// The configuration of an HTTP client for a [`super::Sender`], to which the caller may add. It
/// does not follow redirects, because headers may contain secrets for one host.
#[must_use]
pub fn client(
    timeout: Duration,
    user_agent: &str,
) -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(user_agent)
}

/// Posts requests unchanged; the caller sets `Content-Encoding`.
pub struct Http {
    target: Target,
    agent: ureq::Agent,
    /// Creates a new agent.
    renewed: Box<dyn Fn() -> ureq::Agent + Send>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the headers, which may contain secrets.
        f.debug_struct("Http").field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl Http {
    /// A transport to `target` without TLS; `config` comes from [`client`].
    #[must_use]
    pub fn new(target: Target, config: Config) -> Http {
        Http::over(target, config, DefaultConnector::default)
    }

    /// As [`Http::new`], over connections of the caller, which may use TLS.
    #[must_use]
    pub fn over<C: Connector>(
        target: Target,
        config: Config,
        connector: impl Fn() -> C + Send + 'static,
    ) -> Http {
        let agent = move || ureq::Agent::with_parts(config.clone(), connector(), Here);
        Http { target, agent: agent(), renewed: Box::new(agent) }
    }
}

impl Transport for Http {
    fn post(&self, request: &[u8]) -> Answer {
        let mut post = self.agent.post(&self.target.url).content_type("application/x-protobuf");
        for (name, value) in &self.target.headers {
            post = post.header(name, value);
        }
        let mut answer = match post.send(request) {
            Ok(answer) => answer,
            // An invalid URL or header does not become valid later.
            Err(ureq::Error::BadUri(_)) => {
                // The error has the whole URL, which may have a password in it.
                return Answer::Refused("the URL cannot be used".into());
            }
            Err(error @ ureq::Error::Http(_)) => return Answer::Refused(error.to_string()),
            Err(error) => return Answer::Later(None, error.to_string()),
        };
        let status = answer.status();
        match status.as_u16() {
            // The body is read to its end, so that the connection can be reused.
            200..=299 => {
                let body = answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec();
                Answer::Taken(body.unwrap_or_default())
            }
            300..=399 => Answer::Refused(format!("{status}: redirects are not followed")),
            429 | 502 | 503 | 504 => {
                let after = answer.headers().get("retry-after");
                let seconds = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
                Answer::Later(seconds.map(Duration::from_secs), status.to_string())
            }
            _ => Answer::Refused(status.to_string()),
        }
    }

    /// Replaces the agent, whose locks a panic has poisoned.
    fn renew(&mut self) {
        self.agent = (self.renewed)();
    }
}
