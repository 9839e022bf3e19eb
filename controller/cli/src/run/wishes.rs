//! What a job asks for, on the command line and in its environment.

use clap::builder::BoolishValueParser;
use deepres_model::authority::Wish;
use deepres_model::quantity::{Percent, parse_bytes, parse_share, parse_time};
use deepres_policy::class::Class;
use deepres_policy::priority::Criticality;

/// The share its tenant asks for.
const SHARE_VARIABLE: &str = "DEEPRES_SHARE";
/// The memory its tenant asks for.
const MEMORY_VARIABLE: &str = "DEEPRES_MEMORY";
/// The class its tenant asks for.
const CLASS_VARIABLE: &str = "DEEPRES_CLASS";
/// How critical it says it is.
const CRITICALITY_VARIABLE: &str = "DEEPRES_CRITICALITY";
/// When it has to be done.
const DEADLINE_VARIABLE: &str = "DEEPRES_DEADLINE";
/// GPU time that it takes.
const SIZE_VARIABLE: &str = "DEEPRES_SIZE";
/// How soon its requests are to be answered.
const SLO_VARIABLE: &str = "DEEPRES_SLO";

/// Whether what of its memory it does not use may be others'.
const FOLLOW_USE_VARIABLE: &str = "DEEPRES_MEMORY_FOLLOW_USE";
/// Whether the time of its copies is charged.
const CHARGE_COPIES_VARIABLE: &str = "DEEPRES_CHARGE_COPIES";

/// All of them.
pub const VARIABLES: [&str; 9] = [
    SHARE_VARIABLE,
    MEMORY_VARIABLE,
    CLASS_VARIABLE,
    CRITICALITY_VARIABLE,
    DEADLINE_VARIABLE,
    SIZE_VARIABLE,
    SLO_VARIABLE,
    FOLLOW_USE_VARIABLE,
    CHARGE_COPIES_VARIABLE,
];

/// The options of `deepres run` that say so.
#[derive(Debug, clap::Args)]
// As a group it would have the name of the options around it.
#[group(skip)]
pub struct Args {
    /// Share of the GPU: 1% to 100%, decimals allowed
    #[arg(long, env = SHARE_VARIABLE, value_parser = parse_share)]
    share: Option<u32>,
    /// Limit of device memory on each GPU, for example 8GiB or 512MiB
    #[arg(long, env = MEMORY_VARIABLE, value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Kind of promise: guaranteed (its share whatever others do), fair, or best-effort (what others leave)
    #[arg(long, env = CLASS_VARIABLE)]
    class: Option<Class>,
    /// How critical the job is: low, normal, high, critical, or a number from 0 to 1
    #[arg(long, alias = "priority", env = CRITICALITY_VARIABLE)]
    criticality: Option<Criticality>,
    /// The job has to be done within this time from its start, for example 2h
    #[arg(long, env = DEADLINE_VARIABLE, value_parser = parse_time)]
    deadline: Option<u64>,
    /// GPU time that the whole job takes, for example 40min
    #[arg(long, env = SIZE_VARIABLE, value_parser = parse_time)]
    size: Option<u64>,
    /// Requests are to be answered within this time, for example 30ms
    #[arg(long, env = SLO_VARIABLE, value_parser = parse_time)]
    slo: Option<u64>,
    /// Let others have what of its memory it does not use, but for a margin
    #[arg(long, env = FOLLOW_USE_VARIABLE, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    memory_follow_use: Option<bool>,
    /// Charge the time of its copies too, not of its kernels alone
    #[arg(long, env = CHARGE_COPIES_VARIABLE, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    charge_copies: Option<bool>,
}

impl Args {
    /// What is asked for.
    pub fn wish(&self) -> Wish {
        Wish {
            share_ppm: self.share,
            memory_bytes: self.memory,
            class: self.class,
            criticality: self.criticality,
            deadline_ns: self.deadline,
            size_ns: self.size,
            slo_ns: self.slo,
            memory_follows_use: self.memory_follow_use,
            charge_copies: self.charge_copies,
        }
    }
}

/// The same for the environment of the job's processes.
pub fn variables(wish: &Wish) -> impl Iterator<Item = (&'static str, String)> {
    [
        (SHARE_VARIABLE, wish.share_ppm.map(|ppm| Percent(ppm).to_string())),
        (MEMORY_VARIABLE, wish.memory_bytes.map(|bytes| bytes.to_string())),
        (CLASS_VARIABLE, wish.class.map(|class| class.to_string())),
        (CRITICALITY_VARIABLE, wish.criticality.map(|criticality| criticality.to_string())),
        (DEADLINE_VARIABLE, wish.deadline_ns.map(exact)),
        (SIZE_VARIABLE, wish.size_ns.map(exact)),
        (SLO_VARIABLE, wish.slo_ns.map(exact)),
        (FOLLOW_USE_VARIABLE, wish.memory_follows_use.map(|follows| follows.to_string())),
        (CHARGE_COPIES_VARIABLE, wish.charge_copies.map(|charge| charge.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

/// A time to the nanosecond.
fn exact(ns: u64) -> String {
    const NS_PER_US: u64 = 1_000;
    format!("{}.{:03}us", ns / NS_PER_US, ns % NS_PER_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_reaches_the_job_as_it_was_given() {
        for ns in [1, 1_500, 30_000_000, 7_200_000_000_123] {
            assert_eq!(parse_time(&exact(ns)), Ok(ns));
        }
    }
}
