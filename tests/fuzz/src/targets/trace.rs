//! Records of the eBPF programs. The records describe the data that any process passes to the
//! driver.

use deepres_daemon::trace::decode::{decode, event_of};
use deepres_daemon::trace::summary::Summary;
use deepres_model::text::is_harmful;

/// Any record is displayed as text that is harmless to a terminal, and as JSON.
pub fn run(data: &[u8]) {
    let Some(event) = event_of(data) else { return };
    let event = decode(&event);
    let fields = event.fields.iter().map(|(_, value)| value).chain(event.status);
    let fields = fields.map(|value| value.to_string()).chain([event.device.to_string()]);
    let texts = fields.chain([event.thread.clone().into_owned()]).chain(event.error.clone().map(Into::into));
    for text in texts {
        assert!(!text.chars().any(is_harmful), "{text:?}");
    }
    assert!(!serde_json::to_string(&event).expect("it has no maps").contains('\n'));
    let mut summary = Summary::default();
    summary.add(&event);
    assert_eq!((summary.calls(), summary.lines().len()), (1, 1));
}
