// SPDX-License-Identifier: Apache-2.0
//! Problems with the variables of an environment, for `ncclscope doctor`: unknown names, invalid
//! values, and variables without effect.

use crate::aliases::NOT_TAKEN;
use crate::reader::{refusal_of, unknown};
use crate::table::{CHAIN, EVENTS, HANG_SEC, MODE, OTLP, START, VARIABLES};
use crate::text::shown;
use crate::value::{FirstWindow, MetricsTarget, Mode};
use crate::variable::{Declared, Get, PREFIX, trimmed};
use ncclscope_trace::EventKind;
use std::time::Duration;
use strsim::levenshtein;

/// A problem with a variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The problem, in one sentence.
    pub detail: String,
    /// What the user can do.
    pub advice: String,
}

/// The problems of an environment whose variables are `names`.
#[must_use]
pub fn problems(names: &[String], get: Get<'_>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = unknown(names).into_iter().map(unknown_name).collect();
    for variable in VARIABLES {
        let Some(found) = variable.find(get) else { continue };
        let mut add = |detail: String, advice: &str| {
            problems.push(Problem { detail, advice: advice.to_owned() });
        };
        if let Err(expected) = variable.check(&found.value) {
            let refusal = refusal_of(&found, variable.name(), get, expected);
            add(refusal, "correct it: the default is used");
        }
        if let Some(why) = variable.conflict(get) {
            add(format!("{} has no effect: {why}", found.name), "change one of them");
        }
        // With a chained profiler, variables of other profilers have an effect.
        let is_ours_alone = found.name == variable.name() && CHAIN.value(get).is_empty();
        let others = variable.names().into_iter().skip(1).filter(|_| is_ours_alone);
        for other in others.filter(|name| trimmed(get, name).is_some()) {
            add(format!("{other} has no effect: {} comes first", found.name), "remove one of them");
        }
    }
    if CHAIN.value(get).is_empty() {
        let ignored = NOT_TAKEN.iter().filter(|(name, _)| trimmed(get, name).is_some());
        problems.extend(ignored.map(|&(name, why)| Problem {
            detail: format!("{name} is ignored"),
            advice: if why.starts_with("as above") { "remove it".into() } else { why.into() },
        }));
    }
    problems.extend(losses(get));
    problems
}

/// PyTorch ends a job in which an operation takes longer, by default.
const TORCH_PATIENCE: Duration = Duration::from_secs(600);

/// What valid settings switch off: at present, or until someone asks for it.
fn losses(get: Get<'_>) -> Vec<Problem> {
    let problem = |variable: &dyn Declared, what: &str, advice: &str| {
        let found = variable.find(get)?;
        let value = trimmed(get, found.name).unwrap_or(found.value);
        let detail = format!("{}={}: {what}", found.name, shown(&value));
        Some(Problem { detail, advice: advice.to_owned() })
    };
    if MODE.value(get) == Mode::Off {
        let what = "nothing is recorded, and the watchdog does not run";
        return problem(&MODE, what, "unset it").into_iter().collect();
    }
    let is_late = START.value(get) == FirstWindow::Off;
    let hang = HANG_SEC.value(get);
    let is_foreign =
        matches!(OTLP.value(get), MetricsTarget::Url(url) if !url.starts_with("http://"));
    let events = EVENTS.value(get);
    let all = [
        is_late.then(|| problem(&START, "nothing is recorded until `ncclscope start`", "unset it")),
        hang.is_none()
            .then(|| problem(&HANG_SEC, "no hang is reported", "unset it: a report costs nothing")),
        hang.is_some_and(|limit| limit > TORCH_PATIENCE).then(|| {
            let what = "PyTorch ends a job after 600 s, before a hang is reported";
            problem(&HANG_SEC, what, "set less, unless the job's timeout is longer")
        }),
        is_foreign.then(|| {
            let what = "no metrics are exported, because it is no URL that begins with http://";
            problem(&OTLP, what, "name the collector's address, such as http://localhost:4318")
        }),
        missing(events)
            .map(|what| problem(&EVENTS, what, "unset it, or name more: `default,-NetPlugin`")),
    ];
    all.into_iter().flatten().flatten().collect()
}

/// What a recording of these events does not show.
fn missing(events: u32) -> Option<&'static str> {
    let lacks = |kinds: &[EventKind]| kinds.iter().all(|kind| events & kind.bit() == 0);
    let operations = [EventKind::Coll, EventKind::P2p];
    let network = [EventKind::ProxyOp, EventKind::ProxyStep];
    if lacks(&operations) && lacks(&network) && lacks(&[EventKind::KernelCh]) {
        return Some("no operation is recorded");
    }
    if lacks(&network) && lacks(&[EventKind::KernelCh, EventKind::KernelLaunch]) {
        return Some("no operation shows its end: no durations, no bandwidths, no hangs");
    }
    lacks(&network).then_some("the network is not recorded: no links, and no stalled transfers")
}

fn unknown_name(name: &str) -> Problem {
    let nearest = VARIABLES.iter().map(|variable| variable.name());
    let nearest = nearest.min_by_key(|known| levenshtein(known, name)).unwrap_or(PREFIX);
    let advice = match levenshtein(nearest, name) {
        0..=2 => format!("did you mean {nearest}?"),
        _ => "nothing reads it: remove it".into(),
    };
    Problem { detail: format!("{name} is unknown"), advice }
}

#[cfg(test)]
mod tests {

    fn problems(vars: &[(&str, &str)]) -> Vec<(String, String)> {
        let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let names: Vec<String> = vars.iter().map(|(name, _)| (*name).to_owned()).collect();
        let problems = super::problems(&names, &get);
        problems.into_iter().map(|it| (it.detail, it.advice)).collect()
    }

    fn one(vars: &[(&str, &str)]) -> (String, String) {
        let [one] = problems(vars).try_into().unwrap();
        one
    }

    #[test]
    fn an_unknown_name_has_the_nearest_one() {
        assert!(problems(&[("NCCLSCOPE_MODE", "trace"), ("HOME", "/")]).is_empty());
        assert!(problems(&[("NCCLSCOPE_HANG_EVENT", "hang")]).is_empty());
        let (detail, advice) = one(&[("NCCLSCOPE_RINGMB", "3")]);
        assert_eq!(detail, "NCCLSCOPE_RINGMB is unknown");
        assert_eq!(advice, "did you mean NCCLSCOPE_RING_MB?");
        assert!(one(&[("NCCLSCOPE_SOMETHING", "1")]).1.contains("remove"));
    }

    #[test]
    fn a_value_is_checked_as_the_plugin_does() {
        let (detail, _) = one(&[("NCCLSCOPE_KERNEL", "maybe")]);
        assert_eq!(detail, "NCCLSCOPE_KERNEL=maybe: expected auto, on or off");
        assert!(problems(&[("NCCLSCOPE_OTLP", "http://me:secret@c")]).is_empty());
    }

    #[test]
    fn what_settings_switch_off_is_named() {
        for (name, value, what) in [
            ("NCCLSCOPE_MODE", "off", "nothing is recorded, and the watchdog"),
            ("NCCL_INSPECTOR_ENABLE", "0", "nothing is recorded, and the watchdog"),
            ("NCCLSCOPE_START", "off", "nothing is recorded until"),
            ("NCCLSCOPE_HANG_SEC", "0", "no hang is reported"),
            ("NCCL_KERNEL_TIMEOUT_MS", "0", "no hang is reported"),
            ("NCCLSCOPE_HANG_SEC", "1000", "PyTorch ends a job after 600 s"),
            ("NCCLSCOPE_EVENTS", "Coll", "no operation shows its end"),
            ("NCCL_PROFILE_EVENT_MASK", "1", "no operation is recorded"),
            ("NCCLSCOPE_EVENTS", "default,-ProxyOp,-ProxyStep", "the network is not recorded"),
            ("NCCLSCOPE_OTLP", "foo", "no metrics are exported"),
        ] {
            let (detail, _) = one(&[(name, value)]);
            assert!(detail.starts_with(&format!("{name}={value}: {what}")), "{detail}");
        }
        let (detail, advice) = one(&[("NCCL_PROFILE_DUMP_FILE", "x")]);
        assert_eq!(detail, "NCCL_PROFILE_DUMP_FILE is ignored");
        assert!(advice.contains("ncclscope export"), "{advice}");
        let (detail, _) = one(&[("NCCL_KERNEL_TIMEOUT_MS", "50")]);
        let says = "NCCL_KERNEL_TIMEOUT_MS=50, which is NCCLSCOPE_HANG_SEC=0.05: expected seconds";
        assert!(detail.starts_with(says), "{detail}");
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let of = [("NCCLSCOPE_HANG_SEC", "0"), ("NCCLSCOPE_HANG_ACTION", "dump")];
        let (detail, _) = problems(&of).remove(0);
        assert!(detail.starts_with("NCCLSCOPE_HANG_ACTION has no effect: NCCLSCOPE_HANG_SEC is 0"));
        let (detail, _) = one(&[("NCCLSCOPE_EVENTS", "default"), ("NCCL_PROFILE_EVENT_MASK", "2")]);
        assert_eq!(detail, "NCCL_PROFILE_EVENT_MASK has no effect: NCCLSCOPE_EVENTS comes first");
        let inspector = [("NCCL_INSPECTOR_ENABLE", "1"), ("NCCLSCOPE_MODE", "trace")];
        assert_eq!(problems(&inspector).len(), 1);
        assert!(
            problems(&[&inspector[..], &[("NCCLSCOPE_CHAIN", "inspector")]].concat()).is_empty()
        );
    }
}
