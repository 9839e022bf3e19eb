//! All tenants, by name.

use crate::identity::Key;
use crate::tenant::Tenant;
use deepres_abi::PPM;
use deepres_model::authority::Wish;
use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use std::collections::BTreeMap;
use std::time::Duration;

/// The most deserted tenants that the daemon remembers. The number is bounded, because each tenant
/// keeps a page and a descriptor.
pub const MAX_DESERTED: usize = 256;
/// The most names that a message shows.
const MAX_NAMES_SHOWN: usize = 10;

/// All tenants, by name.
#[derive(Debug, Default)]
pub struct Tenants(BTreeMap<String, Tenant>);

impl Tenants {
    /// Returns the tenant with this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Tenant> {
        self.0.get(name)
    }

    /// Returns the tenant with this name for a change, if there is one.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Tenant> {
        self.0.get_mut(name)
    }

    /// Returns the tenant with this name.
    ///
    /// # Errors
    /// The message for the administrator that no tenant has this name, with the names of some
    /// tenants.
    pub fn named(&self, name: &str) -> Result<&Tenant, String> {
        self.0.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.living().map(|(name, _)| name).take(MAX_NAMES_SHOWN + 1).collect();
            unknown(name, &known)
        })
    }

    /// Returns the tenant with this key, and its name.
    pub fn of_key(&self, key: &Key) -> Option<(&str, &Tenant)> {
        self.iter().find(|(_, tenant)| tenant.owner.key == *key)
    }

    /// Returns all tenants with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tenant)> {
        self.0.iter().map(|(name, tenant)| (name.as_str(), tenant))
    }

    /// Returns all tenants with their names, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Tenant)> {
        self.0.iter_mut().map(|(name, tenant)| (name.as_str(), tenant))
    }

    /// Returns the tenants that are not deserted, with their names.
    pub fn living(&self) -> impl Iterator<Item = (&str, &Tenant)> {
        self.iter().filter(|(_, tenant)| !tenant.is_deserted())
    }

    /// Returns whether the daemon has no tenant, not even a deserted tenant.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the name of each tenant by its number.
    pub fn names(&self) -> BTreeMap<TenantId, &str> {
        self.iter().map(|(name, tenant)| (tenant.id, name)).collect()
    }

    /// Adds a tenant. Its name must be free.
    pub fn add(&mut self, name: String, tenant: Tenant) {
        self.0.insert(name, tenant);
    }

    /// Removes a tenant.
    pub fn remove(&mut self, name: &str) -> Option<Tenant> {
        self.0.remove(name)
    }

    /// Returns whether the guaranteed share of `wish` fits beside the guarantees of other tenants,
    /// on a host with `gpus` GPUs. One GPU with room is enough, because the daemon does not know
    /// yet which GPUs the job will use. A wish without a guarantee always fits.
    pub fn have_room(&self, gpus: usize, wish: &Wish, own: &Key) -> bool {
        let (Some(Class::Guaranteed), Some(ppm)) = (wish.class, wish.share_ppm) else { return true };
        let promised_on = |gpu: usize| -> u64 {
            let others = self.living().map(|(_, tenant)| tenant).filter(|tenant| tenant.owner.key != *own);
            let there = others.filter(|tenant| tenant.may_be_on(gpu) && !tenant.is_outside(gpu));
            there.map(|tenant| u64::from(tenant.terms.promised_ppm())).sum()
        };
        let fits = |gpu| promised_on(gpu).saturating_add(u64::from(ppm)) <= u64::from(PPM);
        gpus == 0 || (0..gpus).any(fits)
    }

    /// Returns the names of the tenants that have been deserted for at least `linger`.
    pub fn deserted_for(&self, linger: Duration) -> Vec<String> {
        let before_ns = monotonic_ns().saturating_sub(u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX));
        let is_over = |tenant: &Tenant| {
            tenant.members.deserted_ns().is_some_and(|left_ns| (1..=before_ns).contains(&left_ns))
        };
        self.iter().filter(|(_, tenant)| is_over(tenant)).map(|(name, _)| name.to_owned()).collect()
    }

    /// If the daemon remembers too many deserted tenants, returns the name of a tenant to forget.
    /// The user with the most deserted tenants loses the tenant that was deserted first. So no user
    /// can make the daemon forget the tenants of other users.
    pub fn too_many_deserted(&self) -> Option<String> {
        let deserted =
            || self.iter().filter_map(|(name, tenant)| Some((name, tenant, tenant.members.deserted_ns()?)));
        let mut by_user = BTreeMap::<u32, usize>::new();
        for (_, tenant, _) in deserted() {
            *by_user.entry(tenant.owner.user).or_default() += 1;
        }
        if by_user.values().sum::<usize>() <= MAX_DESERTED {
            return None;
        }
        let (user, _) = by_user.into_iter().max_by_key(|(_, count)| *count)?;
        let of_user = deserted().filter(|(_, tenant, _)| tenant.owner.user == user);
        of_user.min_by_key(|(.., left_ns)| *left_ns).map(|(name, ..)| name.to_owned())
    }
}

/// Returns the message that no tenant has this name. The message contains the names of the `known`
/// tenants.
fn unknown(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("there is no tenant `{name}`, nor any other tenant; start one with `deepres run`");
    }
    let more = if known.len() > MAX_NAMES_SHOWN { ", …" } else { "" };
    let shown = known.get(..MAX_NAMES_SHOWN).unwrap_or(known);
    format!("there is no tenant `{name}`; there are: {}{more}", shown.join(", "))
}
