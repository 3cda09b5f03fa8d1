// SPDX-License-Identifier: Apache-2.0
/*!
The matrix of links: the bandwidth of network transfers from each host to each other one.

The bandwidth of a link is its bytes divided by the time that they were on the network: the
bandwidth of one transfer, of which several are in flight at once. Rows of small transfers do not
count, because latency dominates their times. Hosts are put into bins, at most [`CELLS`] each way; a
cell shows its slowest link, so that one slow link is never averaged away.
*/

use crate::chart::{Figure, Legend, Plot, Swatch, Tick, count, legend, per_bin, px, short};
use crate::facts::Facts;
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human::three;
use ncclscope_operations::stats::{lower_median, to_f64};
use ncclscope_report::Report;
use ncclscope_report::schema::PeerRow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Maximum number of rows and of columns.
const CELLS: usize = 96;
/// Links with a smaller mean transfer size (bytes) show latency instead of bandwidth.
const LARGE: u64 = 64 << 10;
/// Lower bound of each colour, as a share of the median bandwidth.
const CLASSES: [f64; 5] = [0.0, 0.5, 0.75, 0.9, 1.1];
const LEFT: f64 = 140.0;
const TOP: f64 = 120.0;
/// The side of the matrix.
const SIDE: f64 = 480.0;

/// The slowest link of a cell.
#[derive(Clone, Debug)]
struct Cell<'a> {
    gbs: f64,
    hosts: [&'a str; 2],
    links: usize,
    from: u32,
    to: u32,
}

/// The bins of hosts, and the cells between them.
#[derive(Debug)]
struct Matrix<'a> {
    hosts: Vec<&'a str>,
    per_cell: usize,
    cells: BTreeMap<(usize, usize), Cell<'a>>,
    median: f64,
}

/// Bytes of a link's transfers and their time on the network, ns; `None` if that is unknown, or if
/// the transfers are small.
fn large(row: &PeerRow) -> Option<(u64, u64)> {
    let (bytes, ns) = (row.transfer_gbs.and(row.bytes)?, row.waits_ns.send_network?);
    (ns > 0 && bytes / row.transfers.max(1) >= LARGE).then_some((bytes, ns))
}

/// Bandwidth of a link's transfers, GB/s; `None` if they are not large.
pub(crate) fn gbs(row: &PeerRow) -> Option<f64> {
    row.transfer_gbs.filter(|_| large(row).is_some())
}

/// The bytes and times of large transfers, by sending and receiving rank.
fn by_ranks(peers: &[PeerRow]) -> BTreeMap<(u32, u32), (u64, u64)> {
    let mut links: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    for row in peers {
        let Some(((src, dst), (bytes, ns))) = row.src.zip(row.dst).zip(large(row)) else {
            continue;
        };
        let link = links.entry((src, dst)).or_default();
        *link = (link.0.saturating_add(bytes), link.1.saturating_add(ns));
    }
    links
}

pub(crate) fn section(report: &Report, facts: &Facts<'_>) -> Section {
    let body = match Matrix::of(report, facts) {
        Some(matrix) => draw(&matrix),
        None if report.peers.is_empty() => absent(
            "No network transfer was recorded: the ranks share one host, or the events ProxyOp and \
             ProxyStep were off.",
        ),
        None => absent(
            "No network transfer of 64 KiB or more has a known size and time: smaller ones show \
             latency rather than bandwidth.",
        ),
    };
    Section {
        id: "links",
        title: "Links between hosts",
        about: "Bytes by the time that they were on the network, as one transfer gets it: several \
                are in flight at once, so that this is not the throughput of a NIC. Transfers \
                below 64 KiB are left out: latency decides how long they take. A cell shows \
                its slowest link, and its colour compares it with the median of all.",
        body,
    }
}

impl<'a> Matrix<'a> {
    fn of(report: &Report, facts: &Facts<'a>) -> Option<Matrix<'a>> {
        let link = |(&(from, to), &(bytes, ns)): (&(u32, u32), &(u64, u64))| {
            let gbs = to_f64(bytes) / to_f64(ns);
            Some((facts.host(from)?, facts.host(to)?, from, to, gbs))
        };
        let links: Vec<_> = by_ranks(&report.peers).iter().filter_map(link).collect();
        let hosts: BTreeSet<&str> = links.iter().flat_map(|link| [link.0, link.1]).collect();
        let hosts: Vec<&str> = hosts.into_iter().collect();
        let median = lower_median(&mut links.iter().map(|link| link.4).collect::<Vec<f64>>())?;
        let per_cell = per_bin(hosts.len(), CELLS);
        let bin = |host: &str| hosts.binary_search(&host).unwrap_or(0) / per_cell;
        let mut cells: BTreeMap<(usize, usize), Cell<'a>> = BTreeMap::new();
        for (src, dst, from, to, gbs) in links {
            let new = Cell { gbs, hosts: [src, dst], links: 0, from, to };
            let cell = cells.entry((bin(src), bin(dst))).or_insert_with(|| new.clone());
            let links = cell.links + 1;
            if gbs < cell.gbs {
                *cell = new;
            }
            cell.links = links;
        }
        Some(Matrix { hosts, per_cell, cells, median })
    }

    fn bins(&self) -> usize {
        self.hosts.len().div_ceil(self.per_cell)
    }

    /// The names of the hosts in a bin.
    fn name(&self, bin: usize) -> String {
        let first = bin * self.per_cell;
        let last = (first + self.per_cell).min(self.hosts.len()) - 1;
        match first == last {
            true => self.hosts[first].to_owned(),
            false => format!("{} to {}", self.hosts[first], self.hosts[last]),
        }
    }

    fn class(&self, cell: &Cell<'_>) -> usize {
        let share = cell.gbs / self.median;
        CLASSES.iter().rposition(|from| share >= *from).unwrap_or(0)
    }
}

fn draw(matrix: &Matrix<'_>) -> Markup {
    let bins = matrix.bins();
    let side = (SIDE / count(bins)).min(36.0);
    let end = side * count(bins);
    let plot = Plot { left: LEFT, right: LEFT + end, top: TOP, bottom: TOP + end };
    let drawing = html! {
        rect.ground x=(px(plot.left)) y=(px(plot.top)) width=(px(end)) height=(px(end)) {}
        (labels(matrix, plot, side))
        @if bins <= 32 {
            @for (place, cell) in &matrix.cells { (titled(matrix, *place, cell, plot, side)) }
        } @else {
            @for class in 0..CLASSES.len() {
                path.(format!("l{class}")) d=(path(matrix, class, plot, side)) {}
            }
        }
    };
    let worst = matrix.cells.values().min_by(|a, b| a.gbs.total_cmp(&b.gbs));
    let mut description = format!(
        "{} hosts, {} pairs with traffic; the median of all links is {} GB/s.",
        matrix.hosts.len(),
        matrix.cells.len(),
        three(matrix.median)
    );
    if let Some(worst) = worst {
        let Cell { from, to, gbs, .. } = worst;
        description +=
            &format!(" The slowest link is from rank {from} to rank {to}: {} GB/s.", three(*gbs));
    }
    let figure = Figure {
        id: "matrix",
        title: "Bandwidth from host to host",
        description: &description,
        size: [(plot.right + 24.0).max(420.0), plot.bottom + 12.0],
    };
    html! {
        div.beside {
            (figure.draw(&drawing, &legend(&entries(matrix))))
            div { p { (description) } (slowest(matrix)) }
        }
    }
}

/// A host without its domain.
fn first_name(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

/// The names of hosts, far enough apart to be readable.
fn labels(matrix: &Matrix<'_>, plot: Plot, side: f64) -> Markup {
    let every = (14.0 / side).ceil().max(1.0);
    let marks: Vec<Tick> = (0..matrix.bins())
        .filter(|bin| count(*bin) % every == 0.0)
        .map(|bin| Tick {
            at: side * (count(bin) + 0.5),
            label: matrix.hosts[bin * matrix.per_cell].to_owned(),
        })
        .collect();
    html! {
        g.axis {
            text.unit x=(px(plot.left - 8.0)) y=(px(plot.top - 8.0)) text-anchor="end" {
                "from ↓  to →"
            }
            @for mark in &marks {
                @let (x, y) = (px(plot.left + mark.at + 4.0), px(plot.top - 8.0));
                text x=(px(plot.left - 8.0)) y=(px(plot.top + mark.at + 4.0)) text-anchor="end" {
                    (short(first_name(&mark.label), 19)) title { (mark.label) }
                }
                text x=(x) y=(y) transform=(format!("rotate(-60 {x} {y})")) {
                    (short(first_name(&mark.label), 17)) title { (mark.label) }
                }
            }
        }
    }
}

fn titled(
    matrix: &Matrix<'_>,
    (from, to): (usize, usize),
    cell: &Cell<'_>,
    plot: Plot,
    side: f64,
) -> Markup {
    let class = format!("l{}", matrix.class(cell));
    html! {
        rect.(class) x=(px(plot.left + side * count(to))) y=(px(plot.top + side * count(from)))
            width=(px(side - 1.0)) height=(px(side - 1.0)) {
            title { (say(matrix, (from, to), cell)) }
        }
        @if side >= 30.0 {
            text.value x=(px(plot.left + side * (count(to) + 0.5) - 0.5))
                y=(px(plot.top + side * (count(from) + 0.5) + 3.5)) text-anchor="middle" {
                (three(cell.gbs))
            }
        }
    }
}

fn say(matrix: &Matrix<'_>, (from, to): (usize, usize), cell: &Cell<'_>) -> String {
    format!(
        "{} to {}: {} GB/s, the slowest of {} links, from rank {} to rank {}",
        matrix.name(from),
        matrix.name(to),
        three(cell.gbs),
        cell.links,
        cell.from,
        cell.to
    )
}

/// The cells of one colour as a single path.
fn path(matrix: &Matrix<'_>, class: usize, plot: Plot, side: f64) -> String {
    let mut path = String::new();
    for ((from, to), cell) in &matrix.cells {
        if matrix.class(cell) == class {
            let (left, top) = (plot.left + side * count(*to), plot.top + side * count(*from));
            // Writing to a string cannot fail.
            let _ = write!(path, "M{} {}h{}v{}h-{2}z", px(left), px(top), px(side), px(side));
        }
    }
    path
}

/// The slowest links as text, for people who do not point at cells.
fn slowest(matrix: &Matrix<'_>) -> Markup {
    let mut cells: Vec<_> = matrix.cells.iter().collect();
    cells.sort_by(|a, b| a.1.gbs.total_cmp(&b.1.gbs));
    cells.truncate(8);
    html! {
        div.scroll tabindex="0" role="group" aria-label="Slowest pairs of hosts" {
            table {
                caption { "Slowest pairs of hosts" }
                thead { tr {
                    th scope="col" { "src host" } th scope="col" { "dst host" }
                    th.number scope="col" { "GB/s" } th.number scope="col" { "of the median" }
                } }
                tbody {
                    @for (_, cell) in cells {
                        tr {
                            td { (cell.hosts[0]) } td { (cell.hosts[1]) }
                            td.number { (three(cell.gbs)) }
                            td.number { (format!("{:.0} %", 100.0 * cell.gbs / matrix.median)) }
                        }
                    }
                }
            }
        }
    }
}

fn entries(matrix: &Matrix<'_>) -> Vec<Legend> {
    let gbs = |class: usize| three(CLASSES[class] * matrix.median);
    let entry = |class: usize| Legend {
        class: format!("l{class}"),
        swatch: Swatch::Area,
        label: match class {
            0 => format!("below {} GB/s (half of the median)", gbs(1)),
            _ if class + 1 == CLASSES.len() => format!("from {} GB/s", gbs(class)),
            _ => format!("{} to {}", gbs(class), gbs(class + 1)),
        },
        role: None,
    };
    (0..CLASSES.len()).map(entry).collect()
}
