// SPDX-License-Identifier: Apache-2.0
//! Asks NCCL's RAS of a running job: lines of text over TCP (src/ras/client.cc@v2.32.3-1).

use crate::io::timed::Timed;
use ncclscope_diagnose::input::ras::{self, Ras};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The port of RAS.
const PORT: u16 = 28028;
/// How long RAS may wait for a process of the job, s. NCCL's own client allows 5.
const RAS_PATIENCE_S: u64 = 2;
/// Maximum time of one question; a process that does not answer takes RAS its own patience twice.
const PATIENCE: Duration = Duration::from_secs(6);
/// Maximum time for the first line: all processes of a host listen at one address, and the system
/// may choose one that is stopped. The next connection may reach another one.
const GREETING: Duration = Duration::from_secs(1);
/// Time from one question to the next. Both and this take at most 15 s.
const BETWEEN: Duration = Duration::from_secs(3);
/// Maximum bytes of an answer: 100,000 ranks in ten communicators take some 250 MB.
const MOST_BYTES: u64 = 1 << 30;

/// Time after the first question until which another job's answer is followed by a question.
const LATEST: Duration = Duration::from_secs(9);

/// What RAS shows, and what is wrong with that.
pub(crate) struct Shown {
    pub(crate) ras: Ras,
    /// Why there is one answer only, if so.
    pub(crate) lacks: Option<String>,
    /// Processes of several jobs answer there.
    pub(crate) has_others: bool,
}

/// What RAS shows at two moments, at most `hang` apart. `address`: `HOST`, `HOST:PORT` or `:PORT`.
/// If the job ends meanwhile, the first one counts alone.
///
/// # Errors
/// One sentence: no process answers there, or one that is not RAS.
pub(crate) fn ask_twice(address: &str, hang: Duration) -> Result<Shown, String> {
    let begun = Instant::now();
    let now = || begun.elapsed().as_secs_f64();
    let first = ask(address)?.at(now());
    std::thread::sleep(BETWEEN.min(hang));
    let mut has_others = false;
    let lacks = loop {
        match ask(address) {
            Ok(second) if first.may_be_of_job_of(&second) => {
                let ras = first.join(second.at(now()));
                return Ok(Shown { ras, lacks: None, has_others });
            }
            Ok(_) if begun.elapsed() < LATEST => has_others = true,
            Ok(_) => break format!("only another job has answered at {address} since"),
            Err(error) => break error,
        }
    };
    Ok(Shown { ras: first, lacks: Some(lacks), has_others })
}

fn ask(address: &str) -> Result<Ras, String> {
    let address = with_port(address);
    let answer = answer(&address).map_err(|error| {
        let error = if is_timeout(&error) { "no answer in time".into() } else { error.to_string() };
        format!(
            "cannot ask NCCL's RAS at {address}: {error}; RAS listens on each host of a job while \
             it has a communicator, at NCCL_RAS_ADDR or localhost:{PORT}, unless NCCL_RAS_ENABLE=0"
        )
    })?;
    ras::read(&answer).ok_or_else(|| format!("what answers at {address} is not NCCL's RAS"))
}

/// The answer in the JSON form, or in the text form before NCCL 2.28.7.
fn answer(address: &str) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match greet(address, deadline) {
            Ok((stream, has_json)) => return question(&stream, has_json, deadline),
            Err(error) if Instant::now() >= deadline || !is_timeout(&error) => return Err(error),
            Err(_) => {}
        }
    }
}

/// A connection, and whether RAS knows the JSON form.
fn greet(address: &str, deadline: Instant) -> io::Result<(TcpStream, bool)> {
    let deadline = deadline.min(Instant::now() + GREETING);
    let stream = connect(address, deadline)?;
    let hello = format!("CLIENT PROTOCOL 2\nTIMEOUT {RAS_PATIENCE_S}\nSET FORMAT json\n");
    (&stream).write_all(hello.as_bytes())?;
    let mut lines = BufReader::new(Timed { stream: &stream, deadline });
    let mut said = String::new();
    // One line for each.
    for nth in 0..3 {
        said.clear();
        (&mut lines).take(1 << 12).read_line(&mut said)?;
        if nth == 0 && !said.starts_with("SERVER PROTOCOL ") {
            let what = "what answers there is not NCCL's RAS";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    }
    let has_json = said.trim_end() == "OK";
    Ok((stream, has_json))
}

fn question(stream: &TcpStream, has_json: bool, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut out = stream;
    out.write_all(if has_json { b"STATUS\n" } else { b"VERBOSE STATUS\n" })?;
    let mut answer = Vec::new();
    Timed { stream, deadline }.take(MOST_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn connect(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let all: Vec<_> = address.to_socket_addrs()?.collect();
    for (address, left) in all.iter().zip((1..=all.len()).rev()) {
        let time = deadline.saturating_duration_since(Instant::now());
        let share = time / u32::try_from(left).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The address with RAS's host and port where they are left out.
fn with_port(address: &str) -> String {
    let is_ipv6 = address.matches(':').count() > 1 && !address.starts_with('[');
    match address.rsplit_once(':') {
        _ if is_ipv6 => format!("[{address}]:{PORT}"),
        Some(("", port)) => format!("localhost:{port}"),
        Some((_, port)) if port.parse::<u16>().is_ok() => address.to_owned(),
        _ if address.is_empty() => format!("localhost:{PORT}"),
        _ => format!("{address}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_what_ras_has_by_default() {
        for (address, whole) in [
            ("", "localhost:28028"),
            ("node7", "node7:28028"),
            (":9000", "localhost:9000"),
            ("10.0.0.1:9000", "10.0.0.1:9000"),
            ("[fe80::1]:9000", "[fe80::1]:9000"),
            ("[fe80::1]", "[fe80::1]:28028"),
            ("fe80::1", "[fe80::1]:28028"),
        ] {
            assert_eq!(with_port(address), whole);
        }
    }
}
