//! The part of `deepres ps` about the requests of tenants with an SLO: latencies, goodput, and the
//! delays of late requests.

use super::{Shown, cells, heads, print_cut, time};
use deepres_model::admin::{
    AccountStatus, LateStatus, OperatingPointStatus, RequestStatus, Status, TenantStatus,
};
use deepres_model::quantity::Percent;
use std::io::{self, Write};

const FIELDS: [&str; 6] = ["slo_ns", "ended", "p50_ns", "p99_ns", "attained_ppm", "goodput_per_second"];
/// The place of the goodput in [`FIELDS`].
const GOODPUT: usize = 5;

/// Prints a table of the tenants with an SLO, and the delays of their late requests.
pub fn print(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    let accounts = status.tenants.iter().flat_map(|tenant| tenant.gpus.iter().map(move |gpu| (tenant, gpu)));
    let served: Vec<_> = accounts
        .filter_map(|(tenant, account)| Some((tenant, account, account.requests.as_ref()?)))
        .collect();
    if served.is_empty() {
        return Ok(());
    }
    let heads =
        [heads::<TenantStatus>(&["name"]), heads::<AccountStatus>(&["gpu"]), heads::<RequestStatus>(&FIELDS)];
    let row = |(tenant, account, requests): &(&TenantStatus, &AccountStatus, &RequestStatus)| {
        let mut figures = cells(*requests, &FIELDS);
        figures[GOODPUT] += "/s";
        [cells(*tenant, &["name"]), cells(*account, &["gpu"]), figures].concat()
    };
    writeln!(out)?;
    let rows = std::iter::once(heads.concat()).chain(served.iter().map(row)).collect();
    print_cut(rows, &[0], shown, out)?;
    for (tenant, account, requests) in served {
        if let Some(late) = &requests.late {
            writeln!(out, "{} on gpu {}: {}", tenant.name, account.gpu, delays(late))?;
        }
    }
    Ok(())
}

/// Returns the figures of requests in words.
pub fn figures(requests: &RequestStatus) -> String {
    let mut figures = cells(requests, &FIELDS).into_iter();
    let mut next = || figures.next().unwrap_or_default();
    let (slo, ended, p50, p99, attained, goodput) = (next(), next(), next(), next(), next(), next());
    if requests.ended == 0 {
        return format!("no request yet; SLO {slo}");
    }
    format!(
        "{ended} requests, {attained} of the latest within {slo}: median {p50}, 99 % within {p99}; {goodput}/s in time"
    )
}

/// Returns the delays of late requests in words.
pub fn delays(late: &LateStatus) -> String {
    let mut rivals: Vec<_> = late.waited_for_ns.iter().collect();
    rivals.sort_by_key(|(_, waited_ns)| std::cmp::Reverse(**waited_ns));
    let rivals: Vec<String> =
        rivals.into_iter().map(|(name, waited_ns)| format!("{name} {}", time(*waited_ns))).collect();
    let rivals = if rivals.is_empty() { String::new() } else { format!(" ({})", rivals.join(", ")) };
    format!(
        "late requests take {}: wait for other tenants {}{rivals}, own GPU time {}, the rest {}",
        time(late.latency_ns),
        time(late.waited_ns),
        time(late.worked_ns),
        time(late.rest_ns)
    )
}

/// Returns an operating point in words.
pub fn point(point: &OperatingPointStatus, slo_ns: u64) -> String {
    let OperatingPointStatus { sm_ppm, batch, run_ns, is_in_time, rate_per_second, need_ppm } = *point;
    let (does, part) = (if is_in_time { "answers" } else { "does not answer" }, Percent(sm_ppm));
    format!(
        "{part} of the SMs and batch {batch} by its profile: a run takes {}, which {does} {rate_per_second:.1} requests/s within {}; the points of all tenants need {} of the GPU's time (advice: the program chooses its batch, and a new part needs a new start)",
        time(run_ns),
        time(slo_ns),
        Percent(need_ppm)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::order::Order;
    use crate::top::tests::status;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_table_has_the_tenants_with_an_slo_and_the_reasons_of_late_requests() {
        let mut status = status();
        let mut out = Vec::new();
        let shown = Shown { is_verbose: false, is_wide: false, order: Order::Tenant };
        print(&status, shown, &mut out).unwrap();
        assert!(out.is_empty(), "no tenant has an SLO");
        status.tenants[0].gpus[0].requests = Some(RequestStatus {
            slo_ns: 50 * MS,
            ended: 1_234,
            p50_ns: Some(8 * MS),
            p99_ns: Some(61 * MS),
            attained_ppm: Some(972_000),
            goodput_per_second: 31.25,
            late: Some(LateStatus {
                latency_ns: 70 * MS,
                waited_ns: 51 * MS,
                waited_for_ns: [("nightly", 11 * MS), ("train", 40 * MS)]
                    .map(|(name, ns)| (name.to_owned(), ns))
                    .into(),
                worked_ns: 12 * MS,
                rest_ns: 7 * MS,
            }),
            ..RequestStatus::default()
        });
        print(&status, shown, &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        assert!(page.lines().take(3).all(|line| line.len() <= super::super::COLUMNS), "{page}");
        let row = page.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "finetune 0 50 ms 1234 8.00 ms 61 ms 97.2% 31.25/s");
        assert!(
            page.contains("wait for other tenants 51 ms (train 40 ms, nightly 11 ms), own GPU"),
            "{page}"
        );
    }
}
