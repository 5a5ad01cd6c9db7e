//! The client over real sockets.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use steadfast_chat::ChatRequest;
use steadfast_client::{LlmClient, Provider, Providers, Transport};
use steadfast_core::{Dialect, Reason};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower::ServiceExt;

use crate::fixtures::{TEXT, completion, stream};

type Reply = Response<BoxBody<Bytes, Infallible>>;

fn reply(status: u16, kind: &str, body: impl Into<Bytes>) -> Reply {
    let body = Full::new(body.into()).boxed();
    Response::builder().status(status).header("content-type", kind).body(body).unwrap()
}

/// A server that answers with `answer`, and the number of its connections.
async fn serve(
    answer: impl Fn(usize) -> Reply + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = connections.clone();
    let requests = Arc::new(AtomicUsize::new(0));
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            seen.fetch_add(1, Ordering::SeqCst);
            let (answer, requests) = (answer.clone(), requests.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (answer, requests) = (answer.clone(), requests.clone());
                async move {
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(answer(requests.fetch_add(1, Ordering::SeqCst)))
                }
            });
            tokio::spawn(async move {
                let _ = Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
            });
        }
    });
    (address, connections)
}

fn client(address: SocketAddr) -> LlmClient<Transport> {
    let provider = Provider::new("p", Dialect::OpenAi)
        .with_base_url(format!("http://{address}/v1"))
        .without_credential();
    LlmClient::new(Providers::new([provider]).unwrap())
}

fn ask() -> ChatRequest {
    ChatRequest::user("hi").with_model("m").streaming()
}

#[tokio::test]
async fn a_connection_is_used_again_after_answers_and_small_errors() {
    let (address, connections) = serve(|n| match n {
        0 => reply(500, "application/json", vec![b'x'; 90 * 1024]),
        1 => reply(429, "application/json", "{}"),
        _ => reply(200, "text/event-stream", stream(Dialect::OpenAi)),
    })
    .await;
    let client = client(address);
    for reason in [Reason::ServerError, Reason::RateLimit] {
        let failure = client.clone().oneshot(ask()).await.unwrap_err();
        assert_eq!(failure.reason(), reason);
    }
    for _ in 0..3 {
        let answer = client.clone().oneshot(ask()).await.unwrap().collect().await.unwrap();
        assert_eq!(answer.text(), TEXT);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// A chunk, and then nothing. Two flags: it was polled for more; its reader has gone.
struct Hanging {
    first: Option<Bytes>,
    hangs: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
}

impl Body for Hanging {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => {
                self.hangs.store(true, Ordering::SeqCst);
                Poll::Pending
            }
        }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

async fn becomes_true(flag: &AtomicBool) {
    let waited = tokio::time::timeout(Duration::from_secs(5), async {
        while !flag.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("the server was not notified");
}

/// A server that hangs after `first`, with two flags: it hangs, and it has been asked to stop.
async fn hanging(
    kind: &'static str,
    first: &'static str,
) -> (SocketAddr, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (hangs, dropped) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let flags = (hangs.clone(), dropped.clone());
    let (address, _) = serve(move |_| {
        let (hangs, dropped) = flags.clone();
        let body = Hanging { first: Some(first.into()), hangs, dropped }.boxed();
        Response::builder().header("content-type", kind).body(body).unwrap()
    })
    .await;
    (address, hangs, dropped)
}

#[tokio::test]
async fn dropping_an_answer_closes_its_connection() {
    let (address, _, dropped) = hanging("text/event-stream", ": hello\n\n").await;
    let mut answer = client(address).oneshot(ask()).await.unwrap();
    answer.next().await.unwrap().unwrap();
    assert!(!dropped.load(Ordering::SeqCst));
    drop(answer);
    becomes_true(&dropped).await;
}

#[tokio::test]
async fn dropping_a_call_closes_its_connection() {
    // JSON, so that the call waits for the rest of it.
    let (address, hangs, dropped) = hanging("application/json", "{\"id\":").await;
    let call = tokio::spawn(client(address).oneshot(ask()));
    becomes_true(&hangs).await;
    assert!(!dropped.load(Ordering::SeqCst) && !call.is_finished());
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    becomes_true(&dropped).await;
}

#[tokio::test]
async fn a_stream_that_ends_or_breaks_off_half_way_is_a_failure_of_the_network() {
    let text = stream(Dialect::OpenAi);
    let half = text[..text.len() / 2].to_owned();
    let chunk = format!("{:x}\r\n{half}\r\n", half.len());
    for (end, message) in [("0\r\n\r\n", "terminal event"), ("", "")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
             transfer-encoding: chunked\r\n\r\n{chunk}{end}"
        );
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"}") {
                socket.read_buf(&mut asked).await.unwrap();
            }
            socket.write_all(answer.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
        });
        let mut answer = client(address).oneshot(ask()).await.unwrap();
        let mut text = String::new();
        let failure = loop {
            match answer.next().await.expect("it ends with a failure") {
                Ok(event) => text.push_str(&completion(Dialect::OpenAi, &[event]).text()),
                Err(failure) => break failure,
            }
        };
        assert_eq!(failure.reason(), Reason::Network);
        assert!(failure.message().contains(message), "{failure}");
        assert!(TEXT.starts_with(&text) && !text.is_empty());
        assert!(answer.next().await.is_none());
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_network_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let failure = client(address).oneshot(ask()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network);
    assert!(failure.message().to_lowercase().contains("refused"), "{failure}");
    assert!(std::error::Error::source(&failure).is_some());
}

/// Chunks of one read of the socket are ready at once, without waking the connection's task: so a
/// gateway writes them together.
#[tokio::test]
async fn events_that_arrived_together_are_ready_together() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4_096];
        let _ = socket.read(&mut request).await.unwrap();
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                           transfer-encoding: chunked\r\n\r\n"
            .to_vec();
        for word in 0..8 {
            let event =
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n");
            answer.extend(format!("{:x}\r\n{event}\r\n", event.len()).bytes());
        }
        socket.write_all(&answer).await.unwrap();
        // The connection stays open and idle.
        let _ = socket.read(&mut request).await;
    });
    let mut answer = client(address).oneshot(ask().streaming()).await.unwrap();
    let mut count = answer.next().await.unwrap().unwrap().is_content() as usize;
    while let Some(event) = answer.next().now_or_never() {
        count += usize::from(event.unwrap().unwrap().is_content());
    }
    assert_eq!(count, 8);
}

/// An answer that was read to its end may be held for long: its connection serves other calls
/// meanwhile, or they open another.
#[tokio::test]
async fn an_answer_that_is_held_blocks_no_other_call() {
    let (address, _) = serve(|_| reply(200, "text/event-stream", stream(Dialect::OpenAi))).await;
    let client = client(address);
    let mut held = Vec::new();
    for events in 0..4 {
        let mut answer = client.clone().oneshot(ask()).await.unwrap();
        for _ in 0..events {
            answer.next().await.unwrap().unwrap();
        }
        held.push(answer);
    }
    let next = tokio::time::timeout(Duration::from_secs(20), async {
        client.clone().oneshot(ask()).await.unwrap().collect().await.unwrap()
    });
    assert_eq!(next.await.expect("it waits for the others").text(), TEXT);
    assert_eq!(held.swap_remove(0).collect().await.unwrap().text(), TEXT);
}

/// One task polls the answer first, others read it: each of them is woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_wakes_its_current_reader() {
    const EVENTS: usize = 40;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4_096];
        let _ = socket.read(&mut request).await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                     transfer-encoding: chunked\r\n\r\n";
        socket.write_all(head).await.unwrap();
        for word in 0..EVENTS {
            let event =
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{word} \"}}}}]}}\n\n");
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            // In two pieces, so that some are waited for in the middle.
            let (first, second) = chunk.split_at(word % chunk.len());
            for piece in [first, second] {
                socket.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        let _ = socket.read(&mut request).await;
    });
    let mut answer = client(address).oneshot(ask()).await.unwrap();
    for _ in 0..EVENTS {
        // Polled here, awaited by another task.
        if let Some(event) = answer.next().now_or_never() {
            assert!(event.unwrap().unwrap().is_content());
            continue;
        }
        let reading = tokio::spawn(async move {
            let event = tokio::time::timeout(Duration::from_secs(20), answer.next()).await;
            (event.expect("it is woken"), answer)
        });
        let (event, rest) = reading.await.unwrap();
        assert!(event.unwrap().unwrap().is_content());
        answer = rest;
    }
}
