//! What passes between an agent and whom it asks.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::socket::{self, CREATE};

/// A relay of connections that keeps what passes, each connection in two files: `NNN.asked` and
/// `NNN.answered`. It ends when dropped; connections end with their ends.
#[derive(Debug)]
pub(super) struct Tap {
    address: SocketAddr,
    folder: PathBuf,
    over: Arc<AtomicBool>,
}

/// One request, or message of a WebSocket, and how it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// Of a message, what it asks for.
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    /// The status; `None` if no answer came.
    pub(super) status: Option<u16>,
}

impl Exchange {
    /// Whether it asks for an answer of a model, rather than a list or a count.
    pub(super) fn generates(&self) -> bool {
        let ends = ["/messages", "/chat/completions", "/responses", "enerateContent"];
        self.is_message()
            || self.method == "POST" && ends.iter().any(|end| self.path.ends_with(end))
    }

    /// Whether it asks for an answer over a WebSocket.
    pub(super) fn is_message(&self) -> bool {
        self.method == CREATE
    }
}

impl Tap {
    /// Relays to `upstream`, which is `host:port`, and writes into `folder`.
    pub(super) fn start(upstream: &str, folder: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the tap can not listen: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let over = Arc::new(AtomicBool::new(false));
        let tap = Self { address, folder: folder.to_owned(), over: over.clone() };
        let (upstream, folder) = (upstream.to_owned(), folder.to_owned());
        thread::spawn(move || {
            for (n, caller) in listener.incoming().enumerate() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(caller) = caller else { continue };
                // Whoever can not be reached is, to the caller, a connection that is closed.
                let _ = relay(&caller, &upstream, &folder.join(format!("{n:03}")));
            }
        });
        Ok(tap)
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All exchanges so far, connection by connection.
    pub(super) fn exchanges(&self) -> Result<Vec<Exchange>, String> {
        let kept = |n: usize, what: &str| fs::read(self.folder.join(format!("{n:03}.{what}"))).ok();
        let connections: Result<Vec<_>, String> = (0..)
            .map_while(|n| Some((n, kept(n, "asked")?, kept(n, "answered")?)))
            .map(|(n, asked, answered)| {
                exchanges(&asked, &answered).map_err(|why| format!("connection {n:03}: {why}"))
            })
            .collect();
        Ok(connections?.concat())
    }

    /// How many connections had an answer with one of `texts`.
    pub(super) fn answers_with(&self, texts: &[&str]) -> usize {
        let answered = |n: usize| fs::read(self.folder.join(format!("{n:03}.answered"))).ok();
        let has = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            texts.iter().any(|part| text.contains(part))
        };
        (0..).map_while(answered).filter(has).count()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The listener waits for a connection: this one.
        let _ = TcpStream::connect(self.address);
    }
}

fn relay(caller: &TcpStream, upstream: &str, kept: &Path) -> io::Result<()> {
    let upstream = TcpStream::connect(upstream)?;
    let pairs = [
        (caller.try_clone()?, upstream.try_clone()?, kept.with_extension("asked")),
        (upstream.try_clone()?, caller.try_clone()?, kept.with_extension("answered")),
    ];
    for (mut from, mut to, kept) in pairs {
        let mut kept = File::create(kept)?;
        thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                let _ = kept.write_all(&buffer[..read]);
                if to.write_all(&buffer[..read]).is_err() {
                    // Whom it is for has gone: whoever sends it is to know.
                    let _ = from.shutdown(Shutdown::Both);
                    return;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}

/// The exchanges of one connection, which is a WebSocket if its first answer says so.
fn exchanges(asked: &[u8], answered: &[u8]) -> Result<Vec<Exchange>, String> {
    if !answered.starts_with(b"HTTP/1.1 101 ") {
        return Ok(requests(asked, answered));
    }
    let (Some((handshake, asked)), Some((head, answered))) = (behind(asked), behind(answered))
    else {
        return Err("the handshake of a WebSocket is not whole".to_owned());
    };
    let mut all = requests(handshake, head);
    let [Exchange { path, status, .. }] = &mut all[..] else {
        return Err("a handshake of a WebSocket is not one request".to_owned());
    };
    *status = Some(101);
    let messages = socket::exchanges(path, asked, answered)?;
    all.extend(messages);
    Ok(all)
}

/// A head, and what is behind it.
fn behind(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(bytes.split_at(end + 4))
}

/// The exchanges of a connection that is none. Bodies are JSON, whose line ends are escaped, or events, whose lines
/// begin otherwise: a line that begins a head is one.
fn requests(asked: &[u8], answered: &[u8]) -> Vec<Exchange> {
    let text = String::from_utf8_lossy(answered);
    let mut statuses = text.lines().filter_map(|line| {
        // A head may follow a body without a line end.
        let (_, rest) = line.rsplit_once("HTTP/1.1 ")?;
        let (status, _) = rest.split_at_checked(3)?;
        status.parse::<u16>().ok().filter(|status| *status >= 200)
    });
    let text = String::from_utf8_lossy(asked);
    let requests = text.split('\n').filter_map(|line| {
        let (line, _) = line.trim_end().split_once(" HTTP/1.1")?;
        let mut words = line.rsplit(' ');
        let (path, before) = (words.next()?, words.next()?);
        let method =
            ["GET", "POST", "HEAD", "PUT", "DELETE"].into_iter().find(|m| before.ends_with(m))?;
        let path = path.split('?').next()?;
        path.starts_with('/').then(|| (method.to_owned(), path.to_owned()))
    });
    requests.map(|(method, path)| Exchange { method, path, status: statuses.next() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_statuses_are_read_from_what_passed() {
        let asked =
            b"POST /v1/messages?beta=true HTTP/1.1\r\nhost: x\r\n\r\n{\"a\":\"GET /no HTTP\"}\
                      HEAD / HTTP/1.1\r\n\r\nPOST /v1/messages HTTP/1.1\r\n\r\n{}";
        let answered = b"HTTP/1.1 200 OK\r\n\r\n{}HTTP/1.1 404 Not Found\r\n\r\n";
        let read: Vec<_> = exchanges(asked, answered)
            .unwrap()
            .into_iter()
            .map(|one| (one.generates(), one.path, one.status))
            .collect();
        assert_eq!(
            read,
            [
                (true, "/v1/messages".to_owned(), Some(200)),
                (false, "/".to_owned(), Some(404)),
                (true, "/v1/messages".to_owned(), None),
            ]
        );
    }
}
