// SPDX-License-Identifier: Apache-2.0
//! Paints the view. Without colours, the state's word and bold or reversed text show the same.

use super::columns::{Column, cell, fitting};
use super::{Pane, View, detail, help};
use crate::picture::{FunctionRate, Row, Severity};
use crate::units::{gigabytes, rate};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Wrap};

/// Minimum screen size that shows a table.
const LEAST: (u16, u16) = (24, 5);
/// Minimum number of screen lines for showing functions.
const ROOM_FOR_FUNCTIONS: u16 = 18;
/// Maximum number of functions and of verdicts above the table.
const FUNCTIONS: usize = 4;
const VERDICTS: usize = 2;
const NOTES: usize = 2;
/// Screen lines of the table that come before verdicts and notes: its head and two rows.
const TABLE: u16 = 3;

/// Paints the view on the whole frame.
pub fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let worst = view.shown.ranks.iter().filter(|row| row.is_bad()).count();
        let text = format!("{} ranks, {worst} bad", view.shown.ranks.len());
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let mut rest = Screen { frame, area };
    rest.line(head(view), view.style(None).add_modifier(Modifier::BOLD));
    let foot = Rect { y: rest.area.bottom() - 1, height: 1, ..rest.area };
    rest.frame.render_widget(Paragraph::new(hints(view)), foot);
    rest.area.height -= 1;
    match view.pane.clone() {
        Pane::Table => table(&mut rest, view),
        Pane::Help => lines(&mut rest, view, help::LINES.map(str::to_owned).to_vec()),
        Pane::Detail(_) => details(&mut rest, view),
    }
}

/// The unused part of the screen.
struct Screen<'a, 'b> {
    frame: &'a mut Frame<'b>,
    area: Rect,
}

impl Screen<'_, '_> {
    /// Takes `height` lines from the top.
    fn take(&mut self, height: u16) -> Rect {
        let height = height.min(self.area.height);
        let top = Rect { height, ..self.area };
        self.area.y += height;
        self.area.height -= height;
        top
    }

    fn line(&mut self, text: String, style: Style) {
        let top = self.take(1);
        self.frame.render_widget(Paragraph::new(text).style(style), top);
    }
}

impl View {
    fn style(&self, severity: Option<Severity>) -> Style {
        let style = Style::new();
        match (severity, self.has_colour) {
            (None, _) => style,
            (Some(Severity::Bad), true) => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            (Some(Severity::Bad), false) => style.add_modifier(Modifier::BOLD),
            (Some(Severity::Warning), true) => style.fg(Color::Yellow),
            (Some(Severity::Over), true) => style.fg(Color::DarkGray),
            (Some(Severity::Warning | Severity::Over), false) => style,
        }
    }
}

/// The first line: the source, and the states of the ranks.
fn head(view: &View) -> String {
    let picture = &view.shown;
    let hosts: std::collections::BTreeSet<&str> =
        picture.ranks.iter().map(|row| row.host.as_str()).collect();
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let ranks = count(picture.ranks.len(), "rank");
    let mut text = format!("{}  {ranks} on {}", picture.source, count(hosts.len(), "host"));
    let mut flags: Vec<_> = picture.ranks.iter().filter_map(Row::flag).collect();
    flags.sort_unstable();
    for same in flags.chunk_by(|a, b| a == b) {
        if let Some(flag) = same.first() {
            text += &format!("  {} {}", same.len(), flag.word());
        }
    }
    if view.is_frozen {
        text += "  FROZEN";
    }
    format!("{text}  {}", picture.at)
}

/// The last line: the filter being typed, or the keys.
fn hints(view: &View) -> String {
    if view.is_typing {
        return format!("/{}_", view.filter);
    }
    let mut text = match view.pane {
        Pane::Table => "q quit  ? help  / filter  > < order  enter details  space freeze",
        _ => "q quit  esc back  up/down scroll",
    }
    .to_owned();
    if view.pane == Pane::Table {
        let reversed = if view.is_reversed { ", reversed" } else { "" };
        let order = format!("order: {}{reversed}", view.order.title());
        let host = view.of_host.as_ref().map(|(_, host)| format!("  host: {host}"));
        let host = host.unwrap_or_default();
        let filter = &view.filter;
        let filter = if filter.is_empty() { String::new() } else { format!("  filter: {filter}") };
        text = format!("{order}{host}{filter}  {text}");
    }
    text
}

fn table(rest: &mut Screen<'_, '_>, view: &mut View) {
    let room = |rest: &Screen<'_, '_>| usize::from(rest.area.height.saturating_sub(TABLE));
    for verdict in view.shown.findings.iter().take(VERDICTS.min(room(rest))) {
        let bad = view.style(Some(Severity::Bad));
        rest.line(verdict.clone(), bad);
    }
    if view.shown.ranks.is_empty() {
        let notes = view.shown.notes.join("\n");
        let waits = "reading …".to_owned();
        let text = if notes.is_empty() { waits } else { notes };
        rest.frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), rest.area);
        return;
    }
    for note in view.shown.notes.iter().take(NOTES.min(room(rest))) {
        rest.line(note.clone(), Style::new());
    }
    let has_jobs = view.shown.ranks.iter().any(|row| row.job != view.shown.ranks[0].job);
    if rest.frame.area().height >= ROOM_FOR_FUNCTIONS {
        functions(rest, &view.shown.functions, has_jobs);
    }
    view.height = usize::from(rest.area.height.saturating_sub(1)).max(1);
    let last_first = view.rows.len().saturating_sub(view.height);
    let least = (view.at + 1).saturating_sub(view.height);
    view.first = view.first.clamp(least.min(view.at), view.at).min(last_first);
    let end = (view.first + view.height).min(view.rows.len());
    let columns = fitting(&view.rows, rest.area.width, has_jobs);
    let title = |(column, _): &(Column, u16)| {
        let mark = if *column == view.order { Modifier::UNDERLINED } else { Modifier::empty() };
        let style = Style::new().add_modifier(Modifier::BOLD | mark);
        align(*column, column.title().to_owned()).style(style)
    };
    let head = TableRow::new(columns.iter().map(title));
    let shown = view.rows.get(view.first..end).unwrap_or(&[]);
    let rows = shown.iter().zip(view.first..).map(|(row, at)| {
        let cells = columns.iter().map(|(column, _)| align(*column, cell(row, *column)));
        let style = view.style(row.flag().map(|flag| flag.severity()));
        let is_selected = at == view.at;
        let mark = if is_selected { Modifier::REVERSED } else { Modifier::empty() };
        TableRow::new(cells).style(style.add_modifier(mark))
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths).header(head).column_spacing(1);
    rest.frame.render_widget(table, rest.area);
}

fn align(column: Column, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(Text::from(if column.is_number() { line.right_aligned() } else { line }))
}

/// The functions with the most bytes; with their job if there are several.
fn functions(rest: &mut Screen<'_, '_>, functions: &[FunctionRate], has_jobs: bool) {
    for of in functions.iter().take(FUNCTIONS) {
        let bus = of.busbw_gbs.map_or_else(|| "-".into(), |gbs| gigabytes(gbs * 1e9));
        let (func, comm) = (&of.func, &of.role);
        let (per_s, io) = (rate(of.per_s), gigabytes(of.io_gbs * 1e9));
        let job = if has_jobs { format!("  {}", of.job) } else { String::new() };
        let rates = format!("{per_s:>7} op/s  {io:>7} GB/s  bus {bus:>7} GB/s");
        let text = format!("{func:14} {comm:12} {rates}{job}");
        rest.line(text, Style::new());
    }
    if !functions.is_empty() {
        rest.line(String::new(), Style::new());
    }
}

fn details(rest: &mut Screen<'_, '_>, view: &mut View) {
    let Some(row) = view.detailed() else {
        rest.line("this process is not there any longer: Esc leads back".into(), Style::new());
        return;
    };
    let title = row.rank.map_or_else(|| "process".into(), |rank| format!("rank {rank}"));
    let style = view.style(row.flag().map(|flag| flag.severity()));
    let text = detail::lines(row);
    rest.line(title, style.add_modifier(Modifier::BOLD));
    lines(rest, view, text);
}

/// Lines that can be scrolled.
fn lines(rest: &mut Screen<'_, '_>, view: &mut View, lines: Vec<String>) {
    view.height = usize::from(rest.area.height).max(1);
    view.line = view.line.min(lines.len().saturating_sub(view.height));
    let shown: Vec<Line<'_>> =
        lines.into_iter().skip(view.line).take(view.height).map(Line::from).collect();
    rest.frame.render_widget(Paragraph::new(shown), rest.area);
}
