// SPDX-License-Identifier: Apache-2.0
//! Problems with the variables of an environment, for `ncclscope doctor`: unknown names, invalid
//! values, and variables without effect.

use crate::reader::{refusal, unknown};
use crate::table::{CHAIN, VARIABLES};
use crate::variable::{Get, PREFIX, trimmed};
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
            add(refusal(found.name, &found.value, expected), "correct it: the default is used");
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
    problems
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
        assert!(problems(&[("NCCLSCOPE_MODE", "off"), ("HOME", "/")]).is_empty());
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
    fn what_has_no_effect_is_named() {
        let (detail, _) = one(&[("NCCLSCOPE_HANG_SEC", "0"), ("NCCLSCOPE_HANG_ACTION", "dump")]);
        assert!(detail.starts_with("NCCLSCOPE_HANG_ACTION has no effect: NCCLSCOPE_HANG_SEC is 0"));
        let (detail, _) = one(&[("NCCLSCOPE_EVENTS", "Coll"), ("NCCL_PROFILE_EVENT_MASK", "2")]);
        assert_eq!(detail, "NCCL_PROFILE_EVENT_MASK has no effect: NCCLSCOPE_EVENTS comes first");
        let inspector = [("NCCL_INSPECTOR_ENABLE", "1"), ("NCCLSCOPE_MODE", "trace")];
        assert_eq!(problems(&inspector).len(), 1);
        assert!(
            problems(&[&inspector[..], &[("NCCLSCOPE_CHAIN", "inspector")]].concat()).is_empty()
        );
    }
}
