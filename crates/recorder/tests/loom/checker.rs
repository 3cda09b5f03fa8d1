// SPDX-License-Identifier: Apache-2.0
//! Tests of the checker itself: what loom alone does not detect.

use crate::{RACE, fails, holds};
use loom::sync::atomic as shadow;
use loom::thread::spawn;
use ncclscope_recorder::model::{AtomicU64, Model};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn leak(value: u64) -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(value)))
}

/// One thread increments with a load and a store while another loads: it can see both 0 and 1.
#[test]
fn loads_do_not_hide_each_other() {
    let orders = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&orders);
    loom::model(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let value = loom::sync::Arc::new(shadow::AtomicU64::new(0));
        let ours = loom::sync::Arc::clone(&value);
        let counter = spawn(move || {
            let before = ours.load(Ordering::Relaxed);
            ours.store(before + 1, Ordering::Relaxed);
        });
        value.load(Ordering::Relaxed);
        counter.join().expect("counts");
    });
    let alone = orders.load(Ordering::Relaxed);
    assert_eq!(alone, 1, "loom sees it by itself: the turns are not needed any more");

    let value = leak(0);
    let seen = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let all = Arc::clone(&seen);
    holds("a counter", Model::default(), move || {
        let counter = spawn(move || {
            let before = value.load(Ordering::Relaxed);
            value.store(before + 1, Ordering::Relaxed);
        });
        let value = usize::try_from(value.load(Ordering::Relaxed)).expect("small");
        all[value].fetch_add(1, Ordering::Relaxed);
        counter.join().expect("counts");
    });
    assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) != 0), "{seen:?}");
}

/// A message and its flag, without the flag's release and acquire.
#[test]
fn weak_atomics_are_relaxed_and_plain_ones_are_not_raced_for() {
    let (message, flag) = (leak(0), leak(0));
    let address = |atomic: &AtomicU64| std::ptr::from_ref(atomic).addr();
    let (of_message, of_flag) = (address(message), address(flag));
    let body = move || {
        let sender = spawn(move || {
            message.store(1, Ordering::Relaxed);
            flag.store(1, Ordering::Release);
        });
        if flag.load(Ordering::Acquire) == 1 {
            assert_eq!(message.load(Ordering::Relaxed), 1, "too early");
        }
        sender.join().expect("sends");
    };
    let weak = || Model::default().weak(move |at| at == of_flag);
    let plain = move |at| at == of_message;
    holds("a message", Model::default().plain(plain), body);
    fails("too early", weak(), body);
    fails(RACE, weak().plain(plain), body);
}
