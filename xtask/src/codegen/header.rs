//! A small reader of preprocessed C, for the declarations in NVIDIA's headers.
//!
//! The reader understands enumerations, type definitions and functions that return the result type
//! of an API. The reader skips all other statements (system headers, structures, inline functions)
//! as a whole.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

/// The declarations in the headers.
#[derive(Default, Debug)]
pub struct Header {
    /// Functions that return the API's result type, by exported name.
    pub functions: BTreeMap<String, Vec<Argument>>,
    /// `PFN_<family>_v<since>[_ptds|_ptsz]`: the types of the functions that `cuGetProcAddress`
    /// returns.
    pub pointers: Vec<Pointer>,
    /// Enumerations in order of declaration.
    pub enums: Vec<Enum>,
    /// Every other type name and its meaning.
    pub types: BTreeMap<String, Named>,
    /// Structures that C names with the word `struct`.
    pub tags: BTreeSet<String>,
}

/// One argument of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The declared name; empty if the header gives none.
    pub name: String,
    pub ty: Type,
}

/// A base type behind zero or more pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// The C name, for instance `unsigned int` or `CUstream`.
    pub base: String,
    /// For each `*`, innermost first, whether the pointed-to type is `const`.
    pub pointers: Vec<bool>,
}

/// A function pointer type of a `*Typedefs.h` header.
#[derive(Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The name by which a program asks `cuGetProcAddress`.
    pub family: String,
    /// The CUDA version that introduced this variant: 1000 times the major plus 10 times the minor.
    pub since: u32,
    /// Whether this is the variant for per-thread default streams.
    pub per_thread: bool,
    pub arguments: Vec<Argument>,
}

/// An enumeration of the headers, with the value of each enumerator.
#[derive(Debug, PartialEq, Eq)]
pub struct Enum {
    pub name: String,
    pub values: Vec<(String, u32)>,
}

/// The kind of type for which a type name of the headers stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    Enum,
    /// A pointer to a function or to a structure that only the driver knows.
    Handle,
    Structure,
    Alias(Type),
}

/// Returns the declarations in preprocessed C. `result` is the result type of the API's functions.
pub fn parse(source: &str, result: &str) -> Result<Header> {
    let tokens = tokens(source)?;
    let mut header = Header::default();
    let mut known = BTreeMap::new();
    for statement in statements(&tokens) {
        read(statement, result, &mut header, &mut known)
            .with_context(|| format!("in the declaration `{}`", statement.join(" ")))?;
    }
    Ok(header)
}

/// Returns the errors that each function's reference names, from a header's text with its comments.
/// The key is the name after the comment: the family. If a macro of the header replaces the name,
/// the replacement is also a key.
pub fn parse_errors(source: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut errors = BTreeMap::<String, BTreeSet<String>>::new();
    for part in source.split("/**").skip(1) {
        let Some((comment, after)) = part.split_once("*/") else { continue };
        let declaration = after.split(';').next().unwrap_or_default();
        let Some((before, after)) = declaration.split_once("CUDAAPI") else { continue };
        let (Some((name, _)), true) =
            (after.trim_start().split_once('('), before.trim_end().ends_with("CUresult"))
        else {
            continue;
        };
        let lists = comment.split("\\return").skip(1);
        // A list of errors ends at the next command of the comment.
        let codes = lists.flat_map(|list| list.split('\\').next().unwrap_or_default().split("::"));
        let codes = codes.filter_map(|text| {
            let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
            text[..end].starts_with("CUDA_ERROR_").then(|| text[..end].to_owned())
        });
        errors.entry(name.to_owned()).or_default().extend(codes);
    }
    let named = |line: &str| {
        let mut words = line.trim_start().strip_prefix("#define ")?.split_whitespace();
        let (name, symbol) = (words.next()?, words.next()?);
        Some((symbol.to_owned(), errors.get(name)?.clone()))
    };
    let others: Vec<_> = source.lines().filter_map(named).collect();
    for (symbol, codes) in others {
        errors.entry(symbol).or_insert(codes);
    }
    errors.retain(|_, codes| !codes.is_empty());
    errors
}

/// Returns the object-like macros with an integer value, from the preprocessor's list of macros.
pub fn parse_macros(source: &str) -> BTreeMap<String, u32> {
    let parse = |line: &str| {
        let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
        let known = BTreeMap::new();
        let driver_name = name.starts_with("CU_") || name.starts_with("CUDA_");
        let value = evaluate(&tokens(value).ok()?, &known).ok()?;
        driver_name.then(|| (name.to_owned(), value))
    };
    source.lines().filter_map(parse).collect()
}

fn tokens(source: &str) -> Result<Vec<&str>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
            continue;
        } else if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if first == '"' {
            rest[1..].find('"').context("a string that does not end")? + 2
        } else if rest.starts_with("<<") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = &rest[length..];
    }
    Ok(without_attributes(tokens))
}

/// Returns the tokens without `__attribute__((...))`, which says nothing about names and types.
fn without_attributes(tokens: Vec<&str>) -> Vec<&str> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        if token != "__attribute__" {
            kept.push(token);
            continue;
        }
        let mut depth = 0;
        for inner in tokens.by_ref() {
            depth += i32::from(inner == "(") - i32::from(inner == ")");
            if depth == 0 {
                break;
            }
        }
    }
    kept
}

/// Cuts a file into top-level statements. The end of a function's body ends a statement, as a
/// semicolon does.
fn statements<'t, 's>(tokens: &'t [&'s str]) -> Vec<&'t [&'s str]> {
    let mut found = Vec::new();
    let (mut start, mut depth) = (0, 0);
    for (at, &token) in tokens.iter().enumerate() {
        match token {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        let body_ended = token == "}"
            && !matches!(tokens[start], "typedef" | "struct" | "union" | "enum")
            && tokens[start..at].contains(&"(");
        if depth == 0 && (token == ";" || body_ended) {
            found.push(&tokens[start..=at]);
            start = at + 1;
        }
    }
    found
}

fn read(
    statement: &[&str],
    result: &str,
    header: &mut Header,
    known: &mut BTreeMap<String, u32>,
) -> Result<()> {
    match statement.strip_prefix(&["extern"]).unwrap_or(statement) {
        [returned, name, "(", arguments @ .., ")", ";"] if *returned == result && name.starts_with("cu") => {
            let arguments = read_arguments(arguments)?;
            if let Some(earlier) = header.functions.insert((*name).to_owned(), arguments.clone())
                && !same_types(&earlier, &arguments)
            {
                bail!("{name} is declared twice with different arguments");
            }
        }
        ["typedef", "CUresult", "(", "*", name, ")", "(", arguments @ .., ")", ";"]
            if name.starts_with("PFN_") =>
        {
            header.pointers.push(read_pointer(name, arguments)?);
        }
        ["typedef", "enum", rest @ .., name, ";"] if rest.contains(&"{") => {
            let open = rest.iter().position(|token| *token == "{").context("no values")?;
            let close = rest.len() - 1;
            let values = read_values(&rest[open + 1..close], known)?;
            header.enums.push(Enum { name: (*name).to_owned(), values });
            header.types.insert((*name).to_owned(), Named::Enum);
        }
        ["enum", name, "{", values @ .., "}", ";"] => {
            let values = read_values(values, known)?;
            header.enums.push(Enum { name: (*name).to_owned(), values });
            header.types.insert((*name).to_owned(), Named::Enum);
        }
        ["struct", name, "{", .., "}", ";"] => {
            header.types.insert((*name).to_owned(), Named::Structure);
            header.tags.insert((*name).to_owned());
        }
        ["typedef", "enum", _, name, ";"] => {
            header.types.insert((*name).to_owned(), Named::Enum);
        }
        ["typedef", "struct", _, "*", name, ";"] => {
            header.types.insert((*name).to_owned(), Named::Handle);
        }
        ["typedef", "struct" | "union", .., name, ";"] => {
            header.types.insert((*name).to_owned(), Named::Structure);
        }
        ["typedef", rest @ .., ";"] if let Some(name) = function_pointer(rest) => {
            header.types.insert(name.to_owned(), Named::Handle);
        }
        ["typedef", words @ .., name, ";"] if words.iter().all(|word| is_word(word) || *word == "*") => {
            header.types.insert((*name).to_owned(), Named::Alias(read_type(words)?));
        }
        _ => {}
    }
    Ok(())
}

/// Returns the name in `int (*name)(...)`; `None` for other tokens.
fn function_pointer<'s>(tokens: &[&'s str]) -> Option<&'s str> {
    tokens.windows(5).find_map(|window| match window {
        ["(", "*", name, ")", "("] => Some(*name),
        _ => None,
    })
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn read_pointer(name: &str, arguments: &[&str]) -> Result<Pointer> {
    let name = name.strip_prefix("PFN_").context("not a PFN_ name")?;
    let plain = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
    let (family, since) = plain.unwrap_or(name).rsplit_once("_v").context("no version in the name")?;
    Ok(Pointer {
        family: family.to_owned(),
        since: since.parse().context("the version is not a number")?,
        per_thread: plain.is_some(),
        arguments: read_arguments(arguments)?,
    })
}

fn read_arguments(tokens: &[&str]) -> Result<Vec<Argument>> {
    if matches!(tokens, [] | ["void"]) {
        return Ok(Vec::new());
    }
    tokens.split(|token| *token == ",").map(read_argument).collect()
}

fn read_argument(tokens: &[&str]) -> Result<Argument> {
    let words = tokens.iter().filter(|token| is_word(token) && **token != "const").count();
    let (ty, name) = match tokens {
        [ty @ .., name] if words > 1 && is_word(name) && !TYPE_WORDS.contains(name) => (ty, *name),
        _ => (tokens, ""),
    };
    Ok(Argument { name: name.to_owned(), ty: read_type(ty)? })
}

/// Last words of types that have more than one word.
const TYPE_WORDS: &[&str] = &["int", "long", "char", "short"];

fn read_type(tokens: &[&str]) -> Result<Type> {
    let mut base = Vec::new();
    let mut pointers = Vec::new();
    let mut constant = false;
    for &token in tokens {
        match token {
            "const" => constant = true,
            "*" => pointers.push(std::mem::take(&mut constant)),
            "struct" | "union" | "enum" => {}
            word if is_word(word) && pointers.is_empty() => base.push(word),
            other => bail!("`{other}` is not understood in a type"),
        }
    }
    if base.is_empty() {
        bail!("a type without a name");
    }
    Ok(Type { base: base.join(" "), pointers })
}

/// Returns whether two argument lists differ in names at most.
pub fn same_types(one: &[Argument], other: &[Argument]) -> bool {
    one.iter().map(|argument| &argument.ty).eq(other.iter().map(|argument| &argument.ty))
}

fn read_values(tokens: &[&str], known: &mut BTreeMap<String, u32>) -> Result<Vec<(String, u32)>> {
    let mut values = Vec::new();
    let mut next = 0_u32;
    for item in tokens.split(|token| *token == ",") {
        let name = match item {
            [] => continue,
            [name] => *name,
            [name, "=", expression @ ..] => {
                next = evaluate(expression, known).with_context(|| format!("the value of {name}"))?;
                *name
            }
            other => bail!("`{}` is not understood in an enumeration", other.join(" ")),
        };
        known.insert(name.to_owned(), next);
        values.push((name.to_owned(), next));
        next = next.wrapping_add(1);
    }
    Ok(values)
}

/// Returns the value of sums, alternatives and shifts of numbers and earlier names. Enumerations
/// use no other operators.
fn evaluate(tokens: &[&str], known: &BTreeMap<String, u32>) -> Result<u32> {
    // The operator with the lowest precedence comes first, because it applies last.
    for operator in ["|", "<<", "+"] {
        let mut depth = 0;
        for (at, &token) in tokens.iter().enumerate().rev() {
            depth += i32::from(token == ")") - i32::from(token == "(");
            if depth == 0 && token == operator {
                let left = evaluate(&tokens[..at], known)?;
                let right = evaluate(&tokens[at + 1..], known)?;
                return Ok(match operator {
                    "|" => left | right,
                    "<<" => left.checked_shl(right).context("a shift too far")?,
                    _ => left.wrapping_add(right),
                });
            }
        }
    }
    match tokens {
        ["(", inner @ .., ")"] => evaluate(inner, known),
        ["-", inner @ ..] => Ok(evaluate(inner, known)?.wrapping_neg()),
        ["~", inner @ ..] => Ok(!evaluate(inner, known)?),
        [word] if is_word(word) => known.get(*word).copied().with_context(|| format!("{word} is not known")),
        [number] => {
            let digits = number.trim_end_matches(['u', 'U', 'l', 'L']);
            match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => digits.parse(),
            }
            .with_context(|| format!("{number} is not a number of 32 bits"))
        }
        other => bail!("`{}` is not understood as a value", other.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_driver(source: &str) -> Result<Header> {
        parse(source, "CUresult")
    }

    fn ty(base: &str, pointers: &[bool]) -> Type {
        Type { base: base.to_owned(), pointers: pointers.to_vec() }
    }

    #[test]
    fn reads_functions_with_pointers_and_const() {
        let header = read_driver(
            "__attribute__((deprecated)) CUresult cuOne(const void *src, void **out, unsigned int n);
             CUresult cuNone(void);",
        )
        .unwrap();
        let types: Vec<_> = header.functions["cuOne"].iter().map(|argument| argument.ty.clone()).collect();
        assert_eq!(types, [ty("void", &[true]), ty("void", &[false, false]), ty("unsigned int", &[])]);
        assert_eq!(header.functions["cuOne"][2].name, "n");
        assert!(header.functions["cuNone"].is_empty());
    }

    #[test]
    fn reads_arguments_without_a_name() {
        let header =
            read_driver("CUresult cuOne(unsigned long long, CUdevice, const char *, unsigned n);").unwrap();
        let arguments = &header.functions["cuOne"];
        let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
        assert_eq!(names, ["", "", "", "n"]);
        assert_eq!(arguments[0].ty, ty("unsigned long long", &[]));
        assert_eq!(arguments[2].ty, ty("char", &[true]));
    }

    #[test]
    fn reads_the_errors_that_a_reference_names() {
        let errors = parse_errors(
            "/** \\brief One\n * Gives ::CUDA_ERROR_UNKNOWN.\n * \\return\n * ::CUDA_SUCCESS,\n * ::CUDA_ERROR_B,\n * ::CUDA_ERROR_A\n * \\sa ::CUDA_ERROR_C\n */
             __CUDA_DEPRECATED CUresult CUDAAPI cuOne(int a);
             /** \\return ::CUDA_SUCCESS */ CUresult CUDAAPI cuTwo(void);
             /** ::CUDA_ERROR_D */ typedef int other;
             #define cuThree cuThreeWithFlags
             /** \\return ::CUDA_ERROR_E */ CUresult CUDAAPI
             cuThree(int a);",
        );
        let codes = |codes: &[&str]| codes.iter().map(|code| (*code).to_owned()).collect();
        let expected = BTreeMap::from([
            ("cuOne".to_owned(), codes(&["CUDA_ERROR_A", "CUDA_ERROR_B"])),
            ("cuThree".to_owned(), codes(&["CUDA_ERROR_E"])),
            ("cuThreeWithFlags".to_owned(), codes(&["CUDA_ERROR_E"])),
        ]);
        assert_eq!(errors, expected);
    }

    #[test]
    fn skips_inline_functions_and_keeps_the_declarations_after_them() {
        let header = read_driver(
            "static inline int twice(int x) { if (x) { return 2 * x; } return 0; }
             struct plain { int a; };
             CUresult cuAfter(struct plain *p);",
        )
        .unwrap();
        assert_eq!(header.functions["cuAfter"][0].ty, ty("plain", &[false]));
    }

    #[test]
    fn reads_family_version_and_stream_of_a_pointer_type() {
        let header = read_driver(
            "typedef CUresult ( *PFN_cuMemAlloc_v3020)(CUdeviceptr *dptr, size_t bytesize);
             typedef CUresult ( *PFN_cuMemcpy_v7000_ptds)(CUdeviceptr dst);",
        )
        .unwrap();
        let [alloc, copy] = &header.pointers[..] else { panic!("{:?}", header.pointers) };
        assert_eq!((alloc.family.as_str(), alloc.since, alloc.per_thread), ("cuMemAlloc", 3020, false));
        assert_eq!((copy.family.as_str(), copy.since, copy.per_thread), ("cuMemcpy", 7000, true));
    }

    #[test]
    fn counts_enumerations_from_the_last_given_value() {
        let header = read_driver(
            "typedef enum E_enum { A = 3, B, C = 1 << 4, D = (A | C), G = 0x10000 + B, F = -1, } E;",
        )
        .unwrap();
        let values: Vec<u32> = header.enums[0].values.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [3, 4, 16, 19, 0x1_0004, u32::MAX]);
        assert_eq!(header.enums[0].name, "E");
    }

    #[test]
    fn tells_handles_structures_and_aliases_apart() {
        let header = read_driver(
            "typedef struct CUctx_st *CUcontext; typedef struct S_st { int a; } S_v1; typedef S_v1 S;
             typedef void ( *CUhostFn)(void *userData); typedef unsigned long long CUdeviceptr;",
        )
        .unwrap();
        assert_eq!(header.types["CUcontext"], Named::Handle);
        assert_eq!(header.types["CUhostFn"], Named::Handle);
        assert_eq!(header.types["S_v1"], Named::Structure);
        assert_eq!(header.types["S"], Named::Alias(ty("S_v1", &[])));
        assert_eq!(header.types["CUdeviceptr"], Named::Alias(ty("unsigned long long", &[])));
    }

    #[test]
    fn reads_what_the_runtime_declares_without_typedef() {
        let header = parse(
            "enum cudaLimit { cudaLimitStack = 0, cudaLimitHeap = 2 };
             struct cudaExtent { size_t width; };
             typedef enum cudaError cudaError_t;
             extern cudaError_t cudaOne(enum cudaLimit limit, struct cudaExtent extent);
             extern const char *cudaTwo(cudaError_t error);
             CUresult cuThree(void);",
            "cudaError_t",
        )
        .unwrap();
        assert_eq!(header.enums[0].values[1], ("cudaLimitHeap".to_owned(), 2));
        assert_eq!(header.types["cudaError_t"], Named::Enum);
        assert_eq!(header.types["cudaExtent"], Named::Structure);
        assert!(header.tags.contains("cudaExtent"));
        let types: Vec<_> = header.functions["cudaOne"].iter().map(|one| one.ty.base.as_str()).collect();
        assert_eq!(types, ["cudaLimit", "cudaExtent"]);
        assert_eq!(header.functions.len(), 1);
    }

    #[test]
    fn a_function_declared_twice_must_agree() {
        assert!(read_driver("CUresult cuOne(int a); CUresult cuOne(int b);").is_ok());
        assert!(read_driver("CUresult cuOne(int a); CUresult cuOne(float a);").is_err());
    }

    #[test]
    fn keeps_macros_that_are_integers() {
        let macros = parse_macros(
            "#define CUDA_VERSION 13050\n#define CU_STREAM_LEGACY ((CUstream)0x1)\n#define CUDAAPI \n\
             #define cuMemAlloc cuMemAlloc_v2\n#define CU_MASK (~0u)\n#define OTHER 1\n",
        );
        assert_eq!(macros, BTreeMap::from([("CUDA_VERSION".into(), 13050), ("CU_MASK".into(), u32::MAX)]));
    }
}
