//! `deepres doctor --driver FILE`: checks a driver's libcuda.so without a GPU. The checks read the
//! file and load nothing.

use super::Check;
use anyhow::{Context, Result};
use deepres_abi::driver::{self, ApiId, NEEDED};
use deepres_abi::forwarded;
use object::elf::{DT_SONAME, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
use object::read::elf::ElfFile64;
use object::{
    Architecture, Endianness, Object, ObjectSymbol, ReadCache, ReadRef, RelocationFlags, RelocationTarget,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

/// The beginning of the sonames by which the interposer knows a driver.
const SONAME_START: &str = "libcuda.so";
/// Most functions that a check names.
const MOST_NAMES: usize = 8;

/// The parts of a driver's file on which the interposer depends.
#[derive(Debug, Default)]
struct Driver {
    is_for_this_machine: bool,
    soname: String,
    /// The exported functions of the driver API.
    exports: BTreeSet<String>,
    /// The exports that the file itself calls or reads by the dynamic linker.
    own_calls: BTreeSet<String>,
}

/// Returns the checks of the driver in `file`.
///
/// # Errors
/// Nobody can read the file, or it is no ELF file for a 64-bit machine.
pub fn checks(file: &Path) -> Result<Vec<Check>> {
    let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let driver = Driver::read(&ReadCache::new(open))
        .with_context(|| format!("{} is no library of a 64-bit machine", file.display()))?;
    Ok(vec![driver.file(), driver.functions(), driver.variants(), driver.new_functions(), driver.calls()])
}

impl Driver {
    fn read<'data>(data: impl ReadRef<'data>) -> object::Result<Self> {
        let file = ElfFile64::<Endianness, _>::parse(data)?;
        let dynamic = file.elf_dynamic_table()?;
        let soname = dynamic.iter().find(|entry| entry.tag == DT_SONAME);
        let soname = soname.map(|entry| dynamic.string(entry)).transpose()?.unwrap_or_default();
        let mut by_index = BTreeMap::new();
        for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
            let name = symbol.name()?;
            if is_of_api(name) {
                by_index.insert(symbol.index().0, name.to_owned());
            }
        }
        let called = |target| match target {
            RelocationTarget::Symbol(index) => by_index.get(&index.0).cloned(),
            _ => None,
        };
        let own_calls = file.dynamic_relocations().into_iter().flatten().filter_map(|(_, relocation)| {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
            let is_binding = matches!(r_type, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT);
            is_binding.then(|| called(relocation.target())).flatten()
        });
        Ok(Self {
            is_for_this_machine: file.architecture() == Architecture::X86_64,
            soname: String::from_utf8_lossy(soname).into_owned(),
            own_calls: own_calls.collect(),
            exports: by_index.into_values().collect(),
        })
    }

    fn file(&self) -> Check {
        let of_driver = "give the libcuda.so.1 of NVIDIA's driver for 64-bit x86";
        if !self.is_for_this_machine {
            return Check::bad("file", "the file is not for 64-bit x86", of_driver);
        }
        if !self.soname.starts_with(SONAME_START) {
            let found = format!("its soname is `{}`, so the interposer takes it for no driver", self.soname);
            return Check::bad("file", found, of_driver);
        }
        Check::good(
            "file",
            format!("{} with {} functions of the driver API", self.soname, self.exports.len()),
        )
    }

    fn has(&self, id: ApiId) -> bool {
        self.exports.contains(id.symbol())
    }

    fn functions(&self) -> Check {
        let lacking = NEEDED.iter().filter(|variants| !variants.iter().any(|id| self.has(*id)));
        let lacking: Vec<&str> = lacking.filter_map(|variants| Some(variants.first()?.symbol())).collect();
        if lacking.is_empty() {
            return Check::good("functions", "all that the interposer needs");
        }
        Check::bad(
            "functions",
            format!("the driver lacks {}: a job with limits may not use the GPU", named(&lacking)),
            "install a driver of release 470 or newer",
        )
    }

    /// Checks for variants that the table does not have, of functions with hooks.
    fn variants(&self) -> Check {
        let has_hook =
            |name: &str| driver::variants(family(name).as_bytes()).any(|id| forwarded::reason(id).is_none());
        let unknown: Vec<&str> = self.unknown().filter(|name| has_hook(name)).collect();
        if unknown.is_empty() {
            return Check::good("variants", "deepres knows all variants of the functions with hooks");
        }
        Check::limited(
            "variants",
            format!(
                "the driver exports {}, which this deepres does not know: programs that call them bypass deepres",
                named(&unknown)
            ),
            "install a newer deepres",
        )
    }

    /// Checks for functions of which the table has no variant.
    fn new_functions(&self) -> Check {
        let is_new = |name: &&str| !driver::is_family(family(name).as_bytes());
        let unknown: Vec<&str> = self.unknown().filter(is_new).collect();
        if unknown.is_empty() {
            return Check::good("new functions", "none");
        }
        Check::advice(
            "new functions",
            format!("the driver exports {}, which this deepres does not know", named(&unknown)),
            "if they launch or allocate, install a newer deepres: `deepres ps --coverage` counts their look-ups",
        )
    }

    fn unknown(&self) -> impl Iterator<Item = &str> {
        let names = self.exports.iter().map(String::as_str);
        names.filter(|name| driver::by_symbol(name.as_bytes()).is_none())
    }

    fn calls(&self) -> Check {
        if self.own_calls.is_empty() {
            return Check::good("own calls", "the driver binds its calls of its own functions to itself");
        }
        let own: Vec<&str> = self.own_calls.iter().map(String::as_str).collect();
        Check::advice(
            "own calls",
            format!(
                "the dynamic linker binds the driver's calls of {} to the hooks, which pass the calls of a hook on",
                named(&own)
            ),
            "if a program hangs with deepres and not without, report this line",
        )
    }
}

/// Returns whether the name is one of the driver API: `cu` and a capital letter.
fn is_of_api(name: &str) -> bool {
    name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
}

/// Returns the name of a variant's family: the name without version and default stream.
fn family(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((family, version)) if version.parse::<u32>().is_ok() => family,
        _ => name,
    }
}

/// Returns the first names as a text, and the number of the others.
fn named(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn driver(exports: &[&str], own_calls: &[&str]) -> Driver {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Driver {
            is_for_this_machine: true,
            soname: "libcuda.so.1".to_owned(),
            exports: names(exports),
            own_calls: names(own_calls),
        }
    }

    #[test]
    fn a_function_is_there_if_the_driver_exports_one_of_its_variants() {
        let oldest: Vec<&str> = NEEDED.iter().map(|variants| variants[0].symbol()).collect();
        let newest: Vec<&str> = NEEDED.iter().map(|variants| variants[variants.len() - 1].symbol()).collect();
        assert_ne!(oldest, newest);
        for exports in [&oldest, &newest] {
            assert_eq!(driver(exports, &[]).functions().verdict, Verdict::Good);
        }
        let check = driver(&oldest[1..], &[]).functions();
        assert_eq!(check.verdict, Verdict::Bad);
        assert!(check.found.contains(oldest[0]), "{}", check.found);
    }

    #[test]
    fn a_variant_that_is_not_in_the_table_is_named_if_its_function_has_a_hook() {
        let known = driver(&["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuCtxGetId"], &[]);
        assert_eq!([known.variants(), known.new_functions()].map(|check| check.verdict), [Verdict::Good; 2]);
        let newer = driver(&["cuLaunchKernel_v9_ptsz", "cuCtxGetId_v9", "cuLaunchByMagic"], &[]);
        let (variants, functions) = (newer.variants(), newer.new_functions());
        assert_eq!((variants.verdict, functions.verdict), (Verdict::Limited, Verdict::Note));
        assert!(variants.found.contains("exports cuLaunchKernel_v9_ptsz, which"), "{}", variants.found);
        assert!(functions.found.contains("exports cuLaunchByMagic, which"), "{}", functions.found);
    }

    #[test]
    fn the_calls_of_a_driver_to_its_own_exports_are_named() {
        assert_eq!(driver(&[], &[]).calls().verdict, Verdict::Good);
        let check = driver(&[], &["cuEventCreate"]).calls();
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.found.contains("calls of cuEventCreate to"), "{}", check.found);
    }

    #[test]
    fn a_file_that_is_no_driver_is_told() {
        let own = checks(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(own[0].verdict, Verdict::Bad);
        assert!(checks(Path::new("/dev/null")).is_err());
    }
}
