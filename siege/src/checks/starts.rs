//! How it starts: what it refuses to serve, and what it says of how it serves.

use std::{sync::Arc, time::Duration};

use super::open;
use crate::{
    check::{Category, Check, Seen, expect},
    site::{ADMIN, Site},
    wire::{SOON, call, get},
};

/// Each has a process of its own.
pub(crate) const CATEGORY: Category =
    Category { name: "starts", simulated: Vec::new, setup: open, at_once: 4, checks };

#[rustfmt::skip]
fn checks() -> Vec<Check> {
    vec![
        Check::new("without keys, every address of this machine by the command line", |site| refused(site, &["--listen", "0.0.0.0:0"])),
        Check::new("without keys, every address of version 6", |site| refused(site, &["--listen", "[::]:0"])),
        Check::new("without keys, an address of version 4 in one of version 6", |site| refused(site, &["--listen", "[::ffff:10.0.0.1]:0"])),
        Check::new("without keys, an address of its network", |site| refused(site, &["--listen", "10.0.0.1:0"])),
        Check::new("without an admin key it says so", without_admin_key),
        Check::new("with an admin key it has nothing to say", with_admin_key),
    ]
}

/// It does not start, and names the key of the configuration.
async fn refused(site: Arc<Site>, arguments: &'static [&'static str]) -> Seen {
    let gateway = site.spawn(|setup| setup.arguments = arguments)?;
    let status = gateway.wait_exit(Duration::from_secs(3)).await?;
    expect(
        status.code() == Some(2) && gateway.output().contains("server.auth"),
        format!("{status}: {}", gateway.log()),
    )
}

/// What it prints of `/admin/*` at its start.
fn notice(output: &str) -> Option<&str> {
    output.lines().find(|line| line.contains("server.admin_key"))
}

async fn without_admin_key(site: Arc<Site>) -> Seen {
    let reply = get(site.gateway.addr, "/admin/status").await?;
    let output = site.gateway.output();
    let notice = notice(&output);
    expect(reply.status == 200 && notice.is_some(), format!("{}, {notice:?}", reply.status))
}

async fn with_admin_key(site: Arc<Site>) -> Seen {
    let gateway = site.another(|setup| setup.server += "\nadmin_key = \"env:SIEGE_ADMIN\"").await?;
    let without = get(gateway.addr, "/admin/status").await?.status;
    let request = format!(
        "GET /admin/status HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {ADMIN}\r\n\r\n"
    );
    let with = call(gateway.addr, request, SOON).await?.status;
    let output = gateway.output();
    let notice = notice(&output);
    expect(
        (without, with) == (401, 200) && notice.is_none(),
        format!("without it {without}, with it {with}, {notice:?}"),
    )
}
