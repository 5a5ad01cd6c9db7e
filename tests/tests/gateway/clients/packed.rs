//! Compressed requests.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use steadfast::sim::Dialect;
use steadfast_tests::gateway::{DIALECTS, Rig, ask, model, provider, wire_answer::refusal};

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(body).unwrap();
    packed.finish().unwrap()
}

/// A frame of one block that is stored as it is.
fn zstd(body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len() - 256).unwrap();
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60];
    packed.extend(length.to_le_bytes());
    let header = u32::try_from(body.len()).unwrap() << 3 | 1;
    packed.extend(&header.to_le_bytes()[..3]);
    [&packed, body].concat()
}

/// A frame of `blocks` blocks of 128 KiB, four bytes each.
fn bomb(blocks: usize) -> Vec<u8> {
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for at in 0..blocks {
        let header = (128 * 1024) << 3 | 1 << 1 | u32::from(at + 1 == blocks);
        packed.extend(&header.to_le_bytes()[..3]);
        packed.push(b' ');
    }
    packed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_packed_request_is_sent_on_as_it_was_before() {
    for dialect in DIALECTS {
        let rig = Rig::of(provider(dialect).build()).await;
        let request = ask(dialect, model(dialect), false);
        let plain = request.sent().to_vec();
        // Long enough for the length to take two bytes.
        let plain = [&plain[..], &[b' '; 300]].concat();
        for (encoding, packed) in [("gzip", gzip(&plain)), ("zstd", zstd(&plain))] {
            let request = request.clone().body(packed).header("content-encoding", encoding);
            let reply = request.send(rig.addr).await;
            assert_eq!(reply.status, 200, "{dialect}, {encoding}: {}", reply.text());
            let seen = rig.last();
            assert_eq!(seen.header("content-encoding"), None);
            let read = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap();
            assert_eq!(read(&seen.body), read(&plain), "{dialect}, {encoding}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_grows_to_has_the_limit_of_any() {
    let rig = Rig::builder()
        .server("auth = \"none\"\nbody_limit = 1_000_000")
        .provider(provider(Dialect::OpenAi).build())
        .start()
        .await;
    let request = ask(Dialect::OpenAi, "gpt-4o", false);
    // 128 MiB from 4 KB, and 10 MB from 10 KB.
    for (encoding, packed) in [("zstd", bomb(1_024)), ("gzip", gzip(&vec![b' '; 10_000_000]))] {
        assert!(packed.len() < 20_000);
        let request = request.clone().body(packed).header("content-encoding", encoding);
        let message = refusal(Dialect::OpenAi, 413, &request.send(rig.addr).await);
        assert!(message.contains("1000000 bytes"), "{encoding}: {message}");
    }
    // What comes to nothing is not read for ever: a frame of empty blocks.
    let nothing = [&bomb(0)[..], &[0; 1_200_000]].concat();
    let nothing = request.clone().body(nothing).header("content-encoding", "zstd");
    assert_eq!(nothing.send(rig.addr).await.status, 413);
    // What stands behind what is packed is no request.
    let more = [&gzip(request.sent())[..], b"more of it"].concat();
    let more = request.body(more).header("content-encoding", "gzip");
    assert_eq!(more.send(rig.addr).await.status, 400);
    assert_eq!(rig.seen().len(), 0);
}
