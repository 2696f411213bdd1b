//! One sample: a point measured by new processes, and the JSON line that rank 0 prints.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::plan::{Backend, Point};
use crate::shell::{display, output};
use crate::split::Split;
use crate::{bench, host, machine, ranks};

/// A measurement and its circumstances.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) round: usize,
    #[serde(flatten)]
    pub(super) point: Point,
    #[serde(flatten)]
    pub(super) measured: Measured,
    /// The share of the machine's cores that other programs used meanwhile.
    pub(super) others_cpu_share: Option<f64>,
}

/// The line that rank 0 prints. Times and bytes are rank 0's, per step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    #[serde(skip_serializing)]
    pub(super) world_size: usize,
    #[serde(rename(deserialize = "backend", serialize = "backend_used"))]
    pub(super) backend: String,
    pub(super) steps: usize,
    pub(super) warm_up_steps: usize,
    pub(super) spars: Option<f64>,
    /// Of all ranks together.
    pub(super) images_per_second: f64,
    pub(super) step_seconds: Split<f64>,
    /// The time in which collectives were running, whether or not a thread waited for them.
    pub(super) communication_seconds: f64,
    pub(super) bytes_sent_per_step: f64,
    pub(super) bytes_received_per_step: f64,
    pub(super) residual_norm: Option<f64>,
    pub(super) final_loss: f64,
}

/// The common settings of all samples.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) batch_size: usize,
    pub(super) threads_per_rank: usize,
    pub(super) rounds: usize,
    /// With `None` the program chooses the steps by model. Samples contain the number.
    pub(super) steps: Option<usize>,
    pub(super) spars: f64,
    pub(super) threshold_spars: f64,
}

/// The measured program.
#[derive(Debug)]
pub(super) struct Program(PathBuf);

impl Program {
    /// Builds the program for these backends.
    pub(super) fn build(backends: &[Backend]) -> Result<Self> {
        let mpi = backends.contains(&Backend::Mpi);
        let lacks = if mpi { machine::lacks_for_mpi() } else { Vec::new() };
        if !lacks.is_empty() {
            bail!(
                "--backend mpi: no {} here; `cargo xtask setup` installs it",
                lacks.join(", no ")
            );
        }
        let options: &[&str] = if mpi { &["--features", "mpi"] } else { &[] };
        bench::build("candelabrum-bench-scaling", "bench-scaling-rank", options).map(Self)
    }

    /// The names that the program prints, one per line.
    pub(super) fn list(&self, option: &str) -> Result<Vec<String>> {
        let mut command = Command::new(&self.0);
        let text = output(command.arg(option))
            .with_context(|| format!("`{}` printed nothing", display(&command)))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Measures a point once.
    pub(super) fn sample(
        &self,
        round: usize,
        point: &Point,
        settings: &Settings,
    ) -> Result<Sample> {
        let mut command = self.command(point, settings);
        let shown = display(&command);
        let before = host::CpuTime::now(&[]);
        // This program prints the errors, so that they do not mix with the progress bar.
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let others_cpu_share = host::CpuTime::others_share(before, host::CpuTime::now(&[]));
        let measured = read(&output, point).with_context(|| format!("`{shown}`"))?;
        Ok(Sample { round, point: point.clone(), measured, others_cpu_share })
    }

    fn command(&self, point: &Point, settings: &Settings) -> Command {
        let workers = point.workers.to_string();
        let mut command = match point.backend {
            Backend::Local => {
                let mut program = Command::new(&self.0);
                program.args(["--workers", &workers]);
                program
            }
            Backend::Mpi => ranks::mpiexec(point.workers, &self.0),
        };
        command.args(["--model", &point.model, "--strategy", &point.strategy]);
        command.args(["--batch-size", &settings.batch_size.to_string()]);
        command.args(["--threads", &settings.threads_per_rank.to_string()]);
        command.args(["--spars", &settings.spars.to_string()]);
        command.args(["--threshold-spars", &settings.threshold_spars.to_string()]);
        if let Some(steps) = settings.steps {
            command.args(["--steps", &steps.to_string()]);
        }
        command
    }
}

/// The result in the program's output, or the reason why there is none.
fn read(output: &Output, point: &Point) -> Result<Measured> {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("").to_owned()
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        // mpiexec prints more lines than the failed rank, before and after that rank's line.
        let said = text.lines().find_map(|line| line.split_once("error: "));
        let said = said.map_or_else(|| last(&output.stderr), |(_, message)| message.to_owned());
        bail!("failed ({}): {said}", output.status);
    }
    let line = last(&output.stdout);
    let measured: Measured =
        serde_json::from_str(&line).with_context(|| format!("printed no result but: {line}"))?;
    // Ranks that do not find each other would each be a world of one.
    let (workers, backend) = (measured.world_size, measured.backend.as_str());
    let as_asked = workers == point.workers && (workers == 1 || backend == point.backend.name());
    ensure!(
        as_asked,
        "asked for {} ranks over {}, it measured {workers} over {backend}",
        point.workers,
        point.backend.name()
    );
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const LINE: &str = r#"{"model":"cnn","strategy":"fp32","backend":"local","world_size":2,
        "threads":1,"batch_size":64,"steps":3,"warm_up_steps":1,"spars":null,
        "images_per_second":10.5,"step_seconds":{"total":0.7,"forward":0.1,"backward":0.1,
        "compress":0.1,"exposed_communication":0.1,"decompress":0.1,"update":0.1,"other":0.1},
        "communication_seconds":0.2,"bytes_sent_per_step":4.0,"bytes_received_per_step":4.0,
        "residual_norm":null,"final_loss":1.5}"#;

    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        let (stdout, stderr) = (stdout.into(), stderr.into());
        Output { status: ExitStatus::from_raw(code << 8), stdout, stderr }
    }

    fn point(backend: Backend, workers: usize) -> Point {
        Point { model: "cnn".into(), backend, strategy: "fp32".into(), workers }
    }

    #[test]
    fn the_last_line_is_the_result() {
        let text = format!("a remark\n{}\n", LINE.replace('\n', ""));
        let measured = read(&output(0, &text, ""), &point(Backend::Local, 2)).unwrap();
        assert_eq!((measured.steps, measured.images_per_second), (3, 10.5));
        assert_eq!(measured.step_seconds.total, 0.7);
    }

    #[test]
    fn another_world_than_asked_for_is_refused() {
        let output = output(0, &LINE.replace('\n', ""), "");
        for asked in [point(Backend::Local, 4), point(Backend::Mpi, 2)] {
            let message = read(&output, &asked).unwrap_err().to_string();
            assert!(message.contains("it measured 2 over local"), "{message}");
        }
    }

    #[test]
    fn a_failure_is_told_by_the_line_that_says_why() {
        let stderr = "warning: something\nerror: rank 1 is gone\n-----\nmpiexec noticed\n";
        let failed = read(&output(1, "", stderr), &point(Backend::Local, 2)).unwrap_err();
        assert!(failed.to_string().ends_with(": rank 1 is gone"), "{failed}");
        let silent = read(&output(1, "", "panicked\n"), &point(Backend::Local, 2)).unwrap_err();
        assert!(silent.to_string().ends_with(": panicked"), "{silent}");
    }

    #[test]
    fn each_backend_has_its_way_to_start_ranks() {
        let settings = Settings {
            batch_size: 8,
            threads_per_rank: 1,
            rounds: 1,
            steps: Some(5),
            spars: 0.05,
            threshold_spars: 0.001,
        };
        let program = Program("rank".into());
        let shown = |backend| display(&program.command(&point(backend, 2), &settings));
        let local = shown(Backend::Local);
        assert!(local.starts_with("rank --workers 2 --model cnn --strategy fp32"), "{local}");
        assert!(local.ends_with("--steps 5"), "{local}");
        let mpi = shown(Backend::Mpi);
        assert!(mpi.contains("mpiexec --bind-to none -n 2 rank --model cnn"), "{mpi}");
    }
}
