// SPDX-License-Identifier: Apache-2.0
//! Makes runs of the rows of invocations.

use crate::configuration::Topology;
use crate::run::{Measure, Operation, Run, Series, Shape};
use ncclscope_trace::identity::nccl_version;
use std::collections::BTreeMap;

/// Words of programs and file names, and NCCL's names of the functions.
const FUNCTIONS: [(&str, &str); 10] = [
    ("allreduce", "AllReduce"),
    ("allgather", "AllGather"),
    ("reducescatter", "ReduceScatter"),
    ("alltoall", "AlltoAll"),
    ("hypercube", "HyperCube"),
    ("broadcast", "Broadcast"),
    ("sendrecv", "SendRecv"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
    ("reduce", "Reduce"),
];

/// A result.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) datatype: String,
    /// Reduction; empty if there is none.
    pub(super) redop: String,
    /// `root N`; empty if there is none.
    pub(super) root: String,
    /// `out-of-place` or `in-place`.
    pub(super) place: &'static str,
    /// Mean time of an iteration, us.
    pub(super) us: f64,
    pub(super) is_wrong: bool,
}

/// What an invocation says of itself before its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Invocation {
    /// The function; `None` if nothing names it.
    pub(super) func: Option<&'static str>,
    /// Number of ranks; 0 if unknown.
    pub(super) ranks: u32,
    pub(super) hosts: BTreeMap<String, usize>,
    /// Settings with their values.
    pub(super) facts: Vec<(&'static str, String)>,
}

/// The function that a word or a name contains.
pub(super) fn function(word: &str) -> Option<&'static str> {
    let word: String = word.chars().filter(|c| c.is_ascii_alphabetic()).collect();
    let word = word.to_ascii_lowercase();
    FUNCTIONS.iter().find(|(known, _)| word.contains(known)).map(|(_, func)| *func)
}

/// The runs as their rows are read.
#[derive(Debug)]
pub(super) struct Made {
    name: String,
    /// The function that the file's name contains.
    of_name: Option<&'static str>,
    runs: Vec<(Run, Topology)>,
    /// The invocation of the next rows began after those of the last run.
    pub(super) is_new: bool,
    is_named_by_file: bool,
    is_nameless: bool,
    wrong: usize,
}

impl Made {
    pub(super) fn new(name: &str) -> Made {
        let of_name = function(name);
        let (is_named_by_file, is_nameless, wrong) = (false, false, 0);
        let (name, runs, is_new) = (name.to_owned(), Vec::new(), true);
        Made { name, of_name, runs, is_new, is_named_by_file, is_nameless, wrong }
    }

    /// Adds a row, and the settings of its invocation with the first.
    pub(super) fn add(&mut self, of: &Invocation, row: &Row) {
        if row.is_wrong {
            self.wrong += 1;
            return;
        }
        let key = Measure::Transfer(self.operation(of, row));
        if std::mem::take(&mut self.is_new) {
            let has_it = self.runs.last().is_some_and(|(run, _)| run.series.contains_key(&key));
            if has_it || self.runs.is_empty() {
                let run = Run { has_exact_sizes: true, ..Run::default() };
                self.runs.push((run, Topology::default()));
            }
            if let Some((run, topology)) = self.runs.last_mut() {
                configure(run, topology, of);
            }
        }
        let Some((run, _)) = self.runs.last_mut() else { return };
        let series: &mut Series = run.series.entry(key).or_default();
        let number = u32::try_from(series.values.len()).unwrap_or(u32::MAX);
        series.values.push((number, row.us * 1e3));
    }

    fn operation(&mut self, of: &Invocation, row: &Row) -> Operation {
        self.is_named_by_file |= of.func.is_none() && self.of_name.is_some();
        self.is_nameless |= of.func.or(self.of_name).is_none();
        let ranks = match of.ranks {
            0 => "unknown ranks".to_owned(),
            1 => "1 rank".to_owned(),
            ranks => format!("{ranks} ranks"),
        };
        let words = [&*ranks, &row.datatype, &row.redop, &row.root, row.place];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        Operation {
            role: words.join(" "),
            func: of.func.or(self.of_name).unwrap_or("operation").to_owned(),
            bytes: Some(row.bytes),
            shape: Shape::default(),
            ranks: Vec::new(),
        }
    }

    pub(super) fn finish(self, broken: usize) -> Result<Vec<Run>, String> {
        if self.runs.is_empty() {
            return Err("it has no result of nccl-tests".into());
        }
        let name = &self.name;
        let mut notes = vec![format!(
            "{name} is output of nccl-tests: a time is the mean of the iterations of a row, as its \
             program measured it"
        )];
        if self.is_named_by_file {
            notes.push(format!("the collective of {name} is that of its name: no line names it"));
        }
        if self.is_nameless {
            notes.push(format!("{name} does not name the collective that it measured"));
        }
        if self.wrong > 0 {
            notes.push(format!("{name}: {} results left out: data was wrong", self.wrong));
        }
        if broken > 0 {
            notes.push(format!("{name}: {broken} rows left out: they are broken off"));
        }
        let count = self.runs.len();
        let finished = self.runs.into_iter().zip(1..).map(|((mut run, topology), number)| {
            run.name = if count == 1 { name.clone() } else { format!("{name} {number}") };
            run.configuration.topology(&topology);
            run.gpus = topology.gpus();
            run.notes.clone_from(&notes);
            run
        });
        Ok(finished.collect())
    }
}

fn configure(run: &mut Run, topology: &mut Topology, of: &Invocation) {
    topology.size(of.ranks);
    // Several invocations of a run have the same hosts.
    if run.series.is_empty() {
        for (host, ranks) in &of.hosts {
            (0..*ranks).for_each(|_| topology.process(host));
        }
    }
    for (what, value) in &of.facts {
        match *what {
            "nccl" => run.configuration.identity("nccl", value),
            what => run.configuration.fact(what, value.clone()),
        }
    }
}

/// NCCL's version from its code, such as `22907`.
pub(super) fn version(code: &str) -> Option<String> {
    nccl_version(code.parse().ok()?)
}
