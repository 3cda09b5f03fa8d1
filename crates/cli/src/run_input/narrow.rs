// SPDX-License-Identifier: Apache-2.0
/*!
Applies the filters of the command line to the recordings of a run, before their records are read.

Whatever recordings declare in their first pages is checked here: a filter that matches nothing is
an error that names what there is. Every output says what the filter left out.
*/

use crate::args::{Edge, FilterArgs};
use crate::run_input::input::Input;
use ncclscope_answer::Moment;
use ncclscope_console::failure::{Failure, tell};
use ncclscope_operations::filter::FUNCTIONS;
use ncclscope_operations::human::{count, list_of_ranges, range, ranges};
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Declared, Filter, Selection};
use ncclscope_trace::{MarkKind, Recording};
use ncclscope_views::Shown;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Maximum number of names that an error lists.
const LISTED: usize = 8;

/// Which recordings are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All recordings: the verb judges all ranks, or must know all of them.
    All,
    /// The recordings of the chosen ranks and hosts.
    Chosen,
    /// The chosen recordings that take part in the chosen communicators.
    Needed,
}

/// A filter that was applied.
#[derive(Debug, Default)]
pub(crate) struct Narrowed {
    pub(crate) filter: Filter,
    pub(crate) declared: Declared,
    /// For each recording of the run: true if it is of the chosen ranks and hosts. Empty if all
    /// are.
    chosen: Vec<bool>,
    /// The start of the run, ns since 1970.
    start_ns: u64,
    /// The filter chooses by time, which leaves out recordings whose clock is not known.
    needs_clock: bool,
    /// Description of the filter; `None` if none was given.
    pub(crate) note: Option<Note>,
}

/// The description of a filter for readers of filtered figures: `filter` in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Note {
    pub(crate) text: String,
    /// Number of recordings that match the filter.
    pub(crate) recordings: usize,
    /// Number of recordings of the run.
    pub(crate) of: usize,
}

impl Narrowed {
    /// Applies the filters to a run; `keep` says which of its recordings are kept.
    pub(crate) fn new(
        input: &mut Input,
        args: &FilterArgs,
        keep: Keep,
    ) -> Result<Narrowed, Failure> {
        if args.is_empty() {
            return Ok(Narrowed::default());
        }
        let all = &input.recordings;
        let mut declared = Declared::of(all);
        let start_ns = span(all).0;
        let filter = filter(args, all)?;
        exists(&filter, all, &declared)?;
        let has_comm = |recording: &Recording| {
            let selection = filter.of(recording, &declared);
            (0..recording.comms().len()).any(|at| selection.has_comm(Some(at)))
                || selection.has_comm(None)
        };
        let needs_clock = filter.window.is_some() && all.iter().any(Recording::has_clock);
        let chosen: Vec<bool> =
            all.iter().zip(&declared.ranks).map(|(one, ranks)| filter.has(one, ranks)).collect();
        let has_clock = |one: &Recording| !needs_clock || one.has_clock();
        let matching: Vec<bool> = all
            .iter()
            .zip(&chosen)
            .map(|(one, &has)| has && has_clock(one) && has_comm(one))
            .collect();
        let mut of_chosen = all.iter().zip(&chosen).filter(|(_, has)| **has).peekable();
        if of_chosen.peek().is_some() && !of_chosen.any(|(one, _)| has_clock(one)) {
            return Err(Failure::usage(
                "the clock of these recordings is not known, so that no time chooses from them",
            ));
        }
        let recordings = matching.iter().filter(|&&has| has).count();
        if recordings == 0 {
            return Err(Failure::usage(
                "no recording matches all filters at once, though each matches some",
            ));
        }
        let of = all.len();
        let text = format!("{}; {recordings} of {}", words(args, &filter), count(of, "recording"));
        let kept = match keep {
            Keep::All => vec![true; of],
            Keep::Chosen => chosen.clone(),
            Keep::Needed => matching,
        };
        retain(&mut input.recordings, &kept);
        retain(&mut declared.ranks, &kept);
        let note = Some(Note { text, recordings, of });
        Ok(Narrowed { filter, declared, chosen, start_ns, needs_clock, note })
    }

    /// True if the recording at this position in the run is of the chosen ranks and hosts.
    pub(crate) fn has(&self, at: usize) -> bool {
        self.chosen.get(at).copied().unwrap_or(true)
    }

    /// The filter's times since the start of the run, ns; `None`: no limit.
    pub(crate) fn since_start(&self) -> Option<(f64, f64)> {
        let since = |ns: u64| match ns {
            u64::MAX => f64::INFINITY,
            ns => to_f64(ns.saturating_sub(self.start_ns)),
        };
        self.filter.window.map(|(from, to)| (since(from), since(to)))
    }

    /// The selected part of a recording.
    pub(crate) fn of(&self, recording: &Recording) -> Selection {
        if self.needs_clock && !recording.has_clock() {
            let never = Some((u64::MAX, u64::MAX));
            return Filter { window: never, ..self.filter.clone() }.of(recording, &self.declared);
        }
        self.filter.of(recording, &self.declared)
    }

    pub(crate) fn shown<'a>(&'a self, recordings: &'a [Recording]) -> Shown<'a> {
        let filter = self.note.as_ref().map(|_| (&self.filter, &self.declared));
        Shown { recordings, filter }
    }

    /// True if a choice of ranks or hosts leaves out recordings of the run.
    pub(crate) fn is_part(&self) -> bool {
        self.note.as_ref().is_some_and(|note| self.declared.ranks.len() < note.of)
    }

    pub(crate) fn text(&self) -> Option<&str> {
        self.note.as_ref().map(|note| note.text.as_str())
    }
}

fn retain<T>(of: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    of.retain(|_| kept.next().copied().unwrap_or(false));
}

/// The filter for the arguments, without times, which need a run.
pub(crate) fn timeless(args: &FilterArgs) -> Filter {
    Filter {
        ranks: args.rank.clone(),
        hosts: args.host.clone(),
        comms: args.comm.clone(),
        roles: args.role.clone(),
        funcs: args.func.clone(),
        window: None,
        steps: args.steps,
        kinds: args.kinds(),
    }
}

/// The filter for the arguments, applied to these recordings.
fn filter(args: &FilterArgs, recordings: &[Recording]) -> Result<Filter, Failure> {
    let mut filter = timeless(args);
    if args.from.is_none() && args.until.is_none() {
        return Ok(filter);
    }
    let (start, end) = span(recordings);
    let at = |edge: Edge| match edge {
        Edge::At(ns) => ns,
        Edge::AfterStart(length) => start.saturating_add(ns(length)),
        Edge::BeforeEnd(length) => end.saturating_sub(ns(length)),
    };
    let window = (args.from.map_or(0, at), args.until.map_or(u64::MAX, at));
    if window.0 > window.1 {
        return Err(Failure::usage("--from is later than --until"));
    }
    if window.0 > end || window.1 < start {
        return Err(Failure::usage(format!(
            "nothing was recorded in that time: the run was recorded from {} to {} ({})",
            Moment::from_ns(start).exact(),
            Moment::from_ns(end).exact(),
            ncclscope_operations::human::duration(to_f64(end.saturating_sub(start)))
        )));
    }
    filter.window = Some(window);
    Ok(filter)
}

fn ns(length: std::time::Duration) -> u64 {
    to_u64(length.as_secs_f64() * 1e9)
}

/// The first and the last time of a run, ns since 1970, by the recordings whose clock is known.
fn span(recordings: &[Recording]) -> (u64, u64) {
    let start = |recording: &Recording| {
        let comms = recording.comms().iter().map(|comm| comm.ticks).min();
        let ticks = comms.unwrap_or_else(|| recording.first_ticks());
        recording.tick_map().realtime_ns(ticks)
    };
    let end = |recording: &Recording| recording.tick_map().realtime_ns(recording.last_ticks());
    let is_any_known = recordings.iter().any(Recording::has_clock);
    let known = || recordings.iter().filter(|one| !is_any_known || one.has_clock());
    (known().map(start).min().unwrap_or(0), known().map(end).max().unwrap_or(u64::MAX))
}

/// Checks that each filter matches something of the run.
fn exists(filter: &Filter, all: &[Recording], declared: &Declared) -> Result<(), Failure> {
    has_some_rank(filter, &declared.ranks.iter().flatten().copied().collect())?;
    // Not done otherwise, because a run may have thousands of communicators.
    let is_asked = !filter.comms.is_empty() || !filter.roles.is_empty();
    let comms = all.iter().filter(|_| is_asked).flat_map(Recording::comms).map(|comm| {
        let name = comm_name(comm);
        let role = declared.roles.get(&name).map_or("", String::as_str);
        (name, comm.name.as_deref(), role)
    });
    let known = Known {
        hosts: all.iter().map(|one| one.header().host.as_str()).collect(),
        comms: comms.collect(),
        funcs: all.iter().flat_map(Recording::strings).collect(),
        is_complete: true,
    };
    known.has_some(filter)?;
    let steps = || {
        let marks = all.iter().flat_map(Recording::marks);
        marks.filter(|mark| mark.what == MarkKind::Step).map(|mark| mark.value)
    };
    match (filter.steps, steps().min().zip(steps().max())) {
        (Some(_), None) => nothing(
            "no recording has training steps: the application reports them with set_step \
             (docs/python.md)"
                .into(),
        ),
        (Some((first, last)), Some((least, most))) if !(first <= most && least <= last) => {
            nothing(format!("no recording has these steps: the run has steps {least}-{most}"))
        }
        _ => Ok(()),
    }
}

/// The names in a run by which filters can choose.
#[derive(Debug, Default)]
pub(crate) struct Known<'a> {
    pub(crate) hosts: BTreeSet<&'a str>,
    /// Name, application's name, and role of each communicator.
    pub(crate) comms: BTreeSet<(String, Option<&'a str>, &'a str)>,
    /// Names of functions, among other strings.
    pub(crate) funcs: BTreeSet<&'a str>,
    /// The names are complete; otherwise a name that is missing may still exist.
    pub(crate) is_complete: bool,
}

impl Known<'_> {
    /// Checks that each filter matches one of these names.
    pub(crate) fn has_some(&self, filter: &Filter) -> Result<(), Failure> {
        let is_known = |is_empty: bool| self.is_complete || !is_empty;
        for pattern in filter.hosts.iter().filter(|_| is_known(self.hosts.is_empty())) {
            let one = Filter { hosts: vec![pattern.clone()], ..Filter::default() };
            if !self.hosts.iter().any(|host| one.has_host(host)) {
                let known = list(self.hosts.iter().copied());
                return nothing(format!("nothing is of host `{pattern}`: the hosts are {known}"));
            }
        }
        if is_known(self.comms.is_empty()) {
            self.has_some_comm(filter)?;
        }
        for func in filter.funcs.iter().filter(|_| is_known(self.funcs.is_empty())) {
            if !self.funcs.iter().any(|name| name.eq_ignore_ascii_case(func)) {
                let known = FUNCTIONS.into_iter().filter(|func| self.funcs.contains(func));
                let known = list(known);
                return nothing(format!("no operation is called `{func}`: the run has {known}"));
            }
        }
        Ok(())
    }

    fn has_some_comm(&self, filter: &Filter) -> Result<(), Failure> {
        let has = |one: Filter| {
            self.comms.iter().any(|(name, said, role)| one.has_comm(name, *said, role))
        };
        for text in &filter.comms {
            if !has(Filter { comms: vec![text.clone()], ..Filter::default() }) {
                let known = self.comms.iter().map(|(name, said, _)| match said {
                    Some(said) => format!("{name} ({said})"),
                    None => name.clone(),
                });
                let known: BTreeSet<String> = known.collect();
                let known = list(known.iter().map(String::as_str));
                return nothing(format!("no communicator is `{text}`: the run has {known}"));
            }
        }
        let known: BTreeSet<&str> =
            self.comms.iter().map(|&(.., role)| role).filter(|role| !role.is_empty()).collect();
        for text in filter.roles.iter().filter(|_| self.is_complete || !known.is_empty()) {
            if !has(Filter { roles: vec![text.clone()], ..Filter::default() }) {
                let known = list(known);
                return nothing(format!(
                    "no communicator has the role `{text}`: the roles are {known}"
                ));
            }
        }
        Ok(())
    }
}

fn nothing(message: String) -> Result<(), Failure> {
    Err(Failure::usage(message))
}

/// The first names of a list.
fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let shown = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        _ if names.is_empty() => "none".into(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Checks that each range of a filter of ranks matches some ranks of a run.
pub(crate) fn has_some_rank(filter: &Filter, ranks: &BTreeSet<u32>) -> Result<(), Failure> {
    let is_missing = |range: &&RangeInclusive<u32>| ranks.range((*range).clone()).next().is_none();
    match filter.ranks.iter().find(is_missing) {
        Some(missing) if !ranks.is_empty() => {
            let missing = range((*missing.start(), *missing.end()));
            let known = list_of_ranges(&ranges(ranks.iter().copied()), LISTED);
            nothing(format!("nothing is of rank {missing}: the run has ranks {known}"))
        }
        _ => Ok(()),
    }
}

/// Prints the filter of a table's rows on standard error, because the table has no place for it.
pub(crate) fn tell_filter(text: Option<&str>) {
    text.into_iter().for_each(|text| tell(format_args!("filter: {text}")));
}

/// The filter of a list of findings: `filter` in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct FindingsNote {
    pub(crate) text: String,
    pub(crate) shown: usize,
    /// Number of findings of the run.
    pub(crate) of: usize,
}

impl FindingsNote {
    /// The note for the arguments; `None` if there are none. `what` is what was judged.
    pub(crate) fn new(
        args: &FilterArgs,
        (shown, of): (usize, usize),
        what: &str,
    ) -> Option<FindingsNote> {
        if args.is_empty() {
            return None;
        }
        let words = words(args, &timeless(args));
        let findings = count(of, "finding");
        Some(FindingsNote {
            text: format!("{words}; {shown} of {findings} shown, {what}"),
            shown,
            of,
        })
    }
}

fn words(args: &FilterArgs, filter: &Filter) -> String {
    let mut words = Vec::new();
    let ranks: Vec<String> = args.rank.iter().map(|of| range((*of.start(), *of.end()))).collect();
    let is_one = matches!(&args.rank[..], [one] if one.start() == one.end());
    let mut add = |word: &str, of: &[String]| {
        if !of.is_empty() {
            words.push(format!("{word}{}", of.join(", ")));
        }
    };
    add(if is_one { "rank " } else { "ranks " }, &ranks);
    add("host ", &args.host);
    add("communicator ", &args.comm);
    add("role ", &args.role);
    add("", &args.func);
    add("events ", &args.events);
    if let Some((first, last)) = filter.steps {
        let steps = if first == last { "step" } else { "steps" };
        words.push(format!("{steps} {}", range_of(first, last)));
    }
    let edges = [("from", args.from), ("until", args.until)];
    let edges: Vec<String> = edges
        .into_iter()
        .filter_map(|(word, edge)| Some(format!("{word} {}", time(edge?))))
        .collect();
    if !edges.is_empty() {
        words.push(edges.join(" "));
    }
    words.join("; ")
}

/// A time as the user wrote it.
fn time(edge: Edge) -> String {
    let length = |of: std::time::Duration| ncclscope_operations::human::duration(to_f64(ns(of)));
    match edge {
        Edge::At(ns) => Moment::from_ns(ns).exact(),
        Edge::AfterStart(after) => format!("{} after the start", length(after)),
        Edge::BeforeEnd(before) => format!("{} before the end", length(before)),
    }
}

fn range_of(first: u64, last: u64) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
