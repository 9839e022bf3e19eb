//! Text that others wrote and people will read on a terminal.

use deepres_abi::wire::TENANT_NAME_BYTES;

/// Characters that change the direction of what follows, and so can make a line read as another.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character could do something to a terminal or to how the rest reads.
pub fn is_harmful(c: char) -> bool {
    c.is_control() || is_directional(c)
}

/// The text with every such character replaced.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { '?' } else { c }).collect()
}

/// Whether a tenant can be named so: from one byte to as many as the field for names has, something to be seen and nothing harmful among them.
pub fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && text.len() < TENANT_NAME_BYTES && !text.chars().any(is_harmful)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_its_field_and_can_be_seen() {
        assert!(is_name("é") && is_name("team a") && is_name(&"x".repeat(TENANT_NAME_BYTES - 1)));
        assert!(!is_name("") && !is_name(" ") && !is_name("a\n") && !is_name(&"x".repeat(TENANT_NAME_BYTES)));
    }

    #[test]
    fn nothing_is_left_that_a_terminal_would_obey() {
        assert_eq!(harmless("py\u{1b}[31mthon\n\u{9b}x \u{202e}é"), "py?[31mthon??x ?é");
    }
}
