//! Hashes in the place of names. The key of the hashes is random and is kept nowhere. So nobody can
//! find a name by trying names, and two reports have different hashes.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};

/// Fields of the status and of log lines whose texts are names.
const NAMED: [&str; 13] = [
    "tenant",
    "holder",
    "started_by",
    "user",
    "container",
    "within",
    "id",
    "labels",
    "client",
    "command",
    "pod",
    "namespace",
    "node",
];

/// The field of the status and of log lines with the number of a user.
const UID: &str = "uid";

/// The field of the status whose keys are names: the tenants for which late requests waited.
const KEYED: &str = "waited_for_ns";

/// The folder with the folders of users.
const HOMES: &str = "/home/";

/// The names of a report.
#[derive(Debug)]
pub struct Names {
    key: RandomState,
    /// The names by their first characters, each with its hash: as they are, and with the
    /// backslashes of a quoted text. A longer name comes before a shorter one.
    by_first: BTreeMap<char, Vec<(String, String)>>,
}

impl Names {
    /// Returns the names in a report: in the daemon's answers, in its logs, in the paths of all
    /// texts, and the names in `further`. A log also has names of tenants that are gone.
    pub fn of<'t>(
        answers: impl IntoIterator<Item = &'t Value>,
        logs: impl IntoIterator<Item = &'t str>,
        texts: impl IntoIterator<Item = &'t str>,
        further: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut names = BTreeSet::from_iter(further);
        logs.into_iter().for_each(|log| names.extend(logged(log)));
        texts.into_iter().for_each(|text| names.extend(homes(text)));
        for answer in answers {
            collect(answer, &mut names);
            names.extend(homes(&answer.to_string()));
            let tenants = answer["tenants"].as_array().into_iter().flatten();
            names.extend(tenants.filter_map(|tenant| tenant["name"].as_str()).map(str::to_owned));
        }
        names.remove("");
        let key = RandomState::new();
        let forms =
            names.iter().flat_map(|name| [name.clone(), escaped(name)].map(|form| (form, hash(&key, name))));
        let forms: BTreeMap<String, String> = forms.collect();
        let mut forms: Vec<_> = forms.into_iter().collect();
        forms.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
        let mut by_first = BTreeMap::<char, Vec<_>>::new();
        for (form, hash) in forms {
            if let Some(first) = form.chars().next() {
                by_first.entry(first).or_default().push((form, hash));
            }
        }
        Self { key, by_first }
    }

    /// Replaces the names in all texts of an answer by hashes.
    pub fn hash_all(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hashed(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.hash_all(value)),
            Value::Object(fields) => {
                if let Some(Value::Object(keyed)) = fields.get_mut(KEYED) {
                    let all = std::mem::take(keyed).into_iter();
                    keyed.extend(all.map(|(name, value)| (hash(&self.key, &name), value)));
                }
                fields.values_mut().for_each(|value| self.hash_all(value));
            }
            _ => {}
        }
    }

    /// Returns a text with a hash in the place of each name. A name inside a longer word stays.
    pub fn hashed(&self, text: &str) -> String {
        let mut hashed = String::with_capacity(text.len());
        let (mut rest, mut before) = (text, None);
        while let Some(next) = rest.chars().next() {
            let begins =
                |name: &str| rest.strip_prefix(name).is_some_and(|after| !after.starts_with(is_of_word));
            let known = self.by_first.get(&next).filter(|_| !before.is_some_and(is_of_word));
            let found = known.and_then(|names| names.iter().find(|(name, _)| begins(name)));
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

/// Returns the hash of a name.
fn hash(key: &RandomState, name: &str) -> String {
    format!("name-{:08x}", key.hash_one(name) as u32)
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

/// Returns the numbers of the users in answers and logs.
pub fn uids<'t>(
    answers: impl IntoIterator<Item = &'t Value>,
    logs: impl IntoIterator<Item = &'t str>,
) -> BTreeSet<u32> {
    let logged = logs.into_iter().flat_map(str::lines).flat_map(|line| fields(line, &[UID]));
    let mut uids: BTreeSet<u32> = logged.filter_map(|uid| uid.parse().ok()).collect();
    answers.into_iter().for_each(|answer| collect_uids(answer, &mut uids));
    uids
}

/// Collects the numbers of the fields [`UID`].
fn collect_uids(value: &Value, uids: &mut BTreeSet<u32>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect_uids(value, uids)),
        Value::Object(fields) => {
            let own = fields.get(UID).and_then(Value::as_u64);
            uids.extend(own.and_then(|uid| u32::try_from(uid).ok()));
            fields.values().for_each(|value| collect_uids(value, uids));
        }
        _ => {}
    }
}

/// Returns the names in a log: the values of the fields in [`NAMED`], and single words in
/// backquotes.
fn logged(log: &str) -> impl Iterator<Item = String> {
    let fields = log.lines().flat_map(|line| fields(line, &NAMED));
    // Of the parts of a line between backquotes, every second is quoted.
    let quoted = log.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let quoted = quoted.filter(|text| !text.contains(char::is_whitespace));
    fields.chain(quoted.map(str::to_owned))
}

/// Returns the values of the fields `named` in a line of a log.
fn fields(line: &str, named: &[&str]) -> Vec<String> {
    let (mut values, mut rest) = (Vec::new(), line);
    while let Some((before, after)) = rest.split_once('=') {
        rest = after;
        let field = before.rsplit(|c: char| !is_of_word(c)).next().unwrap_or_default();
        if !named.contains(&field) {
            continue;
        }
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_at(end_of_quoted(quoted)),
            None => {
                let (word, next) = after.split_at(after.find(char::is_whitespace).unwrap_or(after.len()));
                (word.trim_end_matches([',', ';']), next)
            }
        };
        rest = next;
        let plain = unescaped(value);
        let is_known = escaped(&plain) == value;
        values.push(if is_known { plain } else { value.to_owned() });
    }
    values
}

/// Returns the place of the closing quotation mark in a text that follows the opening one. Without
/// a closing mark, returns the end of the text.
fn end_of_quoted(text: &str) -> usize {
    let mut is_escaped = false;
    let is_end = |c: char| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    };
    text.find(is_end).unwrap_or(text.len())
}

/// Returns a text as it is between quotation marks in a log.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns a text without the backslashes before other characters.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.extend(if c == '\\' { rest.next() } else { Some(c) });
    }
    plain
}

/// Returns the users whose folders in [`HOMES`] a text names.
fn homes(text: &str) -> impl Iterator<Item = String> {
    let is_end = |c: char| c == '/' || c == '"' || c == '\'' || c.is_whitespace();
    text.split(HOMES).skip(1).filter_map(move |rest| rest.split(is_end).next()).map(str::to_owned)
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
        let hashed = Names::of([], [LOG], [], []).hashed(LOG);
        assert!(!hashed.contains("gone") && !hashed.contains("past"), "{hashed}");
        assert!(hashed.contains(" pid=7") && hashed.contains("`deepres ps`"), "{hashed}");
    }

    #[test]
    fn a_command_line_in_a_log_is_hashed_with_its_arguments() {
        let log = r#"INFO a session began tenant="team a" pid=7 client="sh -c \"train --key=s3cret\" C:\\x", kind="ioctl""#;
        let answer = json!({ "path": "/home/ann/venv", "client": r#"sh -c "train --key=s3cret" C:\x"# });
        let names = Names::of([&answer], [log], ["program /home/bob/deepres\n"], []);
        let hashed = names.hashed(log);
        for name in ["team a", "train", "s3cret", "C:"] {
            assert!(!hashed.contains(name), "{name}: {hashed}");
        }
        assert!(
            hashed.contains("\" pid=7 client=\"name-") && hashed.ends_with("\", kind=\"ioctl\""),
            "{hashed}"
        );
        let mut told = answer.clone();
        names.hash_all(&mut told);
        assert!(hashed.contains(told["client"].as_str().unwrap()), "one hash for both forms: {told}");
        let paths = names.hashed("/home/ann/venv /home/bob/deepres");
        assert!(!paths.contains("ann") && !paths.contains("bob") && paths.ends_with("/deepres"), "{paths}");
    }

    #[test]
    fn names_that_are_keys_are_hashed_as_names_elsewhere() {
        let mut status = json!({
            "tenants": [{ "name": "gpus", "gpus": [{ "late": { "waited_for_ns": { "gpus": 7, "gone": 8 } } }] }],
        });
        let names = Names::of([&status], [], [], []);
        let hashed = names.hashed("gpus");
        names.hash_all(&mut status);
        let waited = &status["tenants"][0]["gpus"][0]["late"]["waited_for_ns"];
        assert_eq!((&waited[&hashed], waited.as_object().unwrap().len()), (&json!(7), 2), "{status}");
        assert!(!status.to_string().contains("gone"), "{status}");
    }

    #[test]
    fn names_are_hashed_as_whole_words_everywhere_alike() {
        let status = json!({
            "tenants": [{ "name": "train-2", "user": "ann", "granted": { "labels": { "value": "team=x", "rule": "asked" } }, "container": { "runtime": "podman", "id": "4f2a" }, "found": { "by": "name", "within": "podman-4f2" } }],
            "gpus": [{ "name": "H100", "holder": "train" }],
            "daemon": { "version": "0.1.0" },
        });
        let names = Names::of([&status], [LOG], [], ["lab7".to_owned()]);
        let text =
            "team=x: train waits for train-2 of ann on lab7, podman-4f2: training by joann (H100, 4f2a)";
        let hashed = names.hashed(text);
        for name in ["team=x", " train ", "train-2", " ann ", "lab7", "podman"] {
            assert!(!hashed.contains(name), "{name}: {hashed}");
        }
        assert!(hashed.ends_with(")") && hashed.contains("training by joann (H100, name-"), "{hashed}");
        let again = names.hashed("train");
        assert!(hashed.contains(&format!(" {again} waits")) && again.starts_with("name-"), "{hashed}");
        assert_eq!(names.hashed("asked by podman"), "asked by podman", "rules and runtimes are no names");
        assert_ne!(again, names.hashed("ann"));
        assert_ne!(
            Names::of([&status], [LOG], [], ["lab7".to_owned()]).hashed("train"),
            again,
            "each report has a key of its own"
        );
    }
}
