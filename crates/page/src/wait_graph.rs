// SPDX-License-Identifier: Apache-2.0
/*!
The wait graph of a hang: on the left the ranks at fault, then the operations in which ranks wait
for these ranks, then the operations in which ranks wait for ranks in the former operations, and so
on.

Operations with the same distance, role and function are one node, so that the picture of a job of
any size has a handful. Section "Tables" of the page lists the communicators one by one.
*/

use crate::chart::{Figure, count, px, short};
use crate::content::Content;
use crate::section::Section;
use maud::{Markup, html};
use ncclscope_answer::State;
use ncclscope_diagnose::{Diagnosis, Waiting};
use ncclscope_operations::human::if_one;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of columns; operations further away are in the last one.
const LAYERS: usize = 4;
/// Maximum number of nodes in a column.
const NODES: usize = 8;
const NODE: [f64; 2] = [236.0, 60.0];
const GAP: [f64; 2] = [64.0, 16.0];
const TOP: f64 = 34.0;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    lines: [String; 2],
    /// The node is at fault.
    is_root: bool,
}

/// The nodes by column, and the edges from waiting nodes to the awaited ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Graph {
    layers: Vec<Vec<Node>>,
    edges: BTreeSet<([usize; 2], [usize; 2])>,
}

pub(crate) fn section(content: Content<'_>) -> Option<Section> {
    let is_hung =
        matches!(content.answer.state, State::Crashed | State::Hung) && !content.waiting.is_empty();
    is_hung.then(|| Section {
        id: "wait-graph",
        title: "Who waits for whom",
        about: "Arrows lead from what waits to what it waits for. Operations with the same role \
                and function that are equally far from the cause are one box.",
        body: draw(&Graph::of(content.hang, content.waiting), content.hang),
    })
}

/// Distance of each communicator from the cause, from 1.
fn distances(waiting: &[Waiting], roots: &BTreeSet<u32>) -> Vec<usize> {
    let mut waits_in: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, one) in waiting.iter().enumerate() {
        one.ranks.iter().for_each(|&rank| waits_in.entry(rank).or_default().push(at));
    }
    let is_source = |rank: &u32| roots.contains(rank) || !waits_in.contains_key(rank);
    let is_first = |one: &Waiting| match one.absent.is_empty() {
        true => true,
        false => one.absent.iter().any(is_source),
    };
    let mut found: Vec<usize> = waiting.iter().map(|one| usize::from(is_first(one))).collect();
    // For each rank, the communicators whose members wait for it.
    let mut waited: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, one) in waiting.iter().enumerate() {
        one.absent.iter().for_each(|&rank| waited.entry(rank).or_default().push(at));
    }
    let mut front: Vec<usize> = (0..waiting.len()).filter(|&at| found[at] == 1).collect();
    for distance in 2.. {
        let mut next = Vec::new();
        for rank in front.iter().flat_map(|&at| &waiting[at].ranks) {
            // Each rank is followed only once.
            for at in waited.remove(rank).unwrap_or_default() {
                if found[at] == 0 {
                    found[at] = distance;
                    next.push(at);
                }
            }
        }
        if next.is_empty() {
            break;
        }
        front = next;
    }
    // A communicator that leads to no cause is in a cycle, or waits for something that the input
    // does not show.
    found.into_iter().map(|distance| distance.max(1)).collect()
}

impl Graph {
    fn of(hang: &Diagnosis, waiting: &[Waiting]) -> Graph {
        let roots: BTreeSet<u32> =
            hang.findings.iter().flat_map(|verdict| verdict.root_ranks.iter().copied()).collect();
        let distances = distances(waiting, &roots);
        let mut groups: BTreeMap<(usize, &str, &str), Vec<usize>> = BTreeMap::new();
        for (at, one) in waiting.iter().enumerate() {
            let layer = distances[at].min(LAYERS - 1);
            groups.entry((layer, &one.role, &one.func)).or_default().push(at);
        }
        let mut graph = Graph { layers: vec![root_nodes(&roots)], ..Graph::default() };
        let mut place: Vec<[usize; 2]> = vec![[0, 0]; waiting.len()];
        for layer in 1..LAYERS {
            let mut of: Vec<(&str, Vec<usize>)> = groups
                .iter()
                .filter(|((at, ..), _)| *at == layer)
                .map(|((_, _, func), members)| (*func, members.clone()))
                .collect();
            of.sort_by_key(|(_, members)| Reverse(ranks(waiting, members).len()));
            let mut nodes = Vec::new();
            for (at, (func, members)) in of.iter().enumerate() {
                let at = at.min(NODES - 1);
                members.iter().for_each(|&member| place[member] = [layer, at]);
                if nodes.len() == at {
                    nodes.push(node(waiting, func, members));
                }
            }
            if of.len() > NODES {
                nodes[NODES - 1] = further(waiting, &of[NODES - 1..]);
            }
            graph.layers.push(nodes);
        }
        graph.layers.retain(|nodes| !nodes.is_empty());
        graph.connect(waiting, &roots, &place);
        graph
    }

    fn connect(&mut self, waiting: &[Waiting], roots: &BTreeSet<u32>, place: &[[usize; 2]]) {
        let mut waits_in: HashMap<u32, BTreeSet<[usize; 2]>> = HashMap::new();
        for (one, &at) in waiting.iter().zip(place) {
            one.ranks.iter().for_each(|&rank| {
                waits_in.entry(rank).or_default().insert(at);
            });
        }
        let roots: Vec<u32> = roots.iter().copied().collect();
        let last = self.layers[0].len().saturating_sub(1);
        let root_at = |rank: &u32| roots.binary_search(rank).ok().map(|at| [0, at.min(last)]);
        for (one, &from) in waiting.iter().zip(place) {
            // If all members are in an operation that does not end, its cause is among those
            // members.
            let causes = if one.absent.is_empty() { &one.ranks } else { &one.absent };
            self.edges.extend(causes.iter().filter_map(root_at).map(|to| (from, to)));
            let others = one.absent.iter().filter_map(|rank| waits_in.get(rank)).flatten();
            let nearer = others.filter(|to| to[0] < from[0]).map(|&to| (from, to));
            self.edges.extend(nearer);
        }
    }

    /// The middle of a node's left side.
    fn place(&self, [layer, at]: [usize; 2]) -> [f64; 2] {
        let tallest = self.layers.iter().map(Vec::len).max().unwrap_or(1);
        let height = |nodes: usize| count(nodes) * (NODE[1] + GAP[1]) - GAP[1];
        let free = height(tallest) - height(self.layers[layer].len());
        let x = 4.0 + count(layer) * (NODE[0] + GAP[0]);
        [x, TOP + free / 2.0 + count(at) * (NODE[1] + GAP[1]) + NODE[1] / 2.0]
    }

    fn size(&self) -> [f64; 2] {
        let tallest = self.layers.iter().map(Vec::len).max().unwrap_or(1);
        let columns = count(self.layers.len());
        [
            columns * (NODE[0] + GAP[0]) - GAP[0] + 8.0,
            TOP + count(tallest) * (NODE[1] + GAP[1]) + 4.0,
        ]
    }
}

fn root_nodes(roots: &BTreeSet<u32>) -> Vec<Node> {
    let node = |first: String, second: &str| Node { lines: [first, second.into()], is_root: true };
    let mut nodes: Vec<Node> =
        roots.iter().take(NODES).map(|rank| node(format!("rank {rank}"), "at fault")).collect();
    if roots.len() > NODES {
        let more = roots.len() - NODES + 1;
        nodes[NODES - 1] = node(format!("{more} further ranks"), "at fault");
    }
    if nodes.is_empty() {
        nodes.push(node("an unknown rank".into(), "at fault"));
    }
    nodes
}

fn ranks(waiting: &[Waiting], members: &[usize]) -> BTreeSet<u32> {
    members.iter().flat_map(|&at| waiting[at].ranks.iter().copied()).collect()
}

fn node(waiting: &[Waiting], func: &str, members: &[usize]) -> Node {
    let first = &waiting[members[0]];
    let name = match (&*first.role, members.len()) {
        ("", 1) => &*first.comm,
        ("", _) => "communicators",
        (role, _) => role,
    };
    let who = words(ranks(waiting, members).len(), "rank waits", "ranks wait");
    let place = match members.len() {
        1 => format!("{who} in operation {}", first.number),
        comms => format!("{who} in {comms} communicators"),
    };
    let func = if func.is_empty() { "operation" } else { func };
    Node { lines: [format!("{name} · {func}"), place], is_root: false }
}

fn further(waiting: &[Waiting], groups: &[(&str, Vec<usize>)]) -> Node {
    let members: Vec<usize> = groups.iter().flat_map(|(_, members)| members.clone()).collect();
    let who = words(ranks(waiting, &members).len(), "rank waits", "ranks wait");
    Node { lines: [format!("{} further kinds", groups.len()), who], is_root: false }
}

fn words(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if_one(n, one, many))
}

fn draw(graph: &Graph, hang: &Diagnosis) -> Markup {
    let titles = ["at fault", "waits for these", "waits for those", "waits further"];
    let drawing = html! {
        defs {
            marker #arrow viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
                orient="auto" { path.tip d="M0 0 L8 4 L0 8 z" {} }
        }
        @for (layer, title) in titles.iter().enumerate().take(graph.layers.len()) {
            text.unit x=(px(graph.place([layer, 0])[0])) y="14" { (title) }
        }
        @for (from, to) in &graph.edges { (edge(graph, *from, *to)) }
        @for (layer, nodes) in graph.layers.iter().enumerate() {
            @for (at, node) in nodes.iter().enumerate() { (boxed(graph, [layer, at], node)) }
        }
    };
    let described: Vec<String> =
        graph.layers.iter().flatten().map(|node| node.lines.join(": ")).take(16).collect();
    let description = format!(
        "{}. From the cause outwards: {}.",
        words(hang.waiting_ranks, "rank waits", "ranks wait"),
        described.join("; ")
    );
    let figure = Figure {
        id: "waits-for",
        title: "The wait graph",
        description: &description,
        size: graph.size(),
    };
    let below = html! {
        p.note { "The table " a href="#table-waits" { "Waits" } " has each communicator." }
    };
    figure.draw(&drawing, &below)
}

fn boxed(graph: &Graph, at: [usize; 2], node: &Node) -> Markup {
    let [x, y] = graph.place(at);
    html! {
        g.node.root[node.is_root] {
            title { (node.lines.join(": ")) }
            rect x=(px(x)) y=(px(y - NODE[1] / 2.0)) width=(px(NODE[0])) height=(px(NODE[1]))
                rx="6" {}
            text.strong x=(px(x + 12.0)) y=(px(y - 5.0)) { (short(&node.lines[0], 27)) }
            text x=(px(x + 12.0)) y=(px(y + 15.0)) { (short(&node.lines[1], 32)) }
        }
    }
}

fn edge(graph: &Graph, from: [usize; 2], to: [usize; 2]) -> Markup {
    let ([x1, y1], [x2, y2]) = (graph.place(from), graph.place(to));
    let x2 = x2 + NODE[0] + 2.0;
    let bend = (x1 - x2) / 2.0;
    let d = format!(
        "M{} {}C{} {} {} {} {} {}",
        px(x1),
        px(y1),
        px(x1 - bend),
        px(y1),
        px(x2 + bend),
        px(y2),
        px(x2),
        px(y2)
    );
    html! { path.edge d=(d) marker-end="url(#arrow)" {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(role: &str, ranks: &[u32], absent: &[u32]) -> Waiting {
        Waiting {
            comm: format!("{role}-{}", ranks[0]),
            role: role.into(),
            func: "AllReduce".into(),
            number: 7,
            ranks: ranks.into(),
            absent: absent.into(),
        }
    }

    fn hang(roots: &[u32]) -> Diagnosis {
        let class = ncclscope_findings::FindingClass::HostStuck;
        let verdict = ncclscope_findings::Finding::new(class, roots.into());
        Diagnosis {
            schema: "",
            source: String::new(),
            ranks: 4,
            job_ranks: 4,
            findings: vec![verdict],
            silent_ranks: Vec::new(),
            waiting_ranks: 3,
            notes: Vec::new(),
            hidden: None,
            standstill: None,
            ending: None,
        }
    }

    #[test]
    fn operations_stand_as_far_from_the_cause_as_their_waits() {
        // Rank 3 never came; rank 2 waits for it; ranks 0 and 1 wait for rank 2 in two
        // communicators.
        let waits =
            [waiting("tp", &[2], &[3]), waiting("dp", &[0], &[2]), waiting("dp", &[1], &[2])];
        let graph = Graph::of(&hang(&[3]), &waits);
        let lines: Vec<Vec<String>> = graph
            .layers
            .iter()
            .map(|nodes| nodes.iter().map(|node| node.lines.join(": ")).collect())
            .collect();
        let expected = [
            ["rank 3: at fault"],
            ["tp · AllReduce: 1 rank waits in operation 7"],
            ["dp · AllReduce: 2 ranks wait in 2 communicators"],
        ];
        assert_eq!(lines, expected);
        let edges: Vec<_> = graph.edges.into_iter().collect();
        assert_eq!(edges, [([1, 0], [0, 0]), ([2, 0], [1, 0])]);
    }

    #[test]
    fn an_operation_that_does_not_end_leads_to_the_members_at_fault_and_circles_end() {
        let graph = Graph::of(&hang(&[1]), &[waiting("tp", &[0, 1], &[])]);
        assert_eq!(graph.edges.into_iter().collect::<Vec<_>>(), [([1, 0], [0, 0])]);
        let circle = [waiting("a", &[0], &[1]), waiting("b", &[1], &[0])];
        let graph = Graph::of(&hang(&[]), &circle);
        assert_eq!((graph.layers.len(), graph.layers[1].len(), graph.edges.len()), (2, 2, 0));
    }

    #[test]
    fn many_kinds_and_many_roots_are_folded() {
        let waits: Vec<Waiting> =
            (0..40).map(|n| waiting(&format!("role{n}"), &[n], &[100])).collect();
        let roots: Vec<u32> = (100..200).collect();
        let graph = Graph::of(&hang(&roots), &waits);
        assert_eq!(graph.layers.iter().map(Vec::len).collect::<Vec<_>>(), [NODES, NODES]);
        assert_eq!(graph.layers[0][NODES - 1].lines[0], "93 further ranks");
        assert_eq!(graph.layers[1][NODES - 1].lines, ["33 further kinds", "33 ranks wait"]);
    }
}
