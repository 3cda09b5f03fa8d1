// SPDX-License-Identifier: Apache-2.0
//! The view on ratatui's test backend.

use super::*;
use crate::picture::{Flag, FunctionRate, LinkRate, Operation};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

fn row(rank: u32) -> Row {
    Row {
        rank: Some(rank),
        host: format!("node-{}", rank / 8),
        device: Some(rank % 8),
        pid: Some(1_000 + rank),
        operations_per_s: 12.5,
        busbw_gbs: Some(100.0),
        waiting: Some(0.25),
        members: 1,
        ..Row::default()
    }
}

fn stalled(rank: u32) -> Row {
    let operation = Operation {
        func: "AllReduce".into(),
        role: "dp".into(),
        age_s: 4.0,
        ..Operation::default()
    };
    let why = "rank 1 has not called".into();
    Row { flags: vec![Flag::Stalled], why, operation: Some(operation), ..row(rank) }
}

fn picture(ranks: Vec<Row>) -> Picture {
    Picture { source: "run1".into(), at: "12:00:01".into(), ranks, ..Picture::default() }
}

/// The screen's lines, without the spaces at their ends.
fn shown(view: &mut View, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

/// The colour of the line that contains `text`, and whether it is bold.
fn look(view: &mut View, text: &str) -> (Color, bool) {
    let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..120).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let y = (0..24).find(|y| line(*y).contains(text)).expect(text);
    let cell = &buffer[(8, y)];
    (cell.fg, cell.modifier.contains(Modifier::BOLD))
}

fn view_of(ranks: Vec<Row>) -> View {
    let mut view = View::new(true);
    view.update(picture(ranks));
    view
}

#[test]
fn the_worst_rank_is_first_and_red() {
    let waits = Row { flags: vec![Flag::Waits], ..row(2) };
    let mut view = view_of(vec![row(0), stalled(1), waits, row(3)]);
    let lines = shown(&mut view, (120, 12));
    assert_eq!(lines[0], "run1  4 ranks on 1 host  1 STALLED  1 waits  12:00:01");
    assert!(lines[1].starts_with(" RANK STATE"), "{lines:#?}");
    for word in ["1 STALLED", "node-0", "1001", "AllReduce dp", "4.0 s", "12.5", "25%", "has not"] {
        assert!(lines[2].contains(word), "{word}: {lines:#?}");
    }
    assert!(lines[3].contains("waits") && lines[4].starts_with("    0 ok"), "{lines:#?}");
    assert_eq!(look(&mut view, "STALLED node"), (Color::Red, true));
    assert_eq!(look(&mut view, "waits   node"), (Color::Yellow, false));
    view.has_colour = false;
    assert_eq!(look(&mut view, "STALLED node"), (Color::Reset, true), "bold says it");
}

#[test]
fn keys_order_filter_and_select() {
    let mut view = view_of((0..16).map(row).collect());
    let first =
        |view: &mut View| shown(view, (100, 24))[2].split_whitespace().next().map(str::to_owned);
    assert_eq!(first(&mut view).as_deref(), Some("0"));
    view.press(Key::Char('r'));
    assert_eq!(first(&mut view).as_deref(), Some("15"));
    view.press(Key::Char('r'));
    for key in "/node-1".chars() {
        assert_eq!(view.press(Key::Char(key)), Step::Stay);
    }
    assert_eq!(shown(&mut view, (100, 24))[23], "/node-1_");
    assert_eq!((first(&mut view).as_deref(), view.rows.len()), (Some("8"), 8));
    view.press(Key::Char('q'));
    assert_eq!(view.rows.len(), 0, "q is part of the filter");
    view.press(Key::Backspace);
    view.press(Key::Enter);
    view.press(Key::Down);
    view.press(Key::Down);
    assert_eq!(view.selected.as_ref().unwrap().rank, Some(10));
    // The rows come in another order, and the same rank stays selected.
    let mut ranks: Vec<Row> = (0..16).map(row).collect();
    ranks[15] = stalled(15);
    view.update(picture(ranks));
    assert_eq!((view.selected.as_ref().unwrap().rank, view.at), (Some(10), 3));
    view.press(Key::Escape);
    assert_eq!(view.rows.len(), 16);
    view.press(Key::Char('<'));
    assert_eq!((view.order, view.rows[0].rank), (Column::Rank, Some(0)));
    assert_eq!(view.press(Key::Char('q')), Step::Quit);
    view.press(Key::Char('/'));
    assert_eq!(view.press(Key::Interrupt), Step::Quit, "also while a filter is typed");
}

#[test]
fn a_frozen_picture_stays_and_the_latest_follows() {
    let mut view = view_of(vec![row(0)]);
    view.press(Key::Char(' '));
    view.update(picture(vec![stalled(0)]));
    view.update(picture(vec![stalled(0), row(1)]));
    let lines = shown(&mut view, (100, 10));
    assert!(lines[0].contains("1 rank on 1 host  FROZEN"), "{lines:#?}");
    view.press(Key::Char(' '));
    assert!(shown(&mut view, (100, 10))[0].contains("2 ranks on 1 host  1 STALLED"));
}

#[test]
fn a_rank_has_a_pane_until_it_is_gone() {
    let mut one = stalled(3);
    one.functions =
        vec![FunctionRate { func: "AllReduce".into(), per_s: 5.0, ..Default::default() }];
    one.links = vec![LinkRate { peer: 4, direction: "send", gbs: 2.5, ..LinkRate::default() }];
    one.in_flight = one.operation.clone().into_iter().collect();
    one.facts = vec![("command".into(), "python train.py".into())];
    let mut view = view_of(vec![one, row(0)]);
    view.press(Key::Enter);
    let text = shown(&mut view, (100, 30)).join("\n");
    for part in [
        "rank 3",
        "command: python",
        "STALLED: rank 1 has",
        "AllReduce dp  for 4.0 s",
        "send 4",
        "2.50",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for _ in 0..99 {
        view.press(Key::Down);
    }
    let end = shown(&mut view, (100, 10)).join("\n");
    assert!(end.contains("send 4") && !end.contains("command"), "{end}");
    view.update(picture(vec![row(0)]));
    assert!(shown(&mut view, (100, 10)).join("\n").contains("not there any longer"));
    view.press(Key::Escape);
    view.press(Key::Char('?'));
    assert!(shown(&mut view, (100, 40)).join("\n").contains("space     freeze"));
}

#[test]
fn a_thousand_ranks_scroll_and_gather_by_host() {
    let mut view = view_of((0..1_024).map(row).collect());
    view.press(Key::End);
    let lines = shown(&mut view, (100, 24));
    assert!(lines[22].starts_with(" 1023"), "{lines:#?}");
    view.press(Key::PageUp);
    view.press(Key::Home);
    assert!(shown(&mut view, (100, 24))[2].starts_with("    0"));
    view.press(Key::Char('g'));
    assert_eq!(view.rows.len(), 128);
    assert!(shown(&mut view, (100, 24))[2].starts_with("   x8 ok"));
    view.press(Key::Down);
    view.press(Key::Enter);
    assert_eq!(view.rows.len(), 8, "not those of node-10");
    assert!(view.rows.iter().all(|row| row.host == "node-1"));
    assert!(shown(&mut view, (100, 24))[23].contains("host: node-1"));
    view.press(Key::Escape);
    assert_eq!(view.rows.len(), 1_024);
}

#[test]
fn any_size_of_a_screen_is_painted() {
    let mut view = view_of((0..40).map(stalled).collect());
    view.shown.findings = vec!["rank 1 has not called".into(); 3];
    for pane in [Pane::Table, Pane::Help, Pane::Detail(Identity::of(&row(3)))] {
        view.pane = pane;
        for width in [1, 9, 23, 24, 25, 60, 130] {
            for height in [1, 2, 4, 5, 6, 17, 18, 30] {
                shown(&mut view, (width, height));
            }
        }
    }
    view.pane = Pane::Table;
    view.shown.notes = vec!["a recording is damaged".into(); 3];
    assert!(shown(&mut view, (100, 5))[2].starts_with("    0"), "rows come before notes");
    view.shown.notes.clear();
    assert_eq!(shown(&mut view, (20, 3))[0], "40 ranks, 40 bad");
    let narrow = shown(&mut view, (40, 10));
    assert!(narrow[3].contains("STATE") && !narrow[3].contains("HOST"), "{narrow:#?}");
}

#[test]
fn without_ranks_it_says_what_to_do() {
    let mut view = View::new(true);
    assert_eq!(shown(&mut view, (60, 8))[1], "reading …");
    let notes = vec!["no rank records into run1".into()];
    view.update(Picture { notes, ..picture(vec![]) });
    assert_eq!(shown(&mut view, (60, 8))[1], "no rank records into run1");
    view.press(Key::Enter);
    view.press(Key::Down);
}
