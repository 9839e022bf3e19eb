//! The plugin's record of an allocation: a CDI specification with one device, in a file of its own.
//! The file is all that the plugin keeps, so the next plugin reads its records from the files.

use anyhow::{Context, Result, bail};
use deepres_abi::fallback::{FALLBACK_VARIABLE, Fallback};
use deepres_abi::grant::FailMode;
use deepres_abi::wish::{Key, Value};
use deepres_model::allocation::{Allocation, PodContainer, Token};
use deepres_model::cdi::{ContainerEdits, Device, KIND, Spec};
use deepres_model::directory::Directory;
use deepres_policy::shares::{GPU_RESOURCE, Part, SHARE_PPM, SHARE_RESOURCE, SHARES, Slots};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The prefix and the ending of the files' names.
const FILE_PREFIX: &str = "deepres-k8s-";
const FILE_ENDING: &str = ".json";
/// The prefix of the name of a file that is not complete. No runtime reads it, because it lacks the
/// ending.
const UNFINISHED_PREFIX: &str = ".deepres-k8s-";
/// The prefix of the devices' names.
const DEVICE_PREFIX: &str = "k8s-";
/// Random bytes in the name of a device.
const NAME_BYTES: usize = 8;
/// Only root reads the file, because it has the token.
const FILE_MODE: u32 = 0o600;
/// The variable with the token.
const TENANT_VARIABLE: &str = "DEEPRES_TENANT";
/// The variable by which the driver shows a process only the container's GPUs.
const GPUS_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// The variable with the kubelet's devices. Whole GPUs have none.
const SLOTS_VARIABLE: &str = "DEEPRES_SLOTS";
/// The variable with the claim and its request. A container of the kubelet's devices has none.
const CLAIM_VARIABLE: &str = "DEEPRES_CLAIM";
/// The variable with the GPUs whose device files a container has, if they are not only its own.
const AMONG_VARIABLE: &str = "DEEPRES_AMONG";
/// The variable of a container that waits until a GPU has room. A container that starts has none.
const WAITS_VARIABLE: &str = "DEEPRES_WAITS";
/// The variable of an init container that has ended.
const OVER_VARIABLE: &str = "DEEPRES_OVER";

/// The state of a container with a part of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// The container has its part, and can start at any time.
    #[default]
    Runs,
    /// The container waits until a GPU has room.
    Waits,
    /// The container was an init container and has ended. Until it starts again, its part is free
    /// for other containers.
    Over,
}

impl Phase {
    /// Returns the variable by which the file shows the phase.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Runs => None,
            Self::Waits => Some(WAITS_VARIABLE),
            Self::Over => Some(OVER_VARIABLE),
        }
    }
}

/// A request of a ResourceClaim, by which containers get GPUs in dynamic resource allocation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRequest {
    /// The claim's UID.
    pub claim: String,
    /// The request's name in the claim.
    pub request: String,
}

impl ClaimRequest {
    /// The sign between the claim and the request. Neither the claim's UID nor the request's name
    /// contains this sign.
    const SEPARATOR: char = '/';

    fn parse(text: &str) -> Option<Self> {
        let (claim, request) = text.split_once(Self::SEPARATOR)?;
        Some(Self { claim: claim.to_owned(), request: request.to_owned() })
    }
}

impl fmt::Display for ClaimRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.claim, Self::SEPARATOR, self.request)
    }
}

/// An allocation with the kubelet's devices or with a claim's request, and its CDI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The part of the CDI device's name that no other record has.
    pub name: String,
    /// The allocation, as the daemon knows it.
    pub allocation: Allocation,
    /// The container's shares of its one GPU. `None`: the container has whole GPUs, or a claim.
    pub slots: Option<Slots>,
    /// The claim's request for which the allocation is. `None`: the kubelet gave devices.
    pub claim: Option<ClaimRequest>,
    /// The GPUs on which the container may start: it has their device files, and gets no others.
    pub among: Vec<String>,
    /// The state of the container.
    pub phase: Phase,
}

/// Returns random bytes.
///
/// # Errors
/// The kernel gives none.
fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if getrandom(&mut bytes, GetRandomFlags::empty()).context("the kernel gave no random bytes")? != BYTES {
        bail!("the kernel gave too few random bytes");
    }
    Ok(bytes)
}

impl Record {
    /// Returns the record of a new allocation: shares of one GPU, or whole GPUs. `memory_bytes` is
    /// the memory of the GPU. For several GPUs, `memory_bytes` is the memory of the GPU with the
    /// least memory.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new(gpus: Vec<String>, slots: Option<Slots>, memory_bytes: u64) -> Result<Self> {
        let count = slots.as_ref().map_or(SHARES, Slots::count);
        let made = Self::make(gpus, count as u32 * SHARE_PPM, part_of(memory_bytes, count))?;
        Ok(Self { slots, ..made })
    }

    /// Returns the record of a new allocation for a claim's request: this share and memory of each
    /// GPU.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn of_claim(
        claim: ClaimRequest,
        gpus: Vec<String>,
        share_ppm: u32,
        memory_bytes: u64,
    ) -> Result<Self> {
        Ok(Self { claim: Some(claim), ..Self::make(gpus, share_ppm, memory_bytes)? })
    }

    fn make(gpus: Vec<String>, share_ppm: u32, memory_bytes: u64) -> Result<Self> {
        let name = random::<NAME_BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let among = gpus.clone();
        let allocation =
            Allocation { token: Token::of(random()?), share_ppm, memory_bytes, gpus, holder: None };
        Ok(Self { name, allocation, slots: None, claim: None, among, phase: Phase::Runs })
    }

    /// Returns this record on another GPU, which has `memory_bytes` of memory.
    pub fn on(&self, gpu: &str, memory_bytes: u64) -> Self {
        let count = self.slots.as_ref().map_or(SHARES, Slots::count);
        let gpus = vec![gpu.to_owned()];
        let memory_bytes = part_of(memory_bytes, count);
        let allocation = Allocation { gpus, memory_bytes, ..self.allocation.clone() };
        Self { allocation, ..self.clone() }
    }

    /// Returns the resource of the kubelet's devices; `None` for a claim.
    pub fn resource(&self) -> Option<&'static str> {
        match (&self.claim, &self.slots) {
            (Some(_), _) => None,
            (None, Some(_)) => Some(SHARE_RESOURCE),
            (None, None) => Some(GPU_RESOURCE),
        }
    }

    /// Returns the names by which the kubelet lists the container's part: the kubelet's devices, or
    /// the CDI device of a claim.
    pub fn ids(&self) -> BTreeSet<String> {
        match (&self.claim, &self.slots) {
            (Some(_), _) => BTreeSet::from([self.device()]),
            (None, Some(slots)) => slots.ids(),
            (None, None) => self.allocation.gpus.iter().cloned().collect(),
        }
    }

    /// Returns the container's part of a GPU; `None` if the container has whole GPUs or a claim, or
    /// is over.
    pub fn part(&self) -> Option<Part<'_>> {
        let waits = self.phase == Phase::Waits;
        let slots = self.slots.as_ref().filter(|_| self.phase != Phase::Over)?;
        Some(Part { gpu: self.allocation.gpus.first()?, slots, waits, among: &self.among })
    }

    /// Returns the qualified name of the CDI device.
    pub fn device(&self) -> String {
        format!("{KIND}={DEVICE_PREFIX}{}", self.name)
    }

    fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{FILE_PREFIX}{}{FILE_ENDING}", self.name))
    }

    /// Returns the container that has the allocation, if it is known.
    pub fn holder(&self) -> Option<&PodContainer> {
        self.allocation.holder.as_ref()
    }

    /// Writes the CDI specification. The container gets the interposer at `library`, and the tenant
    /// socket of the daemon in `directory`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path, library: &Path, directory: &Directory) -> Result<()> {
        let Allocation { token, share_ppm, memory_bytes, gpus, .. } = &self.allocation;
        // The driver in the container can come without a daemon for a time. The process then keeps
        // these limits by itself.
        let fallback = Fallback {
            share_ppm: Some(*share_ppm),
            memory_bytes: Some(*memory_bytes),
            fail_mode: FailMode::Open,
        };
        let variables = [
            (TENANT_VARIABLE, token.as_str().to_owned()),
            (Key::Share.variable(), Value::Share(*share_ppm).to_string()),
            (FALLBACK_VARIABLE, fallback.to_string()),
            (GPUS_VARIABLE, gpus.join(",")),
        ];
        let slots = self.slots.as_ref().map(|slots| (SLOTS_VARIABLE, slots.to_string()));
        let claim = self.claim.as_ref().map(|claim| (CLAIM_VARIABLE, claim.to_string()));
        let among = (self.among != *gpus).then(|| (AMONG_VARIABLE, self.among.join(",")));
        let phase = self.phase.variable().map(|name| (name, true.to_string()));
        let variables = variables.into_iter().chain(slots).chain(claim).chain(among).chain(phase);
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        let socket = directory.tenant_socket();
        let socket =
            socket.file_name().and_then(|name| name.to_str()).context("the tenant socket has no name")?;
        let mut spec = Spec::default();
        spec.put(Device {
            name: format!("{DEVICE_PREFIX}{}", self.name).parse()?,
            container_edits: ContainerEdits::new(library, &directory.tenant_directory(), socket, variables),
        })?;
        let file = self.file(folder);
        let cannot_write = || format!("cannot write {}", file.display());
        std::fs::create_dir_all(folder).with_context(cannot_write)?;
        let unfinished = tempfile::Builder::new().prefix(UNFINISHED_PREFIX).tempfile_in(folder);
        let mut new = unfinished.with_context(cannot_write)?;
        write!(new, "{spec}").with_context(cannot_write)?;
        new.as_file().set_permissions(Permissions::from_mode(FILE_MODE)).with_context(cannot_write)?;
        new.as_file().sync_all().with_context(cannot_write)?;
        new.persist(&file).with_context(cannot_write)?;
        // The kubelet starts the container again after a power failure too.
        File::open(folder).and_then(|folder| folder.sync_all()).with_context(cannot_write)
    }

    /// Removes the CDI specification.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        let file = self.file(folder);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", file.display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes the files that an earlier plugin did not finish. Such files have tokens.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub fn remove_unfinished(folder: &Path) -> Result<()> {
        for path in files(folder)? {
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with(UNFINISHED_PREFIX)) {
                std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Reads the records of earlier plugins. Logs and leaves out files that are no records.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let mut records = Vec::new();
        for path in files(folder)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.and_then(|name| name.strip_prefix(FILE_PREFIX)?.strip_suffix(FILE_ENDING));
            let Some(name) = name else { continue };
            match Self::read(&path, name) {
                Ok(record) => records.push(record),
                Err(error) => {
                    let path = path.display();
                    tracing::warn!("{path} is not an allocation of this plugin ({error:#}); remove the file");
                }
            }
        }
        Ok(records)
    }

    fn read(path: &Path, name: &str) -> Result<Self> {
        let spec = Spec::parse(&std::fs::read_to_string(path)?)?;
        let (_, env) = spec.devices().next().context("it has no device")?;
        let value = |name: &str| {
            let values = env.iter().filter_map(|variable| variable.split_once('='));
            values.filter(|(own, _)| *own == name).map(|(_, value)| value).next()
        };
        let needed = |name: &'static str| value(name).with_context(|| format!("it has no {name}"));
        let fallback = Fallback::parse(needed(FALLBACK_VARIABLE)?).context("its limits cannot be read")?;
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let claim =
            value(CLAIM_VARIABLE).map(|text| ClaimRequest::parse(text).context("its claim cannot be read"));
        let slots = value(SLOTS_VARIABLE).map(|text| Slots::parse(text).context("its shares cannot be read"));
        let allocation = Allocation {
            token: Token::try_from(needed(TENANT_VARIABLE)?.to_owned())?,
            share_ppm: fallback.share_ppm.context("it has no share")?,
            memory_bytes: fallback.memory_bytes.context("it has no memory")?,
            gpus: list(needed(GPUS_VARIABLE)?),
            holder: None,
        };
        if let Some(fault) = allocation.fault() {
            bail!(fault);
        }
        let is_in = |phase: &Phase| phase.variable().is_some_and(|name| value(name).is_some());
        let phase = [Phase::Waits, Phase::Over].into_iter().find(is_in).unwrap_or_default();
        let among = value(AMONG_VARIABLE).map_or_else(|| allocation.gpus.clone(), list);
        let (slots, claim) = (slots.transpose()?, claim.transpose()?);
        Ok(Self { name: name.to_owned(), allocation, slots, claim, among, phase })
    }
}

/// Returns the paths of all files in a folder; none if there is no such folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let cannot_read = || format!("cannot read {}", folder.display());
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => {
            let paths = entries.with_context(cannot_read)?.map(|entry| entry.map(|entry| entry.path()));
            paths.collect::<io::Result<_>>().with_context(cannot_read)
        }
    }
}

/// Returns the part of a GPU's memory for this number of shares, bytes.
fn part_of(memory_bytes: u64, shares: usize) -> u64 {
    let part = u128::from(memory_bytes) * shares as u128 / SHARES as u128;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const GIB: u64 = 1 << 30;

    fn write(record: &Record, folder: &Path) {
        record.write(folder, Path::new("/lib/libdeepres.so"), &Directory::at("/run/deepres")).unwrap();
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_its_file_is_roots() {
        let folder = tempfile::tempdir().unwrap();
        let cdi = folder.path().join("cdi");
        let share = Record::new(vec!["GPU-1".to_owned()], Slots::parse("0-29"), 8 * GIB).unwrap();
        let among = ["GPU-1", "GPU-4"].map(str::to_owned).to_vec();
        let share = Record { phase: Phase::Waits, among, ..share };
        let whole = Record::new(vec!["GPU-2".to_owned(), "GPU-3".to_owned()], None, 8 * GIB).unwrap();
        assert_eq!((share.allocation.share_ppm, share.allocation.memory_bytes), (300_000, 8 * GIB * 3 / 10));
        assert_eq!((whole.allocation.share_ppm, whole.allocation.memory_bytes), (1_000_000, 8 * GIB));
        assert_eq!((share.resource(), share.ids().len()), (Some("deepres.dev/share"), 30));
        assert_eq!((whole.resource(), whole.ids().len()), (Some("deepres.dev/gpu"), 2));
        write(&share, &cdi);
        write(&whole, &cdi);
        assert_eq!(std::fs::metadata(share.file(&cdi)).unwrap().mode() & 0o777, FILE_MODE);
        let mut read = Record::read_all(&cdi).unwrap();
        read.sort_by_key(|record| record.slots.is_none());
        assert_eq!(read, [share.clone(), whole.clone()]);
        share.remove(&cdi).unwrap();
        share.remove(&cdi).unwrap();
        assert_eq!(Record::read_all(&cdi).unwrap(), [whole]);
        assert!(Record::read_all(&folder.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_claims_record_is_read_as_it_was_written_and_goes_by_its_cdi_device() {
        let folder = tempfile::tempdir().unwrap();
        let claim = ClaimRequest { claim: "0d0f-11".to_owned(), request: "gpus".to_owned() };
        let gpus = vec!["GPU-1".to_owned(), "GPU-2".to_owned()];
        let record = Record::of_claim(claim, gpus, 250_000, 3 * GIB).unwrap();
        assert_eq!((record.resource(), record.ids()), (None, BTreeSet::from([record.device()])));
        assert!(record.part().is_none());
        write(&record, folder.path());
        assert_eq!(Record::read_all(folder.path()).unwrap(), [record]);
    }

    #[test]
    fn a_specification_has_the_limits_the_gpu_and_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::new(vec!["GPU-1".to_owned()], Slots::parse("0-29"), 10 * GIB).unwrap();
        write(&record, folder.path());
        let text = std::fs::read_to_string(record.file(folder.path())).unwrap();
        let spec: serde_json::Value = serde_json::from_str(&text).unwrap();
        let device = &spec["devices"][0];
        assert_eq!(device["name"], format!("k8s-{}", record.name));
        let token = record.allocation.token.as_str();
        let expected = [
            "LD_PRELOAD=/usr/lib/deepres/$LIB/libdeepres.so".to_owned(),
            "DEEPRES_SOCKET=/run/deepres/tenant/tenant.sock".to_owned(),
            format!("DEEPRES_TENANT={token}"),
            "DEEPRES_SHARE=30%".to_owned(),
            "DEEPRES_FALLBACK=share=30%,memory=3221225472".to_owned(),
            "CUDA_VISIBLE_DEVICES=GPU-1".to_owned(),
            "DEEPRES_SLOTS=0-29".to_owned(),
        ];
        assert_eq!(device["containerEdits"]["env"], serde_json::json!(expected));
        assert!(!record.device().contains(token), "names of devices are no secrets");
    }

    #[test]
    fn a_file_that_an_earlier_plugin_did_not_finish_goes() {
        let folder = tempfile::tempdir().unwrap();
        let unfinished = folder.path().join(".deepres-k8s-aBc123");
        std::fs::write(&unfinished, "{").unwrap();
        Record::remove_unfinished(folder.path()).unwrap();
        assert!(!unfinished.exists());
        Record::remove_unfinished(&folder.path().join("none")).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("deepres.json", "{}"),
            ("deepres-k8s-1.json", "{}"),
            ("deepres-k8s-2.json", r#"{"kind": "deepres.dev/share", "devices": [{"name": "a"}]}"#),
            ("nvidia.yaml", ""),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert!(Record::read_all(folder.path()).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }
}
