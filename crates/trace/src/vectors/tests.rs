// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::progress::{OpProgress, Progress, Setup, Thread};
use crate::{Comm, Definition, Heartbeat, StrId};

fn sample(n: u32) -> Vector {
    Vector {
        comm: u64::from(n) << 40 | 7,
        process: n,
        rank: n + 1,
        nranks: n + 2,
        api: n + 3,
        enqueued: n + 4,
        started: n + 5,
        done: n + 6,
        age_ms: n + 7,
        hash: u64::MAX - u64::from(n),
        hash_at: n + 8,
        flags: n + 9,
        changed_ms: n + 10,
        born_ms: n + 11,
        job: u64::from(n) << 33,
        origin: u64::MAX - 9,
        p2p_enqueued: n + 12,
        p2p_done: n + 13,
    }
}

fn transfer(vector: u32, is_send: bool, reached: Option<u8>) -> OpenTransfer {
    OpenTransfer {
        vector,
        peer: -3,
        channel: 200,
        is_send,
        may_be_early: !is_send,
        reached,
        steps: 1,
        posted: 2,
        ready: 3,
        transmitted: 4,
        done: 5,
        still_ms: u32::MAX,
    }
}

fn process(origin: u64) -> ProcessFacts {
    let thread = ThreadFacts {
        tid: 1,
        state: b'D',
        kinds: 3,
        place: "folio_wait_bit_common".into(),
        span_ns: u64::MAX,
        cpu_ns: 4,
        delay_ns: 5,
    };
    let [function, connects, listens] = ["ncclCommSplit", "10.0.0.1:7", ""].map(str::to_owned);
    ProcessFacts {
        job: 7,
        process: 6,
        origin,
        pid: 5,
        host: "node-0".into(),
        heard_ns: 4 << 40,
        idle_ms: (origin == 1).then_some(9),
        setup: (origin == 1).then_some(SetupFacts { age_ms: 8, function, connects, listens }),
        kinds: 3,
        threads: vec![thread.clone(), ThreadFacts { place: String::new(), ..thread }],
    }
}

fn whole() -> Table {
    Table {
        vectors: (0..5).map(sample).collect(),
        transfers: vec![
            transfer(0, true, None),
            transfer(3, false, Some(0)),
            transfer(3, true, Some(3)),
        ],
        jobs: BTreeMap::from([(7, "4711.0".to_owned()), (9, "b".to_owned())]),
        processes: vec![process(1), process(2)],
        made_ns: 5 << 40,
        damage: vec![],
    }
}

#[test]
fn a_table_comes_back_and_a_cut_one_gives_what_is_whole() {
    let table = whole();
    let bytes = table.bytes();
    assert_eq!(read_table(&bytes).unwrap(), table);
    let mut before = Table::default();
    for cut in 0..bytes.len() {
        let Ok(found) = read_table(&bytes[..cut]) else {
            assert!(cut < HEAD);
            continue;
        };
        assert!(table.vectors.starts_with(&found.vectors), "{cut}");
        assert!(table.transfers.starts_with(&found.transfers), "{cut}");
        assert!(table.processes.starts_with(&found.processes), "{cut}");
        assert!(found.jobs.iter().all(|job| table.jobs.get(job.0) == Some(job.1)), "{cut}");
        let sizes = |table: &Table| {
            let Table { vectors, transfers, jobs, processes, .. } = table;
            [vectors.len(), transfers.len(), jobs.len(), processes.len()]
        };
        let all = sizes(&table);
        assert!(sizes(&before).into_iter().zip(sizes(&found)).all(|(a, b)| a <= b), "{cut}");
        let names = ["vectors", "transfers", "names of jobs", "processes"];
        let lacks = (0..4).filter(|&at| sizes(&found)[at] < all[at]);
        let lacks: Vec<String> = lacks
            .map(|at| format!("of {} {} it has {}", all[at], names[at], sizes(&found)[at]))
            .collect();
        assert_eq!(found.damage, lacks, "{cut}");
        before = found;
    }
}

#[test]
fn tables_that_follow_one_another_are_one() {
    let bytes = whole().bytes();
    let both = read_table(&[&bytes[..], &bytes].concat()).unwrap();
    let mut expected = whole();
    expected.append(whole());
    assert_eq!(both, expected);
    assert_eq!(
        both.transfers_of(8),
        both.transfers_of(3)
            .iter()
            .map(|it| { OpenTransfer { vector: 8, ..*it } })
            .collect::<Vec<_>>()
    );
    assert_eq!(both.transfers_of(8).len(), 2);
    let damage = |bytes: &[u8]| read_table(bytes).unwrap().damage;
    assert_eq!(
        damage(&[&bytes[..], b"x"].concat()),
        ["it does not end where its header says (1 B more)"]
    );
    let cut = [&bytes[..], &bytes[..100]].concat();
    assert_eq!(damage(&cut)[0], "of 5 vectors it has 0");
    assert!(
        damage(&[&bytes[..], &bytes[..9]].concat())[0].starts_with("of the next table in it: ")
    );
}

#[test]
fn a_table_that_is_none_or_of_another_version_is_an_error() {
    let mut bytes = whole().bytes();
    bytes[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let damage = read_table(&bytes).unwrap().damage;
    assert_eq!(damage[0], "its header has an impossible number of vectors");
    bytes[8] = 2;
    assert!(matches!(read(&bytes), Err(Error::OtherTable { found: 2, known: 3 })));
    assert!(matches!(read(b"NCCLSCOP"), Err(Error::NotARecording)));
    assert!(matches!(read(b""), Err(Error::Empty)));
    let mut one = Vec::new();
    write(&mut one, &whole().vectors).unwrap();
    assert_eq!(read(&one).unwrap(), whole().vectors);
}

#[test]
fn vectors_that_are_left_out_take_their_transfers_with_them() {
    let mut table = whole();
    table.retain(|vector| vector.process != 0);
    assert_eq!(table.vectors, whole().vectors[1..]);
    let transfers = [transfer(2, false, Some(0)), transfer(2, true, Some(3))];
    assert_eq!(table.transfers, transfers);
    let one = whole().of_jobs(|job| job == 7);
    assert_eq!((one.vectors.len(), one.jobs.len(), one.processes.len()), (0, 1, 2));
}

#[test]
fn jobs_and_processes_have_a_number_each() {
    let mut one = Identity { pid: Some(7), host: Some("a".into()), ..Identity::default() };
    assert_eq!(job_number(&one), 0);
    one.set("job", "4711.0");
    let mut again = one.clone();
    again.set("run", "4711.0 1");
    let other = Identity { pid: Some(8), ..one.clone() };
    assert!(job_number(&one) != 0 && job_number(&one) != job_number(&again));
    assert_eq!(job_number(&one), job_number(&other));
    assert_eq!(origin_number(&one), origin_number(&again));
    assert_ne!(origin_number(&one), origin_number(&other));
}

const PLACE: ProcessPlace<'_> = ProcessPlace { host: "node-0", pid: 9, heard_ns: 1_000, kinds: 3 };

/// A process with communicators 0 (of 8 ranks) and 1.
fn reach() -> Reach {
    let mut reach = Reach::default();
    for (index, ranks, rank) in [(0, 8, 5), (1, 2, 1), (2, 4, 0)] {
        let hash = 0x10 + u64::from(index);
        let comm = Comm { index, hash, ranks, rank, ..Comm::default() };
        reach.define(&Definition::Comm(comm));
    }
    reach.define(&Definition::CommEnd { index: 2, ticks: 9 });
    reach
}

fn table_of(reach: &Reach, now: u64) -> Table {
    let mut table = Table::default();
    reach.add_to(&mut table, 0, (now, 1_000), PLACE);
    table
}

#[test]
fn the_latest_of_each_living_communicator_is_told() {
    let mut reach = reach();
    for (ticks, done) in [(10, 3), (20, 4)] {
        let (api, enqueued, started) = (7, 6, 5);
        let (age_ms, p2p_enqueued, p2p_done) = (9, 5, 4);
        let p = Progress { ticks, api, enqueued, started, done, age_ms, ..Progress::default() };
        reach.note(&Heartbeat::Progress(Progress { p2p_enqueued, p2p_done, ..p }));
        reach.note(&Heartbeat::Progress(Progress { ticks, comm: 1, ..Progress::default() }));
    }
    let found = reach.vectors(vector_flags::SILENT, 50, 1_000);
    assert_eq!(found.len(), 2);
    let [first, second] = [found[0], found[1]];
    assert_eq!((first.comm, first.process, first.rank, first.nranks), (0x10, 5, 5, 8));
    assert_eq!([first.api, first.enqueued, first.started, first.done], [7, 6, 5, 4]);
    assert_eq!((first.born_ms, first.changed_ms), (9 + 30, 30), "it was written 30 ms ago");
    assert_eq!((second.age_ms, second.born_ms), (0, 0), "nothing is in flight");
    assert_eq!(first.flags, vector_flags::SILENT);
    assert_eq!(second.flags, vector_flags::SILENT | vector_flags::BUSY_ELSEWHERE);
    assert_eq!((first.p2p_enqueued, first.p2p_done, first.job), (5, 4, 0));
    let (p2p_api, p2p_enqueued) = (6, 5);
    let p = Progress { ticks: 40, p2p_api, p2p_enqueued, ..Progress::default() };
    reach.note(&Heartbeat::Progress(p));
    let mut identity = Identity { rank: Some(42), ..Identity::default() };
    identity.set("job", "4711.0");
    reach.identify(&identity);
    let found = reach.vectors(0, 50, 1_000)[0];
    assert_eq!((found.process, found.job), (42, job_number(&identity)));
    assert_eq!(found.origin, origin_number(&identity));
    assert_eq!(found.flags, vector_flags::IN_P2P_CALL);
}

/// A rank that enqueues ahead waits for the operation before, which completes all the time.
#[test]
fn an_operation_that_was_enqueued_ahead_is_not_older_than_the_end_of_the_one_before() {
    let mut reach = reach();
    let note = |reach: &mut Reach, ticks: u64, done: u64, age_ms: u32| {
        let p = Progress { ticks, done, age_ms, enqueued: 9_000, ..Progress::default() };
        reach.note(&Heartbeat::Progress(p));
        let found = reach.vectors(0, ticks + 500, 1_000)[0];
        (found.age_ms, found.born_ms)
    };
    assert_eq!(note(&mut reach, 50_000, 100, 47_000), (47_500, 47_500), "not seen to complete");
    assert_eq!(note(&mut reach, 51_000, 166, 48_000), (500, 48_500));
    assert_eq!(note(&mut reach, 90_000, 166, 87_000), (39_500, 87_500), "it waits since then");
}

#[test]
fn transfers_that_stand_still_are_told_and_not_those_of_before() {
    let mut reach = reach();
    let mut identity = Identity::default();
    identity.set("net_plugin", "libnccl-net-ofi.so");
    reach.identify(&identity);
    let op = OpProgress { comm: 1, steps: 8, done: 2, ..OpProgress::default() };
    let note = |reach: &mut Reach, ticks: u64, ops: &[OpProgress]| {
        let p = Progress { ticks, comm: 1, enqueued: 1, ..Progress::default() };
        reach.note(&Heartbeat::Progress(p));
        ops.iter().for_each(|op| reach.note(&Heartbeat::Op(OpProgress { ticks, ..*op })));
    };
    note(&mut reach, 5_000, &[OpProgress { peer: 9, ..op }]);
    let still = OpProgress { since: 2_000, reached: Some(3), is_send: true, channel: 4, ..op };
    let all = [still, OpProgress { since: 5_900, ..op }, OpProgress { done: 8, ..op }, op];
    note(&mut reach, 6_000, &all);
    reach.note(&Heartbeat::Progress(Progress { ticks: 6_000, ..Progress::default() }));
    let table = table_of(&reach, 6_500);
    assert_eq!(table.vectors.len(), 2);
    let of = |is_send: bool, channel, reached, still_ms| OpenTransfer {
        vector: 1,
        steps: 8,
        done: 2,
        may_be_early: !is_send,
        is_send,
        channel,
        reached,
        still_ms,
        ..OpenTransfer::default()
    };
    assert_eq!(table.transfers, [of(true, 4, Some(3), 4_500), of(false, 0, None, 6_500)]);
    note(&mut reach, 7_000, &[]);
    assert_eq!(table_of(&reach, 7_500).transfers, []);
    // Of many, both directions are kept, and those that stand still for longest.
    let sends = (0..70).map(|at| OpProgress { is_send: true, since: at, ..op });
    let all: Vec<OpProgress> = sends.chain([OpProgress { since: 5_000, ..op }]).collect();
    note(&mut reach, 8_000, &all);
    let found = table_of(&reach, 8_000).transfers;
    assert_eq!(found.len(), 64);
    assert_eq!(found.iter().filter(|it| it.is_send).map(|it| it.still_ms).min(), Some(7_938));
    assert!(found.iter().any(|it| !it.is_send));
}

#[test]
fn threads_and_looks_are_told_with_their_texts() {
    let mut reach = reach();
    for (id, text) in [(1, "futex_wait"), (2, "ncclCommSplit"), (3, "10.0.0.1:7")] {
        reach.define(&Definition::String { id: StrId(id), text: text.into() });
    }
    for look in 0..20 {
        let (ticks, cpu_ns) = (look * 1_000, look * 7);
        let thread = Thread { ticks, tid: 8, state: b'S', cpu_ns, kinds: 5, ..Thread::default() };
        reach.note(&Heartbeat::Thread(Thread { place: StrId(1), ..thread }));
    }
    let facts = |reach: &Reach| table_of(reach, 30_000).processes.remove(0);
    let found = facts(&reach);
    assert_eq!(
        (found.host.as_str(), found.pid, found.heard_ns, found.kinds),
        ("node-0", 9, 1_000, 3)
    );
    assert_eq!((found.idle_ms, found.setup.clone()), (None, None));
    let [thread] = &found.threads[..] else { panic!("{found:?}") };
    assert_eq!((thread.tid, thread.state, thread.place.as_str()), (8, b'S', "futex_wait"));
    assert_eq!((thread.span_ns, thread.cpu_ns), (10_000_000_000, 70));
    let beat =
        |beat: u64| Heartbeat::Progress(Progress { ticks: beat, beat, ..Progress::default() });
    reach.note(&beat(10_000));
    let [function, connects, listens] = [StrId(2), StrId(3), StrId::NONE];
    let look = Setup { ticks: 20_000, tid: 8, function, connects, listens };
    reach.note(&Heartbeat::Setup(look));
    reach.note(&Heartbeat::Setup(Setup { ticks: 24_000, ..look }));
    let found = facts(&reach);
    let setup = found.setup.unwrap();
    assert_eq!(setup.age_ms, 10_000, "since it was first seen");
    assert_eq!((setup.function.as_str(), setup.connects.as_str()), ("ncclCommSplit", "10.0.0.1:7"));
    assert_eq!(found.idle_ms, Some(21_000));
    reach.note(&beat(25_000));
    assert_eq!(facts(&reach).setup, None, "it has called something since");
}
