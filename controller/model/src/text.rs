//! Text from other programs that deepres shows on a terminal.

use deepres_abi::wire::TENANT_NAME_BYTES;

/// Returns whether a character changes the direction of later text, so that a line reads
/// differently.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a character is invisible, so that two different names may look alike. Unicode
/// lets programs ignore some characters (`Default_Ignorable_Code_Point`). The separators of lines
/// and paragraphs are also invisible.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{AD}'
            | '\u{34F}'
            | '\u{61C}'
            | '\u{115F}'..='\u{1160}'
            | '\u{17B4}'..='\u{17B5}'
            | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}'
            | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}'
            | '\u{FEFF}'
            | '\u{FFA0}'
            | '\u{FFF0}'..='\u{FFFB}'
            | '\u{1BCA0}'..='\u{1BCA3}'
            | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}'
    )
}

/// Returns whether a character can affect a terminal, or change how the other text reads.
pub fn is_harmful(c: char) -> bool {
    c.is_control() || is_directional(c) || is_invisible(c)
}

/// Returns the text with every harmful character replaced.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { '?' } else { c }).collect()
}

/// Returns whether a text can be a tenant's name.
///
/// A name is not empty and fits into the field for names. A name has no harmful character. A name
/// neither begins nor ends with a blank, because two names would look alike. A name does not begin
/// with a dash, because it would look like an option.
pub fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.trim() == text
        && !text.starts_with('-')
        && text.len() < TENANT_NAME_BYTES
        && !text.chars().any(is_harmful)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_its_field_and_can_be_seen() {
        assert!(is_name("é") && is_name("team a") && is_name(&"x".repeat(TENANT_NAME_BYTES - 1)));
        assert!(!is_name("-x") && !is_name("--help") && is_name("x-"));
        assert!(!is_name("train ") && !is_name(" train") && !is_name("train\u{a0}"));
        for unseen in ['\u{200b}', '\u{200f}', '\u{61c}', '\u{2028}', '\u{2060}', '\u{feff}'] {
            assert!(!is_name(&format!("train{unseen}")), "{unseen:?}");
        }
        assert!(!is_name("") && !is_name(" ") && !is_name("a\n") && !is_name(&"x".repeat(TENANT_NAME_BYTES)));
    }

    #[test]
    fn nothing_is_left_that_a_terminal_would_obey() {
        assert_eq!(harmless("py\u{1b}[31mthon\n\u{9b}x \u{202e}é"), "py?[31mthon??x ?é");
    }
}
