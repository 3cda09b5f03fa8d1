// SPDX-License-Identifier: Apache-2.0
//! Decodes a collector's answer, which may come by HTTP or gRPC.

use ncclscope_metrics::encode::otlp::parse_response;
use ncclscope_metrics::send::Answer;

/// Decodes what a collector accepted, and its message about it.
pub(crate) fn taken(answer: Vec<u8>) -> Answer {
    let response = parse_response(&answer).unwrap_or_default();
    match response.line() {
        Some(line) => Answer::Remarked(response.rejected, line),
        None => Answer::Taken(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_that_are_rejected_are_not_taken() {
        let rejected = vec![0x0a, 2, 0x08, 7];
        assert_eq!(taken(rejected), Answer::Remarked(7, "points were rejected: ".into()));
        let warned = vec![0x0a, 3, 0x12, 1, b'x'];
        let warning = "it took everything, but warns: x".into();
        assert_eq!(taken(warned), Answer::Remarked(0, warning));
        for answer in [vec![], b"{}".to_vec()] {
            assert_eq!(taken(answer.clone()), Answer::Taken(answer));
        }
    }
}
