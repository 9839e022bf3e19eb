//! `deepres ps -v`: for each tenant what was asked, what is granted and why, and how the tenant was found.

use deepres_controller::admin::{AccountStatus, TenantStatus};
use deepres_controller::authority::Granted;
use deepres_controller::identity::Found;
use deepres_controller::quantity::{Bytes, Percent};
use std::io::{self, Write};

/// Prints one paragraph for each tenant.
pub fn print(tenants: &[TenantStatus], out: &mut impl Write) -> io::Result<()> {
    for tenant in tenants {
        writeln!(out)?;
        print_tenant(tenant, out)?;
    }
    Ok(())
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
    let Granted { share_ppm, memory_bytes, class, .. } = granted;
    let asked = |asked: Option<String>| asked.unwrap_or_else(|| "nothing".to_owned());
    let share = |ppm: u32| Percent(ppm).to_string();
    let bytes = |bytes: u64| Bytes(bytes).to_string();
    writeln!(
        out,
        "  share      asked for {}, granted {} {}",
        asked(tenant.asked.share_ppm.map(share)),
        share_ppm.value.map_or("a part of what others leave".to_owned(), share),
        share_ppm.rule
    )?;
    for account in &tenant.gpus {
        writeln!(out, "    on gpu {}  owed {}{}", account.gpu, share(account.entitled_ppm), owed(account))?;
    }
    writeln!(
        out,
        "  memory     asked for {}, granted {} {}",
        asked(tenant.asked.memory_bytes.map(bytes)),
        memory_bytes.value.map_or("all there is".to_owned(), bytes),
        memory_bytes.rule
    )?;
    writeln!(
        out,
        "  class      asked for {}, granted {} {}",
        asked(tenant.asked.class.map(|class| class.name().to_owned())),
        class.value,
        class.rule
    )
}

/// How a tenant was found.
fn found(found: &Found) -> String {
    match found {
        Found::Name => ", by the name that it gave".to_owned(),
        Found::Ancestor { pid } => format!(", by its ancestor {pid}"),
        Found::Container => ", by its container".to_owned(),
        Found::Pod => ", by its pod".to_owned(),
        Found::Slurm { job } => format!(", by its Slurm job {job}"),
        Found::Tree { root } => format!(", by its process tree from {root} down"),
    }
}

/// Why it is owed that.
fn owed(account: &AccountStatus) -> &'static str {
    match account.entitled_by.as_str() {
        "guaranteed" => ": guaranteed",
        "asked" => ": what it is granted",
        "shrunk" => ": what is granted to all together is more than there is, and shrinks in proportion",
        "rest" => ": its part of what nobody asked for",
        "capped" => ": the most that its user may have",
        "gaps" => ": what others leave",
        _ => "",
    }
}
