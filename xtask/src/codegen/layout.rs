//! Checks the handwritten structures of `types.rs` against the headers. A C compiler must find the
//! sizes, alignments and offsets that the table at the end of `types.rs` states.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::header::Header;

/// Fields that the headers leave without a name.
const UNNAMED_FIELDS: &[(&str, &str)] = &[("CUgraphNodeParams", "params")];

/// One line of the table: `NAME: SIZE, ALIGNMENT { FIELD: OFFSET, … }`.
#[derive(Debug, PartialEq, Eq)]
struct Layout<'t> {
    name: &'t str,
    size: &'t str,
    alignment: &'t str,
    fields: Vec<(&'t str, &'t str)>,
}

/// Returns a C file that compiles if the table in `types` is right. The file checks the structures
/// that the headers name.
pub fn assertions(types: &str, headers: &[&str], header: &Header) -> Result<String> {
    let mut text = String::from("#define __CUDA_API_VERSION_INTERNAL\n#include <stddef.h>\n");
    for name in headers {
        let _ = writeln!(text, "#include <{name}>");
    }
    for layout in read(types)? {
        let Layout { name, size, alignment, fields } = layout;
        if !header.types.contains_key(name) {
            continue;
        }
        let of = if header.tags.contains(name) { format!("struct {name}") } else { name.to_owned() };
        let _ = writeln!(text, "_Static_assert(sizeof({of}) == {size}, \"size of {name}\");");
        let _ = writeln!(text, "_Static_assert(_Alignof({of}) == {alignment}, \"alignment of {name}\");");
        for (field, offset) in fields {
            if !UNNAMED_FIELDS.contains(&(name, field)) {
                let field = field.trim_start_matches("r#");
                let _ = writeln!(
                    text,
                    "_Static_assert(offsetof({of}, {field}) == {offset}, \"{name}.{field}\");"
                );
            }
        }
    }
    Ok(text)
}

fn read(types: &str) -> Result<Vec<Layout<'_>>> {
    let (_, table) = types.split_once("\nlayouts! {\n").context("types.rs has no layouts! { … }")?;
    let (lines, _) = table.split_once("\n}").context("layouts! { … } does not end")?;
    lines.lines().map(|line| read_line(line).with_context(|| format!("in the layout `{line}`"))).collect()
}

fn read_line(line: &str) -> Result<Layout<'_>> {
    let (name, rest) = line.split_once(':').context("no name")?;
    let (size, rest) = rest.split_once(',').context("no size")?;
    let (alignment, rest) = rest.split_once('{').context("no alignment")?;
    let fields = rest.trim().strip_suffix('}').context("no end")?.split(',').map(str::trim);
    let fields = fields.filter(|field| !field.is_empty()).map(|field| {
        let (field, offset) = field.split_once(':').context("a field without an offset")?;
        Ok((field.trim(), offset.trim()))
    });
    Ok(Layout {
        name: name.trim(),
        size: size.trim(),
        alignment: alignment.trim(),
        fields: fields.collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::header;
    use super::*;

    const TYPES: &str =
        "macro\n\nlayouts! {\n    S: 8, 4 { r#type: 0, b: 4 }\n    T: 4, 4 { a: 0 }\n    U: 64, 8 {}\n}\n";

    #[test]
    fn every_number_of_the_table_becomes_an_assertion() {
        let source = "typedef struct S_st { int type; int b; } S; struct T { int a; };";
        let header = header::parse(source, "CUresult").unwrap();
        let text = assertions(TYPES, &["cuda.h"], &header).unwrap();
        assert!(text.contains("#include <cuda.h>\n"));
        assert!(text.contains("sizeof(S) == 8") && text.contains("_Alignof(S) == 4"));
        assert!(text.contains("offsetof(S, type) == 0") && text.contains("offsetof(S, b) == 4"));
        assert!(text.contains("sizeof(struct T) == 4"));
        assert!(!text.contains("sizeof(U)"), "the header does not know it");
    }

    #[test]
    fn a_table_that_is_not_understood_is_refused() {
        assert!(read("no table").is_err());
        assert!(read("\nlayouts! {\n    S: 8 { a: 0 }\n}\n").is_err());
        assert!(read("\nlayouts! {\n    S: 8, 4 { a }\n}\n").is_err());
    }
}
