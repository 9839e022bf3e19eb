//! The parts of the status that the page shows. Each figure has the name that the status declares.

use deepres_model::admin::{AccountStatus, GpuStatus, SessionStatus, Status, TenantStatus, UnmanagedStatus};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// The most processes of a tenant that the page lists.
const MOST_PROCESSES: usize = 5;
/// The most unmanaged processes that the page lists.
const MOST_UNMANAGED: usize = 20;

/// Declares the figures of a struct of the status. A figure is a field of the struct, or the result
/// of a function of the struct.
macro_rules! figures {
    ($($name:ident of $of:ty { $($field:ident $(: |$one:ident| $value:expr)?),+ $(,)? })+) => {$(
        struct $name<'a>(&'a $of);

        impl Serialize for $name<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                $(map.serialize_entry(
                    stringify!($field),
                    &figures!(@ self.0, $field $(, |$one| $value)?),
                )?;)+
                map.end()
            }
        }
    )+};
    (@ $of:expr, $field:ident) => { $of.$field };
    (@ $of:expr, $field:ident, |$one:ident| $value:expr) => {{
        let $one = $of;
        $value
    }};
}

figures! {
    All of Status {
        now_ns,
        version: |status| &status.daemon.version,
        gpus: |status| status.gpus.iter().map(Gpu).collect::<Vec<_>>(),
        tenants: |status| status.tenants.iter().map(Tenant).collect::<Vec<_>>(),
        waiting: |status| status.waiting.len(),
        unmanaged: |status| status.unmanaged.iter().take(MOST_UNMANAGED).map(Unmanaged).collect::<Vec<_>>(),
        unmanaged_count: |status| status.unmanaged.len(),
    }
    Gpu of GpuStatus {
        index,
        name,
        memory_bytes,
        held_bytes,
        recent_share_ppm,
        phase,
        holder,
        fault,
        handoffs,
        handoff_p99_ns,
    }
    Tenant of TenantStatus {
        name,
        uid,
        class,
        paused,
        suspended,
        asked_share_ppm,
        memory_limit_bytes,
        sessions: |tenant| tenant.sessions.len(),
        processes: |tenant| tenant.sessions.iter().take(MOST_PROCESSES).map(Process).collect::<Vec<_>>(),
        gpus: |tenant| tenant.gpus.iter().map(Account).collect::<Vec<_>>(),
    }
    Account of AccountStatus {
        gpu,
        entitled_ppm,
        is_lent,
        recent_share_ppm,
        gpu_ns,
        wait_ns,
        memory_bytes,
        memory_by_kind,
        refusals,
        gate,
        requests,
    }
    Process of SessionStatus { pid, client }
    Unmanaged of UnmanagedStatus { pid, uid, command, state }
}

/// Returns the figures of a status.
pub fn of(status: &Status) -> impl Serialize {
    All(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::{Declared, RequestStatus};
    use serde_json::Value;

    const SCRIPT: &str = include_str!("page.js");
    const PAGE: &str = include_str!("page.html");

    /// Returns the names of an object's figures.
    fn names(figures: &Value) -> Vec<&str> {
        figures.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn the_columns_of_tenants_have_the_heads_of_deepres_ps() {
        let of_account = AccountStatus::head;
        let p99_and_slo = [RequestStatus::head("p99_ns"), RequestStatus::head("slo_ns")].join(" / ");
        // The page has waits of one second, and `deepres ps` all waits.
        let waiting = "Waiting";
        let columns = [
            ("name", TenantStatus::head("name")),
            ("gpu", of_account("gpu")),
            ("owed", of_account("entitled_ppm")),
            ("share", of_account("recent_share_ppm")),
            ("used", of_account("gpu_ns")),
            ("wait", waiting),
            ("memory", of_account("memory_bytes")),
            ("p99", p99_and_slo.as_str()),
            ("gate", of_account("gate")),
        ];
        let lines = PAGE.lines().filter(|line| line.contains("data-by"));
        let expected = columns.map(|(column, head)| {
            format!("<th scope=\"col\" data-by=\"{column}\"><button>{head}</button></th>").to_lowercase()
        });
        assert_eq!(lines.map(str::to_lowercase).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_page_uses_each_figure_that_it_gets() {
        let session = SessionStatus {
            id: 1,
            pid: 7,
            container: None,
            client: "python".to_owned(),
            gpus: Vec::new(),
            lost_ways: 0,
        };
        let tenant = TenantStatus {
            gpus: vec![AccountStatus::default()],
            sessions: vec![session; MOST_PROCESSES + 1],
            ..TenantStatus::default()
        };
        let status = Status {
            gpus: vec![GpuStatus::default()],
            tenants: vec![tenant],
            unmanaged: vec![UnmanagedStatus::default(); MOST_UNMANAGED + 1],
            ..Status::default()
        };
        let told = serde_json::to_value(of(&status)).unwrap();
        let (gpu, tenant) = (&told["gpus"][0], &told["tenants"][0]);
        assert_eq!(tenant["processes"].as_array().map(Vec::len), Some(MOST_PROCESSES));
        assert_eq!(
            (told["unmanaged"].as_array().map(Vec::len), &told["unmanaged_count"]),
            (Some(MOST_UNMANAGED), &(MOST_UNMANAGED + 1).into())
        );
        let objects =
            [&told, gpu, tenant, &tenant["gpus"][0], &tenant["processes"][0], &told["unmanaged"][0]];
        for name in objects.into_iter().flat_map(names) {
            let is_field = SCRIPT
                .split(&format!(".{name}"))
                .skip(1)
                .any(|after| !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
            let is_used = is_field || SCRIPT.contains(&format!("\"{name}\""));
            assert!(is_used, "the page does not use `{name}`");
        }
        assert!(names(gpu).iter().all(|name| GpuStatus::FIELDS.iter().any(|field| field.name == *name)));
    }
}
