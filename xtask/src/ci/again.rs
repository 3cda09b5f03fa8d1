// SPDX-License-Identifier: Apache-2.0
//! Counts the tests and jobs that passed only after another try. Each is a defect to be traced;
//! with many of them a run proves little.

/// Maximum number of them in a run that passes.
const MOST: usize = 5;

/// The names of the tests and jobs that needed another try.
#[derive(Debug, Default)]
pub(super) struct Again(Vec<String>);

impl Again {
    pub(super) fn add_job(&mut self, name: &str) {
        self.0.push(format!("job {name}"));
    }

    /// Adds the flaky tests of nextest's output. Its list of them, `FLAKY 2/3 [   1.5s] (7/9)
    /// rig::hang name`, follows its summary.
    pub(super) fn add_tests(&mut self, output: &str) {
        let mut lines = output.lines().map(str::trim);
        lines.find(|line| line.starts_with("Summary ["));
        let flaky = lines.filter_map(|line| line.strip_prefix("FLAKY ")?.split_once("] "));
        self.0.extend(flaky.map(|(_, test)| match test.split_once(") ") {
            Some((_, name)) if test.starts_with('(') => name.to_owned(),
            _ => test.to_owned(),
        }));
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.0.len() > MOST
    }

    pub(super) fn line(&self) -> String {
        let limit = if self.are_too_many() { format!(" (limit {MOST})") } else { String::new() };
        let names =
            if self.0.is_empty() { String::new() } else { format!(": {}", self.0.join(", ")) };
        format!("{} tests or jobs needed another try{limit}{names}", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaky_tests_are_named_once() {
        let output = "  TRY 1 FAIL [   0.6s] (───) rig::hang a_rank\n  FLAKY 2/3 [ 0.1s] printed\n \
                      TRY 2 PASS [   0.1s] (2/9) rig::hang a_rank\n     Summary [   0.7s] 9 tests \
                      run: 9 passed (2 flaky), 0 skipped\n   FLAKY 2/3 [   0.1s] (2/9) \
                      rig::hang a_rank\n   FLAKY 3/3 [   0.2s] stepper tests::steps\n";
        let mut again = Again::default();
        assert_eq!(again.line(), "0 tests or jobs needed another try");
        again.add_tests(output);
        again.add_job("asan");
        let names = "rig::hang a_rank, stepper tests::steps, job asan";
        assert_eq!(again.line(), format!("3 tests or jobs needed another try: {names}"));
        again.add_tests("test result: ok. 4 passed\n FLAKY 2/3 [ 0.1s] printed");
        assert_eq!(again.0.len(), 3, "cargo test tries once");
    }

    #[test]
    fn more_than_five_are_too_many() {
        let mut again = Again::default();
        (0..MOST).for_each(|_| again.add_job("tsan"));
        assert!(!again.are_too_many());
        again.add_job("cost");
        assert!(again.are_too_many());
        assert!(again.line().starts_with("6 tests or jobs needed another try (limit 5): job tsan"));
    }
}
