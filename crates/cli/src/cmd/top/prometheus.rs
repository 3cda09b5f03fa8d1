// SPDX-License-Identifier: Apache-2.0
//! Parses Prometheus' text format 0.0.4 as served by an agent. Other lines are ignored.

/// A sample: its name, its labels and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    labels: Vec<(&'a str, String)>,
    pub(super) value: f64,
}

impl Sample<'_> {
    /// The value of a label; empty if the sample does not have it.
    pub(super) fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

pub(super) fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A time stamp may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// Parses labels up to the closing brace; also returns the rest.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.push((name.trim(), value));
        rest = after;
    }
}

/// Parses a quoted text; also returns the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_names_labels_and_values() {
        let text = "# HELP a b\na_total{x=\"1\",y=\"q\\\"\\\\\\n}\"} 2.5\nb 3 1700000000\n\
                    c{} 1e3\nbroken{x=\"1\nd{x=1} 2\ne nothing\n\n";
        let found: Vec<Sample<'_>> = samples(text).collect();
        let names: Vec<(&str, f64)> = found.iter().map(|s| (s.name, s.value)).collect();
        assert_eq!(names, [("a_total", 2.5), ("b", 3.0), ("c", 1000.0)]);
        assert_eq!((found[0].label("x"), found[0].label("y")), ("1", "q\"\\\n}"));
        assert_eq!(found[0].label("z"), "");
    }
}
