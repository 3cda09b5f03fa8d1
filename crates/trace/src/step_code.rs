// SPDX-License-Identifier: Apache-2.0
/*!
Codes network steps in a block in five to eight bytes: nine of ten records are steps, and each is
similar to an earlier one.

# Why not as other records

The general coding ([`crate::codec`]) takes each word's difference to the record before it with the
same code, and spends some 14 bytes on a step. But two steps that follow each other are rarely
alike: a proxy thread polls its operations in turn, so step 7 of channel 3 comes after step 7 of
channel 2, which is of another operation, and before step 7 of channel 4. A step is similar to the
*previous step of its own operation*: it has the same flags and size, the next number and similar
waits, because all chunks of an operation cross the same link. And the next operation is the one
that came next in the previous round. The coding keeps both for 128 operations at a time, so an
ordinary step is only five differences of times, each a few bits long: the noise of the network in
nanoseconds.

The coded times are those *between* the states, not from the start: if a send waited longer for its
GPU, all later states are late by as much, and only one difference is not 0.

# The code

The prediction of a step comes from the latest step with the same lowest bits of its operation: the
next number, the same flags, repeats and bytes. The operation that follows is expected to be the one
that followed last time. If all of that is right, it takes no bytes. If not, *corrections* come
first: `0x7f`, a byte of [`correct`] bits, and in the order of these bits the numbers that differ,
LEB128.

Then the times: two bytes, the high byte first. Bit 15 is set; the others are five lengths of three
bits in units of four bits, from bits 12 to 14 down. Five differences of these lengths follow, each
from the lowest free bit on, padded to a whole byte. They are zigzag-coded differences to the
predicted step of: the time between its start and the previous step's start, and the times from
start to first, second and third state and stop, each from the one before. Differences of 2^28 and
more are corrections.
*/

use crate::bytes::{In, Out, high, low, unzigzag, unzigzag32, zigzag, zigzag32};
use crate::words::{STEP, halves};

/// The byte that corrections begin with: no record has this code.
pub(crate) const CORRECTIONS: u8 = 0x7f;

/// Bits of the corrections.
mod correct {
    pub(super) const CONTEXT: u8 = 1;
    /// The operation's bits above the context: a zigzag difference. The number is expected to be 0
    /// then.
    pub(super) const OP: u8 = 1 << 1;
    /// The step's number: a zigzag difference.
    pub(super) const NUMBER: u8 = 1 << 2;
    pub(super) const FLAGS: u8 = 1 << 3;
    /// How often the second state was repeated.
    pub(super) const REPEATS: u8 = 1 << 4;
    /// Bytes: a zigzag difference.
    pub(super) const SIZE: u8 = 1 << 5;
    /// The zigzag difference of the time since the start of the previous step; the difference among
    /// the times is then 0.
    pub(super) const START: u8 = 1 << 6;
    /// The four times of words 3 and 4, not as differences; the four differences among the times
    /// are then 0.
    pub(super) const TIMES: u8 = 1 << 7;
}

/// A step's words, as [`crate::record`] lays them out.
pub(crate) type Words = [u64; STEP_WORDS];
pub(crate) const STEP_WORDS: usize = 5;

/// Number of lowest bits of an operation that select its context.
const CONTEXT_BITS: u32 = 7;
const CONTEXTS: usize = 1 << CONTEXT_BITS;
const CONTEXT_MASK: u8 = (1 << CONTEXT_BITS) - 1;
const NUMBER: u64 = 1 << 32;
/// Limit of the differences of times; larger ones are corrections.
const MOST: u64 = 1 << 28;

/// The prediction of the next step of an operation.
#[derive(Clone, Copy, Debug)]
struct Context {
    /// Word 0: flags, repeats and number.
    head: u64,
    /// Word 2: operation and size.
    what: u64,
    /// Time between its start and that of the step before it.
    since: u64,
    /// Times between start, states and stop.
    gaps: [u32; 4],
    /// The context of the step that follows.
    next: u8,
}

/// The predictions for the steps of a block.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    contexts: [Context; CONTEXTS],
    /// Context of the latest step.
    latest: u8,
    start: u64,
}

/// The contexts before the first step.
const BEFORE: [Context; CONTEXTS] = {
    let context = Context { head: STEP as u64, what: 0, since: 0, gaps: [0; 4], next: 0 };
    let mut contexts = [context; CONTEXTS];
    let mut index = 0;
    while index < CONTEXTS {
        contexts[index].what = index as u64;
        index += 1;
    }
    contexts
};

impl Steps {
    /// The predictions at the beginning of a block whose times are counted from `ticks`.
    pub(crate) fn new(ticks: u64) -> Steps {
        Steps { contexts: BEFORE, latest: 0, start: ticks }
    }

    #[inline(always)]
    fn context(&mut self, index: u8) -> &mut Context {
        &mut self.contexts[usize::from(index) % CONTEXTS]
    }

    /// Updates the predictions with a step.
    #[inline(always)]
    fn learn(&mut self, index: u8, &[head, start, what, ..]: &Words, gaps: [u32; 4]) {
        let since = start.wrapping_sub(self.start);
        let latest = self.latest;
        self.context(latest).next = index;
        let head = head.wrapping_add(NUMBER);
        let context = self.context(index);
        // `next` is not changed.
        (context.head, context.what, context.since, context.gaps) = (head, what, since, gaps);
        (self.latest, self.start) = (index, start);
    }

    /// Writes the steps at the start of `words` and returns their number. It is a separate
    /// function, because inlined among the code for other records the loop has too few registers.
    /// Raises `latest` to the latest time stamp.
    #[inline(never)]
    pub(crate) fn encode_run(
        &mut self,
        words: &[u64],
        out: &mut Out<'_>,
        latest: &mut u64,
    ) -> usize {
        let (steps, _) = words.as_chunks();
        // A local copy stays in registers.
        let mut own = Out::new(out.bytes, out.at);
        let (mut count, mut last) = (0, *latest);
        for step in steps {
            if step[0].to_le_bytes()[0] != STEP {
                break;
            }
            self.encode(step, &mut own);
            last = last.max(step[1]);
            count += 1;
        }
        (out.at, *latest) = (own.at, last);
        count
    }

    #[inline(always)]
    fn encode(&mut self, words: &Words, out: &mut Out<'_>) {
        let &[head, start, what, early, late] = words;
        let index = what.to_le_bytes()[0] & CONTEXT_MASK;
        let latest = self.latest;
        let next = self.context(latest).next;
        let since = start.wrapping_sub(self.start);
        let expected = self.context(index);
        let delay = zigzag(since.wrapping_sub(expected.since));
        let gaps = gaps([low(early), high(early), low(late), high(late)]);
        let mut numbers = [low(delay), 0, 0, 0, 0];
        let mut bits = delay;
        let pairs = gaps.iter().zip(&expected.gaps);
        for (number, (gap, expected)) in numbers.iter_mut().skip(1).zip(pairs) {
            *number = zigzag32(gap.wrapping_sub(*expected));
            bits |= u64::from(*number);
        }
        if next != index || head != expected.head || what != expected.what || bits >= MOST {
            let at = Out::new(out.bytes, out.at);
            (out.at, numbers) = self.correct(words, (index, next), delay, numbers, at);
        }
        // Before the numbers are written, because that needs the registers.
        self.learn(index, words, gaps);
        put_numbers(&numbers, out);
    }

    /// Writes the corrections.
    #[cold]
    #[inline(never)]
    fn correct(
        &mut self,
        &[head, _, what, early, late]: &Words,
        (index, next): (u8, u8),
        delay: u64,
        mut numbers: [u32; 5],
        mut out: Out<'_>,
    ) -> (usize, [u32; 5]) {
        let expected = self.context(index);
        let above = |what| low(what) >> CONTEXT_BITS;
        let op = above(what).wrapping_sub(above(expected.what));
        let number = high(head).wrapping_sub(if op == 0 { high(expected.head) } else { 0 });
        let size = high(what).wrapping_sub(high(expected.what));
        let [flags, expected_flags] = [head, expected.head].map(|head| head >> 8 & 0xff);
        let [repeats, expected_repeats] = [head, expected.head].map(|head| head >> 16 & 0xffff);
        let begin = out.at;
        out.word(u64::from(CORRECTIONS), 2);
        let mut mask = 0;
        let mut put = |bit: u8, differs: bool, value: u64| {
            if differs {
                mask |= bit;
                out.number(value);
            }
        };
        put(correct::CONTEXT, index != next, u64::from(index));
        put(correct::OP, op != 0, zigzag32(op).into());
        put(correct::NUMBER, number != 0, zigzag32(number).into());
        put(correct::FLAGS, flags != expected_flags, flags);
        put(correct::REPEATS, repeats != expected_repeats, repeats);
        put(correct::SIZE, size != 0, zigzag32(size).into());
        put(correct::START, delay >= MOST, delay);
        let [since, gaps @ ..] = &mut numbers;
        if delay >= MOST {
            *since = 0;
        }
        if gaps.iter().any(|&gap| u64::from(gap) >= MOST) {
            *gaps = [0; 4];
            let times = [low(early), high(early), low(late), high(late)];
            times.into_iter().for_each(|time| put(correct::TIMES, true, time.into()));
        }
        out.set(begin + 1, mask);
        (out.at, numbers)
    }

    /// Decodes a step. Any bytes decode to one.
    #[inline(always)]
    pub(crate) fn decode(&mut self, from: &mut In<'_>) -> Words {
        let latest = self.latest;
        let mut index = self.context(latest).next;
        if from.peek(0).to_le_bytes()[0] == CORRECTIONS {
            index = self.take_corrections(from, index);
        }
        let expected = self.context(index);
        let [delay, differences @ ..] = take_numbers(from);
        let since = expected.since.wrapping_add(unzigzag(u64::from(delay)));
        let (head, what, mut gaps) = (expected.head, expected.what, expected.gaps);
        for (gap, difference) in gaps.iter_mut().zip(differences) {
            *gap = gap.wrapping_add(unzigzag32(difference));
        }
        let [first, second, third, end] = sums(gaps);
        let start = self.start.wrapping_add(since);
        let words = [head, start, what, halves(first, second), halves(third, end)];
        self.learn(index, &words, gaps);
        words
    }

    /// Applies corrections to a prediction, and returns the index of its context.
    #[cold]
    #[inline(never)]
    fn take_corrections(&mut self, from: &mut In<'_>, mut index: u8) -> u8 {
        from.byte();
        let mask = from.byte();
        let mut take = |bit: u8| (mask & bit != 0).then(|| from.number());
        if let Some(context) = take(correct::CONTEXT) {
            index = context.to_le_bytes()[0] & CONTEXT_MASK;
        }
        let context = self.context(index);
        let [code, mut flags, ..] = context.head.to_le_bytes();
        let mut repeats = context.head >> 16 & 0xffff;
        let (mut number, mut size) = (high(context.head), high(context.what));
        let mut op = low(context.what) >> CONTEXT_BITS;
        if let Some(difference) = take(correct::OP) {
            op = op.wrapping_add(unzigzag32(low(difference)));
            number = 0;
        }
        if let Some(difference) = take(correct::NUMBER) {
            number = number.wrapping_add(unzigzag32(low(difference)));
        }
        if let Some(bits) = take(correct::FLAGS) {
            [flags, ..] = bits.to_le_bytes();
        }
        if let Some(count) = take(correct::REPEATS) {
            repeats = count & 0xffff;
        }
        if let Some(difference) = take(correct::SIZE) {
            size = size.wrapping_add(unzigzag32(low(difference)));
        }
        if let Some(delay) = take(correct::START) {
            context.since = context.since.wrapping_add(unzigzag(delay));
        }
        if mask & correct::TIMES != 0 {
            context.gaps = gaps([(); 4].map(|()| low(take(correct::TIMES).unwrap_or(0))));
        }
        let head = halves(u32::from(code) | u32::from(flags) << 8 | low(repeats) << 16, number);
        context.head = head;
        context.what = halves(op << CONTEXT_BITS | u32::from(index), size);
        index
    }
}

/// The times between successive states, from the times since the start.
#[inline(always)]
const fn gaps([first, second, third, end]: [u32; 4]) -> [u32; 4] {
    [first, second.wrapping_sub(first), third.wrapping_sub(second), end.wrapping_sub(third)]
}

/// The inverse of [`gaps`].
#[inline(always)]
const fn sums([first, second, third, end]: [u32; 4]) -> [u32; 4] {
    let second = second.wrapping_add(first);
    let third = third.wrapping_add(second);
    [first, second, third, end.wrapping_add(third)]
}

/// The length of a number in units of four bits.
#[inline(always)]
const fn size(number: u32) -> u32 {
    (number << 1 | 1).ilog2().div_ceil(4)
}

/// Writes numbers below [`MOST`].
#[inline(always)]
fn put_numbers(numbers: &[u32; 5], out: &mut Out<'_>) {
    let (mut control, mut bits, mut widths) = (1, 16, [0; 5]);
    let mut word = 0;
    for (width, &number) in widths.iter_mut().zip(numbers) {
        let size = size(number);
        control = control << 3 | size;
        *width = 4 * size;
        word |= u64::from(number) << (bits & 63);
        bits += *width;
    }
    let control = u64::from(control >> 8 | (control & 0xff) << 8);
    if bits <= 64 {
        out.word(control | word, bits.div_ceil(8) as usize);
        return;
    }
    out.word(control, 2);
    let (mut word, mut at) = (0, 0);
    for (&number, width) in numbers.iter().zip(widths) {
        word |= u64::from(number) << at;
        at += width;
        out.word(word, (at / 8) as usize);
        word >>= at & !7;
        at %= 8;
    }
    out.word(word, at.div_ceil(8) as usize);
}

#[inline(always)]
fn take_numbers(from: &mut In<'_>) -> [u32; 5] {
    let [first, second, ..] = from.peek(0).to_le_bytes();
    let control = u32::from(first) << 8 | u32::from(second);
    let (mut at, mut shift, mut numbers) = (16, 15, [0; 5]);
    for number in &mut numbers {
        shift -= 3;
        let width = 4 * (control >> shift & 7);
        let word = from.peek((at / 8) as usize) >> (at % 8);
        at += width;
        *number = low(word & ((1 << width) - 1));
    }
    from.at += at.div_ceil(8) as usize;
    numbers
}
