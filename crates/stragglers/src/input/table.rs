// SPDX-License-Identifier: Apache-2.0
/*!
Tables of operations in Parquet: one row for each operation of each worker.

`docs/stragglers.md` describes the columns, which are those of the traces that ByteDance published
with its study of stragglers. All rows are held in memory: such a table has some tens of megabytes.
A table with far more rows, or with too many workers and steps, is refused.
*/

use super::Error;
use super::footer;
use super::semantics::{self, Direction, Participants};
use super::strict_file::StrictFile;
use crate::model::{
    Collective, CollectiveClass, EndSync, Job, LayoutPosition, P2pBatch, Part, Worker,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;

/// The required columns.
pub const REQUIRED: [&str; 6] = ["dp_rank", "stage", "step", "optype", "start_ts", "duration"];

/// Maximum number of rows of a table, which take about 2 GB. A small file may contain far more.
const MOST_ROWS: i64 = 10_000_000;
/// Maximum of workers times steps, for each of which the analysis keeps a timeline.
const MOST_TIMELINES: usize = 4_000_000;

/// Seconds to ns.
const SECOND: f64 = 1e9;

/// One operation: a row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Operation {
    /// The worker's position in the parallel layout.
    pub cell: LayoutPosition,
    /// The worker's first rank in the job.
    pub rank: Option<u32>,
    /// The step.
    pub step: i64,
    /// The operation's name; see [`semantics`].
    pub name: String,
    /// Start within its step, s.
    pub start: f64,
    /// Duration, s.
    pub duration: f64,
    /// Its number among the operations of its name in the step.
    pub number: i64,
    /// The chunk of the model.
    pub chunk: i64,
}

/// Reads a table.
///
/// # Errors
/// The file cannot be read, is not Parquet, lacks columns, or describes too much.
pub fn read(path: &Path) -> Result<Job, Error> {
    let operations = operations(path)?;
    let cells: BTreeSet<LayoutPosition> = operations.iter().map(|of| of.cell).collect();
    let steps: BTreeSet<i64> = operations.iter().map(|of| of.step).collect();
    if cells.len().saturating_mul(steps.len()) > MOST_TIMELINES {
        let what = format!(
            "it has {} workers in {} steps, which take too much memory: give fewer steps at once",
            cells.len(),
            steps.len()
        );
        return Err(Error::new(path, what));
    }
    Ok(job(&operations))
}

/// Reads the rows of a table.
///
/// # Errors
/// As [`read`].
pub fn operations(path: &Path) -> Result<Vec<Operation>, Error> {
    // The library panics on damaged files.
    catch_quietly(|| rows(path, MOST_ROWS))
        .unwrap_or_else(|| Err(Error::new(path, "the table is damaged")))
}

/// The result of `work`; `None` if it panics. The panic message is suppressed.
fn catch_quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    set_hook(hook);
    done
}

/// The rows of a table, at most `most`.
fn rows(path: &Path, most: i64) -> Result<Vec<Operation>, Error> {
    let error = |what: &dyn std::fmt::Display| Error::new(path, what);
    let file = ncclscope_trace::open_to_read(path).map_err(|e| error(&e))?;
    if !footer::is_sound(&file).map_err(|e| error(&e))? {
        return Err(error(&"the table is damaged: its footer claims more than it holds"));
    }
    let reader = SerializedFileReader::new(StrictFile(file)).map_err(|e| error(&e))?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let names: Vec<String> = schema.columns().iter().map(|c| c.name().to_owned()).collect();
    let missing: Vec<&str> =
        REQUIRED.into_iter().filter(|name| !names.iter().any(|known| known == name)).collect();
    if !missing.is_empty() {
        return Err(error(&format!(
            "the columns {} are missing; docs/stragglers.md lists the required columns",
            missing.join(", ")
        )));
    }
    let count = reader.metadata().file_metadata().num_rows();
    if count > most {
        let what = format!("it has {count} rows, more than {most}: give fewer steps at once");
        return Err(error(&what));
    }
    let mut operations = Vec::new();
    for row in reader.get_row_iter(None).map_err(|e| error(&e))? {
        let row = row.map_err(|e| error(&e))?;
        let number = operations.len();
        let operation = operation(&row)
            .ok_or_else(|| error(&format!("row {number} lacks a required number")))?;
        operations.push(operation);
    }
    Ok(operations)
}

fn operation(row: &Row) -> Option<Operation> {
    let find = |name: &str| row.get_column_iter().find(|(known, _)| *known == name);
    let real = |name: &str| find(name).and_then(|(_, field)| real(field)).filter(|x| x.is_finite());
    let whole = |name: &str| find(name).and_then(|(_, field)| whole(field));
    let index = |name: &str| whole(name).and_then(|n| u32::try_from(n).ok());
    let Some((_, Field::Str(name))) = find("optype") else { return None };
    Some(Operation {
        cell: LayoutPosition { dp_rank: index("dp_rank")?, stage: index("stage")? },
        rank: index("rank"),
        step: whole("step")?,
        name: name.clone(),
        start: real("start_ts")?,
        duration: real("duration")?,
        number: whole("seq_id").unwrap_or(0),
        chunk: whole("mc").unwrap_or(-1),
    })
}

fn real(field: &Field) -> Option<f64> {
    match *field {
        Field::Float(x) => Some(f64::from(x)),
        Field::Double(x) => Some(x),
        _ => whole(field).and_then(|n| i32::try_from(n).ok()).map(f64::from),
    }
}

fn whole(field: &Field) -> Option<i64> {
    Some(match *field {
        Field::Byte(n) => n.into(),
        Field::Short(n) => n.into(),
        Field::Int(n) => n.into(),
        Field::Long(n) => n,
        Field::UByte(n) => n.into(),
        Field::UShort(n) => n.into(),
        Field::UInt(n) => n.into(),
        Field::ULong(n) => i64::try_from(n).ok()?,
        _ => return None,
    })
}

/// The job that the rows describe.
#[must_use]
pub fn job(operations: &[Operation]) -> Job {
    let mut build = JobBuilder::new(operations);
    for operation in operations {
        build.add(operation);
    }
    build.finish()
}

/// The workers of a collective: name, stage, data-parallel rank.
type Group = (String, Option<u32>, Option<u32>);
/// A collective: group, step, chunk of the model, number in the step.
type Key = (Group, i64, i64, i64);
/// The sends or receives of a step between two workers in one direction through the pipeline.
type Channel = (i64, Direction, usize, usize);

#[derive(Default)]
struct JobBuilder {
    job: Job,
    cells: BTreeMap<LayoutPosition, usize>,
    stages: u64,
    collectives: BTreeMap<Key, (EndSync, Vec<Part>)>,
    /// Batches by step, worker and time: operations with equal times form one batch.
    batches: BTreeMap<(i64, usize, u64, u64), usize>,
    sends: BTreeMap<Channel, Vec<(i64, i64, usize)>>,
    receives: BTreeMap<Channel, Vec<(i64, i64, usize)>>,
    unknown: BTreeSet<String>,
}

impl JobBuilder {
    fn new(operations: &[Operation]) -> JobBuilder {
        let mut build = JobBuilder::default();
        let mut ranks: BTreeMap<LayoutPosition, Option<u32>> = BTreeMap::new();
        for operation in operations {
            let rank = ranks.entry(operation.cell).or_default();
            *rank = operation.rank.or(*rank);
        }
        build.stages = ranks.keys().map(|cell| u64::from(cell.stage) + 1).max().unwrap_or(1);
        for (number, (cell, rank)) in (0u32..).zip(ranks) {
            build.cells.insert(cell, build.job.workers.len());
            let rank = rank.unwrap_or(number);
            build.job.workers.push(Worker::at(rank, cell));
        }
        build.job.shapes.push(String::new());
        build.job.steps_restart = true;
        build.job.is_kernel_timed = true;
        build
    }

    fn add(&mut self, operation: &Operation) {
        let worker = self.cells[&operation.cell];
        let start = operation.start * SECOND;
        let part = Part { worker, start, end: start + operation.duration.max(0.0) * SECOND };
        let LayoutPosition { dp_rank, stage } = operation.cell;
        match semantics::of(&operation.name) {
            Some(Participants::Stage(ends)) => {
                self.collective(operation, part, (None, Some(stage)), ends)
            }
            Some(Participants::Replica(ends)) => {
                self.collective(operation, part, (Some(dp_rank), None), ends);
            }
            Some(Participants::All(ends)) => self.collective(operation, part, (None, None), ends),
            Some(Participants::Send(way)) => self.transfer(operation, part, way, true),
            Some(Participants::Receive(way)) => self.transfer(operation, part, way, false),
            with @ (Some(Participants::OnlySelf) | None) => {
                if with.is_none() {
                    self.unknown.insert(operation.name.clone());
                }
                self.job.own.push((part, Some(operation.step)));
            }
        }
    }

    fn collective(
        &mut self,
        operation: &Operation,
        part: Part,
        (dp_rank, stage): (Option<u32>, Option<u32>),
        ends: EndSync,
    ) {
        let group = (operation.name.clone(), dp_rank, stage);
        let key = (group, operation.step, operation.chunk, operation.number);
        let (_, parts) = self.collectives.entry(key).or_insert((ends, Vec::new()));
        if parts.iter().all(|known| known.worker != part.worker) {
            parts.push(part);
        }
    }

    fn transfer(&mut self, operation: &Operation, part: Part, way: Direction, is_send: bool) {
        let step = operation.step;
        let Some(other) = self.neighbour(operation.cell, way, is_send) else {
            self.job.own.push((part, Some(step)));
            return;
        };
        let key = (step, part.worker, part.start.to_bits(), part.end.to_bits());
        let next = self.job.batches.len();
        let batch = *self.batches.entry(key).or_insert(next);
        if batch == next {
            self.job.batches.push(P2pBatch {
                class: None,
                part,
                released: (part.end, part.end),
                step: Some(step),
                partners: Vec::new(),
                is_lacking: false,
                has_end: true,
            });
        }
        let (from, to) = if is_send { (part.worker, other) } else { (other, part.worker) };
        let list = if is_send { &mut self.sends } else { &mut self.receives };
        let number = (operation.number, operation.chunk, batch);
        list.entry((step, way, from, to)).or_default().push(number);
    }

    /// The worker at the other end. At the ends of the pipeline the other end belongs to another
    /// chunk.
    fn neighbour(&self, cell: LayoutPosition, way: Direction, is_send: bool) -> Option<usize> {
        let up = (way == Direction::Forward) == is_send;
        let step = if up { 1 } else { self.stages - 1 };
        let stage = u32::try_from((u64::from(cell.stage) + step) % self.stages).ok()?;
        self.cells.get(&LayoutPosition { stage, ..cell }).copied().filter(|_| self.stages > 1)
    }

    fn finish(mut self) -> Job {
        for ((name, dp_rank, stage), list) in by_group(self.collectives) {
            let members = list.iter().map(|(_, _, parts)| parts.len()).max().unwrap_or(0);
            let comm = match (dp_rank, stage) {
                (_, Some(stage)) => format!("stage {stage}"),
                (Some(dp_rank), _) => format!("DP rank {dp_rank}"),
                _ => "all".into(),
            };
            let members = u32::try_from(members).unwrap_or(u32::MAX);
            let class = CollectiveClass { comm, func: name, bytes: None, members };
            let class = Job::intern(&mut self.job.classes, class);
            for (step, ends, parts) in list {
                let step = Some(step);
                self.job.collectives.push(Collective {
                    class,
                    shape: 0,
                    step,
                    ends,
                    has_ends: true,
                    parts,
                });
            }
        }
        for (channel, mut sends) in self.sends {
            let mut receives = self.receives.remove(&channel).unwrap_or_default();
            sends.sort_unstable();
            receives.sort_unstable();
            // The n-th send matches the n-th receive.
            for (send, receive) in sends.iter().zip(&receives) {
                self.job.batches[send.2].partners.push(receive.2);
                self.job.batches[receive.2].partners.push(send.2);
            }
        }
        if !self.unknown.is_empty() {
            let names: Vec<&str> = self.unknown.iter().map(String::as_str).collect();
            self.job.notes.push(format!(
                "operations with an unknown name count as their worker's own work: {}",
                names.join(", ")
            ));
        }
        self.job
    }
}

/// A collective: step, kind of end, parts.
type Instance = (i64, EndSync, Vec<Part>);

fn by_group(collectives: BTreeMap<Key, (EndSync, Vec<Part>)>) -> BTreeMap<Group, Vec<Instance>> {
    let mut groups: BTreeMap<Group, Vec<Instance>> = BTreeMap::new();
    for ((group, step, _, _), (ends, parts)) in collectives {
        groups.entry(group).or_default().push((step, ends, parts));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::column::writer::ColumnWriter;
    use parquet::data_type::ByteArray;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    const SCHEMA: &str = "message operations { required int32 dp_rank; required int32 stage; \
                          required int64 step; required double start_ts; \
                          required double duration; required binary optype (UTF8); }";

    /// Writes a table with one operation of each of `workers` workers, each in a step of its own.
    fn write(path: &Path, workers: i32) -> parquet::errors::Result<()> {
        let schema = std::sync::Arc::new(parse_message_type(SCHEMA)?);
        let file = std::fs::File::create(path)?;
        let mut writer = SerializedFileWriter::new(file, schema, std::sync::Arc::default())?;
        let mut group = writer.next_row_group()?;
        let (mut is_stage, count) = (false, workers.unsigned_abs() as usize);
        while let Some(mut column) = group.next_column()? {
            match column.untyped() {
                ColumnWriter::Int32ColumnWriter(to) => {
                    let values = (0..workers).map(|n| if is_stage { 0 } else { n });
                    to.write_batch(&values.collect::<Vec<_>>(), None, None)?;
                    is_stage = true;
                }
                ColumnWriter::Int64ColumnWriter(to) => {
                    let values: Vec<i64> = (0..workers).map(i64::from).collect();
                    to.write_batch(&values, None, None)?;
                }
                ColumnWriter::DoubleColumnWriter(to) => {
                    to.write_batch(&vec![0.5; count], None, None)?;
                }
                ColumnWriter::ByteArrayColumnWriter(to) => {
                    let names = vec![ByteArray::from("forward-compute"); count];
                    to.write_batch(&names, None, None)?;
                }
                _ => {}
            }
            column.close()?;
        }
        group.close()?;
        writer.close().map(drop)
    }

    #[test]
    fn a_table_that_describes_too_much_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        write(&path, 100).unwrap();
        assert_eq!(read(&path).unwrap().workers.len(), 100);
        assert_eq!(rows(&path, 100).unwrap().len(), 100);
        let error = rows(&path, 99).unwrap_err().to_string();
        assert!(error.contains("it has 100 rows, more than 99"), "{error}");
        // A timeline for each worker in each step would take 200 MB here, and 480 GB for 100,000.
        write(&path, 2_001).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("2001 workers in 2001 steps"), "{error}");
    }

    #[test]
    fn a_stage_of_any_number_has_neighbours() {
        let send = |stage| Operation {
            cell: LayoutPosition { dp_rank: 0, stage },
            rank: None,
            step: 1,
            name: "forward-send".into(),
            start: 1.0,
            duration: 0.1,
            number: 0,
            chunk: 0,
        };
        for stages in [&[u32::MAX][..], &[0, u32::MAX], &[0, 1]] {
            let operations: Vec<Operation> = stages.iter().map(|&stage| send(stage)).collect();
            assert_eq!(job(&operations).workers.len(), stages.len());
        }
    }
}
