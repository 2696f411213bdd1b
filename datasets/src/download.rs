//! Downloads: several mirrors, checksums, and one deadline for everything.
//!
//! The checksum of MNIST's files is that of the *uncompressed* content, because mirrors compress files
//! differently. For other sets the published checksum is that of the compressed file.
//! The transport is a trait of one method, so tests can serve bytes from memory.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::Path,
    time::{Duration, Instant},
};

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::{
    cache::write_atomically,
    cifar::{CIFAR_10, CIFAR_100},
    digest::hexadecimal,
    error::{DataFault, Error, Result},
    idx::is_gzip,
    image_set::ImageSet,
    mnist_files::{FILE_NAMES, find_file},
};

/// The mirrors of MNIST, as address prefixes.
pub const MNIST_MIRRORS: [&str; 2] = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
];

/// The mirrors of Fashion-MNIST.
const FASHION_MNIST_MIRRORS: [&str; 2] = [
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
];

/// The address of CIFAR-10 and CIFAR-100.
const CIFAR_MIRRORS: [&str; 1] = ["https://www.cs.toronto.edu/~kriz/"];

/// The four files of MNIST.
pub const MNIST_FILES: [RemoteFile<'static>; 4] = [
    unpacked(FILE_NAMES[0], "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    unpacked(FILE_NAMES[1], "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    unpacked(FILE_NAMES[2], "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    unpacked(FILE_NAMES[3], "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
];

// The checksums below are those that TensorFlow Datasets has recorded for these files.

/// The four files of Fashion-MNIST.
const FASHION_MNIST_FILES: [RemoteFile<'static>; 4] = [
    as_sent(FILE_NAMES[0], "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    as_sent(FILE_NAMES[1], "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    as_sent(FILE_NAMES[2], "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    as_sent(FILE_NAMES[3], "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
];

/// The archive of CIFAR-10.
const CIFAR_10_FILES: [RemoteFile<'static>; 1] =
    [as_sent(CIFAR_10.archive, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")];

/// The archive of CIFAR-100.
const CIFAR_100_FILES: [RemoteFile<'static>; 1] = [as_sent(
    CIFAR_100.archive,
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)];

const fn unpacked(name: &'static str, sha256: &'static str) -> RemoteFile<'static> {
    RemoteFile { name, sha256, digested: Digested::Unpacked }
}

const fn as_sent(name: &'static str, sha256: &'static str) -> RemoteFile<'static> {
    RemoteFile { name, sha256, digested: Digested::AsSent }
}

/// The maximum size of a file from the network, compressed or not.
const MAX_BYTES: u64 = 256 << 20;

/// A file to download: its address is a mirror's prefix, `name` and `.gz`.
#[derive(Debug, Clone, Copy)]
pub struct RemoteFile<'a> {
    /// The file's name without `.gz`.
    pub name: &'a str,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: &'a str,
    /// What the SHA-256 is of.
    pub digested: Digested,
}

/// What a checksum is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digested {
    /// The uncompressed content.
    Unpacked,
    /// The bytes that the server sends.
    AsSent,
}

/// Files and their mirrors.
#[derive(Clone, Copy)]
pub struct RemoteFiles<'a> {
    /// The files.
    pub files: &'a [RemoteFile<'a>],
    /// Address prefixes, in the order in which they are tried.
    pub mirrors: &'a [&'a str],
    /// The transport for the requests.
    pub transport: &'a dyn Transport,
}

impl<'a> RemoteFiles<'a> {
    /// The files of a set at their mirrors.
    pub fn new(set: ImageSet, transport: &'a dyn Transport) -> Self {
        let (files, mirrors): (&[RemoteFile<'_>], &[&str]) = match set {
            ImageSet::Mnist => (&MNIST_FILES, &MNIST_MIRRORS),
            ImageSet::FashionMnist => (&FASHION_MNIST_FILES, &FASHION_MNIST_MIRRORS),
            ImageSet::Cifar10 => (&CIFAR_10_FILES, &CIFAR_MIRRORS),
            ImageSet::Cifar100 => (&CIFAR_100_FILES, &CIFAR_MIRRORS),
        };
        Self { files, mirrors, transport }
    }
}

impl std::fmt::Debug for RemoteFiles<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { files, mirrors, .. } = self;
        f.debug_struct("Remote")
            .field("files", files)
            .field("mirrors", mirrors)
            .finish_non_exhaustive()
    }
}

/// A transport's answer for an address.
pub struct Response {
    /// The length in bytes, if the server sent it.
    pub length: Option<u64>,
    /// The bytes.
    pub reader: Box<dyn Read>,
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("length", &self.length).finish_non_exhaustive()
    }
}

/// A way to read the content of an address.
pub trait Transport {
    /// Requests an address. The body is read afterwards.
    ///
    /// # Errors
    /// Any failure before the body can be read: no route, no such name, a status other than
    /// success.
    fn get(&self, url: &str) -> io::Result<Response>;
}

impl<F: Fn(&str) -> io::Result<Response>> Transport for F {
    fn get(&self, url: &str) -> io::Result<Response> {
        self(url)
    }
}

/// HTTP and HTTPS, with one deadline for all requests of this transport together.
///
/// A request fails after five seconds if its host cannot be resolved or reached, and after twenty
/// seconds if the host stops sending. No request continues after the deadline.
#[derive(Debug)]
pub struct HttpTransport {
    agent: ureq::Agent,
    within: Duration,
    end: Instant,
}

impl HttpTransport {
    /// Requests that together may take the time `within`, counted from now. They use the proxy of
    /// `HTTPS_PROXY` and similar variables, if set.
    pub fn new(within: Duration) -> Self {
        Self::with_agent(&agent_config().build(), within)
    }

    /// [`Self::new`] without a proxy, whatever the environment variables are.
    pub fn direct(within: Duration) -> Self {
        Self::with_agent(&agent_config().proxy(None).build(), within)
    }

    fn with_agent(config: &ureq::config::Config, within: Duration) -> Self {
        Self { agent: config.new_agent(), within, end: Instant::now() + within }
    }
}

fn agent_config() -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    ureq::Agent::config_builder()
        .timeout_resolve(Some(Duration::from_secs(5)))
        .timeout_connect(Some(Duration::from_secs(5)))
        .timeout_recv_response(Some(Duration::from_secs(10)))
        .timeout_per_read(Some(Duration::from_secs(20)))
        .accept_encoding("identity")
        .user_agent(concat!("candelabrum/", env!("CARGO_PKG_VERSION")))
}

impl Transport for HttpTransport {
    fn get(&self, url: &str) -> io::Result<Response> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let all = self.within.as_secs_f64();
            let message = format!("not asked, the {all:.0} s for all downloads together are over");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        let request = self.agent.get(url).config().timeout_global(Some(left)).build();
        let body = request.call().map_err(ureq::Error::into_io)?.into_body();
        Ok(Response { length: body.content_length(), reader: Box::new(body.into_reader()) })
    }
}

/// Downloads the files that are missing in `dir`, and those that are damaged there.
///
/// Each file is taken from the first mirror that has a good copy. A mirror that fails is tried last
/// from then on. A file gets its name only when it is complete and its checksum is right, and
/// processes that download into the same directory at the same time do not disturb each other. The
/// progress bar is on standard error, if that is a terminal and `quiet` is false.
///
/// # Errors
/// A file of which no mirror has a good copy, with the failure of each mirror, or a directory that
/// cannot be written.
pub fn download(remote: &RemoteFiles<'_>, dir: &Path, quiet: bool) -> Result<()> {
    let mut mirrors = remote.mirrors.to_vec();
    for file in remote.files {
        let damaged = match find_file(dir, file.name) {
            Some(path) if check(file, &path).is_ok() => continue,
            damaged => damaged,
        };
        let content = from_any_mirror(file, &mut mirrors, remote.transport, quiet)?;
        let suffix = if is_gzip(&content) { ".gz" } else { "" };
        // A damaged copy under another name would be found before this file.
        let path = damaged.unwrap_or_else(|| dir.join(format!("{}{suffix}", file.name)));
        write_atomically(&path, &content)?;
    }
    Ok(())
}

/// Checks the files in `dir`. The error is about the first missing or damaged file.
///
/// # Errors
/// A missing file ([`DataFault::Missing`]), a wrong checksum, or a file that cannot be read.
pub(crate) fn check_files(files: &[RemoteFile<'_>], dir: &Path) -> Result<()> {
    for file in files {
        let Some(path) = find_file(dir, file.name) else {
            return Err(DataFault::Missing.at(dir, format!("{} not found", file.name)));
        };
        check(file, &path)?;
    }
    Ok(())
}

/// Refuses a file whose content differs from that of `file`.
fn check(file: &RemoteFile<'_>, path: &Path) -> Result<()> {
    let opened = File::open(path).map_err(Error::io("open", path))?;
    let found = file.digested.sha256(BufReader::new(opened)).map_err(Error::io("read", path))?;
    if found == file.sha256 {
        return Ok(());
    }
    let expected = file.sha256;
    let what = format!("wrong checksum: sha-256 {found}, expected {expected}: delete the file");
    Err(DataFault::Corrupt.at(path, what))
}

/// A good copy of a file, from the first mirror that has one. Mirrors without one are moved to the
/// end.
fn from_any_mirror(
    file: &RemoteFile<'_>,
    mirrors: &mut [&str],
    transport: &dyn Transport,
    quiet: bool,
) -> Result<Vec<u8>> {
    let mut failures = Vec::new();
    for tried in 0..mirrors.len() {
        let url = format!("{}{}.gz", mirrors[tried], file.name);
        match fetch(file, &url, transport, quiet) {
            Ok(content) => {
                mirrors.rotate_left(tried);
                return Ok(content);
            }
            Err(reason) => {
                tracing::debug!(%url, %reason, "download failed");
                failures.push(format!("{url}: {reason}"));
            }
        }
    }
    let what = format!(
        "could not be downloaded: {}; fetch it by hand and name its folder with --data-dir",
        failures.join("; ")
    );
    Err(DataFault::Missing.at(file.name, what))
}

fn fetch(
    file: &RemoteFile<'_>,
    url: &str,
    transport: &dyn Transport,
    quiet: bool,
) -> io::Result<Vec<u8>> {
    let body = transport.get(url)?;
    let progress = progress_bar(file.name, body.length, quiet);
    let mut content = Vec::new();
    let read = progress.wrap_read(body.reader).take(MAX_BYTES + 1).read_to_end(&mut content);
    progress.finish_and_clear();
    read.map_err(|error| {
        io::Error::new(error.kind(), format!("broke off after {} bytes: {error}", content.len()))
    })?;
    let got = content.len() as u64;
    if body.length.is_some_and(|length| length != got) {
        let length = body.length.unwrap_or_default();
        return Err(invalid(format!("ended after {got} of {length} bytes")));
    }
    let found = file.digested.sha256(&content[..])?;
    if found != file.sha256 {
        return Err(invalid(format!("wrong checksum: sha-256 {found}, expected {}", file.sha256)));
    }
    Ok(content)
}

/// How far the download of a file of `length` bytes is: on standard error, if that is a terminal and `quiet` is false.
pub fn progress_bar(name: &str, length: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> ")).with_message(name.to_owned())
}

impl Digested {
    /// The digest of `content`. At most 256 MiB are read, so a file that unpacks to more has another digest.
    fn sha256(self, mut content: impl BufRead) -> io::Result<String> {
        let mut hash = Sha256::new();
        if self == Self::Unpacked && is_gzip(content.fill_buf()?) {
            io::copy(&mut MultiGzDecoder::new(content).take(MAX_BYTES), &mut hash)
                .map_err(|error| invalid(format!("damaged gzip stream: {error}")))?;
        } else {
            io::copy(&mut content.take(MAX_BYTES), &mut hash)?;
        }
        Ok(hexadecimal(&hash.finalize()))
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
