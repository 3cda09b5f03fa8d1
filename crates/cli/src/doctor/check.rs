// SPDX-License-Identifier: Apache-2.0
//! The result of a check, and the advice to the user.

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// It works, with a limit that is worth knowing.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    /// What.
    pub(crate) name: &'static str,
    /// How it came out.
    pub(crate) status: Status,
    /// What was found.
    pub(crate) detail: String,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, detail: detail.into(), advice: None }
    }

    pub(super) fn warn(
        name: &'static str,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        let advice = Some(advice.into());
        Check { name, status: Status::Warn, detail: detail.into(), advice }
    }

    pub(super) fn fail(
        name: &'static str,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { status: Status::Fail, ..Check::warn(name, detail, advice) }
    }
}
