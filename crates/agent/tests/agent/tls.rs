// SPDX-License-Identifier: Apache-2.0
//! The agent and TLS: which certificates it trusts, and the certificate that it presents.

use crate::agent;
use crate::export::Agent;
use crate::otlp::{Collector, GRPC, export, python, skip};
use crate::program::Outcome;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

/// For unreachable collectors: how long the agent tries at its end.
const SHORT: (&str, &str) = ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000");

/// A collector that uses TLS: prints its port, and the path of each request that it receives.
/// Demands a client certificate if it has one to verify it with.
const TLS_COLLECTOR: &str = "
import http.server, os, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        self.send_response(200)
        self.send_header('content-length', '0')
        self.end_headers()
        print(self.path, flush=True)
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
if os.path.exists('clients.pem'):
    context.load_verify_locations('clients.pem')
    context.verify_mode = ssl.CERT_REQUIRED
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

/// Makes `cert.pem` and `key.pem` for localhost; false if there is no openssl.
fn make_certificate(directory: &Path) -> bool {
    let args = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj \
                /CN=localhost -addext subjectAltName=DNS:localhost -addext \
                basicConstraints=critical,CA:FALSE";
    let mut command = Command::new("openssl");
    let output = command.args(args.split_whitespace()).current_dir(directory).output();
    output.is_ok_and(|output| output.status.success())
}

/// Starts a collector with the files of `directory`. Returns it, the lines that it prints, and its
/// URL.
fn tls_collector(directory: &Path) -> Option<(Agent, Lines<BufReader<ChildStdout>>, String)> {
    let mut command = Command::new("python3");
    command.args(["-c", TLS_COLLECTOR]).current_dir(directory);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = format!("https://localhost:{}", said.next().unwrap().unwrap());
    Some((Agent { child, stderr }, said, url))
}

#[test]
fn a_collector_with_tls_is_trusted_by_its_certificate_only_and_sees_the_agents_own() {
    let place = tempfile::tempdir().unwrap();
    if !make_certificate(place.path()) {
        println!("skipped: there is no openssl");
        return;
    }
    let Some((collector, mut said, url)) = tls_collector(place.path()) else {
        println!("skipped: there is no python3");
        return;
    };
    let agent = |url: &str, variables: &[(&str, &str)]| {
        let mut command = agent();
        command.args(["--interval", "3600", "--otlp", url]).current_dir(place.path());
        command.args(["--prom-listen", "127.0.0.1:0"]);
        let mut agent = Agent::spawn(command.envs(variables.iter().copied()));
        agent.address();
        agent.terminate()
    };
    let refused = agent(&url, &[SHORT]);
    assert!(refused.contains("certificate") && refused.contains("did not reach"), "{refused}");
    let given = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "cert.pem");
    for trust in [given, ("SSL_CERT_FILE", "cert.pem")] {
        assert_eq!(agent(&url, &[trust]), "");
        assert_eq!(said.next().unwrap().unwrap(), "/v1/metrics");
    }
    drop(collector);
    assert!(said.next().is_none(), "two requests were taken, those of agents that trust");

    std::fs::copy(place.path().join("cert.pem"), place.path().join("clients.pem")).unwrap();
    let (collector, mut said, url) = tls_collector(place.path()).unwrap();
    let refused = agent(&url, &[given, SHORT]);
    assert!(refused.contains("did not reach"), "{refused}");
    let own = [
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "cert.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem"),
    ];
    assert_eq!(agent(&url, &[given, own[0], own[1]]), "");
    assert_eq!(said.next().unwrap().unwrap(), "/v1/metrics");
    drop(collector);
    assert!(said.next().is_none(), "one request was taken, that of the agent it knows");
}

/// Proxies one connection. Returns the client's request to the proxy once the connection has ended.
fn tunnel(listener: &TcpListener) -> String {
    let (client, _) = listener.accept().unwrap();
    let mut asked = BufReader::new(client.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(asked.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let place = head.split(' ').nth(1).unwrap();
    let server = TcpStream::connect(place).unwrap();
    (&client).write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    let (mut from, mut to) = (server.try_clone().unwrap(), client);
    let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let _ = std::io::copy(&mut asked, &mut &server);
    let _ = server.shutdown(std::net::Shutdown::Write);
    let _ = back.join().unwrap();
    head.lines().next().unwrap().to_owned()
}

#[test]
fn tls_goes_through_the_proxy_of_the_environment() {
    let place = tempfile::tempdir().unwrap();
    if !make_certificate(place.path()) {
        println!("skipped: there is no openssl");
        return;
    }
    let Some((_collector, mut said, url)) = tls_collector(place.path()) else {
        println!("skipped: there is no python3");
        return;
    };
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let asked = std::thread::spawn(move || tunnel(&proxy));
    let mut command = agent();
    command.args(["--interval", "3600", "--otlp", &url]).current_dir(place.path());
    command.args(["--prom-listen", "127.0.0.1:0"]).envs([("NO_PROXY", ""), ("no_proxy", "")]);
    command.envs([("ALL_PROXY", &*address), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "cert.pem")]);
    let mut agent = Agent::spawn(&mut command);
    agent.address();
    assert_eq!(agent.terminate(), "");
    assert_eq!(said.next().unwrap().unwrap(), "/v1/metrics");
    let asked = asked.join().unwrap();
    assert_eq!(asked, format!("CONNECT {} HTTP/1.1", url.trim_start_matches("https://")));
}

#[test]
fn tls_files_that_cannot_be_used_are_one_clear_error() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("empty.pem"), "").unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (empty, none) = (path("empty.pem"), path("none.pem"));
    let prefix = "OTEL_EXPORTER_OTLP";
    for protocol in ["http/protobuf", "grpc"] {
        for (name, file, says) in [
            ("CERTIFICATE", &empty, "no certificate (PEM) in"),
            ("CERTIFICATE", &none, "cannot read"),
            ("CLIENT_KEY", &empty, "no key (PEM) in"),
        ] {
            let mut command = agent();
            command.args(["--otlp", "https://localhost"]);
            command.env(format!("{prefix}_PROTOCOL"), protocol);
            command.env(format!("{prefix}_CLIENT_CERTIFICATE"), &empty);
            command
                .env(format!("{prefix}_CLIENT_KEY"), &empty)
                .env(format!("{prefix}_{name}"), file);
            let outcome = Outcome::of(&mut command).ends_with(4);
            assert!(outcome.stderr.contains(says), "{protocol} {name}: {outcome:#?}");
        }
    }
}

#[test]
fn by_grpc_tls_is_trusted_by_its_certificate_only_and_shows_the_agents_own() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    if !make_certificate(place.path()) {
        skip("there is no openssl");
        return;
    }
    let file = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let trust = ("OTEL_EXPORTER_OTLP_CERTIFICATE", certificate.as_str());
    let own = [
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate.as_str()),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", key.as_str()),
    ];
    let collector = Collector::start(&python, place.path(), &["OK"]);
    let refused = export(&place.path().join("run-1"), &collector.url("https"), &[GRPC, SHORT]);
    assert!(refused.contains("certificate") && refused.contains("did not reach"), "{refused}");
    for trust in [trust, ("SSL_CERT_FILE", certificate.as_str())] {
        let run = place.path().join(trust.0);
        assert_eq!(export(&run, &collector.url("https"), &[GRPC, trust]), "");
    }
    assert_eq!(collector.end().len(), 2, "two requests were taken, those of agents that trust");

    std::fs::copy(&certificate, place.path().join("clients.pem")).unwrap();
    let collector = Collector::start(&python, place.path(), &["OK"]);
    let unknown = [GRPC, trust, SHORT];
    let refused = export(&place.path().join("run-3"), &collector.url("https"), &unknown);
    assert!(refused.contains("did not reach"), "{refused}");
    let known = [GRPC, trust, own[0], own[1]];
    assert_eq!(export(&place.path().join("run-4"), &collector.url("https"), &known), "");
    assert_eq!(collector.end().len(), 1, "one request was taken, that of the agent it knows");
}
