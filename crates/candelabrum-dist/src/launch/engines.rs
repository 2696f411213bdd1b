//! The variables by which engines (clusters, batch systems, clouds) say how many nodes or processes a job has, in one
//! table: [`ENGINES`].
//!
//! A process to which no launcher of `launchers.rs` has given a place would train alone. Where an engine has started
//! it as one of several, each of its partners would train alone, too, and all of them would report success. So a count
//! above 1 is refused. An index without a count belongs to runs of their own most of the time (a sweep), and to the
//! nodes of one job otherwise. Nobody but the user knows, so the user must say it.
//!
//! A launcher that ranks can *join* is in `launchers.rs`.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::dmlc;
use super::variables::Variables;
use crate::{Error, Result};

/// The variables of one engine. A variable that is empty counts as one that is not set.
pub(super) struct Engine {
    name: &'static str,
    /// How many nodes or processes the engine has given to the job. The first count that is set is the one.
    sizes: &'static [CountSource],
    /// The number of this process among them, from 0.
    ranks: &'static [&'static str],
    /// How many processes the user wants in the job. The engine has started one of them, and leaves the others to a
    /// launcher.
    tasks: &'static [&'static str],
    /// The number of this run among those of an array of jobs.
    array: &'static [&'static str],
    /// What an index says where there is no array.
    no_array: &'static str,
    /// How ranks that train together are started.
    start: &'static str,
}

/// A count of nodes or processes.
enum CountSource {
    /// The variable is the number.
    Is(&'static str),
    /// The function finds the number in the variable's text. `None`: it is none.
    In(&'static str, fn(&str) -> Option<usize>),
    /// The sum over all variables with this beginning and this end.
    Sum(&'static str, &'static str, fn(&str) -> Option<usize>),
}

/// Ranks of an engine that starts the same program on every node.
const BY_VARIABLES: &str = "give each process its place by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR \
                            and MASTER_PORT, with CANDELABRUM_BACKEND=tcp on several nodes";

const BY_MPIEXEC: &str = "start the ranks by mpiexec, or by `candelabrum run --hostfile FILE`";

const BY_SRUN: &str = "start the ranks by `srun --mpi=pmix`, or by `candelabrum run`";

const NONE: Engine = Engine {
    name: "",
    sizes: &[],
    ranks: &[],
    tasks: &[],
    array: &[],
    no_array: "",
    start: BY_VARIABLES,
};

/// An engine that counts in one variable and numbers in another one.
const fn of(
    name: &'static str,
    sizes: &'static [CountSource],
    ranks: &'static [&'static str],
) -> Engine {
    Engine { name, sizes, ranks, ..NONE }
}

/// An engine that starts runs of their own, and numbers them in one of these variables.
const fn array(
    name: &'static str,
    array: &'static [&'static str],
    no_array: &'static str,
) -> Engine {
    Engine { name, array, no_array, ..NONE }
}

/// A batch system whose script is one process, on the first node of the job.
const fn by_mpiexec(name: &'static str, sizes: &'static [CountSource]) -> Engine {
    Engine { start: BY_MPIEXEC, ..of(name, sizes, &[]) }
}

use CountSource::{In, Is, Sum};

/// Every engine whose variables are known. The arrays of batch systems have rows of their own, because these systems
/// count the nodes of each run of an array.
pub(super) const ENGINES: [Engine; 38] = [
    of("Kubeflow Trainer, torchrun", &[In("PET_NNODES", most_of_range)], &["PET_NODE_RANK"]),
    of("AWS Batch", &[Is("AWS_BATCH_JOB_NUM_NODES")], &["AWS_BATCH_JOB_NODE_INDEX"]),
    array("an array of AWS Batch", &["AWS_BATCH_JOB_ARRAY_INDEX"], ""),
    of(
        "SkyPilot",
        &[Is("SKYPILOT_NUM_NODES"), In("SKYPILOT_NODE_IPS", words)],
        &["SKYPILOT_NODE_RANK"],
    ),
    of(
        "JAX",
        &[Is("JAX_NUM_PROCESSES"), Is("JAX_PROCESS_COUNT")],
        &["JAX_PROCESS_ID", "JAX_PROCESS_INDEX"],
    ),
    of("Flux", &[Is("FLUX_JOB_SIZE"), Is("FLUX_JOB_NNODES")], &["FLUX_TASK_RANK"]),
    Engine {
        // Kubeflow's runtimes count the pods of such a Job in variables of their own.
        sizes: &[
            In("PET_NNODES", most_of_range),
            Is("JAX_NUM_PROCESSES"),
            Is("FLUX_JOB_SIZE"),
            Is(dmlc::WORKERS),
        ],
        ..array("an indexed Job of Kubernetes", &["JOB_COMPLETION_INDEX"], "")
    },
    of(
        "Volcano",
        &[Sum("VC_", "_NUM", number), Sum("VC_", "_HOSTS", commas)],
        &["VC_TASK_INDEX", "VK_TASK_INDEX"],
    ),
    of("a LeaderWorkerSet of Kubernetes", &[Is("LWS_GROUP_SIZE")], &["LWS_WORKER_INDEX"]),
    Engine {
        sizes: &[Is("SLURM_JOB_NUM_NODES"), Is("SLURM_NNODES")],
        // srun would start as many. A batch script or the shell of salloc is one process.
        tasks: &["SLURM_NTASKS", "SLURM_NPROCS"],
        name: "Slurm",
        start: BY_SRUN,
        ..NONE
    },
    Engine { start: BY_SRUN, ..of("a heterogeneous job of Slurm", &[Is("SLURM_HET_SIZE")], &[]) },
    array("an array of Slurm", &["SLURM_ARRAY_TASK_ID"], ""),
    by_mpiexec("LSF", &[In("LSB_MCPU_HOSTS", pairs), In("LSB_HOSTS", distinct)]),
    array("an array of LSF", &["LSB_JOBINDEX"], "0"),
    by_mpiexec("PBS", &[Is("PBS_NUM_NODES"), In("PBS_NODEFILE", hosts_in_file)]),
    array("an array of PBS", &["PBS_ARRAY_INDEX", "PBS_ARRAYID"], ""),
    by_mpiexec("Grid Engine", &[Is("NHOSTS")]),
    array("an array of Grid Engine", &["SGE_TASK_ID"], "undefined"),
    by_mpiexec("Cobalt", &[Is("COBALT_PARTSIZE")]),
    by_mpiexec("OAR", &[In("OAR_NODEFILE", hosts_in_file)]),
    by_mpiexec("Fujitsu's job manager", &[Is("PJM_NODE")]),
    of("HTCondor", &[Is("_CONDOR_NPROCS")], &["_CONDOR_PROCNO"]),
    of("jsrun", &[Is("JSM_NAMESPACE_SIZE")], &["JSM_NAMESPACE_RANK"]),
    of("MVAPICH", &[Is("MV2_COMM_WORLD_SIZE")], &["MV2_COMM_WORLD_RANK"]),
    of("horovodrun", &[Is("HOROVOD_SIZE")], &["HOROVOD_RANK"]),
    Engine {
        start: BY_MPIEXEC,
        ..of("a launcher of PMIx or of Cray", &[], &["PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE"])
    },
    of("Paddle's launcher", &[Is("PADDLE_TRAINERS_NUM")], &["PADDLE_TRAINER_ID"]),
    of(
        "SageMaker",
        &[Is("SM_HOST_COUNT"), In("SM_HOSTS", items_of_json)],
        &["SM_CURRENT_HOST_RANK"],
    ),
    of(
        "TensorFlow, Vertex AI",
        &[In("TF_CONFIG", tasks_of_json), In("CLUSTER_SPEC", tasks_of_json)],
        &[],
    ),
    of("Google Batch", &[Is("BATCH_TASK_COUNT")], &["BATCH_TASK_INDEX"]),
    of("Cloud Run", &[Is("CLOUD_RUN_TASK_COUNT")], &["CLOUD_RUN_TASK_INDEX"]),
    of(
        "Azure, RunPod, Lightning AI",
        &[
            Is("AZUREML_NODE_COUNT"),
            Is("NUM_NODES"),
            In("AZ_BATCH_HOST_LIST", commas),
            In("AZ_BATCH_NODE_LIST", semicolons),
        ],
        &["NODE_RANK", "AZ_BATCHAI_TASK_INDEX"],
    ),
    of("dstack", &[Is("DSTACK_NODES_NUM")], &["DSTACK_NODE_RANK"]),
    of("Beaker", &[Is("BEAKER_REPLICA_COUNT")], &["BEAKER_REPLICA_RANK"]),
    of("Metaflow", &[Is("MF_PARALLEL_NUM_NODES")], &["MF_PARALLEL_NODE_INDEX"]),
    of("ModelArts", &[Is("MA_NUM_HOSTS")], &["MA_TASK_INDEX"]),
    of("Volcengine", &[Is("MLP_WORKER_NUM")], &["MLP_ROLE_INDEX"]),
    of("Nomad", &[], &["NOMAD_ALLOC_INDEX"]),
];

/// What a user says whose process shall train alone.
pub(super) const ALONE: &str = "a process that trains alone on purpose says so by `--workers 1`, in a program of your \
                                own by `World::single()`, or by RANK=0 and WORLD_SIZE=1 in its environment";

/// What an index leaves open.
const IN_DOUBT: &str = "nothing says whether this is a run of its own or one process of a job";

/// The longest text of a variable in a message.
const LONGEST_TEXT: usize = 60;

/// Refuses a process that an engine has started as one of several. No launcher has given it a place among them.
///
/// `workers` is the number of ranks on this host for which the user has asked. 1 says that the process trains alone. With
/// more, each of several nodes would start ranks of its own.
///
/// # Errors
/// A count above 1, an index without a count, or a variable that cannot be understood.
pub(super) fn refuse_one_of_several(env: &Variables<'_>, workers: Option<usize>) -> Result<()> {
    if workers == Some(1) {
        return Ok(());
    }
    ENGINES.iter().try_for_each(|engine| engine.check(env, workers))
}

impl Engine {
    fn check(&self, env: &Variables<'_>, workers: Option<usize>) -> Result<()> {
        let size = self.sizes.iter().find_map(|size| size.read(env));
        if let Some((variable, count)) = &size {
            let count = count.filter(|&count| count > 0);
            let count = count.ok_or_else(|| {
                self.refuse(variable, "this does not say how many nodes or processes there are")
            })?;
            if count > 1 {
                let each = match workers {
                    None => "train alone".to_owned(),
                    Some(workers) => format!("start {workers} ranks of its own"),
                };
                let what = format!(
                    "this process is one of {count} and has no place among them, so each would {each}"
                );
                return Err(self.refuse(variable, &what));
            }
        }
        for (variable, rank) in self.numbers(env, self.ranks)? {
            if rank > 0 {
                let what = "this process is one of several, and nothing says of how many";
                return Err(self.refuse(&variable, what));
            }
            if size.is_none() && workers.is_none() {
                return Err(self.refuse(&variable, IN_DOUBT));
            }
        }
        if workers.is_some() {
            return Ok(());
        }
        for (variable, tasks) in self.numbers(env, self.tasks)? {
            if tasks > 1 {
                let what = format!(
                    "{tasks} processes are asked for, and this one would train alone (`--workers {tasks}` starts \
                     {tasks} ranks on this node)"
                );
                return Err(self.refuse(&variable, &what));
            }
        }
        match self.numbers(env, self.array)?.first() {
            Some((variable, _)) if size.is_none() => Err(self.refuse(variable, IN_DOUBT)),
            _ => Ok(()),
        }
    }

    /// The variables of `names` that are set, with their values in words and as numbers.
    fn numbers(&self, env: &Variables<'_>, names: &[&str]) -> Result<Vec<(String, usize)>> {
        let set = names.iter().filter_map(|&name| Some((name, env.get(name)?)));
        let numbers = set.filter(|(_, text)| text != self.no_array).map(|(name, text)| {
            let variable = shown(name, &text);
            match text.trim().parse() {
                Ok(number) => Ok((variable, number)),
                Err(_) => Err(self.refuse(&variable, "this is not a number")),
            }
        });
        numbers.collect()
    }

    fn refuse(&self, variable: &str, what: &str) -> Error {
        let Self { name, start, .. } = self;
        let what = format!(
            "{variable} in the environment ({name}): {what}; to train together, {start}; {ALONE}"
        );
        Error::Launch { what }
    }
}

impl CountSource {
    /// The variables in words, and the count. The count is `None` where the text has none.
    fn read(&self, env: &Variables<'_>) -> Option<(String, Option<usize>)> {
        match *self {
            Self::Is(name) => Self::In(name, number).read(env),
            Self::In(name, count) => {
                let text = env.get(name)?;
                Some((shown(name, &text), count(&text)))
            }
            Self::Sum(beginning, end, count) => {
                let mut names = env.names();
                names.retain(|name| name.starts_with(beginning) && name.ends_with(end));
                names.sort();
                let set = names.iter().filter_map(|name| Some((name, env.get(name)?)));
                let all: Vec<_> =
                    set.map(|(name, text)| (shown(name, &text), count(&text))).collect();
                let (variables, counts): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                let is_set = !variables.is_empty();
                is_set.then(|| (variables.join(" and "), counts.into_iter().sum()))
            }
        }
    }
}

/// A variable and its value in one line.
fn shown(name: &str, text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = words.floor_char_boundary(LONGEST_TEXT);
    format!("{name}={}{}", &words[..end], if end < words.len() { "..." } else { "" })
}

fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

/// The most nodes of torchrun's `N` or `MIN:MAX`.
fn most_of_range(text: &str) -> Option<usize> {
    number(text.rsplit(':').next()?)
}

fn words(text: &str) -> Option<usize> {
    Some(text.split_whitespace().count())
}

fn commas(text: &str) -> Option<usize> {
    Some(text.split(',').filter(|item| !item.trim().is_empty()).count())
}

fn semicolons(text: &str) -> Option<usize> {
    commas(&text.replace(';', ","))
}

/// The hosts in `HOST SLOTS HOST SLOTS ...`.
fn pairs(text: &str) -> Option<usize> {
    Some(text.split_whitespace().count().div_ceil(2))
}

/// The hosts in a list that names a host once for each slot.
fn distinct(text: &str) -> Option<usize> {
    Some(text.split_whitespace().collect::<BTreeSet<_>>().len())
}

/// The same, in a file.
fn hosts_in_file(path: &str) -> Option<usize> {
    distinct(&fs::read_to_string(path).ok()?)
}

fn items_of_json(text: &str) -> Option<usize> {
    serde_json::from_str::<Vec<Value>>(text).ok().map(|items| items.len())
}

/// The tasks of all kinds in `{"cluster": {"worker": ["HOST:PORT", ...], ...}, ...}`. Without a cluster there is one.
fn tasks_of_json(text: &str) -> Option<usize> {
    let Value::Object(all) = serde_json::from_str(text).ok()? else { return None };
    let Some(cluster) = all.get("cluster") else { return Some(1) };
    let kinds = cluster.as_object()?.values().map(|kind| match kind {
        Value::Array(hosts) => Some(hosts.len()),
        Value::Object(hosts) => Some(hosts.len()),
        _ => None,
    });
    // A cluster without tasks is TensorFlow's word for a process of its own.
    kinds.sum::<Option<usize>>().map(|tasks| tasks.max(1))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    fn check(variables: &[(&str, &str)], workers: Option<usize>) -> Result<()> {
        let variable = |name: &str| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        let names = || variables.iter().map(|(name, _)| (*name).to_owned()).collect();
        let env = Variables { variable: &variable, names: &names, started_by: &|_| None };
        refuse_one_of_several(&env, workers)
    }

    #[track_caller]
    fn refused(variables: &[(&str, &str)], workers: Option<usize>, part: &str) {
        let message = check(variables, workers).expect_err("it is refused").to_string();
        for part in [part, "`--workers 1`", "`World::single()`", "RANK=0 and WORLD_SIZE=1"] {
            assert!(message.contains(part), "`{part}` is missing: {message}");
        }
        check(variables, Some(1)).expect("the user has said that it trains alone");
    }

    #[track_caller]
    fn passes(variables: &[(&str, &str)], workers: Option<usize>) {
        check(variables, workers).unwrap_or_else(|error| panic!("{variables:?}: {error}"));
    }

    fn file_of(lines: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().expect("a file");
        file.write_all(lines.as_bytes()).expect("room for it");
        file
    }

    /// Texts of a variable that say two, one, and nothing.
    fn texts<'a>(name: &str, files: &'a [String; 3]) -> [&'a str; 3] {
        match name {
            "PET_NNODES" => ["1:2", "1", "many"],
            "SKYPILOT_NODE_IPS" => ["10.0.0.1\n10.0.0.2\n", "10.0.0.1\n", " "],
            "LSB_MCPU_HOSTS" => ["a 4 b 4", "a 8", " "],
            "LSB_HOSTS" => ["a a b", "a a", " "],
            "PBS_NODEFILE" | "OAR_NODEFILE" => files.each_ref().map(String::as_str),
            "SM_HOSTS" => [r#"["algo-1", "algo-2"]"#, r#"["algo-1"]"#, "algo-1"],
            "TF_CONFIG" | "CLUSTER_SPEC" => [
                r#"{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief"}}"#,
                r#"{"cluster": {"worker": {"0": "a:1"}}}"#,
                r#"{"cluster": 2}"#,
            ],
            "AZ_BATCH_HOST_LIST" | "VC_*_HOSTS" => ["10.0.0.4,10.0.0.5", "10.0.0.4", ","],
            "AZ_BATCH_NODE_LIST" => ["10.0.0.4;10.0.0.5", "10.0.0.4", ";"],
            _ => ["2", "1", "two"],
        }
    }

    #[test]
    fn every_engine_is_refused_by_name_where_it_counts_more_than_one() {
        let (two, one) = (file_of("a\na\nb\n"), file_of("a\na\n"));
        let files = [&two, &one].map(|file| file.path().to_str().expect("UTF-8").to_owned());
        let files = [files[0].clone(), files[1].clone(), "/no/such/file".to_owned()];
        for engine in &ENGINES {
            for size in engine.sizes {
                let (name, key) = match *size {
                    Is(name) | In(name, _) => (name.to_owned(), name.to_owned()),
                    Sum(first, last, _) => {
                        (format!("{first}WORKER{last}"), format!("{first}*{last}"))
                    }
                };
                let [several, single, nonsense] = texts(&key, &files);
                let name = name.as_str();
                refused(&[(name, several)], None, name);
                refused(&[(name, several)], None, "one of 2 and has no place among them");
                refused(&[(name, several)], Some(4), "start 4 ranks of its own");
                refused(&[(name, nonsense)], None, "does not say how many");
                for workers in [None, Some(4)] {
                    passes(&[(name, single)], workers);
                    passes(&[(name, "")], workers);
                }
                // A count of one says what a first index alone leaves open.
                for &index in engine.ranks.iter().chain(engine.array) {
                    passes(&[(name, single), (index, "0")], None);
                }
                for &index in engine.ranks {
                    refused(&[(name, single), (index, "1")], None, index);
                }
            }
        }
    }

    #[test]
    fn every_index_without_a_count_asks_for_a_word() {
        for engine in &ENGINES {
            for &name in engine.ranks {
                refused(&[(name, "0")], None, name);
                passes(&[(name, "0")], Some(4));
                for workers in [None, Some(4)] {
                    refused(&[(name, "1")], workers, "one of several");
                    refused(&[(name, "first")], workers, "not a number");
                }
            }
            for &name in engine.array {
                refused(&[(name, "7")], None, name);
                refused(&[(name, "7")], None, "a run of its own or one process of a job");
                refused(&[(name, "some")], None, "not a number");
                passes(&[(name, "7")], Some(4));
                passes(&[(name, engine.no_array)], None);
            }
        }
    }

    #[test]
    fn a_number_of_tasks_is_no_obstacle_for_ranks_that_the_user_asks_for() {
        let script = [("SLURM_JOB_NUM_NODES", "1"), ("SLURM_NNODES", "1"), ("SLURM_NTASKS", "8")];
        refused(&script, None, "`--workers 8` starts 8 ranks on this node");
        refused(&script, None, "`srun --mpi=pmix`");
        passes(&script, Some(8));
        passes(&[&script[..2], &[("SLURM_NTASKS", "1")]].concat(), None);
        refused(&[("SLURM_NTASKS", "eight")], None, "not a number");
        refused(&[("SLURM_NNODES", "2"), ("SLURM_NTASKS", "8")], Some(8), "SLURM_NNODES=2");
        refused(
            &[&script[..2], &[("SLURM_ARRAY_TASK_ID", "3")]].concat(),
            None,
            "an array of Slurm",
        );
    }

    #[test]
    fn the_pods_of_several_kinds_are_added() {
        let pods = [("VC_MASTER_NUM", "1"), ("VC_WORKER_NUM", "1"), ("VC_TASK_INDEX", "0")];
        refused(&pods, None, "VC_MASTER_NUM=1 and VC_WORKER_NUM=1");
        passes(&[("VC_MASTER_NUM", "1"), ("VC_WORKER_NUM", "0"), ("VC_TASK_INDEX", "0")], None);
        refused(&[("VC_MASTER_NUM", "1"), ("VC_WORKER_NUM", "x")], None, "does not say how many");
    }

    #[test]
    fn a_long_text_is_cut_in_the_message() {
        let ips = vec!["10.0.0.1"; 40].join("\n");
        let message = check(&[("SKYPILOT_NODE_IPS", &ips)], None).unwrap_err().to_string();
        assert!(message.contains("SKYPILOT_NODE_IPS=10.0.0.1 10.0.0.1"), "{message}");
        assert!(message.contains("one of 40") && !message.contains('\n'), "{message}");
        assert!(message.len() < 800, "{} bytes", message.len());
    }

    #[test]
    fn a_variable_belongs_to_one_engine() {
        let names = ENGINES.iter().flat_map(|engine| {
            let sizes = engine.sizes.iter().filter(|_| engine.array.is_empty());
            let sizes = sizes.map(|size| match size {
                Is(name) | In(name, _) => (*name).to_owned(),
                Sum(first, last, _) => format!("{first}*{last}"),
            });
            let others = [engine.ranks, engine.tasks, engine.array].concat();
            sizes.chain(others.into_iter().map(str::to_owned)).collect::<Vec<_>>()
        });
        let mut seen = BTreeSet::new();
        names.for_each(|name| assert!(seen.insert(name.clone()), "{name} is there twice"));
    }
}
