//! The part of `deepres ps` about the memory of tenants: by kind, against the limit, and refusals.

use deepres_abi::meter::MemoryKind;
use deepres_model::admin::{AccountStatus, RefusedBy, TenantStatus};
use deepres_model::quantity::Bytes;
use std::io::{self, Write};

/// Prints lines about each GPU on which the tenant has an account.
pub fn print(tenant: &TenantStatus, out: &mut impl Write) -> io::Result<()> {
    for account in &tenant.gpus {
        writeln!(out, "    on gpu {}  {}", account.gpu, held(tenant, account))?;
        let more = [
            waits(account),
            working_set(account),
            ceiling(tenant, account),
            drift(account),
            refused(account),
        ];
        for line in more.into_iter().flatten() {
            writeln!(out, "              {line}")?;
        }
    }
    Ok(())
}

/// Prints for each tenant and GPU the kinds of memory, the memory for which the tenant waits, and
/// the last refusal. Prints nothing for a tenant that holds no memory, waits for none and was
/// refused none.
pub fn print_brief(tenants: &[TenantStatus], out: &mut impl Write) -> io::Result<()> {
    let accounts = tenants.iter().flat_map(|tenant| tenant.gpus.iter().map(move |account| (tenant, account)));
    let lines = accounts.filter_map(|(tenant, account)| {
        let kinds = kinds(account).map(|kinds| kinds + place(tenant));
        let told = [kinds, excess(tenant, account), waits(account), refused(account)];
        let told: Vec<String> = told.into_iter().flatten().collect();
        (!told.is_empty()).then(|| format!("{} on gpu {}: {}", tenant.name, account.gpu, told.join("; ")))
    });
    for (number, line) in lines.enumerate() {
        if number == 0 {
            writeln!(out)?;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns the memory that the tenant holds, by kind; `None` without memory.
pub fn kinds(account: &AccountStatus) -> Option<String> {
    let kinds = account.memory_by_kind.iter().map(|(kind, bytes)| format!("{kind} {}", Bytes(*bytes)));
    let kinds = kinds.chain(oversubscribed(account)).collect::<Vec<_>>().join(", ");
    (!kinds.is_empty()).then_some(kinds)
}

/// Returns the memory that the tenant has beyond its limit, and the part that was brought to the
/// GPU.
fn oversubscribed(account: &AccountStatus) -> Option<String> {
    let bytes = account.oversubscribed_bytes;
    (bytes > 0).then(|| {
        let there = Bytes(account.oversubscribed_brought_bytes);
        format!("{} beyond the limit, of which {there} on the GPU", Bytes(bytes))
    })
}

/// Returns a text for the place of the tenant's memory; empty if the memory is on the GPU.
fn place(tenant: &TenantStatus) -> &'static str {
    if tenant.suspended { ", on the host" } else { "" }
}

/// Returns the memory for which the tenant waits; `None` if it waits for none.
fn waits(account: &AccountStatus) -> Option<String> {
    let bytes = account.needed_bytes;
    (bytes > 0).then(|| format!("waits for others to make room for {}", Bytes(bytes)))
}

/// Returns the memory that the daemon keeps for a tenant whose memory follows its use.
fn working_set(account: &AccountStatus) -> Option<String> {
    let bytes = account.kept_bytes?;
    Some(format!(
        "the daemon keeps {} for the tenant, by its recent use; other tenants may take the rest",
        Bytes(bytes)
    ))
}

/// Returns the tenant's ceiling; `None` if the ceiling is not below the limit.
fn ceiling(tenant: &TenantStatus, account: &AccountStatus) -> Option<String> {
    let limit_bytes = tenant.memory_limit_bytes.unwrap_or(u64::MAX);
    let bytes = account.ceiling_bytes.filter(|bytes| *bytes < limit_bytes)?;
    Some(format!("may hold {} at most, because others hold or are guaranteed the rest", Bytes(bytes)))
}

/// Returns NVML's figure for the tenant, with two differences: between NVML and the account, and
/// between the account and the sum of its kinds.
fn drift(account: &AccountStatus) -> Option<String> {
    let differs = |drift: i64, of: &str| match drift {
        0 => String::new(),
        1.. => format!(", {} more than {of}", Bytes(drift.unsigned_abs())),
        _ => format!(", {} less than {of}", Bytes(drift.unsigned_abs())),
    };
    let by_kind = differs(account.kinds_drift_bytes, "its kinds together");
    match account.nvml_bytes {
        Some(bytes) => {
            let drift = differs(account.drift_bytes.unwrap_or(0), "its account");
            Some(format!("NVML says {}{drift}{by_kind}", Bytes(bytes)))
        }
        None if by_kind.is_empty() => None,
        None => Some(format!("holds{}", by_kind.trim_start_matches(','))),
    }
}

fn held(tenant: &TenantStatus, account: &AccountStatus) -> String {
    let mut line = format!("holds {}{}", Bytes(account.memory_bytes), place(tenant));
    if let Some(kinds) = kinds(account) {
        line += &format!(" ({kinds})");
    }
    line += &format!(", peak {}", Bytes(account.memory_peak_bytes));
    if let Some(excess) = excess(tenant, account) {
        line += &format!("; {excess}");
    }
    line
}

/// Returns a text about the memory that the tenant holds beyond its limit. The text also names the
/// memory that the driver took by itself, if any. Returns `None` without memory beyond the limit.
fn excess(tenant: &TenantStatus, account: &AccountStatus) -> Option<String> {
    let more = Bytes(over(tenant.memory_limit_bytes, account)?);
    let own = account.memory_by_kind.get(MemoryKind::Driver.name()).filter(|bytes| **bytes > 0);
    let own = own.map(|bytes| format!(", with {} that the driver took by itself", Bytes(*bytes)));
    Some(format!(
        "{more} more than its limit{}: the tenant gets no more memory until it holds less",
        own.unwrap_or_default()
    ))
}

/// Returns the memory that the tenant holds beyond its limit; `None` without such memory. An
/// administrator has then lowered the limit, or the driver has taken memory by itself.
pub fn over(limit_bytes: Option<u64>, account: &AccountStatus) -> Option<u64> {
    account.memory_bytes.checked_sub(limit_bytes?).filter(|more| *more > 0)
}

fn refused(account: &AccountStatus) -> Option<String> {
    let last = account.last_refusal.as_ref()?;
    let times = if account.refusals == 1 { "once".to_owned() } else { format!("{} times", account.refusals) };
    let by = match last.by {
        RefusedBy::Limit => "",
        RefusedBy::Driver => ", because the GPU had too little memory left",
    };
    Some(format!("refused {times}, last {last}{by}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::RefusalStatus;

    fn tenant(memory_limit_bytes: Option<u64>, account: AccountStatus) -> TenantStatus {
        let status = serde_json::json!({
            "name": "t", "uid": 0, "asked_share_ppm": null, "memory_limit_bytes": memory_limit_bytes, "keepers": 0,
            "gpus": [account, AccountStatus::default()], "sessions": [],
        });
        serde_json::from_value(status).unwrap()
    }

    fn held_of(memory_limit_bytes: Option<u64>, account: &AccountStatus) -> String {
        held(&tenant(memory_limit_bytes, AccountStatus::default()), account)
    }

    fn account() -> AccountStatus {
        AccountStatus {
            memory_bytes: 3 << 30,
            memory_peak_bytes: 4 << 30,
            memory_by_kind: [("linear".to_owned(), 2 << 30), ("pool".to_owned(), 1 << 30)].into(),
            refusals: 7,
            last_refusal: Some(RefusalStatus {
                api: Some("cuMemCreate".to_owned()),
                bytes: 2 << 20,
                by: RefusedBy::Limit,
            }),
            ..AccountStatus::default()
        }
    }

    #[test]
    fn memory_is_told_by_kind_with_its_peak_and_what_was_refused() {
        let account = account();
        assert_eq!(held_of(Some(4 << 30), &account), "holds 3 GiB (linear 2 GiB, pool 1 GiB), peak 4 GiB");
        assert_eq!(refused(&account).unwrap(), "refused 7 times, last 2 MiB for cuMemCreate");
        let once = AccountStatus { refusals: 1, ..account.clone() };
        assert_eq!(refused(&once).unwrap(), "refused once, last 2 MiB for cuMemCreate");
        assert_eq!(refused(&AccountStatus::default()), None);
        let last = RefusalStatus { api: None, bytes: 1 << 30, by: RefusedBy::Driver };
        let by_driver = AccountStatus { last_refusal: Some(last), ..once };
        let text = "refused once, last 1 GiB for an unknown call, because the GPU had too little memory left";
        assert_eq!(refused(&by_driver).unwrap(), text);
    }

    #[test]
    fn memory_beyond_the_limit_is_shown_as_a_kind_of_its_own() {
        let account = AccountStatus {
            oversubscribed_bytes: 5 << 30,
            oversubscribed_brought_bytes: 1 << 30,
            ..account()
        };
        let kinds = "linear 2 GiB, pool 1 GiB, 5 GiB beyond the limit, of which 1 GiB on the GPU";
        assert_eq!(held_of(None, &account), format!("holds 3 GiB ({kinds}), peak 4 GiB"));
    }

    #[test]
    fn the_brief_has_kinds_and_the_last_refusal_and_nothing_for_who_has_neither() {
        let mut tenants = Vec::new();
        let mut out = Vec::new();
        print_brief(&tenants, &mut out).unwrap();
        assert!(out.is_empty());
        tenants.push(tenant(None, account()));
        print_brief(&tenants, &mut out).unwrap();
        let text = "\nt on gpu 0: linear 2 GiB, pool 1 GiB; refused 7 times, last 2 MiB for cuMemCreate\n";
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn memory_beyond_the_limit_is_told_with_what_the_driver_took_by_itself() {
        let mut out = Vec::new();
        let mut grown = account();
        print_brief(&[tenant(Some(2 << 30), grown.clone())], &mut out).unwrap();
        grown.memory_by_kind.insert("driver".to_owned(), 512 << 20);
        print_brief(&[tenant(Some(2 << 30), grown)], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let [plain, grown] = ["", ", with 512 MiB that the driver took by itself"]
            .map(|own| format!("; 1 GiB more than its limit{own}: the tenant gets no more memory until"));
        assert!(text.contains(&plain) && text.contains(&grown), "{text}");
    }

    #[test]
    fn memory_of_a_suspended_tenant_is_on_the_host() {
        let away = TenantStatus { suspended: true, ..tenant(None, account()) };
        let line = held(&away, &account());
        assert!(line.starts_with("holds 3 GiB, on the host (linear 2 GiB"), "{line}");
        let mut out = Vec::new();
        print_brief(&[away], &mut out).unwrap();
        let text = "\nt on gpu 0: linear 2 GiB, pool 1 GiB, on the host; refused 7 times, last 2 MiB for cuMemCreate\n";
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn a_tenant_that_waits_for_memory_is_shown() {
        let waiting = AccountStatus { needed_bytes: 1 << 30, ..AccountStatus::default() };
        assert_eq!(waits(&waiting).unwrap(), "waits for others to make room for 1 GiB");
        let mut out = Vec::new();
        print_brief(&[tenant(None, waiting)], &mut out).unwrap();
        let text = "\nt on gpu 0: waits for others to make room for 1 GiB\n";
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn a_ceiling_below_the_limit_is_shown() {
        let account = AccountStatus { ceiling_bytes: Some(2 << 30), ..AccountStatus::default() };
        let told = |limit_bytes| ceiling(&tenant(limit_bytes, AccountStatus::default()), &account);
        assert!(told(None).is_some() && told(Some(3 << 30)).is_some());
        assert_eq!(told(Some(2 << 30)), None);
    }

    #[test]
    fn drift_is_told_with_its_direction() {
        let seen = |drift_bytes: i64| AccountStatus {
            nvml_bytes: Some(1 << 30),
            drift_bytes: Some(drift_bytes),
            ..AccountStatus::default()
        };
        assert_eq!(drift(&seen(0)).unwrap(), "NVML says 1 GiB");
        assert_eq!(drift(&seen(1 << 20)).unwrap(), "NVML says 1 GiB, 1 MiB more than its account");
        assert_eq!(drift(&seen(-(1 << 20))).unwrap(), "NVML says 1 GiB, 1 MiB less than its account");
        assert_eq!(drift(&AccountStatus::default()), None);
        let sums = AccountStatus { kinds_drift_bytes: 512, ..AccountStatus::default() };
        assert_eq!(drift(&sums).unwrap(), "holds 512 B more than its kinds together");
    }

    #[test]
    fn a_tenant_above_a_lowered_limit_is_shown() {
        let line = held_of(Some(1 << 30), &account());
        assert!(
            line.ends_with("; 2 GiB more than its limit: the tenant gets no more memory until it holds less"),
            "{line}"
        );
        assert_eq!(over(None, &account()), None);
        assert_eq!(over(Some(3 << 30), &account()), None);
    }
}
