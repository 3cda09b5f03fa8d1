// SPDX-License-Identifier: Apache-2.0
//! Prints how often the one test finds what is wrong with a unit, in percent; in brackets, how
//! often it does in the table of `../shared/design/judgement.md`, section 3. Then the time of an
//! answer: `cargo run --release -p ncclscope-statistics --example power`.
#![expect(clippy::print_stdout, reason = "it prints a table")]

#[path = "../tests/series/mod.rs"]
mod series;

use ncclscope_statistics::{Against, Limits, compare_units};
use series::{DESIGN, Dice, Fault, Row, blocks, rates};
use std::time::Instant;

const FAULTS: [Fault; 5] = [
    Fault::Slower(0.05),
    Fault::Slower(0.2),
    Fault::Slower(2.0),
    Fault::Stalls(0.5),
    Fault::Drift(0.2),
];

fn main() {
    println!(
        "units blocks   healthy: SLOW, NOT SLOW | stalls of any: SLOW | SLOW: +5 % (NOT SLOW),"
    );
    println!(
        "    +20 %, +200 %, stalls, drift | change: healthy SLOW, NOT SLOW; drift, stalls, +20 %"
    );
    DESIGN.iter().for_each(print);
    let many = blocks(4_096, 100, Fault::Healthy, &mut Dice(1));
    for against in [Against::Peers, Against::Past] {
        let start = Instant::now();
        let answers = compare_units(&many, against, &Limits::default());
        println!("{} units, 100 blocks, {against:?}: {:.0?}", answers.len(), start.elapsed());
    }
}

fn print((units, number, design): &Row) {
    let runs = if *units > 1_000 { 60 } else { 300 };
    let of = |fault, against| rates((*units, *number), fault, against, runs);
    let healthy = of(Fault::Healthy, Against::Peers);
    let any = of(Fault::StallsOfAny(0.5), Against::Peers);
    print!("{units:5} {number:6} ");
    print!("{:5.1} {:3.0} ({:3}) |", healthy.slow + healthy.wrong, healthy.not_slow, design[0]);
    print!("{:5.1} |", any.slow + any.wrong);
    for (fault, design) in FAULTS.into_iter().zip(&design[1..]) {
        let found = of(fault, Against::Peers);
        print!(" {:3.0} ({design:3})", found.slow);
        match fault {
            Fault::Slower(0.05) => print!(" [{:.1}]", found.not_slow),
            _ if found.wrong > 0.0 => print!(" WRONG {:.1}", found.wrong),
            _ => {}
        }
    }
    let healthy = of(Fault::Healthy, Against::Past);
    print!(" |{:5.1} {:3.0};", healthy.slow + healthy.wrong, healthy.not_slow);
    for fault in [Fault::Drift(0.2), Fault::Stalls(0.5), Fault::Since(0.2)] {
        print!(" {:3.0}", of(fault, Against::Past).slow);
    }
    println!();
}
