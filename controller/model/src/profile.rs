//! The file of a profile (TOML), with the measurements of `deepres profile`. The evaluation of
//! packing reads the same file, and its scenarios have the same points.

use deepres_policy::packing::profile::{Measured, Unfit};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The text in the command that stands for the batch.
pub const BATCH: &str = "{batch}";
/// Nanoseconds in a millisecond.
const NS_PER_MS: f64 = 1e6;

/// The first line of each file that deepres writes.
const HEAD: &str =
    "# The GPU time of a program by part of the SMs and batch: `deepres profile`, docs/packing.md\n";

/// The reason for which a file is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The text does not have this form.
    #[error("this is no profile: {0}")]
    Form(String),
    /// A figure of the file is out of range.
    #[error(transparent)]
    Unfit(Unfit),
    /// A time or a rate in the file is not positive.
    #[error("`{0}` is {1}; give a number above zero")]
    Figure(&'static str, f64),
    /// Two points of the profile have the same batch and the same part.
    #[error("two points have batch {0} and {1} % of the SMs; remove one")]
    Twice(u32, usize),
}

/// The file of a profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The command. `{batch}` stands in the place of the batch.
    #[serde(default)]
    pub command: Vec<String>,
    /// The name of the GPU.
    #[serde(default)]
    pub gpu: String,
    /// The time within which the program's requests are to be answered, ms.
    pub slo_ms: Option<f64>,
    /// Requests a second. `deepres profile` does not measure it; the evaluation takes it.
    pub rate_hz: Option<f64>,
    /// The measurements.
    #[serde(default)]
    pub points: Vec<Point>,
}

/// The time of a run by its batch and its part of the SMs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Requests in one run.
    pub batch: u32,
    /// The part of the SMs, percent.
    pub part_percent: usize,
    /// The GPU time of a run, ms.
    pub ms: f64,
    /// The time from the first launch of a run to the end of its last work, ms. This time contains
    /// the host's work between the launches.
    pub latency_ms: Option<f64>,
    /// Number of runs that were measured. deepres sees each run as a request.
    pub requests: Option<u64>,
}

impl Point {
    /// Returns the time of the host in a run, ms, as far as the GPU has no work meanwhile.
    pub fn host_ms(&self) -> f64 {
        self.latency_ms.map_or(0.0, |latency_ms| (latency_ms - self.ms).max(0.0))
    }
}

impl Profile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// [`ProfileError`], but not [`ProfileError::Io`].
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let profile: Self =
            toml::from_str(text).map_err(|error| ProfileError::Form(error.to_string().trim().to_owned()))?;
        if let Some(position) = profile.measured().iter().position(|one| !one.is_usable()) {
            return Err(ProfileError::Unfit(Unfit::OutOfRange(position)));
        }
        let latencies = profile.points.iter().map(|point| ("latency_ms", point.latency_ms));
        let figures = [("slo_ms", profile.slo_ms), ("rate_hz", profile.rate_hz)].into_iter().chain(latencies);
        for (name, figure) in figures.filter_map(|(name, figure)| Some((name, figure?))) {
            if !figure.is_finite() || figure <= 0.0 {
                return Err(ProfileError::Figure(name, figure));
            }
        }
        for (index, Point { batch, part_percent, .. }) in profile.points.iter().enumerate() {
            let before = &profile.points[..index];
            if before.iter().any(|other| (other.batch, other.part_percent) == (*batch, *part_percent)) {
                return Err(ProfileError::Twice(*batch, *part_percent));
            }
        }
        Ok(profile)
    }

    /// Returns the text from which [`Self::parse`] reads this profile.
    ///
    /// # Errors
    /// [`ProfileError::Form`].
    pub fn text(&self) -> Result<String, ProfileError> {
        let text = toml::to_string(self).map_err(|error| ProfileError::Form(error.to_string()))?;
        Ok(format!("{HEAD}{text}"))
    }

    /// Returns the measurements in the form of the policy.
    pub fn measured(&self) -> Vec<Measured> {
        let measured = |point: &Point| Measured {
            batch: point.batch,
            part_percent: point.part_percent,
            time_ns: point.ms * NS_PER_MS,
        };
        self.points.iter().map(measured).collect()
    }

    /// Returns the measurement at this batch and this part, percent.
    pub fn point(&self, batch: u32, part_percent: usize) -> Option<&Point> {
        self.points.iter().find(|point| (point.batch, point.part_percent) == (batch, part_percent))
    }

    /// Returns the measured batches in rising order.
    pub fn batches(&self) -> Vec<u32> {
        rising(self.points.iter().map(|point| point.batch))
    }

    /// Returns the measured parts in rising order, percent.
    pub fn parts_percent(&self) -> Vec<usize> {
        rising(self.points.iter().map(|point| point.part_percent))
    }

    /// Returns the batch that a program runs, if its command is the command of this profile with a
    /// batch in it.
    pub fn batch_of(&self, command: &[String]) -> Option<u32> {
        let batches = self.batches();
        let mut fitting = batches.into_iter().filter(|batch| {
            let written = self.command.iter().map(|word| word.replace(BATCH, &batch.to_string()));
            !self.command.is_empty() && written.eq(command.iter().cloned())
        });
        let first = fitting.next();
        // A command without a batch in it runs any batch.
        first.filter(|_| fitting.next().is_none())
    }

    /// Returns the measurement of this batch on the widest part.
    pub fn widest(&self, batch: u32) -> Option<&Point> {
        self.points.iter().filter(|point| point.batch == batch).max_by_key(|point| point.part_percent)
    }
}

fn rising<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let point = |batch, part_percent, ms| Point {
            batch,
            part_percent,
            ms,
            latency_ms: Some(ms + 0.25),
            requests: Some(100),
        };
        Profile {
            command: ["python", "infer.py", "--batch", "{batch}"].map(str::to_owned).into(),
            gpu: "a \"GPU\"".to_owned(),
            slo_ms: Some(20.0),
            rate_hz: None,
            points: vec![point(8, 100, 6.0), point(1, 100, 1.5), point(1, 20, 4.0)],
        }
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let profile = profile();
        let text = profile.text().unwrap();
        assert!(text.starts_with('#') && text.matches("[[points]]").count() == 3, "{text}");
        assert_eq!(Profile::parse(&text).unwrap(), profile);
        assert_eq!((profile.batches(), profile.parts_percent()), (vec![1, 8], vec![20, 100]));
        assert_eq!(profile.widest(1).unwrap().ms, 1.5);
        assert_eq!(profile.point(1, 20).unwrap().host_ms(), 0.25);
        assert!(profile.point(8, 20).is_none());
        let by_hand = Profile::parse("[[points]]\nbatch = 2\npart_percent = 50\nms = 3\n").unwrap();
        assert_eq!(by_hand.points[0].host_ms(), 0.0);
        assert_eq!(by_hand.measured()[0].time_ns, 3e6);
    }

    #[test]
    fn a_file_that_is_no_profile_is_refused() {
        let point = "[[points]]\nbatch = 1\npart_percent = 50\nms = 3\n";
        for (text, says) in [
            ("points = 3", "this is no profile"),
            ("speed = 3", "unknown field `speed`"),
            ("[[points]]\nbatch = 1\nms = 3\n", "part_percent"),
            (&point.replace("50", "101"), "1 to 100 percent"),
            (&point.replace("= 3", "= 0"), "the time positive"),
            (&format!("{point}latency_ms = inf\n"), "`latency_ms` is inf; give"),
            (&format!("slo_ms = -1\n{point}"), "`slo_ms` is -1; give"),
            (&point.replace("= 1", "= 0"), "the batch is at least 1"),
            (&point.repeat(2), "two points have batch 1 and 50 %"),
        ] {
            let refused = Profile::parse(text).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused:?} does not say {says:?}");
        }
    }
}
