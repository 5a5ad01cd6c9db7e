//! Providers behind TLS that is not what it should be.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use super::{
    hostile::{Want, ask},
    open,
};
use crate::{
    check::{Category, Check, Failed, expect},
    process::Setup,
    provider::{Providers, answer, listen, response, route, section},
};

pub(crate) const CATEGORY: Category =
    Category { name: "tls", simulated: Vec::new, setup, at_once: 8, checks };

/// A certificate and its key.
const ELSEWHERE: &[u8] = include_bytes!("../../data/elsewhere.pem");

/// What is done with a connection on which TLS should begin.
#[derive(Clone, Copy)]
enum Greeting {
    /// A certificate that is not this machine's, and an answer for whoever takes it.
    Elsewhere,
    Silence,
    Close,
    Bytes(&'static [u8]),
    Endless(&'static [u8]),
}

#[rustfmt::skip]
const GREETINGS: &[(&str, &str, Greeting)] = &[
    ("a certificate for another name, of nobody", "tls-elsewhere", Greeting::Elsewhere),
    ("a handshake that does not come", "tls-silence", Greeting::Silence),
    ("the end instead of a handshake", "tls-close", Greeting::Close),
    ("HTTP instead of a handshake", "tls-plain", Greeting::Bytes(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")),
    ("an alert instead of a handshake", "tls-alert", Greeting::Bytes(b"\x15\x03\x03\x00\x02\x02\x28")),
    ("half a handshake", "tls-half", Greeting::Bytes(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03")),
    ("a handshake without an end", "tls-endless", Greeting::Endless(b"\x16\x03\x03\x00\x04\x00\x00\x00\x00")),
    ("bytes without an end", "tls-bytes", Greeting::Endless(&[0xff; 1000])),
];

/// How many connections there were for each of them.
static GREETED: [AtomicUsize; GREETINGS.len()] = [const { AtomicUsize::new(0) }; GREETINGS.len()];

fn setup(providers: &Providers) -> Setup {
    let own = open(providers);
    let mut config = own.config.clone();
    for (n, (_, name, greeting)) in GREETINGS.iter().enumerate() {
        // Where there is no port the check fails: nobody is greeted on this one.
        let port = serve(n, *greeting).unwrap_or_else(|Failed(why)| {
            eprintln!("siege: {why}");
            9
        });
        config += &section(name, "openai", &format!("https://127.0.0.1:{port}/v1"), "");
        config += &route(name, name);
    }
    Setup { config, ..own }
}

fn checks() -> Vec<Check> {
    let each = |(n, &(title, name, _)): (usize, &(&'static str, &'static str, Greeting))| {
        Check::new(title, move |site| async move {
            let seen = ask(&site, name, false, Want::Fails).await;
            let greeted = GREETED[n].load(Ordering::Relaxed);
            if greeted == 0 { expect(false, "nobody connected") } else { seen }
        })
    };
    GREETINGS.iter().enumerate().map(each).collect()
}

/// Greets whoever connects to this port.
fn serve(n: usize, greeting: Greeting) -> Result<u16, Failed> {
    let (listener, addr) = listen()?;
    let chain = CertificateDer::pem_slice_iter(ELSEWHERE).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(ELSEWHERE)?;
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    tokio::spawn(accept(listener, n, greeting, TlsAcceptor::from(Arc::new(tls))));
    Ok(addr.port())
}

async fn accept(listener: TcpListener, n: usize, greeting: Greeting, tls: TlsAcceptor) {
    while let Ok((stream, _)) = listener.accept().await {
        GREETED[n].fetch_add(1, Ordering::Relaxed);
        let tls = tls.clone();
        // Whatever ends a connection is the check's to find at the other side.
        tokio::spawn(Box::pin(async move { greet(stream, greeting, &tls).await }));
    }
}

async fn greet(
    mut stream: TcpStream,
    greeting: Greeting,
    tls: &TlsAcceptor,
) -> std::io::Result<()> {
    match greeting {
        Greeting::Elsewhere => {
            let mut stream = tls.accept(stream).await?;
            stream.read_u8().await?;
            stream.write_all(&response("200 OK", "", &answer("You believed me."))).await?;
            return stream.shutdown().await;
        }
        Greeting::Silence => {}
        Greeting::Close => return Ok(()),
        Greeting::Bytes(bytes) => stream.write_all(bytes).await?,
        Greeting::Endless(bytes) => loop {
            stream.write_all(bytes).await?;
        },
    }
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(|_| ())
}
