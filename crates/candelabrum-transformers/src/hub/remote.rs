//! The requests to the hub: the list of a model's files, the version of a file, and its bytes.
//!
//! Every wait for the network has a deadline. A download that breaks off goes on where it was.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use candelabrum_datasets::download::progress_bar;
use indicatif::ProgressBar;
use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder, typestate::WithoutBody};

/// How many times in sequence a download may break off without a byte.
const TRIES: usize = 3;

/// Why there is no answer.
pub(super) enum HubFault {
    /// The network, or a hub that is out of order.
    NoAnswer(String),
    /// The hub says that there is nothing for this user.
    Refused(String),
}

impl fmt::Display for HubFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(why) => {
                write!(f, "the hub did not answer ({why}): start again, what has arrived is kept")
            }
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// The version of a file.
pub(super) struct Version {
    /// The name of its content.
    pub(super) name: String,
    /// The bytes, if the hub says so.
    size: Option<u64>,
}

/// A model on the hub.
pub(super) struct HubRemote<'a> {
    agent: Agent,
    /// An agent that shows the first answer, which may be the address of the file elsewhere.
    direct: Agent,
    endpoint: &'a str,
    model: &'a str,
    token: Option<&'a str>,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl<'a> HubRemote<'a> {
    pub(super) fn new(endpoint: &'a str, model: &'a str, token: Option<&'a str>) -> Self {
        let config = || {
            Agent::config_builder()
                .timeout_resolve(Some(Duration::from_secs(10)))
                .timeout_connect(Some(Duration::from_secs(10)))
                .timeout_recv_response(Some(Duration::from_secs(30)))
                .timeout_per_read(Some(Duration::from_secs(30)))
                .accept_encoding("identity")
                .redirect_auth_headers(RedirectAuthHeaders::SameHost)
                .user_agent(concat!("candelabrum/", env!("CARGO_PKG_VERSION")))
        };
        let agent = config().build().new_agent();
        let direct = config().max_redirects(0).build().new_agent();
        Self { agent, direct, endpoint: endpoint.trim_end_matches('/'), model, token }
    }

    /// The newest commit and the names of its files.
    pub(super) fn files(&self) -> Result<(String, Vec<String>), HubFault> {
        let url = format!("{}/api/models/{}/revision/main", self.endpoint, self.model);
        let mut response = self.call(self.agent.get(&url))?;
        let body = response.body_mut().read_to_string();
        let body = body.map_err(|error| HubFault::NoAnswer(format!("{url}: {error}")))?;
        let info: ModelInfo = serde_json::from_str(&body)
            .map_err(|error| HubFault::NoAnswer(format!("{url}: no list of files: {error}")))?;
        // The commit becomes the name of a folder, and files those of files in it.
        let is_name = |name: &str| {
            !name.is_empty()
                && name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
        };
        if !is_name(&info.sha) || info.sha.contains('/') {
            return Err(HubFault::NoAnswer(format!("{url}: no commit")));
        }
        let files =
            info.siblings.into_iter().map(|file| file.rfilename).filter(|file| is_name(file));
        Ok((info.sha, files.collect()))
    }

    /// Which content the file has.
    pub(super) fn version(&self, commit: &str, file: &str) -> Result<Version, HubFault> {
        let mut url = self.url(commit, file);
        for _ in 0..5 {
            let response = self.call(self.direct.head(&url))?;
            let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
            let own = header("location").filter(|to| to.starts_with('/'));
            if let (Some(own), None) = (&own, header("x-linked-etag")) {
                // A repository that has another name now.
                url = format!("{}{own}", self.endpoint);
                continue;
            }
            let name = header("x-linked-etag").or_else(|| header("etag")).unwrap_or_default();
            let name = name.trim_start_matches("W/").trim_matches('"').to_owned();
            if name.is_empty() || name.starts_with('.') || name.contains('/') {
                return Err(HubFault::NoAnswer(format!("{url}: no ETag")));
            }
            let is_here = response.status().is_success();
            let size =
                header("x-linked-size").or_else(|| header("content-length").filter(|_| is_here));
            return Ok(Version { name, size: size.and_then(|size| size.parse().ok()) });
        }
        Err(HubFault::NoAnswer(format!("{url}: it only leads to other addresses")))
    }

    /// Writes the bytes of the file to `to`, which may have the first ones.
    pub(super) fn download(
        &self,
        commit: &str,
        file: &str,
        version: &Version,
        to: &Path,
    ) -> Result<(), HubFault> {
        let broken = |error: io::Error| HubFault::NoAnswer(error.to_string());
        let out = OpenOptions::new().create(true).append(true).open(to).map_err(broken)?;
        let bar = progress_bar(file, version.size, false);
        let mut tries = 0;
        loop {
            let len = || out.metadata().map(|data| data.len()).map_err(broken);
            let start = len()?;
            if version.size == Some(start) {
                break;
            }
            if start > version.size.unwrap_or(u64::MAX) {
                out.set_len(0).map_err(broken)?;
                continue;
            }
            let failed = match self.part(&self.url(commit, file), start, &out, &bar) {
                Ok(()) if version.size.is_none_or(|size| len().is_ok_and(|len| len == size)) => {
                    break;
                }
                Ok(()) => HubFault::NoAnswer(format!("{file} ended too early")),
                Err(HubFault::NoAnswer(why)) => HubFault::NoAnswer(why),
                Err(refused) => return Err(refused),
            };
            tries = if len()? > start { 0 } else { tries + 1 };
            if tries == TRIES {
                return Err(failed);
            }
        }
        bar.finish_and_clear();
        out.sync_all().map_err(broken)
    }

    /// Adds the bytes from `start` on to `out`.
    fn part(
        &self,
        url: &str,
        start: u64,
        mut out: &std::fs::File,
        bar: &ProgressBar,
    ) -> Result<(), HubFault> {
        let request = self.agent.get(url);
        let request =
            if start > 0 { request.header("range", format!("bytes={start}-")) } else { request };
        let response = self.call(request)?;
        if start > 0 && response.status() != 206 {
            out.set_len(0).map_err(|error| HubFault::NoAnswer(error.to_string()))?;
        }
        bar.set_position(if response.status() == 206 { start } else { 0 });
        let mut body = bar.wrap_read(response.into_body().into_reader());
        let copied = io::copy(&mut body, &mut out);
        copied.map(drop).map_err(|error| HubFault::NoAnswer(error.to_string()))
    }

    fn url(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.endpoint, self.model)
    }

    fn call(&self, request: RequestBuilder<WithoutBody>) -> Result<Response<Body>, HubFault> {
        let request = match self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        request.call().map_err(|error| match error {
            ureq::Error::StatusCode(401 | 403) => HubFault::Refused(
                "there is no such model, or it is only for users who have accepted its conditions: check the name, accept \
                 the conditions on the model's page, and set HF_TOKEN to your token"
                    .to_owned(),
            ),
            ureq::Error::StatusCode(404) => {
                HubFault::Refused("there is no such model or file on the hub: check the name".to_owned())
            }
            other => HubFault::NoAnswer(other.to_string()),
        })
    }
}
