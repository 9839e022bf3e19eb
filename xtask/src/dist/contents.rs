//! The files of all packages, declared once: each with its place below a prefix such as `/usr`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use flate2::{Compression, GzBuilder};

use crate::build::Artefacts;
use crate::command;

/// The path of the program in the units and hooks of the repository.
const UNIT_PROGRAM: &str = "/usr/local/bin/deepres";
/// Mode of programs.
pub const PROGRAM: u32 = 0o755;
/// Mode of all other files.
pub const PLAIN: u32 = 0o644;
/// Place of the program below the prefix.
pub const PROGRAM_PLACE: &str = "bin/deepres";
/// Place of the library below the prefix. `deepres run` looks there, relative to the program.
pub const LIBRARY_PLACE: &str = "lib/deepres/libdeepres.so";
/// Place of the documentation below the prefix.
pub const DOCUMENTATION: &str = "share/doc/deepres";
/// The place on the web of files that no package contains.
const REPOSITORY: &str = "https://github.com/deepres/deepres/blob/main";
/// The units of systemd.
const UNITS: [&str; 3] = ["deepres.service", "deepres.socket", "deepres-admin.socket"];
/// The hooks of schedulers, with their modes: the paths in the folder `controller/deploy`, and
/// below `lib/deepres`.
const HOOKS: [(&str, u32); 4] = [
    ("slurm/task-prolog", PROGRAM),
    ("slurm/epilog", PROGRAM),
    ("slurm/deepres.conf", PLAIN),
    ("ray/deepres_ray.py", PLAIN),
];
/// The shells with completions, and the place of the code for each: in Debian's packages, and
/// elsewhere.
const SHELLS: [(&str, &str, &str); 3] = [
    ("bash", "share/bash-completion/completions/deepres", "share/bash-completion/completions/deepres"),
    ("zsh", "share/zsh/vendor-completions/_deepres", "share/zsh/site-functions/_deepres"),
    ("fish", "share/fish/vendor_completions.d/deepres.fish", "share/fish/vendor_completions.d/deepres.fish"),
];

/// A file of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// The path below the prefix.
    pub path: String,
    /// The permissions.
    pub mode: u32,
    /// The bytes.
    pub content: Vec<u8>,
}

/// The places at which a package puts its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Below `/usr`, by a package of Debian.
    Debian,
    /// Below any folder, for example `/usr/local`.
    Anywhere,
    /// Below a Python environment, for a user without root.
    Environment,
}

/// Returns the files of a package, in the order of their paths.
pub fn all(artefacts: &Artefacts, place: Place) -> Result<Vec<Item>> {
    let mut items = vec![
        item(PROGRAM_PLACE, PROGRAM, read(&artefacts.deepres())?),
        item(LIBRARY_PLACE, PLAIN, read(&artefacts.library())?),
    ];
    items.extend(man_pages(&artefacts.deepres())?);
    for (shell, of_debian, elsewhere) in SHELLS {
        let code = command::output(Command::new(artefacts.deepres()).args(["completions", shell]))?;
        let path = if place == Place::Debian { of_debian } else { elsewhere };
        items.push(item(path, PLAIN, code.into_bytes()));
    }
    if place != Place::Environment {
        items.extend(of_system(place)?);
        items.extend(documentation()?);
    }
    items.sort();
    Ok(items)
}

/// Returns a file of a package.
pub fn item(path: impl Into<String>, mode: u32, content: impl Into<Vec<u8>>) -> Item {
    Item { path: path.into(), mode, content: content.into() }
}

/// Returns a file of the repository.
pub fn of_repository(path: &str) -> Result<Vec<u8>> {
    read(&crate::workspace().join(path))
}

/// Returns the compressed bytes. Equal bytes always have equal compressed bytes.
pub fn compressed(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the man pages, which the program itself writes.
fn man_pages(deepres: &Path) -> Result<Vec<Item>> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    command::run(Command::new(deepres).arg("man").arg(folder.path()))?;
    let pages = files(folder.path())?;
    ensure!(!pages.is_empty(), "{} writes no man pages", deepres.display());
    let page = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().display();
        Ok(item(format!("share/man/man1/{name}.gz"), PLAIN, compressed(&read(path)?)?))
    };
    pages.iter().map(page).collect()
}

/// Returns the files for systemd and for schedulers.
fn of_system(place: Place) -> Result<Vec<Item>> {
    let deployed = |path: &str| -> Result<String> {
        let text = String::from_utf8(of_repository(&format!("controller/deploy/{path}"))?)?;
        Ok(if place == Place::Debian { text.replace(UNIT_PROGRAM, "/usr/bin/deepres") } else { text })
    };
    let mut items = Vec::new();
    for name in UNITS {
        let unit = deployed(&format!("systemd/{name}"))?;
        items.push(item(format!("lib/systemd/system/{name}"), PLAIN, unit));
    }
    for (path, mode) in HOOKS {
        items.push(item(
            format!("lib/deepres/{path}"),
            mode,
            of_repository(&format!("controller/deploy/{path}"))?,
        ));
    }
    let tmpfiles = of_repository("controller/deploy/tmpfiles/deepres.conf")?;
    items.push(item("lib/tmpfiles.d/deepres.conf", PLAIN, tmpfiles));
    Ok(items)
}

/// Returns the pages for users, the licenses and the examples.
fn documentation() -> Result<Vec<Item>> {
    let root = crate::workspace();
    let alike = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];
    let alike = alike.map(|name| (name.to_owned(), name.to_owned()));
    let configuration = ("controller/deploy/deepres.toml".to_owned(), "examples/deepres.toml".to_owned());
    let mut places: BTreeMap<String, String> = alike.into_iter().chain([configuration]).collect();
    for (folder, place) in [("docs", "docs"), ("controller/deploy/metrics", "examples/metrics")] {
        for file in tracked(&root, folder)? {
            let name = file.file_name().unwrap_or_default().display();
            places.insert(format!("{folder}/{name}"), format!("{place}/{name}"));
        }
    }
    let packed = |(path, place): (&String, &String)| -> Result<Item> {
        let mut content = of_repository(path)?;
        if path.ends_with(".md") {
            content = linked(&String::from_utf8(content)?, path, &places).into_bytes();
        }
        Ok(item(format!("{DOCUMENTATION}/{place}"), PLAIN, content))
    };
    places.iter().map(packed).collect()
}

/// Returns a page of the repository with links for readers of the packages. `places` has the files
/// of the documentation: their paths in the repository, and in the packages. Pages have the same
/// path in both.
fn linked(text: &str, page: &str, places: &BTreeMap<String, String>) -> String {
    const LINK: &str = "](";
    let mut parts = text.split(LINK);
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_at(part.find(')').unwrap_or(0));
        linked += LINK;
        linked += &moved(target, page, places).unwrap_or_else(|| target.to_owned());
        linked += rest;
    }
    linked
}

/// Returns the target of a page's link, for readers of the packages: another place in the packages,
/// or the repository if the packages lack the file. Returns `None` if the target stays.
fn moved(target: &str, page: &str, places: &BTreeMap<String, String>) -> Option<String> {
    let (file, fragment) = target.split_at(target.find('#').unwrap_or(target.len()));
    if file.is_empty() || file.contains("://") {
        return None;
    }
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    let to_top = "../".repeat(path.len());
    for step in file.split('/') {
        if step == ".." {
            path.pop();
        } else {
            path.push(step);
        }
    }
    let path = path.join("/");
    match places.get(&path) {
        Some(place) if *place == path => None,
        Some(place) => Some(format!("{to_top}{place}{fragment}")),
        None => Some(format!("{REPOSITORY}/{path}{fragment}")),
    }
}

/// Returns the files directly in a folder below `root` that git tracks. So an untracked file
/// changes no package. Without git, in an unpacked archive of the source, the function returns all
/// files.
fn tracked(root: &Path, folder: &str) -> Result<Vec<PathBuf>> {
    if !root.join(".git").exists() {
        return files(&root.join(folder));
    }
    let mut list = Command::new("git");
    list.arg("-C").arg(root).args(["ls-files", "-z", "--"]).arg(format!(":(glob){folder}/*"));
    let listed = command::output(&mut list)?;
    ensure!(!listed.is_empty(), "git tracks no file in {folder}");
    Ok(listed.split_terminator('\0').map(|path| root.join(path)).collect())
}

/// Returns the files directly in a folder, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_units_start_the_packages_program_and_no_other() {
        let items = of_system(Place::Debian).unwrap();
        let text = |ending: &str| {
            let item = items.iter().find(|item| item.path.ends_with(ending)).unwrap();
            String::from_utf8_lossy(&item.content).into_owned()
        };
        assert!(text("deepres.service").contains("ExecStart=/usr/bin/deepres "));
        assert!(text("slurm/task-prolog").contains("exec deepres slurm task-prolog"));
        for item in items.iter().filter(|item| item.path.starts_with("lib/systemd")) {
            assert!(!String::from_utf8_lossy(&item.content).contains("/usr/local"), "{}", item.path);
        }
    }

    #[test]
    fn an_untracked_page_reaches_no_package_and_without_git_all_pages_do() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for page in ["docs/a.md", "docs/b.md", "docs/more/c.md"] {
            fs::create_dir_all(root.join(page).parent().unwrap()).unwrap();
            fs::write(root.join(page), page).unwrap();
        }
        let all = [root.join("docs/a.md"), root.join("docs/b.md")];
        assert_eq!(tracked(root, "docs").unwrap(), all);
        for arguments in [&["init", "--quiet"][..], &["add", "docs/a.md", "docs/more/c.md"]] {
            command::run(Command::new("git").arg("-C").arg(root).args(arguments)).unwrap();
        }
        assert_eq!(tracked(root, "docs").unwrap(), all[..1]);
    }

    #[test]
    fn a_link_of_a_packaged_page_leads_to_a_packaged_file_or_into_the_repository() {
        let places = [("docs/a.md", "docs/a.md"), ("controller/rules.yml", "examples/rules.yml")]
            .map(|(path, place)| (path.to_owned(), place.to_owned()));
        let places = BTreeMap::from(places);
        let text = "[a](a.md#part), [here](#part), [web](https://a.example/b), \
                    [r](../controller/rules.yml), [s](../SECURITY.md#report)";
        let expected = "[a](a.md#part), [here](#part), [web](https://a.example/b), \
                        [r](../examples/rules.yml), \
                        [s](https://github.com/deepres/deepres/blob/main/SECURITY.md#report)";
        assert_eq!(linked(text, "docs/a.md", &places), expected);
        assert_eq!(moved("docs/a.md", "README.md", &places), None);
        let rules = moved("controller/rules.yml", "README.md", &places);
        assert_eq!(rules.as_deref(), Some("examples/rules.yml"));

        let items = documentation().unwrap();
        let readme = items.iter().find(|item| item.path.ends_with("deepres/README.md")).unwrap();
        let readme = String::from_utf8_lossy(&readme.content);
        assert!(readme.contains(&format!("]({REPOSITORY}/SECURITY.md)")), "{readme}");
        assert!(readme.contains("](examples/deepres.toml)") && readme.contains("](docs/page.png)"));
    }

    #[test]
    fn compressed_bytes_depend_on_the_content_alone() {
        assert_eq!(compressed(b"page").unwrap(), compressed(b"page").unwrap());
        // The name and the time of a gzip header are empty.
        assert_eq!(compressed(b"page").unwrap()[3..8], [0; 5]);
    }
}
