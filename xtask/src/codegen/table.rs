//! Builds the rows of the table from declarations. A row gives the exported symbol for a family,
//! version and stream, with Rust's types.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use super::header::{Argument, Header, Named, Type};

/// The whole table of the driver API.
pub struct Table {
    /// The rows, sorted by symbol.
    pub rows: Vec<Row>,
    /// The types of the header in Rust, by name. `types.rs` need not define these types by hand.
    pub aliases: BTreeMap<String, String>,
}

/// A row of the table: one function that the driver exports, in one variant.
pub struct Row {
    pub symbol: String,
    /// The name by which a program asks `cuGetProcAddress`.
    pub family: String,
    pub since: u32,
    pub stream: Stream,
    /// Name and Rust type of each argument.
    pub arguments: Vec<(String, String)>,
}

/// The default stream that an entry point means by stream 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    Any,
    Legacy,
    PerThread,
}

/// Returns the type names that `types.rs` defines itself.
pub fn handwritten_names(types: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let rest =
            ["pub type ", "pub union ", "    struct "].iter().find_map(|start| line.strip_prefix(start))?;
        Some(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
    };
    types.lines().filter_map(name).collect()
}

/// The functions of an API without variants, and the types of the header that they use.
pub struct Plain {
    /// Name and Rust type of each argument, by function.
    pub functions: BTreeMap<String, Vec<(String, String)>>,
    /// The types of the header in Rust, by name, as in [`Table::aliases`].
    pub aliases: BTreeMap<String, String>,
}

/// Returns the functions of a header in which each function has one variant.
pub fn plain(header: &Header, handwritten: &BTreeSet<String>) -> Result<Plain> {
    let mut types = Types::of(header, handwritten);
    let arguments = |(name, arguments): (&String, &Vec<Argument>)| {
        Ok((name.clone(), types.arguments(arguments).with_context(|| format!("in {name}"))?))
    };
    let functions = header.functions.iter().map(arguments).collect::<Result<_>>()?;
    types.add_remaining()?;
    Ok(Plain { functions, aliases: types.aliases })
}

/// Joins functions and pointer types into rows.
pub fn build(header: &Header, handwritten: &BTreeSet<String>) -> Result<Table> {
    let mut types = Types::of(header, handwritten);

    // The suffixes of a family's symbols, in order, correspond to its versions, in order.
    let mut symbols: BTreeMap<(String, bool), Vec<(u32, &str)>> = BTreeMap::new();
    for symbol in header.functions.keys() {
        let (family, variant, per_thread) = split(symbol);
        symbols.entry((family, per_thread)).or_default().push((variant, symbol));
    }
    let mut versions: BTreeMap<(String, bool), Vec<Version<'_>>> = BTreeMap::new();
    for pointer in &header.pointers {
        let key = (pointer.family.clone(), pointer.per_thread);
        versions.entry(key).or_default().push((pointer.since, &pointer.arguments));
    }
    let mut rows = Vec::new();
    for ((family, per_thread), mut versions) in versions {
        versions.sort_by_key(|(since, _)| *since);
        let mut named = symbols.remove(&(family.clone(), per_thread)).unwrap_or_default();
        named.sort_unstable();
        if named.is_empty() && versions.len() == 1 && !per_thread {
            // The wheel lacks the header of this function. The pointer type contains all facts
            // about it.
            named.push((1, &family));
        }
        if named.len() != versions.len() {
            bail!(
                "{family}: {} symbols {named:?} but {} versions; settle which is which in table.rs",
                named.len(),
                versions.len()
            );
        }
        for ((_, symbol), (since, expected)) in named.into_iter().zip(versions) {
            let declared = header.functions.get(symbol).map_or(expected, Vec::as_slice);
            let arguments = types.arguments(declared).with_context(|| format!("in {symbol}"))?;
            let expected = types.arguments(expected).with_context(|| format!("in PFN_{family}_v{since}"))?;
            if !arguments.iter().map(|(_, ty)| ty).eq(expected.iter().map(|(_, ty)| ty)) {
                bail!("{symbol} and PFN_{family}_v{since} take different arguments");
            }
            let stream = if per_thread { Stream::PerThread } else { Stream::Any };
            rows.push(Row { symbol: symbol.to_owned(), family: family.clone(), since, stream, arguments });
        }
    }
    if let Some(((family, _), named)) = symbols.into_iter().next() {
        bail!("{family}: no version is known of {named:?}; settle them in table.rs");
    }
    let paired: BTreeSet<String> =
        rows.iter().filter(|row| row.stream == Stream::PerThread).map(|row| row.family.clone()).collect();
    for row in &mut rows {
        if row.stream == Stream::Any && paired.contains(&row.family) {
            row.stream = Stream::Legacy;
        }
    }
    rows.sort_by(|one, other| one.symbol.cmp(&other.symbol));
    types.add_remaining()?;
    Ok(Table { rows, aliases: types.aliases })
}

/// The version that introduced a variant, and the variant's arguments.
type Version<'h> = (u32, &'h [Argument]);

/// Splits a symbol into family, variant and stream. For example, `cuMemcpyHtoD_v2_ptds` is the
/// second variant of `cuMemcpyHtoD`, for per-thread default streams.
fn split(symbol: &str) -> (String, u32, bool) {
    let plain = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds"));
    let name = plain.unwrap_or(symbol);
    let (family, variant) = match name.rsplit_once("_v") {
        Some((family, digits)) if digits.parse::<u32>().is_ok() => (family, digits.parse().unwrap_or(1)),
        _ => (name, 1),
    };
    (family.to_owned(), variant, plain.is_some())
}

/// Translator of C's types into Rust's.
struct Types<'h> {
    header: &'h Header,
    handwritten: &'h BTreeSet<String>,
    /// The handwritten name of a type that has several names in the header.
    canonical: BTreeMap<String, String>,
    aliases: BTreeMap<String, String>,
}

impl<'h> Types<'h> {
    fn of(header: &'h Header, handwritten: &'h BTreeSet<String>) -> Self {
        let mut types = Self { header, handwritten, aliases: BTreeMap::new(), canonical: BTreeMap::new() };
        for name in handwritten {
            types.canonical.entry(types.last_alias(name)).or_insert_with(|| name.clone());
        }
        types
    }

    fn arguments(&mut self, arguments: &[Argument]) -> Result<Vec<(String, String)>> {
        let numbered = arguments.iter().enumerate();
        numbered.map(|(at, argument)| Ok((rust_name(&argument.name, at), self.rust(&argument.ty)?))).collect()
    }

    fn rust(&mut self, ty: &Type) -> Result<String> {
        let mut rust = if let Some(primitive) = primitive(&ty.base) {
            primitive.to_owned()
        } else if let Some(name) = self.canonical.get(&self.last_alias(&ty.base)) {
            name.clone()
        } else if self.is_structure(&ty.base) {
            // No code reads the structure, so a pointer to it is an opaque pointer.
            "c_void".to_owned()
        } else {
            self.alias(&ty.base)?
        };
        if rust == "c_void" && ty.pointers.is_empty() {
            bail!("{} is passed by value: define it in types.rs", ty.base);
        }
        for constant in &ty.pointers {
            rust = format!("*{} {rust}", if *constant { "const" } else { "mut" });
        }
        Ok(rust)
    }

    /// Returns the name at the end of a chain of type definitions.
    fn last_alias(&self, name: &str) -> String {
        match self.header.types.get(name) {
            Some(Named::Alias(ty)) if ty.pointers.is_empty() && primitive(&ty.base).is_none() => {
                self.last_alias(&ty.base)
            }
            _ => name.to_owned(),
        }
    }

    fn is_structure(&self, name: &str) -> bool {
        matches!(self.header.types.get(&self.last_alias(name)), Some(Named::Structure) | None)
    }

    /// Records that `constants.rs` must define `name`, and returns the name.
    fn alias(&mut self, name: &str) -> Result<String> {
        let last = self.last_alias(name);
        // `CUdevice_v1` and `CUdevice` are one type, and the shorter name is the current one.
        let name = last.strip_suffix("_v1").filter(|short| self.last_alias(short) == last).unwrap_or(&last);
        let rust = match self.header.types.get(&last).with_context(|| format!("{last} is not declared"))? {
            Named::Enum => "u32".to_owned(),
            Named::Handle => "*mut c_void".to_owned(),
            Named::Alias(ty) => self.rust(&ty.clone())?,
            Named::Structure => bail!("{last} is a structure"),
        };
        let name = name.to_owned();
        self.aliases.insert(name.clone(), rust);
        Ok(name)
    }

    /// Adds the enumerations that no function uses, because structures contain them.
    fn add_remaining(&mut self) -> Result<()> {
        for declared in &self.header.enums {
            if !self.handwritten.contains(&declared.name) {
                self.aliases.entry(declared.name.clone()).or_insert_with(|| "u32".to_owned());
            }
        }
        Ok(())
    }
}

fn primitive(name: &str) -> Option<&'static str> {
    Some(match name {
        "void" => "c_void",
        "char" => "c_char",
        "unsigned char" => "u8",
        "unsigned short" => "u16",
        "int" => "i32",
        "unsigned" | "unsigned int" | "uint32_t" | "cuuint32_t" => "u32",
        "long long" => "i64",
        "unsigned long long" | "uint64_t" | "cuuint64_t" => "u64",
        "size_t" => "usize",
        "float" => "f32",
        "double" => "f64",
        _ => return None,
    })
}

fn rust_name(name: &str, at: usize) -> String {
    match name {
        "" => format!("argument{at}"),
        "fn" | "type" | "in" | "ref" | "mod" => format!("r#{name}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::header;
    use super::*;

    fn table(source: &str, types: &str) -> Result<Table> {
        build(&header::parse(source, "CUresult").unwrap(), &handwritten_names(types))
    }

    const COPY: &str = "
        typedef unsigned long long CUdeviceptr_v2; typedef CUdeviceptr_v2 CUdeviceptr;
        typedef unsigned int CUdeviceptr_v1;
        CUresult cuMemcpyDtoD(CUdeviceptr_v1 d, CUdeviceptr_v1 s);
        CUresult cuMemcpyDtoD_v2(CUdeviceptr d, CUdeviceptr s);
        CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr d, CUdeviceptr s);
        typedef CUresult (*PFN_cuMemcpyDtoD_v7000_ptds)(CUdeviceptr_v2 d, CUdeviceptr_v2 s);
        typedef CUresult (*PFN_cuMemcpyDtoD_v3020)(CUdeviceptr_v2 d, CUdeviceptr_v2 s);
        typedef CUresult (*PFN_cuMemcpyDtoD_v2000)(CUdeviceptr_v1 d, CUdeviceptr_v1 s);";

    #[test]
    fn suffixes_in_order_are_versions_in_order() {
        let table = table(COPY, "pub type CUdeviceptr = u64;\n").unwrap();
        let rows: Vec<_> =
            table.rows.iter().map(|row| (row.symbol.as_str(), row.since, row.stream)).collect();
        let expected = [
            ("cuMemcpyDtoD", 2000, Stream::Legacy),
            ("cuMemcpyDtoD_v2", 3020, Stream::Legacy),
            ("cuMemcpyDtoD_v2_ptds", 7000, Stream::PerThread),
        ];
        assert_eq!(rows, expected);
        assert_eq!(table.rows[1].arguments[0], ("d".into(), "CUdeviceptr".into()));
        assert_eq!(table.rows[0].arguments[0].1, "CUdeviceptr_v1");
        assert_eq!(table.aliases["CUdeviceptr_v1"], "u32");
    }

    #[test]
    fn a_family_that_does_not_add_up_is_refused() {
        let source = format!("{COPY} CUresult cuMemcpyDtoD_v3(int a);");
        let error = table(&source, "").err().unwrap().to_string();
        assert!(error.contains("cuMemcpyDtoD_v3"), "{error}");
    }

    #[test]
    fn a_symbol_that_disagrees_with_its_pointer_type_is_refused() {
        let error =
            table("CUresult cuX(int a); typedef CUresult (*PFN_cuX_v2000)(float a);", "").err().unwrap();
        assert!(error.to_string().contains("different arguments"), "{error}");
    }

    #[test]
    fn undefined_structures_are_opaque_behind_pointers_and_refused_by_value() {
        let declare = "typedef struct S_st { int a; } S;";
        let pointer = format!(
            "{declare} CUresult cuX(const S *s, S **t); typedef CUresult (*PFN_cuX_v1)(const S *s, S **t);"
        );
        let table_ = table(&pointer, "").unwrap();
        let types: Vec<_> = table_.rows[0].arguments.iter().map(|(_, ty)| ty.as_str()).collect();
        assert_eq!(types, ["*const c_void", "*mut *mut c_void"]);
        let value = format!("{declare} CUresult cuX(S s); typedef CUresult (*PFN_cuX_v1)(S s);");
        assert!(table(&value, "").is_err());
        assert_eq!(table(&value, "    struct S: 8, 4 {").unwrap().rows[0].arguments[0].1, "S");
    }

    #[test]
    fn functions_without_variants_need_no_pointer_types() {
        let header = header::parse(
            "typedef struct S_st *cudaStream_t; enum cudaKind { cudaA };
             cudaError_t cudaOne(cudaStream_t s, enum cudaKind k);",
            "cudaError_t",
        );
        let found = plain(&header.unwrap(), &BTreeSet::new()).unwrap();
        let expected = [("s".to_owned(), "cudaStream_t".to_owned()), ("k".to_owned(), "cudaKind".to_owned())];
        assert_eq!(found.functions["cudaOne"], expected);
        assert_eq!(found.aliases["cudaStream_t"], "*mut c_void");
    }

    #[test]
    fn a_function_known_only_by_its_pointer_type_is_exported_under_its_own_name() {
        let table = table("typedef CUresult (*PFN_cuProfilerStart_v4000)(void);", "").unwrap();
        assert_eq!(table.rows[0].symbol, "cuProfilerStart");
        assert_eq!(table.rows[0].stream, Stream::Any);
    }
}
