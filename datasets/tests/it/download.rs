//! Downloads, from memory and from a server on this machine.

use std::{
    cell::RefCell,
    fs,
    io::{self, BufRead, BufReader, Cursor, Write},
    net::{SocketAddr, TcpListener},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use candelabrum_datasets::{
    Error,
    download::{Digested, HttpTransport, RemoteFile, RemoteFiles, Response, Transport, download},
};

use sha2::{Digest, Sha256};

use crate::mnist_files::gzip;

/// `printf hello | sha256sum`
const HELLO: RemoteFile<'static> = RemoteFile {
    name: "hello",
    sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    digested: Digested::Unpacked,
};

fn body(content: Vec<u8>) -> io::Result<Response> {
    Ok(Response { length: Some(content.len() as u64), reader: Box::new(Cursor::new(content)) })
}

fn fetch(mirrors: &[&str], dir: &Path, transport: &dyn Transport) -> Result<(), Error> {
    download(&RemoteFiles { files: &[HELLO], mirrors, transport }, dir, true)
}

/// The failure of each mirror.
fn failures(error: &Error) -> Vec<String> {
    let text = error.to_string();
    let failures =
        text.strip_prefix("hello: could not be downloaded: ").expect("a failed download");
    let (failures, _) = failures.rsplit_once("; fetch it by hand").unwrap();
    failures.split("; ").map(String::from).collect()
}

/// A transport without a proxy, with a deadline of ten seconds.
fn direct() -> HttpTransport {
    HttpTransport::direct(Duration::from_secs(10))
}

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A server that answers the next connections with these bytes, one after the other, and its
/// address.
fn serve(answers: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            (&stream).write_all(&answer).unwrap();
        }
    });
    address
}

fn http(status: &str, length: usize, content: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.as_bytes(), content].concat()
}

#[test]
fn a_good_file_lands_under_its_name_and_is_not_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("not/yet/there");
    let asked = RefCell::new(Vec::new());
    let transport = |url: &str| {
        asked.borrow_mut().push(url.to_owned());
        body(gzip(b"hello"))
    };
    fetch(&["memory://a/"], &cache, &transport).unwrap();
    assert_eq!(names(&cache), ["hello.gz"]);
    assert_eq!(fs::read(cache.join("hello.gz")).unwrap(), gzip(b"hello"));
    fetch(&["memory://a/"], &cache, &transport).unwrap();
    assert_eq!(*asked.borrow(), ["memory://a/hello.gz"]);
}

#[test]
fn a_mirror_that_unpacks_on_its_own_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    fetch(&["m/"], dir.path(), &|_: &str| body(b"hello".to_vec())).unwrap();
    assert_eq!(names(dir.path()), ["hello"]);
}

#[test]
fn a_bad_copy_is_refused_and_the_next_mirror_asked() {
    let dir = tempfile::tempdir().unwrap();
    let transport = |url: &str| match url.starts_with("bad/") {
        true => body(gzip(b"hullo")),
        false => body(gzip(b"hello")),
    };
    fetch(&["bad/", "good/"], dir.path(), &transport).unwrap();
    assert_eq!(names(dir.path()), ["hello.gz"]);
}

#[test]
fn when_all_mirrors_fail_the_message_says_why_of_each_and_no_file_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let whole = gzip(b"hello");
    let transport = |url: &str| match url {
        "wrong/hello.gz" => body(gzip(b"hullo")),
        "cut/hello.gz" => body(whole[..whole.len() - 3].to_vec()),
        "short/hello.gz" => Ok(Response { length: Some(99), ..body(whole.clone())? }),
        _ => Err(io::Error::other("no route")),
    };
    let mirrors = ["wrong/", "cut/", "short/", "gone/"];
    let message = fetch(&mirrors, dir.path(), &transport).unwrap_err().to_string();
    assert!(message.starts_with("hello: could not be downloaded"), "{message}");
    for part in [
        "wrong/hello.gz: wrong checksum",
        "cut/hello.gz: damaged gzip",
        "short/hello.gz: ended after 25 of 99 bytes",
        "gone/hello.gz: no route",
    ] {
        assert!(message.contains(part), "{part} not in {message}");
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_mirror_that_failed_is_asked_last_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let asked = RefCell::new(Vec::new());
    let transport = |url: &str| {
        asked.borrow_mut().push(url.to_owned());
        if url.starts_with("down/") { Err(io::Error::other("down")) } else { body(gzip(b"hello")) }
    };
    let files = ["one", "two"].map(|name| RemoteFile { name, ..HELLO });
    let mirrors = ["down/", "up/"];
    let remote = RemoteFiles { files: &files, mirrors: &mirrors, transport: &transport };
    download(&remote, dir.path(), true).unwrap();
    assert_eq!(*asked.borrow(), ["down/one.gz", "up/one.gz", "up/two.gz"]);
}

#[test]
fn processes_that_download_at_once_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| fetch(&["m/"], dir.path(), &|_: &str| body(gzip(b"hello"))).unwrap());
        }
    });
    assert_eq!(names(dir.path()), ["hello.gz"]);
}

#[test]
fn a_real_server_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let content = gzip(b"hello");
    let address = serve(vec![
        http("404 Not Found", 4, b"none"),
        http("200 OK", content.len() + 10, &content), // cut short
        http("200 OK", content.len(), &content),
    ]);
    let mirrors = ["a", "b", "c"].map(|path| format!("http://{address}/{path}/"));
    let mirrors: Vec<&str> = mirrors.iter().map(String::as_str).collect();
    fetch(&mirrors, dir.path(), &direct()).unwrap();
    assert_eq!(fs::read(dir.path().join("hello.gz")).unwrap(), content);
}

#[test]
fn a_truncated_answer_and_a_missing_page_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let content = gzip(b"hello");
    let address =
        serve(vec![http("404 Not Found", 0, b""), http("200 OK", content.len() + 10, &content)]);
    let mirrors = ["a", "b"].map(|path| format!("http://{address}/{path}/"));
    let mirrors: Vec<&str> = mirrors.iter().map(String::as_str).collect();
    let error = fetch(&mirrors, dir.path(), &direct()).unwrap_err();
    let failures = failures(&error);
    assert!(failures[0].contains("404"), "{error}");
    assert!(failures[1].contains("25 "), "{error}");
}

#[test]
fn a_host_that_accepts_and_then_says_nothing_is_given_up_too() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("https://{}/", listener.local_addr().unwrap());
    let start = Instant::now();
    let transport = HttpTransport::direct(Duration::from_millis(1_400));
    fetch(&[&mirror], dir.path(), &transport).unwrap_err();
    assert!(start.elapsed() < Duration::from_millis(2_500), "took {:?}", start.elapsed());
}

#[test]
fn hosts_that_cannot_be_reached_are_given_up_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    // A name that cannot exist (RFC 6761), and an address that routers drop (RFC 5737).
    let mirrors = ["https://mirror.invalid/", "http://192.0.2.1/"];
    let start = Instant::now();
    let transport = HttpTransport::direct(Duration::from_secs(4));
    let error = fetch(&mirrors, dir.path(), &transport).unwrap_err();
    assert_eq!(failures(&error).len(), 2, "{error}");
    assert!(start.elapsed() < Duration::from_millis(5_500), "took {:?}: {error}", start.elapsed());
}

#[test]
fn a_mirror_that_trickles_is_given_up_at_the_deadline_and_no_other_is_asked_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // Each read is fast enough to go on, but 1,000,000 bytes would take a day.
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    let (slow, other) = (format!("http://{address}/"), "http://127.0.0.1:1/");
    let start = Instant::now();
    let transport = HttpTransport::direct(Duration::from_millis(800));
    let error = fetch(&[&slow, other], dir.path(), &transport).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(3), "took {:?}: {error}", start.elapsed());
    let failures = failures(&error);
    assert!(failures[0].contains("broke off after"), "{error}");
    assert!(failures[1].contains("for all downloads together are over"), "{error}");
    assert!(names(dir.path()).is_empty());
}

#[test]
fn an_archive_is_checked_as_it_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let packed = gzip(b"hello");
    let digest: String = Sha256::digest(&packed).iter().map(|byte| format!("{byte:02x}")).collect();
    let file = RemoteFile { name: "set.tar", sha256: &digest, digested: Digested::AsSent };
    let transport = |url: &str| {
        assert_eq!(url, "http://a/set.tar.gz");
        body(packed.clone())
    };
    let remote = RemoteFiles { files: &[file], mirrors: &["http://a/"], transport: &transport };
    download(&remote, dir.path(), true).unwrap();
    assert_eq!(fs::read(dir.path().join("set.tar.gz")).unwrap(), packed);
    // The digest of what is in it is another one.
    let file = RemoteFile { digested: Digested::Unpacked, ..file };
    let remote = RemoteFiles { files: &[file], ..remote };
    let error = download(&remote, dir.path(), true).unwrap_err().to_string();
    assert!(error.contains("wrong checksum"), "{error}");
}
