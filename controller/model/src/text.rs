//! Text that others wrote and people will read on a terminal.

use deepres_abi::wire::TENANT_NAME_BYTES;

/// Characters that change the direction of what follows, and so can make a line read as another.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Characters that nobody sees, by which two names can look alike: those that Unicode has ignored where they are not known
/// (`Default_Ignorable_Code_Point`), and those that separate lines and paragraphs.
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

/// Whether a character could do something to a terminal or to how the rest reads.
pub fn is_harmful(c: char) -> bool {
    c.is_control() || is_directional(c) || is_invisible(c)
}

/// The text with every such character replaced.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { '?' } else { c }).collect()
}

/// Whether a tenant can be named so: from one byte to as many as the field for names has, something to be seen and nothing harmful among them, and no dash
/// before all else, which would make an option of it.
pub fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
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
