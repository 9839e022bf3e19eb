//! Under `cargo xtask fuzz` the program is libFuzzer on the target that `DEEPRES_FUZZ_TARGET`
//! names. In a usual build it replays inputs.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzing {
    use std::sync::OnceLock;

    use deepres_fuzz::Target;

    static TARGET: OnceLock<Target> = OnceLock::new();

    libfuzzer_sys::fuzz_target!(
        init: {
            let name = std::env::var("DEEPRES_FUZZ_TARGET").expect("DEEPRES_FUZZ_TARGET names the target");
            TARGET.get_or_init(|| deepres_fuzz::target(&name));
        },
        |data: &[u8]| {
            if let Some(target) = TARGET.get() {
                (target.run)(data);
            }
        }
    );
}

/// `deepres-fuzz TARGET FILE…` runs the files through the target, for a debugger.
#[cfg(not(fuzzing))]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let target = deepres_fuzz::target(&arguments.next().expect("usage: deepres-fuzz TARGET FILE…"));
    for file in arguments {
        let data = std::fs::read(&file).unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
        (target.run)(&data);
    }
}
