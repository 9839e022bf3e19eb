//! Lines from real systems, each with its source, and forged lines that imitate them.

use super::*;
use proptest::prelude::*;

const ID: &str = "4c01b2a3f9d7c5e8b6a4123456789abcdef0123456789abcdef0123456789abc";

/// Returns the name, path and container of the place that a text names.
fn found(text: &str) -> Option<(String, String, Option<String>)> {
    let place = place(text)?;
    Some((place.name(), place.path.clone(), place.container().map(|container| container.id.clone())))
}

#[test]
fn containers_are_found_in_the_lines_of_their_runtimes() {
    for (source, line, name, path) in [
        (
            "Docker, cgroupfs, v1 (systemd's detect-virt, systemd/systemd#17902)",
            "1:name=systemd:/docker/1ebedb637aea644ece9c9eb3f93f41cbe6e5a96ce3961f665b83bd12363ab303",
            "docker-1ebedb637aea",
            "/docker/1ebedb637aea644ece9c9eb3f93f41cbe6e5a96ce3961f665b83bd12363ab303",
        ),
        (
            "Docker, systemd, v1 (neuvector, share/system/cgroup_test.go)",
            "10:devices:/system.slice/docker-9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d.scope",
            "docker-9ec39b91f3d7",
            "/system.slice/docker-9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d.scope",
        ),
        (
            "Docker, an old Debian (neuvector, share/system/cgroup_test.go)",
            "5:devices:/4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970",
            "container-4f797c539e6c",
            "/4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970",
        ),
        (
            "podman, cgroupfs, v1 (a write-up of a capture-the-flag game)",
            "13:pids:/libpod_parent/libpod-30cdc10ce6726db6f79c2a7a272d9d3f2b7404de53982aa103753e8f49bdd584",
            "podman-30cdc10ce672",
            "/libpod_parent/libpod-30cdc10ce6726db6f79c2a7a272d9d3f2b7404de53982aa103753e8f49bdd584",
        ),
        (
            "podman split mode, in a unit (containers/qm, a status in an issue)",
            "0::/QM.slice/qm.service/libpod-payload-00de006493bc970788d6c830beb494a58a9a2847a5eda200812d3a8b4e214814/system.slice",
            "podman-00de006493bc",
            "/QM.slice/qm.service/libpod-payload-00de006493bc970788d6c830beb494a58a9a2847a5eda200812d3a8b4e214814",
        ),
    ] {
        let (found_name, found_path, _) = found(line).unwrap_or_else(|| panic!("{source}: nothing"));
        assert_eq!((found_name.as_str(), found_path.as_str()), (name, path), "{source}");
    }
    // Layouts documented by falcosecurity/libs#236 (podman, both user drivers) and nerdctl's cgroup
    // drivers.
    for (before, after, name) in [
        ("0::/machine.slice/libpod-", ".scope/container", "podman-4c01b2a3f9d7"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-",
            ".scope/container",
            "podman-4c01b2a3f9d7",
        ),
        ("0::/machine.slice/machine-libpod_pod_abc.slice/libpod-", ".scope", "podman-4c01b2a3f9d7"),
        ("0::/libpod_parent/libpod-", "", "podman-4c01b2a3f9d7"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-",
            ".scope",
            "docker-4c01b2a3f9d7",
        ),
        ("0::/docker/", "", "docker-4c01b2a3f9d7"),
        ("0::/system.slice/docker-", ".scope (deleted)", "docker-4c01b2a3f9d7"),
        ("0::/system.slice/nerdctl-", ".scope", "containerd-4c01b2a3f9d7"),
        ("0::/default/", "", "container-4c01b2a3f9d7"),
        ("0::/ecs/0a1b2c/", "", "container-4c01b2a3f9d7"),
        // The path as a daemon in another container sees it.
        ("0::/../docker-", ".scope", "docker-4c01b2a3f9d7"),
        // The inner one of two counts.
        (
            "0::/docker/ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff/docker/",
            "",
            "docker-4c01b2a3f9d7",
        ),
    ] {
        let line = format!("{before}{ID}{after}\n");
        let (found_name, _, id) = found(&line).unwrap_or_else(|| panic!("{line}: nothing"));
        assert_eq!((found_name.as_str(), id.as_deref()), (name, Some(ID)), "{line}");
    }
}

#[test]
fn the_containers_of_a_pod_are_the_pods() {
    let uid = "2c48913c-b29f-11e7-9350-020968147796";
    let slice_uid = uid.replace('-', "_");
    for line in [
        // cgroupfs driver (Docker and containerd, Kubernetes' documentation of cgroup drivers).
        format!("11:memory:/kubepods/burstable/pod{uid}/{ID}"),
        format!("0::/kubepods/pod{uid}/{ID}"),
        // systemd driver.
        format!(
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice_uid}.slice/cri-containerd-{ID}.scope"
        ),
        format!("0::/kubepods.slice/kubepods-pod{slice_uid}.slice/crio-{ID}.scope/container"),
        format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_uid}.slice/docker-{ID}.scope"
        ),
        // kind.
        format!(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{slice_uid}.slice/cri-containerd-{ID}.scope"
        ),
        format!("0::/docker/{ID}/kubelet/kubepods/burstable/pod{uid}/{ID}"),
        // containerd without SystemdCgroup under a kubelet with it (OpenTelemetry's container id
        // provider).
        format!(
            "11:devices:/system.slice/containerd.service/kubepods-pod{slice_uid}.slice:cri-containerd:{ID}"
        ),
        // Docker inside a container of the pod.
        format!("0::/kubepods/burstable/pod{uid}/{ID}/docker/{}", "f".repeat(ID_DIGITS)),
    ] {
        let (name, path, id) = found(&line).unwrap_or_else(|| panic!("{line}: nothing"));
        assert_eq!((name, id.as_deref()), (format!("pod-{uid}"), Some(ID)), "{line}");
        assert!(!path.ends_with(ID) && !path.contains(":cri-containerd"), "{line}: {path}");
    }
    // The uid of a static pod is a hash (an OpenShift control plane's metrics).
    let (name, ..) = found("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pode4e6004e827fdf45941cf777618f60ce.slice/crio-192f5a90b165665d969bb0137b8573f2214c8f75b728ecc58dbbc7fccd64af28.scope").unwrap();
    assert_eq!(name, "pod-e4e6004e827fdf45941cf777618f60ce");
}

#[test]
fn the_steps_of_a_slurm_job_are_the_jobs() {
    for (line, job) in [
        // v2, a compute node of the Fox cluster, 2025 (tests of NordicHPC/sonar).
        ("0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0", 1_392_969),
        // v1, the same source; an interactive step.
        ("10:devices:/slurm/uid_2101171/job_280678/step_interactive/task_0", 280_678),
        ("4:memory:/slurm/uid_1000/job_7/step_batch/task_0", 7),
        ("0::/system.slice/slurmstepd.scope/job_42/step_extern/user", 42),
        // Several slurmd on one host (Slurm's cgroup/v2 documentation).
        ("0::/system.slice/node3_slurmstepd.scope/job_9/step_0/user/task_special", 9),
        ("3:cpuset:/slurm_node3/uid_0/job_9/step_0/task_0", 9),
        // A node that is a pod.
        (
            "0::/kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796/4c01b2a3f9d7c5e8b6a4123456789abcdef0123456789abcdef0123456789abc/system.slice/slurmstepd.scope/job_5/step_0",
            5,
        ),
    ] {
        let place = place(line).unwrap_or_else(|| panic!("{line}: nothing"));
        assert_eq!(place.kind, Kind::Slurm { job: JobName::Number(job) }, "{line}");
        assert!(place.path.ends_with(&format!("job_{job}")), "{line}: {}", place.path);
    }
    // The path of a job in Slurm's manual of cgroup.conf, 26.05.
    let run = place("0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0").unwrap();
    assert_eq!(run.job(), Some(&JobName::Sluid("sEKNKTV3WPV500".to_owned())));
    assert_eq!((run.name().as_str(), run.is_of_roots_slurm(None)), ("slurm-sEKNKTV3WPV500", true));
    assert!(run.path.ends_with("/sEKNKTV3WPV500"), "{run:?}");
    let inside = format!("4:memory:/slurm/uid_1000/job_7/step_0\n0::/libpod_parent/libpod-{ID}\n");
    assert_eq!(found(&inside).unwrap().0, "podman-4c01b2a3f9d7", "a container in a job is a container");
}

#[test]
fn other_processes_are_in_no_place() {
    for line in [
        "0::/",
        "0::/init.scope",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-code-4711.scope",
        "0::/system.slice/slurmd.service",
        "0::/system.slice/slurmstepd.scope/system",
        "0::/system.slice/docker.service",
        "0::/system.slice/containerd.service",
        "0::/system.slice/cron.service",
        "",
        "nonsense",
        "0:",
        "0::",
        "::::",
    ] {
        assert_eq!(place(line), None, "{line}");
    }
    // The monitor of a container is beside the container, not in it.
    for monitor in ["libpod-conmon-", "crio-conmon-"] {
        assert_eq!(place(&format!("0::/machine.slice/{monitor}{ID}.scope")), None);
    }
}

#[test]
fn names_made_up_to_be_taken_for_another_are_not_that_other() {
    let real = place(&format!("0::/system.slice/docker-{ID}.scope")).unwrap();
    let forged =
        place(&format!("0::/user.slice/user-1001.slice/user@1001.service/docker-{ID}.scope")).unwrap();
    assert_ne!(real.path, forged.path, "users may name cgroups of their own so, and that is another place");
    for line in [
        // Not a Slurm job, because users arrange this tree.
        "0::/user.slice/user-1001.slice/user@1001.service/slurmstepd.scope/job_7".to_owned(),
        "0::/x/uid_1000/job_7".to_owned(),
        "0::/x/uid_1000/sEKNKTV3WPV500".to_owned(),
        "0::/system.slice/slurmstepd.scope/job_".to_owned(),
        "0::/system.slice/slurmstepd.scope/job_-7".to_owned(),
        "0::/system.slice/slurmstepd.scope/job_99999999999999999999".to_owned(),
        format!("0::/system.slice/docker-{}.scope", ID.to_uppercase()),
        format!("0::/system.slice/docker-{}.scope", &ID[1..]),
        format!("0::/system.slice/docker-{ID}0.scope"),
        format!("0::/system.slice/evil-docker-{ID}.scope"),
        "0::/x/pod2c48913c-b29f-11e7-9350-020968147796".to_owned(),
        "0::/kubepods/pod../x".to_owned(),
        "0::/kubepods.slice/kubepods-pod.slice".to_owned(),
    ] {
        assert_eq!(place(&line), None, "{line}");
    }
    // A path can contain colons and ends with its line.
    let colon = format!("0::/a:b/docker-{ID}.scope");
    assert_eq!(place(&colon).unwrap().path, format!("/a:b/docker-{ID}.scope"));
}

proptest! {
    #[test]
    fn any_path_of_familiar_parts_is_read_without_harm(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "kubepods", "kubepods.slice", "kubepods-pod.slice", "docker", "slurm", "uid_1", "job_1", "slurmstepd.scope", "..",
                "libpod-", "a:b:c", "", "user.slice",
                "pod2c48913c-b29f-11e7-9350-020968147796",
                "kubepods-pod2c48913c_b29f_11e7_9350_020968147796.slice:cri-containerd:4c01b2a3f9d7c5e8b6a4123456789abcdef0123456789abcdef0123456789abc",
                "docker-4c01b2a3f9d7c5e8b6a4123456789abcdef0123456789abcdef0123456789abc.scope",
            ]),
            0..12,
        )
    ) {
        let path = format!("/{}", parts.join("/"));
        if let Some(place) = place(&format!("0::{path}")) {
            prop_assert!(path.starts_with(&place.path));
            prop_assert!(place.name().len() < deepres_abi::wire::TENANT_NAME_BYTES);
        }
    }
}

#[test]
fn only_the_cgroups_of_roots_slurm_prove_a_job() {
    let of = |path: &str| place(&format!("0::{path}")).unwrap();
    let container = format!("/docker/{ID}");
    let home = of(&container);
    for path in [
        "/slurm/uid_1000/job_7/step_0",
        "/slurm_n1/uid_1000/job_7",
        "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "/system.slice/n1_slurmstepd.scope/job_7",
        // CgroupSlice in cgroup.conf.
        "/batch.slice/slurmstepd.scope/job_7",
    ] {
        assert!(of(path).is_of_roots_slurm(None) && of(path).is_of_roots_slurm(Some(&home)), "{path}");
        let inside = of(&format!("{container}{path}"));
        assert_eq!(inside.job(), Some(&JobName::Number(7)), "{path}");
        assert!(!inside.is_of_roots_slurm(None), "root of the container made {path}");
        assert!(inside.is_of_roots_slurm(Some(&home)), "the daemon runs in the container, and so does Slurm");
        let scope = format!("/system.slice/docker-{ID}.scope{path}");
        assert!(!of(&scope).is_of_roots_slurm(None), "{scope}");
    }
    assert!(!home.is_of_roots_slurm(None));
    assert_eq!(of("/slurm_n1/uid_1000/job_7").slurm_node(), Some("n1"));
    assert_eq!(of("/system.slice/n1_slurmstepd.scope/job_7").slurm_node(), Some("n1"));
    assert_eq!(of("/slurm/uid_1000/job_7").slurm_node(), None);
}
