// SPDX-License-Identifier: Apache-2.0
/*!
The Prometheus text exposition format, version 0.0.4.

Names are derived from OpenTelemetry's by the rules of its specification ("Prometheus and
OpenMetrics Compatibility"): underscores, the unit, `_total` for counters. The format has no
exponential histograms, so they become classic ones. Their bounds are powers of two, which are also
bounds of the exponential buckets, so the counts are exact.
*/

use super::names::Metric;
use super::point::Family;
use super::value::{Kind, Value};
use ncclscope_operations::Histogram;
use std::fmt::Write;

/// The greatest number of finite bounds of a unit.
const MOST_BOUNDS: usize = 14;

/// Most lines of a histogram: its buckets, the one without a bound, the sum and the count.
pub const LINES_PER_HISTOGRAM: usize = MOST_BOUNDS + 3;

/// Exponents of the bounds of a unit: 1 us to 64 s; 256 B to 4 GiB; 64 MiB/s to 512 GiB/s; 1 to
/// 2^26 for counts.
pub(crate) fn bounds(unit: &str) -> impl Iterator<Item = i32> + use<> {
    let (low, step, count) = match unit {
        "s" => (-20, 2, 14),
        "By/s" => (26, 1, 14),
        "1" => (0, 2, 14),
        _ => (8, 2, 13),
    };
    (0..count).map(move |at| low + step * at)
}

/// Writes points. Each line also has the labels (name, value) of `constant` whose names the format
/// allows and the point does not have.
#[must_use]
pub fn encode(families: &[Family], constant: &[(&str, &str)]) -> String {
    // The [`super::Limiter`] has already limited the points.
    let mut text = Text::new(usize::MAX);
    let constant = constant_labels(constant);
    for family in families {
        let metric = family.metric;
        let name = name(metric);
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Sum | Kind::Max => "gauge",
            Kind::Histogram => "histogram",
        };
        text.head(&name, kind, metric.description);
        for point in &family.points {
            let own = point.attributes.iter().map(|(name, value)| (label(name), value.text()));
            let own: Labels = own.collect();
            let mut labels = constant.clone();
            labels.retain(|(name, _)| own.iter().all(|(mine, _)| mine != name));
            labels.extend(own);
            match &point.value {
                Value::Histogram(of) => text.histogram(&name, &mut labels, of, metric.unit),
                Value::Count(count) => text.line(&name, &labels, &count.to_string()),
                Value::Sum(sum) => text.line(&name, &labels, &number(*sum)),
            }
        }
    }
    text.finish()
}

type Labels = Vec<(String, String)>;

/// The labels with allowed names, without duplicates.
fn constant_labels(given: &[(&str, &str)]) -> Labels {
    let mut labels = Labels::new();
    for (name, value) in given {
        let name = label(name);
        // Prometheus reserves these names.
        let is_reserved = name == "le" || name == "quantile" || name.starts_with("__");
        if !is_reserved && labels.iter().all(|(known, _)| *known != name) {
            labels.push((name, (*value).to_owned()));
        }
    }
    labels
}

/// The name of a metric.
#[must_use]
pub fn name(metric: &Metric) -> String {
    let mut name = label(metric.name);
    name.push_str(match metric.unit {
        "s" => "_seconds",
        "By" => "_bytes",
        "By/s" => "_bytes_per_second",
        "1" => "_ratio",
        _ => "",
    });
    if metric.kind == Kind::Counter {
        name.push_str("_total");
    }
    name
}

/// Converts a name to letters, digits and underscores, without a digit at the start.
#[must_use]
pub fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut out: String = name.chars().map(plain).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

/// Escapes the value of a label. Control characters, which would affect a reader's terminal, become
/// text such as `\u001b`.
fn escaped(value: &str) -> String {
    let mut out = String::new();
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push_str(&format!("\\\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Formats a number in the shortest form that reads back as the same.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        _ if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.into(),
        _ if value == 0.0 || (1e-4..1e16).contains(&value.abs()) => value.to_string(),
        _ => format!("{value:e}"),
    }
}

/// Writes lines of the format, up to a number of samples.
#[derive(Debug)]
pub(crate) struct Text {
    out: String,
    room: usize,
    over: u64,
}

impl Text {
    /// An empty text for at most `max_series` samples.
    pub(crate) fn new(max_series: usize) -> Text {
        Text { out: String::new(), room: max_series, over: 0 }
    }

    /// The text; if there were too many samples, with a sample of their number.
    pub(crate) fn finish(mut self) -> String {
        if self.over > 0 {
            let help = "Series that the cap left out of this text";
            self.head("ncclscope_series_over_cap", "gauge", help);
            let over = self.over;
            self.push(format_args!("ncclscope_series_over_cap {over}\n"));
        }
        self.out
    }

    /// Writes the description of a metric.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Writes a sample.
    pub(crate) fn line<N: AsRef<str>>(&mut self, name: &str, labels: &[(N, String)], value: &str) {
        if self.room == 0 {
            self.over += 1;
            return;
        }
        self.room -= 1;
        self.out.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            self.push(format_args!("{open}{}=\"{}\"", label.as_ref(), escaped(value)));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.push(format_args!("{close} {value}\n"));
    }

    fn histogram(&mut self, name: &str, labels: &mut Labels, of: &Histogram, unit: &str) {
        let bucket = format!("{name}_bucket");
        labels.push(("le".into(), String::new()));
        let last = labels.len() - 1;
        for exponent in bounds(unit) {
            labels[last].1 = number(f64::from(exponent).exp2());
            self.line(&bucket, labels, &up_to(of, exponent).to_string());
        }
        labels[last].1 = "+Inf".into();
        self.line(&bucket, labels, &of.count.to_string());
        labels.truncate(last);
        self.line(&format!("{name}_sum"), labels, &number(of.sum));
        self.line(&format!("{name}_count"), labels, &of.count.to_string());
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
    }
}

/// Number of values in buckets that end at `2^exponent` or before. Exact unless a bucket is wider
/// than a doubling.
pub(crate) fn up_to(of: &Histogram, exponent: i32) -> u64 {
    let shift = |number: i32, by: i32| i64::from(number) << by.clamp(0, 32);
    let (scale, bound) = (of.scale(), shift(exponent, of.scale()));
    let buckets = (of.offset()..).zip(of.buckets());
    let within = buckets.filter(|(index, _)| shift(index + 1, -scale) <= bound);
    of.zero_count() + within.map(|(_, count)| count).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_at_the_bounds() {
        // Each bound, and a value slightly above it.
        let values = (-30..10).map(|at| f64::from(at).exp2()).flat_map(|at| [at, at * 1.001]);
        let values: Vec<f64> = values.collect();
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        histogram.add(0.0);
        for exponent in bounds("s") {
            let bound = f64::from(exponent).exp2();
            let expected = 1 + values.iter().filter(|value| **value <= bound).count();
            assert_eq!(up_to(&histogram, exponent), expected as u64, "{bound}");
        }
    }

    #[test]
    fn wide_buckets_count_where_they_end() {
        let mut histogram = Histogram::default();
        histogram.add(f64::MIN_POSITIVE);
        histogram.add(3.0);
        histogram.add(1e300);
        assert!(histogram.scale() < 0, "{}", histogram.scale());
        let counts: Vec<u64> = bounds("s").map(|exponent| up_to(&histogram, exponent)).collect();
        assert!(counts.is_sorted() && counts[0] == 1, "{counts:?}");
        assert!(up_to(&histogram, 40) == 2 && up_to(&histogram, 1023) >= 2);
    }

    #[test]
    fn no_label_acts_on_a_terminal() {
        let mut text = Text::new(usize::MAX);
        text.line("a", &[("role", "\x1b]0;x\u{7}\n\u{9b}\"\\ü".into())], "1");
        let expected = r#"a{role="\\u001b]0;x\\u0007\n\\u009b\"\\ü"} 1"#;
        assert_eq!(text.finish().trim_end(), expected);
    }

    #[test]
    fn numbers_read_back() {
        for value in [0.0, 1.0, 0.1, 1e-9, 1e300, 123_456.75, f64::MIN_POSITIVE, -2.5, 1e16] {
            assert_eq!(number(value).parse::<f64>(), Ok(value));
        }
        assert_eq!([f64::NAN, f64::INFINITY, -f64::INFINITY].map(number), ["NaN", "+Inf", "-Inf"]);
    }

    #[test]
    fn no_unit_has_more_bounds_than_are_counted() {
        let counts = ["s", "By", "By/s", "1"].map(|unit| bounds(unit).count());
        assert_eq!(counts.iter().max(), Some(&MOST_BOUNDS));
        let mut text = Text::new(usize::MAX);
        text.histogram("a", &mut Labels::new(), &Histogram::default(), "s");
        assert_eq!(text.finish().lines().count(), LINES_PER_HISTOGRAM);
    }
}
