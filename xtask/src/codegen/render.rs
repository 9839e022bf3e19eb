//! The text of the generated files. rustfmt formats it later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::WHEEL;
use super::header::Header;
use super::table::{Stream, Table};

fn opening(job: &str) -> String {
    format!(
        "//! {job}\n//!\n//! Generated from the headers of {WHEEL} by `cargo xtask codegen`. Do not edit.\n\n"
    )
}

/// Returns `functions.rs`: the table, as a macro that passes its rows to another macro. `documented`
/// has the names of the errors that the reference of each family names.
pub fn functions(
    header: &Header,
    documented: &BTreeMap<String, BTreeSet<String>>,
    table: &Table,
) -> Result<String> {
    let values = result_codes(header)?;
    let value = |code: &String| values.iter().find(|(name, _)| name == code).map(|(_, value)| *value);
    let mut text = opening("Every function that NVIDIA's driver library exports, in every variant.");
    text += "/// Calls the macro named by the argument once, with every row of the table, sorted by symbol:\n\
        /// `{ id: …, symbol: …, family: \"…\", since: …, stream: Any|Legacy|PerThread, errors: […], args: (name: type, …) }`.\n\
        ///\n\
        /// The types are those of `driver::types`, which the caller has to have in scope.\n\
        #[macro_export]\nmacro_rules! for_each_driver_function {\n    ($($callback:tt)+) => {\n        $($callback)+! {\n";
    for (id, row) in table.rows.iter().enumerate() {
        let mut errors: Vec<u32> =
            documented.get(&row.family).into_iter().flatten().filter_map(value).collect();
        errors.sort_unstable();
        let arguments: Vec<String> = row.arguments.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        let _ = writeln!(
            text,
            "            {{ id: {id}, symbol: {}, family: \"{}\", since: {}, stream: {}, errors: {errors:?}, args: ({}) }}",
            row.symbol,
            row.family,
            row.since,
            match row.stream {
                Stream::Any => "Any",
                Stream::Legacy => "Legacy",
                Stream::PerThread => "PerThread",
            },
            arguments.join(", ")
        );
    }
    text += "        }\n    };\n}\n\n";

    let mut by_family: Vec<usize> = (0..table.rows.len()).collect();
    by_family.sort_by_key(|&id| {
        let row = &table.rows[id];
        (&row.family, row.stream == Stream::PerThread, row.since)
    });
    let _ = writeln!(
        text,
        "/// The rows' ids sorted by family; within one, the per-thread variants last, each kind oldest first.\n\
         pub(super) const BY_FAMILY: [u16; {}] = {by_family:?};",
        by_family.len()
    );
    Ok(text)
}

/// Returns `constants.rs`: the type names that need no definition by hand, and the enumerators and
/// flags. The file has only names that `is_named` accepts.
pub fn constants(
    header: &Header,
    macros: &BTreeMap<String, u32>,
    table: &Table,
    is_named: impl Fn(&str) -> bool,
) -> String {
    let mut text = opening("The handles, enumerations and flags of the driver API that deepres names.");
    text += "use core::ffi::c_void;\n\n";
    let enums: BTreeSet<&str> = header.enums.iter().map(|declared| declared.name.as_str()).collect();
    for (name, rust) in &table.aliases {
        if !enums.contains(name.as_str()) && is_named(name) {
            let _ = writeln!(text, "pub type {name} = {rust};");
        }
    }
    for declared in header.enums.iter().filter(|declared| declared.name != RESULT) {
        let values: Vec<_> = declared.values.iter().filter(|(name, _)| is_named(name)).collect();
        if !values.is_empty() || is_named(&declared.name) {
            let _ = writeln!(text, "\npub type {} = u32;", declared.name);
        }
        for (name, value) in values {
            let _ = writeln!(text, "pub const {name}: {} = {};", declared.name, number(*value));
        }
    }
    text.push('\n');
    for (name, value) in macros.iter().filter(|(name, _)| is_named(name)) {
        let _ = writeln!(text, "pub const {name}: u32 = {};", number(*value));
    }
    text
}

/// The enumeration that has a file of its own.
const RESULT: &str = "CUresult";

fn result_codes(header: &Header) -> Result<&[(String, u32)]> {
    let declared = header.enums.iter().find(|declared| declared.name == RESULT);
    Ok(&declared.context("the headers declare no CUresult")?.values)
}

/// Returns `result.rs`: result codes and their names.
pub fn results(header: &Header) -> Result<String> {
    let values = result_codes(header)?;
    let mut text = opening("Result codes of the driver API.");
    text += "use core::ffi::CStr;\n\n";
    text += "/// The result of a driver function: a code of this module, or a code of a newer driver.\n\
        pub type CUresult = u32;\n\n";
    text += "codes! {\n";
    for (name, value) in values {
        let _ = writeln!(text, "    {name} = {value}, c\"{name}\";");
    }
    text += "}\n";
    Ok(text)
}

/// Returns the number as text. A large number is hexadecimal, because large flags are easier to
/// read so.
fn number(value: u32) -> String {
    /// The largest value written in decimal.
    const DECIMAL_MAX: u32 = 0xffff;
    if value > DECIMAL_MAX { format!("{value:#x}") } else { value.to_string() }
}
