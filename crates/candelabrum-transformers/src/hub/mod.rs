//! Models of Hugging Face's hub, by their names, in the cache that Python's `huggingface_hub` has, too.
//!
//! The crate `hf-hub` would do the same, but its version without an async runtime has no deadline for an answer, gives up
//! after five seconds where another process downloads, asks the hub for what the cache has, and panics at some answers.
//!
//! Every rank of a job asks for its model. The first one that gets the lock of the model downloads it, and the others wait
//! for as long as the files grow.

mod remote;

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use candelabrum_datasets::hexadecimal;
use sha2::{Digest, Sha256};

use self::remote::{HubFault, HubRemote};
use crate::error::{Error, Result};
use crate::weights::{INDEX, shards_of, weights_file};

/// How long a process waits for another one that downloads, since the files have grown the last time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The folder at `name`, or, if there is none and `name` has the form `owner/model`, the model of this name from Hugging
/// Face's hub: what a model needs is downloaded into the hub's cache unless it is there. The variables `HF_HOME`,
/// `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` count, as for Python's `huggingface_hub`.
///
/// # Errors
/// Neither a folder nor the name of a model, or a download that failed: the error says which file.
pub(crate) fn folder(name: &Path) -> Result<PathBuf> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let model = name.to_str().filter(|name| {
        let parts: Vec<&str> = name.split('/').collect();
        parts.len() == 2 && parts.iter().all(|part| !part.is_empty() && !part.starts_with('.'))
    });
    let Some(model) = model else {
        let what = "is neither a folder, nor a file, nor a model of the hub (owner/name)";
        return Err(Error::file(name, what));
    };
    HubModel::of_environment(model)?.folder()
}

/// A model of the hub and its place in the cache.
struct HubModel {
    model: String,
    endpoint: String,
    token: Option<String>,
    /// The cache of all models.
    cache: PathBuf,
    is_offline: bool,
    patience: Duration,
}

impl HubModel {
    fn of_environment(model: &str) -> Result<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let caches = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        let home = || path("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
        let cache = path("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub"))).ok_or_else(|| {
            let what = "is no folder, and for the models of the hub there is no place: set HF_HOME to a folder";
            Error::file(model, what)
        })?;
        let stored = || fs::read_to_string(home()?.join("token")).ok();
        let token = set("HF_TOKEN").or_else(stored).map(|token| token.trim().to_owned());
        let is_true = |name: &str| {
            set(name)
                .is_some_and(|value| matches!(&*value.to_uppercase(), "1" | "ON" | "YES" | "TRUE"))
        };
        Ok(Self {
            model: model.to_owned(),
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token: token.filter(|token| !token.is_empty()),
            cache,
            is_offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            patience: PATIENCE,
        })
    }

    /// The model's folder, with all files that a model needs.
    fn folder(&self) -> Result<PathBuf> {
        if self.is_offline {
            return self.cached("HF_HUB_OFFLINE is set");
        }
        let remote = HubRemote::new(&self.endpoint, &self.model, self.token.as_deref());
        let (commit, files) = match remote.files() {
            Ok(found) => found,
            Err(HubFault::NoAnswer(why)) => {
                return self.cached(&format!("the hub did not answer ({why})"));
            }
            Err(HubFault::Refused(why)) => return Err(self.failed(&why)),
        };
        if !files.iter().any(|file| file == "config.json") {
            let what = "it has no config.json: is it a model with its own weights, and not adapters or GGUF files alone?";
            return Err(self.failed(what));
        }
        let snapshot = self.snapshot(&commit);
        let mut needed: BTreeSet<&str> =
            files.iter().map(String::as_str).filter(|file| is_needed(file)).collect();
        let has = |name: &str| files.iter().any(|file| file == name);
        if has("model.safetensors") {
            needed.insert("model.safetensors");
        } else if has(INDEX) {
            needed.insert(INDEX);
        } else {
            let what = "it has no model.safetensors: take a model whose weights are in this format, or convert it with \
                `save_pretrained` of transformers";
            return Err(self.failed(what));
        }
        let is_missing = |file: &&str| !snapshot.join(file).exists();
        let missing: Vec<&str> = needed.into_iter().filter(is_missing).collect();
        let lacks_shards =
            || has(INDEX) && !has("model.safetensors") && self.missing(&commit).is_some();
        if !missing.is_empty() || lacks_shards() {
            let (_lock, ending) = self.lock()?;
            for file in missing {
                self.take(&remote, &commit, file, &ending)?;
            }
            if has(INDEX) && !has("model.safetensors") {
                for shard in shards_of(&snapshot.join(INDEX))? {
                    self.take(&remote, &commit, &shard, &ending)?;
                }
            }
        }
        // A cache that is only read has the files, and finds them by an older commit without network.
        drop(self.write(&self.refs(), commit.as_bytes()));
        Ok(snapshot)
    }

    /// The folder of the newest commit in the cache, if all files of a model are in it.
    fn cached(&self, why: &str) -> Result<PathBuf> {
        let commit = fs::read_to_string(self.refs()).map_err(|_| {
            self.failed(&format!(
                "{why}, and the model is not in the cache {}",
                self.cache.display()
            ))
        })?;
        let commit = commit.trim();
        match self.missing(commit) {
            None => Ok(self.snapshot(commit)),
            Some(file) => {
                let what = format!("{why}, and in the cache {} is missing", file.display());
                Err(self.failed(&what))
            }
        }
    }

    /// A file that is missing in the cache of this commit.
    fn missing(&self, commit: &str) -> Option<PathBuf> {
        let snapshot = self.snapshot(commit);
        let (config, single) = (snapshot.join("config.json"), weights_file(&snapshot));
        let shards = || {
            let shards = shards_of(&snapshot.join(INDEX)).ok()?;
            Some(shards.into_iter().map(|shard| snapshot.join(shard)).collect())
        };
        let weights = match single.exists() {
            true => vec![single],
            false => shards().unwrap_or_else(|| vec![single]),
        };
        std::iter::once(config).chain(weights).find(|path| !path.exists())
    }

    /// Downloads a file unless it is in the cache. Until it is whole, it has a name with this `ending`.
    fn take(&self, remote: &HubRemote<'_>, commit: &str, file: &str, ending: &str) -> Result<()> {
        let link = self.snapshot(commit).join(file);
        if link.exists() {
            return Ok(());
        }
        let failed = |fault: HubFault| self.failed(&format!("{file}: {fault}"));
        let version = remote.version(commit, file).map_err(failed)?;
        let blobs = self.repository().join("blobs");
        fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;
        let blob = blobs.join(&version.name);
        if !blob.exists() {
            let incomplete = blobs.join(format!("{}{ending}", version.name));
            remote.download(commit, file, &version, &incomplete).map_err(failed)?;
            self.check(&incomplete, &version.name, file)?;
            // Without locks another process may have been faster.
            if let Err(error) = fs::rename(&incomplete, &blob)
                && !blob.exists()
            {
                return Err(Error::io("rename", &incomplete)(error));
            }
        }
        let parent = link.parent().unwrap_or(&link);
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        // The link leads out of the folders of the file's name and out of snapshots/COMMIT.
        let up = "../".repeat(file.matches('/').count() + 2);
        drop(fs::remove_file(&link)); // A link to nothing.
        match std::os::unix::fs::symlink(format!("{up}blobs/{}", version.name), &link) {
            Err(error) if !link.exists() => Err(Error::io("create", &link)(error)),
            _ => Ok(()),
        }
    }

    /// Compares the bytes of a large file with its name, which is their SHA-256.
    fn check(&self, path: &Path, name: &str, file: &str) -> Result<()> {
        if name.len() != 64 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(());
        }
        let mut hasher = Sha256::new();
        let mut content = File::open(path).map_err(Error::io("open", path))?;
        std::io::copy(&mut content, &mut hasher).map_err(Error::io("read", path))?;
        if hexadecimal(&hasher.finalize()).eq_ignore_ascii_case(name) {
            return Ok(());
        }
        drop(fs::remove_file(path));
        Err(self.failed(&format!("{file} was damaged on its way: start again")))
    }

    /// The right to download this model, and the ending of the names of files that are not whole. Waits for another
    /// process that has the right for as long as the files grow. A file system without locks gives the right to
    /// everybody, and each process has files of its own.
    fn lock(&self) -> Result<(File, String)> {
        let folder = self.cache.join(".locks").join(self.folder_name());
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = folder.join("candelabrum.lock");
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let (mut bytes, mut since) = (self.bytes(), Instant::now());
        loop {
            match file.try_lock() {
                // Not the name of huggingface_hub in Python, which has a lock of its own.
                Ok(()) => return Ok((file, ".candelabrum".to_owned())),
                Err(TryLockError::Error(_)) => {
                    return Ok((file, format!(".candelabrum-{}", std::process::id())));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            let now = self.bytes();
            if now != bytes {
                (bytes, since) = (now, Instant::now());
            }
            if since.elapsed() > self.patience {
                let (seconds, path) = (self.patience.as_secs(), path.display());
                return Err(self.failed(&format!(
                    "another process downloads it, and no file has grown for {seconds} s. End the process that holds {path}, \
                     and start again"
                )));
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// The bytes of the model in the cache.
    fn bytes(&self) -> u64 {
        let blobs = fs::read_dir(self.repository().join("blobs"));
        let len = |entry: std::io::Result<fs::DirEntry>| Some(entry.ok()?.metadata().ok()?.len());
        blobs.into_iter().flatten().filter_map(len).sum()
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<()> {
        if fs::read(path).is_ok_and(|old| old == content) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(path);
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        candelabrum_datasets::write_whole(path, |out| out.write_all(content))
            .map_err(Error::io("write", path))
    }

    fn folder_name(&self) -> String {
        format!("models--{}", self.model.replace('/', "--"))
    }

    fn repository(&self) -> PathBuf {
        self.cache.join(self.folder_name())
    }

    fn refs(&self) -> PathBuf {
        self.repository().join("refs/main")
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.repository().join("snapshots").join(commit)
    }

    fn failed(&self, what: &str) -> Error {
        let what = format!("is no folder, and as a model of the hub it cannot be used: {what}");
        Error::file(&self.model, what)
    }
}

/// Whether a model needs this file besides its weights.
fn is_needed(file: &str) -> bool {
    let is_module = file.split_once('/').is_some_and(|(folder, name)| {
        // The parts of a model of sentence-transformers: 1_Pooling, 2_Dense and so on.
        name == "config.json"
            && folder.starts_with(|c: char| c.is_ascii_digit())
            && folder.contains('_')
    });
    is_module
        || matches!(
            file,
            "config.json"
                | "generation_config.json"
                | "tokenizer.json"
                | "tokenizer_config.json"
                | "special_tokens_map.json"
                | "added_tokens.json"
                | "chat_template.jinja"
                | "chat_template.json"
                | "preprocessor_config.json"
                | "modules.json"
                | "sentence_bert_config.json"
                | "config_sentence_transformers.json"
        )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A hub on this host with one model. It notes the requests for files, and breaks off each answer after so many bytes.
    struct StandIn {
        address: String,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl StandIn {
        fn new(files: &[(&str, &str)], most: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            let files: BTreeMap<String, String> =
                files.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
            let requests = Arc::new(Mutex::new(Vec::new()));
            let notes = requests.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let (stream, files, notes) = (stream.unwrap(), files.clone(), notes.clone());
                    std::thread::spawn(move || answer(stream, &files, &notes, most));
                }
            });
            Self { address, requests }
        }

        fn downloads(&self, file: &str) -> usize {
            let requests = self.requests.lock();
            requests.iter().filter(|one| one.starts_with(&format!("GET {file} "))).count()
        }
    }

    fn answer(
        mut stream: std::net::TcpStream,
        files: &BTreeMap<String, String>,
        notes: &Mutex<Vec<String>>,
        most: usize,
    ) {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let Some((method, path)) = lines.first().and_then(|line| line.split_once(' ')) else {
            return;
        };
        let path = path.split(' ').next().unwrap_or_default();
        let start = lines.iter().find_map(|line| {
            line.to_lowercase().strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok()
        });
        let file = path.split_once("/resolve/c0/").map(|(_, file)| file);
        let list = || {
            let names = files.keys().map(|name| serde_json::json!({ "rfilename": name }));
            serde_json::json!({ "sha": "c0", "siblings": names.collect::<Vec<_>>() }).to_string()
        };
        let (status, body, name) = match file {
            None if path == "/api/models/owner/model/revision/main" => (200, list(), "list"),
            None if path.contains("closed") => (401, String::new(), ""),
            None => (404, String::new(), ""),
            Some(file) => {
                notes.lock().push(format!("{method} {file} from {}", start.unwrap_or(0)));
                (if start.is_some() { 206 } else { 200 }, files[file].clone(), file)
            }
        };
        let body = &body.as_bytes()[start.unwrap_or(0)..];
        let name = name.replace(['/', '.'], "-");
        let head = format!(
            "HTTP/1.1 {status} X\r\netag: \"{name}\"\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        if method == "GET" {
            let end = if file.is_some() { body.len().min(most) } else { body.len() };
            stream.write_all(&body[..end]).unwrap();
        }
    }

    const FILES: &[(&str, &str)] = &[
        ("config.json", "{}"),
        ("1_Pooling/config.json", "{}"),
        ("generation_config.json", "{}"),
        ("README.md", "#"),
        ("model.safetensors", "0123456789"),
        ("consolidated.safetensors", "0123456789"),
        ("onnx/model.safetensors", "0123456789"),
    ];

    fn hub(address: &str, cache: &Path) -> HubModel {
        HubModel {
            model: "owner/model".to_owned(),
            endpoint: address.to_owned(),
            token: None,
            cache: cache.to_owned(),
            is_offline: false,
            patience: Duration::from_secs(60),
        }
    }

    #[test]
    fn what_is_no_folder_must_be_a_name_of_the_hub() {
        for name in ["no-such-folder", "/no/such/folder", "./no/folder", "a/b/c", "a/", "../models"]
        {
            let error = folder(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains("neither a folder"), "{name}: {error}");
        }
    }

    #[test]
    fn ranks_that_ask_at_once_download_each_needed_file_once() {
        let (server, cache) = (StandIn::new(FILES, usize::MAX), tempfile::tempdir().unwrap());
        let found: Vec<PathBuf> = std::thread::scope(|scope| {
            let rank = || hub(&server.address, cache.path()).folder().unwrap();
            let ranks: Vec<_> = (0..3).map(|_| scope.spawn(rank)).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(found[0], found[1]);
        let read = |file: &str| fs::read_to_string(found[0].join(file)).unwrap();
        assert_eq!(
            (read("model.safetensors"), read("1_Pooling/config.json")),
            ("0123456789".into(), "{}".into())
        );
        for (file, expected) in [
            ("model.safetensors", 1),
            ("1_Pooling/config.json", 1),
            ("generation_config.json", 1),
            ("consolidated.safetensors", 0),
            ("onnx/model.safetensors", 0),
            ("README.md", 0),
        ] {
            assert_eq!(server.downloads(file), expected, "{file}");
        }
        // Python finds the commit by this file.
        assert_eq!(
            fs::read_to_string(cache.path().join("models--owner--model/refs/main")).unwrap(),
            "c0"
        );
    }

    #[test]
    fn a_download_that_breaks_off_goes_on_where_it_was() {
        let (server, cache) = (StandIn::new(FILES, 4), tempfile::tempdir().unwrap());
        let found = hub(&server.address, cache.path()).folder().unwrap();
        assert_eq!(fs::read_to_string(found.join("model.safetensors")).unwrap(), "0123456789");
        let requests = server.requests.lock();
        let starts = [0, 4, 8].map(|start| format!("GET model.safetensors from {start}"));
        let of_weights = requests.iter().filter(|one| one.starts_with("GET model."));
        assert_eq!(of_weights.cloned().collect::<Vec<_>>(), starts);
    }

    #[test]
    fn a_whole_model_in_the_cache_needs_no_network_and_a_missing_file_is_named() {
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        let files = [
            ("config.json", "{}"),
            ("model.safetensors.index.json", index),
            ("model-1.safetensors", "1"),
            ("model-2.safetensors", "2"),
        ];
        let (server, cache) = (StandIn::new(&files, usize::MAX), tempfile::tempdir().unwrap());
        let online = hub(&server.address, cache.path());
        let found = online.folder().unwrap();
        // Nobody listens at the port of a listener that is gone.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let without = || hub(&format!("http://{gone}"), cache.path());
        assert_eq!(without().folder().unwrap(), found);
        let offline = || HubModel { is_offline: true, ..without() };
        assert_eq!(offline().folder().unwrap(), found);
        fs::remove_file(found.join("model-2.safetensors")).unwrap();
        for (hub, why) in
            [(without(), "the hub did not answer"), (offline(), "HF_HUB_OFFLINE is set")]
        {
            let error = hub.folder().unwrap_err().to_string();
            for words in ["owner/model: ", why, "model-2.safetensors is missing"] {
                assert!(error.contains(words), "{error}");
            }
        }
        // With the hub only the missing file is asked for.
        online.folder().unwrap();
        assert_eq!(
            ["model-1.safetensors", "model-2.safetensors"].map(|file| server.downloads(file)),
            [1, 1]
        );
        assert!(found.join("model-2.safetensors").exists());
        let elsewhere = tempfile::tempdir().unwrap();
        let error =
            HubModel { cache: elsewhere.path().to_owned(), ..offline() }.folder().unwrap_err();
        assert!(error.to_string().contains("the model is not in the cache"), "{error}");
    }

    #[test]
    fn a_process_that_holds_the_lock_and_loads_nothing_is_named() {
        let (server, cache) = (StandIn::new(FILES, usize::MAX), tempfile::tempdir().unwrap());
        let one = hub(&server.address, cache.path());
        let lock = one.lock().unwrap();
        let other =
            HubModel { patience: Duration::from_millis(300), ..hub(&server.address, cache.path()) };
        let error = other.folder().unwrap_err().to_string();
        assert!(
            error.contains("no file has grown") && error.contains("candelabrum.lock"),
            "{error}"
        );
        drop(lock);
        other.folder().unwrap();
    }

    #[test]
    fn what_the_hub_refuses_names_the_model_and_the_way_out() {
        let files = [("config.json", "{}"), ("adapter_model.safetensors", "0")];
        let (server, cache) = (StandIn::new(&files, usize::MAX), tempfile::tempdir().unwrap());
        let error = |model: &str| {
            let hub = HubModel { model: model.to_owned(), ..hub(&server.address, cache.path()) };
            hub.folder().unwrap_err().to_string()
        };
        for (model, words) in [
            ("owner/model", "it has no model.safetensors"),
            ("owner/other", "there is no such model or file on the hub: check the name"),
            ("owner/closed", "set HF_TOKEN"),
        ] {
            let error = error(model);
            assert!(error.starts_with(model) && error.contains(words), "{error}");
        }
    }
}
