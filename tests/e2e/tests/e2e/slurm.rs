//! Slurm's jobs have the part of the GPUs that Slurm gave to them, whatever their variables say.
//!
//! The deep test runs a real cluster: Debian's Slurm with two nodes on this machine. In the quick
//! test, a script answers in the place of `scontrol`, and the test makes the cgroup of the job.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::cgroups::{Cgroup, hierarchies};
use deepres_e2e::prelude::*;
use deepres_e2e::skip::root_or_skipped;
use deepres_e2e::slurm::Cluster;

/// Variables with which a job tries to get more than Slurm gave to it, under another name.
const GREEDY: [(&str, &str); 4] = [
    ("DEEPRES_SHARE", "99%"),
    ("DEEPRES_MEMORY", "64GiB"),
    ("DEEPRES_TENANT", "mine"),
    ("DEEPRES_CRITICALITY", "high"),
];
/// Two GPUs with kernels of a known length.
const TWO_GPUS: &str = "gpus = 2\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n";
/// Time within which Slurm starts or ends a job, however busy the machine is.
const SLURM_LIMIT: Duration = Duration::from_secs(30);

/// Returns the bytes of a part of GPU 0's memory.
fn part_of_memory(host: &Host, percent: u64) -> u64 {
    number(&host.status()["gpus"][0], "memory_bytes") * percent / 100
}

/// Asserts the granted share, percent, and the granted memory, bytes, of a Slurm job's tenant.
#[track_caller]
fn assert_granted(host: &Host, job: u32, percent: u64, memory_bytes: Option<u64>) {
    let tenant = host.tenant(&format!("slurm-{job}"));
    let granted = &tenant["granted"];
    assert_eq!(granted["share_ppm"]["value"], percent * 10_000, "{granted}");
    assert_eq!(granted["memory_bytes"]["value"].as_u64(), memory_bytes, "{granted}");
}

/// The resources of a job with 30 shards of the first GPU, as Slurm shows them up to release 23.02,
/// and later.
const THIRTY_SHARDS: [&str; 2] = ["shard:30(IDX:0)", "shard:30(30/100,0/100)"];

/// Writes a script that answers in the place of `scontrol`. Job `job`, which Slurm also knows as
/// `name`, has these resources. Slurm's list of the node `n1` has `gpus` GPUs. Each other question
/// fails. Each answer about the job adds a line to the file `asked`. While the file `broken`
/// exists, the script fails. Returns the value of `PATH` with the script.
fn stand_in_for_scontrol(host: &Host, job: u32, name: &str, resources: &str, gpus: usize) -> PathBuf {
    let folder = host.path().join("bin");
    fs::create_dir(&folder).unwrap();
    let script = folder.join("scontrol");
    let text = format!(
        "#!/bin/sh\n[ -e '{}' ] && exit 1\n\
         [ \"$*\" = 'show node n1' ] && echo '   Gres=gpu:{gpus}(S:0),shard:{gpus}00(S:0)' && exit\n\
         [ \"$*\" = 'show job --details {name}' ] || exit 1\necho asked >> '{}'\n\
         echo 'JobId={job} JobName=train'\necho '   JOB_GRES=shard:30'\necho '     Nodes=n1 CPU_IDs=0 Mem=0 GRES={resources}'\n",
        host.path().join("broken").display(),
        host.path().join("asked").display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    PathBuf::from(format!("{}:{path}", folder.display()))
}

#[test]
fn the_daemon_asks_slurm_once_for_each_job_and_bounds_it_by_the_answer() {
    if !root_or_skipped() {
        return;
    }
    let job = std::process::id();
    let hierarchy = hierarchies()[0];
    let host = Host::new().simgpu(TWO_GPUS);
    let path = stand_in_for_scontrol(&host, job, &job.to_string(), THIRTY_SHARDS[0], 2);
    let _daemon = host.daemon_with(&[("PATH", &path)]);
    let cgroups =
        [0, 1].map(|step| Cgroup::make(hierarchy, &format!("slurm_n1/uid_1000/job_{job}/step_{step}")));
    let name = format!("slurm-{job}");
    let on_second = [&GREEDY[..], &[("CUDA_VISIBLE_DEVICES", "1")]].concat();
    let mut running = vec![cgroups[0].start_with(&host, &GREEDY), cgroups[1].start_with(&host, &on_second)];
    let ps = host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 2));
    assert_eq!(ps.tenants.len(), 1, "a name makes no second tenant of the job: {ps:?}");
    assert_granted(&host, job, 30, Some(part_of_memory(&host, 30)));
    let tenant = host.tenant(&name);
    assert_eq!(tenant["granted"]["share_ppm"]["rule"], json!({ "cap": "allotment" }), "{tenant}");
    assert_eq!(tenant["placement"]["gpus"], json!([0]), "{tenant}");
    let owed = |gpu: u64| {
        let accounts = tenant["gpus"].as_array().unwrap().iter();
        let account = accounts.clone().find(|account| account["gpu"] == gpu);
        account.unwrap_or_else(|| panic!("{tenant}"))["entitled_by"].clone()
    };
    assert_eq!((owed(0), owed(1)), (json!("asked"), json!("gaps")), "GPU 1 is another job's: {tenant}");
    assert_eq!(fs::read_to_string(host.path().join("asked")).unwrap(), "asked\n");

    let mut epilog = host.deepres(&["slurm", "epilog"]);
    epilog.env("SLURM_JOB_ID", job.to_string());
    let said = host.finish(epilog).success();
    assert!(said.stderr.contains(&format!("use GPUs still ({name})")), "{}", said.stderr);
    running.iter_mut().for_each(Process::kill);
    let mut epilog = host.deepres(&["slurm", "epilog"]);
    epilog.env("SLURM_JOB_ID", job.to_string());
    assert_eq!(host.finish(epilog).success().stderr, "");
    assert_eq!(host.ps().find(&name), None);
    // A requeued job has the same number. The daemon asks anew.
    running.push(cgroups[0].start_with(&host, &[]));
    host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 1));
    assert_eq!(fs::read_to_string(host.path().join("asked")).unwrap(), "asked\nasked\n");
    running.pop().into_iter().for_each(|mut process| process.kill());
}

#[test]
fn a_job_is_cut_on_no_gpu_of_a_node_whose_list_lacks_a_gpu() {
    if !root_or_skipped() {
        return;
    }
    // Another number than those of the other tests.
    let job = std::process::id() + 3;
    let host = Host::new().simgpu(TWO_GPUS);
    let path = stand_in_for_scontrol(&host, job, &job.to_string(), THIRTY_SHARDS[0], 1);
    let _daemon = host.daemon_with(&[("PATH", &path)]);
    let cgroup = Cgroup::make(hierarchies()[0], &format!("slurm_n1/uid_1000/job_{job}/step_0"));
    // Slurm's only GPU can be either GPU of the machine.
    let on_second = [&GREEDY[..], &[("CUDA_VISIBLE_DEVICES", "1")]].concat();
    let mut running = cgroup.start_with(&host, &on_second);
    let name = format!("slurm-{job}");
    host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 1));
    assert_granted(&host, job, 30, Some(part_of_memory(&host, 30)));
    let tenant = host.tenant(&name);
    let mut accounts = tenant["gpus"].as_array().unwrap().iter();
    let second = accounts.find(|account| account["gpu"] == 1).unwrap_or_else(|| panic!("{tenant}"));
    assert_eq!(second["entitled_by"], "asked", "{tenant}");
    running.kill();
}

#[test]
fn a_job_about_which_slurm_gave_no_answer_is_one_tenant_and_is_bound_later() {
    if !root_or_skipped() {
        return;
    }
    // Another number than that of the test above, in case both run in one process.
    let job = std::process::id() + 1;
    let host = Host::new().simgpu(TWO_GPUS);
    let path = stand_in_for_scontrol(&host, job, &job.to_string(), THIRTY_SHARDS[0], 2);
    let broken = host.path().join("broken");
    fs::write(&broken, "").unwrap();
    let _daemon = host.daemon_with(&[("PATH", &path)]);
    let cgroup = Cgroup::make(hierarchies()[0], &format!("slurm_n1/uid_1000/job_{job}/step_0"));
    let name = format!("slurm-{job}");
    let mut first = cgroup.start_with(&host, &GREEDY);
    host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 1));
    assert_eq!(host.tenant(&name)["granted"]["share_ppm"]["value"], 990_000);
    fs::remove_file(&broken).unwrap();
    eventually_within("the daemon asks again", SLURM_LIMIT, || {
        host.tenant(&name)["granted"]["share_ppm"]["value"] == 300_000
    });
    let mut second = cgroup.start_with(&host, &[]);
    let ps = host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 2));
    assert_eq!(ps.tenants.len(), 1, "the job is one tenant: {ps:?}");
    assert_granted(&host, job, 30, Some(part_of_memory(&host, 30)));
    assert_eq!(fs::read_to_string(host.path().join("asked")).unwrap(), "asked\n");
    [&mut first, &mut second].into_iter().for_each(Process::kill);
}

#[test]
fn a_job_whose_cgroup_has_a_sluid_is_bound_and_goes_by_its_number() {
    if !root_or_skipped() {
        return;
    }
    // Another number than those of the tests above.
    let job = std::process::id() + 2;
    let sluid = format!("s{job:013}");
    let host = Host::new().simgpu(TWO_GPUS);
    let path = stand_in_for_scontrol(&host, job, &sluid, THIRTY_SHARDS[1], 2);
    let _daemon = host.daemon_with(&[("PATH", &path)]);
    let in_scope = format!("system.slice/n1_slurmstepd.scope/{sluid}/step_0");
    // Of version 2, if the machine has it: only there, Slurm uses SLUIDs.
    let hierarchy = *hierarchies().last().unwrap();
    let cgroup = Cgroup::make(hierarchy, &in_scope);
    let name = format!("slurm-{job}");
    let mut running = cgroup.start_with(&host, &GREEDY);
    host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 1));
    assert_granted(&host, job, 30, Some(part_of_memory(&host, 30)));
    running.kill();
    let mut epilog = host.deepres(&["slurm", "epilog"]);
    epilog.env("SLURM_JOB_ID", job.to_string());
    assert_eq!(host.finish(epilog).success().stderr, "");
    assert_eq!(host.ps().find(&name), None);
}

#[test]
fn a_job_from_within_a_job_has_its_part_of_the_whole_gpus_memory() {
    let host = Host::new().simgpu(TWO_GPUS);
    let _daemon = host.daemon();
    let outer = [("DEEPRES_TENANT", "slurm-6"), ("DEEPRES_MEMORY", "1GiB"), ("DEEPRES_SHARE", "10%")];
    let mut client = host.preloaded(c_client("backlog"));
    client.envs(outer);
    let _running = host.start(client, "ready");
    // Slurm starts the task prolog with the environment of the job, which is that of the outer job.
    let mut prolog = host.deepres(&["slurm", "task-prolog"]);
    prolog.envs(outer).env("LD_PRELOAD", &artefacts().library).env("DEEPRES_SOCKET", host.tenant_socket());
    prolog.env("SLURM_JOB_ID", "7").env("SLURM_GPUS_ON_NODE", "1").env("SLURM_SHARDS_ON_NODE", "30");
    prolog.env("SLURM_JOB_GPUS", "1").env("PATH", stand_in_for_scontrol(&host, 7, "7", THIRTY_SHARDS[1], 2));
    let said = host.finish(prolog).success().stdout;
    let memory = format!("export DEEPRES_MEMORY={}", part_of_memory(&host, 30));
    assert!(said.lines().any(|line| line == memory), "{said}");
    let uuid = host.status()["gpus"][1]["uuid"].as_str().unwrap().to_owned();
    assert!(said.lines().any(|line| line == format!("export CUDA_VISIBLE_DEVICES={uuid}")), "{said}");
    let preload = said.lines().find(|line| line.starts_with("export LD_PRELOAD=")).unwrap();
    assert!(preload.contains(artefacts().library.to_str().unwrap()), "{preload}");
}

#[test]
#[ignore = "deep: runs a cluster of Slurm"]
fn the_steps_of_a_job_and_the_tasks_of_an_array_have_their_jobs_part() {
    let host = Host::new().simgpu(TWO_GPUS);
    let Some(cluster) = Cluster::start(&[&host]) else { return };
    let _daemon = host.daemon_with(&[("SLURM_CONF", &cluster.conf())]);
    let show = "$DEEPRES_TENANT $DEEPRES_SHARE $DEEPRES_MEMORY $CUDA_VISIBLE_DEVICES";
    let script = format!(
        "echo script {show}\nsrun --gres=shard:10 sh -c 'echo step {show}'\n\
         srun --gres=none sh -c 'echo none ${{SLURM_SHARDS_ON_NODE-no}} ${{CUDA_VISIBLE_DEVICES-no}}'\necho end"
    );
    let job = cluster.submit(0, &["--gres=shard:30"], &script);
    eventually_within("the job ends", SLURM_LIMIT, || cluster.output(0, job).contains("\nend"));
    let said = cluster.output(0, job);
    let of = |what: &str| {
        said.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_else(|| panic!("{what}: {said}"))
    };
    assert_eq!(of("script "), of("step "), "{said}");
    let expected = format!("slurm-{job} 30% {} GPU-", part_of_memory(&host, 30));
    assert!(of("script ").starts_with(&expected), "{said}");
    assert_eq!(of("none "), "no no", "the step has no GPU: {said}");

    let client = format!("sleep 600 | {}", c_client("backlog").display());
    cluster.submit(0, &["--array=0-1", "--gres=shard:25"], &client);
    let tasks = || {
        let listed = cluster.call("squeue", &["--noheader", "--array", "--states=R", "--format=%A"]).stdout;
        listed.lines().map(|line| line.trim().parse().unwrap()).collect::<Vec<u32>>()
    };
    let has_session = |task: &u32| {
        let name = format!("slurm-{task}");
        host.ps().find(&name).is_some_and(|tenant| tenant.sessions.len() == 1)
    };
    eventually_within("both tasks of the array run", SLURM_LIMIT, || {
        let tasks = tasks();
        tasks.len() == 2 && tasks.iter().all(has_session)
    });
    for task in tasks() {
        assert_granted(&host, task, 25, Some(part_of_memory(&host, 25)));
    }
}

/// Tests that measure. Each runs alone on the machine.
mod measured {
    use super::*;

    /// Time of a measurement.
    const MEASURED: Duration = Duration::from_secs(4);
    /// Time after which the clients are past their first launches.
    const SETTLED: Duration = Duration::from_millis(700);
    /// Time within which the daemon lists an unmanaged process.
    const FOUND_WITHIN: Duration = Duration::from_secs(1);
    /// The daemon reports no unmanaged process for two seconds after its start.
    const QUIET: Duration = Duration::from_millis(2_200);

    /// Returns the script of a job that keeps the GPU backlogged, after other commands. The client
    /// ends when its input ends.
    fn script(before: &str) -> String {
        format!("{before}\nsleep 600 | {}", c_client("backlog").display())
    }

    /// Waits until a job has a session, and returns the process of the session.
    #[track_caller]
    fn started(host: &Host, job: u32) -> u32 {
        let name = format!("slurm-{job}");
        let is_there = |ps: &Ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 1);
        host.await_ps_within(is_there, SLURM_LIMIT).tenant(&name).pids()[0]
    }

    /// Asserts that each process had this part of the time of a GPU, percent.
    #[track_caller]
    fn assert_shares(host: &Host, wanted: [&[(u32, f64)]; 2]) {
        thread::sleep(SETTLED);
        let before = host.truth();
        thread::sleep(MEASURED);
        let after = host.truth();
        for (gpu, wanted) in wanted.into_iter().enumerate() {
            let tally = Tally::between_on(gpu, &before, &after);
            let had: Vec<f64> = wanted.iter().map(|(pid, _)| tally.percent(&[*pid])).collect();
            println!("GPU {gpu}: wanted {wanted:?}, had {had:.2?}");
            for ((pid, percent), had) in wanted.iter().zip(&had) {
                let gap = (had - percent).abs();
                assert!(gap <= deepres_e2e::shares::ALLOWED_POINTS, "GPU {gpu}, process {pid}: {had} %");
            }
        }
    }

    #[test]
    #[ignore = "deep: runs a cluster of Slurm"]
    fn jobs_on_two_nodes_run_at_the_shares_that_slurm_gave_on_the_right_gpus() {
        let first = Host::measuring().simgpu(TWO_GPUS);
        // Without eBPF programs, the daemon asks NVML about unmanaged processes.
        let second = Host::beside(&first).simgpu(TWO_GPUS).config("[probes]\nenabled = false\n");
        let Some(mut cluster) = Cluster::start(&[&first, &second]) else { return };
        let conf = cluster.conf();
        let _daemons = [&first, &second].map(|host| host.daemon_with(&[("SLURM_CONF", &conf)]));
        let quiet = Instant::now() + QUIET;

        let exports = GREEDY.map(|(name, value)| format!("export {name}={value}")).join("\n");
        let submit = |shards: u32, before: &str| {
            cluster.submit(0, &[&format!("--gres=shard:{shards}")], &script(before))
        };
        // Slurm puts each job on the first GPU with room. The jobs of 10 and 20 shards fill the
        // GPUs.
        let jobs = [(30, exports.as_str()), (60, ""), (80, ""), (10, ""), (20, "")]
            .map(|(shards, before)| (u64::from(shards), submit(shards, before)));
        let pids = jobs.map(|(_, job)| started(&first, job));
        for ((percent, job), gpu) in jobs.into_iter().zip([0, 0, 1, 0, 1]) {
            assert_granted(&first, job, percent, Some(part_of_memory(&first, percent)));
            assert_eq!(first.tenant(&format!("slurm-{job}"))["placement"]["gpus"], json!([gpu]));
        }
        let on_first = [(pids[0], 30.0), (pids[1], 60.0), (pids[3], 10.0)];
        let on_second = [(pids[2], 80.0), (pids[4], 20.0)];
        assert_shares(&first, [&on_first, &on_second]);

        // A whole GPU, and a job to which Slurm gave no GPU and that brings deepres by itself.
        let divided = format!(
            "{} run --name half --share 50% -- {}",
            artefacts().deepres.display(),
            c_client("view").display()
        );
        let whole = cluster.submit(1, &["--gres=gpu:1"], &format!("sleep 600 | {divided} &\n{}", script("")));
        started(&second, whole);
        assert_granted(&second, whole, 100, None);
        let half = second.await_ps(|ps| ps.find("half").is_some_and(|half| !half.sessions.is_empty()));
        assert_eq!(half.tenant(&format!("slurm-{whole}")).sessions.len(), 1, "a job divides its whole GPU");
        assert_eq!(second.tenant("half")["granted"]["share_ppm"]["value"], 500_000);
        let deepres = format!(
            "export LD_PRELOAD={} DEEPRES_SOCKET={}\n{exports}",
            artefacts().library.display(),
            second.tenant_socket().display()
        );
        let stowaway = cluster.submit(1, &[], &script(&deepres));
        started(&second, stowaway);
        assert_eq!(second.tenant(&format!("slurm-{stowaway}"))["class"], "best-effort");
        assert_granted(&second, stowaway, 1, Some(part_of_memory(&second, 1)));

        // A job without the interposer.
        thread::sleep(quiet.saturating_duration_since(Instant::now()));
        let bare = cluster.submit(1, &["--gres=shard:20"], &script("unset LD_PRELOAD"));
        eventually_within("the job computes", SLURM_LIMIT, || cluster.output(1, bare).contains("ready"));
        let computes = Instant::now();
        let name = format!("slurm-{bare}");
        eventually_within("the daemon lists the job", SLURM_LIMIT, || {
            let status = second.status();
            status["unmanaged"].as_array().unwrap().iter().any(|user| user["started_by"] == name.as_str())
        });
        assert!(computes.elapsed() < FOUND_WITHIN, "found after {:?}", computes.elapsed());

        // Changes of the cluster change nothing for running jobs.
        cluster.call("scontrol", &["reconfigure"]);
        cluster.restart_slurmd(0);
        assert_eq!(jobs.map(|(_, job)| started(&first, job)), pids);
        assert_shares(&first, [&on_first, &on_second]);

        // A cancelled and a requeued job leave nothing.
        let [(_, cancelled), (_, requeued), ..] = jobs;
        cluster.call("scancel", &[&cancelled.to_string()]);
        cluster.call("scontrol", &["requeue", &requeued.to_string()]);
        for job in [cancelled, requeued] {
            let name = format!("slurm-{job}");
            first.await_ps_within(|ps| ps.find(&name).is_none(), SLURM_LIMIT);
            eventually_within("the job's cgroup is gone", SLURM_LIMIT, || !cluster.has_cgroup(0, job));
        }
        let live = first.truth().processes.into_iter().filter(|process| deepres_e2e::alive(process.pid));
        assert_eq!(live.count(), jobs.len() - 2);
        // Slurm makes a requeued job wait for two minutes, unless an administrator starts it. The
        // wait begins some time after the job's end.
        eventually_within("the requeued job starts", SLURM_LIMIT, || {
            let state = cluster
                .call("squeue", &["--noheader", "--format=%t", "--jobs", &requeued.to_string()])
                .stdout;
            if state.trim() == "PD" {
                // The job may have started since.
                let _ =
                    cluster.try_call("scontrol", &["update", &format!("JobId={requeued}"), "StartTime=now"]);
            }
            state.trim() == "R"
        });
        assert_ne!(started(&first, requeued), pids[1]);
        assert_granted(&first, requeued, 60, Some(part_of_memory(&first, 60)));

        cluster.call("scancel", &["--user", "root"]);
        for host in [&first, &second] {
            host.await_ps_within(|ps| ps.tenants.is_empty(), SLURM_LIMIT);
            assert!(host.truth().gpus.iter().all(|gpu| gpu.memory_used_bytes == 0), "{:?}", host.truth());
        }
    }
}
