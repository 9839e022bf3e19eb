//! The configuration from a user's view: checks, values in force, reloads, reports and completions.

use super::cli::{Place, text};
use deepres_daemon_harness::Daemon;
use deepres_model::config::Config;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

#[test]
fn a_fault_of_a_file_is_named_with_its_line_and_a_good_file_passes() {
    let place = Place::with_driver();
    let file = place.scratch.path().join("c.toml");
    let path = file.to_str().unwrap();
    for (content, reason) in [
        ("\nheartbeat_limit_ms = 1\n", "c.toml:2:1: `heartbeat_limit_ms` is 1; it must be from 20 to 60000"),
        ("[caps]\nclas = \"fair\"\n", "c.toml:2:1: unknown key `caps.clas`; did you mean `class`?"),
        ("admin_group = \"no such group\"\n", "admin_group"),
    ] {
        std::fs::write(&file, content).unwrap();
        let said = place.refuses(&["config", "check", path], 1);
        assert!(said.contains(reason), "{said}");
    }
    std::fs::write(&file, "fail_mode = \"closed\"\n").unwrap();
    assert!(place.says(&["config", "check", path]).ends_with("c.toml: no fault found"));
    let shown = place.says(&["config", "show", path]);
    let line = shown.lines().find(|line| line.starts_with("fail_mode ")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["fail_mode", "\"closed\"", "line", "1"]);
    let schema: serde_json::Value = serde_json::from_str(&place.says(&["config", "schema"])).unwrap();
    assert_eq!(schema["properties"]["fail_mode"]["enum"][1], "closed");
}

#[test]
fn a_reload_tells_the_values_in_force_and_a_faulty_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    std::fs::write(&file, "tenant_linger_s = 7\n").unwrap();
    let (_daemon, place) = Place::with_daemon(Daemon::start_from(&file));
    let shown = || {
        let json = place.says(&["config", "show", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
        let settings = shown["settings"].as_array().unwrap().clone();
        let setting = settings.into_iter().find(|setting| setting["key"] == "tenant_linger_s").unwrap();
        (setting["value"].clone(), setting["origin"].clone())
    };
    assert_eq!(shown(), ("7".into(), serde_json::json!({ "line": 1 })));
    std::fs::write(&file, "gangs = false\ntenant_linger_s = 8\n").unwrap();
    let said = place.says(&["reload"]);
    assert!(said.contains("in force now: tenant_linger_s\n"), "{said}");
    assert!(said.contains("in force when the daemon next starts: gangs "), "{said}");
    assert_eq!(shown(), ("8".into(), serde_json::json!({ "line": 2 })));
    std::fs::write(&file, "tenant_linger_s = 9\ngangs = 1\n").unwrap();
    let said = place.refuses(&["reload"], 1);
    assert!(said.contains("keeps its configuration") && said.contains("d.toml:2:1"), "{said}");
    assert_eq!(shown().0, "8");
}

#[test]
fn a_report_has_every_part_and_no_names_if_the_user_wants_so() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let _tenant = daemon.join("secret-train", 0, 0);
    let archive = place.scratch.path().join("report.tar.gz");
    let path = archive.to_str().unwrap();
    let listed = place.says(&["report", "--hash-names", "--output", path]);
    for part in ["versions.txt", "doctor.txt", "status.json", "coverage.json", "config.txt"] {
        assert!(listed.lines().any(|line| line.starts_with(part) && line.ends_with("written")), "{listed}");
    }
    assert_eq!(std::fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let content = Command::new("tar").args(["-xOf", path]).output().unwrap();
    let content = text(&content.stdout);
    assert!(content.contains("name-") && content.contains("heartbeat_limit_ms"), "{content}");
    assert!(!content.contains("secret-train"), "{content}");
    assert!(place.refuses(&["report", "--output", path], 1).contains("cannot create"));
    std::fs::remove_file(&archive).unwrap();
    let sudo = [("SUDO_UID", "65534"), ("SUDO_GID", "65533")];
    place.deepres(&["report", "--output", path]).envs(sudo).output().unwrap();
    let found = std::fs::metadata(&archive).unwrap();
    let own = std::fs::metadata(place.scratch.path()).unwrap();
    let owner = if own.uid() == 0 { (65_534, 65_533) } else { (own.uid(), own.gid()) };
    assert_eq!((found.uid(), found.gid()), owner, "the user of sudo sends the archive");
    let content = Command::new("tar").args(["-xOf", path]).output().unwrap();
    assert!(text(&content.stdout).contains("secret-train"));
}

#[test]
fn a_shell_completes_the_names_of_tenants_and_the_words_of_options() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let _tenants = ["train-a", "train-b", "other"].map(|name| daemon.join(name, 0, 0));
    let completed = |words: &[&str]| {
        let mut ask = place.deepres(&["--"]);
        ask.args(words).env("DEEPRES_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        text(&ask.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string()).output().unwrap().stdout)
    };
    assert_eq!(completed(&["deepres", "set", "tra"]).trim_end(), "train-a\ntrain-b");
    assert_eq!(completed(&["deepres", "explain", "o"]).trim_end(), "other");
    assert_eq!(completed(&["deepres", "trace", "--tenant", "o"]).trim_end(), "other");
    assert_eq!(completed(&["deepres", "set", "other", "--class", "b"]).trim_end(), "best-effort");
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.says(&["completions", shell]).contains("DEEPRES_COMPLETE"), "{shell}");
    }
}
