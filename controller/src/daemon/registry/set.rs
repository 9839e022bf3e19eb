//! What administrators change.

use super::Registry;
use crate::admin::Reply;
use crate::authority::{self, Wish};
use tokio::sync::oneshot;

/// Names in a message, at most.
const MAX_NAMES_SHOWN: usize = 10;

impl Registry {
    /// Changes what a tenant is granted, at an administrator's word. The receivers are fulfilled when it is in force.
    ///
    /// # Errors
    /// What to tell the administrator.
    pub fn set(&mut self, name: &str, wish: Wish) -> Result<(Reply, Vec<oneshot::Receiver<()>>), String> {
        if let Some(reason) = authority::impossible(&wish) {
            return Err(reason);
        }
        let Some(tenant) = self.tenants.get_mut(name) else {
            let living = self.tenants.iter().filter(|(_, tenant)| !tenant.is_deserted());
            let mut known: Vec<_> = living.map(|(name, _)| name.as_str()).take(MAX_NAMES_SHOWN + 1).collect();
            if known.len() > MAX_NAMES_SHOWN {
                known[MAX_NAMES_SHOWN] = "…";
            }
            return Err(if known.is_empty() {
                format!("there is no tenant `{name}`; there are none at all: start one with `deepres run`")
            } else {
                format!("there is no tenant `{name}`; there are: {}", known.join(", "))
            });
        };
        tenant.set = wish.or(tenant.set);
        let granted = tenant.granted();
        tracing::info!(tenant = name, set = %tenant.set, "an administrator set a tenant");
        let seat = tenant.seat();
        let set =
            |gpu: &usize| self.gpus[*gpu].arbiter.set_tenant(seat.id, seat.request, seat.memory_limit_bytes);
        let in_force = tenant.gpus.iter().map(set).collect();
        Ok((Reply::Set(granted), in_force))
    }
}
