//! Who am I among the ranks, and how do I reach the others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;

use crate::comm::{
    Communicator, Group, LocalConfig, MPI_COMPILED, NCCL_COMPILED, Single, TcpConfig,
    connect_local, connect_mpi, connect_nccl, connect_tcp,
};
use crate::gpu;
use crate::launch::{self, Launch, Launcher, MeetingPoint};
use crate::{Error, Result};

/// This process's place among those that train together, and its communicator. A cheap handle.
#[derive(Clone)]
pub struct World {
    launch: Arc<Launch>,
    comm: Arc<dyn Communicator>,
    device: Device,
}

impl World {
    /// Joins the world that this process was started into: by [`launch::spawn`], mpiexec, srun,
    /// torchrun, or nobody.
    ///
    /// Under mpiexec the ranks use MPI when the crate was built with the feature `mpi`, and the
    /// local backend without it, if all are on one host.
    ///
    /// Built with the feature `cuda` each rank takes a GPU where its host has one, and the ranks
    /// reduce through NCCL. The environment's `CANDELABRUM_DEVICE` is `auto` (this), `cpu`, `cuda`
    /// (no GPU is an error) or `cuda:N` (this GPU on every rank).
    ///
    /// # Errors
    /// A contradictory environment, ranks that do not show up, several hosts without MPI or GPUs.
    pub fn from_env() -> Result<Self> {
        let launch = Launch::detect()?;
        launch::follow_parent()?;
        let device = gpu::device(launch::device_choice()?, launch.local_rank)?;
        let comm = connect(&launch, &device)?;
        Ok(Self { launch: Arc::new(launch), comm, device })
    }

    /// A world of one, whatever the environment says.
    pub fn single() -> Self {
        let launch = Launch::alone();
        Self { launch: Arc::new(launch), comm: Arc::new(Single::default()), device: Device::Cpu }
    }

    /// This process's number, from 0. SINGA's `global_rank`.
    pub fn rank(&self) -> usize {
        self.launch.rank
    }

    /// How many processes there are.
    pub fn world_size(&self) -> usize {
        self.launch.world_size
    }

    /// This process's number on its host.
    pub fn local_rank(&self) -> usize {
        self.launch.local_rank
    }

    /// How many processes there are on this host.
    pub fn local_size(&self) -> usize {
        self.launch.local_size
    }

    /// Whether this is rank 0, which prints and writes for all.
    pub fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// How long ranks wait for each other before they give up: `CANDELABRUM_TIMEOUT`, or 300 s.
    ///
    /// # Errors
    /// A value of the variable that is no number of seconds.
    pub fn deadline(&self) -> Result<Duration> {
        launch::timeout()
    }

    /// How the ranks were started.
    pub fn launcher(&self) -> Launcher {
        self.launch.launcher
    }

    /// The device that this rank computes on: its GPU, or the CPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The backend's name, for reports.
    pub fn backend(&self) -> &'static str {
        self.comm.backend()
    }

    /// The way to the other ranks.
    pub fn comm(&self) -> &(dyn Communicator + 'static) {
        &*self.comm
    }

    /// The ranks of this world as a group, for what outlives a borrow.
    pub fn group(&self) -> Group {
        Arc::clone(&self.comm)
    }

    /// Groups of ranks, see [`Communicator::split`]. All ranks must call it together.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    pub fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>> {
        self.comm.split(colour, key)
    }

    /// The ranks on this rank's host, in rank order. All ranks must call it together.
    ///
    /// Hosts are told apart by their names and the numbers of their last starts; where that does not
    /// fit, the environment variable `CANDELABRUM_HOST` names them.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    pub fn host_group(&self) -> Result<Group> {
        let hosts = self.hosts()?;
        self.own_part(hosts[self.rank()], 0)
    }

    /// The ranks that have this rank's place on their hosts: all that are the first of their host,
    /// or the second. In the order of the hosts' lowest ranks. All ranks must call it together.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    pub fn cross_host_group(&self) -> Result<Group> {
        let hosts = self.hosts()?;
        let own = hosts[self.rank()];
        let place = hosts[..self.rank()].iter().filter(|&&other| other == own).count();
        self.own_part(place, own)
    }

    /// This world with an all-reduce that goes within each host first, see
    /// [`Communicator::hierarchical`]. All ranks must call it together.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    pub fn hierarchical(&self) -> Result<Group> {
        self.comm.hierarchical(&self.hosts()?)
    }

    fn own_part(&self, colour: usize, key: usize) -> Result<Group> {
        let what = || "a group without its member".to_owned();
        let part = self.comm.split(Some(colour as u64), key as i64)?;
        part.ok_or_else(|| Error::Protocol { what: what() })
    }

    /// The number of each rank's host, by lowest ranks.
    fn hosts(&self) -> Result<Vec<usize>> {
        let names = self.comm.all_gather_text(&launch::host())?;
        let mut known: Vec<&String> = Vec::new();
        let mut number = |name| match known.iter().position(|&other| other == name) {
            Some(number) => number,
            None => {
                known.push(name);
                known.len() - 1
            }
        };
        Ok(names.iter().map(&mut number).collect())
    }

    /// Tells the other ranks that this one fails with `message`, so that none waits for it.
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

/// The ranks' communicator: NCCL's where each has a GPU.
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

/// The way between the hosts' processors.
fn connect_hosts(
    launch: &Launch,
    device: &Device,
    deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    let &Launch { rank, world_size, local_size, .. } = launch;
    let over_tcp = || {
        let (job, MeetingPoint { host, port, interface }) =
            (launch.job_id()?, launch::meeting_point()?);
        connect_tcp(TcpConfig { job, rank, world_size, deadline, host, port, interface })
    };
    if launch::wants_tcp()? && world_size > 1 {
        return over_tcp();
    }
    if MPI_COMPILED && launch.speaks_mpi() {
        return connect_mpi(world_size, deadline);
    }
    if world_size == 1 {
        return Ok(Arc::new(Single::default()));
    }
    if local_size == world_size {
        let job = launch.job_id()?;
        return connect_local(LocalConfig { job, rank, world_size, deadline });
    }
    // What goes over it beside NCCL is little.
    if device.is_cuda() {
        return over_tcp();
    }
    let what = format!("{world_size} ranks, {local_size} of them on this host, need MPI");
    if launch.speaks_mpi() {
        return Err(Error::NotCompiled { what, feature: "mpi" });
    }
    Err(Error::Launch {
        what: format!("{what}: start them with mpiexec and build with `--features mpi`"),
    })
}
