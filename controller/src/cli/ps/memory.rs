//! The memory of a tenant in `deepres ps -v`: by kind, against its limit, and what was refused.

use deepres_controller::admin::{AccountStatus, TenantStatus};
use deepres_controller::quantity::Bytes;
use std::io::{self, Write};

/// Prints some lines for each GPU that the tenant holds or held memory on.
pub fn print(tenant: &TenantStatus, out: &mut impl Write) -> io::Result<()> {
    for account in &tenant.gpus {
        writeln!(out, "    on gpu {}  {}", account.gpu, held(tenant.memory_limit_bytes, account))?;
        if let Some(refused) = refused(account) {
            writeln!(out, "              {refused}")?;
        }
    }
    Ok(())
}

fn held(limit_bytes: Option<u64>, account: &AccountStatus) -> String {
    let mut line = format!("holds {}", Bytes(account.memory_bytes));
    if !account.memory_by_kind.is_empty() {
        let kinds = account.memory_by_kind.iter().map(|(kind, bytes)| format!("{kind} {}", Bytes(*bytes)));
        line += &format!(" ({})", kinds.collect::<Vec<_>>().join(", "));
    }
    line += &format!(", at most {}", Bytes(account.memory_peak_bytes));
    if let Some(more) = over(limit_bytes, account) {
        line += &format!("; {} more than its limit: it gets no more until it is below", Bytes(more));
    }
    line
}

/// What it holds beyond its limit, which was lowered.
pub fn over(limit_bytes: Option<u64>, account: &AccountStatus) -> Option<u64> {
    account.memory_bytes.checked_sub(limit_bytes?).filter(|more| *more > 0)
}

fn refused(account: &AccountStatus) -> Option<String> {
    let last = account.last_refusal.as_ref()?;
    let api = last.api.as_deref().unwrap_or("an unknown call");
    Some(format!("refused {} times, last {} for {api}", account.refusals, Bytes(last.bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_controller::admin::RefusalStatus;

    fn account() -> AccountStatus {
        AccountStatus {
            memory_bytes: 3 << 30,
            memory_peak_bytes: 4 << 30,
            memory_by_kind: [("linear".to_owned(), 2 << 30), ("pool".to_owned(), 1 << 30)].into(),
            refusals: 7,
            last_refusal: Some(RefusalStatus { api: Some("cuMemCreate".to_owned()), bytes: 2 << 20 }),
            ..AccountStatus::default()
        }
    }

    #[test]
    fn memory_is_told_by_kind_with_its_peak_and_what_was_refused() {
        let account = account();
        assert_eq!(held(Some(4 << 30), &account), "holds 3 GiB (linear 2 GiB, pool 1 GiB), at most 4 GiB");
        assert_eq!(refused(&account).unwrap(), "refused 7 times, last 2 MiB for cuMemCreate");
        assert_eq!(refused(&AccountStatus::default()), None);
    }

    #[test]
    fn who_holds_more_than_a_lowered_limit_is_told_of() {
        let line = held(Some(1 << 30), &account());
        assert!(line.ends_with("; 2 GiB more than its limit: it gets no more until it is below"), "{line}");
        assert_eq!(over(None, &account()), None);
        assert_eq!(over(Some(3 << 30), &account()), None);
    }
}
