// SPDX-License-Identifier: Apache-2.0
/*!
The view on a real terminal, whose settings are restored when the view ends: on quitting, on an
error, on a panic, on SIGTERM, SIGINT and SIGHUP, and while it is suspended. A signal also ends a
view whose terminal takes no output: one that is stopped, or that nothing reads.
*/

use super::watch::{Watch, printable};
use crate::io::terminal::has_colour;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, terminal};
use ncclscope_console::failure::{Failure, hold, release};
use ncclscope_top::{Key, Picture, Step, View, draw};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, IsTerminal, Stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Maximum delay of a key, a picture or a signal.
const TICK: Duration = Duration::from_millis(50);

/// How long a signal waits for a view that is blocked in writing; `TICKS` is how often pending
/// output is then discarded, so that the view can restore the terminal.
const STUCK: Duration = Duration::from_millis(400);
const TICKS: u32 = 6;

/// The terminal is in raw mode with the alternate screen.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// The terminal is in its original state.
static HAS_LEFT: AtomicBool = AtomicBool::new(true);

/// The reason why the view cannot be shown; `None` if standard output is a suitable terminal.
pub(super) fn obstacle() -> Option<&'static str> {
    let term = std::env::var("TERM").unwrap_or_default();
    if !io::stdout().is_terminal() {
        Some("standard output is no terminal")
    } else if !io::stdin().is_terminal() {
        Some("standard input is no terminal")
    } else if term.is_empty() || term == "dumb" {
        Some("the terminal (TERM) cannot move its cursor")
    } else {
        None
    }
}

/// Shows the view until the user quits.
pub(super) fn show(watch: Watch, interval: Duration) -> Result<ExitCode, Failure> {
    on_terminal(|terminal, signals| {
        let pictures = read(watch, interval);
        serve(terminal, &mut View::new(has_colour()), &pictures, signals)
    })?;
    Ok(ExitCode::SUCCESS)
}

type Screen = Terminal<CrosstermBackend<Stdout>>;

/// Runs the view while the terminal is in raw mode.
fn on_terminal(
    work: impl FnOnce(&mut Screen, &mut Signals) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cannot = |what: &'static str| {
        move |error: io::Error| Failure::environment(format!("cannot {what}: {error}"))
    };
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGCONT])
        .map_err(cannot("handle signals"))?;
    let ends = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(cannot("handle signals"))?;
    std::thread::spawn(move || end_if_stuck(ends));
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        before(panic);
    }));
    let _guard = Guard;
    enter().map_err(cannot("use the terminal"))?;
    let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
    let mut terminal = terminal.map_err(cannot("use the terminal"))?;
    work(&mut terminal, &mut signals)
}

/// Ends the program after a signal that the view does not see because it is blocked in writing to
/// the terminal.
#[expect(clippy::exit, reason = "the thread that would return is stuck in a write")]
fn end_if_stuck(mut signals: Signals) {
    if signals.forever().next().is_none() {
        return;
    }
    std::thread::sleep(STUCK);
    // Discards the pending output, after which the view may see the signal and restore the terminal
    // itself.
    for _ in 0..TICKS {
        if HAS_LEFT.load(Ordering::SeqCst) {
            return;
        }
        let _ = tcflush(io::stdout(), QueueSelector::OFlush);
        std::thread::sleep(TICK);
    }
    let _ = terminal::disable_raw_mode();
    std::process::exit(0);
}

/// Reads on its own thread, so that a slow disk or agent delays no key.
fn read(mut watch: Watch, interval: Duration) -> Receiver<Result<Picture, Failure>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        loop {
            let begun = Instant::now();
            let picture = watch.look().map(|picture| picture.printable(printable));
            let is_over = picture.is_err();
            if sender.send(picture).is_err() || is_over {
                return;
            }
            std::thread::sleep(interval.saturating_sub(begun.elapsed()));
        }
    });
    receiver
}

fn serve(
    terminal: &mut Screen,
    view: &mut View,
    pictures: &Receiver<Result<Picture, Failure>>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let gone = |error: io::Error| Failure::environment(format!("the terminal is gone: {error}"));
    let mut is_new = true;
    loop {
        if is_new {
            terminal.draw(|frame| draw(frame, view)).map_err(gone)?;
        }
        is_new = false;
        if !is_there(TICK).map_err(gone)? {
            return Err(gone(io::ErrorKind::UnexpectedEof.into()));
        }
        if event::poll(Duration::ZERO).map_err(gone)? {
            is_new = true;
            match event::read().map_err(gone)? {
                Event::Key(key) if is_suspend(key) => suspend(terminal).map_err(gone)?,
                Event::Key(key) if is_quit(key, view) => return Ok(()),
                _ => {}
            }
        }
        match pictures.try_recv() {
            Ok(picture) => {
                view.update(picture?);
                is_new = true;
            }
            Err(TryRecvError::Empty) => {}
            // The panic of the thread has printed the reason.
            Err(TryRecvError::Disconnected) => {
                return Err(Failure::environment("the thread that reads has ended"));
            }
        }
        for signal in signals.pending() {
            match signal {
                SIGTSTP => suspend(terminal).map_err(gone)?,
                // The process was stopped by SIGSTOP, during which the shell had the terminal.
                SIGCONT => resume(terminal).map_err(gone)?,
                _ => return Ok(()),
            }
            is_new = true;
        }
    }
}

/// Waits for a key, at most for `wait`. False if the terminal is gone, of which crossterm would
/// read the end forever.
fn is_there(wait: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
    let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
    match poll(&mut keys, Some(&wait)) {
        Ok(_) => Ok(!keys[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Restores the terminal, stops the process, and takes the terminal again when the shell continues
/// it.
fn suspend(terminal: &mut Screen) -> io::Result<()> {
    leave();
    emulate_default_handler(SIGTSTP)?;
    resume(terminal)
}

fn resume(terminal: &mut Screen) -> io::Result<()> {
    // Only the first call stores the original state.
    leave();
    enter()?;
    terminal.clear()
}

fn enter() -> io::Result<()> {
    HAS_LEFT.store(false, Ordering::SeqCst);
    IS_OURS.store(true, Ordering::SeqCst);
    // Warnings about recordings would be printed across the view.
    hold();
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)
}

/// Restores the terminal; a failure is ignored.
fn leave() {
    if IS_OURS.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
        HAS_LEFT.store(true, Ordering::SeqCst);
        release();
    }
}

/// Restores the terminal when it is dropped.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        leave();
    }
}

/// Passes a key to the view; true if the user quits with it.
fn is_quit(key: KeyEvent, view: &mut View) -> bool {
    let is_pressed = key.kind != KeyEventKind::Release;
    is_pressed && key_of(key).is_some_and(|key| view.press(key) == Step::Quit)
}

fn is_suspend(key: KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('z')
}

fn key_of(key: KeyEvent) -> Option<Key> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match key.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

#[cfg(test)]
#[expect(dead_code, reason = "the tests of the tool from outside use the rest")]
#[path = "../../../tests/cli/pty.rs"]
mod pty;

#[cfg(test)]
mod tests {
    use super::*;
    use pty::{ALL, Terminal};
    use rustix::termios::LocalModes;
    use std::process::Command;

    /// Environment variable of the process that this test starts on a terminal.
    const CHILD: &str = "NCCLSCOPE_TEST_PANICS";

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was() {
        if std::env::var_os(CHILD).is_some() {
            let _ = on_terminal(|_, _| panic!("planted"));
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", &name]).env(CHILD, "1");
        let mut terminal = Terminal::start(&mut command, 100, ALL);
        let (text, code) = terminal.ends();
        assert_eq!(code, Some(101), "{text}");
        let (view, after) = text.split_once("\x1b[?1049l").unwrap_or_else(|| panic!("{text:?}"));
        assert!(view.contains("\x1b[?1049h") && !view.contains("planted"), "{text:?}");
        assert!(after.contains("\x1b[?25h") && after.contains("planted"), "{text:?}");
        let modes = LocalModes::ICANON | LocalModes::ECHO;
        assert!(terminal.settings().local_modes.contains(modes));
    }
}
