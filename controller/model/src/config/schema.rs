//! The JSON schema of the configuration, for editors: `deepres config schema`. The documented file
//! describes each key.

use super::Config;
use super::keys::{Key, TOP, Takes};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The version of JSON Schema that editors for TOML know.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";
/// The text of the documented configuration file, `deepres.toml`.
const DOCUMENTED: &str = include_str!("../../../deploy/deepres.toml");

/// Returns the schema.
pub fn schema() -> Value {
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut schema = section(TOP, "", &defaults, &descriptions());
    schema["$schema"] = DIALECT.into();
    schema["title"] = "Configuration of the deepres daemon".into();
    schema
}

fn section(keys: &[Key], prefix: &str, defaults: &Value, about: &BTreeMap<String, String>) -> Value {
    let properties: Map<String, Value> = keys
        .iter()
        .map(|Key(name, takes)| {
            let path = format!("{prefix}{name}");
            let default = &defaults[*name];
            let mut value = match takes {
                Takes::Section(keys) => section(keys, &format!("{path}."), default, about),
                Takes::Sections(keys) => json!({
                    "type": "object",
                    "propertyNames": { "pattern": "^[0-9]+$" },
                    "additionalProperties": section(keys, &format!("{path}."), default, about),
                }),
                Takes::Number(bounds) => {
                    json!({ "type": "integer", "minimum": bounds.start, "maximum": bounds.end - 1 })
                }
                Takes::Text(example) => json!({ "type": "string", "examples": [example] }),
                Takes::Word(words) => json!({ "type": "string", "enum": words }),
                Takes::Switch => json!({ "type": "boolean" }),
                Takes::Texts(example) => {
                    json!({ "type": "array", "items": { "type": "string" }, "examples": [[example]] })
                }
            };
            if !default.is_null() && !default.is_object() {
                value["default"] = default.clone();
            }
            if let Some(about) = about.get(&path) {
                value["description"] = about.as_str().into();
            }
            ((*name).to_owned(), value)
        })
        .collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Returns the description of each key and section, by path. In the documented file, a description
/// stands above its key or section.
fn descriptions() -> BTreeMap<String, String> {
    let mut about = BTreeMap::new();
    let (mut prefix, mut text) = (String::new(), String::new());
    for line in DOCUMENTED.lines() {
        let line = line.trim_start_matches('#').trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            // The number of a user or group is an example.
            let name = name.split('.').next().unwrap_or(name);
            prefix = format!("{name}.");
            about.insert(name.to_owned(), std::mem::take(&mut text));
        } else if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| is_key(key)) {
            about.insert(format!("{prefix}{key}"), std::mem::take(&mut text));
        } else if line.is_empty() {
            text.clear();
        } else {
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(line);
        }
    }
    about.retain(|_, text| !text.is_empty());
    about
}

fn is_key(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_each_key_with_its_type_default_and_description() {
        let schema = schema();
        let top = &schema["properties"];
        assert_eq!(top.as_object().unwrap().len(), TOP.len());
        for Key(name, _) in TOP {
            let about = top[*name]["description"].as_str().unwrap_or_default();
            assert!(about.ends_with(['.', ')']), "{name}: {about:?}");
        }
        assert_eq!(top["heartbeat_limit_ms"]["minimum"], 20);
        assert_eq!(top["heartbeat_limit_ms"]["default"], 250);
        assert_eq!(top["fail_mode"]["enum"], json!(["open", "closed"]));
        assert_eq!(top["caps"]["properties"]["share"]["default"], "100%");
        assert_eq!(top["metrics"]["default"], Value::Null, "the documented address is an example");
        let quantum = top["quantum"]["description"].as_str().unwrap();
        assert!(quantum.starts_with("The bounds of the quantum"), "{quantum}");
        assert_eq!(top["users"]["additionalProperties"]["additionalProperties"], false);
        let devices = &top["probes"]["properties"]["devices"];
        assert!(devices["description"].as_str().unwrap().starts_with("The devices"), "{devices}");
    }
}
