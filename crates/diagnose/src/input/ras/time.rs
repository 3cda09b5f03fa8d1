// SPDX-License-Identifier: Apache-2.0
//! Times as NCCL's RAS prints them.

/// Seconds of a time as NCCL prints it, `YYYY-MM-DD HH:MM:SS`, since its month began, or of
/// `Ras::at`.
pub(super) fn seconds(time: &str) -> Option<f64> {
    let Some((date, clock)) = time.split_once(' ') else { return time.parse().ok() };
    let days = date.split('-').next_back()?.parse::<f64>().ok()?;
    let [hours, minutes, seconds] = clock.splitn(3, ':').collect::<Vec<_>>()[..] else {
        return None;
    };
    let [hours, minutes, seconds] = [hours, minutes, seconds].map(|part| part.parse::<f64>().ok());
    Some(((days * 24.0 + hours?) * 60.0 + minutes?) * 60.0 + seconds?)
}
