//! Administrators' changes to tenants, and the explanation of shares.

use super::{Order, Registry};
use crate::tenant::Terms;
use deepres_abi::wish::Key;
use deepres_model::admin::{Reply, Resumption, ShareStatus};
use deepres_model::authority::{self, Wish};
use deepres_model::config::Config;
use deepres_model::process;
use deepres_model::text::harmless;
use std::collections::BTreeSet;
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
        let tenant = self.tenants.named(name)?;
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
        if let Some(refused) = self.memory.lacks(&self.tenants, &self.gpus, &guarantee, &tenant.owner.key) {
            return Err(refused.reason);
        }
        let tenant = self.tenants.named_mut(name)?;
        tenant.terms.set(settings, wish.deadline_ns.is_some());
        tracing::info!(tenant = name, granted = %tenant.terms.granted(), "an administrator changed a tenant");
        let (user, promised_bytes) = (tenant.owner.user, tenant.terms.promised_bytes());
        if promised_bytes > before_bytes {
            self.memory.promise_more(&mut self.tenants, &self.gpus, name);
        }
        drop(self.share_out(user));
        let changes_follow = wish.memory_follows_use.is_some() || unset.contains(&Key::MemoryFollowUse);
        let renewed = changes_follow.then(|| self.renew_ceilings());
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

    /// Replaces the configuration. The new caps and defaults hold for all tenants. Returns the
    /// orders to the arbiters.
    pub fn configure(&mut self, config: Config) -> Vec<Order> {
        self.config = config;
        let defaults = self.config.defaults.wish();
        let (mut users, mut raised) = (BTreeSet::new(), Vec::new());
        for (name, tenant) in self.tenants.iter_mut() {
            let before_bytes = tenant.terms.promised_bytes();
            let process = tenant.members.sessions().values().next().map(|session| session.pid);
            if let Some(groups) = process.and_then(groups_of) {
                let has_caps = |group: &u32| self.config.groups.contains_key(&group.to_string());
                tenant.owner.groups = groups.into_iter().filter(has_caps).collect();
            }
            let caps = self.config.caps_of(tenant.owner.user, &tenant.owner.groups);
            tenant.terms.set_rules(defaults, caps);
            users.insert(tenant.owner.user);
            if tenant.terms.promised_bytes() > before_bytes {
                raised.push(name.to_owned());
            }
        }
        for name in raised {
            self.memory.promise_more(&mut self.tenants, &self.gpus, &name);
        }
        users.into_iter().for_each(|user| drop(self.share_out(user)));
        let renewed = self.renew_ceilings();
        let names: Vec<String> = self.tenants.iter().map(|(name, _)| name.to_owned()).collect();
        names.iter().flat_map(|name| self.tell(name)).chain(renewed).collect()
    }

    /// Takes back an administrator's change to a tenant: the settings of the terms `before` hold
    /// again. The function does not wait for the arbiters.
    pub fn take_back(&mut self, name: &str, before: &Terms) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.terms.keep_settings_of(before);
        let user = tenant.owner.user;
        self.memory.promise_more(&mut self.tenants, &self.gpus, name);
        drop(self.share_out(user));
        drop(self.renew_ceilings());
        drop(self.tell(name));
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

/// Returns the groups of a process, as the kernel shows them.
fn groups_of(pid: u32) -> Option<Vec<u32>> {
    groups_in(&process::text(pid, "status")?)
}

/// Returns the groups in the text of a process's status file: the supplementary groups, and the
/// effective group, which need not be among them.
fn groups_in(status: &str) -> Option<Vec<u32>> {
    let numbers = |field: &str| -> Option<Vec<u32>> {
        let numbers = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect())
    };
    let mut groups = numbers("Groups:")?;
    // The line has the real group and then the effective group.
    let effective = *numbers("Gid:")?.get(1)?;
    if !groups.contains(&effective) {
        groups.push(effective);
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Gpus;
    use crate::identity::Key as Who;
    use crate::memory::TenantMemory;
    use crate::shm::{SharedPage, Writer};
    use crate::tenant::{Owner, Tenant};
    use deepres_abi::beat::BeatPage;
    use deepres_model::config::{CapOf, Caps};
    use deepres_model::identity::Found;
    use std::sync::Arc;

    /// Returns a registry with a tenant `t` of user 1000 that asks for 40 %.
    fn registry_with_a_tenant() -> Registry {
        let beat = SharedPage::<BeatPage>::create("deepres-beat", Writer::Controller).unwrap();
        let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
        let owner = Owner {
            key: Who::Cgroup("/a".to_owned()),
            found: Found::Container,
            container: None,
            user: 1_000,
            groups: Vec::new(),
        };
        let asked = Wish { share_ppm: Some(400_000), ..Wish::default() };
        let terms = Terms::new(asked, Wish::default(), (Caps::NONE, CapOf::Everyone));
        registry.tenants.add("t".to_owned(), Tenant::new(1, owner, terms, TenantMemory::new().unwrap()));
        registry
    }

    #[test]
    fn a_new_configuration_binds_the_tenants_that_run() {
        let mut registry = registry_with_a_tenant();
        let granted = |registry: &Registry| registry.tenants.get("t").unwrap().terms.granted();
        let caps = Caps { share_ppm: 100_000, ..Caps::NONE };
        let config = Config { users: [("1000".to_owned(), caps)].into(), ..Config::default() };
        drop(registry.configure(config));
        assert_eq!(granted(&registry).share_ppm.value, Some(100_000));
        drop(registry.configure(Config::default()));
        assert_eq!(granted(&registry).share_ppm.value, Some(400_000));
    }

    #[test]
    fn the_groups_of_a_process_are_known() {
        let own = rustix::process::getgroups().unwrap();
        let own = own.into_iter().chain([rustix::process::getegid()]);
        let own: BTreeSet<u32> = own.map(|group| group.as_raw()).collect();
        let found: BTreeSet<u32> = groups_of(std::process::id()).unwrap().into_iter().collect();
        assert_eq!(found, own);
    }

    #[test]
    fn the_effective_group_counts_although_it_is_no_supplementary_group() {
        let status = |groups: &str| format!("Name:\tpython\nGid:\t7\t100\t7\t100\nGroups:\t{groups} \n");
        assert_eq!(groups_in(&status("1000 44")), Some(vec![1_000, 44, 100]));
        assert_eq!(groups_in(&status("100")), Some(vec![100]));
        assert_eq!(groups_in(&status("")), Some(vec![100]));
        assert_eq!(groups_in("Groups:\t1\n"), None);
    }

    #[test]
    fn a_change_that_is_taken_back_leaves_the_settings_and_the_grant_of_before() {
        let mut registry = registry_with_a_tenant();
        let share = |ppm| Wish { share_ppm: Some(ppm), ..Wish::default() };
        registry.set("t", share(600_000), &[]).unwrap();
        let terms = |registry: &Registry| registry.tenants.get("t").unwrap().terms.clone();
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
