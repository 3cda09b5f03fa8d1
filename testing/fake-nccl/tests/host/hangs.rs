// SPDX-License-Identifier: Apache-2.0
//! The watchdog's reports of hangs when events are lost, and of several hangs at once.

use crate::common::{Played, compile, play, plugin};
use ncclscope_trace::Recording;
use ncclscope_trace::progress::{Heartbeat, progress_flags};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Plays a host that is given a control directory; the limit is two seconds.
fn hung(host: &Path, how: &str, env: &[(&str, &str)]) -> Played {
    let control = tempfile::tempdir().unwrap();
    let mut all =
        vec![("NCCLSCOPE_HANG_SEC", "2"), ("NCCLSCOPE_CONTROL", control.path().to_str().unwrap())];
    all.extend(env);
    play(Command::new(host).arg(plugin()).arg(how).arg(control.path()), &all)
}

#[test]
fn what_begins_shortly_after_a_burst_of_losses_hangs_as_ever() {
    let played = hung(&compile("burst", &[]), "", &[]);
    played.survived();
    let recording = played.recording();
    let says: Vec<&str> = recording.hangs().iter().map(|(_, text)| text.as_str()).collect();
    assert!(says.len() == 2 && says[0].starts_with("HANG: AllReduce "), "{says:#?}");
    assert!(says[1].starts_with("recovered after "), "{says:#?}");
}

/// Where there is no directory, and below a limit on the size of files. At the same time, because
/// each takes more than a minute.
#[test]
fn the_watchdog_needs_no_file() {
    let host = compile("burst", &[]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let played = hung(&host, "", &[("NCCLSCOPE_DIR", "/proc/none")]);
            played.survived();
            let stderr = played.stderr();
            assert!(stderr.contains("cannot record in /proc/none"), "{stderr}");
            assert!(stderr.contains("HANG: AllReduce "), "{stderr}");
            let last = stderr.lines().last().unwrap();
            assert!(last.ends_with("; nothing of this process was recorded"), "{stderr}");
        });
        scope.spawn(|| {
            let control = tempfile::tempdir().unwrap();
            let control = control.path().to_str().unwrap();
            let mut command = Command::new("bash");
            command.args(["-c", "ulimit -f 40; exec \"$@\"", "bash"]).arg(&host);
            command.arg(plugin()).arg("").arg(control);
            let variables = [("NCCLSCOPE_HANG_SEC", "2"), ("NCCLSCOPE_CONTROL", control)];
            let played = play(&mut command, &variables);
            played.ended();
            let stderr = played.stderr();
            assert!(stderr.contains("HANG: AllReduce "), "{stderr}");
            assert!(stderr.contains("File too large (os error 27): raise the limit"), "{stderr}");
        });
    });
}

#[test]
fn what_is_forgotten_has_not_recovered() {
    let ([never, later], host) = (["never", "later"], compile("forget", &[]));
    let played = std::thread::scope(|scope| {
        let plays = [never, later].map(|how| (how, scope.spawn(|| hung(&host, how, &[]))));
        plays.map(|(how, play)| (how, play.join().unwrap()))
    });
    for (how, played) in played {
        played.survived();
        let recording = played.recording();
        let hangs = recording.hangs();
        let says: Vec<&str> = hangs.iter().map(|(_, text)| text.as_str()).collect();
        let ends: &[&str] = if how == later { &["recovered after "] } else { &[] };
        assert!(says[0].starts_with("HANG: AllReduce 4 "), "{how}: {says:#?}");
        assert!(says[1].contains("whether it has ended is not known"), "{how}: {says:#?}");
        assert_eq!(says.len(), 2 + ends.len(), "{how}: {says:#?}");
        assert!(says[2..].iter().zip(ends).all(|(says, end)| says.starts_with(end)), "{says:#?}");
        // The plugin keeps the evidence of the hang until then.
        let progress = recording.heartbeats().iter().filter_map(|heartbeat| match heartbeat {
            Heartbeat::Progress(progress) if progress.ticks >= hangs[0].0 => Some(progress.flags),
            _ => None,
        });
        let stuck = progress_flags::STUCK | progress_flags::ENDED;
        let is_stuck: Vec<bool> = progress.map(|flags| flags & stuck != 0).collect();
        let until = is_stuck.iter().position(|is| !is).unwrap_or(is_stuck.len());
        assert!(how == later || until == is_stuck.len(), "{is_stuck:?}");
        assert_eq!(recording.header().freezes, 1, "{how}");
    }
}

#[test]
fn hangs_that_are_found_together_are_one_copy_and_one_signal() {
    let host = compile("dumps", &[]);
    let played = hung(&host, "", &[("NCCLSCOPE_HANG_ACTION", "dump")]);
    played.ended();
    assert_eq!(played.stderr(), "", "no copy is in the way of another");
    let mut copies: Vec<usize> = Vec::new();
    for file in played.files().into_iter().filter(|file| file.is_dir()) {
        let copy = std::fs::read_dir(file).unwrap().next().unwrap().unwrap().path();
        copies.push(Recording::open(&copy).unwrap().hangs().len());
    }
    copies.sort_unstable();
    // Six in one check and one in a later check; more or fewer on a slow machine.
    assert!((1..=3).contains(&copies.len()), "{copies:?}");
    assert_eq!(copies.last(), Some(&7), "each has all hangs until then: {copies:?}");
    // The copy of the first check must be made before the signal kills the process.
    let played = hung(&host, "", &[("NCCLSCOPE_HANG_ACTION", "dump,signal:ABRT")]);
    assert_eq!(played.output.status.signal(), Some(6), "{:?}", played.output);
    assert_eq!(played.files().iter().filter(|file| file.is_dir()).count(), 1);
}
