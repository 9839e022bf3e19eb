//! Text from other programs that deepres shows on a terminal.

pub use deepres_abi::visible::is_harmful;
use deepres_abi::wire::TENANT_NAME_BYTES;

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
        for like_a_blank in ['\u{a0}', '\u{2003}', '\u{2800}', '\u{3000}'] {
            assert!(!is_name(&format!("tr{like_a_blank}ain")), "{like_a_blank:?}");
        }
        assert!(!is_name("") && !is_name(" ") && !is_name("a\n") && !is_name(&"x".repeat(TENANT_NAME_BYTES)));
    }

    #[test]
    fn nothing_is_left_that_a_terminal_would_obey() {
        assert_eq!(harmless("py\u{1b}[31mthon\n\u{9b}x \u{202e}é"), "py?[31mthon??x ?é");
    }
}
