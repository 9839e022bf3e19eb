//! Symbol tables of files that any process may have mapped, as metering from outside reads them.

use deepres_daemon::probes::metering::{entry, symbols};
use std::io::Cursor;

/// No bytes lead astray. The result contains only functions that are counted, and each place once.
pub fn run(data: &[u8]) {
    let Ok(points) = symbols::points(Cursor::new(data)) else { return };
    assert!(!points.is_empty());
    assert!(points.is_sorted_by(|one, next| one.offset < next.offset));
    for point in points {
        use deepres_abi::probe::cookie;
        assert!(cookie::tells(point.cookie) || entry::of(cookie::entry(point.cookie)).is_some());
    }
}
