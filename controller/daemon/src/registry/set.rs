//! What administrators change, and what they have explained.

use super::Registry;
use super::tenant::Tenant;
use deepres_model::admin::{Reply, Resumption, ShareStatus};
use deepres_model::authority::{self, Granted, Wish};
use deepres_model::clock::monotonic_ns;
use tokio::sync::oneshot;

/// Names in a message, at most.
const MAX_NAMES_SHOWN: usize = 10;

/// What to tell the administrator, and what is fulfilled when it is in force.
type Changed = (Reply, Vec<oneshot::Receiver<()>>);

impl Registry {
    /// Changes what a tenant is granted, at an administrator's word.
    ///
    /// # Errors
    /// What to tell the administrator.
    pub fn set(&mut self, name: &str, wish: Wish) -> Result<Changed, String> {
        if let Some(reason) = authority::impossible(&wish) {
            return Err(reason);
        }
        let tenant = self.tenant_named(name)?;
        let (before, set) = (tenant.promised_bytes(), wish.or(tenant.set));
        let promised = tenant.granted_with(&set);
        // What it lent it is promised anew.
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

    /// Keeps a tenant off the GPUs at an administrator's word.
    ///
    /// # Errors
    /// What to tell the administrator.
    pub fn pause(&mut self, name: &str) -> Result<Changed, String> {
        self.tenant_named(name)?.is_paused = true;
        tracing::info!(tenant = name, "an administrator paused a tenant");
        Ok((Reply::Paused, self.tell_arbiters(name)))
    }

    /// Lets it on again, whose memory is where `resumption` says.
    ///
    /// # Errors
    /// What to tell the administrator.
    pub fn unpause(&mut self, name: &str, resumption: Resumption) -> Result<Changed, String> {
        let was_paused = std::mem::take(&mut self.tenant_named(name)?.is_paused);
        let resumption = match resumption {
            Resumption::Needless if was_paused => Resumption::Now,
            resumption => resumption,
        };
        tracing::info!(tenant = name, ?resumption, "an administrator resumed a tenant");
        Ok((Reply::Resumed { resumption }, self.tell_arbiters(name)))
    }

    /// Has every arbiter that knows a tenant take up what holds for it now.
    pub(super) fn tell_arbiters(&self, name: &str) -> Vec<oneshot::Receiver<()>> {
        let Some(tenant) = self.tenants.get(name) else { return Vec::new() };
        tenant.gpus.iter().map(|gpu| self.gpus[*gpu].arbiter.set_tenant(tenant.seat_on(*gpu))).collect()
    }

    /// Why a tenant cannot be promised the memory that it would be granted, if it would be promised more than before and that is not to be had.
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

    /// There is no such tenant.
    pub(super) fn unknown(&self, name: &str) -> String {
        unknown(name, &self.living())
    }

    /// Names of tenants that are here, one more than are shown at most.
    fn living(&self) -> Vec<&str> {
        let living = self.tenants.iter().filter(|(_, tenant)| !tenant.is_deserted());
        living.map(|(name, _)| name.as_str()).take(MAX_NAMES_SHOWN + 1).collect()
    }

    /// Asks how a tenant's share of each of its GPUs comes about. An answer is `None` where it has no session.
    ///
    /// # Errors
    /// What to tell the administrator.
    pub fn explain(&self, name: &str) -> Result<Vec<oneshot::Receiver<Option<ShareStatus>>>, String> {
        let Some(tenant) = self.tenants.get(name) else {
            return Err(self.unknown(name));
        };
        Ok(tenant.gpus.iter().map(|gpu| self.gpus[*gpu].arbiter.explain(tenant.id)).collect())
    }
}

/// There is no such tenant; those there are.
fn unknown(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("there is no tenant `{name}`; there are none at all: start one with `deepres run`");
    }
    let more = if known.len() > MAX_NAMES_SHOWN { ", …" } else { "" };
    let shown = known.get(..MAX_NAMES_SHOWN).unwrap_or(known);
    format!("there is no tenant `{name}`; there are: {}{more}", shown.join(", "))
}
