// SPDX-License-Identifier: Apache-2.0
//! A file on which a read at its end is an error. If a forged page header claims more data than a
//! file has, `parquet` 60 reads at the end as often as the header says
//! (`ThriftReadInputProtocol::skip_bytes`): up to two thousand million times, each with a system
//! call.

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};

/// The file of a table.
pub(super) struct StrictFile(pub(super) File);

impl Length for StrictFile {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for StrictFile {
    type T = BufReader<UpToEnd>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut file = self.0.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(UpToEnd(file)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// Reads up to the file's end; a read at the end is an error.
pub(super) struct UpToEnd(File);

impl Read for UpToEnd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 if !into.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            read => Ok(read),
        }
    }
}
