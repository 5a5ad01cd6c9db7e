//! An HTTP/1.1 server around one function, for the upstream and for the minimal proxy.

use std::{convert::Infallible, io::Write};

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Error;

/// Serves on a free port, which is printed first, until the process is killed. The runtime is
/// tokio's default, as the gateway's is on more than one core.
pub(crate) fn run<F, R, B>(answer: F) -> Result<(), Error>
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Error>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answered = answer(request);
                async { Ok::<_, Infallible>(answered.await) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // An error ends only its connection: the load reports missing answers.
            tokio::spawn(async move { connection.await.is_ok() });
        }
    })
}
