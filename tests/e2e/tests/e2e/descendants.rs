//! The processes that a job starts stay in the job's tenant, whatever they lose on the way. A text
//! that cannot be a name leaves a process in a tenant all the same.

use deepres_e2e::prelude::*;
use deepres_e2e::users::NOBODY;

#[test]
fn a_process_that_drops_its_user_or_its_environment_keeps_the_jobs_name_and_limits() {
    if !deepres_e2e::skip::root_or_skipped() {
        return;
    }
    let host = Host::new();
    host.let_all_users_in();
    let _daemon = host.daemon();
    // Each process is one of root, one of another user, and one of another user without a name.
    let script = "exec 3<&0; drop=\"setpriv --reuid=$1 --regid=$1 --clear-groups\"; \"$0\" <&3 & \
        $drop \"$0\" <&3 & $drop env -u DEEPRES_TENANT \"$0\" <&3 & wait";
    let view = c_client("view").display().to_string();
    let options = ["--name", "job", "--memory", "2GiB"];
    let mut job = host.spawn(host.run(&options, "sh", &["-c", script, &view, &NOBODY.to_string()]));
    let ps = host.await_ps(|ps| ps.find("job").is_some_and(|job| job.sessions.len() == 3));
    assert_eq!(ps.tenants.len(), 1, "{ps:?}");
    // A context that a process creates later would not fit into the new limit.
    eventually("each process has a context", || job.stdout().lines().count() >= 3);
    host.call(&["set", "job", "--memory", "1GiB"]).success();
    let limited = format!("\"total\":{GIB},");
    let all = |job: &Process| job.stdout().lines().filter(|line| line.contains(&limited)).count() == 3;
    eventually("each process has the new limit", || all(&job));
    job.kill();
}

#[test]
fn a_text_that_cannot_be_a_name_leaves_the_process_in_a_tenant_with_its_limits() {
    let (host, _daemon) = Host::new().config("[caps]\nmemory = \"4GiB\"\n").with_daemon();
    let long = "x".repeat(64);
    let look_alike = ["train\u{200b}", "tr\u{a0}ain", "train\u{2800}"];
    for name in ["train\n", "tr\tain", "train ", "-train", &long].into_iter().chain(look_alike) {
        let mut command = host.preloaded(c_client("view"));
        command.env("DEEPRES_TENANT", name).env("DEEPRES_MEMORY", "1GiB");
        let (view, said) = host.told(command);
        assert_eq!(said["total"], GIB, "{name:?}: {}", view.stderr());
        let ps = host.ps();
        assert!(ps.tenants.iter().any(|tenant| tenant.sessions.len() == 1), "{name:?}: {ps:?}");
        view.finish().success();

        let refused = host.finish(host.run(&[&format!("--name={name}")], "true", &[]));
        refused.refused("a name has from 1 to 63 bytes");
        let mut command = host.run(&[], "true", &[]);
        command.env("DEEPRES_TENANT", name);
        host.finish(command).refused("a name has from 1 to 63 bytes");
    }
}
