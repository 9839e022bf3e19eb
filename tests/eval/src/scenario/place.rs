//! Finds the place of a value in a scenario's text.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A step from a table to one of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A step to the value of a key.
    Key(&'static str),
    /// A step to a place in a list.
    Place(usize),
}

/// Returns the line, from 1, of the value at the end of a path. If the text does not contain the
/// whole path, returns the line of its last part in the text.
pub fn line_of(text: &str, path: &[Step]) -> usize {
    let begin = DeTable::parse(text).map_or(0, |table| begin_of(table.get_ref(), path));
    text.get(..begin).map_or(1, |before| before.lines().count().max(1) + usize::from(before.ends_with('\n')))
}

/// Returns the byte at which the key or value at the end of a path begins.
fn begin_of(table: &DeTable<'_>, path: &[Step]) -> usize {
    let mut begin = 0;
    let mut value: Option<&Spanned<DeValue<'_>>> = None;
    for step in path {
        let next = match (step, value.map(Spanned::get_ref)) {
            (Step::Key(key), None) => table.get_key_value(*key),
            (Step::Key(key), Some(DeValue::Table(table))) => table.get_key_value(*key),
            (Step::Place(place), Some(DeValue::Array(list))) => {
                let Some(item) = list.get(*place) else { break };
                begin = item.span().start;
                value = Some(item);
                continue;
            }
            _ => None,
        };
        let Some((key, next)) = next else { break };
        begin = key.span().start;
        value = Some(next);
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\n\n[[list]]\nb = 2\n[list.inner]\nc = 3\n[[list]]\nb = 4\n";

    #[test]
    fn a_value_is_found_by_its_path_and_what_is_missing_where_it_should_be() {
        let path = |place, keys: &[&'static str]| {
            let head = [Step::Key("list"), Step::Place(place)];
            head.into_iter().chain(keys.iter().map(|key| Step::Key(key))).collect::<Vec<_>>()
        };
        assert_eq!(line_of(TEXT, &[Step::Key("a")]), 1);
        assert_eq!(line_of(TEXT, &path(0, &["b"])), 4);
        assert_eq!(line_of(TEXT, &path(0, &["inner", "c"])), 6);
        assert_eq!(line_of(TEXT, &path(1, &["b"])), 8);
        assert_eq!(line_of(TEXT, &path(1, &["missing"])), 7, "the table that it is not in");
        assert_eq!(line_of("not = toml = at all", &[Step::Key("a")]), 1);
    }
}
