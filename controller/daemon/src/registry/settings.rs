//! Administrators' changes to tenants, and the explanation of shares.

use super::{Order, Registry};
use deepres_model::admin::{Reply, Resumption, ShareStatus};
use deepres_model::authority::{self, Wish};
use tokio::sync::oneshot;

/// The reply to the administrator, and the orders to the arbiters.
type Changed = (Reply, Vec<Order>);

impl Registry {
    /// Changes a tenant's settings to an administrator's `wish`. Returns the reply, and the orders
    /// to the arbiters.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn set(&mut self, name: &str, wish: Wish) -> Result<Changed, String> {
        if let Some(reason) = authority::impossible(&wish) {
            return Err(reason);
        }
        let tenant = self.tenants.named(name)?;
        let promised = tenant.terms.granted_with(&wish);
        // If a tenant takes back memory that it lent, the daemon must promise all of it anew.
        let takes_back =
            tenant.terms.granted().memory_follows_use.value && !promised.memory_follows_use.value;
        let before_bytes = if takes_back { 0 } else { tenant.terms.promised_bytes() };
        let guarantee = Wish {
            class: Some(promised.class.value),
            memory_bytes: promised.memory_bytes.value.filter(|bytes| *bytes > before_bytes),
            ..Wish::default()
        };
        if let Some(refused) = self.memory.lacks(&self.tenants, &self.gpus, &guarantee, &tenant.owner.key) {
            return Err(refused.reason);
        }
        let tenant = self.tenants.named_mut(name)?;
        tenant.terms.set(wish);
        tracing::info!(tenant = name, granted = %tenant.terms.granted(), "an administrator changed a tenant");
        let (user, promised_bytes) = (tenant.owner.user, tenant.terms.promised_bytes());
        if promised_bytes > before_bytes {
            self.memory.promise_more(&mut self.tenants, &self.gpus, name);
        }
        drop(self.share_out(user));
        let renewed = wish.memory_follows_use.map(|_| self.renew_ceilings());
        let granted = self.tenants.named(name)?.terms.granted();
        let told = self.tell(name);
        Ok((Reply::Set(Box::new(granted)), told.into_iter().chain(renewed.into_iter().flatten()).collect()))
    }

    /// Keeps a tenant off the GPUs until an administrator resumes it.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn pause(&mut self, name: &str) -> Result<Changed, String> {
        self.tenants.named_mut(name)?.terms.set_paused(true);
        tracing::info!(tenant = name, "an administrator paused a tenant");
        Ok((Reply::Paused, self.tell(name)))
    }

    /// Ends a tenant's pause. `resumption` says when the tenant's memory comes back to the GPUs.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn unpause(&mut self, name: &str, resumption: Resumption) -> Result<Changed, String> {
        let was_paused = self.tenants.named_mut(name)?.terms.set_paused(false);
        let resumption = match resumption {
            Resumption::Needless if was_paused => Resumption::Now,
            resumption => resumption,
        };
        tracing::info!(tenant = name, ?resumption, "an administrator resumed a tenant");
        Ok((Reply::Resumed { resumption }, self.tell(name)))
    }

    /// Asks the arbiters for the derivation of a tenant's share of each of its GPUs. If the tenant
    /// has no session on a GPU, that answer is `None`.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn explain(&self, name: &str) -> Result<Vec<oneshot::Receiver<Option<ShareStatus>>>, String> {
        let tenant = self.tenants.named(name)?;
        let arbiters = tenant.gpus().iter().filter_map(|gpu| self.gpus.arbiter(*gpu));
        Ok(arbiters.map(|arbiter| arbiter.explain(tenant.id)).collect())
    }
}
