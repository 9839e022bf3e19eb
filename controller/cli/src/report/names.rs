//! Hashes in the place of names. The key of the hashes is random and is kept nowhere. So nobody can
//! find a name by trying names, and two reports have different hashes.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};

/// Fields of the status and of log lines whose texts are names.
const NAMED: [&str; 12] = [
    "tenant",
    "holder",
    "started_by",
    "user",
    "container",
    "id",
    "labels",
    "client",
    "command",
    "pod",
    "namespace",
    "node",
];

/// The names of a report, each with its hash. A longer name comes before a shorter one.
#[derive(Debug)]
pub struct Names(Vec<(String, String)>);

impl Names {
    /// Returns the names in a status and in logs, and further names. A log also has names of tenants
    /// that are gone.
    pub fn of<'t>(
        status: Option<&Value>,
        logs: impl IntoIterator<Item = &'t str>,
        further: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut names = BTreeSet::from_iter(further);
        logs.into_iter().for_each(|log| names.extend(logged(log)));
        if let Some(status) = status {
            collect(status, &mut names);
            let tenants = status["tenants"].as_array().into_iter().flatten();
            names.extend(tenants.filter_map(|tenant| tenant["name"].as_str()).map(str::to_owned));
        }
        names.remove("");
        let key = RandomState::new();
        let hashes: BTreeMap<String, String> = names
            .into_iter()
            .map(|name| (name.clone(), format!("name-{:08x}", key.hash_one(&name) as u32)))
            .collect();
        let mut names: Vec<_> = hashes.into_iter().collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self(names)
    }

    /// Returns a text with a hash in the place of each name. A name inside a longer word stays.
    pub fn hashed(&self, text: &str) -> String {
        let mut hashed = String::with_capacity(text.len());
        let (mut rest, mut before) = (text, None);
        while let Some(next) = rest.chars().next() {
            let found = (!before.is_some_and(is_of_word))
                .then(|| {
                    self.0.iter().find(|(name, _)| {
                        rest.strip_prefix(name.as_str()).is_some_and(|after| !after.starts_with(is_of_word))
                    })
                })
                .flatten();
            let (taken, put) = match found {
                Some((name, hash)) => (name.as_str(), hash.as_str()),
                None => {
                    let (first, _) = rest.split_at(next.len_utf8());
                    (first, first)
                }
            };
            hashed.push_str(put);
            before = taken.chars().next_back();
            rest = &rest[taken.len()..];
        }
        hashed
    }
}

/// Collects the texts of the fields in [`NAMED`].
fn collect(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, names)),
        Value::Object(fields) => {
            for (field, value) in fields {
                // The granted labels stand beside the rule by which they are granted.
                let text = value.as_str().or_else(|| value["value"].as_str());
                names.extend(text.filter(|_| NAMED.contains(&field.as_str())).map(str::to_owned));
                collect(value, names);
            }
        }
        _ => {}
    }
}

/// Returns the names in a log: the values of the fields in [`NAMED`], and single words in backquotes.
fn logged(log: &str) -> impl Iterator<Item = String> {
    let fields = log.split_whitespace().filter_map(|word| {
        let (field, value) = word.split_once('=')?;
        NAMED.contains(&field).then(|| value.trim_matches(['"', ',', ';']))
    });
    // Of the parts of a line between backquotes, every second is quoted.
    let quoted = log.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let quoted = quoted.filter(|text| !text.contains(char::is_whitespace));
    fields.chain(quoted).map(str::to_owned)
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LOG: &str = "2026-11-27T00:00:00Z INFO a tenant came tenant=\"gone\" pid=7\n\
        WARN the daemon cannot keep `past`: run `deepres ps`\n";

    #[test]
    fn names_in_a_log_are_hashed_although_the_status_has_them_no_longer() {
        let hashed = Names::of(None, [LOG], []).hashed(LOG);
        assert!(!hashed.contains("gone") && !hashed.contains("past"), "{hashed}");
        assert!(hashed.contains(" pid=7") && hashed.contains("`deepres ps`"), "{hashed}");
    }

    #[test]
    fn names_are_hashed_as_whole_words_everywhere_alike() {
        let status = json!({
            "tenants": [{ "name": "train-2", "user": "ann", "granted": { "labels": { "value": "team=x", "rule": "asked" } }, "container": { "runtime": "podman", "id": "4f2a" } }],
            "gpus": [{ "name": "H100", "holder": "train" }],
            "daemon": { "version": "0.1.0" },
        });
        let names = Names::of(Some(&status), [LOG], ["lab7".to_owned()]);
        let text = "team=x: train waits for train-2 of ann on lab7: training by joann (H100, 4f2a)";
        let hashed = names.hashed(text);
        for name in ["team=x", " train ", "train-2", " ann ", "lab7", "4f2a"] {
            assert!(!hashed.contains(name), "{name}: {hashed}");
        }
        assert!(hashed.ends_with(")") && hashed.contains("training by joann (H100, name-"), "{hashed}");
        let again = names.hashed("train");
        assert!(hashed.contains(&format!(" {again} waits")) && again.starts_with("name-"), "{hashed}");
        assert_eq!(names.hashed("asked by podman"), "asked by podman", "rules and runtimes are no names");
        assert_ne!(again, names.hashed("ann"));
        assert_ne!(
            Names::of(Some(&status), [LOG], ["lab7".to_owned()]).hashed("train"),
            again,
            "each report has a key of its own"
        );
    }
}
