// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope view`: shows recordings in the browser, in the Perfetto UI.

The UI is a page that cannot fetch from this machine, but a page of ours can open it in a window and
pass it the trace. A server on this machine, at an address that cannot be guessed, serves that page
and the trace until the page confirms that it passed the trace on. The UI keeps the trace in the
browser and sends it nowhere.

All users of a machine can read each other's command lines: the browser is given a file that only
the user can read, and the file leads to the address.
*/

mod http;
mod server;

use super::export;
use crate::args::{TraceFormat, ViewArgs};
use crate::io::formats::own_json;
use crate::run_input::input::{Input, host_name};
use crate::run_input::narrow::{Keep, Narrowed};
use ncclscope_console::failure::{Failure, tell};
use server::{Server, Trace};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};

pub(crate) fn run(args: &ViewArgs) -> Result<ExitCode, Failure> {
    let ui = checked(&args.ui)?;
    let token = token().map_err(|e| cannot("make an address", &e))?;
    let directory = directory()?;
    let (tell_end, end) = mpsc::channel();
    let is_prepared = Arc::new(AtomicBool::new(false));
    end_by_signal(tell_end.clone(), Arc::clone(&is_prepared), directory.clone())?;
    let prepared = Prepared::new(args, directory)?;
    is_prepared.store(true, Ordering::SeqCst);
    let path = prepared.path();
    let trace = Trace { path: path.to_owned(), title: title(&args.inputs), ui };
    let port = args.port.unwrap_or(0);
    let server = Server::start(trace, port, &token, tell_end).map_err(|e| match args.port {
        Some(port) => Failure::environment(format!("cannot serve at port {port}: {e}")),
        None => cannot("serve", &e),
    })?;
    let is_opened = !args.no_open && prepared.leading_to(server.url()).is_some_and(|it| open(&it));
    let mut out = io::stdout().lock();
    writeln!(out, "{}", server.url())?;
    out.flush()?;
    if !is_opened {
        let port = server.port();
        tell("open the address above in a browser of this machine; Ctrl-C ends");
        tell(format_args!(
            "from another machine first: ssh -L {port}:127.0.0.1:{port} {}",
            host_name()
        ));
        tell(format_args!("or open {} at {}, from wherever you like", path.display(), args.ui));
    }
    // A sender always exists, because the server keeps one.
    let _ = end.recv();
    Ok(prepared.exit_code)
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::environment(format!("cannot {what}: {error}"))
}

/// The viewer's address, checked so that it can be inserted into the page's script unchanged.
fn checked(ui: &str) -> Result<String, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/%[]".contains(c);
    let is_http = ui.starts_with("https://") || ui.starts_with("http://");
    let refused = || Failure::usage(format!("`{ui}` is not the address of a page"));
    (is_http && ui.chars().all(is_plain)).then(|| ui.to_owned()).ok_or_else(refused)
}

/// A random token of 128 bits.
fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A path for a temporary directory.
fn directory() -> Result<PathBuf, Failure> {
    // The name is not the token, because /tmp can be listed.
    let name = token().map_err(|e| cannot("make a name", &e))?;
    Ok(std::env::temp_dir().join(format!("ncclscope-view-{name}")))
}

fn title(inputs: &[PathBuf]) -> String {
    let name = |input: &PathBuf| {
        let whole = std::fs::canonicalize(input).unwrap_or_else(|_| input.clone());
        whole.file_name().unwrap_or_default().to_string_lossy().into_owned()
    };
    inputs.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// A trace to show, and a temporary directory that is removed with it.
struct Prepared {
    path: PathBuf,
    directory: PathBuf,
    exit_code: ExitCode,
}

impl Prepared {
    fn new(args: &ViewArgs, directory: PathBuf) -> Result<Prepared, Failure> {
        let trace = match &args.inputs[..] {
            [input] if is_trace(input) => Some(input),
            _ => None,
        };
        if trace.is_some() && (!args.filter.is_empty() || args.run.id().is_some()) {
            return Err(Failure::usage(
                "a trace is shown as it is: choose a run and filter when you export it, or name \
                 its recordings",
            ));
        }
        if let Some((path, what)) = trace.and_then(|path| Some((path.display(), own_json(path)?))) {
            return Err(Failure::input(format!(
                "{path} is {what}, not a trace: name recordings, or a trace that `export` wrote"
            )));
        }
        let recordings = match trace {
            Some(_) => None,
            None => Some(narrowed(args)?),
        };
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|e| Failure::write(&directory, &e))?;
        let path = trace.cloned().unwrap_or_else(|| directory.join("trace.pftrace"));
        let mut prepared = Prepared { path, directory, exit_code: ExitCode::SUCCESS };
        if let Some((input, narrowed)) = recordings {
            let (format, shown) = (TraceFormat::Pftrace, narrowed.shown(&input.recordings));
            export::size::foretell(shown, format, false);
            export::to_file(&prepared.path, |file| export::write(shown, format, file))?;
            prepared.exit_code = input.finish();
        }
        Ok(prepared)
    }

    /// A page that redirects to an address.
    fn leading_to(&self, url: &str) -> Option<PathBuf> {
        let path = self.directory.join("open.html");
        let page = format!(
            "<!doctype html><meta charset=\"utf-8\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n\
             <a href=\"{url}\">ncclscope</a>\n"
        );
        let mut file = OpenOptions::new();
        let file = file.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(page.as_bytes())).ok().map(|()| path)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The recordings, and the filter.
fn narrowed(args: &ViewArgs) -> Result<(Input, Narrowed), Failure> {
    let mut input = Input::open(&args.inputs, args.run.id())?;
    input.leave_out_clockless();
    let narrowed = Narrowed::new(&mut input, &args.filter, Keep::Needed)?;
    if let Some(text) = narrowed.text() {
        tell(format_args!("filter: {text}"));
    }
    Ok((input, narrowed))
}

/// True for the name of a file that `export` writes; any other file must be a recording.
fn is_trace(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let is_known = matches!(ending, "pftrace" | "perfetto-trace" | "tar" | "json" | "gz");
    is_known && path.is_file()
}

/// Ends the server by a signal. Before the trace is prepared, the signal ends the process, and the
/// temporary directory is removed here.
fn end_by_signal(
    end: Sender<()>,
    is_prepared: Arc<AtomicBool>,
    directory: PathBuf,
) -> Result<(), Failure> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| cannot("handle signals", &e))?;
    let wait = move || {
        let signal = signals.forever().next();
        if let Some(signal) = signal.filter(|_| !is_prepared.load(Ordering::SeqCst)) {
            let _ = std::fs::remove_dir_all(&directory);
            let _ = emulate_default_handler(signal);
        }
        let _ = end.send(());
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map(drop)
        .map_err(|e| cannot("start a thread", &e))
}

/// Asks the desktop to open a page; false if there is no desktop.
fn open(page: &Path) -> bool {
    let has = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let by_variable = std::env::var_os("BROWSER").filter(|value| !value.is_empty());
    let opener = match by_variable {
        Some(browser) => browser,
        // Without a display, xdg-open would find browsers that run in the terminal.
        None if has("DISPLAY") || has("WAYLAND_DISPLAY") => "xdg-open".into(),
        None => return false,
    };
    let mut command = Command::new(opener);
    command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
