//! The daemon's metrics for Prometheus. A scrape asks no other thread: it reads the latest status
//! whose counters the state file has. So no counter falls when a daemon is killed and the next
//! daemon goes on from the state file.
//!
//! | module | job |
//! |---|---|
//! | `page` | a status as text |
//! | `answer` | the answer to a request, with pages that are kept for the next request |

mod answer;
mod page;

pub use answer::Pages;

use deepres_model::admin::Status;
use std::sync::Arc;

/// The status that the metrics show; `None` before the first.
pub type Shown = Option<Arc<Status>>;
