//! `deepres ps -v`: shows for each tenant its requests, its grants with their reasons, and how the
//! daemon found the tenant.

use super::{memory, time};
use deepres_abi::PPM;
use deepres_model::admin::{AccountStatus, GpuStatus, TenantStatus};
use deepres_model::authority::{Given, Granted, Rule};
use deepres_model::identity::Found;
use deepres_model::quantity::Percent;
use deepres_model::wish::{Key, Shown, Value, Wish};
use std::io::{self, Write};

/// Prints one paragraph for each tenant.
pub fn print(tenants: &[TenantStatus], out: &mut impl Write) -> io::Result<()> {
    for tenant in tenants {
        writeln!(out)?;
        print_tenant(tenant, out)?;
    }
    Ok(())
}

/// Prints the hand-off from which a GPU's time constants follow, and the fairness index.
pub fn print_gpu(gpu: &GpuStatus, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "  from a hand-off of {} (mean, drain included): quantum {}, renewed {} before its end, window {}, spin {}, idle after {}",
        time(gpu.handoff_ns),
        time(gpu.quantum_ns),
        time(gpu.lead_ns),
        time(gpu.window_ns),
        time(gpu.spin_ns),
        time(gpu.grace_ns),
    )?;
    match gpu.fairness_ppm {
        Some(ppm) => writeln!(out, "  fairness of the last second {:.3}", f64::from(ppm) / f64::from(PPM)),
        None => Ok(()),
    }
}

fn print_tenant(tenant: &TenantStatus, out: &mut impl Write) -> io::Result<()> {
    let user = match &tenant.user {
        Some(name) => format!("{name} ({})", tenant.uid),
        None => tenant.uid.to_string(),
    };
    writeln!(out, "{}: user {user}{}", tenant.name, tenant.found.as_ref().map_or(String::new(), found))?;
    if let Some(container) = &tenant.container {
        writeln!(out, "  container  {} {}", container.runtime.name(), container.id)?;
    }
    let Some(granted) = &tenant.granted else { return Ok(()) };
    print_wish(Key::Share, &tenant.asked, granted, out)?;
    for account in &tenant.gpus {
        if let Some(entitled_ppm) = account.entitled_ppm {
            let lent = if account.is_lent { "; lent to others while the tenant is idle" } else { "" };
            let (share, owed) = (Percent(entitled_ppm), owed(account));
            writeln!(out, "    on gpu {}  owed {share}{owed}{lent}", account.gpu)?;
        }
        print_service(account, out)?;
    }
    let copies = granted.charge_copies;
    if copies != Given::default() || tenant.gpus.iter().any(|account| account.copy_ns > 0) {
        let are = if copies.value { "charged" } else { "not charged" };
        writeln!(out, "  copies     {are} {}", copies.rule)?;
        for account in tenant.gpus.iter().filter(|account| account.copy_ns > 0) {
            writeln!(out, "    on gpu {}  {} in all", account.gpu, time(account.copy_ns))?;
        }
    }
    print_wish(Key::Memory, &tenant.asked, granted, out)?;
    if tenant.asked.memory_follows_use.is_some()
        || granted.memory_follows_use.rule != Rule::Default
        || granted.memory_follows_use.value
    {
        let does =
            if granted.memory_follows_use.value { "follows its use" } else { "does not follow its use" };
        writeln!(out, "             it {does} {}", granted.memory_follows_use.rule)?;
    }
    memory::print(tenant, out)?;
    for key in Key::ALL {
        let (value, rule) = granted.get(key);
        let is_granted = match key {
            Key::Share | Key::Memory | Key::MemoryFollowUse | Key::ChargeCopies | Key::Label => continue,
            Key::Class => true,
            Key::Criticality => rule != Rule::Default,
            _ => value.is_some() || rule == Rule::NoMps,
        };
        if is_granted || tenant.asked.get(key).is_some() {
            print_wish(key, &tenant.asked, granted, out)?;
        }
    }
    if let Some(labels) = granted.labels.value {
        writeln!(out, "  label      {labels} {}", granted.labels.rule)?;
    }
    Ok(())
}

/// Prints a wish of a tenant, and the value that the daemon granted.
fn print_wish(key: Key, asked: &Wish, granted: &Granted, out: &mut impl Write) -> io::Result<()> {
    let name = if key == Key::Criticality { "critical" } else { key.name() };
    let without = match key {
        Key::Share => "a part of what others leave",
        Key::Memory => "all there is",
        Key::Sm => "all SMs",
        _ => "none",
    };
    let shown = |value: Option<Value>, without: &str| {
        value.map_or(without.to_owned(), |value| Shown(value).to_string())
    };
    let (value, rule) = granted.get(key);
    let (asked, granted) = (shown(asked.get(key), "nothing"), shown(value, without));
    writeln!(out, "  {name:<10} asked for {asked}, granted {granted} {rule}")
}

/// Prints the GPU time that a tenant had while other tenants wanted the GPU too, and its waits at
/// the gate.
fn print_service(account: &AccountStatus, out: &mut impl Write) -> io::Result<()> {
    if account.contended_ns > 0 {
        writeln!(
            out,
            "      of {} contended, the tenant was owed {} and had {}",
            time(account.contended_ns),
            time(account.owed_ns),
            time(account.had_ns)
        )?;
    }
    let [Some(median_ns), Some(most_ns)] = [50, 99].map(|percent| waited_ns(account, percent)) else {
        return Ok(());
    };
    writeln!(
        out,
        "      waited at the gate {} times: half of them under {}, 99 % under {}",
        account.waits,
        time(median_ns),
        time(most_ns)
    )
}

/// Returns a time by the histogram, ns: `percent` of the waits were shorter. Returns `None` without
/// waits.
fn waited_ns(account: &AccountStatus, percent: u64) -> Option<u64> {
    const NS_PER_US: u64 = 1_000;
    let waits: u64 = account.waits_by_length.iter().sum();
    let rank = (waits * percent).div_ceil(100);
    let mut sum = 0;
    let bucket = account.waits_by_length.iter().position(|count| {
        sum += count;
        sum >= rank
    });
    bucket.filter(|_| waits > 0).map(|bucket| NS_PER_US << (bucket + 1))
}

/// Returns in words how the daemon found a tenant.
fn found(found: &Found) -> String {
    match found {
        Found::Name { within: None } => ", by the name that it gave".to_owned(),
        Found::Name { within: Some(place) } => format!(", by the name that it gave in {place}"),
        Found::Ancestor { pid } => format!(", by its ancestor {pid}"),
        Found::Container => ", by its container".to_owned(),
        Found::Pod => ", by its pod".to_owned(),
        Found::Allocation => ", by its allocation".to_owned(),
        Found::Slurm { job } => format!(", by its Slurm job {job}"),
        Found::Tree { root } => format!(", by its process tree from {root} down"),
    }
}

/// Returns in words the reason for a tenant's entitlement.
fn owed(account: &AccountStatus) -> &'static str {
    match account.entitled_by.as_str() {
        "guaranteed" => ": guaranteed",
        "asked" => ": the granted share",
        "shrunk" => ": the granted shares together are more than the GPU, and shrink in proportion",
        "rest" => ": its part of the time that no tenant asked for",
        "capped" => ": the cap of its user",
        "gaps" => ": the time that others leave",
        _ => "",
    }
}
