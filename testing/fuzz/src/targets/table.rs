// SPDX-License-Identifier: Apache-2.0
//! Parquet tables of operations.

use crate::mutate;
use crate::target::Target;
use ncclscope_stragglers::input::table;
use ncclscope_stragglers::{Limits, analyze};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::Result;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;

pub(super) const TARGET: Target = Target {
    name: "parquet",
    samples,
    mutate: mutate::any,
    read,
    inputs: 1000,
    // Their page headers claim lists longer than the file.
    found: &[1_800_034_531, 1_800_100_067, 40_009_920_791],
};

const SCHEMA: &str = "message operations { required int32 dp_rank; required int32 stage; \
                      required int64 step; required double start_ts; required double duration; \
                      required binary optype (UTF8); }";

fn samples() -> Vec<Vec<u8>> {
    file().into_iter().collect()
}

fn file() -> Result<Vec<u8>> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default())?;
    let mut group = writer.next_row_group()?;
    while let Some(mut column) = group.next_column()? {
        let ranks = [0, 0, 1, 1, u32::MAX >> 1];
        match column.untyped() {
            ColumnWriter::Int32ColumnWriter(to) => {
                to.write_batch(&ranks.map(u32::cast_signed), None, None)?
            }
            ColumnWriter::Int64ColumnWriter(to) => to.write_batch(&[1, 1, 1, 2, 2], None, None)?,
            ColumnWriter::DoubleColumnWriter(to) => {
                to.write_batch(&[0.5, 1.0, 1.5, 2.0, 2.5], None, None)?
            }
            ColumnWriter::ByteArrayColumnWriter(to) => {
                let names =
                    ["forward-send", "forward-recv", "grads-reduce", "x", "forward-compute"];
                to.write_batch(&names.map(ByteArray::from), None, None)?
            }
            _ => 0,
        };
        column.close()?;
    }
    group.close()?;
    writer.into_inner()
}

fn read(data: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = folder.path().join("table.parquet");
    let Ok(()) = std::fs::write(&path, data) else { return false };
    let Ok(job) = table::read(&path) else { return false };
    let _ = serde_json::to_string(&analyze(&job, &Limits::default()));
    true
}
