// SPDX-License-Identifier: Apache-2.0
//! One rank of a replayed job: runs its program ([`cluster::program`]) on real NCCL.
//!
//! It checks no data, because the ranks of a replay make calls that do not match. It prints a line
//! when its first operation is over. Exit codes: 0 the program ended, that of `exit:CODE`, or 2 for
//! a failure, with its text.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is its report")]

use clap::Parser;
use cluster::FIRST_DONE;
use cluster::program::{self, Call, Span, Wait, Word};
use cluster::starve::Thief;
use cluster::store::Store;
use rig::cuda::{Cuda, Floats, Stream};
use rig::nccl::{Comm, Nccl, UniqueId};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// One rank of a replayed job
#[derive(Debug, Parser)]
struct Options {
    /// The CPU stand-in or a real libcudart
    #[arg(long, value_name = "SO")]
    cuda: PathBuf,
    #[arg(long, value_name = "SO")]
    nccl: PathBuf,
    #[arg(long, value_name = "R")]
    rank: usize,
    /// Ranks of the job
    #[arg(long, value_name = "N")]
    nranks: usize,
    /// CUDA device
    #[arg(long, value_name = "D", default_value_t = 0)]
    device: i32,
    /// Where the ranks meet without NCCL
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    #[arg(value_name = "PROGRAM")]
    program: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let rank = options.rank;
    match run(options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("rank {rank}: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> Result<u8, String> {
    let words = program::parse(&options.program)?;
    let cuda = Cuda::load(&options.cuda)?;
    cuda.set_device(options.device)?;
    let (stream, room) = (cuda.stream()?, program::room(&words) * options.nranks);
    let buffers = (cuda.floats(room)?, cuda.floats(room)?);
    let (nccl, store) = (OnceCell::new(), Store::new(&options.store));
    let mut rank = Rank {
        options: &options,
        cuda: &cuda,
        stream: &stream,
        buffers: &buffers,
        nccl: &nccl,
        store,
        comms: BTreeMap::new(),
        used: String::new(),
        thief: None,
        random: u64::try_from(options.rank).map_err(|error| error.to_string())?,
        has_first: false,
    };
    Ok(rank.run(&words)?.unwrap_or(0))
}

struct Rank<'a> {
    options: &'a Options,
    cuda: &'a Cuda,
    stream: &'a Stream<'a>,
    /// What is sent and what is received, with room for any call of the program.
    buffers: &'a (Floats<'a>, Floats<'a>),
    nccl: &'a OnceCell<Nccl>,
    store: Store,
    comms: BTreeMap<String, Comm<'a>>,
    /// The communicator in use.
    used: String,
    /// Takes the free slots of NCCL's pool after each call.
    thief: Option<Thief>,
    /// Decides how long work of no fixed length takes.
    random: u64,
    has_first: bool,
}

impl<'a> Rank<'a> {
    /// Runs words; returns the exit code if one of them exits.
    fn run(&mut self, words: &[Word]) -> Result<Option<u8>, String> {
        for word in words {
            let code = self.word(word)?;
            if code.is_some() {
                return Ok(code);
            }
        }
        Ok(None)
    }

    fn word(&mut self, word: &Word) -> Result<Option<u8>, String> {
        match word {
            Word::Repeat(times, words) => {
                for _ in 0..*times {
                    let code = self.run(words)?;
                    if code.is_some() {
                        return Ok(code);
                    }
                }
            }
            Word::Group(words) => {
                let calls = words.iter().map(|word| match word {
                    Word::Call(call, _) => Ok(*call),
                    other => Err(format!("{other:?} is no call, and stands in a group")),
                });
                let calls: Vec<Call> = calls.collect::<Result<_, _>>()?;
                self.nccl()?.group(|| calls.iter().try_for_each(|call| self.call(*call)))?;
                self.sync()?;
            }
            Word::Call(call, wait) => {
                self.call(*call)?;
                if *wait == Wait::Stream {
                    self.sync()?;
                }
            }
            Word::Id(name) => {
                let id = self.nccl()?.unique_id()?;
                self.store.set(&format!("id.{name}"), &id.0)?;
            }
            Word::Join(name, ranks) => self.join(name, ranks)?,
            Word::Split(name, color) => {
                let key = i32::try_from(self.options.rank).map_err(|error| error.to_string())?;
                let comm = self.comm()?.split(*color, key, false)?;
                self.comms.insert(name.clone(), comm);
                self.used.clone_from(name);
            }
            Word::Use(name) => self.used.clone_from(name),
            Word::Work(span) => self.work(*span),
            Word::Busy(span) => self.busy(*span)?,
            Word::Meet(name) => self.meet(name)?,
            Word::Load => drop(self.nccl()?),
            Word::Sync => self.sync()?,
            Word::Abort => self.take()?.abort()?,
            Word::Destroy => self.take()?.destroy()?,
            Word::Starve => self.thief = Some(Thief::new()?),
            Word::Exit(code) => return Ok(Some(u8::try_from(*code).unwrap_or(u8::MAX))),
            Word::Idle => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
        }
        Ok(None)
    }

    fn work(&mut self, span: Span) {
        std::thread::sleep(Duration::from_millis(span.draw(&mut self.random)));
    }

    fn busy(&mut self, span: Span) -> Result<(), String> {
        self.stream.occupy(span.draw(&mut self.random))
    }

    fn nccl(&self) -> Result<&'a Nccl, String> {
        if self.nccl.get().is_none() {
            let nccl = Nccl::new(self.cuda.open_nccl(&self.options.nccl)?)?;
            drop(self.nccl.set(nccl));
        }
        self.nccl.get().ok_or_else(|| "NCCL is not loaded".to_owned())
    }

    fn comm(&self) -> Result<&Comm<'a>, String> {
        self.comms.get(&self.used).ok_or_else(|| format!("no communicator `{}`", self.used))
    }

    fn take(&mut self) -> Result<Comm<'a>, String> {
        self.comms.remove(&self.used).ok_or_else(|| format!("no communicator `{}`", self.used))
    }

    fn join(&mut self, name: &str, ranks: &[usize]) -> Result<(), String> {
        let nccl = self.nccl()?;
        let own = ranks.iter().position(|&rank| rank == self.options.rank);
        let own = own.ok_or_else(|| format!("this rank is not in {name}"))?;
        let key = format!("id.{name}");
        if own == 0 && self.store.get(&key).is_none() {
            self.store.set(&key, &nccl.unique_id()?.0)?;
        }
        let id = self.store.wait(&key).try_into().map_err(|_| "no unique id".to_owned())?;
        let number = |n: usize| i32::try_from(n).map_err(|error| error.to_string());
        let comm = nccl.init_rank(UniqueId(id), number(own)?, number(ranks.len())?, true)?;
        self.comms.insert(name.to_owned(), comm);
        name.clone_into(&mut self.used);
        Ok(())
    }

    fn meet(&self, name: &str) -> Result<(), String> {
        let key = |rank| format!("meet.{name}.{rank}");
        self.store.set(&key(self.options.rank), &[])?;
        for rank in 0..self.options.nranks {
            drop(self.store.wait(&key(rank)));
        }
        Ok(())
    }

    fn call(&self, call: Call) -> Result<(), String> {
        let (send, recv) = self.buffers;
        let (comm, stream) = (self.comm()?, self.stream);
        match call {
            Call::AllReduce(count) => comm.all_reduce(send, recv, count, stream),
            Call::AllGather(count) => comm.all_gather(send, recv, count, stream),
            Call::ReduceScatter(count) => comm.reduce_scatter(send, recv, count, stream),
            Call::Broadcast(root, count) => comm.broadcast(send, recv, count, root, stream),
            Call::Send(peer, count) => comm.send(send, count, peer, stream),
            Call::Recv(peer, count) => comm.recv(recv, count, peer, stream),
        }
    }

    fn sync(&mut self) -> Result<(), String> {
        self.stream.synchronize()?;
        self.thief.iter().for_each(Thief::take);
        if !std::mem::replace(&mut self.has_first, true) {
            println!("rank {} {FIRST_DONE}", self.options.rank);
        }
        Ok(())
    }
}
