//! The CDI specification: a document that names devices, and for each device the changes that the
//! device makes to a container.
//!
//! deepres leaves entries of other authors as they are, even with unknown fields. The page
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md> describes the
//! format.

use deepres_abi::directory::SOCKET_VARIABLE;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The kind of deepres' devices, `vendor/class`. The kind stands before `=NAME` in `podman run
/// --device`.
pub const KIND: &str = "deepres.dev/share";
/// The version of the format. Version 0.5.0 is the oldest that allows names that begin with a
/// digit, and podman 4.3 of Debian 12 reads it.
const VERSION: &str = "0.5.0";
/// Longest name of a device, bytes: the longest file name.
const NAME_BYTES: usize = 255;

/// The reason for which a document cannot take deepres' devices.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The document is not JSON.
    #[error("it is not JSON ({0})")]
    NotJson(#[from] serde_json::Error),
    /// The document is JSON, but no CDI specification.
    #[error("it is not a CDI specification: {0}")]
    NotASpec(&'static str),
    /// The document describes devices of another kind.
    #[error("it describes devices of the kind `{0}`, not {KIND}")]
    OtherKind(String),
    /// The document has a device whose name is invalid.
    #[error("a device in it has an invalid name: {0}")]
    Name(#[from] NameError),
    /// The document has two devices of one name. Container runtimes refuse such a document.
    #[error("it has two devices named `{0}`")]
    Twice(DeviceName),
}

/// A text that no container runtime accepts as a device's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot name a device; use letters and digits with any of `_-.:` between them, {NAME_BYTES} bytes at most"
)]
pub struct NameError(String);

/// The name of a device: the part after `deepres.dev/share=`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceName(String);

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let may_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let may_be_inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte);
        let bytes = text.as_bytes();
        if bytes.len() <= NAME_BYTES
            && may_end(bytes.first())
            && may_end(bytes.last())
            && bytes.iter().all(may_be_inside)
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError(text.to_owned()))
        }
    }
}

/// A device of the specification: a name, and the changes that it makes to a container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The device's name.
    pub name: DeviceName,
    /// The changes that the device makes to a container.
    pub container_edits: ContainerEdits,
}

/// The variable by which the dynamic linker loads the interposer.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Place of the library in a container.
const LIBRARY_PLACE: &str = "/usr/lib/deepres";
const LIBRARY_NAME: &str = "libdeepres.so";
/// Names that glibc's dynamic linker may put in the place of `$LIB`: Debian's, Red Hat's and the
/// plain name.
const LIB_NAMES: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];
/// Place of the tenant socket's directory in a container.
const SOCKET_PLACE: &str = "/run/deepres/tenant";

/// The changes that a device makes to a container.
#[derive(Debug, Serialize)]
pub struct ContainerEdits {
    /// Environment variables, `NAME=VALUE` each.
    pub env: Vec<String>,
    /// Mounted files and directories of the host.
    pub mounts: Vec<Mount>,
}

/// A file or directory of the host that is mounted into a container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The place on the host.
    pub host_path: PathBuf,
    /// The place in the container.
    pub container_path: String,
    /// The options, as for `mount -o`.
    pub options: [&'static str; 4],
}

impl ContainerEdits {
    /// Returns the changes that bring a container the interposer at `library`, and the tenant
    /// socket `socket` in the directory `sockets`. The container has the given further variables.
    pub fn new(
        library: &Path,
        sockets: &Path,
        socket: &str,
        variables: impl IntoIterator<Item = String>,
    ) -> Self {
        // Only glibc's dynamic linker replaces `$LIB`. The linker of musl finds no file at this
        // path, and starts the program without the interposer. If musl's linker found the
        // interposer, the linker could not link the interposer, and would end the program.
        let mut env = vec![
            format!("{PRELOAD_VARIABLE}={LIBRARY_PLACE}/$LIB/{LIBRARY_NAME}"),
            format!("{SOCKET_VARIABLE}={SOCKET_PLACE}/{socket}"),
        ];
        env.extend(variables);
        let library_in =
            |lib| Mount::read_only(library.to_owned(), format!("{LIBRARY_PLACE}/{lib}/{LIBRARY_NAME}"));
        let mut mounts: Vec<_> = LIB_NAMES.into_iter().map(library_in).collect();
        mounts.push(Mount::read_only(sockets.to_owned(), SOCKET_PLACE.to_owned()));
        Self { env, mounts }
    }
}

impl Mount {
    /// Returns a mount that the container's root cannot write to. Set-user-ID programs and device
    /// files in the mount have no effect.
    pub fn read_only(host_path: PathBuf, container_path: String) -> Self {
        Self { host_path, container_path, options: ["ro", "nosuid", "nodev", "bind"] }
    }

    /// Returns a mount like [`Self::read_only`], to which the container can write.
    pub fn writable(host_path: PathBuf, container_path: String) -> Self {
        Self { host_path, container_path, options: ["rw", "nosuid", "nodev", "bind"] }
    }
}

/// A CDI specification whose form deepres has checked.
#[derive(Debug)]
pub struct Spec {
    root: Map<String, Value>,
    devices: Vec<(DeviceName, Value)>,
}

impl Default for Spec {
    /// Returns a CDI specification without devices.
    fn default() -> Self {
        let mut root = Map::new();
        root.insert("cdiVersion".to_owned(), json!(VERSION));
        root.insert("kind".to_owned(), json!(KIND));
        Self { root, devices: Vec::new() }
    }
}

impl Spec {
    /// Reads a document.
    ///
    /// # Errors
    /// [`SpecError`] if the document is not for deepres' devices or container runtimes would refuse
    /// it.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let Value::Object(mut root) = serde_json::from_str(text)? else {
            return Err(SpecError::NotASpec("it is not an object"));
        };
        match root.get("kind").and_then(Value::as_str) {
            Some(KIND) => {}
            Some(other) => return Err(SpecError::OtherKind(other.to_owned())),
            None => return Err(SpecError::NotASpec("it has no `kind`")),
        }
        let Some(Value::Array(listed)) = root.remove("devices") else {
            return Err(SpecError::NotASpec("it has no list `devices`"));
        };
        let mut spec = Self { root, devices: Vec::with_capacity(listed.len()) };
        for device in listed {
            let Some(name) = device.get("name").and_then(Value::as_str) else {
                return Err(SpecError::NotASpec("a device in it has no `name`"));
            };
            let name: DeviceName = name.parse()?;
            if spec.find(&name).is_some() {
                return Err(SpecError::Twice(name));
            }
            spec.devices.push((name, device));
        }
        Ok(spec)
    }

    /// Puts a device in. Replaces a device of the same name.
    ///
    /// # Errors
    /// [`SpecError::NotJson`] if the device has no form in JSON.
    pub fn put(&mut self, device: Device) -> Result<(), SpecError> {
        let entry = (device.name.clone(), serde_json::to_value(&device)?);
        match self.find(&device.name) {
            Some(place) => self.devices[place] = entry,
            None => self.devices.push(entry),
        }
        Ok(())
    }

    /// Removes a device. Returns whether the document had the device.
    pub fn remove(&mut self, name: &DeviceName) -> bool {
        self.find(name).map(|place| self.devices.remove(place)).is_some()
    }

    fn find(&self, name: &DeviceName) -> Option<usize> {
        self.devices.iter().position(|(other, _)| other == name)
    }

    /// Returns the devices' names and environment variables, in the order of the document.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = (&DeviceName, Vec<&str>)> {
        self.devices.iter().map(|(name, device)| {
            let env = device["containerEdits"]["env"].as_array();
            (name, env.into_iter().flatten().filter_map(Value::as_str).collect())
        })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut root = self.root.clone();
        root.insert("devices".to_owned(), self.devices.iter().map(|(_, device)| device.clone()).collect());
        // With `#`, serde_json indents the text.
        writeln!(f, "{:#}", Value::Object(root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, variable: &str) -> Device {
        let mount = Mount::read_only("/host".into(), "/inside".to_owned());
        let edits = ContainerEdits { env: vec![variable.to_owned()], mounts: vec![mount] };
        Device { name: name.parse().unwrap(), container_edits: edits }
    }

    #[test]
    fn a_name_is_what_container_runtimes_take_for_one() {
        for good in ["train", "a", "7", "0_a-b.c:d9", &"n".repeat(255)] {
            assert_eq!(good.parse(), Ok(DeviceName(good.to_owned())));
        }
        for bad in ["", "-a", "a-", ".", "a b", "a/b", "a=b", "é", "a,b", "a\n", &"n".repeat(256)] {
            assert_eq!(bad.parse::<DeviceName>(), Err(NameError(bad.to_owned())), "{bad}");
        }
    }

    #[test]
    fn our_own_vendor_and_class_follow_the_grammar() {
        let (vendor, class) = KIND.split_once('/').unwrap();
        // A vendor is a domain name. Before version 0.6.0 a class has no dots.
        assert!(vendor.split('.').all(|label| label.parse::<DeviceName>().is_ok() && !label.contains('_')));
        assert!(class.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }

    #[test]
    fn a_written_specification_is_read_again() {
        let mut spec = Spec::default();
        spec.put(device("a", "X=1")).unwrap();
        let text = spec.to_string();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!({
                "cdiVersion": "0.5.0",
                "kind": "deepres.dev/share",
                "devices": [{
                    "name": "a",
                    "containerEdits": {
                        "env": ["X=1"],
                        "mounts": [{
                            "hostPath": "/host",
                            "containerPath": "/inside",
                            "options": ["ro", "nosuid", "nodev", "bind"],
                        }],
                    },
                }],
            })
        );
        assert_eq!(Spec::parse(&text).unwrap().to_string(), text);
    }

    #[test]
    fn a_device_replaces_its_namesake_and_leaves_the_others_as_they_are() {
        let others = json!({
            "cdiVersion": "0.6.0", "kind": KIND, "annotations": {"by": "hand"},
            "devices": [
                {"name": "old", "containerEdits": {"env": ["A=1"]}},
                {"name": "hand-made", "annotations": {"x": "y"}, "containerEdits": {"hooks": []}},
            ],
        });
        let mut spec = Spec::parse(&others.to_string()).unwrap();
        spec.put(device("old", "A=2")).unwrap();
        spec.put(device("new", "A=3")).unwrap();
        let value: Value = serde_json::from_str(&spec.to_string()).unwrap();
        assert_eq!(value["cdiVersion"], "0.6.0");
        assert_eq!(value["annotations"], others["annotations"]);
        assert_eq!(value["devices"][1], others["devices"][1]);
        let shown: Vec<_> = spec.devices().map(|(name, env)| (name.to_string(), env.concat())).collect();
        let expected = [("old", "A=2"), ("hand-made", ""), ("new", "A=3")];
        assert_eq!(shown, expected.map(|(name, env)| (name.to_owned(), env.to_owned())));
        assert!(spec.remove(&"old".parse().unwrap()) && !spec.remove(&"old".parse().unwrap()));
        assert_eq!(spec.devices().len(), 2);
    }

    #[test]
    fn a_document_that_is_not_ours_is_refused_with_the_reason() {
        for (text, reason) in [
            ("devices: []", "not JSON"),
            ("[]", "not an object"),
            (r#"{"devices": []}"#, "no `kind`"),
            (r#"{"kind": "nvidia.com/gpu", "devices": []}"#, "`nvidia.com/gpu`"),
            (r#"{"kind": "deepres.dev/share"}"#, "no list `devices`"),
            (r#"{"kind": "deepres.dev/share", "devices": [{}]}"#, "no `name`"),
            (r#"{"kind": "deepres.dev/share", "devices": [{"name": "a b"}]}"#, "`a b`"),
            (
                r#"{"kind": "deepres.dev/share", "devices": [{"name": "a"}, {"name": "a"}]}"#,
                "two devices named `a`",
            ),
        ] {
            let said = Spec::parse(text).unwrap_err().to_string();
            assert!(said.contains(reason), "{text}: {said}");
        }
    }
}
