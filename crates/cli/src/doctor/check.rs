// SPDX-License-Identifier: Apache-2.0
//! The result of a check, and the advice to the user.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Ok,
    /// It works, but with a limitation.
    Warn,
    Fail,
}

/// One check with its result.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    pub(crate) detail: String,
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
