// SPDX-License-Identifier: Apache-2.0
//! Trace files, plain or compressed with gzip.

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const BUFFER: usize = 1 << 18;
/// Limit of the unpacked size, as a multiple of the compressed size; traces are compressed to a
/// twentieth at best.
const MOST_TIMES: u64 = 100;
/// Size to which any compressed trace may unpack, in bytes.
const LEAST_ROOM: u64 = 16 << 20;

/// Opens a trace for reading from its start. Compressed data is recognised by its first bytes, not
/// by the file's name, and may have several members.
///
/// # Errors
/// An error of the system, or that it is not a regular file, because a trace is read more than
/// once. Reading fails if compressed data unpacks to more than 100 times its size.
pub fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = ncclscope_trace::open_to_read(path)?;
    let mut magic = Vec::new();
    Read::by_ref(&mut file).take(2).read_to_end(&mut magic)?;
    file.rewind()?;
    OPENED.fetch_add(file.metadata()?.len(), Ordering::Relaxed);
    let file = Counted { file, read: 0 };
    if magic == [0x1f, 0x8b] {
        let data = MultiGzDecoder::new(BufReader::with_capacity(BUFFER, file));
        return Ok(Box::new(Unpacked { data, read: 0 }));
    }
    Ok(Box::new(file))
}

/// Sum of the sizes of all opened traces, counted at each opening (`OPENED`), and of the bytes that
/// were read.
static OPENED: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);

/// Bytes of trace files that this process has read, and sum of the sizes of the files that it has
/// opened.
#[must_use]
pub fn bytes_read() -> (u64, u64) {
    (READ.load(Ordering::Relaxed), OPENED.load(Ordering::Relaxed))
}

/// A file that counts the bytes that are read.
struct Counted {
    file: File,
    read: u64,
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.read += read as u64;
        READ.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Unpacked data. It may not be more than [`MOST_TIMES`] the compressed bytes read so far, so that
/// little is unpacked, and kept, of a file that is made to be large.
struct Unpacked {
    data: MultiGzDecoder<BufReader<Counted>>,
    read: u64,
}

impl Read for Unpacked {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.data.read(bytes)?;
        self.read += read as u64;
        let packed = self.data.get_ref().get_ref().read;
        if self.read > packed.saturating_mul(MOST_TIMES).saturating_add(LEAST_ROOM) {
            let text = "it unpacks to more than 100 times its size: unpack it first";
            return Err(io::Error::other(text));
        }
        Ok(read)
    }
}

/// The output of a trace, compressed or not.
#[derive(Debug)]
pub struct Output {
    out: Out,
}

#[derive(Debug)]
enum Out {
    Plain(BufWriter<File>),
    Gz(BufWriter<GzEncoder<File>>),
}

impl Output {
    /// Writes to `file`, compressed if `gz`.
    #[must_use]
    pub fn new(file: File, gz: bool) -> Output {
        let out = if gz {
            // Twice as fast as the default level, and a tenth larger.
            let encoder = GzEncoder::new(file, Compression::new(3));
            Out::Gz(BufWriter::with_capacity(BUFFER, encoder))
        } else {
            Out::Plain(BufWriter::with_capacity(BUFFER, file))
        };
        Output { out }
    }

    /// Writes buffered data, and the end of compressed data.
    ///
    /// # Errors
    /// An error of the system.
    pub fn finish(self) -> io::Result<()> {
        match self.out {
            Out::Plain(mut out) => out.flush(),
            Out::Gz(out) => out.into_inner().map_err(|e| e.into_error())?.finish().map(drop),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Out::Plain(out) => out.write(bytes),
            Out::Gz(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Out::Plain(out) => out.flush(),
            Out::Gz(out) => out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a compressed trace of spaces.
    fn read(spaces: u64) -> io::Result<u64> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("trace.json.gz");
        let mut out = GzEncoder::new(File::create(&path)?, Compression::fast());
        io::copy(&mut io::repeat(b' ').take(spaces), &mut out)?;
        out.finish()?;
        io::copy(&mut open(&path)?, &mut io::sink())
    }

    #[test]
    fn a_small_trace_does_not_unpack_without_end() {
        assert_eq!(read(LEAST_ROOM).unwrap(), LEAST_ROOM);
        let error = read(4 * LEAST_ROOM).unwrap_err().to_string();
        assert!(error.contains("more than 100 times its size"), "{error}");
    }

    /// What follows the bomb would allow it, and is not waited for.
    #[test]
    fn the_ratio_is_checked_while_a_trace_unpacks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json.gz");
        let mut file = File::create(&path).unwrap();
        for (text, level) in [(' ', 9), ('x', 0)] {
            let mut out = GzEncoder::new(&file, Compression::new(level));
            let byte = u8::try_from(text).unwrap();
            io::copy(&mut io::repeat(byte).take(4 * LEAST_ROOM), &mut out).unwrap();
            out.finish().unwrap();
        }
        file.flush().unwrap();
        let mut unpacked = 0;
        let (mut data, mut bytes) = (open(&path).unwrap(), vec![0; 1 << 16]);
        let error = loop {
            match data.read(&mut bytes) {
                Ok(read) => unpacked += read as u64,
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("more than 100 times its size"), "{error}");
        assert!(unpacked < 3 * LEAST_ROOM, "{unpacked}");
    }

    #[test]
    fn what_is_read_of_traces_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        std::fs::write(&path, " ".repeat(100_000)).unwrap();
        let (read, opened) = bytes_read();
        io::copy(&mut open(&path).unwrap(), &mut io::sink()).unwrap();
        let (now_read, now_opened) = bytes_read();
        // Other tests of this process may also read.
        assert!(now_read - read >= 100_000 && now_opened - opened >= 100_000);
    }
}
