//! Checks the handwritten structures of `types.rs` against the headers. A C compiler must find the
//! sizes, alignments and offsets that `layouts!` states in `types.rs`.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

use super::header::Header;

/// Fields that the headers leave without a name.
const UNNAMED_FIELDS: &[(&str, &str)] = &[("CUgraphNodeParams", "params"), ("cudaGraphNodeParams", "params")];

/// One structure: `struct NAME: SIZE, ALIGNMENT { FIELD: TYPE = OFFSET, … }`.
#[derive(Debug, PartialEq, Eq)]
struct Layout<'t> {
    name: &'t str,
    size: &'t str,
    alignment: &'t str,
    fields: Vec<(&'t str, &'t str)>,
}

/// Returns a C file that compiles if the numbers in `types` are right. The file checks structures
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

/// Returns the structures of all `layouts!` in `types`.
fn read(types: &str) -> Result<Vec<Layout<'_>>> {
    let mut layouts: Vec<Layout<'_>> = Vec::new();
    let blocks = types.split("\nlayouts! {\n").skip(1);
    let lines = blocks.flat_map(|block| block.lines().take_while(|line| *line != "}")).map(str::trim);
    for line in lines.filter(|line| !line.starts_with("//")) {
        if let Some(head) = line.strip_prefix("struct ") {
            layouts.push(read_head(head).with_context(|| format!("in the layout `{line}`"))?);
        } else if let Some((field, rest)) = line.strip_suffix(',').and_then(|line| line.split_once(": ")) {
            let (_, offset) = rest.split_once(" = ").with_context(|| format!("`{line}` has no offset"))?;
            layouts.last_mut().context("a field of no structure")?.fields.push((field, offset));
        }
    }
    ensure!(!layouts.is_empty(), "types.rs has no layouts! {{ … }}");
    Ok(layouts)
}

fn read_head(head: &str) -> Result<Layout<'_>> {
    let (name, rest) = head.split_once(": ").context("no name")?;
    let (size, rest) = rest.split_once(", ").context("no size")?;
    let alignment = rest.strip_suffix(" {").context("no alignment")?;
    Ok(Layout { name, size, alignment, fields: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::header;
    use super::*;

    const TYPES: &str = "
layouts! {
    /// A structure: with a doc comment,
    struct S: 8, 4 {
        r#type: i32 = 0,
        b: [i32; 1] = 4,
    }
}

layouts! {
    struct T: 4, 4 {
        a: i32 = 0,
    }

    struct U: 64, 8 {
    }
}
";

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
        assert!(read("\nlayouts! {\n    struct S: 8 {\n    }\n}\n").is_err());
        assert!(read("\nlayouts! {\n    struct S: 8, 4 {\n        a: i32,\n    }\n}\n").is_err());
    }
}
