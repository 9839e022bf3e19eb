//! `deepres run --profile`: the profile of the program, and the part of the SMs for `--sm auto`.

use anyhow::{Context, Result, bail};
use deepres_abi::PPM;
use deepres_abi::wire::FittedFields;
use deepres_model::fitted::Fitted;
use deepres_model::profile::Profile;
use deepres_model::wish::Wish;
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use std::ffi::OsString;
use std::path::Path;

/// Returns the profile in the file for the daemon. With `is_auto`, sets the wish for a part of the
/// SMs by the profile, and prints the part.
///
/// # Errors
/// The file is no profile, or a part of the SMs is to follow from a profile and there is none.
pub fn heed(
    file: Option<&Path>,
    is_auto: bool,
    wish: &mut Wish,
    command: &[OsString],
) -> Result<FittedFields> {
    let Some(file) = file else {
        if is_auto {
            bail!(
                "`--sm auto` takes the part of the SMs from a profile, and none was given; measure the program by `deepres profile`, and give the file by --profile FILE"
            );
        }
        return Ok(FittedFields::default());
    };
    let cannot = || format!("cannot use {}", file.display());
    let profile = Profile::read(file).with_context(cannot)?;
    let command: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let fitted = Fitted::of(&profile, &command).with_context(cannot)?;
    let choice = is_auto.then(|| fitted.choice(wish.slo_ns));
    if let Some(choice) = &choice {
        eprintln!("deepres: --sm auto: {choice}");
        wish.sm_ppm = Some((choice.part_percent * PPM as usize / WHOLE_PERCENT) as u32);
    }
    Ok(fitted.fields(choice.as_ref()))
}
