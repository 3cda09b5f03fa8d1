// SPDX-License-Identifier: Apache-2.0
/*!
An SQLite file that may be damaged or forged, opened to be read.

Only tables of the file itself are read: views, virtual tables and generated columns, which compute
something, do not count as tables and columns. SQLite neither changes the file nor looks for files
beside it (`immutable`), and a query stops after a number of steps that the file's size allows, as a
forged tree of pages can have more rows than the file has bytes.
*/

use crate::input::Error;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// First bytes of an SQLite file.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Length of an SQLite file's header, bytes.
const HEADER: usize = 100;
/// Maximum length of a value, bytes. The output of the profiled programs is one value.
const MOST_BYTES: i32 = 256 << 20;
/// Steps of SQLite's machine between two looks at their number.
const STEPS: i32 = 1 << 20;
/// Steps that a query may take for each byte of the file. A row takes some 20 steps and as many
/// bytes.
const STEPS_PER_BYTE: u64 = 16;
/// Looks at the number of steps that any file may take.
const LEAST_LOOKS: u64 = 16;

/// True if these are the first bytes of an SQLite file.
#[must_use]
pub fn starts_as(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// An open file.
pub(super) struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    pub(super) fn open(path: &Path) -> Result<Database, Error> {
        let error = |e: io::Error| Error::new(path, e);
        let file = ncclscope_trace::open_to_read(path).map_err(error)?;
        let bytes = file.metadata().map_err(error)?.len();
        if is_cut_off(file, bytes).map_err(error)? {
            return Err(Error::new(path, "it is cut off: export it again"));
        }
        let uri = uri(&path.canonicalize().map_err(error)?);
        let connection = connect(&uri, bytes).map_err(|e| Error::new(path, text(&e)))?;
        Ok(Database { path: path.into(), connection })
    }

    /// The columns of a table; empty if there is no such table.
    pub(super) fn columns(&self, table: &str) -> Result<BTreeSet<String>, Error> {
        let mut is_table = false;
        // A view and a virtual table have no pages of their own.
        let kind = "SELECT type = 'table' AND rootpage > 0 FROM sqlite_schema WHERE name = ?1";
        self.read(kind, &[&table], |row| {
            is_table = row.get(0)?;
            Ok(())
        })?;
        let mut columns = BTreeSet::new();
        if is_table {
            self.read("SELECT name FROM pragma_table_info(?1)", &[&table], |row| {
                columns.insert(row.get(0)?);
                Ok(())
            })?;
        }
        Ok(columns)
    }

    /// Calls `each` with each row of a query.
    pub(super) fn read(
        &self,
        query: &str,
        values: &[&dyn rusqlite::ToSql],
        mut each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), Error> {
        let mut all = || {
            let mut query = self.connection.prepare(query)?;
            let mut rows = query.query(values)?;
            while let Some(row) = rows.next()? {
                each(row)?;
            }
            Ok(())
        };
        all().map_err(|e| self.error(text(&e)))
    }

    pub(super) fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::new(&self.path, what)
    }
}

/// Whether a file is shorter than its header says. SQLite takes what is missing of a page as zeros.
fn is_cut_off(mut file: File, bytes: u64) -> io::Result<bool> {
    let mut header = [0; HEADER];
    let Ok(()) = file.read_exact(&mut header) else { return Ok(starts_as(&header)) };
    let number = |at: usize| {
        let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u64::from(u32::from_be_bytes(bytes.unwrap_or_default()))
    };
    // 1 means 64 KiB.
    let page = match number(14) & 0xffff {
        1 => 1 << 16,
        page => page,
    };
    // Programs before SQLite 3.7 do not keep the number of pages.
    let is_counted = number(24) == number(92);
    Ok(is_counted && starts_as(&header) && number(28).saturating_mul(page) > bytes)
}

fn connect(uri: &str, bytes: u64) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(uri, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MOST_BYTES)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    // Mapped, a file that is cut off meanwhile would end the process.
    connection.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")?;
    let looks = bytes.saturating_mul(STEPS_PER_BYTE) / u64::from(STEPS.unsigned_abs());
    let mut left = looks.saturating_add(LEAST_LOOKS);
    let is_over = move || {
        left = left.saturating_sub(1);
        left == 0
    };
    connection.progress_handler(STEPS, Some(is_over))?;
    Ok(connection)
}

/// The address of a file, whatever bytes its name has.
fn uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                uri.push(char::from(*byte));
            }
            // Writing to a string does not fail.
            other => drop(write!(uri, "%{other:02X}")),
        }
    }
    uri + "?immutable=1"
}

/// An error of SQLite as the end of a sentence.
fn text(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => "it is not an SQLite file".into(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::SystemIoFailure) => {
            format!("it is damaged or cut off ({error})")
        }
        Some(ErrorCode::OperationInterrupted) => {
            "it is damaged: it has more rows than its size allows".into()
        }
        Some(ErrorCode::TooBig) => {
            format!("a value in it is longer than {} MiB", MOST_BYTES >> 20)
        }
        _ => format!("it is no export of Nsight Systems ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_an_address() {
        let path = Path::new("/a b/100%?#.sqlite");
        assert_eq!(uri(path), "file:/a%20b/100%25%3F%23.sqlite?immutable=1");
    }

    #[test]
    fn a_query_ends_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        let own = Connection::open(&path).unwrap();
        own.execute_batch("CREATE TABLE t (a, b AS (a + 1)); CREATE VIEW v AS SELECT 1 AS a;")
            .unwrap();
        let database = Database::open(&path).unwrap();
        let count = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x";
        let error = database.read(&format!("{count} FROM c"), &[], |_| Ok(())).unwrap_err();
        assert!(error.to_string().ends_with("it has more rows than its size allows"), "{error}");
        assert!(database.read("DELETE FROM t", &[], |_| Ok(())).is_err());
        assert_eq!(database.columns("t").unwrap(), BTreeSet::from(["a".to_owned()]));
        assert!(database.columns("v").unwrap().is_empty());
    }
}
