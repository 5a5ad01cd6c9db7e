//! The network between a node and a store, which can be cut or slow.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// Forwards to a store for as long as it lives.
pub struct Network {
    pub port: u16,
    is_cut: watch::Sender<bool>,
    delay: Arc<Mutex<Duration>>,
    _tasks: JoinSet<()>,
}

impl Network {
    pub async fn to(store: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_cut, cut) = watch::channel(false);
        let delay = Arc::<Mutex<Duration>>::default();
        let mut tasks = JoinSet::new();
        let slow = delay.clone();
        tasks.spawn(async move {
            let mut ways = JoinSet::new();
            while let Ok((node, _)) = listener.accept().await {
                let Ok(store) = TcpStream::connect(("127.0.0.1", store)).await else { continue };
                let ((from_node, to_node), (from_store, to_store)) =
                    (node.into_split(), store.into_split());
                ways.spawn(forward(from_node, to_store, cut.clone(), slow.clone()));
                ways.spawn(forward(from_store, to_node, cut.clone(), slow.clone()));
            }
        });
        Self { port, is_cut, delay, _tasks: tasks }
    }

    /// Nothing comes through any more, and nobody notices.
    pub fn set_cut(&self, cut: bool) {
        self.is_cut.send_replace(cut);
    }

    /// Everything takes so long, each way.
    pub fn set_delay(&self, delay: Duration) {
        *self.delay.lock() = delay;
    }
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut cut: watch::Receiver<bool>,
    delay: Arc<Mutex<Duration>>,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let wait = *delay.lock();
        sleep(wait).await;
        if cut.wait_for(|cut| !cut).await.is_err() || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}
