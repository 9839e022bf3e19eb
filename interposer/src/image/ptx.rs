//! PTX. The declarations of variables tell how much memory they need. The size of the instructions
//! is unknown until they are compiled.

use super::Need;

/// The words and punctuation of a text, without comments.
struct Tokens<'a>(&'a [u8]);

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Returns the position of `mark` in `text`.
fn find(text: &[u8], mark: &[u8]) -> Option<usize> {
    text.windows(mark.len()).position(|window| window == mark)
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            self.0 = self.0.trim_ascii_start();
            let skipped = if self.0.starts_with(b"//") {
                find(self.0, b"\n")
            } else if self.0.starts_with(b"/*") {
                find(self.0, b"*/").map(|end| end + 2)
            } else {
                break;
            };
            self.0 = &self.0[skipped.unwrap_or(self.0.len())..];
        }
        let length = match *self.0.first()? {
            b'"' => find(&self.0[1..], b"\"").map_or(self.0.len(), |end| end + 2),
            first if is_word(first) => self.0.iter().position(|byte| !is_word(*byte)).unwrap_or(self.0.len()),
            _ => 1,
        };
        let (token, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(token)
    }
}

impl Tokens<'_> {
    /// Skips the tokens up to the `close` that matches an `open` which was already read.
    fn pass(&mut self, open: &[u8], close: &[u8]) {
        let mut depth = 1_u32;
        while depth != 0 {
            match self.next() {
                Some(token) if token == open => depth += 1,
                Some(token) if token == close => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }
}

fn type_bytes(word: &[u8]) -> Option<u64> {
    Some(match word {
        b".b8" | b".u8" | b".s8" => 1,
        b".b16" | b".u16" | b".s16" | b".f16" | b".bf16" => 2,
        b".b32" | b".u32" | b".s32" | b".f32" | b".f16x2" | b".bf16x2" => 4,
        b".b64" | b".u64" | b".s64" | b".f64" | b".texref" | b".samplerref" | b".surfref" => 8,
        b".b128" => 16,
        _ => return None,
    })
}

fn number(word: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(word).ok()?.trim_end_matches(['U', 'u']);
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Places the variables of a declaration behind `end`. Reads from after the state space to the
/// semicolon. Returns the new end.
fn declared(tokens: &mut Tokens<'_>, mut end: u64) -> Option<u64> {
    let (mut element_bytes, mut elements, mut align_bytes, mut vector) = (0_u64, 1_u64, 0, 1);
    loop {
        match tokens.next()? {
            b".align" => align_bytes = number(tokens.next()?)?,
            b".v2" => vector = 2,
            b".v4" => vector = 4,
            b"(" => tokens.pass(b"(", b")"),
            b"{" => tokens.pass(b"{", b"}"),
            b"[" => {
                let extent = tokens.next()?;
                // An extent that is left open is known only to the linker, and counts 0.
                elements = if extent == b"]" { 0 } else { elements.checked_mul(number(extent)?)? };
                if extent != b"]" {
                    tokens.next()?;
                }
            }
            mark @ (b"," | b";") => {
                let bytes = element_bytes.checked_mul(vector)?;
                let size_bytes = bytes.checked_mul(elements)?;
                if size_bytes != 0 {
                    let align_bytes = if align_bytes == 0 { bytes } else { align_bytes };
                    end = end.checked_next_multiple_of(align_bytes)?.checked_add(size_bytes)?;
                }
                if mark == b";" {
                    return Some(end);
                }
                elements = 1;
            }
            word => element_bytes = type_bytes(word).unwrap_or(element_bytes),
        }
    }
}

/// Returns the need of a text, or `None` if it is no PTX.
pub fn need(text: &[u8]) -> Option<Need> {
    let mut tokens = Tokens(text);
    if tokens.next()? != b".version" {
        return None;
    }
    let mut need = Need::default();
    let mut is_elsewhere = false;
    while let Some(token) = tokens.next() {
        match token {
            b".extern" => is_elsewhere = true,
            b";" => is_elsewhere = false,
            // Skips parameters and bodies.
            b"(" => tokens.pass(b"(", b")"),
            b"{" => {
                tokens.pass(b"{", b"}");
                is_elsewhere = false;
            }
            b".global" | b".const" => {
                let end = declared(&mut tokens, need.data_bytes)?;
                if !is_elsewhere {
                    need.data_bytes = end;
                }
                is_elsewhere = false;
            }
            _ => {}
        }
    }
    Some(need)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(declarations: &str) -> Option<u64> {
        need(format!(".version 8.5\n.target sm_90\n{declarations}").as_bytes()).map(|need| need.data_bytes)
    }

    #[test]
    fn variables_take_what_their_declarations_say() {
        for (declarations, expected) in [
            ("", 0),
            (".visible .global .align 4 .u32 answer = 42;", 4),
            (".global .b8 a[3]; .global .u64 b;", 16),
            (".global .align 8 .b8 large[1073741824];", 1 << 30),
            (".global .v4 .f32 field[0x10][2];", 512),
            (".const .align 4 .b8 table[8] = {1, 2, {3}, 255}; .global .u8 x;", 9),
            (".extern .global .b8 other[99]; .global .u16 own;", 2),
            (".global .attribute(.managed) .align 8 .u64 counter;", 8),
            (".global .u32 a, b, c;", 12),
            ("// .global .u32 a;\n/* .global .u32 b; */ .global .u32 c;", 4),
            (".shared .b8 tile[4096]; .global .texref image;", 8),
            (
                ".entry k(.param .u64 .ptr .global .align 16 out) { .reg .b32 %r<4>; st.global.u32 [out], 1; } .global .u8 x;",
                1,
            ),
            (".extern .func f(.param .b32 a); .func g() { { ret; } }", 0),
            (".file 1 \".global .u32 x;\" .global .u8 x;", 1),
        ] {
            assert_eq!(bytes(declarations), Some(expected), "{declarations}");
        }
    }

    #[test]
    fn what_is_no_ptx_or_stops_in_the_middle_says_nothing() {
        assert_eq!(need(b"hello"), None);
        assert_eq!(need(b""), None);
        assert_eq!(bytes(".global .b8 a[18446744073709551615]; .global .b64 b;"), None);
        assert_eq!(bytes(".global .u32 a"), None);
        assert_eq!(bytes(".global .b8 a[x];"), None);
    }
}
