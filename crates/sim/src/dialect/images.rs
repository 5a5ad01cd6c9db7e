//! What a provider checks of image files: kind and dimensions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The header of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) mime: &'static str,
    /// Width and height, for the formats where they are easily read.
    pub(crate) size: Option<(u32, u32)>,
}

pub(crate) fn decode(base64: &str) -> Option<Vec<u8>> {
    STANDARD.decode(base64).ok()
}

/// Reads the header, or `None` for bytes of no known format.
pub(crate) fn inspect(bytes: &[u8]) -> Option<Image> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        let size = be32(bytes, 16).zip(be32(bytes, 20));
        return Some(Image { mime: "image/png", size });
    }
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Some(Image { mime: "image/jpeg", size: jpeg_size(bytes) });
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        let le16 =
            |at: usize| Some(u32::from(*bytes.get(at)?) | u32::from(*bytes.get(at + 1)?) << 8);
        return Some(Image { mime: "image/gif", size: le16(6).zip(le16(8)) });
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Some(Image { mime: "image/webp", size: None });
    }
    None
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(four))
}

fn be16(bytes: &[u8], at: usize) -> Option<u32> {
    let two: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u32::from(u16::from_be_bytes(two)))
}

/// Walks the segments to the start-of-frame marker.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let marker = *bytes.get(at + 1)?;
        if *bytes.get(at)? != 0xff {
            return None;
        }
        let length = usize::try_from(be16(bytes, at + 2)?).ok()?;
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            return Some((be16(bytes, at + 7)?, be16(bytes, at + 5)?));
        }
        at += 2 + length.max(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_sizes_are_read_and_nothing_panics() {
        let png =
            [b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 8], &[0, 0, 0x1f, 0x41], &[0, 0, 0, 2]].concat();
        assert_eq!(inspect(&png), Some(Image { mime: "image/png", size: Some((8001, 2)) }));
        let jpeg = [
            b"\xff\xd8\xff\xe0\x00\x04ab".as_slice(),
            b"\xff\xc0\x00\x0b\x08\x00\x10\x00\x20\x01\x01\x11\x00",
        ]
        .concat();
        assert_eq!(inspect(&jpeg), Some(Image { mime: "image/jpeg", size: Some((32, 16)) }));
        let gif = inspect(b"GIF89a\x05\x00\x06\x00");
        assert_eq!(gif, Some(Image { mime: "image/gif", size: Some((5, 6)) }));
        for whole in [&png[..], &jpeg[..], b"GIF89a\x05\x00\x06\x00", b"RIFF....WEBP"] {
            for end in 0..whole.len() {
                let _ = inspect(&whole[..end]);
            }
        }
        assert_eq!(inspect(b"hello"), None);
    }
}
