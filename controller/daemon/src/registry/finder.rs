//! Finds the tenant of a process: by an allocation, by a Slurm job, or by the rules of
//! [`crate::identity`]. The search changes nothing.

use super::admission::claim;
use super::{Allocations, Guest, Tenants};
use crate::identity::cgroup::{Kind, Place};
use crate::identity::read::Namespace;
use crate::identity::{self, Facts, Identity, Key, Known, Names, ROOT};
use crate::tenant::{Allotment, Tenant};
use deepres_abi::wire::Hello;
use deepres_model::config::Config;
use deepres_model::identity::Found;

/// Finds the tenant of a process.
#[derive(Debug, Clone, Copy)]
pub struct Finder<'a> {
    config: &'a Config,
    /// The container or pod in which the daemon runs.
    home: Option<&'a Place>,
    allocations: &'a Allocations,
    tenants: &'a Tenants,
}

impl<'a> Finder<'a> {
    /// Returns a finder among these tenants and allocations. The daemon runs in the container or
    /// pod `home`, if any.
    pub fn new(
        config: &'a Config,
        home: Option<&'a Place>,
        allocations: &'a Allocations,
        tenants: &'a Tenants,
    ) -> Self {
        Self { config, home, allocations, tenants }
    }

    /// Returns the tenant that a process belongs to, with its name; `None` if the registry does not
    /// have the tenant.
    pub fn tenant_of(self, guest: &Guest, hello: &Hello) -> Option<(&'a str, &'a Tenant)> {
        self.tenants.of_key(&self.identify(guest, hello).key)
    }

    /// Returns the identity of the tenant to which a process belongs. The registry may not have the
    /// tenant yet. In root's Slurm, all processes of a job with a part of a GPU are one tenant,
    /// whatever name they give. Otherwise, a job would have its part once for each name. The same
    /// holds while Slurm has not answered, so that a late answer binds all processes of the job. A
    /// job with whole GPUs may divide them among names.
    pub fn identify(self, guest: &Guest, hello: &Hello) -> Identity {
        self.identify_as(claim(hello), guest)
    }

    /// Returns the identity of a process that gives the name `claim` (empty: none).
    fn identify_as(self, claim: &str, guest: &Guest) -> Identity {
        let is_whole = guest.allotment.as_ref().is_some_and(Allotment::is_whole);
        let name = if is_whole { claim } else { "" };
        let place = guest.facts.place.as_ref().filter(|place| self.checks_job_at(place));
        let number = guest.allotment.as_ref().and_then(|allotment| allotment.job);
        let of_job = place.and_then(|_| identity::of_job(name, &guest.facts, number));
        of_job.unwrap_or_else(|| self.identify_outside_jobs(claim, &guest.facts))
    }

    /// Returns the tenant that a process belongs to if it gives no name; `None` if the registry
    /// does not have the tenant.
    pub fn nameless_tenant_of(self, guest: &Guest) -> Option<&'a Tenant> {
        let key = self.identify_as("", guest).key;
        self.tenants.of_key(&key).map(|(_, tenant)| tenant)
    }

    /// Returns the container or pod of a process, unless the daemon runs in it.
    pub fn container_of(self, facts: &Facts) -> Option<&Place> {
        self.names().container_of(facts)
    }

    /// Returns the namespace to which a process is confined ([`Names::namespace_of`]).
    pub fn namespace_of(self, facts: &Facts) -> Option<Namespace> {
        self.names().namespace_of(facts)
    }

    fn names(self) -> Names<'a> {
        Names { shared: &self.config.shared_names, home: self.home }
    }

    /// Returns the identity of a process by its allocation, or by the rules of [`crate::identity`].
    /// `claim` is the name that the process gave; empty if the process gave no name.
    fn identify_outside_jobs(self, claim: &str, facts: &Facts) -> Identity {
        if let Some(identity) = self.allocations.identify(claim, facts, self.tenants) {
            return identity;
        }
        let ancestors = facts.process.iter().flat_map(identity::read::ancestors);
        let kin = Kin { tenants: self.tenants, owner: facts.owner };
        identity::identify(claim, facts, self.names(), ancestors, kin)
    }

    /// Returns the name of the tenant whose process started the process `pid`, or of the tenant of
    /// the Slurm job to which the process belongs.
    pub fn starter_of(self, pid: u32) -> Option<String> {
        let process = identity::read::process(pid)?;
        let started = identity::read::ancestors(&process).find_map(|ancestor| {
            let mut all = self.tenants.iter();
            all.find(|(_, tenant)| tenant.members.has(&ancestor)).map(|(name, _)| name.to_owned())
        });
        started.or_else(|| {
            let place = identity::read::place(pid).filter(|place| place.job().is_some())?;
            let known = self.tenants.of_key(&Key::Cgroup(place.path.clone()));
            Some(known.map_or_else(|| place.name(), |(name, _)| name.to_owned()))
        })
    }

    /// Returns the part of the GPUs that the cluster gave to the job in the cgroup at this path, if
    /// the daemon knows it.
    pub fn allotment(self, path: &str) -> Option<&'a Allotment> {
        let is_there =
            |key: &Key| matches!(key, Key::Cgroup(own) | Key::Name { place: Some(own), .. } if own == path);
        let mut there = self.tenants.iter().filter(|(_, tenant)| is_there(&tenant.owner.key));
        there.find_map(|(_, tenant)| tenant.terms.allotment())
    }

    /// Returns whether the daemon checks the claims of the processes at a place. The daemon does so
    /// in the cgroups of root's Slurm jobs, unless the configuration turns the check off. A daemon
    /// inside a job serves that job, and the job is the whole machine for it.
    pub fn checks_job_at(self, place: &Place) -> bool {
        self.config.slurm.check_claims && self.home != Some(place) && place.is_of_roots_slurm(self.home)
    }

    /// Returns the places of the Slurm jobs whose claims the daemon checks, and whose tenants have
    /// processes but no allotment yet.
    pub fn unbound_jobs(self) -> Vec<Place> {
        let place = |tenant: &Tenant| match (&tenant.owner.key, &tenant.owner.found) {
            (Key::Cgroup(path), Found::Slurm { job }) => {
                Some(Place { path: path.clone(), kind: Kind::Slurm { job: job.clone() } })
            }
            _ => None,
        };
        let unbound = self.tenants.living().filter(|(_, tenant)| tenant.terms.allotment().is_none());
        let places = unbound.filter_map(|(_, tenant)| place(tenant));
        places.filter(|place| self.checks_job_at(place)).collect()
    }
}

/// The tenants to which a process of `owner` may belong: the tenants of `owner`, and of root. The
/// process may have dropped root's rights. A process of a subordinate user may have dropped first
/// root's rights, then those of `owner`.
struct Kin<'a> {
    tenants: &'a Tenants,
    owner: u32,
}

impl Kin<'_> {
    fn all(&self) -> impl Iterator<Item = (&str, &Tenant)> {
        let kin = [self.owner, ROOT];
        self.tenants.iter().filter(move |(_, tenant)| kin.contains(&tenant.owner.user))
    }
}

impl Known for Kin<'_> {
    fn tenant_of(&self, process: &identity::tree::Process) -> Option<(Key, String)> {
        let (name, tenant) = self.all().find(|(_, tenant)| tenant.members.has(process))?;
        Some((tenant.owner.key.clone(), name.to_owned()))
    }

    fn is_within(&self, ancestor: &identity::tree::Process, namespaces: &[u64]) -> bool {
        identity::read::is_within(ancestor.key(), namespaces)
    }

    fn is_of_root(&self, name: &str) -> bool {
        let is_it = |key: &Key| matches!(key, Key::Name { user: ROOT, name: own, .. } if own == name);
        self.all().any(|(_, tenant)| is_it(&tenant.owner.key))
    }

    fn named_within(&self, path: &str) -> Option<(Key, String)> {
        let is_there = |key: &Key| matches!(key, Key::Name { place: Some(place), .. } if place == path);
        let is_named = |tenant: &Tenant| !tenant.is_deserted() && is_there(&tenant.owner.key);
        let mut named = self.all().filter(|(_, tenant)| is_named(tenant));
        let (name, tenant) = named.next()?;
        named.next().is_none().then(|| (tenant.owner.key.clone(), name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Gpus;
    use crate::identity::tree::Process;
    use crate::registry::Registry;
    use crate::shm::{SharedPage, Writer};
    use crate::state::{SavedSession, SavedTenant, State};
    use deepres_abi::beat::BeatPage;
    use std::sync::Arc;

    #[test]
    fn a_process_of_a_subordinate_user_may_belong_to_a_tenant_of_the_owner_or_of_root() {
        let own = identity::read::process(std::process::id()).unwrap();
        let (owner, subordinate) = (1000, 100_033);
        for (user, is_kin) in [(owner, true), (ROOT, true), (1001, false)] {
            let member = SavedSession { process: own.key(), at_ns: None, meters: Vec::new() };
            let name = "job".to_owned();
            let key = Some(Key::Name { user, name: name.clone(), place: None });
            let saved =
                SavedTenant { name, uid: user, key, sessions: vec![member], ..SavedTenant::default() };
            let beat = SharedPage::<BeatPage>::create("deepres-test", Writer::Controller).unwrap();
            let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
            registry.restore(&State::new("boot", 1, Vec::new(), vec![saved])).unwrap();
            let facts = Facts {
                pid: own.pid,
                process: Some(Process { user: subordinate, ..own.clone() }),
                place: None,
                owner,
                namespace: Some(Namespace::User(4711)),
                namespaces: vec![4711],
            };
            for claim in ["job", ""] {
                let found = registry.finder().identify_outside_jobs(claim, &facts).key;
                let is_found = found == Key::Name { user, name: "job".to_owned(), place: None };
                assert_eq!(is_found, is_kin, "`{claim}` of user {user}");
            }
        }
    }
}
