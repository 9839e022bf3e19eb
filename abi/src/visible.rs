//! The characters that a text of a job may have where people read it.

/// Returns whether a character changes the direction of later text, so that a line reads
/// differently.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a character is invisible, so that two different names can look alike. Unicode
/// lets programs ignore some characters (`Default_Ignorable_Code_Point`). The white space besides
/// the blank, and the braille pattern without dots, look like a blank or like nothing.
fn is_invisible(c: char) -> bool {
    let is_other_space = c.is_whitespace() && c != ' ';
    let is_ignorable_or_empty = matches!(
        c,
        '\u{AD}'
            | '\u{34F}'
            | '\u{61C}'
            | '\u{115F}'..='\u{1160}'
            | '\u{17B4}'..='\u{17B5}'
            | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}'
            | '\u{202A}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}'
            | '\u{FEFF}'
            | '\u{FFA0}'
            | '\u{FFF0}'..='\u{FFFB}'
            | '\u{1BCA0}'..='\u{1BCA3}'
            | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}'
    );
    is_other_space || is_ignorable_or_empty
}

/// Returns whether a character can affect a terminal, or change how the other text reads.
pub fn is_harmful(c: char) -> bool {
    c.is_control() || is_directional(c) || is_invisible(c)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_hides_or_turns_text_is_harmful_and_a_letter_of_any_script_is_not() {
        for harmful in ['\n', '\u{1b}', '\u{9b}', '\u{ad}', '\u{200b}', '\u{2028}', '\u{202e}', '\u{feff}'] {
            assert!(is_harmful(harmful), "{harmful:?}");
        }
        for like_a_blank in ['\u{a0}', '\u{2003}', '\u{202f}', '\u{2800}', '\u{3000}'] {
            assert!(is_harmful(like_a_blank), "{like_a_blank:?}");
        }
        for plain in ['a', ' ', '\u{e9}', '\u{5d0}', '\u{4e2d}', '\u{2801}'] {
            assert!(!is_harmful(plain), "{plain:?}");
        }
    }
}
