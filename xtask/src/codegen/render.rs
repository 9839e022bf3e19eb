//! The text of the generated files. rustfmt formats it later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::WHEEL;
use super::header::Header;
use super::table::{Plain, Stream, Table};

fn opening(job: &str) -> String {
    format!(
        "//! {job}\n//!\n//! `cargo xtask codegen` makes this file from the headers of {WHEEL}.\n\
         //! Do not edit the file.\n\n"
    )
}

/// Returns `functions.rs`: the table, as a macro that passes its rows to another macro.
/// `documented` has the names of the errors that the reference of each family names.
pub fn functions(
    header: &Header,
    documented: &BTreeMap<String, BTreeSet<String>>,
    table: &Table,
) -> Result<String> {
    let values = result_codes(header, DRIVER_RESULT)?;
    let value = |code: &String| values.iter().find(|(name, _)| name == code).map(|(_, value)| *value);
    let mut text = opening("Every function that NVIDIA's driver library exports, in every variant.");
    text += "/// Calls the macro named by the argument once, with every row of the table, sorted by symbol:\n\
        /// `{ id: …, symbol: …, family: \"…\", since: …, stream: Any|Legacy|PerThread, errors: […],
        /// args: (name: type, …) }`.\n\
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
        "/// The ids of the rows, sorted by family. Within a family, the variants for the per-thread stream\n\
         /// come last. Of each kind, the oldest variant comes first.\n\
         pub(super) const BY_FAMILY: [u16; {}] = {by_family:?};",
        by_family.len()
    );
    Ok(text)
}

/// Returns `functions.rs` of an API without variants: its functions, as a macro that passes them to
/// another macro.
pub fn plain_functions(plain: &Plain) -> String {
    let mut text = opening("Every function of the runtime's API.");
    text += "/// Calls the macro named by the argument once, with every function, sorted by name:\n\
        /// `{ symbol: …, args: (name: type, …) }`.\n\
        ///\n\
        /// The types are those of `types`, which the caller has to have in scope.\n\
        macro_rules! for_each_function {\n    ($($callback:tt)+) => {\n        $($callback)+! {\n";
    for (symbol, arguments) in &plain.functions {
        let arguments: Vec<String> = arguments.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        let _ = writeln!(text, "            {{ symbol: {symbol}, args: ({}) }}", arguments.join(", "));
    }
    text += "        }\n    };\n}\n";
    text
}

/// Returns `constants.rs`: the type names that need no definition by hand, and the enumerators and
/// flags. The file has only names that `is_named` accepts. The file leaves out the result codes.
pub fn constants(
    api: &str,
    header: &Header,
    macros: &BTreeMap<String, u32>,
    aliases: &BTreeMap<String, String>,
    is_named: impl Fn(&str) -> bool,
) -> String {
    let mut text = opening(&format!("The handles, enumerations and flags of the {api} that deepres names."));
    text += "use core::ffi::c_void;\n\n";
    let enums: BTreeSet<&str> = header.enums.iter().map(|declared| declared.name.as_str()).collect();
    for (name, rust) in aliases {
        if !enums.contains(name.as_str()) && is_named(name) {
            let _ = writeln!(text, "pub type {name} = {rust};");
        }
    }
    for declared in
        header.enums.iter().filter(|one| ![DRIVER_RESULT, RUNTIME_RESULT].contains(&one.name.as_str()))
    {
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

/// The enumeration of the driver's result codes, which has a file of its own.
pub const DRIVER_RESULT: &str = "CUresult";
/// The enumeration of the runtime's result codes.
pub const RUNTIME_RESULT: &str = "cudaError";

fn result_codes<'h>(header: &'h Header, enumeration: &str) -> Result<&'h [(String, u32)]> {
    let declared = header.enums.iter().find(|declared| declared.name == enumeration);
    Ok(&declared.with_context(|| format!("the headers declare no {enumeration}"))?.values)
}

/// Returns `result.rs`: the driver's result codes and their names.
pub fn results(header: &Header) -> Result<String> {
    let mut text = opening("Result codes of the driver API.");
    text += "use core::ffi::CStr;\n\n";
    text += "/// The result of a driver function: a code of this module, or a code of a newer driver.\n\
        pub type CUresult = u32;\n\n";
    text += &codes(result_codes(header, DRIVER_RESULT)?);
    Ok(text)
}

/// Returns `errors.rs`: the runtime's result codes and their names.
pub fn runtime_errors(header: &Header) -> Result<String> {
    let mut text = opening("Result codes of the runtime's API.");
    text += &codes(result_codes(header, RUNTIME_RESULT)?);
    Ok(text)
}

fn codes(values: &[(String, u32)]) -> String {
    let mut text = "codes! {\n".to_owned();
    for (name, value) in values {
        let _ = writeln!(text, "    {name} = {value}, c\"{name}\";");
    }
    text += "}\n";
    text
}

/// Returns the number as text. A large number is hexadecimal, because large flags are easier to
/// read so.
fn number(value: u32) -> String {
    /// The largest value written in decimal.
    const DECIMAL_MAX: u32 = 0xffff;
    if value > DECIMAL_MAX { format!("{value:#x}") } else { value.to_string() }
}
