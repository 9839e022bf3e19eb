//! The part of a wish that the daemon grants, and the rule by which the daemon grants this part.
//!
//! A job can only ask. The configuration bounds the wishes of jobs. An administrator overrules
//! wishes and configuration.
//!
//! A job can ask for more than the daemon can grant. **If such a job has not started, the daemon
//! refuses the job. If the job already runs, the daemon grants as much as it can.**
//!
//! `deepres run` asks before its job starts. If the daemon refuses ([`refuse`]), `deepres run`
//! prints the reason and does not start the job. If the user's other tenants have too much of the
//! caps ([`crowded`]), `deepres run --wait` waits until they have ended. A process that connects by
//! itself already runs. If the daemon refused such a process, the process would run without any
//! limit. So the daemon gives the process the cap ([`grant`]).

mod part;

pub use deepres_abi::wish::Wish;
pub use part::{Claim, Part, Want, Wants, bounds};

use crate::config::{CapOf, Caps};
use crate::quantity::{Bytes, Percent, Time};
use crate::wish::{Key, Shown, Value};
use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::label::Labels;
use deepres_abi::quantity::MAX_TIME_NS;
use deepres_policy::class::Class;
use deepres_policy::priority::Criticality;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The remedy for a wish beyond a cap.
const BEYOND_CAP: &str = "ask for less, or have an administrator raise the cap";

/// The rule by which the daemon granted a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The value is the default, because neither the job nor an administrator asked for a value.
    Default,
    /// The value is as the job requested.
    Request,
    /// The value is the cap of this user.
    Cap(CapOf),
    /// The value is the part of the cap that the user's other tenants leave.
    CapBesideOthers(CapOf),
    /// An administrator set the value.
    Administrator,
    /// The tenant has no guarantee, because a guarantee needs a share and the job requested no
    /// share.
    NoShare,
    /// The tenant has no guarantee, because its guarantee does not fit together with the guarantees
    /// of other tenants.
    NoRoom,
    /// The tenant has no part of the SMs, because the configuration turns MPS off.
    NoMps,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "by default"),
            Self::Request => write!(f, "as asked"),
            Self::Cap(of) => write!(f, "by {of}"),
            Self::CapBesideOthers(of) => write!(f, "by {of}, beside the user's other tenants"),
            Self::Administrator => write!(f, "set by an administrator"),
            Self::NoShare => write!(f, "because a guarantee needs a share, and the job asked for none"),
            Self::NoRoom => write!(f, "because guarantees to others leave no room"),
            Self::NoMps => write!(f, "because the configuration has `mps = \"off\"`"),
        }
    }
}

/// A value that the daemon granted, and the rule by which it granted the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given<T> {
    /// The granted value.
    pub value: T,
    /// The rule by which the daemon granted the value.
    pub rule: Rule,
}

impl<T> Given<T> {
    fn by(rule: Rule, value: T) -> Self {
        Self { value, rule }
    }
}

impl<T: Default> Given<T> {
    /// Returns a value that no cap bounds: the value that an administrator set, else the requested
    /// value.
    fn unbounded<W: Into<T>>(set: Option<W>, asked: Option<W>) -> Self {
        match (set, asked) {
            (Some(value), _) => Self::by(Rule::Administrator, value.into()),
            (None, Some(value)) => Self::by(Rule::Request, value.into()),
            (None, None) => Self::default(),
        }
    }
}

impl<T: Default> Default for Given<T> {
    fn default() -> Self {
        Self::by(Rule::Default, T::default())
    }
}

/// The grants of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The tenant's own share, parts per million. Without an own share, the tenant gets a part of
    /// the time that other tenants leave.
    pub share_ppm: Given<Option<u32>>,
    /// The largest share that the tenant can be owed, even if other tenants leave more time, parts
    /// per million.
    pub cap_ppm: u32,
    /// Memory limit on each GPU, bytes. `None` means no limit.
    pub memory_bytes: Given<Option<u64>>,
    /// The class.
    pub class: Given<Class>,
    /// The criticality.
    #[serde(default)]
    pub criticality: Given<Criticality>,
    /// The deadline, ns after the job asked for the deadline.
    #[serde(default)]
    pub deadline_ns: Given<Option<u64>>,
    /// GPU time of the whole job, ns.
    #[serde(default)]
    pub size_ns: Given<Option<u64>>,
    /// The SLO, ns.
    #[serde(default)]
    pub slo_ns: Given<Option<u64>>,
    /// Whether other tenants may use the memory that this tenant does not use.
    #[serde(default)]
    pub memory_follows_use: Given<bool>,
    /// Whether the arbiter charges the time of copies.
    #[serde(default)]
    pub charge_copies: Given<bool>,
    /// The labels.
    #[serde(default)]
    pub labels: Given<Option<Labels>>,
    /// The part of each GPU's SMs that processes of the job can use under MPS, parts per million. A
    /// process keeps the part with which it began.
    #[serde(default)]
    pub sm_ppm: Given<Option<u32>>,
}

macro_rules! granted {
    ($($(#[doc = $doc:literal])+ $key:ident = $tag:literal: $field:ident, $name:literal, $option:literal, $variable:literal, $kind:ident($value:ty);)+) => {
        impl Granted {
            /// Returns the granted value of a wish, or `None` if the tenant has no such value, with
            /// the rule of the grant.
            pub fn get(&self, key: Key) -> (Option<Value>, Rule) {
                match key {
                    $(Key::$key => (Option::<$value>::from(self.$field.value).map(Value::$kind), self.$field.rule),)+
                }
            }

            /// Returns the grants that no cap bounds.
            fn unbounded(set: &Wish, asked: &Wish, cap_ppm: u32) -> Self {
                Self { cap_ppm, $($field: Given::unbounded(set.$field, asked.$field),)+ }
            }

            /// Returns the grants with corrected rules. If a value comes from the configuration's
            /// defaults, it gets the rule [`Rule::Default`]. `asked` are the wishes that the job
            /// itself stated.
            pub fn told_by(mut self, asked: &Wish) -> Self {
                $(if self.$field.rule == Rule::Request && asked.$field.is_none() {
                    self.$field.rule = Rule::Default;
                })+
                self
            }
        }
    };
}
deepres_abi::for_each_wish!(granted);

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |key: Key| {
            let name = match key {
                Key::Slo => "SLO",
                Key::Sm => "SMs",
                key => key.name(),
            };
            Some(match (key, self.get(key)) {
                (Key::Share, (None, _)) => "share what others leave".to_owned(),
                (Key::Memory, (None, _)) => "memory no limit".to_owned(),
                (Key::MemoryFollowUse, (Some(Value::Switch(true)), _)) => "memory follows its use".to_owned(),
                (Key::ChargeCopies, (Some(Value::Switch(true)), _)) => "copies charged".to_owned(),
                (Key::Criticality, (_, Rule::Default)) | (_, (None | Some(Value::Switch(_)), _)) => {
                    return None;
                }
                (_, (Some(value), _)) => format!("{name} {}", Shown(value)),
            })
        };
        let parts: Vec<String> = Key::ALL.into_iter().filter_map(part).collect();
        f.write_str(&parts.join(", "))
    }
}

/// Returns the grants of a tenant.
///
/// `asked` are the wishes of the job, and `set` are the wishes of an administrator. `caps` are the
/// caps of the user, and `part` is the tenant's part of these caps. `has_room` says whether the
/// requested guarantee fits beside the guarantees of other tenants.
pub fn grant(asked: &Wish, set: &Wish, (caps, of): (Caps, CapOf), part: &Part, has_room: bool) -> Granted {
    let capped = |is_whole: bool| if is_whole { Rule::Cap(of) } else { Rule::CapBesideOthers(of) };
    let share_ppm = match (set.share_ppm, asked.share_ppm) {
        (None, Some(ppm)) if ppm > part.share_ppm => {
            Given::by(capped(part.share_ppm == caps.share_ppm), Some(part.share_ppm))
        }
        (set, asked) => Given::unbounded(set, asked),
    };
    let memory_bytes = match (set.memory_bytes, asked.memory_bytes) {
        (Some(bytes), _) => Given::by(Rule::Administrator, Some(bytes).filter(|bytes| *bytes != NO_LIMIT)),
        (None, Some(bytes)) if bytes <= part.memory_bytes => Given::by(Rule::Request, Some(bytes)),
        (None, None) if part.memory_bytes == NO_LIMIT => Given::by(Rule::Default, None),
        (None, _) => Given::by(capped(part.memory_bytes == caps.memory_bytes), Some(part.memory_bytes)),
    };
    let class = match (set.class, asked.class) {
        // A class that promises more is the lesser value.
        (None, wanted) if wanted.unwrap_or_default() < caps.class => Given::by(Rule::Cap(of), caps.class),
        (set, asked) => Given::unbounded(set, asked),
    };
    let class = match class {
        Given { value: Class::Guaranteed, .. } if share_ppm.value.is_none() => {
            Given::by(Rule::NoShare, Class::Fair)
        }
        Given { value: Class::Guaranteed, rule: Rule::Request } if !has_room => {
            Given::by(Rule::NoRoom, Class::Fair)
        }
        class => class,
    };
    let cap_ppm = set.share_ppm.unwrap_or(0).max(part.cap_ppm);
    let criticality = match (set.criticality, asked.criticality) {
        (None, wanted) if wanted.unwrap_or_default() > caps.criticality => {
            Given::by(Rule::Cap(of), caps.criticality)
        }
        (set, asked) => Given::unbounded(set, asked),
    };
    let time = |counts: bool, set: Option<u64>, asked: Option<u64>| match (set, asked) {
        (None, Some(_)) if !counts => Given::by(Rule::Cap(of), None),
        (set, asked) => Given::unbounded(set, asked),
    };
    let deadline_ns = time(caps.deadline, set.deadline_ns, asked.deadline_ns);
    let slo_ns = time(caps.slo, set.slo_ns, asked.slo_ns);
    let charge_copies = match (set.charge_copies, asked.charge_copies) {
        (None, None | Some(false)) if caps.charge_copies => Given::by(Rule::Cap(of), true),
        (set, asked) => Given::unbounded(set, asked),
    };
    let sm_ppm = match (set.sm_ppm, asked.sm_ppm) {
        (None, None) => Given::default(),
        _ if !caps.sm => Given::by(Rule::NoMps, None),
        (set, asked) => Given::unbounded(set, asked),
    };
    Granted {
        share_ppm,
        memory_bytes,
        class,
        criticality,
        deadline_ns,
        slo_ns,
        charge_copies,
        sm_ppm,
        ..Granted::unbounded(set, asked, cap_ppm)
    }
}

/// Returns the reason for which the daemon refuses the wishes of a job that has not started; `None`
/// if the daemon grants them. The user's other tenants do not matter.
pub fn refuse(asked: &Wish, (caps, of): (Caps, CapOf), has_room: bool) -> Option<String> {
    if let Some(ppm) = asked.share_ppm.filter(|ppm| *ppm > caps.share_ppm) {
        let most = Percent(caps.share_ppm);
        return Some(format!(
            "the job asked for a share of {}, but {of} is {most}; {BEYOND_CAP}",
            Percent(ppm)
        ));
    }
    if let Some(bytes) = asked.memory_bytes.filter(|bytes| *bytes > caps.memory_bytes) {
        let most = Bytes(caps.memory_bytes);
        return Some(format!(
            "the job asked for {} of memory, but {of} is {most}; {BEYOND_CAP}",
            Bytes(bytes)
        ));
    }
    if let Some(criticality) = asked.criticality.filter(|criticality| *criticality > caps.criticality) {
        let most = caps.criticality;
        return Some(format!(
            "the job asked for criticality {criticality}, but {of} is {most}; {BEYOND_CAP}"
        ));
    }
    let times = [
        ("a deadline", "deadlines", asked.deadline_ns, caps.deadline),
        ("an SLO", "SLOs", asked.slo_ns, caps.slo),
    ];
    if let Some((one, all, ..)) = times.iter().find(|(_, _, asked_ns, counts)| asked_ns.is_some() && !counts)
    {
        return Some(format!(
            "the job asked for {one}, but by {of} {all} do not count; leave it out, or have an administrator set it"
        ));
    }
    if asked.charge_copies == Some(false) && caps.charge_copies {
        return Some(format!(
            "the job asked for copies without a charge, but {of} charges them; leave this wish out, or have an administrator set it"
        ));
    }
    let class = asked.class?;
    if class < caps.class {
        return Some(format!("the job asked for class {class}, but {of} is {}; {BEYOND_CAP}", caps.class));
    }
    match (class, asked.share_ppm) {
        (Class::Guaranteed, None) => Some("class guaranteed needs a share; give one by --share".to_owned()),
        (Class::Guaranteed, Some(ppm)) if !has_room => Some(format!(
            "the daemon cannot guarantee {}: guarantees to others leave no room; ask for less, or for class fair",
            Percent(ppm)
        )),
        _ => None,
    }
}

/// Returns the reason for which a job that has not started cannot have its wishes now. The reason
/// is that its user's other tenants have too much of the caps. Returns `None` if these tenants
/// leave enough. The job can have its wishes once enough of these tenants have ended.
pub fn crowded(asked: &Wish, (caps, of): (Caps, CapOf), part: &Part) -> Option<String> {
    let others = "the user's other tenants leave";
    if let Some(ppm) = asked.share_ppm.filter(|ppm| *ppm > part.share_ppm) {
        let (most, left) = (Percent(caps.share_ppm), Percent(part.share_ppm));
        return Some(format!(
            "the job asked for a share of {}, but {of} is {most}, of which {others} {left}; {BEYOND_CAP}",
            Percent(ppm)
        ));
    }
    if let Some(bytes) = asked.memory_bytes.filter(|bytes| *bytes > part.memory_bytes) {
        let (most, left) = (Bytes(caps.memory_bytes), Bytes(part.memory_bytes));
        return Some(format!(
            "the job asked for {} of memory, but {of} is {most}, of which {others} {left}; {BEYOND_CAP}",
            Bytes(bytes)
        ));
    }
    (part.memory_bytes == 0).then(|| {
        let most = Bytes(caps.memory_bytes);
        format!(
            "{of} is {most} of memory, and the user's other tenants have all of it; end one of them, or have an administrator raise the cap"
        )
    })
}

/// Returns the reason for which a wish is invalid for every user; `None` for a valid wish.
pub fn impossible(wish: &Wish) -> Option<String> {
    let share = deepres_abi::quantity::MIN_SHARE_PPM..=PPM;
    if let Some(ppm) = wish.share_ppm.filter(|ppm| !share.contains(ppm)) {
        return Some(format!("a share of {} is not between 1% and 100%", Percent(ppm)));
    }
    if let Some(ppm) = wish.sm_ppm.filter(|ppm| !share.contains(ppm)) {
        return Some(format!("a part of the SMs of {} is not between 1% and 100%", Percent(ppm)));
    }
    if wish.memory_bytes == Some(0) {
        return Some("a memory limit of 0 lets no program run".to_owned());
    }
    let times = [("a deadline", wish.deadline_ns), ("a size", wish.size_ns), ("an SLO", wish.slo_ns)];
    let (name, ns) =
        times.into_iter().find(|(_, ns)| ns.is_some_and(|ns| !(1..=MAX_TIME_NS).contains(&ns)))?;
    Some(format!("{name} of {} is not between 0 and a year", Time(ns.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: (Caps, CapOf) = (
        Caps { share_ppm: 500_000, memory_bytes: 1 << 30, class: Class::Fair, ..CAPLESS },
        CapOf::User(1000),
    );
    const CAPLESS: Caps = Caps::NONE;
    const CAPPED: Rule = Rule::Cap(CapOf::User(1000));

    fn asked(share_ppm: u32, memory_bytes: u64, class: Class) -> Wish {
        Wish {
            share_ppm: Some(share_ppm),
            memory_bytes: Some(memory_bytes),
            class: Some(class),
            ..Wish::default()
        }
    }

    fn free() -> (Caps, CapOf) {
        (Caps::default(), CapOf::Everyone)
    }

    fn whole((caps, _): (Caps, CapOf)) -> Part {
        Part::whole(&caps)
    }

    #[test]
    fn parts_of_a_cap_that_other_tenants_have_are_not_given_again() {
        let left = Part { share_ppm: 200_000, cap_ppm: 200_000, memory_bytes: 1 << 20 };
        let wish = asked(300_000, 1 << 29, Class::Fair);
        let granted = grant(&wish, &Wish::default(), CAPS, &left, true);
        let beside = Rule::CapBesideOthers(CapOf::User(1000));
        assert_eq!(granted.share_ppm, Given::by(beside, Some(200_000)));
        assert_eq!(granted.memory_bytes, Given::by(beside, Some(1 << 20)));
        assert_eq!(granted.cap_ppm, 200_000);
        let reason = crowded(&wish, CAPS, &left).unwrap();
        assert!(reason.contains("the cap of user 1000 is 50%") && reason.contains("leave 20%"), "{reason}");
        let reason = crowded(&asked(200_000, 1 << 29, Class::Fair), CAPS, &left).unwrap();
        assert!(reason.contains("leave 1 MiB"), "{reason}");
        let nothing = Part { memory_bytes: 0, ..left };
        assert!(crowded(&Wish::default(), CAPS, &nothing).is_some(), "it could hold nothing");
        assert_eq!(crowded(&Wish::default(), CAPS, &left), None);
        assert_eq!(refuse(&wish, CAPS, true), None, "the job can wait for it");
    }

    #[test]
    fn requests_within_the_caps_are_granted() {
        let granted =
            grant(&asked(500_000, 1 << 30, Class::BestEffort), &Wish::default(), CAPS, &whole(CAPS), true);
        assert_eq!(granted.share_ppm, Given::by(Rule::Request, Some(500_000)));
        assert_eq!(granted.memory_bytes, Given::by(Rule::Request, Some(1 << 30)));
        assert_eq!(granted.class, Given::by(Rule::Request, Class::BestEffort));
    }

    #[test]
    fn a_running_tenant_is_given_the_cap_and_a_new_request_above_it_is_refused() {
        let greedy = asked(800_000, 2 << 30, Class::Guaranteed);
        let granted = grant(&greedy, &Wish::default(), CAPS, &whole(CAPS), true);
        assert_eq!(granted.share_ppm, Given::by(CAPPED, Some(500_000)));
        assert_eq!(granted.memory_bytes, Given::by(CAPPED, Some(1 << 30)));
        assert_eq!(granted.class, Given::by(CAPPED, Class::Fair));
        for (wish, part) in [
            (Wish { share_ppm: Some(800_000), ..Wish::default() }, "the cap of user 1000 is 50%"),
            (Wish { memory_bytes: Some(2 << 30), ..Wish::default() }, "the cap of user 1000 is 1 GiB"),
            (Wish { class: Some(Class::Guaranteed), ..Wish::default() }, "the cap of user 1000 is fair"),
        ] {
            let reason = refuse(&wish, CAPS, true).unwrap();
            assert!(reason.contains(part), "{reason}");
        }
        assert_eq!(refuse(&asked(500_000, 1, Class::Fair), CAPS, true), None);
    }

    #[test]
    fn a_tenant_that_asks_for_nothing_has_the_default_within_the_caps() {
        let granted = grant(&Wish::default(), &Wish::default(), CAPS, &whole(CAPS), true);
        assert_eq!(granted.share_ppm, Given::by(Rule::Default, None));
        assert_eq!((granted.cap_ppm, granted.memory_bytes), (500_000, Given::by(CAPPED, Some(1 << 30))));
        assert_eq!(granted.class, Given::by(Rule::Default, Class::Fair));
        let unlimited = grant(&Wish::default(), &Wish::default(), free(), &whole(free()), true);
        assert_eq!(unlimited.memory_bytes, Given::by(Rule::Default, None));
        let low = (Caps { class: Class::BestEffort, ..Caps::default() }, CapOf::Groups);
        let granted = grant(&Wish::default(), &Wish::default(), low, &whole(low), true);
        assert_eq!(granted.class, Given::by(Rule::Cap(CapOf::Groups), Class::BestEffort));
    }

    #[test]
    fn an_administrator_is_above_caps_and_wishes_field_by_field() {
        let set = Wish { share_ppm: Some(900_000), ..Wish::default() };
        let granted = grant(&asked(100_000, 1 << 20, Class::Fair), &set, CAPS, &whole(CAPS), true);
        assert_eq!(granted.share_ppm, Given::by(Rule::Administrator, Some(900_000)));
        assert_eq!(granted.cap_ppm, 900_000);
        assert_eq!(granted.memory_bytes, Given::by(Rule::Request, Some(1 << 20)));
        let set = Wish { memory_bytes: Some(NO_LIMIT), ..set };
        let granted = grant(&asked(100_000, 1 << 20, Class::Fair), &set, CAPS, &whole(CAPS), true);
        assert_eq!(granted.memory_bytes, Given::by(Rule::Administrator, None), "and may take a limit away");
        let sentence = crate::wish::Sentence(set).to_string();
        assert!(sentence.contains("no memory limit"), "{sentence}");
    }

    #[test]
    fn a_guarantee_is_of_a_share_that_fits_beside_other_guarantees() {
        let bare = Wish { class: Some(Class::Guaranteed), ..Wish::default() };
        assert_eq!(
            grant(&bare, &Wish::default(), free(), &whole(free()), true).class,
            Given::by(Rule::NoShare, Class::Fair)
        );
        assert!(refuse(&bare, free(), true).unwrap().contains("--share"));
        let full = asked(500_000, 1, Class::Guaranteed);
        assert_eq!(
            grant(&full, &Wish::default(), free(), &whole(free()), false).class,
            Given::by(Rule::NoRoom, Class::Fair)
        );
        assert!(refuse(&full, free(), false).unwrap().contains("leave no room"));
        assert_eq!(refuse(&full, free(), true), None);
        let set = Wish { class: Some(Class::Guaranteed), ..Wish::default() };
        let granted = grant(&full, &set, free(), &whole(free()), false);
        assert_eq!(granted.class, Given::by(Rule::Administrator, Class::Guaranteed));
    }

    #[test]
    fn the_configuration_says_which_tenants_may_be_critical_or_have_deadlines_and_objectives() {
        let modest = (
            Caps { criticality: Criticality::default(), deadline: false, slo: false, ..Caps::NONE },
            CapOf::Everyone,
        );
        let urgent = Wish {
            criticality: Some(Criticality::CRITICAL),
            deadline_ns: Some(1_000),
            size_ns: Some(7),
            slo_ns: Some(8),
            ..Wish::default()
        };
        let granted = grant(&urgent, &Wish::default(), modest, &whole(modest), true);
        let capped = Rule::Cap(CapOf::Everyone);
        assert_eq!(granted.criticality, Given::by(capped, Criticality::default()));
        assert_eq!(granted.deadline_ns, Given::by(capped, None));
        assert_eq!(granted.size_ns, Given::by(Rule::Request, Some(7)));
        assert_eq!(granted.slo_ns, Given::by(capped, None));
        assert!(refuse(&urgent, modest, true).unwrap().contains("criticality critical"));
        let late = Wish { criticality: None, ..urgent };
        assert!(refuse(&late, modest, true).unwrap().contains("deadlines do not count"));
        let soon = Wish { deadline_ns: None, ..late };
        assert!(refuse(&soon, modest, true).unwrap().contains("SLOs do not count"));
        assert_eq!(refuse(&Wish { slo_ns: None, ..soon }, modest, true), None);
        assert_eq!(refuse(&urgent, free(), true), None);
        let set = grant(&Wish::default(), &urgent, modest, &whole(modest), true);
        assert_eq!(set.criticality, Given::by(Rule::Administrator, Criticality::CRITICAL));
        assert_eq!(set.deadline_ns, Given::by(Rule::Administrator, Some(1_000)));
        assert_eq!(set.slo_ns, Given::by(Rule::Administrator, Some(8)));
    }

    #[test]
    fn copies_are_charged_as_asked_unless_the_cap_or_an_administrator_says_otherwise() {
        let made = (Caps { charge_copies: true, ..Caps::NONE }, CapOf::Groups);
        let wish = |charge_copies| Wish { charge_copies, ..Wish::default() };
        let granted = |asked, set, caps| {
            let part = whole(caps);
            grant(&wish(asked), &wish(set), caps, &part, true).charge_copies
        };
        assert_eq!(granted(None, None, free()), Given::by(Rule::Default, false));
        assert_eq!(granted(Some(true), None, free()), Given::by(Rule::Request, true));
        assert_eq!(granted(Some(true), None, made), Given::by(Rule::Request, true));
        for asked in [None, Some(false)] {
            assert_eq!(granted(asked, None, made), Given::by(Rule::Cap(CapOf::Groups), true));
            assert_eq!(granted(asked, Some(false), made), Given::by(Rule::Administrator, false));
        }
        assert!(refuse(&wish(Some(false)), made, true).unwrap().contains("copies"));
        assert_eq!(refuse(&wish(None), made, true), None);
    }

    #[test]
    fn a_part_of_the_sms_is_granted_unless_the_configuration_turns_mps_off() {
        let wish = |sm_ppm| Wish { sm_ppm, ..Wish::default() };
        let off = (Caps { sm: false, ..Caps::NONE }, CapOf::Everyone);
        let granted = |asked, set, caps| {
            let part = whole(caps);
            grant(&wish(asked), &wish(set), caps, &part, true).sm_ppm
        };
        assert_eq!(granted(None, None, off), Given::by(Rule::Default, None));
        assert_eq!(granted(Some(400_000), None, free()), Given::by(Rule::Request, Some(400_000)));
        let by_administrator = Given::by(Rule::Administrator, Some(600_000));
        assert_eq!(granted(Some(400_000), Some(600_000), free()), by_administrator);
        for set in [None, Some(600_000)] {
            assert_eq!(granted(Some(400_000), set, off), Given::by(Rule::NoMps, None));
        }
        assert_eq!(refuse(&wish(Some(400_000)), off, true), None, "the job runs without it");
        assert!(impossible(&wish(Some(PPM + 1))).unwrap().contains("SMs"));
    }

    #[test]
    fn each_granted_wish_is_read_by_its_key_and_told_in_text() {
        let mut all = Wish::default();
        for key in Key::ALL {
            all.set(key, crate::wish::parse(key.kind(), crate::wish::example(key.kind())).unwrap());
        }
        let granted = |asked: Wish| grant(&asked, &Wish::default(), free(), &whole(free()), true);
        for (key, value) in all.iter() {
            assert_eq!(granted(all).get(key), (Some(value), Rule::Request), "{key:?}");
        }
        assert_eq!(
            granted(all).to_string(),
            "share 50%, memory 8 GiB, class fair, criticality low, deadline 30ms, size 30ms, SLO 30ms, \
             memory follows its use, copies charged, label team=vision, SMs 50%"
        );
        assert_eq!(
            granted(Wish::default()).to_string(),
            "share what others leave, memory no limit, class fair"
        );
    }

    #[test]
    fn requests_of_the_configuration_are_told_as_defaults() {
        let defaults = Wish { class: Some(Class::BestEffort), share_ppm: Some(300_000), ..Wish::default() };
        let asked = Wish { share_ppm: Some(200_000), ..Wish::default() };
        let granted =
            grant(&asked.or(defaults), &Wish::default(), free(), &whole(free()), true).told_by(&asked);
        assert_eq!(granted.class, Given::by(Rule::Default, Class::BestEffort));
        assert_eq!(granted.share_ppm, Given::by(Rule::Request, Some(200_000)));
    }

    #[test]
    fn written_wishes_are_read_back() {
        let granted =
            grant(&asked(800_000, 1, Class::BestEffort), &Wish::default(), CAPS, &whole(CAPS), true);
        let text = serde_json::to_string(&granted).unwrap();
        assert!(text.contains(r#""class":{"value":"best-effort","rule":"request"}"#), "{text}");
        assert!(text.contains(r#""rule":{"cap":{"user":1000}}"#), "{text}");
        assert_eq!(serde_json::from_str::<Granted>(&text).unwrap(), granted);
    }
}
