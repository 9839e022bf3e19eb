//! The iterations of models, and the mixes of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use deepres_policy::granularity::Kernel;

use crate::trace::Trace;

/// The six models of the mixes, with the files that Orion published.
pub const SIX: [(&str, &str); 6] = [
    ("R50", "resnet50_4_fwd"),
    ("R101", "resnet101_4_fwd"),
    ("M2", "mobilenetv2_4_fwd"),
    ("TXL", "transformer_xl_4_fwd"),
    ("EFF", "efficientnet_4_fwd_new"),
    ("BERT", "bert_2_fwd"),
];
/// SMs of the V100 on which Orion's files were recorded.
const SMS: f64 = 80.0;
/// The last columns of Orion's files.
const COLUMNS: [&str; 2] = ["SM_usage", "Duration"];

/// A model with the kernels of its iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The name of its file, or the short name of one of the six.
    pub name: String,
    /// One iteration.
    pub kernels: Vec<Kernel>,
}

impl Model {
    /// Returns the model's place among Orion's six models; `None` for any other model.
    fn among_six(&self) -> Option<usize> {
        SIX.iter().position(|(name, _)| *name == self.name)
    }

    /// Returns the kind of the model: models of one kind make pairs.
    fn kind(&self) -> &str {
        self.name.rsplit_once('-').map_or("", |(_, kind)| kind)
    }
}

/// Returns the folders of the models that come with deepres.
pub fn ours() -> [PathBuf; 2] {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    [traces.join("orion"), traces]
}

/// Reads the models in a folder: traces of `deepres run --record` (`*.trace`), and files in Orion's
/// format (`*.csv`). If the process of a trace does not repeat itself, the function leaves the
/// trace out, with a warning.
///
/// # Errors
/// The folder or a file cannot be read, or the folder has no model.
pub fn read(folder: &Path) -> Result<Vec<Model>> {
    let cannot = || format!("cannot read the models in {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(cannot)?;
    let mut files =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>().with_context(cannot)?;
    files.sort();
    let mut models = Vec::new();
    for file in files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let kernels = match file.extension().and_then(OsStr::to_str) {
            Some("trace") => Trace::read(&file)?.iteration(),
            Some("csv") => Some(read_csv(&file).with_context(|| format!("in {}", file.display()))?),
            _ => continue,
        };
        let name = SIX.iter().find(|(_, known)| *known == stem).map_or(stem, |(name, _)| (*name).to_owned());
        match kernels {
            Some(kernels) => models.push(Model { name, kernels }),
            None => eprintln!("warning: {}: the process does not repeat itself: left out", file.display()),
        }
    }
    ensure!(!models.is_empty(), "{} has no model: give a folder of *.trace or *.csv", folder.display());
    models.sort_by_key(|model| (model.among_six().is_none(), model.among_six()));
    Ok(models)
}

/// Reads a file in Orion's format: a kernel on each line, with its name, the SMs that its blocks
/// would fill, and its time, ns.
fn read_csv(file: &Path) -> Result<Vec<Kernel>> {
    parse_csv(&std::fs::read_to_string(file)?)
}

fn parse_csv(text: &str) -> Result<Vec<Kernel>> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    let (_, header) = lines.next().context("it has no header")?;
    if header.rsplit(',').take(2).ne(COLUMNS.into_iter().rev()) {
        bail!("the last columns are not {}: {header}", COLUMNS.join(","));
    }
    let mut keys = BTreeMap::new();
    let kernel = |(number, line): (usize, &str)| {
        let mut fields = line.rsplitn(3, ',');
        let figures = (fields.next().map(str::parse::<u64>), fields.next().map(str::parse::<u64>));
        let (Some(Ok(duration_ns)), Some(Ok(sms))) = figures else {
            bail!("line {}: the SMs and the time are whole numbers: {line}", number + 1);
        };
        let next = keys.len() as u64;
        let key = *keys.entry((fields.next().unwrap_or_default().to_owned(), sms)).or_insert(next);
        // A grid of less than one SM has one all the same.
        let width_percent = 100.0 * (sms.max(1) as f64 / SMS).min(1.0);
        Ok(Kernel { key, duration_ns, width_percent, stream: 0, pause_ns: 0, joins: false })
    };
    lines.map(kernel).collect()
}

/// Returns the mixes of models: all pairs and triples of the six, and all pairs of the others of
/// one kind.
pub fn mixes(models: &[Model]) -> Vec<Vec<&Model>> {
    let (six, others): (Vec<&Model>, Vec<&Model>) =
        models.iter().partition(|model| model.among_six().is_some());
    let pairs = |of: &[&'_ Model]| -> Vec<[usize; 2]> {
        (0..of.len()).flat_map(|one| (one + 1..of.len()).map(move |other| [one, other])).collect()
    };
    let mut mixes: Vec<Vec<&Model>> =
        pairs(&six).into_iter().map(|pair| pair.map(|at| six[at]).to_vec()).collect();
    let triples = pairs(&six).into_iter().flat_map(|[one, other]| {
        let six = &six;
        (other + 1..six.len()).map(move |third| vec![six[one], six[other], six[third]])
    });
    mixes.extend(triples.collect::<Vec<_>>());
    let alike = pairs(&others).into_iter().map(|pair| pair.map(|at| others[at]));
    mixes.extend(alike.filter(|[one, other]| one.kind() == other.kind()).map(|pair| pair.to_vec()));
    mixes
}
