//! Shares and sizes as people write them.

use deepres_abi::PPM;
use deepres_abi::quantity::{self, MAX_BYTES, MIN_SHARE_PPM};
use deepres_model::quantity::{Bytes, Percent, parse_bytes, parse_memory, parse_share};

/// An accepted value is in range, and its displayed text can be typed again.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert_eq!(parse_share(text).ok(), quantity::parse_share(text), "jobs and daemon read the same");
    assert_eq!(parse_bytes(text).ok(), quantity::parse_bytes(text), "jobs and daemon read the same");
    assert_eq!(parse_memory(text).ok(), quantity::parse_memory(text), "jobs and daemon read the same");
    match parse_share(text) {
        Ok(ppm) => {
            assert!((MIN_SHARE_PPM..=PPM).contains(&ppm));
            assert_eq!(parse_share(&Percent(ppm).to_string()), Ok(ppm));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match parse_bytes(text) {
        Ok(bytes) => {
            assert!((1..=MAX_BYTES).contains(&bytes));
            let shown = parse_bytes(&Bytes(bytes).to_string()).expect("a shown size can be typed");
            // The text has one decimal of the largest unit.
            assert!(shown.abs_diff(bytes) <= bytes / 10, "{bytes} is shown as {}", Bytes(bytes));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
