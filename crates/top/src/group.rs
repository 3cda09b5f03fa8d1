// SPDX-License-Identifier: Apache-2.0
//! Combines the ranks of a host into one row, for jobs with more ranks than a screen has lines.

use crate::judge::over_all;
use crate::picture::Row;
use std::collections::BTreeMap;

/// One row for each host of each job.
pub(crate) fn by_host(rows: &[Row]) -> Vec<Row> {
    let mut hosts: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        hosts.entry((&row.job, &row.host)).or_default().push(row);
    }
    hosts.into_values().map(|of| one(&of)).collect()
}

fn one(rows: &[&Row]) -> Row {
    let mean = |of: fn(&Row) -> Option<f64>| {
        let known: Vec<f64> = rows.iter().filter_map(|row| of(row)).collect();
        let count = u32::try_from(known.len()).unwrap_or(u32::MAX);
        (count > 0).then(|| known.iter().sum::<f64>() / f64::from(count))
    };
    let sent: Vec<f64> = rows.iter().filter_map(|row| row.sent_gbs).collect();
    let operations = rows.iter().filter_map(|row| row.operation.clone());
    let mut flags: Vec<_> = rows.iter().flat_map(|row| row.flags.iter().copied()).collect();
    flags.sort_unstable();
    flags.dedup();
    let worst = rows.iter().filter(|row| !row.flags.is_empty()).min_by_key(|row| row.flag());
    let owned: Vec<Row> = rows.iter().map(|row| (*row).clone()).collect();
    let first = rows.first().copied().cloned().unwrap_or_default();
    Row {
        rank: None,
        device: None,
        pid: None,
        flags,
        why: worst.map(|row| row.why.clone()).unwrap_or_default(),
        operation: operations.max_by(|a, b| a.age_s.total_cmp(&b.age_s)),
        in_flight: Vec::new(),
        operations_per_s: rows.iter().map(|row| row.operations_per_s).sum(),
        busbw_gbs: mean(|row| row.busbw_gbs),
        sent_gbs: (!sent.is_empty()).then(|| sent.iter().sum()),
        waiting: mean(|row| row.waiting),
        functions: over_all(&owned),
        links: Vec::new(),
        facts: Vec::new(),
        members: rows.len(),
        ..first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Flag, Operation};

    #[test]
    fn a_host_has_the_worst_flag_and_the_oldest_operation_of_its_ranks() {
        let row = |host: &str, age_s: f64, waiting: f64| Row {
            host: host.into(),
            operation: Some(Operation { age_s, ..Operation::default() }),
            operations_per_s: 2.0,
            waiting: Some(waiting),
            ..Row::default()
        };
        let bad = Row { flags: vec![Flag::Stalled], why: "x".into(), ..row("b", 1.0, 0.0) };
        let slow = Row { flags: vec![Flag::Slow], why: "y".into(), ..row("b", 3.0, 0.5) };
        let hosts = by_host(&[row("a", 0.1, 0.0), slow, bad]);
        assert_eq!(hosts.iter().map(|row| row.members).collect::<Vec<_>>(), [1, 2]);
        let host = &hosts[1];
        assert_eq!(
            (host.flags.as_slice(), host.why.as_str()),
            (&[Flag::Stalled, Flag::Slow][..], "x")
        );
        assert_eq!(host.operation.as_ref().unwrap().age_s, 3.0);
        assert_eq!((host.operations_per_s, host.waiting), (4.0, Some(0.25)));
    }
}
