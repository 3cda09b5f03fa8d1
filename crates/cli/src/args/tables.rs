// SPDX-License-Identifier: Apache-2.0
//! Formats of verbs that have tables, and what their rows are of.

use clap::ValueEnum;
use ncclscope_report::By;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableFormat {
    /// Text
    #[default]
    Text,
    /// JSON with a key `schema`
    Json,
    /// One table as comma-separated values
    Csv,
    /// Text with tables in GitHub's Markdown
    Md,
}

/// The value of `--by`.
pub(crate) fn by(name: &str) -> Result<By, String> {
    By::of_name(name).ok_or_else(|| {
        let names: Vec<&str> = By::ALL.iter().map(|(name, _)| *name).collect();
        format!("expected some of {}", names.join(", "))
    })
}
