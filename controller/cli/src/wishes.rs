//! The options for wishes, for each command that takes them: one option for each wish that
//! `deepres_abi::wish` declares.

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use deepres_abi::class::Class;
use deepres_abi::label::Labels;
use deepres_model::quantity::parse_limit;
use deepres_model::wish::{Key, Kind, Value, Wish, about, parse};
use std::marker::PhantomData;

/// The occasion on which a command takes wishes.
pub trait Occasion {
    /// Whether an environment variable replaces an option that the user does not give.
    const HAS_VARIABLES: bool = false;
    /// Whether a part of the SMs may be `auto`: the command has a profile.
    const HAS_PROFILE: bool = false;
    /// Whether the tenant already runs. The command then needs at least one wish, and may remove
    /// the memory limit.
    const IS_LATER: bool = false;
}

/// The occasion of `deepres run`: a job starts in this process.
#[derive(Debug)]
pub struct Now;

impl Occasion for Now {
    const HAS_VARIABLES: bool = true;
    const HAS_PROFILE: bool = true;
}

/// The occasion of `deepres cdi generate`: a job will start in another process.
#[derive(Debug)]
pub struct Elsewhere;

impl Occasion for Elsewhere {}

/// The occasion of `deepres set`: the tenant already runs.
#[derive(Debug)]
pub struct Later;

impl Occasion for Later {
    const IS_LATER: bool = true;
}

/// The word for a part of the SMs that follows from a profile.
const AUTO: &str = "auto";
/// The value that stands for [`AUTO`] among the values of clap. No job can ask for it.
const AUTO_VALUE: Value = Value::Share(0);

/// The wishes that the options of a command line state.
#[derive(Debug)]
pub struct Wishes<O> {
    /// The wishes.
    pub wish: Wish,
    /// Whether the part of the SMs is to follow from a profile. The wishes then have no part.
    pub has_auto_sm: bool,
    occasion: PhantomData<O>,
}

impl<O: Occasion> clap::Args for Wishes<O> {
    fn augment_args(command: Command) -> Command {
        let command = command.args(Key::ALL.map(option::<O>));
        if !O::IS_LATER {
            return command;
        }
        let any = clap::ArgGroup::new("wishes").args(Key::ALL.map(Key::option));
        command.group(any.required(true).multiple(true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<O: Occasion> clap::FromArgMatches for Wishes<O> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut wish = Wish::default();
        for key in Key::ALL {
            let refused = |message: String| clap::Error::raw(ErrorKind::ValueValidation, message);
            match key.kind() {
                Kind::Switch => {
                    let is_on = matches.get_one::<bool>(key.option());
                    is_on.into_iter().for_each(|is_on| wish.set(key, Value::Switch(*is_on)));
                }
                Kind::Labels => {
                    let given = matches.get_many::<Value>(key.option()).into_iter().flatten();
                    let labels = given.filter_map(|value| match value {
                        Value::Labels(labels) => Some(labels),
                        _ => None,
                    });
                    let labels = labels.map(Labels::as_str).collect::<Vec<_>>().join(",");
                    if !labels.is_empty() {
                        let labels = parse(Kind::Labels, &labels);
                        wish.set(key, labels.map_err(|error| refused(error.to_string()))?);
                    }
                }
                _ => {
                    let value = matches.get_one::<Value>(key.option());
                    value.into_iter().for_each(|value| wish.set(key, *value));
                }
            }
        }
        let has_auto_sm = wish.get(Key::Sm) == Some(AUTO_VALUE);
        if has_auto_sm {
            wish.remove(Key::Sm);
        }
        Ok(Self { wish, has_auto_sm, occasion: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let before = self.wish;
        *self = Self::from_arg_matches(matches)?;
        self.wish = self.wish.or(before);
        Ok(())
    }
}

/// Returns the values of a kind that are words, for the completions of a shell.
fn words(kind: Kind) -> Vec<&'static str> {
    match kind {
        Kind::Class => Class::ALL.map(Class::name).to_vec(),
        Kind::Criticality => vec!["low", "normal", "high", "critical"],
        _ => Vec::new(),
    }
}

/// Returns the option for a wish.
fn option<O: Occasion>(key: Key) -> Arg {
    let about = about(key);
    let mut option = Arg::new(key.option())
        .long(key.option())
        .help(match key {
            Key::Sm if O::HAS_PROFILE => format!("{}, or auto (from --profile)", about.help),
            _ if O::IS_LATER => about.help_later.to_owned(),
            _ => about.help.to_owned(),
        })
        .value_name(match key.kind() {
            Kind::Share if key == Key::Sm => "PART",
            Kind::Share => "SHARE",
            Kind::Bytes => "SIZE",
            Kind::Time => "TIME",
            Kind::Class => "CLASS",
            Kind::Criticality => "LEVEL",
            Kind::Switch => "true|false",
            Kind::Labels => "KEY=VALUE",
        });
    if key == Key::Criticality {
        option = option.alias("priority");
    }
    if O::HAS_VARIABLES {
        option = option.env(key.variable());
    }
    let words = words(key.kind());
    if !words.is_empty() {
        let offered = move || words.iter().map(CompletionCandidate::new).collect::<Vec<_>>();
        option = option.add(ArgValueCandidates::new(offered));
    }
    match key.kind() {
        Kind::Switch => option
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .hide_possible_values(true)
            .value_parser(BoolishValueParser::new()),
        Kind::Labels => option.action(ArgAction::Append).value_parser(|text: &str| parse(Kind::Labels, text)),
        Kind::Share if key == Key::Sm && O::HAS_PROFILE => option.value_parser(|text: &str| match text {
            AUTO => Ok(AUTO_VALUE),
            text => parse(Kind::Share, text),
        }),
        Kind::Bytes if O::IS_LATER => option.value_parser(|text: &str| parse_limit(text).map(Value::Bytes)),
        kind => option.value_parser(move |text: &str| parse(kind, text)),
    }
}

/// Returns the wishes as environment variables for a job's processes.
pub fn variables(wish: &Wish) -> impl Iterator<Item = (&'static str, String)> {
    wish.iter().map(|(key, value)| (key.variable(), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};

    fn read<O: Occasion>(arguments: &[&str]) -> Result<Wish, clap::Error> {
        let command = Wishes::<O>::augment_args(Command::new("deepres").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments)?;
        Ok(Wishes::<O>::from_arg_matches(&matches)?.wish)
    }

    #[test]
    fn each_wish_has_an_option() {
        let arguments = [
            "--share=30%",
            "--memory=8GiB",
            "--class=fair",
            "--priority=high",
            "--deadline=2h",
            "--size=40min",
            "--slo=30ms",
            "--memory-follow-use",
            "--charge-copies=false",
            "--label=team=vision",
            "--label=cost=4711,x=y",
            "--sm=40%",
        ];
        let wish = read::<Elsewhere>(&arguments).unwrap();
        assert!(Key::ALL.into_iter().all(|key| wish.get(key).is_some()), "{wish:?}");
        assert_eq!((wish.share_ppm, wish.charge_copies), (Some(300_000), Some(false)));
        assert_eq!(wish.labels.unwrap().as_str(), "team=vision,cost=4711,x=y");
    }

    #[test]
    fn a_running_tenant_needs_a_wish_and_may_have_its_limit_lifted() {
        assert!(read::<Later>(&[]).is_err());
        assert!(read::<Elsewhere>(&[]).is_ok());
        assert!(read::<Later>(&["--memory=unlimited"]).is_ok());
        assert!(read::<Elsewhere>(&["--memory=unlimited"]).is_err());
    }

    #[test]
    fn only_a_job_that_starts_may_leave_its_part_of_the_sms_to_its_profile() {
        let command = Wishes::<Now>::augment_args(Command::new("deepres").no_binary_name(true));
        let matches = command.try_get_matches_from(["--sm=auto", "--share=30%"]).unwrap();
        let Wishes { wish, has_auto_sm, .. } = Wishes::<Now>::from_arg_matches(&matches).unwrap();
        assert_eq!((wish.sm_ppm, wish.share_ppm, has_auto_sm), (None, Some(300_000), true));
        assert!(read::<Later>(&["--sm=auto"]).is_err() && read::<Elsewhere>(&["--sm=auto"]).is_err());
    }

    #[test]
    fn each_word_that_a_shell_offers_is_a_value() {
        for kind in Key::ALL.map(Key::kind) {
            assert!(words(kind).into_iter().all(|word| parse(kind, word).is_ok()), "{kind:?}");
        }
        assert_eq!((words(Kind::Class).len(), words(Kind::Criticality).len()), (3, 4));
    }

    #[test]
    fn two_labels_of_one_key_are_refused() {
        let error = read::<Elsewhere>(&["--label=a=1", "--label=a=2"]).unwrap_err();
        assert!(error.to_string().contains("same key"), "{error}");
    }
}
