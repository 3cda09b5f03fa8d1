// SPDX-License-Identifier: Apache-2.0
//! Tables: for the terminal, and as CSV and Markdown.

pub(crate) mod sheet;
pub(crate) mod table;
