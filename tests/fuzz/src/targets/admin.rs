//! Lines of the admin socket, in both directions.

use deepres_model::admin::{Reply, Request};

/// Every line that can be read can be written, and reads back as the same value.
pub fn run(data: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let text = serde_json::to_vec(&request).expect("a request can be written");
        assert_eq!(serde_json::from_slice::<Request>(&text).expect("a written request can be read"), request);
    }
    if let Ok(reply) = serde_json::from_slice::<Reply>(data) {
        let text = serde_json::to_vec(&reply).expect("a reply can be written");
        serde_json::from_slice::<Reply>(&text).expect("a written reply can be read");
    }
}
