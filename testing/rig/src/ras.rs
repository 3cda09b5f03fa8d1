// SPDX-License-Identifier: Apache-2.0
//! NCCL's own service for reliability, availability and serviceability (RAS), as an operator uses
//! it: lines of text over TCP (`src/ras/client_support.cc`).

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

/// Maximum time for an answer. RAS gives up on a rank that does not answer after 5 s.
const PATIENCE: Duration = Duration::from_secs(8);

/// The address at which a job's RAS listens.
#[derive(Debug, Clone, Copy)]
pub struct Ras(SocketAddrV4);

impl Ras {
    /// An address that no process listens at now.
    ///
    /// # Errors
    /// The machine has no free port.
    pub fn reserve() -> io::Result<Ras> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        Ok(Ras(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)))
    }

    /// The value of `NCCL_RAS_ADDR`.
    #[must_use]
    pub fn address(self) -> String {
        self.0.to_string()
    }

    /// Sends a command that RAS answers with one line, such as `CONTROL PROFILER_MASK all` (from
    /// NCCL 2.31 on), and returns the line.
    ///
    /// # Errors
    /// No process of the job listens, or the answer takes longer than 8 s.
    pub fn command(self, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.0)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{command}")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    /// A stream of all events (`MONITOR`, from NCCL 2.29 on). The system chooses which process of
    /// the job prints them.
    ///
    /// # Errors
    /// No process of the job listens.
    pub fn events(self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.0)?;
        writeln!(stream, "MONITOR all")?;
        Ok(stream)
    }
}
