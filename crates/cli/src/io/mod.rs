// SPDX-License-Identifier: Apache-2.0
//! What the verbs print and write: standard output and the terminal, files that are written whole,
//! and which files may not be replaced.

pub(crate) mod formats;
mod indented;
pub(crate) mod output;
mod pipe;
pub(crate) mod shell_words;
pub(crate) mod terminal;
pub(crate) mod timed;
pub(crate) mod whole_file;
pub(crate) mod whole_folder;
