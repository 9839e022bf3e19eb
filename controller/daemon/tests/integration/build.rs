//! The build script. A build without the eBPF programs succeeds, and says that they are missing.
//! If the environment names the programs and they are missing, the build fails. `probes::kernel`
//! tests the message of a daemon without programs. The tests of the eBPF programs check that they
//! do not accept such a build.

#[expect(dead_code, reason = "cargo runs the rest")]
#[path = "../../build.rs"]
mod script;

use std::path::Path;

#[test]
fn built_programs_are_embedded_and_without_them_nothing_is() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(script::programs(None, folder.path()), Ok(Vec::new()));
    assert_eq!(script::programs(None, &folder.path().join("none")), Ok(Vec::new()));
    std::fs::write(folder.path().join("programs.o"), [7]).unwrap();
    assert_eq!(script::programs(None, folder.path()), Ok(vec![7]));
    let other = folder.path().join("other.o");
    std::fs::write(&other, [8]).unwrap();
    assert_eq!(script::programs(Some(&other), folder.path()), Ok(vec![8]), "the named one goes before");
    std::fs::write(&other, []).unwrap();
    assert_eq!(
        script::programs(Some(&other), folder.path()),
        Ok(Vec::new()),
        "so a build without them is asked for"
    );
}

#[test]
fn a_named_file_that_is_not_there_is_no_build_without_the_programs() {
    let missing = script::programs(Some(Path::new("/none/programs.o")), Path::new("/"));
    assert!(missing.unwrap_err().contains("/none/programs.o"));
}

#[test]
fn a_build_without_the_programs_says_how_to_get_them() {
    assert!(
        script::WITHOUT.contains("without its eBPF programs") && script::WITHOUT.contains("cargo xtask ebpf")
    );
}
