// SPDX-License-Identifier: Apache-2.0
//! `ncclscope diagnose --ras` with servers that are not a healthy job: they end, are of several
//! jobs, or are none.

use crate::common::{Outcome, simulate, tool};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

/// A job of two ranks, as RAS shows it; rank 1 has launched so many operations, rank 0 `calls`.
fn job(hash: &str, calls: u64, of_rank_1: u64) -> String {
    let rank = |rank: u64, count: u64| {
        json!({
            "rank": rank, "host": "node1", "pid": 100 + rank, "cuda_dev": rank,
            "collective_counts": {"AllReduce": count},
            "status": {"unresponsive": false, "considered_dead": false, "async_error": 0},
        })
    };
    let ranks = [rank(0, calls), rank(1, of_rank_1)];
    let comms = [json!({"hash": hash, "size": 2, "ranks": ranks, "missing_ranks": []})];
    json!({"nccl_version": "2.32.3", "timestamp": "2026-11-30 01:00:00", "communicators": comms})
        .to_string()
}

fn play(stream: TcpStream, answer: &str) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for reply in ["SERVER PROTOCOL 2\n", "OK\n", "OK\n", answer] {
        lines.next();
        (&stream).write_all(reply.as_bytes()).unwrap();
    }
}

/// A server that gives these answers, one to a connection, and then ends; its address.
fn serve(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for answer in answers {
            play(listener.accept().unwrap().0, &answer);
        }
    });
    address
}

/// The ranks of the first finding, and standard error.
fn diagnosed(address: &str, inputs: &[&Path], code: i32) -> (Option<Value>, String) {
    let mut command = tool();
    command.args(["diagnose", "--format", "json", "--ras", address]).args(inputs);
    let out = Outcome::of(&mut command).ends_with(code);
    let found: Option<Value> = serde_json::from_str(&out.stdout).ok();
    (found.map(|found| found["findings"][0]["root_ranks"].clone()), out.stderr)
}

#[test]
fn a_job_that_ends_between_two_questions_is_judged_by_the_first_answer() {
    let (ranks, warned) = diagnosed(&serve(vec![job("0xa", 6, 5)]), &[], 3);
    assert_eq!(ranks, Some(json!([1])), "{warned}");
    assert!(warned.contains("the first answer alone is judged"), "{warned}");
}

#[test]
fn answers_of_two_jobs_are_not_compared() {
    let answers = [job("0xa", 6, 5), job("0xb", 900, 900), job("0xa", 6, 5)];
    let (ranks, warned) = diagnosed(&serve(answers.to_vec()), &[], 1);
    assert_eq!(ranks, Some(json!([1])), "{warned}");
    assert!(warned.contains("processes of several jobs answer"), "{warned}");
}

#[test]
fn recordings_are_judged_where_ras_does_not_answer() {
    let place = tempfile::tempdir().unwrap();
    let fault = ["--ranks", "8", "--fault", "host-stuck", "--rank", "3"];
    let run = simulate(place.path(), "run", "", &fault);
    let nothing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (ranks, warned) = diagnosed(&nothing, &[&run], 3);
    assert_eq!(ranks, Some(json!([3])), "{warned}");
    assert!(warned.contains("cannot ask NCCL's RAS"), "{warned}");
    let (ranks, warned) = diagnosed(&nothing, &[], 3);
    assert_eq!(ranks, None, "{warned}");
    // Recordings of another job than the one that answers.
    let address = serve(vec![job("0xdead", 6, 6), job("0xdead", 9, 9)]);
    let mut command = tool();
    command.args(["diagnose", "--ras", &address]).arg(&run);
    let said = Outcome::of(&mut command).ends_with(1).stdout;
    assert!(
        said.contains("communicators that the input does not have (1, such as 0xdead)"),
        "{said}"
    );
}

/// It sends without end, and is refused by its first line.
#[test]
fn a_server_of_another_kind_is_refused_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        }
    });
    let (_, warned) = diagnosed(&address, &[], 3);
    assert!(warned.contains("is not NCCL's RAS"), "{warned}");
}
