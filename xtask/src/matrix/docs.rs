// SPDX-License-Identifier: Apache-2.0
//! Writes `docs/nccl-events.md` from the cells' recordings.
//!
//! The page does not depend on time, process ids or the order of cells, so that measuring again
//! without a change gives the same file. The sentences around the tables are computed, too: each
//! names the releases for which it was measured.

mod layouts;

use std::collections::{BTreeMap, BTreeSet};

use super::cell::{Cell, Ended, Outcome, Refused};
use super::plan::DOCS_TOPOLOGY;
use super::topology::TOPOLOGIES;
use super::verdict::{Count, Verdict};
use super::workload::WORKLOADS;

const PAGE: &str = "docs/nccl-events.md";

/// The kinds in the order of NCCL's hierarchy.
const KINDS: &[&str] = &[
    "GroupApi",
    "CollApi",
    "P2pApi",
    "KernelLaunch",
    "Group",
    "Coll",
    "P2p",
    "ProxyOp",
    "ProxyStep",
    "KernelCh",
    "NetPlugin",
    "CeColl",
    "CeSync",
    "CeBatch",
];

/// Ways to set up and use communicators, each with the cell that shows it: topology and workload.
const STRATEGIES: &[(&str, &str, &str)] = &[
    ("one device per process, two nodes", "socket", "allreduce"),
    ("one device per process, one node", "p2p-ipc", "allreduce"),
    ("several tasks per node", "socket-shm", "allreduce"),
    ("one device per thread", "threads", "allreduce"),
    ("split", DOCS_TOPOLOGY, "split"),
    ("graph", DOCS_TOPOLOGY, "graph"),
];

const HEAD: &str = "\
# NCCL's profiler events, measured

<!-- Written by `cargo xtask matrix --docs`: change xtask/src/matrix, not this page. -->

This page shows which release emits which events, from which thread, on which topology. It was
measured with NVIDIA's own libnccl on the CPU stand-in
([how](../README.md#how-it-is-tested-without-a-gpu)), with every kind except ProxyCtrl and
KernelPhase, and from 2.31 on without KernelCh, which these releases can emit. By default the plugin
asks 2.29 and 2.30 for no KernelCh either ([`NCCLSCOPE_KERNEL`](env.md)). A range such as \"2.28.9
to 2.30.7\" covers the measured releases between. [The glossary](glossary.md) explains the terms.

The rig sets `NCCL_BUFFSIZE` to 1 MiB, a quarter of NCCL's own, on which the number of ProxySteps
depends, and at most 4 channels (`ENVIRONMENT` in `testing/rig/src/job.rs`).

The threads: *api* calls NCCL (or is NCCL's own thread that launches for it), *callback* is CUDA's
host-callback thread, *proxy* is NCCL's proxy progress thread, and *kernel* is its profiler thread,
or a proxy thread without a network. Releases without API events do not distinguish *callback* from
*api*. – means not emitted; a table has no column for kinds that none of its rows emits.
";

const KERNEL_TIMES: &str = "\
Its operation's, until the GPU and the host count differently; all later times are then another \
kernel's. A rank's send to itself from another buffer makes them differ from 2.26 to 2.30 \
(measured on 2.26.5, 2.27.7, 2.28.9 and 2.30.7, and not on 2.31.2 and 2.32.3), and a Broadcast \
from 2.29 on ([`NCCLSCOPE_KERNEL`](env.md)).";

pub(super) fn write(cells: &[Cell], outcomes: &[Outcome]) -> crate::outcome::Outcome<()> {
    let measured = Measured::new(cells, outcomes);
    std::fs::write(PAGE, measured.page())?;
    Ok(())
}

/// The verdicts by release, topology and workload.
struct Measured<'a> {
    /// In the order of the command line or of the table of releases.
    releases: Vec<&'a str>,
    verdicts: BTreeMap<(&'a str, &'a str, &'a str), &'a Verdict>,
    /// Releases and topologies that NCCL refused.
    refused: BTreeMap<(&'a str, &'a str), Refused>,
}

impl<'a> Measured<'a> {
    fn new(cells: &'a [Cell], outcomes: &'a [Outcome]) -> Self {
        let mut measured =
            Measured { releases: vec![], verdicts: BTreeMap::new(), refused: BTreeMap::new() };
        for (cell, outcome) in cells.iter().zip(outcomes) {
            if let Ended::Refused(how) = outcome.ended {
                measured.refused.insert((&cell.wheel.label, cell.topology.name), how);
            }
            let (Some(workload), Some(verdict)) = (cell.workload, outcome.verdict()) else {
                continue;
            };
            let release = cell.wheel.label.as_str();
            if !measured.releases.contains(&release) {
                measured.releases.push(release);
            }
            measured.verdicts.insert((release, cell.topology.name, workload.name), verdict);
        }
        measured
    }

    fn page(&self) -> String {
        [
            HEAD.to_owned(),
            self.threads(),
            self.strategies(),
            self.workloads(),
            self.topologies(),
            self.layouts(),
            self.orders(),
            self.open(),
            self.answers(),
        ]
        .join("\n")
    }

    fn verdict(&self, release: &str, topology: &str, workload: &str) -> Option<&Verdict> {
        self.verdicts.get(&(release, topology, workload)).copied()
    }

    /// The count on the main topology.
    fn count(&self, release: &str, workload: &str, kind: &str) -> Count {
        let verdict = self.verdict(release, DOCS_TOPOLOGY, workload);
        verdict.and_then(|verdict| verdict.kinds.get(kind)).cloned().unwrap_or_default()
    }

    /// The releases for which `holds` is true, as text.
    fn those(&self, holds: impl Fn(&str) -> bool) -> String {
        let those: Vec<&str> = self.releases.iter().copied().filter(|r| holds(r)).collect();
        match those.len() {
            0 => "no release".into(),
            n if n == self.releases.len() && n > 1 => "every release".into(),
            _ => self.named(&those),
        }
    }

    /// Releases as text: three or more neighbours are a range.
    fn named(&self, releases: &[&str]) -> String {
        let place = |release: &&str| self.releases.iter().position(|other| other == release);
        let mut parts = Vec::new();
        for run in releases.chunk_by(|one, next| place(one).map(|at| at + 1) == place(next)) {
            match run {
                [first, _, .., last] => parts.push(format!("{first} to {last}")),
                _ => parts.extend(run.iter().map(|release| (*release).to_owned())),
            }
        }
        parts.join(", ")
    }

    /// The kinds that occur in any cell, in order.
    fn kinds(&self) -> Vec<&'static str> {
        let has = |kind: &&&str| self.verdicts.values().any(|v| v.kinds.contains_key(**kind));
        KINDS.iter().filter(has).copied().collect()
    }

    fn threads(&self) -> String {
        let mut text = format!(
            "## From which thread\n\nAll workloads below on `{DOCS_TOPOLOGY}` together.\n\n"
        );
        let kinds = self.kinds();
        let mut rows: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
        for release in &self.releases {
            let cells = kinds.iter().map(|kind| {
                let counts = WORKLOADS.iter().map(|w| self.count(release, w.name, kind));
                join(&counts.flat_map(|count| count.threads).collect())
            });
            let cells: Vec<String> = cells.collect();
            match rows.iter_mut().find(|(_, same)| *same == cells) {
                Some((releases, _)) => releases.push(release),
                None => rows.push((vec![release], cells)),
            }
        }
        text += &row(["releases"].into_iter().chain(kinds.iter().copied()));
        text += &rule(kinds.len() + 1);
        for (releases, cells) in rows {
            let releases = self.named(&releases);
            text += &row([releases.as_str()].into_iter().chain(cells.iter().map(String::as_str)));
        }
        text
    }

    fn strategies(&self) -> String {
        let mut text = String::from(
            "## By initialisation strategy\n\nThe threads that emit each event, for each way to \
             create and use communicators.\n\n",
        );
        let rows = STRATEGIES.iter().flat_map(|&(strategy, topology, workload)| {
            self.releases.iter().filter_map(move |release| {
                let verdict = self.verdict(release, topology, workload)?;
                Some((vec![*release, strategy, topology], verdict))
            })
        });
        let roles = |count: Option<&Count>| {
            count.map_or_else(|| NONE.to_owned(), |count| join(&count.threads))
        };
        text += &self.table(&["releases", "strategy", "topology"], rows, roles);
        text
    }

    fn api(&self, release: &str) -> u64 {
        let of = |(key, verdict): (&(&str, &str, &str), &&Verdict)| {
            (key.0 == release).then_some(verdict.api_version)
        };
        self.verdicts.iter().filter_map(of).max().unwrap_or(0)
    }

    fn workloads(&self) -> String {
        let mut text =
            format!("## How many\n\nEvents of both ranks together on `{DOCS_TOPOLOGY}`.\n");
        for workload in WORKLOADS {
            text += &format!("\n### {}\n\n{}.\n\n", workload.name, sentence(workload.about));
            let rows = self.releases.iter().filter_map(|release| {
                Some((vec![*release], self.verdict(release, DOCS_TOPOLOGY, workload.name)?))
            });
            text += &self.table(&["releases"], rows, shown);
        }
        text
    }

    fn topologies(&self) -> String {
        let about = sentence(WORKLOADS[0].about);
        let mut text = format!(
            "## By topology\n\n{about}. Events of all ranks together; \
             `{DOCS_TOPOLOGY}` is above.\n\n"
        );
        for topology in TOPOLOGIES {
            text +=
                &format!("- `{}`: {}, {} ranks\n", topology.name, topology.about, topology.ranks);
        }
        text.push('\n');
        let others = TOPOLOGIES.iter().filter(|topology| topology.name != DOCS_TOPOLOGY);
        let rows = others.flat_map(|topology| {
            self.releases.iter().filter_map(move |release| {
                let verdict = self.verdict(release, topology.name, WORKLOADS[0].name)?;
                Some((vec![*release, topology.name], verdict))
            })
        });
        text += &self.table(&["releases", "topology"], rows, shown);
        text
    }

    /// A table of what `show` returns, by kind, without kinds that no row has. Releases with the
    /// same values share a row, and so do other names with the same releases and values.
    fn table<'b>(
        &self,
        heads: &[&str],
        rows: impl Iterator<Item = (Vec<&'b str>, &'b Verdict)>,
        show: impl Fn(Option<&Count>) -> String,
    ) -> String {
        let kinds = self.kinds();
        let mut merged: Vec<Merged<'_>> = Vec::new();
        for (names, verdict) in rows {
            let cells: Vec<String> =
                kinds.iter().map(|kind| show(verdict.kinds.get(*kind))).collect();
            let (release, names) = (names[0], names[1..].iter().map(|name| vec![*name]).collect());
            match merged.iter_mut().find(|row| row.names == names && row.cells == cells) {
                Some(row) => row.releases.push(release),
                None => merged.push(Merged { releases: vec![release], names, cells }),
            }
        }
        let is_shown = |at: &usize| merged.iter().any(|row| row.cells[*at] != NONE);
        let columns: Vec<usize> = (0..kinds.len()).filter(is_shown).collect();
        let titles = columns.iter().map(|at| kinds[*at]);
        let mut text = row(heads.iter().copied().chain(titles));
        text += &rule(heads.len() + columns.len());
        for row_of in with_shared_names(merged) {
            let names = row_of.names.iter().map(|names| names.join("; "));
            let cells = columns.iter().map(|at| row_of.cells[*at].clone());
            let releases = std::iter::once(self.named(&row_of.releases));
            let cells: Vec<String> = releases.chain(names).chain(cells).collect();
            text += &row(cells.iter().map(String::as_str));
        }
        text
    }

    fn open(&self) -> String {
        let mut found: BTreeMap<(&str, &str, &str), BTreeSet<usize>> = BTreeMap::new();
        for ((release, topology, _), verdict) in &self.verdicts {
            let at = self.releases.iter().position(|r| r == release).unwrap_or(0);
            for (kind, reason) in verdict.open.keys() {
                found.entry((kind, *topology, reason)).or_default().insert(at);
            }
        }
        let mut text = String::from("## What never stops\n\n");
        if found.is_empty() {
            return text + "No event: every event that started in these runs stopped.\n";
        }
        let mut shared: BTreeMap<(&str, &str, String), Vec<&str>> = BTreeMap::new();
        for ((kind, topology, reason), releases) in found {
            let names: Vec<&str> = releases.iter().map(|&at| self.releases[at]).collect();
            shared.entry((kind, reason, self.named(&names))).or_default().push(topology);
        }
        text += &row(["event", "topology", "why", "releases"]);
        text += &rule(4);
        for ((kind, reason, releases), topologies) in shared {
            text += &row([kind, &topologies.join(", "), reason, &releases]);
        }
        text
    }

    fn answers(&self) -> String {
        let mut text = String::from("## Questions that this page answers\n");
        for (question, answer) in self.questions() {
            text += &format!("\n**{question}** {answer}\n");
        }
        text
    }

    fn questions(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Which API version does a release use, given a plugin with all of them?", self.apis()),
            (
                "Do one device per process and one device per thread behave the same?",
                self.initialisation(),
            ),
            (
                "Does it matter how ranks found each other (MPI, a launcher, own sockets)?",
                "No. NCCL gets a unique id, a rank and a number of ranks.".into(),
            ),
            ("Do several tasks on a node change what is emitted?", self.several_tasks()),
            ("How often does NCCL call `init`?", self.inits()),
            ("When has a collective ended?", self.ends()),
            ("Whose times has a KernelCh?", KERNEL_TIMES.into()),
            ("Is every collective seen?", self.invisible()),
            ("What does a captured graph emit?", self.graph()),
            ("Does a split communicator have events of its own?", self.split()),
        ]
    }

    fn apis(&self) -> String {
        let mut by_api: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for release in &self.releases {
            by_api.entry(self.api(release)).or_default().push(release);
        }
        let parts = by_api.iter().map(|(api, of)| format!("v{api}: {}", self.named(of)));
        format!("The newest that it supports. {}.", parts.collect::<Vec<_>>().join("; "))
    }

    /// The kinds of events with the threads that started them.
    fn shape(&self, release: &str, topology: &str) -> Option<BTreeMap<&str, &BTreeSet<String>>> {
        let verdict = self.verdict(release, topology, WORKLOADS[0].name)?;
        Some(verdict.kinds.iter().map(|(kind, count)| (kind.as_str(), &count.threads)).collect())
    }

    fn initialisation(&self) -> String {
        let same = self.those(|release| {
            let threads = self.shape(release, "threads");
            threads.is_some()
                && ["shm", "p2p-ipc", "p2p-cumem"].iter().any(|t| self.shape(release, t) == threads)
        });
        let one_file = self.those(|release| {
            let verdict = self.verdict(release, "threads", WORKLOADS[0].name);
            verdict.is_some_and(|v| v.files == 1 && v.comms == 4)
        });
        format!(
            "Both emit the same kinds of events from the same kinds of threads, on one host: \
             {same}. With one device per thread one process has all the communicators, and NCCL \
             calls `init` once for each of them: {one_file}."
        )
    }

    fn several_tasks(&self) -> String {
        let same = self.those(|release| {
            let two = self.shape(release, "socket-shm");
            two.is_some() && two == self.shape(release, DOCS_TOPOLOGY)
        });
        format!(
            "Each task is a process with its own plugin and its own `init`. Two tasks on each of \
             two nodes emit the same kinds from the same threads as one on each: {same}."
        )
    }

    fn inits(&self) -> String {
        let once = self.those(|release| {
            TOPOLOGIES.iter().all(|topology| {
                let verdict = self.verdict(release, topology.name, WORKLOADS[0].name);
                verdict.is_some_and(|verdict| verdict.comms == u64::from(topology.ranks))
            })
        });
        format!("Once for each rank of each communicator, on every topology above: {once}.")
    }

    fn ends(&self) -> String {
        let late = self.those(|release| {
            WORKLOADS.iter().any(|workload| {
                let late = |kind| self.count(release, workload.name, kind).late > 0;
                late("ProxyOp") || late("KernelCh")
            })
        });
        format!(
            "Not when its Coll event stops: the stop means only that NCCL has enqueued it. \
             Children started after their operation had stopped on {late}. The collective ends \
             with the last ProxyOp, or with the last KernelCh if that does not stop early \
             ([probe.md](probe.md))."
        )
    }

    fn invisible(&self) -> String {
        let hidden = self.those(|r| self.count(r, "broadcast", "Coll").started == 0);
        format!(
            "Not always: an `ncclBroadcast` has no event below its API call on {hidden} (NCCL \
             keeps it in a separate queue there, which its profiler code does not traverse)."
        )
    }

    fn graph(&self) -> String {
        let replays = self.those(|r| self.count(r, "graph", "Coll").started == 6);
        let late = self.those(|r| {
            let coll = self.count(r, "graph", "Coll");
            coll.started != 0 && coll.late == coll.started
        });
        let callback = self.those(|r| self.count(r, "graph", "Coll").threads.contains("callback"));
        format!(
            "It emits the API events once, at capture, and Group and Coll, with their network and \
             kernel events, at each launch: {replays}. These come from the callback thread: \
             {callback}. The parent of such a Coll is the API call of the capture, which stopped \
             long before: {late}."
        )
    }

    fn split(&self) -> String {
        let own = self.those(|release| {
            let split = self.verdict(release, DOCS_TOPOLOGY, "split");
            let one = self.verdict(release, DOCS_TOPOLOGY, WORKLOADS[0].name);
            split.zip(one).is_some_and(|(split, one)| split.comms == 2 * one.comms)
        });
        format!(
            "Yes. NCCL calls `init` for it, with a context of its own, also if it shares its \
             parent's resources: {own}. Its events come from the threads of its parent."
        )
    }
}

/// Cell for events that are not emitted.
const NONE: &str = "–";

/// Number of started events as a cell.
fn shown(count: Option<&Count>) -> String {
    count.map_or_else(|| NONE.to_owned(), |count| count.started.to_string())
}

/// A row of a table that stands for several.
struct Merged<'a> {
    releases: Vec<&'a str>,
    /// The names of each column before the cells.
    names: Vec<Vec<&'a str>>,
    cells: Vec<String>,
}

/// Rows with the same releases and cells as one.
fn with_shared_names(rows: Vec<Merged<'_>>) -> Vec<Merged<'_>> {
    let mut shared: Vec<Merged<'_>> = Vec::new();
    for row in rows {
        let is_same =
            |other: &&mut Merged<'_>| other.releases == row.releases && other.cells == row.cells;
        let Some(same) = shared.iter_mut().find(is_same) else {
            shared.push(row);
            continue;
        };
        for (all, names) in same.names.iter_mut().zip(row.names) {
            let new = names.into_iter().filter(|name| !all.contains(name));
            all.extend(new.collect::<Vec<_>>());
        }
    }
    shared
}

fn join(roles: &BTreeSet<String>) -> String {
    if roles.is_empty() {
        return NONE.into();
    }
    roles.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn row<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

fn rule(columns: usize) -> String {
    format!("|{}\n", " --- |".repeat(columns))
}

/// The text with a capital first letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(char::to_uppercase).into_iter().flatten().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{plan, wheel};
    use super::*;

    fn measured() -> (Vec<Cell>, Vec<Outcome>) {
        let wheels = wheel::releases(&["2.28.9".into(), "2.30.7".into()]).expect("versions");
        let cells = plan::docs_cells(&wheels);
        let outcomes = cells.iter().map(|cell| {
            if cell.topology.is_refused() {
                let refused = Refused { said: "Duplicate GPU", is_recorded: false };
                return Outcome { seconds: 1.0, ended: Ended::Refused(refused) };
            }
            let threads = ["api".to_owned()].into();
            let coll = Count { started: 6, stopped: 6, late: 6, threads };
            let hidden = cell.wheel.label == "2.30.7"
                && cell.workload.is_some_and(|workload| workload.name == "broadcast");
            let kinds = if hidden { BTreeMap::new() } else { [("Coll".into(), coll)].into() };
            let order = [("api".to_owned(), vec!["+Coll".to_owned(), "-Coll".to_owned()])].into();
            let verdict =
                Verdict { files: 2, comms: 2, api_version: 5, kinds, order, ..Verdict::default() };
            Outcome { seconds: 1.0, ended: Ended::Checked(verdict) }
        });
        let outcomes = outcomes.collect();
        (cells, outcomes)
    }

    #[test]
    fn the_page_says_what_was_measured() {
        let (cells, outcomes) = measured();
        let page = Measured::new(&cells, &outcomes).page();
        assert!(
            page.contains("| releases | Coll |\n| --- | --- |\n| 2.28.9, 2.30.7 | api |\n"),
            "{page}"
        );
        assert!(page.contains("| 2.28.9, 2.30.7 | socket-shm; shm; "), "{page}");
        let graph = "; split; graph | socket; p2p-ipc; socket-shm; threads | api |\n";
        assert!(page.contains(graph), "{page}");
        assert!(page.contains("on every topology above: no release."), "{page}");
        assert!(page.contains("no event below its API call on 2.30.7 "), "{page}");
        assert!(page.contains("No event: every event"), "{page}");
        assert!(page.contains("v5: 2.28.9, 2.30.7."), "{page}");
        let refused = "| 1, n | 1, m | more than GPUs | `shared-1x1`, `shared-1xm`, ";
        assert!(page.contains(refused), "{page}");
        let works = "| n | m | 1 | `socket-threads` | all | works: 2 recordings, 2 calls of";
        assert!(page.contains(works), "{page}");
        assert!(page.contains("| api | 2.28.9, 2.30.7 | +Coll -Coll |\n"), "{page}");
    }

    #[test]
    fn sentences_begin_with_a_capital() {
        assert_eq!(sentence("one `x`"), "One `x`");
        let releases = vec!["1", "2", "3", "4", "6"];
        let none = Measured { releases, verdicts: BTreeMap::new(), refused: BTreeMap::new() };
        assert_eq!(none.named(&["1", "2", "3", "6"]), "1 to 3, 6");
        assert_eq!(none.named(&["1", "2", "4"]), "1, 2, 4");
        assert_eq!(row(["a", "b"]) + &rule(2), "| a | b |\n| --- | --- |\n");
    }
}
