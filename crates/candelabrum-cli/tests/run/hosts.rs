//! Jobs on several hosts: the command lines of mpiexec and srun, and runs of them.
//!
//! Small scripts stand for the mpiexec of Open MPI, that of MPICH, and srun: they name themselves as
//! the real ones do, and start the ranks on this host.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::program::{Run, process_in, run};

const OPEN_MPI: (&str, &str) = ("mpiexec", "mpiexec (OpenRTE) 4.1.4");
const HYDRA: (&str, &str) = ("mpiexec", "HYDRA build details:");
const SRUN: (&str, &str) = ("srun", "slurm 23.11.4");

/// What a launcher does after it has said its version. `$*` are its arguments.
const NOTHING: &str = "exit 0";

/// A folder with a launcher and a hostfile.
struct Site(TempDir);

impl Site {
    fn new((name, version): (&str, &str), does: &str) -> Self {
        let dir = tempfile::tempdir().expect("the test's folder");
        let launcher = dir.path().join(name);
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n{does}\n"
        );
        fs::write(&launcher, script).expect("the test's folder");
        fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755))
            .expect("the test's folder");
        fs::write(dir.path().join("hosts"), "node1 slots=2\nnode2:2 # the other\n")
            .expect("the test's folder");
        Self(dir)
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// The command with this folder in PATH, on the hosts of the file.
    fn run<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> Run {
        self.with_path(run(options).option("--hostfile", self.file("hosts")))
    }

    fn with_path(&self, run: Run) -> Run {
        let mut folders = vec![self.0.path().to_owned()];
        folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        run.env("PATH", env::join_paths(folders).expect("the test's folder"))
    }
}

/// The command line without what differs in each run: the job's name and its port.
fn stable(line: &str) -> String {
    let differs = |word: &&str| {
        !word.starts_with("CANDELABRUM_JOB=") && !word.starts_with("CANDELABRUM_PORT=")
    };
    line.split_whitespace().filter(differs).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check(site: &Site, options: &[&str], expected: &str) {
    let dry = options.iter().copied().chain(["--dry-run"]);
    let ended = site.run(dry).script("exit 3").finish().expect(0);
    assert_eq!(
        stable(&ended.out),
        format!("MASTER_ADDR=node1 CANDELABRUM_RESTART=0 {expected} sh -c 'exit 3'")
    );
}

#[test]
fn the_command_line_of_open_mpi_is_printed() {
    let site = Site::new(OPEN_MPI, NOTHING);
    let exports = "-x MASTER_ADDR -x CANDELABRUM_PORT -x CANDELABRUM_JOB -x CANDELABRUM_RESTART";
    let start = "OMPI_MCA_oob_tcp_keepalive_time=60 OMPI_MCA_oob_tcp_keepalive_intvl=15 \
                 OMPI_MCA_oob_tcp_keepalive_probes=4 mpiexec --host node1:2,node2:2";
    check(&site, &[], &format!("{start} -n 4 --bind-to none --map-by slot --tag-output {exports}"));
    check(
        &site,
        &["-n", "5", "--oversubscribe", "--prefix", "none", "--launcher-arg", "--verbose"],
        &format!("{start} -n 5 --bind-to none --map-by slot:oversubscribe {exports} --verbose"),
    );
}

#[test]
fn the_command_line_of_hydra_is_printed() {
    let site = Site::new(HYDRA, NOTHING);
    let start = "mpiexec -hosts node1:2,node2:2";
    check(&site, &["-n", "3"], &format!("{start} -n 3 -bind-to none -genvall -prepend-rank"));
    check(
        &site,
        &["--log-dir", "/logs"],
        &format!(
            "{start} -n 4 -bind-to none -genvall -outfile-pattern /logs/attempt-0/rank-%r.log \
             -errfile-pattern /logs/attempt-0/rank-%r.err"
        ),
    );
}

#[test]
fn the_command_line_of_srun_is_printed() {
    let site = Site::new(SRUN, NOTHING);
    let end = "--distribution=arbitrary --mpi=pmix --cpu-bind=none --kill-on-bad-exit=1 --export=ALL --label";
    check(
        &site,
        &["--launcher", "srun", "-n", "3"],
        &format!("srun --ntasks=3 --nodes=2 '--nodelist=node1*2,node2*1' {end}"),
    );
}

#[test]
fn an_allocation_of_slurm_gives_the_number_of_ranks() {
    let site = Site::new(SRUN, NOTHING);
    let run = site.with_path(run(["--dry-run"])).script("true");
    let run = run.env("SLURM_JOB_ID", "7").env("SLURM_NTASKS", "6");
    let ended = run.finish().expect(0);
    assert!(ended.out.contains(" srun --ntasks=6 --mpi=pmix "), "{ended:#?}");
}

#[test]
fn the_line_is_said_and_run_and_its_exit_code_is_kept() {
    // The last three arguments are the program.
    let does = r#"while [ $# -gt 3 ]; do shift; done; exec "$@""#;
    let site = Site::new(OPEN_MPI, does);
    let ended = site.run([]).script("echo job $CANDELABRUM_JOB; exit 9").finish().expect(9);
    assert!(ended.out.starts_with("job ") && ended.out.len() > 20, "{ended:#?}");
    ended.says([
        "+ MASTER_ADDR=node1 ",
        " mpiexec --host ",
        "error: mpiexec ended with exit status: 9",
    ]);
}

#[test]
fn a_host_that_cannot_be_reached_is_left_out_of_a_restart() {
    let does = r#"case "$*" in
        *node2*) echo "ssh: connect to host node2 port 22: No route to host" >&2; exit 1;;
        *) exit 0;; esac"#;
    let site = Site::new(HYDRA, does);
    let options = ["--max-restarts", "2", "--backoff", "0.05", "--on-failure", "shrink"];
    let ended = site.run(options).script("true").finish().expect(0);
    ended.says([" with 2 worker(s), without node2\n", "-hosts node1:2 -n 2 "]);
}

#[test]
fn a_launcher_gets_the_signals() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("started").display().to_string();
    let does =
        format!("trap 'echo got it; exit 0' TERM; echo $$ > {file}; while :; do sleep 0.05; done");
    let site = Site::new(HYDRA, &does);
    let running = site.run([]).script("true").start();
    process_in(Path::new(&file));
    running.signal(Signal::TERM);
    let ended = running.finish().expect(143);
    assert_eq!(ended.out, "got it\n");
}

#[test]
fn errors_of_a_hostfile_name_the_file_and_the_line() {
    let site = Site::new(OPEN_MPI, NOTHING);
    let hosts = site.file("hosts");
    for (text, line, part) in [
        ("node1\nnode2 slots=x\n", ":2: ", "`x` is not a number of slots"),
        ("\n\nme@node1\n", ":3: ", "~/.ssh/config"),
        ("# none\n", " ", "names no host"),
    ] {
        fs::write(&hosts, text).unwrap();
        let place = format!("error: {hosts}{line}");
        site.run([]).script("true").finish().expect(2).says([place.as_str(), part]);
    }
    fs::remove_file(&hosts).unwrap();
    site.run([]).script("true").finish().expect(2).says(["cannot read the hostfile", &hosts]);
}

#[test]
fn what_hosts_cannot_do_is_refused_with_advice() {
    let site = Site::new(OPEN_MPI, NOTHING);
    for (options, part) in [
        (&["-n", "5"][..], "--oversubscribe allows more"),
        (&["--show", "0"], "mpiexec writes the output"),
        (&["--launcher", "local"], "leave out --hostfile"),
    ] {
        site.run(options.iter().copied()).script("true").finish().expect(2).says([part]);
    }
    let unknown = Site::new(("mpiexec", "Some other MPI"), NOTHING);
    unknown.run([]).script("true").finish().expect(2).says(["neither Open MPI nor Hydra"]);
    let empty = tempfile::tempdir().unwrap();
    let none = run(["--hostfile", &site.file("hosts")]).env("PATH", empty.path());
    none.program("/bin/true").finish().expect(127).says(["there is no mpiexec in PATH"]);
}

/// Two slots of this host, in the two forms of a hostfile. The second one is on SINGA's page, and Open MPI itself does
/// not read it.
const HOSTFILES: [&str; 2] = ["localhost slots=2\n", "localhost:2\n"];

/// The command on the slots of this hostfile by the real mpiexec, and the folder of the file. `None` where no mpiexec
/// is installed.
fn real(hostfile: &str, options: &[&str]) -> Option<(Run, TempDir)> {
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|folder| folder.join("mpiexec").is_file()) {
        return None;
    }
    let dir = tempfile::tempdir().expect("the test's folder");
    let hosts = dir.path().join("hosts");
    fs::write(&hosts, hostfile).expect("the test's folder");
    // Open MPI does not run as root unless it is told to.
    let run = run(options.iter().copied())
        .option("--hostfile", hosts)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Some((run, dir))
}

#[test]
fn the_mpiexec_of_this_machine_starts_ranks_that_know_their_place() {
    for hostfile in HOSTFILES {
        let Some((run, dir)) = real(hostfile, &[]) else {
            println!("left out: there is no mpiexec here");
            return;
        };
        let script =
            r#"echo "${OMPI_COMM_WORLD_RANK-$PMI_RANK} $CANDELABRUM_RESTART $MASTER_ADDR""#;
        let log_dir = dir.path().join("logs");
        run.option("--log-dir", &log_dir).script(script).finish().expect(0);
        for rank in 0..2 {
            let file = log_dir.join(format!("attempt-0/rank-{rank}.log"));
            assert_eq!(fs::read_to_string(file).unwrap(), format!("{rank} 0 localhost\n"));
        }
    }
}

#[test]
fn ranks_of_the_mpiexec_of_this_machine_save_their_work_on_a_signal() {
    let Some((run, dir)) = real(HOSTFILES[0], &["--stop-signal", "usr1"]) else {
        println!("left out: there is no mpiexec here");
        return;
    };
    let rank = "${OMPI_COMM_WORLD_RANK-$PMI_RANK}";
    let file = dir.path().join("up").display().to_string();
    // Open MPI would give them one second after SIGTERM.
    let script = format!(
        r#"trap 'sleep 2; echo saved $CANDELABRUM_RESTART; exit 0' USR1
        echo $$ > {file}-{rank}; while :; do sleep 0.05; done"#
    );
    let running = run.script(&script).start();
    for rank in 0..2 {
        process_in(Path::new(&format!("{file}-{rank}")));
    }
    running.signal(Signal::TERM);
    let ended = running.finish().expect(143);
    assert_eq!(ended.out.matches("saved 0").count(), 2, "{ended:#?}");
}
