//! A strict parser of the text format of Prometheus, version 0.0.4. Every sample must have a HELP and a TYPE before it,
//! names and labels must be well-formed, no series may occur twice, and the buckets of a histogram must be cumulative.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::collections::BTreeMap;

/// The value of each series. The key is the name and the labels as written, without the label `database`.
#[derive(Debug, Default)]
pub struct Exposition {
    pub samples: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
    helps: Vec<String>,
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// Parses the labels of a sample. Returns the labels and the rest of the line.
fn labels(text: &str) -> (Vec<(String, String)>, &str) {
    let Some(mut rest) = text.strip_prefix('{') else { return (Vec::new(), text) };
    let mut found = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label and its value");
        assert!(is_name(name) && !name.contains(':'), "{name}");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect("a value that ends") {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match characters.next().expect("what is escaped").1 {
                    'n' => '\n',
                    plain @ ('\\' | '"') => plain,
                    other => panic!("\\{other}"),
                }),
                (_, character) => value.push(character),
            }
        };
        found.push((name.to_owned(), value));
        rest = &after[end..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return (found, rest.strip_prefix('}').expect("the end of the labels")),
        }
    }
}

impl Exposition {
    /// Parses a page about one database.
    pub fn read(page: &str, database: &str) -> Self {
        assert!(page.ends_with('\n'), "the last line ends");
        let mut all = Self::default();
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let name = help.split(' ').next().unwrap().to_owned();
                assert!(is_name(&name) && !all.helps.contains(&name), "{line}");
                all.helps.push(name);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(all.helps.last().map(String::as_str), Some(name), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert_eq!(all.kinds.insert(name.to_owned(), kind.to_owned()), None, "{line}");
            } else {
                all.sample(line, database);
            }
        }
        all.check_histograms();
        all
    }

    fn sample(&mut self, line: &str, database: &str) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a value"));
        let (labels, value) = labels(rest);
        let parts = ["_bucket", "_sum", "_count"];
        let of_part = || parts.iter().find_map(|part| name.strip_suffix(part)).expect("a TYPE before it");
        let family = if self.kinds.contains_key(name) { name } else { of_part() };
        assert_eq!(family == name, self.kinds[family] != "histogram", "{line}");
        assert_eq!(labels[0], ("database".to_owned(), database.to_owned()), "{line}");
        let value: f64 = value.strip_prefix(' ').unwrap().parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let others: Vec<String> = labels[1..].iter().map(|(name, value)| format!("{name}={value}")).collect();
        let series = if others.is_empty() { name.to_owned() } else { format!("{name} {}", others.join(",")) };
        assert_eq!(self.samples.insert(series, value), None, "{line}");
    }

    fn check_histograms(&self) {
        for (name, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let start = format!("{name}_bucket le=");
            let limit = |series: &str| match &series[start.len()..] {
                "+Inf" => f64::INFINITY,
                limit => limit.parse().unwrap(),
            };
            let buckets = self.samples.iter().filter(|(series, _)| series.starts_with(&start));
            let mut buckets: Vec<(f64, f64)> =
                buckets.map(|(series, count)| (limit(series), *count)).collect();
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(
                buckets.len() > 2
                    && buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1)
            );
            let last = buckets.last().copied().unwrap();
            assert_eq!(last, (f64::INFINITY, self.samples[&format!("{name}_count")]));
            assert!(self.samples.contains_key(&format!("{name}_sum")));
        }
    }

    /// Returns the value of a series.
    pub fn value(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("{series} is not there: {:?}", self.samples))
    }
}
