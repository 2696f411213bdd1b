//! The launchers that reach other hosts: which one is here, and its command line.
//!
//! This program connects to no other host itself. mpiexec and srun know how, and the site has set
//! them up.

mod hydra;
mod open_mpi;
mod request;
mod srun;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::failure::{Result, StartFailure};
use super::program;

pub(super) use request::StartRequest;

/// The time that mpiexec has to print its version.
const TO_ANSWER: Duration = Duration::from_secs(10);

/// A kind of launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LauncherKind {
    /// Open MPI's mpiexec.
    OpenMpi,
    /// MPICH's mpiexec.
    Hydra,
    /// Slurm's srun.
    Srun,
}

/// A launcher on this machine.
#[derive(Clone, Debug)]
pub(super) struct LauncherProgram {
    pub(super) kind: LauncherKind,
    program: PathBuf,
}

impl LauncherProgram {
    /// The mpiexec of this machine.
    pub(super) fn mpiexec() -> Result<Self> {
        let program = find(
            "mpiexec",
            "install Open MPI or MPICH, or take --launcher local for this host alone",
        )?;
        let kind = kind_of(&program)?;
        Ok(Self { kind, program })
    }

    /// The srun of this machine.
    pub(super) fn srun() -> Result<Self> {
        let program =
            find("srun", "run this inside a Slurm allocation, or take --launcher mpiexec")?;
        Ok(Self { kind: LauncherKind::Srun, program })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Its name, which stands for it in messages.
    pub(super) fn name(&self) -> &OsStr {
        self.program.file_name().unwrap_or_default()
    }

    /// The variables that it reads itself, unless the user has set them. `deadline` is that of the ranks.
    pub(super) fn variables(&self, deadline: Duration) -> Vec<(&'static str, String)> {
        match self.kind {
            LauncherKind::OpenMpi => open_mpi::keepalive(deadline),
            LauncherKind::Hydra | LauncherKind::Srun => Vec::new(),
        }
    }

    /// Its arguments, the program of the ranks included.
    pub(super) fn arguments(&self, request: &StartRequest<'_>) -> Result<Vec<OsString>> {
        if self.kind != LauncherKind::Srun && request.command.iter().any(|argument| argument == ":")
        {
            let what = "mpiexec would take the argument `:` for the beginning of another program: \
                        put the program into a script";
            return Err(StartFailure::Usage(what.to_owned()));
        }
        Ok(match self.kind {
            LauncherKind::OpenMpi => open_mpi::arguments(request),
            LauncherKind::Hydra => hydra::arguments(request),
            LauncherKind::Srun => srun::arguments(request),
        })
    }
}

fn find(name: &str, advice: &str) -> Result<PathBuf> {
    program::find(name.as_ref()).map_err(|error| match error {
        StartFailure::NotFound(_) => {
            StartFailure::NotFound(format!("there is no {name} in PATH: {advice}"))
        }
        other => other,
    })
}

/// Asks an mpiexec for its version.
fn kind_of(program: &Path) -> Result<LauncherKind> {
    let shown = program.display();
    let failed = |what: &str| StartFailure::Usage(format!("`{shown} --version` {what}"));
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| failed(&format!("cannot be run: {error}")))?;
    let end = Instant::now() + TO_ANSWER;
    // A version is shorter than what a pipe holds, so the program ends without a reader.
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= end {
            // It may end at this moment, which is as good.
            drop(child.kill());
            drop(child.wait());
            return Err(failed("does not end"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().map_err(|error| failed(&format!("failed: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    kind_in(&text).ok_or_else(|| {
        failed(
            "names neither Open MPI nor Hydra (MPICH): run this mpiexec yourself, on this program",
        )
    })
}

fn kind_in(version: &str) -> Option<LauncherKind> {
    let has = |words: &[&str]| words.iter().any(|word| version.contains(word));
    if has(&["Open MPI", "OpenRTE"]) {
        Some(LauncherKind::OpenMpi)
    } else if has(&["HYDRA"]) {
        Some(LauncherKind::Hydra)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::hostfile::HostSlots;

    #[test]
    fn an_mpiexec_is_known_by_its_version() {
        assert_eq!(kind_in("mpiexec (OpenRTE) 4.1.4\n"), Some(LauncherKind::OpenMpi));
        assert_eq!(kind_in("mpiexec (Open MPI) 5.0.11\n"), Some(LauncherKind::OpenMpi));
        assert_eq!(
            kind_in("HYDRA build details:\n    Version: 5.0.2\n"),
            Some(LauncherKind::Hydra)
        );
        assert_eq!(kind_in("Intel(R) MPI Library for Linux* OS, Version 2021.13\n"), None);
        assert_eq!(kind_in(""), None);
    }

    /// The arguments for `./train --lr 1` on five ranks of two hosts, in one line.
    fn line(kind: LauncherKind, change: impl FnOnce(&mut StartRequest<'_>)) -> String {
        let host = |name: &str| HostSlots { name: name.to_owned(), slots: 4 };
        let hosts = [host("a"), host("b")];
        let command = ["./train", "--lr", "1"].map(OsString::from);
        let more = ["-further"].map(OsString::from);
        let mut request = StartRequest {
            ranks: 5,
            hosts: Some(&hosts),
            oversubscribe: false,
            labels: true,
            folder: None,
            exported: vec!["X".to_owned()],
            mpi: "pmix",
            more: &more,
            command: &command,
        };
        change(&mut request);
        let launcher = LauncherProgram { kind, program: "launcher".into() };
        let arguments = launcher.arguments(&request).unwrap();
        arguments.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn open_mpi_gets_hosts_exports_and_tags() {
        assert_eq!(
            line(LauncherKind::OpenMpi, |_| {}),
            "--host a:4,b:4 -n 5 --bind-to none --map-by slot --tag-output -x X -further ./train --lr 1"
        );
        let alone = line(LauncherKind::OpenMpi, |request| {
            (request.hosts, request.labels, request.oversubscribe) = (None, false, true);
        });
        assert_eq!(
            alone,
            "-n 5 --bind-to none --map-by slot:oversubscribe -x X -further ./train --lr 1"
        );
        let files = line(LauncherKind::OpenMpi, |request| request.folder = Some("/logs".into()));
        assert!(
            files.contains(" -x X -further sh -c ") && files.ends_with(" /logs ./train --lr 1"),
            "{files}"
        );
        assert!(!files.contains("--tag-output"), "{files}");
    }

    #[test]
    fn hydra_gets_hosts_and_prefixes_or_files() {
        let start = "-hosts a:4,b:4 -n 5 -bind-to none -genvall";
        assert_eq!(
            line(LauncherKind::Hydra, |_| {}),
            format!("{start} -prepend-rank -further ./train --lr 1")
        );
        assert_eq!(
            line(LauncherKind::Hydra, |request| request.folder = Some("/logs".into())),
            format!(
                "{start} -outfile-pattern /logs/rank-%r.log -errfile-pattern /logs/rank-%r.err \
                 -further ./train --lr 1"
            )
        );
    }

    #[test]
    fn srun_gets_the_ranks_of_each_host() {
        let end = "--mpi=pmix --cpu-bind=none --kill-on-bad-exit=1 --export=ALL";
        assert_eq!(
            line(LauncherKind::Srun, |_| {}),
            format!(
                "--ntasks=5 --nodes=2 --nodelist=a*4,b*1 --distribution=arbitrary {end} --label \
                 -further ./train --lr 1"
            )
        );
        let few = line(LauncherKind::Srun, |request| (request.ranks, request.mpi) = (3, "pmi2"));
        assert!(few.contains("--nodes=1 --nodelist=a*3 "), "{few}");
        assert!(few.contains("--mpi=pmi2"), "{few}");
        let files = line(LauncherKind::Srun, |request| {
            (request.hosts, request.folder) = (None, Some("/logs".into()));
            request.oversubscribe = true;
        });
        assert_eq!(
            files,
            format!(
                "--ntasks=5 --overcommit {end} --output=/logs/rank-%t.log --error=/logs/rank-%t.err \
                 --open-mode=append -further ./train --lr 1"
            )
        );
    }

    #[test]
    fn an_argument_that_mpiexec_would_take_for_itself_is_refused() {
        let command = ["./train", ":", "x"].map(OsString::from);
        let request = StartRequest {
            ranks: 1,
            hosts: None,
            oversubscribe: false,
            labels: false,
            folder: None,
            exported: Vec::new(),
            mpi: "pmix",
            more: &[],
            command: &command,
        };
        let launcher = |kind| LauncherProgram { kind, program: "launcher".into() };
        assert!(launcher(LauncherKind::Hydra).arguments(&request).is_err());
        assert!(launcher(LauncherKind::Srun).arguments(&request).is_ok());
    }
}
