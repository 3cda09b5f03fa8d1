// SPDX-License-Identifier: Apache-2.0
//! The parts of the page about layouts of tasks and GPUs, and about the order of the callbacks.

use super::{Measured, NONE, WORKLOADS, row, rule};

/// A way to place tasks: nodes, GPUs of a node, tasks of a node, and the topology that shows it, or
/// why there is none.
type Layout = (&'static str, &'static str, &'static str, Result<&'static str, &'static str>);

const LAYOUTS: &[Layout] = &[
    ("1", "m", "1", Ok("threads")),
    ("1", "m", "n < m", Ok("tasks-threads")),
    (
        "n",
        "1",
        "fewer than 1",
        Err("not possible: CUDA gives a task only the GPUs of its own node"),
    ),
    ("n", "m", "1", Ok("socket-threads")),
    ("n", "m", "n < m", Ok("socket-tasks-threads")),
    ("1", "m", "m", Ok("p2p-ipc")),
    ("n", "1", "1", Ok("socket")),
    ("n", "m", "m", Ok("socket-shm")),
    ("1", "1", "2", Ok("shared-1x1")),
    ("1", "m", "more than m", Ok("shared-1xm")),
    ("n", "1", "2", Ok("shared-nx1")),
    ("n", "m", "more than m", Ok("shared-nxm")),
];

impl Measured<'_> {
    pub(super) fn layouts(&self) -> String {
        let mut text = String::from(
            "## Nodes, tasks and GPUs\n\nA task is a process; one with several GPUs has a thread \
             for each. Here m is 2, except 4 in the rows with n < m tasks, and n is 2.\n\n",
        );
        text += &row(["nodes", "GPUs/node", "tasks/node", "topology", "releases", "what happens"]);
        text += &rule(6);
        let mut refused: Vec<((String, String), Vec<String>)> = Vec::new();
        for &(nodes, gpus, tasks, shown) in LAYOUTS {
            let name = match shown {
                Ok(name) => name,
                Err(why) => {
                    text += &row([nodes, gpus, tasks, NONE, NONE, why]);
                    continue;
                }
            };
            let is_refused = self.refused.keys().any(|(_, topology)| *topology == name);
            for (what, releases) in self.seen(name) {
                let topology = format!("`{name}`");
                if !is_refused {
                    text += &row([nodes, gpus, tasks, &topology, &releases, &what]);
                    continue;
                }
                let key = (releases, what);
                match refused.iter_mut().find(|(same, _)| *same == key) {
                    Some((_, topologies)) => topologies.push(topology),
                    None => refused.push((key, vec![topology])),
                }
            }
        }
        for ((releases, what), topologies) in refused {
            let topologies = topologies.join(", ");
            text += &row(["1, n", "1, m", "more than GPUs", &topologies, &releases, &what]);
        }
        text + "\nA task without a GPU is no rank. So one task on a node with one GPU needs a \
                second node.\n"
    }

    /// What happens on a topology, with the releases as text.
    fn seen(&self, topology: &str) -> Vec<(String, String)> {
        let mut seen: Vec<(String, Vec<&str>)> = Vec::new();
        for release in &self.releases {
            let Some(what) = self.what_happens(release, topology) else { continue };
            match seen.iter_mut().find(|(same, _)| *same == what) {
                Some((_, releases)) => releases.push(release),
                None => seen.push((what, vec![release])),
            }
        }
        let text = |releases: &[&str]| match releases.len() {
            all if all == self.releases.len() => "all".to_owned(),
            _ => self.named(releases),
        };
        seen.into_iter().map(|(what, releases)| (what, text(&releases))).collect()
    }

    fn what_happens(&self, release: &str, topology: &str) -> Option<String> {
        if let Some(how) = self.refused.get(&(release, topology)) {
            let when = match how.is_recorded {
                true => "after `init`: there are recordings",
                false => "before `init`: nothing is recorded",
            };
            let said = how.said;
            return Some(format!(
                "making the communicator fails with `ncclInvalidUsage` (`{said}`), {when}"
            ));
        }
        let verdict = self.verdict(release, topology, WORKLOADS[0].name)?;
        let network = match verdict.kinds.contains_key("ProxyOp") {
            true => "with ProxyOps",
            false => "no ProxyOp",
        };
        Some(format!(
            "works: {} recordings, {} calls of `init`, {network}",
            verdict.files, verdict.comms
        ))
    }

    pub(super) fn orders(&self) -> String {
        let topology = super::DOCS_TOPOLOGY;
        let mut text = format!(
            "## In which order\n\nOne `ncclAllReduce` on `{topology}`: for each thread, the first \
             start (+) and the first stop (-) of each kind. The communicator's `init` comes before \
             them. Threads do not wait for each other. KernelCh is left out: the GPU decides when \
             it starts and stops.\n\n"
        );
        text += &row(["thread", "releases", "order"]);
        text += &rule(3);
        let mut seen: Vec<(&str, &[String], Vec<&str>)> = Vec::new();
        for release in &self.releases {
            let verdict = self.verdict(release, topology, WORKLOADS[0].name);
            for (role, order) in verdict.iter().flat_map(|verdict| &verdict.order) {
                match seen.iter_mut().find(|(of, same, _)| of == role && same == order) {
                    Some((.., releases)) => releases.push(release),
                    None => seen.push((role, order, vec![release])),
                }
            }
        }
        seen.sort_by_key(|(role, ..)| *role);
        for (role, order, releases) in seen {
            text += &row([role, &self.named(&releases), &order.join(" ")]);
        }
        text
    }
}
