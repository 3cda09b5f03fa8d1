// SPDX-License-Identifier: Apache-2.0
//! The TCP sockets of a process: those on which it waits for others, and those with which it
//! connects to others that do not answer (`/proc/PID/net/tcp`, `proc_pid_net(5)`).

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// `TCP_SYN_SENT` and `TCP_LISTEN` as the table writes them.
const SYN_SENT: &str = "02";
const LISTEN: &str = "0A";
/// Maximum number of open files that are looked at.
const FILES: usize = 1 << 16;

/// The sockets of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Where it waits for others, ascending.
    pub listening: BTreeSet<SocketAddr>,
    /// To whom it connects without an answer, ascending.
    pub connecting: BTreeSet<SocketAddr>,
}

impl Sockets {
    /// The addresses of its own at which others reach it: those of the sockets on which it waits,
    /// without any-address and loopback ones.
    #[must_use]
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let all = self.listening.iter().map(SocketAddr::ip);
        all.filter(|ip| !ip.is_unspecified() && !ip.is_loopback()).collect()
    }
}

/// The sockets of a process, whose directory in `/proc` this is: those of its network namespace
/// that it holds.
#[must_use]
pub fn sockets(process: &Path) -> Sockets {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let inode = |file: fs::DirEntry| {
        let name = fs::read_link(file.path()).ok()?;
        let number = name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        number.parse().ok()
    };
    let own: BTreeSet<u64> = files.take(FILES).filter_map(inode).collect();
    let mut sockets = Sockets::default();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(process.join("net").join(table)).unwrap_or_default();
        sockets.add(&text, |inode| own.contains(&inode));
    }
    sockets
}

impl Sockets {
    /// Adds those of a table that the process holds.
    fn add(&mut self, table: &str, is_own: impl Fn(u64) -> bool) {
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { continue };
            if !inode.parse().is_ok_and(&is_own) {
                continue;
            }
            match state {
                LISTEN => self.listening.extend(address(local)),
                SYN_SENT => self.connecting.extend(address(remote)),
                _ => {}
            }
        }
    }
}

/// `ADDRESS:PORT` in hexadecimal: the address in words of 32 bits in the machine's order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
        32 => {
            let mut octets = [0; 16];
            for (part, at) in octets.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn states_and_addresses_are_read() {
        let table = "  sl  local_address rem_address   st ...\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 11 1\n\
            1: 0200000A:C000 0300000A:1234 02 00000000:00000000 00:00000000 00000000  0  0 12 1\n\
            2: 0200000A:C001 0300000A:1234 01 00000000:00000000 00:00000000 00000000  0  0 13 1\n\
            3: 0200000A:C002 0400000A:1234 02 00000000:00000000 00:00000000 00000000  0  0 99 1\n";
        let mut sockets = Sockets::default();
        sockets.add(table, |inode| inode < 20);
        let texts =
            |of: &BTreeSet<SocketAddr>| of.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&sockets.listening), ["127.0.0.1:8080"]);
        assert_eq!(texts(&sockets.connecting), ["10.0.0.3:4660"]);
        let six = "0000000000000000FFFF00000200000A:0001";
        assert_eq!(address(six).unwrap().to_string(), "10.0.0.2:1");
        assert_eq!(address("0100007F"), None);
        assert_eq!(address("01:0001"), None);
    }

    #[test]
    fn a_listening_socket_of_this_process_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = sockets(Path::new("/proc/self"));
        assert!(own.listening.contains(&listener.local_addr().unwrap()), "{own:?}");
        assert!(own.own_addresses().iter().all(|ip| !ip.is_loopback()));
        assert_eq!(sockets(Path::new("/proc/nothing")), Sockets::default());
    }
}
