//! PTX text. The driver reads only the declarations, not the instructions.
use super::{GlobalImage, Image, KernelImage, Parameter};
use crate::status::{self, Result};

/// The newest PTX ISA that this driver accepts (CUDA 13.x): ten times major plus minor.
const NEWEST_PTX_VERSION: u32 = 99;
/// Registers of a kernel that is not compiled.
const ASSUMED_REGISTERS: u32 = 32;

struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            let skipped = if trimmed.starts_with("//") {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if trimmed.starts_with("/*") {
                trimmed.find("*/").map_or(trimmed.len(), |end| end + "*/".len())
            } else {
                return;
            };
            self.at += skipped;
        }
    }

    /// Returns the next word (identifier, directive or number) or single punctuation mark.
    fn next(&mut self) -> Option<&'a str> {
        self.skip_blanks_and_comments();
        let rest = &self.text[self.at..];
        let first = rest.chars().next()?;
        let length = if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if is_word(first) {
            rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        self.at += length;
        Some(&rest[..length])
    }

    fn peek(&mut self) -> Option<&'a str> {
        let before = self.at;
        let token = self.next();
        self.at = before;
        token
    }

    /// Skips to just after the `close` that matches an `open` before. Passes each token in between
    /// to `see`.
    fn through(&mut self, open: &str, close: &str, mut see: impl FnMut(&mut Self, &'a str)) {
        let mut depth = 1;
        while let Some(token) = self.next() {
            if token == open {
                depth += 1;
            } else if token == close {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
            see(self, token);
        }
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '$' | '%' | '.')
}

/// Returns the bytes of a fundamental type such as `.u64`; `None` for other directives.
fn type_bytes(directive: &str) -> Option<usize> {
    Some(match directive {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" | ".texref" | ".samplerref" | ".surfref" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// A variable declaration behind its state space: alignment, type, name, array extents, initial
/// values.
struct Variable<'a> {
    name: &'a str,
    align_bytes: usize,
    element_bytes: usize,
    elements: usize,
    initial: Vec<u8>,
    managed: bool,
}

impl Variable<'_> {
    fn size_bytes(&self) -> Option<usize> {
        self.element_bytes.checked_mul(self.elements)
    }
}

fn number(token: &str) -> Option<u64> {
    let digits = token.trim_end_matches(['U', 'u']);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// Returns the bits of one initialiser: an integer, `0fXXXXXXXX` or `0dXXXXXXXXXXXXXXXX`. For
/// anything else (an address), returns 0.
fn initial_bits(token: &str) -> u64 {
    let float = token.strip_prefix("0f").or_else(|| token.strip_prefix("0F"));
    let double = token.strip_prefix("0d").or_else(|| token.strip_prefix("0D"));
    match float.or(double) {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap_or(0),
        None => number(token).unwrap_or(0),
    }
}

fn variable<'a>(tokens: &mut Tokens<'a>) -> Option<Variable<'a>> {
    let mut found = Variable {
        name: "",
        align_bytes: 0,
        element_bytes: 0,
        elements: 1,
        initial: Vec::new(),
        managed: false,
    };
    let mut vector = 1;
    loop {
        let token = tokens.next()?;
        match token {
            ".align" => found.align_bytes = number(tokens.next()?)? as usize,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            ".attribute" => {
                tokens.next()?;
                tokens.through("(", ")", |_, inner| found.managed |= inner == ".managed");
            }
            // `.ptr .global .align 4` describes the target of a pointer parameter, not the
            // parameter.
            ".ptr" => {
                while let Some(next) = tokens.peek().filter(|next| next.starts_with('.')) {
                    tokens.next();
                    if next == ".align" {
                        tokens.next();
                    }
                }
            }
            _ => match type_bytes(token) {
                Some(bytes) => found.element_bytes = bytes * vector,
                None if token.starts_with('.') => {}
                None => {
                    found.name = token;
                    break;
                }
            },
        }
    }
    while tokens.peek() == Some("[") {
        tokens.next();
        let extent = tokens.next()?;
        // `[]` leaves the extent to the launch or the linker.
        if extent == "]" {
            found.elements = 0;
        } else {
            found.elements = found.elements.checked_mul(number(extent)? as usize)?;
            tokens.next();
        }
    }
    if tokens.peek() == Some("=") {
        tokens.next();
        let bytes = found.element_bytes / vector;
        let mut push = |token: &str, negative: bool| {
            let bits = if negative { initial_bits(token).wrapping_neg() } else { initial_bits(token) };
            found.initial.extend_from_slice(&bits.to_le_bytes().repeat(2)[..bytes]);
        };
        if tokens.peek() == Some("{") {
            tokens.next();
            let mut negative = false;
            tokens.through("{", "}", |_, token| match token {
                "-" => negative = true,
                "," | "{" | "}" => {}
                _ => {
                    push(token, negative);
                    negative = false;
                }
            });
        } else {
            let first = tokens.next()?;
            if first == "-" {
                push(tokens.next()?, true);
            } else {
                push(first, false);
            }
        }
    }
    if found.align_bytes == 0 {
        found.align_bytes = found.element_bytes;
    }
    Some(found)
}

fn kernel(tokens: &mut Tokens<'_>) -> Option<KernelImage> {
    let mut found = KernelImage {
        name: tokens.next()?.to_owned(),
        parameters: Vec::new(),
        shared_bytes: 0,
        const_bytes: 0,
        local_bytes: 0,
        registers: ASSUMED_REGISTERS,
        max_threads: None,
    };
    if tokens.peek() == Some("(") {
        tokens.next();
        let mut end = 0_usize;
        while let Some(token) = tokens.next() {
            match token {
                ")" => break,
                ".param" => {
                    let parameter = variable(tokens)?;
                    let offset_bytes = end.checked_next_multiple_of(parameter.align_bytes.max(1))?;
                    let size_bytes = parameter.size_bytes()?;
                    end = offset_bytes.checked_add(size_bytes)?;
                    found.parameters.push(Parameter { offset_bytes, size_bytes });
                }
                _ => {}
            }
        }
    }
    // Performance directives stand between the parameters and the body. A declaration without a
    // body ends in a semicolon.
    loop {
        match tokens.next()? {
            "{" => break,
            ";" => return None,
            ".maxntid" | ".reqntid" => {
                let mut threads = number(tokens.next()?)? as u32;
                while tokens.peek() == Some(",") {
                    tokens.next();
                    threads = threads.saturating_mul(number(tokens.next()?)? as u32);
                }
                found.max_threads = Some(threads);
            }
            ".maxnreg" => found.registers = number(tokens.next()?)? as u32,
            _ => {}
        }
    }
    tokens.through("{", "}", |tokens, token| match token {
        ".shared" => {
            let before = tokens.at;
            match variable(tokens) {
                Some(shared) => found.shared_bytes += shared.size_bytes().unwrap_or(0) as u32,
                None => tokens.at = before,
            }
        }
        ".local" => {
            let before = tokens.at;
            match variable(tokens) {
                Some(local) => found.local_bytes += local.size_bytes().unwrap_or(0) as u32,
                None => tokens.at = before,
            }
        }
        _ => {}
    });
    Some(found)
}

/// Turns `9.0` into 90.
fn version(token: &str) -> Option<u32> {
    let (major, minor) = token.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
}

/// Reads the declarations of a PTX module.
pub fn parse(text: &[u8]) -> Result<Image> {
    let text = std::str::from_utf8(text).map_err(|_| status::INVALID_IMAGE)?;
    let mut tokens = Tokens::new(text);
    let mut image = Image::default();
    if tokens.next() != Some(".version") {
        return Err(if text.contains(".version") { status::INVALID_PTX } else { status::INVALID_IMAGE });
    }
    image.ptx_version = tokens.next().and_then(version).ok_or(status::INVALID_PTX)?;
    status::refuse_as(image.ptx_version > NEWEST_PTX_VERSION, status::UNSUPPORTED_PTX_VERSION)?;
    let mut external = false;
    while let Some(token) = tokens.next() {
        match token {
            ".target" => {
                let target = tokens.next().ok_or(status::INVALID_PTX)?;
                let digits = target
                    .trim_start_matches("sm_")
                    .trim_end_matches(|letter: char| !letter.is_ascii_digit());
                image.architecture = digits.parse().map_err(|_| status::INVALID_PTX)?;
            }
            ".extern" => external = true,
            ";" => external = false,
            ".entry" => {
                if let Some(kernel) = kernel(&mut tokens) {
                    image.kernels.push(kernel);
                }
                external = false;
            }
            ".global" | ".const" => {
                let found = variable(&mut tokens).ok_or(status::INVALID_PTX)?;
                let size_bytes = found.size_bytes().ok_or(status::INVALID_PTX)?;
                if !external && size_bytes > 0 {
                    let offset_bytes = image.place(found.align_bytes as u64, size_bytes as u64)?;
                    image.globals.push(GlobalImage {
                        name: found.name.to_owned(),
                        offset_bytes,
                        size_bytes,
                        managed: found.managed,
                        initial: found.initial,
                    });
                }
                external = false;
            }
            ".func" | ".section" => {
                // The bodies of functions and debug sections hold nothing that programs can query.
                loop {
                    match tokens.next() {
                        Some("{") => {
                            tokens.through("{", "}", |_, _| {});
                            break;
                        }
                        Some(";") | None => break,
                        Some(_) => {}
                    }
                }
                external = false;
            }
            _ => {}
        }
    }
    status::refuse_as(image.architecture == 0, status::INVALID_PTX)?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = r#"
        // a comment with .entry not_me (
        .version 8.5
        .target sm_90a
        .address_size 64
        .extern .shared .align 16 .b8 dynamic[];
        .visible .global .align 4 .f32 scale = 0f3F800000;
        .visible .const .align 4 .b8 table[8] = {1, 2, 3, 255};
        .visible .global .align 8 .attribute(.managed) .u64 counter;
        .func helper(.param .b32 a) { .reg .b32 %r<2>; { ret; } }
        .visible .entry add(
            .param .u64 .ptr .global .align 16 out,
            .param .u32 n,
            .param .align 8 .b8 box[24]
        )
        .maxntid 128, 2, 1
        {
            .shared .align 4 .b8 tile[4096];
            .reg .b32 %r<4>;
            ld.shared.u32 %r1, [tile];
            { ret; }
        }
        .entry nothing() { ret; }
    "#;

    #[test]
    fn kernels_are_found_with_their_parameters_and_limits() {
        let image = parse(MODULE.as_bytes()).unwrap();
        let names: Vec<_> = image.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["add", "nothing"]);
        let parameters: Vec<_> =
            image.kernels[0].parameters.iter().map(|p| (p.offset_bytes, p.size_bytes)).collect();
        assert_eq!(parameters, [(0, 8), (8, 4), (16, 24)]);
        assert_eq!(image.kernels[0].max_threads, Some(256));
        assert_eq!(image.kernels[0].shared_bytes, 4096);
        assert_eq!(image.kernels[1].parameters, []);
        assert_eq!((image.ptx_version, image.architecture), (85, 90));
    }

    #[test]
    fn globals_keep_size_and_initial_bytes() {
        let image = parse(MODULE.as_bytes()).unwrap();
        let of = |name: &str| image.globals.iter().find(|global| global.name == name).unwrap();
        assert_eq!(of("scale").initial, 1.0_f32.to_le_bytes());
        assert_eq!((of("table").size_bytes, of("table").initial.as_slice()), (8, &[1, 2, 3, 255][..]));
        assert!(of("counter").managed && of("counter").size_bytes == 8);
        assert_eq!(image.globals.len(), 3);
    }

    #[test]
    fn text_that_is_not_ptx_is_refused_with_the_drivers_codes() {
        assert_eq!(parse(b"hello"), Err(status::INVALID_IMAGE));
        assert_eq!(parse(b".version x.y"), Err(status::INVALID_PTX));
        assert_eq!(parse(b".version 8.0\n.entry k() { ret; }"), Err(status::INVALID_PTX));
        assert_eq!(parse(b".version 42.0\n.target sm_90"), Err(status::UNSUPPORTED_PTX_VERSION));
    }
}
