// SPDX-License-Identifier: Apache-2.0
//! The parent: runs a child, and steps through each callback of its phases.

use crate::instruction::{Class, classify};
use crate::phase::{Addresses, FORBIDDEN, Phase, PhaseSet};
use crate::{child, sys};
use fake_nccl::EventType;
use libc::{c_int, pid_t, user_regs_struct};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// A callback with more instructions counts as one that never returns.
pub const ENDLESS: u64 = 20_000;
/// The breakpoint instruction, one byte.
const INT3: u64 = 0xcc;

/// Identifies a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// NCCL's name of the event's type; `other` for an unknown type or handle.
    pub event: &'static str,
    /// The function.
    pub call: Call,
}

/// A function of the profiler's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `startEvent`.
    Start,
    /// `recordEventState`, with the state.
    State(i32),
    /// `stopEvent`.
    Stop,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Call::Start => write!(f, "{} start", self.event),
            Call::State(state) => write!(f, "{} state {state}", self.event),
            Call::Stop => write!(f, "{} stop", self.event),
        }
    }
}

/// A callback from its first instruction to its return.
#[derive(Debug, Clone)]
pub struct Stepped {
    /// The plugin's state.
    pub phase: Phase,
    /// The callback.
    pub kind: Kind,
    /// Instructions; one for a repeated string instruction.
    pub instructions: u64,
    /// Number of these instructions that lock the bus.
    pub locked: u64,
    /// Number of these instructions that read the time.
    pub clocks: u64,
    /// Bytes of stack below the return address.
    pub stack: u64,
    /// Violations, as text.
    pub faults: Vec<String>,
}

/// Why nothing was stepped.
#[derive(Debug)]
pub enum Error {
    /// The system does not allow `ptrace`.
    Forbidden,
    /// The child or the system failed.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Forbidden => f.write_str("ptrace is not allowed here"),
            Error::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Failed(format!("ptrace: {error}"))
    }
}

/// Steps through a part of the callbacks of `plugin` at one version of the API.
/// `executable` is the program `stepper`.
///
/// # Errors
/// [`Error`].
pub fn trace(
    executable: &Path,
    plugin: &Path,
    version: usize,
    phases: PhaseSet,
) -> Result<Vec<Stepped>, Error> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(executable);
    command.arg(child::VERB).arg(plugin).arg(version.to_string());
    command.arg(phases.word()).stdin(Stdio::null()).stdout(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NCCL") {
            command.env_remove(name);
        }
    }
    command.env("NCCLSCOPE_DIR", folder.path()).env("NCCLSCOPE_LOG", "off");
    if phases == PhaseSet::Off {
        command.env("NCCLSCOPE_MODE", "off");
    }
    // This thread waits for the child with `waitpid`, not with this handle.
    let process = command.spawn().map_err(|e| Error::Failed(format!("{executable:?}: {e}")))?;
    let pid = pid_t::try_from(process.id()).map_err(io::Error::other)?;
    Tracer::new(pid, version)?.run()
}

struct Tracer {
    pid: pid_t,
    memory: File,
    /// Bytes of a descriptor's type.
    type_bytes: usize,
    addresses: Addresses,
    /// The code under each breakpoint, while they are set.
    covered: Option<[u64; 3]>,
    phase: Option<Phase>,
    held: Vec<pid_t>,
    /// The type of each returned handle.
    handles: HashMap<u64, u64>,
    code: HashMap<u64, Class>,
    stepped: Vec<Stepped>,
}

impl Tracer {
    fn new(pid: pid_t, version: usize) -> io::Result<Tracer> {
        Ok(Tracer {
            pid,
            memory: File::open(format!("/proc/{pid}/mem"))?,
            type_bytes: if version < 5 { 1 } else { 8 },
            addresses: Addresses::default(),
            covered: None,
            phase: None,
            held: Vec::new(),
            handles: HashMap::new(),
            code: HashMap::new(),
            stepped: Vec::new(),
        })
    }

    /// Follows the child to its end.
    fn run(mut self) -> Result<Vec<Stepped>, Error> {
        loop {
            let (tid, status) = sys::wait(-1)?;
            if !libc::WIFSTOPPED(status) {
                if tid != self.pid {
                    continue;
                }
                return match ExitStatus::from_raw(status) {
                    ended if ended.success() => Ok(self.stepped),
                    ended if ended.code() == Some(i32::from(child::NOT_TRACED)) => {
                        Err(Error::Forbidden)
                    }
                    ended => Err(Error::Failed(format!("the child that was stepped: {ended}"))),
                };
            }
            let mut signal = libc::WSTOPSIG(status);
            if signal == libc::SIGTRAP {
                let registers = sys::registers(tid)?;
                let entries = self.addresses.callbacks;
                match entries.iter().position(|&entry| entry == registers.rip - 1) {
                    Some(function) if self.covered.is_some() => {
                        self.callback(tid, registers, function)?;
                    }
                    _ => self.mark(tid, &registers)?,
                }
                signal = 0;
            }
            sys::resume(tid, signal)?;
        }
    }

    /// Handles the begin or end of a phase.
    fn mark(&mut self, tid: pid_t, registers: &user_regs_struct) -> io::Result<()> {
        sys::kill_on_exit(tid)?;
        self.disarm(tid)?;
        self.phase = Phase::of(registers.rdi);
        if registers.rdi == child::END {
            self.held.drain(..).try_for_each(sys::release)?;
            return Ok(());
        }
        if self.held.is_empty() {
            self.hold_others()?;
        }
        let words = size_of::<Addresses>() / 8;
        let mut words = (0..words as u64).map(|at| self.word(registers.rsi + 8 * at));
        let mut next = || words.next().unwrap_or(Ok(0));
        let mut addresses = Addresses::default();
        for address in addresses.callbacks.iter_mut().chain(&mut addresses.forbidden) {
            *address = next()?;
        }
        self.addresses = addresses;
        if self.phase.is_some() { self.arm(tid) } else { Ok(()) }
    }

    /// Stops all threads that are not traced: they must not hit a breakpoint, and a phase must not
    /// depend on what they do.
    fn hold_others(&mut self) -> io::Result<()> {
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let tid = entry?.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
            // Attaching fails for threads that are already traced: one of them is stopped at the
            // mark, and the other waits for it.
            if sys::hold(tid).is_ok() {
                self.held.push(tid);
            }
        }
        Ok(())
    }

    fn arm(&mut self, tid: pid_t) -> io::Result<()> {
        let mut covered = [0; 3];
        for (entry, word) in self.addresses.callbacks.into_iter().zip(&mut covered) {
            *word = self.word(entry)?;
        }
        for (entry, word) in self.addresses.callbacks.into_iter().zip(covered) {
            sys::poke(tid, entry, word & !0xff | INT3)?;
        }
        self.covered = Some(covered);
        Ok(())
    }

    fn disarm(&mut self, tid: pid_t) -> io::Result<()> {
        for (entry, word) in
            self.addresses.callbacks.into_iter().zip(self.covered.take().into_iter().flatten())
        {
            sys::poke(tid, entry, word)?;
        }
        Ok(())
    }

    /// Steps from a callback's first instruction to the one after its call.
    fn callback(
        &mut self,
        tid: pid_t,
        mut registers: user_regs_struct,
        function: usize,
    ) -> io::Result<()> {
        registers.rip -= 1;
        sys::set_registers(tid, &registers)?;
        self.disarm(tid)?;
        let (kind, bit) = self.kind(function, &registers)?;
        let (slot, top) = (registers.rsi, registers.rsp);
        let back = self.word(top)?;
        let phase = self.phase.unwrap_or(Phase::Hot);
        let mut stepped = Stepped {
            phase,
            kind,
            instructions: 0,
            locked: 0,
            clocks: 0,
            stack: 0,
            faults: Vec::new(),
        };
        while (registers.rip, registers.rsp) != (back, top + 8) {
            self.look(&registers, &mut stepped);
            stepped.stack = stepped.stack.max(top.saturating_sub(registers.rsp));
            if stepped.instructions == ENDLESS {
                stepped.faults.push(format!("does not end within {ENDLESS} instructions"));
                break;
            }
            let before = registers.rip;
            sys::step(tid)?;
            let (_, status) = sys::wait(tid)?;
            if !libc::WIFSTOPPED(status) || libc::WSTOPSIG(status) != libc::SIGTRAP {
                return Err(io::Error::other(format!("{kind}: {}", ended(status))));
            }
            registers = sys::registers(tid)?;
            // A repeated string instruction stops at each repeat, but counts as one.
            let repeats =
                registers.rip == before && self.code.get(&before) == Some(&Class::Repeated);
            stepped.instructions += u64::from(!repeats);
        }
        if let Some(bit) = bit {
            self.handles.insert(self.word(slot)?, bit);
        }
        self.stepped.push(stepped);
        self.arm(tid)
    }

    /// Checks the next instruction.
    fn look(&mut self, registers: &user_regs_struct, stepped: &mut Stepped) {
        let at = registers.rip;
        let memory = &self.memory;
        let class = *self.code.entry(at).or_insert_with(|| {
            let mut bytes = [0; 16];
            let length = memory.read_at(&mut bytes, at).unwrap_or(0);
            classify(&bytes[..length])
        });
        match class {
            Class::Plain | Class::Repeated => {}
            Class::Locked => stepped.locked += 1,
            Class::Clock => stepped.clocks += 1,
            Class::System => {
                stepped.faults.push(format!("calls the system, number {}", registers.rax));
            }
        }
        if let Some(which) = self.addresses.forbidden.iter().position(|&address| address == at) {
            let name = FORBIDDEN[which].to_string_lossy();
            stepped.faults.push(format!("enters {name}, called by {}", self.caller(registers.rsp)));
        }
    }

    /// The file that contains the return address at `top`.
    fn caller(&self, top: u64) -> String {
        let Ok(address) = self.word(top) else { return "unknown".into() };
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        let covers = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            range.is_some_and(|(from, to)| (number(from)..number(to)).contains(&address))
        };
        let line = maps.lines().find(covers).unwrap_or_default();
        line.rsplit(['/', ' ']).next().unwrap_or_default().to_owned()
    }

    /// The kind of the callback; for a start, also the type's bits.
    fn kind(
        &self,
        function: usize,
        registers: &user_regs_struct,
    ) -> io::Result<(Kind, Option<u64>)> {
        if function == 0 {
            let mut bytes = [0; 8];
            self.memory.read_exact_at(&mut bytes[..self.type_bytes], registers.rdx)?;
            let bit = u64::from_le_bytes(bytes);
            return Ok((Kind { event: event(bit), call: Call::Start }, Some(bit)));
        }
        let event = match registers.rdi {
            0 => "null",
            handle => self.handles.get(&handle).map_or("other", |&bit| event(bit)),
        };
        #[expect(clippy::cast_possible_truncation, reason = "an `int` argument")]
        let state = (registers.rsi as u32).cast_signed();
        let call = if function == 1 { Call::Stop } else { Call::State(state) };
        Ok((Kind { event, call }, None))
    }

    fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn ended(status: c_int) -> String {
    if libc::WIFSTOPPED(status) {
        format!("signal {} inside the callback", libc::WSTOPSIG(status))
    } else {
        format!("ended inside the callback: {}", ExitStatus::from_raw(status))
    }
}

/// NCCL's name of an event's type.
fn event(bit: u64) -> &'static str {
    EventType::from_bits(bit).map_or("other", EventType::name)
}
