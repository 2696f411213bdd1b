//! The world: this process's rank, and its communicator to the other ranks.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{Device, DeviceLocation};

use crate::comm::{
    Communicator, Group, JobMember, MPI_COMPILED, Mesh, NCCL_COMPILED, Replicate, Single,
    TcpConfig, connect_local, connect_mpi, connect_nccl, connect_tcp,
};
use crate::gpu;
use crate::launch::{self, DeviceChoice, Launch, Launcher, MeetingPoint, WorldConfig};
use crate::{Error, Result};

/// The rank of this process among the processes that train together, and its communicator. A clone
/// is cheap.
///
/// If some processes of a job are servers of a key-value store, a worker's world consists of the
/// workers, and a server's world of the servers. So a program trains on workers as it trains without
/// servers. [`Self::everyone`] has all processes. The workers' numbers are the same in both.
#[derive(Clone)]
pub struct World {
    launch: Arc<Launch>,
    comm: Arc<dyn Communicator>,
    everyone: Group,
    device: Device,
    /// The reason why the device is no GPU, if one was wanted.
    why_no_gpu: Option<String>,
    /// Dropped last.
    _services: Option<Arc<EndOfServices>>,
}

impl World {
    /// Joins the world that this process was started into by [`launch::spawn`], mpiexec, srun,
    /// torchrun or MXNet's tracker. A process that none of these started is a world of one, unless an engine (a batch
    /// system, Kubernetes, a cloud) says that this process is one of several: then it is refused, because each of them would
    /// train alone. [`Self::single`] is a world of one on purpose.
    ///
    /// Under mpiexec the ranks use MPI if the crate was built with the feature `mpi`. Without the
    /// feature they use the local backend, if all ranks are on one host.
    ///
    /// With the feature `cuda` each rank takes a GPU if its host has one, and the ranks reduce
    /// through NCCL. The environment variable `CANDELABRUM_DEVICE` is `auto` (the default, as
    /// described), `cpu`, `cuda` (no GPU is an error) or `cuda:N` (GPU N on every rank). All ranks
    /// must compute on the same kind of device.
    ///
    /// # Errors
    /// A contradictory environment, ranks that do not start in time, several hosts without MPI and
    /// without GPUs, or the scheduler of MXNet's tracker, which is no rank ([`launch::Scheduler`]).
    pub fn from_env() -> Result<Self> {
        Self::on(DeviceChoice::from_env()?)
    }

    /// As [`Self::from_env`], on the device `choice`, whatever `CANDELABRUM_DEVICE` says.
    ///
    /// # Errors
    /// Those of [`Self::from_env`].
    pub fn on(choice: DeviceChoice) -> Result<Self> {
        Self::launched(Launch::detect()?, choice)
    }

    /// Joins the world of which `config` says this process's place. So a program that starts its ranks by a
    /// launcher of its own need not set environment variables. A rank may also be a thread.
    ///
    /// Ranks on one host use the local backend. Ranks on several hosts meet at `master_addr` and `master_port`.
    /// With a GPU each they reduce through NCCL. Without GPUs they communicate over TCP through rank 0, which is
    /// slow: mpiexec and [`Self::from_env`] use MPI.
    ///
    /// The environment says nothing about the place. Its `CANDELABRUM_TIMEOUT`, `CANDELABRUM_BACKEND`,
    /// `CANDELABRUM_INTERFACE`, `CANDELABRUM_HOST` and `CANDELABRUM_SECRET` mean what they mean for
    /// [`Self::from_env`].
    ///
    /// ```
    /// use candelabrum_dist::{ReduceOp, Result, World, WorldConfig};
    ///
    /// // What a launcher of its own tells a rank: SINGA's `DistOpt(nccl_id, local_rank, world_size)`.
    /// fn rank(id: &str, local_rank: usize, world_size: usize) -> Result<f32> {
    ///     let world = World::join(WorldConfig::on_one_host(id, local_rank, world_size))?;
    ///     let mut sum = [world.global_rank() as f32];
    ///     world.comm().all_reduce(&mut sum, ReduceOp::Sum)?;
    ///     Ok(sum[0])
    /// }
    ///
    /// let id = format!("launcher {}", std::process::id());
    /// let id = id.as_str();
    /// std::thread::scope(|scope| {
    ///     for local_rank in 0..2 {
    ///         scope.spawn(move || assert_eq!(rank(id, local_rank, 2).expect("both ranks come"), 1.0));
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// [`Error::Setting`] with the name of a field that does not fit the others. Ranks that do not start in
    /// time, or that were given another `world_size`.
    pub fn join(config: WorldConfig) -> Result<Self> {
        let device = config.device;
        Self::launched(Launch::of_program(config)?, device)
    }

    /// Joins the world in which `launch` is this process's place, on the device `choice`. With
    /// [`Launch::detect_for`] a program can say that this process trains alone although an engine has started others.
    ///
    /// # Errors
    /// Those of [`Self::from_env`], except those of the environment.
    pub fn launched(launch: Launch, choice: DeviceChoice) -> Result<Self> {
        launch::ignore_file_size_signal();
        launch::note_ignored(&launch);
        launch::follow_parent()?;
        launch::keep_scheduler(&launch);
        let (device, why_no_gpu) = gpu::device(choice, launch.local_rank)?;
        let everyone = connect(&launch, &device)?;
        let (launch, comm) = (Arc::new(launch), Arc::clone(&everyone));
        let services = services_of(&everyone);
        Self { launch, comm, everyone, device, why_no_gpu, _services: services }.divided()
    }

    /// A world of one rank on the CPU, whatever the environment contains.
    pub fn single() -> Self {
        let launch = Launch::alone();
        let comm: Group = Arc::new(Single::default());
        let everyone = Arc::clone(&comm);
        let (launch, device) = (Arc::new(launch), Device::Cpu);
        Self { launch, comm, everyone, device, why_no_gpu: None, _services: None }
    }

    /// `ranks` ranks in this process, in rank order: give each to a thread of its own. They use the local backend,
    /// and compute on the CPU. So a test runs a training on several ranks without starting processes.
    ///
    /// ```
    /// use candelabrum_dist::{ReduceOp, World};
    ///
    /// let worlds = World::threads(3)?;
    /// std::thread::scope(|scope| {
    ///     for world in worlds {
    ///         scope.spawn(move || {
    ///             let mut sum = [world.rank() as f32];
    ///             world.comm().all_reduce(&mut sum, ReduceOp::Sum).expect("all ranks take part");
    ///             assert_eq!(sum, [3.0]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), candelabrum_dist::Error>(())
    /// ```
    ///
    /// # Errors
    /// No rank, or ranks that the system does not let meet.
    pub fn threads(ranks: usize) -> Result<Vec<Self>> {
        let Some(last) = ranks.checked_sub(1) else {
            let (setting, value) = ("the number of ranks", "0".to_owned());
            return Err(Error::Setting { setting, value, range: "at least 1" });
        };
        let (name, deadline) = (launch::unique_job()?, launch::timeout()?);
        let meet = |rank: usize| {
            let launch = Launch::of_thread(rank, ranks, &name);
            let everyone: Group = if ranks == 1 {
                Arc::new(Single::default())
            } else {
                let job = launch.job_id()?;
                connect_local(JobMember { job, rank, world_size: ranks, deadline })?
            };
            let (launch, comm, device) = (Arc::new(launch), Arc::clone(&everyone), Device::Cpu);
            let services = services_of(&everyone);
            Ok(Self { launch, comm, everyone, device, why_no_gpu: None, _services: services })
        };
        thread::scope(|scope| {
            let meet = &meet;
            let ranks: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || meet(rank))).collect();
            let lost = || Error::Stopped { rank: last };
            ranks.into_iter().map(|rank| rank.join().map_err(|_| lost())?).collect()
        })
    }

    /// This process's number, counted from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// SINGA's name of [`Self::rank`].
    pub fn global_rank(&self) -> usize {
        self.rank()
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.comm.world_size()
    }

    /// This process's number on its host, counted from 0. Servers count.
    pub fn local_rank(&self) -> usize {
        self.launch.local_rank
    }

    /// The number of processes on this host. Servers count.
    pub fn local_size(&self) -> usize {
        self.launch.local_size
    }

    /// The compute threads of this rank, if the user does not say otherwise ([`Launch::default_threads`]).
    pub fn default_threads(&self) -> usize {
        self.launch.default_threads()
    }

    /// The number of processes of the job that are servers of a key-value store: those with the
    /// highest numbers. The other processes are its workers.
    pub fn servers(&self) -> usize {
        self.launch.servers
    }

    /// Whether this process is a server of a key-value store.
    pub fn is_server(&self) -> bool {
        self.launch.rank >= self.launch.world_size - self.servers()
    }

    /// The workers and the servers of the job, in this order. Without servers it is the world.
    pub fn everyone(&self) -> &Group {
        &self.everyone
    }

    /// This world divided into workers and the last `servers` processes as servers of a key-value
    /// store. mpiexec, srun and torchrun do not say this number. All processes call it together, with
    /// the same number.
    ///
    /// # Errors
    /// Another number than the launcher's, if that is not 0, or no process besides the servers. A
    /// failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn with_servers(self, servers: usize) -> Result<Self> {
        if servers == self.servers() {
            return Ok(self);
        }
        let launch = Arc::unwrap_or_clone(self.launch).with_servers(servers)?;
        Self { launch: Arc::new(launch), ..self }.divided()
    }

    fn divided(self) -> Result<Self> {
        if self.servers() == 0 {
            return Ok(self);
        }
        let role = Some(u64::from(self.is_server()));
        let comm = self.everyone.split(role, 0)?.ok_or_else(Error::no_member)?;
        Ok(Self { comm, ..self })
    }

    /// Whether this is rank 0 of the job, which prints and writes for all. No server is.
    pub fn is_root(&self) -> bool {
        self.launch.rank == 0
    }

    /// The longest time that a rank waits for another one: `CANDELABRUM_TIMEOUT`, or 300 s.
    ///
    /// # Errors
    /// A value of the variable that is not a number of seconds.
    pub fn deadline(&self) -> Result<Duration> {
        launch::timeout()
    }

    /// The launcher that started the ranks.
    pub fn launcher(&self) -> Launcher {
        self.launch.launcher
    }

    /// The device on which this rank computes: its GPU, or the CPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The device's name, for reports: `cpu`, or `cuda:N` for GPU N of the host.
    pub fn device_name(&self) -> String {
        match self.device.location() {
            DeviceLocation::Cpu => "cpu".to_owned(),
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
        }
    }

    /// The reason why this rank computes on the CPU, although this build can use GPUs and
    /// [`DeviceChoice::Auto`] prefers them.
    pub fn why_no_gpu(&self) -> Option<&str> {
        self.why_no_gpu.as_deref()
    }

    /// The backend's name, for reports.
    pub fn backend(&self) -> &'static str {
        self.comm.backend()
    }

    /// The communicator with all ranks.
    pub fn comm(&self) -> &(dyn Communicator + 'static) {
        &*self.comm
    }

    /// The ranks of this world as a group, for owners that outlive a borrow of the world.
    pub fn group(&self) -> Group {
        Arc::clone(&self.comm)
    }

    /// Divides the ranks into groups, see [`Communicator::split`]. All ranks must call it together.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>> {
        self.comm.split(colour, key)
    }

    /// The ranks on this rank's host, in rank order. All ranks must call it together.
    ///
    /// A host is identified by its name and the number of its last start. Where this is not right,
    /// the environment variable `CANDELABRUM_HOST` names the hosts.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn host_group(&self) -> Result<Group> {
        let mesh = self.mesh()?;
        self.own_part(mesh.rows()[self.rank()], 0)
    }

    /// The ranks that have this rank's place on their hosts, for instance the first ranks of all
    /// hosts, in the order of the hosts' lowest ranks. All ranks must call it together.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn cross_host_group(&self) -> Result<Group> {
        let mesh = self.mesh()?;
        self.own_part(mesh.place_of(self.rank()), mesh.rows()[self.rank()])
    }

    /// This world with an all-reduce that first reduces within each host, see
    /// [`Communicator::hierarchical`]. All ranks must call it together.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn hierarchical(&self) -> Result<Group> {
        self.comm.hierarchical(&self.mesh()?)
    }

    /// This world in rows that have all shards together: `--replicate`. With one row it is the group of the world. All
    /// ranks must call it together.
    ///
    /// # Errors
    /// Ranks that cannot be divided equally. GPUs, whose reductions go by NCCL alone. A failure of another rank, a passed
    /// deadline or a disagreement between ranks.
    pub fn replicated(&self, replicate: Replicate) -> Result<Group> {
        let mesh = match replicate {
            Replicate::Hosts => self.mesh()?,
            Replicate::Copies(copies) => Mesh::replicate(copies, self.world_size())?,
        };
        if mesh.row_of(self.rank()).len() == self.world_size() {
            return Ok(self.group());
        }
        if self.device.is_cuda() {
            let what = "copies of shards (replicate) on GPUs, between which NCCL chooses the order of reductions".to_owned();
            return Err(Error::Unsupported { what });
        }
        self.comm.hierarchical(&mesh)
    }

    /// The ranks of this world, with a row for each host. Rows are numbered in the order of their lowest ranks. All
    /// ranks must call it together.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn mesh(&self) -> Result<Mesh> {
        let names = self.comm.all_gather_text(&launch::host())?;
        let mut known: Vec<&String> = Vec::new();
        let mut number = |name| match known.iter().position(|&other| other == name) {
            Some(number) => number,
            None => {
                known.push(name);
                known.len() - 1
            }
        };
        Ok(Mesh::new(names.iter().map(&mut number).collect()))
    }

    fn own_part(&self, colour: usize, key: usize) -> Result<Group> {
        self.comm.split(Some(colour as u64), key as i64)?.ok_or_else(Error::no_member)
    }

    /// Sends `message`, the reason for this rank's failure, to the other ranks, so that none waits
    /// for this rank.
    pub fn abort(&self, message: &str) {
        self.comm.abort(message);
    }
}

impl From<&World> for Group {
    fn from(world: &World) -> Self {
        world.group()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({:?})", self.comm)
    }
}

/// Connects the ranks. Where each rank has a GPU, the result is an NCCL communicator.
fn connect(launch: &Launch, device: &Device) -> Result<Arc<dyn Communicator>> {
    let deadline = launch::timeout()?;
    let host = connect_hosts(launch, device, deadline)?;
    if !NCCL_COMPILED || launch.world_size == 1 {
        return Ok(host);
    }
    let gpus = host.all_gather(&[u8::from(device.is_cuda())])?;
    if let Some(other) = gpus.iter().position(|gpu| *gpu != gpus[0]) {
        let name = |gpu: u8| if gpu == 0 { "CPU" } else { "GPU" }.to_owned();
        return Err(Error::Inconsistent {
            what: "the device (CANDELABRUM_DEVICE=cpu has all on the CPU)".to_owned(),
            expected: name(gpus[0]),
            ranks: other.to_string(),
            got: name(gpus[other]),
        });
    }
    if device.is_cuda() { connect_nccl(host, device, deadline) } else { Ok(host) }
}

/// Connects the ranks' host processors, without NCCL.
fn connect_hosts(
    launch: &Launch,
    device: &Device,
    deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    let &Launch { rank, world_size, .. } = launch;
    let over_tcp = || {
        let (job, MeetingPoint { host, port, interface }) =
            (launch.job_id()?, launch.meeting_point()?);
        let member = JobMember { job, rank, world_size, deadline };
        connect_tcp(TcpConfig { member, host, port, interface })
    };
    if launch::wants_tcp()? && world_size > 1 {
        return over_tcp();
    }
    if MPI_COMPILED && launch.speaks_mpi() {
        return connect_mpi(world_size, launch::host(), deadline);
    }
    if world_size == 1 {
        return Ok(Arc::new(Single::default()));
    }
    if launch.is_on_one_host() {
        let job = launch.job_id()?;
        return connect_local(JobMember { job, rank, world_size, deadline });
    }
    // Beside NCCL only small messages use this communicator, so TCP is fast enough. The ranks of a program with a
    // launcher of its own have no other connection: mpiexec has not started them.
    if device.is_cuda() || launch.launcher == Launcher::Program {
        return over_tcp();
    }
    Err(Error::Launch { what: launch.why_mpi(MPI_COMPILED) })
}

/// Ends the services of a rank, which is in the group of all ranks, when it is dropped.
#[derive(Debug)]
struct EndOfServices(Group);

impl Drop for EndOfServices {
    fn drop(&mut self) {
        if let Some(services) = self.0.services() {
            services.end(|| self.0.retire());
        }
    }
}

fn services_of(everyone: &Group) -> Option<Arc<EndOfServices>> {
    everyone.services().map(|_| Arc::new(EndOfServices(Arc::clone(everyone))))
}
