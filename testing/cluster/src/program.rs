// SPDX-License-Identifier: Apache-2.0
//! Programs: what one rank of a replayed job does, as a text.
//!
//! A program is a list of words. `40*{ … }` repeats a block, and `group{ … }` puts calls into one
//! group of NCCL. Counts are numbers of floats. A call waits until the stream is done, unless a `+`
//! precedes it. Data is not checked: ranks of a replay make calls that do not match.
//!
//! ```text
//! 40*{ work:5 allreduce:20001 } broadcast:0x64 exit:1
//! ```

use std::fmt;

/// One word of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// `N*{ … }`.
    Repeat(usize, Vec<Word>),
    /// `group{ … }`: calls in one group.
    Group(Vec<Word>),
    /// A call of NCCL; with a `+` in front of it, without a wait.
    Call(Call, Wait),
    /// `id:NAME`: creates the unique id of a communicator, and publishes it in the store.
    Id(String),
    /// `join:NAME:R,R,…`: creates communicator NAME of these ranks of the job, and uses it from
    /// here on. The first of them creates the unique id unless `id:NAME` did. The rank waits for
    /// the id in the store, as under a launcher.
    Join(String, Vec<usize>),
    /// `split:NAME:COLOR`: splits the communicator in use.
    Split(String, i32),
    /// `use:NAME`: the calls that follow are of this communicator.
    Use(String),
    /// `work:MS`: the host computes; `work:MIN-MAX`: for a time between them, drawn by the
    /// number of the rank.
    Work(Span),
    /// `busy:MS`, `busy:MIN-MAX`: the GPU computes.
    Busy(Span),
    /// `meet:NAME`: waits in the store, outside NCCL, for all ranks of the job.
    Meet(String),
    /// `load`: loads NCCL, which otherwise the first word does that needs it.
    Load,
    /// `sync`: waits for the stream.
    Sync,
    /// `abort`: aborts the communicator in use.
    Abort,
    /// `destroy`: destroys the communicator in use.
    Destroy,
    /// `starve`: takes the free slots of NCCL's pool of proxy operations after each call from here
    /// on, as a release that loses them does.
    Starve,
    /// `exit:CODE`: leaves without destroying anything, as after an uncaught exception.
    Exit(i32),
    /// `idle`: does nothing any more.
    Idle,
}

/// Milliseconds, from the first to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub u64, pub u64);

impl Span {
    /// One of them, from `random`, which takes its next value.
    pub fn draw(self, random: &mut u64) -> u64 {
        // An LCG (Knuth's MMIX); its high bits are good enough for this.
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 + (*random >> 33) % (self.1.saturating_sub(self.0) + 1)
    }
}

/// Whether a call waits for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the stream is done.
    Stream,
    /// Not at all.
    Nothing,
}

/// A call of NCCL on the communicator in use; counts are floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `allreduce:COUNT`.
    AllReduce(usize),
    /// `allgather:COUNT`, of each rank.
    AllGather(usize),
    /// `reducescatter:COUNT`, for each rank.
    ReduceScatter(usize),
    /// `broadcast:ROOTxCOUNT`.
    Broadcast(i32, usize),
    /// `send:PEERxCOUNT`.
    Send(i32, usize),
    /// `recv:PEERxCOUNT`.
    Recv(i32, usize),
}

/// Number of floats of the largest call, of one rank's part.
#[must_use]
pub fn room(words: &[Word]) -> usize {
    let of_word = |word: &Word| match word {
        Word::Repeat(_, words) | Word::Group(words) => room(words),
        Word::Call(call, _) => call.count(),
        _ => 0,
    };
    words.iter().map(of_word).max().unwrap_or(0).max(1)
}

impl Call {
    fn count(self) -> usize {
        match self {
            Call::AllReduce(count)
            | Call::AllGather(count)
            | Call::ReduceScatter(count)
            | Call::Broadcast(_, count)
            | Call::Send(_, count)
            | Call::Recv(_, count) => count,
        }
    }
}

/// Reads a program.
///
/// # Errors
/// The word that is wrong.
pub fn parse(text: &str) -> Result<Vec<Word>, String> {
    let spaced = text.replace('{', " { ").replace('}', " } ");
    block(&mut spaced.split_whitespace(), false)
}

/// The words up to the end of the program, or of an inner block, whose closing brace is consumed.
fn block<'a>(
    tokens: &mut impl Iterator<Item = &'a str>,
    is_inner: bool,
) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    while let Some(token) = tokens.next() {
        match token {
            "}" if is_inner => return Ok(words),
            "}" => return Err("a `}` without a `{`".into()),
            "group" => {
                open(token, tokens)?;
                words.push(Word::Group(block(tokens, true)?));
            }
            _ => match token.strip_suffix('*') {
                Some(times) => {
                    open(token, tokens)?;
                    words.push(Word::Repeat(number(times, token)?, block(tokens, true)?));
                }
                None => words.push(word(token)?),
            },
        }
    }
    if is_inner { Err("a `{` without a `}`".into()) } else { Ok(words) }
}

fn open<'a>(token: &str, tokens: &mut impl Iterator<Item = &'a str>) -> Result<(), String> {
    if tokens.next() == Some("{") { Ok(()) } else { Err(format!("`{token}` needs a `{{`")) }
}

fn number<T: std::str::FromStr>(text: &str, token: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{token}`: `{text}` is not a number"))
}

fn span(text: &str, token: &str) -> Result<Span, String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let span = Span(number(least, token)?, number(most, token)?);
    if span.0 > span.1 { Err(format!("`{token}`: the first is larger")) } else { Ok(span) }
}

fn word(token: &str) -> Result<Word, String> {
    let (name, rest) = token.split_once(':').unwrap_or((token, ""));
    Ok(match name {
        "id" => Word::Id(rest.into()),
        "join" => {
            let (name, ranks) = rest.split_once(':').ok_or_else(|| unknown(token))?;
            let ranks = ranks.split(',').map(|rank| number(rank, token));
            Word::Join(name.into(), ranks.collect::<Result<_, _>>()?)
        }
        "split" => {
            let (name, color) = rest.split_once(':').ok_or_else(|| unknown(token))?;
            Word::Split(name.into(), number(color, token)?)
        }
        "use" => Word::Use(rest.into()),
        "work" => Word::Work(span(rest, token)?),
        "busy" => Word::Busy(span(rest, token)?),
        "meet" => Word::Meet(rest.into()),
        "load" => Word::Load,
        "sync" => Word::Sync,
        "abort" => Word::Abort,
        "destroy" => Word::Destroy,
        "starve" => Word::Starve,
        "exit" => Word::Exit(number(rest, token)?),
        "idle" => Word::Idle,
        _ => match token.strip_prefix('+') {
            Some(token) => Word::Call(call(token)?, Wait::Nothing),
            None => Word::Call(call(token)?, Wait::Stream),
        },
    })
}

fn call(token: &str) -> Result<Call, String> {
    let (name, rest) = token.split_once(':').ok_or_else(|| unknown(token))?;
    let count = || number(rest, token);
    let pair = || {
        let (rank, count) = rest.split_once('x').ok_or_else(|| unknown(token))?;
        Ok::<_, String>((number(rank, token)?, number(count, token)?))
    };
    Ok(match name {
        "allreduce" => Call::AllReduce(count()?),
        "allgather" => Call::AllGather(count()?),
        "reducescatter" => Call::ReduceScatter(count()?),
        "broadcast" => pair().map(|(rank, count)| Call::Broadcast(rank, count))?,
        "send" => pair().map(|(rank, count)| Call::Send(rank, count))?,
        "recv" => pair().map(|(rank, count)| Call::Recv(rank, count))?,
        _ => return Err(unknown(token)),
    })
}

fn unknown(token: impl fmt::Display) -> String {
    format!("`{token}` is no word of a program; the page of cluster::program lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read() {
        let reduce = |wait| Word::Call(Call::AllReduce(7), wait);
        let text = "2*{ work:5 allreduce:7 } group{ send:1x3 recv:0x4 } +allreduce:7 exit:1";
        let pair = [Call::Send(1, 3), Call::Recv(0, 4)].map(|call| Word::Call(call, Wait::Stream));
        let want = [
            Word::Repeat(2, vec![Word::Work(Span(5, 5)), reduce(Wait::Stream)]),
            Word::Group(pair.into()),
            reduce(Wait::Nothing),
            Word::Exit(1),
        ];
        assert_eq!(parse(text).as_deref(), Ok(&want[..]));
        assert_eq!(parse("busy:3-9"), Ok(vec![Word::Busy(Span(3, 9))]));
        assert_eq!(parse("join:a:0,2"), Ok(vec![Word::Join("a".into(), vec![0, 2])]));
    }

    #[test]
    fn a_span_is_drawn_evenly_and_each_rank_draws_its_own() {
        let draws = |mut random: u64| -> Vec<u64> {
            (0..700).map(|_| Span(14, 20).draw(&mut random)).collect()
        };
        let (first, second) = (draws(0), draws(1));
        for value in 14..=20 {
            let count = first.iter().filter(|&&it| it == value).count();
            assert!((70..130).contains(&count), "{value}: {count}");
        }
        let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!((70..130).contains(&same), "{same}");
        assert_eq!(Span(5, 5).draw(&mut 0), 5);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what) in [
            ("allreduce:x", "`x` is not a number"),
            ("work:9-3", "the first is larger"),
            ("dance", "`dance` is no word"),
            ("3* allreduce:1", "`3*` needs a `{`"),
            ("work:1 }", "a `}` without"),
            ("2*{ work:1", "a `{` without"),
            ("send:1", "`send:1` is no word"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
