//! How much memory streams hold, and whether it is released after requests.

use std::time::Duration;

use tokio::task::LocalSet;

use crate::{
    Error,
    load::{self, Callers, Connection, Until},
    variant::Variant,
    wire,
};

/// How many streams begin at once.
const RUSH: usize = 100;

/// The figures of one variant, in bytes.
pub(crate) struct Memory {
    pub(crate) name: &'static str,
    /// How many streams were open at once.
    pub(crate) streams: usize,
    /// Before them.
    pub(crate) idle: u64,
    /// While they were open.
    pub(crate) open: u64,
    /// Requests made before the first and the second measurement.
    pub(crate) requests: (u64, u64),
    /// The memory at these two times.
    pub(crate) after: (u64, u64),
}

impl Memory {
    /// What one stream holds.
    pub(crate) fn a_stream(&self) -> u64 {
        self.open.saturating_sub(self.idle) / self.streams as u64
    }
}

/// Opens streams, holds them, and drops them; then makes many requests.
pub(crate) async fn measure(variant: &Variant, quick: bool) -> Result<Memory, Error> {
    let process = variant.process.as_ref().ok_or("only processes have memory")?;
    let (whole, callers) = (variant.whole(), Callers::without_pause(16));
    load::whole(variant.address, &whole, callers, Until::Count(500), || ()).await?;
    let idle = process.rss()?;

    let streams = 1_000;
    let stream = wire::Stream { events: 1_000_000, gap: Duration::from_secs(1), burst: 1 };
    let request = variant.stream(stream);
    let mut open = Vec::new();
    while open.len() < streams {
        // At most a hundred at once, as callers arrive over time.
        let tasks = LocalSet::new();
        let mut opening = Vec::new();
        for _ in 0..RUSH {
            let mut connection = Connection::open(variant.address).await?;
            let request = request.clone();
            opening.push(tasks.spawn_local(async move {
                let mut answer = connection.begin(&request).await?;
                // Buffers that grow with the first events have grown by then.
                while answer.seen.events < 3 {
                    connection.more(&mut answer).await?;
                }
                Ok::<_, Error>(connection)
            }));
        }
        tasks.await;
        for opened in opening {
            open.push(opened.await??);
        }
    }
    let held = process.rss()?;
    drop(open);

    let requests = if quick { (2_000, 12_000) } else { (10_000, 110_000) };
    load::whole(variant.address, &whole, callers, Until::Count(requests.0), || ()).await?;
    let first = process.rss()?;
    load::whole(variant.address, &whole, callers, Until::Count(requests.1 - requests.0), || ())
        .await?;
    let second = process.rss()?;
    Ok(Memory { name: variant.name, streams, idle, open: held, requests, after: (first, second) })
}
