//! Programs in the environments of engines: none of them trains alone where the engine has started several.

use std::fs;

use candelabrum_testkit::{EndedProgram, Program};
use tempfile::TempDir;

use crate::programs::{command, example};

/// A short training in these variables, separated by `;`.
fn training(environment: &str) -> Program {
    let args = ["--epochs", "1", "--max-steps", "1", "--threads", "1"];
    example("regression").args(args).envs(variables(environment))
}

/// The ranks of a training that has succeeded.
#[track_caller]
fn ranks_of(environment: &str, options: &[&str]) -> usize {
    let dir = TempDir::new().unwrap();
    let report = dir.path().join("report.json");
    let program = training(environment).args(options).arg("--report").arg(&report);
    let ended = program.run();
    assert!(ended.succeeded(), "{environment}: {}", ended.text);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    usize::try_from(report["world_size"].as_u64().unwrap()).unwrap()
}

/// `NAME=VALUE` separated by `;`.
fn variables(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split(';').filter_map(|pair| pair.split_once('='))
}

/// The ways out that a refusal names.
const WAYS: [&str; 3] = ["`--workers 1`", "`World::single()`", "RANK=0 and WORLD_SIZE=1"];

/// What the programs of an engine have in their environments. Each must be refused.
const SEVERAL: [&str; 24] = [
    "PET_NNODES=2;PET_NODE_RANK=1;PET_NPROC_PER_NODE=1;PET_MASTER_ADDR=t-node-0-0.t;PET_MASTER_PORT=29500",
    "PET_NNODES=1:4;PET_NODE_RANK=0;JOB_COMPLETION_INDEX=0",
    "AWS_BATCH_JOB_NUM_NODES=2;AWS_BATCH_JOB_NODE_INDEX=1;AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
    "AWS_BATCH_JOB_ARRAY_INDEX=3;AWS_BATCH_JOB_ARRAY_SIZE=10",
    "SKYPILOT_NUM_NODES=2;SKYPILOT_NODE_RANK=1;SKYPILOT_NODE_IPS=10.0.0.1 10.0.0.2",
    "SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2",
    "JAX_NUM_PROCESSES=2;JAX_PROCESS_ID=1;JAX_COORDINATOR_ADDRESS=a:1",
    "FLUX_JOB_SIZE=2;FLUX_TASK_RANK=1;FLUX_JOB_NNODES=1",
    "PMIX_RANK=1;PMIX_NAMESPACE=x",
    "JOB_COMPLETION_INDEX=1",
    "VC_TASK_INDEX=1;VC_WORKER_NUM=2;VC_WORKER_HOSTS=a,b",
    "SLURM_JOB_ID=7;SLURM_NNODES=2;SLURM_JOB_NUM_NODES=2;SLURM_PROCID=0",
    "SLURM_JOB_ID=7;SLURM_NNODES=1;SLURM_NTASKS=8;SLURM_PROCID=0",
    "SLURM_JOB_ID=7;SLURM_NNODES=1;SLURM_ARRAY_TASK_ID=3",
    "DMLC_NUM_WORKER=2;DMLC_TASK_ID=1;DMLC_TRACKER_URI=a;DMLC_TRACKER_PORT=9091",
    "LSB_MCPU_HOSTS=a 4 b 4;LSB_JOBINDEX=0",
    "PBS_NUM_NODES=2;PBS_JOBID=7",
    "SGE_TASK_ID=4;NHOSTS=1",
    "OMPI_COMM_WORLD_SIZE=2",
    "RANK=1",
    "MV2_COMM_WORLD_RANK=0;MV2_COMM_WORLD_SIZE=2",
    "SM_HOSTS=[\"algo-1\",\"algo-2\"];SM_CURRENT_HOST=algo-1",
    "TF_CONFIG={\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}}",
    "NUM_NODES=2;NODE_RANK=0",
];

/// The same for one node, one task or no array.
const ONE: [&str; 6] = [
    "PET_NNODES=1;PET_NODE_RANK=0;PET_NPROC_PER_NODE=4;JOB_COMPLETION_INDEX=0",
    "SKYPILOT_NUM_NODES=1;SKYPILOT_NODE_RANK=0;SKYPILOT_NODE_IPS=10.0.0.1",
    "SLURM_JOB_ID=7;SLURM_NNODES=1;SLURM_NTASKS=1;SLURM_PROCID=0",
    "LSB_MCPU_HOSTS=a 8;LSB_JOBINDEX=0;SGE_TASK_ID=undefined",
    "RANK=0;WORLD_SIZE=1;MASTER_ADDR=127.0.0.1;MASTER_PORT=29571",
    "PMIX_RANK=1;RANK=0;WORLD_SIZE=1",
];

/// Whether a refusal names a variable of the environment.
fn is_named(environment: &str, ended: &EndedProgram) -> bool {
    variables(environment).any(|(name, _)| ended.err.contains(name))
}

#[test]
fn no_program_trains_alone_where_an_engine_has_started_several() {
    for environment in SEVERAL {
        let ended = training(environment).run().expect(2).fails(WAYS);
        assert!(is_named(environment, &ended), "{environment}: {}", ended.err);
        assert_eq!(ended.out, "", "{environment}");
        println!("{}\n  exit code 2, {}", environment.replace('\n', "\\n"), ended.err.trim());
    }
    for environment in ONE {
        assert_eq!(ranks_of(environment, &[]), 1, "{environment}");
    }
}

#[test]
fn workers_are_the_word_of_a_user_who_knows_the_engine() {
    for environment in [SEVERAL[0], SEVERAL[8], SEVERAL[14]] {
        assert_eq!(ranks_of(environment, &["--workers", "1"]), 1, "{environment}");
        let ended = training(environment).args(["--workers", "2"]).run().expect(2).fails(WAYS);
        assert!(is_named(environment, &ended), "{environment}: {}", ended.err);
    }
    // A script or a shell of Slurm on one node, a launcher of one process, a pod of one.
    let shell = "SLURM_JOB_ID=77;SLURM_STEP_ID=4294967290;SLURM_PROCID=0;SLURM_LOCALID=0;SLURM_NTASKS=8;\
                 SLURM_STEP_NUM_TASKS=1;SLURM_NNODES=1;SLURM_STEP_NUM_NODES=1";
    let step =
        "SLURM_JOB_ID=77;SLURM_STEP_ID=3;SLURM_PROCID=0;SLURM_LOCALID=0;SLURM_STEP_NUM_TASKS=1";
    for environment in [SEVERAL[12], SEVERAL[13], shell, step, ONE[0], ONE[4]] {
        assert_eq!(ranks_of(environment, &["--workers", "2"]), 2, "{environment}");
    }
}

#[test]
fn the_command_starts_ranks_of_this_host_only_where_the_job_has_no_other() {
    let run = |environment, options: &[&str]| {
        command().arg("run").args(options).args(["--", "true"]).envs(variables(environment)).run()
    };
    for environment in [SEVERAL[0], SEVERAL[2], SEVERAL[9]] {
        run(environment, &[]).expect(2).fails(["`--workers 1`"]);
        run(environment, &["--workers", "1"]).success();
        run(environment, &["--launcher", "local", "--workers", "2"]).success();
    }
    run(SEVERAL[0], &["--workers", "2"]).expect(2).fails(["PET_NNODES=2"]);
    run(SEVERAL[9], &["--workers", "2"]).success();
}

#[test]
fn a_variable_that_is_not_utf8_is_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let no_text = OsStr::from_bytes(b"\xff1");
    for (name, beside) in [("RANK", "WORLD_SIZE=2"), ("CANDELABRUM_TIMEOUT", "RANK=0")] {
        training(beside).env(name, no_text).run().expect(2).fails([name]);
    }
}
