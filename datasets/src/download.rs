//! Downloads: several mirrors, checksums, and a quick end where there is no network.
//!
//! The checksum is that of the *uncompressed* content: mirrors differ in their gzip envelopes. The
//! transport is a trait of one method, so that tests serve bytes from memory.

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
    time::Duration,
};

use flate2::read::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::{
    cache::write_atomically,
    error::{Error, Result},
    idx::is_gzip,
    mnist::{FILE_NAMES, find_file},
};

/// Where the files of MNIST can be had, as address prefixes.
pub const MNIST_MIRRORS: [&str; 2] = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
];

/// The four files of MNIST.
pub const MNIST_FILES: [RemoteFile<'static>; 4] = [
    RemoteFile {
        name: FILE_NAMES[0],
        sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    },
    RemoteFile {
        name: FILE_NAMES[1],
        sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
    RemoteFile {
        name: FILE_NAMES[2],
        sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    },
    RemoteFile {
        name: FILE_NAMES[3],
        sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
];

/// No file larger than this is taken from the network, compressed or not.
const MAX_BYTES: u64 = 256 << 20;

/// A file to fetch: `name` with `.gz` appended under a mirror's prefix.
#[derive(Debug, Clone, Copy)]
pub struct RemoteFile<'a> {
    /// Its name without `.gz`.
    pub name: &'a str,
    /// SHA-256 of the uncompressed content, in lower-case hexadecimal.
    pub sha256: &'a str,
}

/// What a transport gives for an address.
pub struct Body {
    /// The length in bytes, if the server said.
    pub length: Option<u64>,
    /// The bytes.
    pub reader: Box<dyn Read>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("length", &self.length).finish_non_exhaustive()
    }
}

/// A way to get the content of an address.
pub trait Transport {
    /// Asks for an address; the body is read afterwards.
    ///
    /// # Errors
    /// Whatever keeps the body from being read: no route, no such name, a status that is no
    /// success.
    fn get(&self, url: &str) -> io::Result<Body>;
}

impl<F: Fn(&str) -> io::Result<Body>> Transport for F {
    fn get(&self, url: &str) -> io::Result<Body> {
        self(url)
    }
}

/// HTTP and HTTPS.
///
/// It gives up on a host that cannot be resolved or reached within about two seconds: a machine
/// without network learns so quickly, and a host that answers is waited for longer.
#[derive(Debug)]
pub struct HttpTransport {
    agent: ureq::Agent,
}

impl HttpTransport {
    /// Through the proxy that `HTTPS_PROXY` and its siblings name, if they do.
    pub fn new() -> Self {
        Self { agent: agent_config().build().new_agent() }
    }

    /// Directly, whatever the environment says of proxies.
    pub fn direct() -> Self {
        Self { agent: agent_config().proxy(None).build().new_agent() }
    }
}

fn agent_config() -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    ureq::Agent::config_builder()
        .timeout_resolve(Some(Duration::from_millis(1000)))
        .timeout_connect(Some(Duration::from_millis(1400)))
        .timeout_recv_response(Some(Duration::from_secs(10)))
        .timeout_per_read(Some(Duration::from_secs(20)))
        .accept_encoding("identity")
        .user_agent(concat!("candelabrum/", env!("CARGO_PKG_VERSION")))
}

impl Default for HttpTransport {
    fn default() -> Self {
        Self::new()
    }
}

impl Transport for HttpTransport {
    fn get(&self, url: &str) -> io::Result<Body> {
        let response = self.agent.get(url).call().map_err(ureq::Error::into_io)?;
        let body = response.into_body();
        Ok(Body { length: body.content_length(), reader: Box::new(body.into_reader()) })
    }
}

/// Fetches the files that `dir` lacks.
///
/// Each is taken from the first mirror that has a good copy; a mirror that failed is asked last
/// from then on. A file appears under its name only when it is complete and its checksum is right,
/// and processes that download into the same directory at once do not disturb each other. The
/// progress bar goes to standard error, if that is a terminal and `quiet` is false.
///
/// # Errors
/// A file that no mirror has a good copy of, with what was wrong at each; a directory that cannot
/// be written.
pub fn download(
    files: &[RemoteFile<'_>],
    mirrors: &[&str],
    dir: &Path,
    transport: &dyn Transport,
    quiet: bool,
) -> Result<()> {
    let mut mirrors = mirrors.to_vec();
    for file in files {
        if find_file(dir, file.name).is_some() {
            continue;
        }
        let content = from_any_mirror(file, &mut mirrors, transport, quiet)?;
        let suffix = if is_gzip(&content) { ".gz" } else { "" };
        write_atomically(&dir.join(format!("{}{suffix}", file.name)), &content)?;
    }
    Ok(())
}

/// A good copy of a file, from the first mirror that has one. Those that had none go to the end.
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
    Err(Error::Download { file: file.name.into(), failures })
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
    let found = sha256_of_uncompressed(&content)?;
    if found != file.sha256 {
        return Err(invalid(format!("wrong checksum: sha-256 {found}, expected {}", file.sha256)));
    }
    Ok(content)
}

fn progress_bar(name: &str, length: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> ")).with_message(name.to_owned())
}

fn sha256_of_uncompressed(content: &[u8]) -> io::Result<String> {
    let mut hash = Sha256::new();
    if is_gzip(content) {
        let mut plain = MultiGzDecoder::new(content).take(MAX_BYTES);
        io::copy(&mut plain, &mut hash)
            .map_err(|error| invalid(format!("damaged gzip stream: {error}")))?;
    } else {
        hash.update(content);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
