//! Administrators' changes to tenants, and the explanation of shares.

use super::{Order, Registry};
use crate::tenant::Terms;
use deepres_abi::wish::Key;
use deepres_model::admin::{Reply, Resumption, ShareStatus};
use deepres_model::authority::{self, Wish};
use deepres_model::text::harmless;
use tokio::sync::oneshot;

/// The reply to the administrator, and the orders to the arbiters.
pub type Changed = (Reply, Vec<Order>);

impl Registry {
    /// Ends the tenant's settings that `unset` names, and then sets the values of an
    /// administrator's `wish`. Returns the reply, and the orders to the arbiters.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn set(&mut self, name: &str, wish: Wish, unset: &[String]) -> Result<Changed, String> {
        if let Some(reason) = authority::impossible(&wish) {
            return Err(reason);
        }
        let known = |name: &String| {
            let key = Key::ALL.into_iter().find(|key| key.name() == name);
            key.ok_or_else(|| format!("there is no setting `{}`", harmless(name)))
        };
        let unset = unset.iter().map(known).collect::<Result<Vec<Key>, String>>()?;
        let tenant = self.tenancy.tenants().named(name)?;
        let settings = tenant.terms.settings_with(wish, &unset);
        let promised = tenant.terms.granted_with(&settings);
        // If a tenant takes back memory that it lent, the daemon must promise all of it anew.
        let takes_back =
            tenant.terms.granted().memory_follows_use.value && !promised.memory_follows_use.value;
        let before_bytes = if takes_back { 0 } else { tenant.terms.promised_bytes() };
        let guarantee = Wish {
            class: Some(promised.class.value),
            memory_bytes: promised.memory_bytes.value.filter(|bytes| *bytes > before_bytes),
            ..Wish::default()
        };
        if let Some(refused) = self.tenancy.lacks_memory(&guarantee, &tenant.owner.key) {
            return Err(refused.reason);
        }
        let changes_follow = wish.memory_follows_use.is_some() || unset.contains(&Key::MemoryFollowUse);
        let orders = self.tenancy.set_terms(name, changes_follow, |terms| {
            terms.set(settings, wish.deadline_ns.is_some());
            tracing::info!(tenant = name, granted = %terms.granted(), "an administrator changed a tenant");
            terms.promised_bytes() > before_bytes
        });
        let granted = self.tenancy.tenants().named(name)?.terms.granted();
        Ok((Reply::Set(Box::new(granted)), orders))
    }

    /// Keeps a tenant off the GPUs until an administrator resumes it.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn pause(&mut self, name: &str) -> Result<Changed, String> {
        self.tenancy.tenants().named(name)?;
        tracing::info!(tenant = name, "an administrator paused a tenant");
        Ok((Reply::Paused, self.tenancy.change(name, |tenant| tenant.terms.set_paused(true))))
    }

    /// Ends a tenant's pause. `resumption` says when the tenant's memory comes back to the GPUs.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn unpause(&mut self, name: &str, resumption: Resumption) -> Result<Changed, String> {
        let was_paused = self.tenancy.tenants().named(name)?.terms.is_paused();
        let resumption = match resumption {
            Resumption::Needless if was_paused => Resumption::Now,
            resumption => resumption,
        };
        tracing::info!(tenant = name, ?resumption, "an administrator resumed a tenant");
        let orders = self.tenancy.change(name, |tenant| tenant.terms.set_paused(false));
        Ok((Reply::Resumed { resumption }, orders))
    }

    /// Takes back an administrator's change to a tenant: the settings of the terms `before` hold
    /// again. The function does not wait for the arbiters.
    pub fn take_back(&mut self, name: &str, before: &Terms) {
        drop(self.tenancy.set_terms(name, true, |terms| {
            terms.keep_settings_of(before);
            true
        }));
    }

    /// Asks the arbiters for the derivation of a tenant's share of each of its GPUs. If the tenant
    /// has no session on a GPU, that answer is `None`.
    ///
    /// # Errors
    ///
    /// Returns the message for the administrator.
    pub fn explain(&self, name: &str) -> Result<Vec<oneshot::Receiver<Option<ShareStatus>>>, String> {
        let tenant = self.tenancy.tenants().named(name)?;
        let arbiters = tenant.gpus().iter().filter_map(|gpu| self.tenancy.gpus().arbiter(*gpu));
        Ok(arbiters.map(|arbiter| arbiter.explain(tenant.id)).collect())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::gpus::Gpus;
    use crate::identity::Key as Who;
    use crate::memory::TenantMemory;
    use crate::shm::{SharedPage, Writer};
    use crate::tenant::{Owner, Tenant};
    use deepres_abi::beat::BeatPage;
    use deepres_model::config::{CapOf, Caps, Config};
    use deepres_model::identity::Found;
    use std::sync::Arc;

    /// Returns a registry with a tenant `t` of user 1000 that asks for 40 %.
    pub fn registry_with_a_tenant() -> Registry {
        let beat = SharedPage::<BeatPage>::create("deepres-beat", Writer::Controller).unwrap();
        let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
        let owner = Owner {
            key: Who::Cgroup("/a".to_owned()),
            found: Found::Container,
            container: None,
            place: None,
            user: 1_000,
            groups: Vec::new(),
        };
        let asked = Wish { share_ppm: Some(400_000), ..Wish::default() };
        let terms = Terms::new(asked, Wish::default(), (Caps::NONE, CapOf::Everyone));
        registry.tenancy.add("t".to_owned(), Tenant::new(1, owner, terms, TenantMemory::new().unwrap()));
        registry
    }

    #[test]
    fn a_new_configuration_binds_the_tenants_that_run() {
        let mut registry = registry_with_a_tenant();
        let granted = |registry: &Registry| registry.tenancy.tenants().get("t").unwrap().terms.granted();
        let caps = Caps { share_ppm: 100_000, ..Caps::NONE };
        let config = Config { users: [("1000".to_owned(), caps)].into(), ..Config::default() };
        drop(registry.tenancy.configure(config));
        assert_eq!(granted(&registry).share_ppm.value, Some(100_000));
        drop(registry.tenancy.configure(Config::default()));
        assert_eq!(granted(&registry).share_ppm.value, Some(400_000));
    }

    #[test]
    fn a_change_that_is_taken_back_leaves_the_settings_and_the_grant_of_before() {
        let mut registry = registry_with_a_tenant();
        let share = |ppm| Wish { share_ppm: Some(ppm), ..Wish::default() };
        registry.set("t", share(600_000), &[]).unwrap();
        let terms = |registry: &Registry| registry.tenancy.tenants().get("t").unwrap().terms.clone();
        let before = terms(&registry);
        registry.set("t", share(700_000), &[]).unwrap();
        registry.pause("t").unwrap();
        assert_eq!(terms(&registry).granted().share_ppm.value, Some(700_000));
        registry.take_back("t", &before);
        let after = terms(&registry);
        assert_eq!((after.granted(), after.is_paused()), (before.granted(), false));
        assert_eq!(after.granted().share_ppm.value, Some(600_000));
    }
}
