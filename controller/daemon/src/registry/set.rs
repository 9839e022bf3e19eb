//! Administrators' changes to tenants, and the explanation of shares.

use super::Registry;
use super::tenant::Tenant;
use deepres_model::admin::{Reply, Resumption, ShareStatus};
use deepres_model::authority::{self, Granted, Wish};
use deepres_model::clock::monotonic_ns;
use tokio::sync::oneshot;

/// The most names that a message shows.
const MAX_NAMES_SHOWN: usize = 10;

/// The reply to the administrator, and the orders to the arbiters. Each order is fulfilled once it
/// is in force.
type Changed = (Reply, Vec<oneshot::Receiver<()>>);

impl Registry {
    /// Changes a tenant's grant to an administrator's `wish`.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn set(&mut self, name: &str, wish: Wish) -> Result<Changed, String> {
        if let Some(reason) = authority::impossible(&wish) {
            return Err(reason);
        }
        let tenant = self.tenant_named(name)?;
        let (before, set) = (tenant.promised_bytes(), wish.or(tenant.set));
        let promised = tenant.granted_with(&set);
        // A tenant that takes back memory that it lent needs a new promise for all of it.
        let takes_back = tenant.granted().memory_follows_use.value && !promised.memory_follows_use.value;
        let before = if takes_back { 0 } else { before };
        if let Some(reason) = self.breaks_promises(name, before, &promised) {
            return Err(reason);
        }
        let tenant = self.tenant_named(name)?;
        tenant.set = set;
        if wish.deadline_ns.is_some() {
            tenant.set_ns = monotonic_ns();
        }
        tracing::info!(tenant = name, granted = %tenant.granted(), "an administrator set a tenant");
        let (user, is_more) = (tenant.user, tenant.promised_bytes() > before);
        if is_more {
            self.promise_more(name);
        }
        drop(self.share_out(user));
        let renewed = wish.memory_follows_use.map(|_| self.renew_ceilings());
        let granted = self.tenant_named(name)?.granted();
        let told = self.tell_arbiters(name);
        Ok((Reply::Set(Box::new(granted)), told.into_iter().chain(renewed.into_iter().flatten()).collect()))
    }

    /// Keeps a tenant off the GPUs until an administrator resumes it.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn pause(&mut self, name: &str) -> Result<Changed, String> {
        self.tenant_named(name)?.is_paused = true;
        tracing::info!(tenant = name, "an administrator paused a tenant");
        Ok((Reply::Paused, self.tell_arbiters(name)))
    }

    /// Ends a tenant's pause. `resumption` says when the tenant's memory is back on the GPUs.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn unpause(&mut self, name: &str, resumption: Resumption) -> Result<Changed, String> {
        let was_paused = std::mem::take(&mut self.tenant_named(name)?.is_paused);
        let resumption = match resumption {
            Resumption::Needless if was_paused => Resumption::Now,
            resumption => resumption,
        };
        tracing::info!(tenant = name, ?resumption, "an administrator resumed a tenant");
        Ok((Reply::Resumed { resumption }, self.tell_arbiters(name)))
    }

    /// Tells every arbiter that knows a tenant the tenant's present wishes, limits and pauses.
    pub(super) fn tell_arbiters(&self, name: &str) -> Vec<oneshot::Receiver<()>> {
        let Some(tenant) = self.tenants.get(name) else { return Vec::new() };
        tenant.gpus.iter().map(|gpu| self.gpus[*gpu].arbiter.set_tenant(tenant.seat_on(*gpu))).collect()
    }

    /// Returns why a tenant cannot be guaranteed the memory of `granted`, if there is no room for
    /// it. No reason is needed if `granted` guarantees no more than `before_bytes`.
    fn breaks_promises(&self, name: &str, before_bytes: u64, granted: &Granted) -> Option<String> {
        let tenant = self.tenants.get(name)?;
        let wish = Wish {
            class: Some(granted.class.value),
            memory_bytes: granted.memory_bytes.value.filter(|bytes| *bytes > before_bytes),
            ..Wish::default()
        };
        self.lacks_memory(&wish, &tenant.key).map(|refused| refused.reason)
    }

    fn tenant_named(&mut self, name: &str) -> Result<&mut Tenant, String> {
        if self.tenants.contains_key(name) {
            return self.tenants.get_mut(name).ok_or_else(|| unknown(name, &[]));
        }
        Err(self.unknown(name))
    }

    /// Returns the message that there is no such tenant.
    pub(super) fn unknown(&self, name: &str) -> String {
        unknown(name, &self.living())
    }

    /// Returns names of tenants that are here, at most one more than a message shows.
    fn living(&self) -> Vec<&str> {
        let living = self.tenants.iter().filter(|(_, tenant)| !tenant.is_deserted());
        living.map(|(name, _)| name.as_str()).take(MAX_NAMES_SHOWN + 1).collect()
    }

    /// Asks how a tenant's share of each of its GPUs is derived. An answer is `None` if the tenant
    /// has no session on that GPU.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn explain(&self, name: &str) -> Result<Vec<oneshot::Receiver<Option<ShareStatus>>>, String> {
        let Some(tenant) = self.tenants.get(name) else {
            return Err(self.unknown(name));
        };
        Ok(tenant.gpus.iter().map(|gpu| self.gpus[*gpu].arbiter.explain(tenant.id)).collect())
    }
}

/// Returns the message that there is no such tenant, with the names of `known` tenants.
fn unknown(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("there is no tenant `{name}`; there are none at all: start one with `deepres run`");
    }
    let more = if known.len() > MAX_NAMES_SHOWN { ", …" } else { "" };
    let shown = known.get(..MAX_NAMES_SHOWN).unwrap_or(known);
    format!("there is no tenant `{name}`; there are: {}{more}", shown.join(", "))
}
