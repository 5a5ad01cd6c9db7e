//! The size of an image, read from the first bytes of its base64 text.

/// Width and height of a PNG, GIF, JPEG or WebP image; `None` for what can not be read. Decodes
/// only the bytes it needs.
pub(super) fn dimensions(base64: &str) -> Option<(u32, u32)> {
    let data = Base64(base64.as_bytes());
    if data.starts_with(0, b"\x89PNG\r\n\x1a\n") {
        Some((data.big(16, 4)?, data.big(20, 4)?))
    } else if data.starts_with(0, b"GIF8") {
        Some((data.little(6, 2)?, data.little(8, 2)?))
    } else if data.starts_with(0, b"\xff\xd8") {
        jpeg(data)
    } else if data.starts_with(0, b"RIFF") && data.starts_with(8, b"WEBP") {
        webp(data)
    } else {
        None
    }
}

/// Walks the segments up to the frame header.
fn jpeg(data: Base64<'_>) -> Option<(u32, u32)> {
    let mut at = 2;
    // Each step goes forward by at least two bytes, so this ends with the data.
    loop {
        if data.byte(at)? != 0xff {
            return None;
        }
        match data.byte(at + 1)? {
            // Fill bytes and markers without a length.
            0xff => at += 1,
            0x01 | 0xd0..=0xd8 => at += 2,
            // Frame headers; C4, C8 and CC are something else.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some((data.big(at + 7, 2)?, data.big(at + 5, 2)?));
            }
            // The image's own data, or its end, without a frame before it.
            0xd9 | 0xda => return None,
            _ => at += 2 + data.big(at + 2, 2).filter(|length| *length >= 2)? as usize,
        }
    }
}

fn webp(data: Base64<'_>) -> Option<(u32, u32)> {
    if data.starts_with(12, b"VP8X") {
        Some((data.little(24, 3)? + 1, data.little(27, 3)? + 1))
    } else if data.starts_with(12, b"VP8L") {
        let bits = data.little(21, 4)?;
        Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
    } else if data.starts_with(12, b"VP8 ") {
        Some((data.little(26, 2)? & 0x3fff, data.little(28, 2)? & 0x3fff))
    } else {
        None
    }
}

/// Base64 text with access to each byte.
#[derive(Clone, Copy)]
struct Base64<'a>(&'a [u8]);

impl Base64<'_> {
    fn byte(self, index: usize) -> Option<u8> {
        let at = index / 3 * 4 + index % 3;
        let (high, low) = (self.sextet(at)?, self.sextet(at + 1)?);
        Some(match index % 3 {
            0 => high << 2 | low >> 4,
            1 => high << 4 | low >> 2,
            _ => high << 6 | low,
        })
    }

    fn sextet(self, index: usize) -> Option<u8> {
        Some(match *self.0.get(index)? {
            letter @ b'A'..=b'Z' => letter - b'A',
            letter @ b'a'..=b'z' => letter - b'a' + 26,
            digit @ b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        })
    }

    fn starts_with(self, at: usize, prefix: &[u8]) -> bool {
        prefix.iter().enumerate().all(|(index, byte)| self.byte(at + index) == Some(*byte))
    }

    fn big(self, at: usize, bytes: usize) -> Option<u32> {
        (at..at + bytes).try_fold(0, |value, at| Some(value << 8 | u32::from(self.byte(at)?)))
    }

    fn little(self, at: usize, bytes: usize) -> Option<u32> {
        (at..at + bytes).rev().try_fold(0, |value, at| Some(value << 8 | u32::from(self.byte(at)?)))
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;

    #[test]
    fn reads_each_format() {
        let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &[0, 0, 0x1f, 0x41, 0, 0, 0, 7]];
        let gif = [b"GIF89a".as_slice(), &[0x40, 1, 0xf0, 0]];
        let jpeg = [
            // An APP0 segment of four bytes, a fill byte, then a progressive frame.
            b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc2\0\x11\x08".as_slice(),
            &[0x02, 0x58, 0x03, 0x20, 3],
        ];
        let extended =
            [b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".as_slice(), &[0xff, 7, 0, 9, 0, 0]];
        let lossless = [b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f".as_slice(), &[0x09, 0x40, 0x01, 0]];
        let lossy =
            [b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a".as_slice(), &[0x80, 2, 0xe0, 1]];
        let cases = [
            (png.concat(), (8_001, 7)),
            (gif.concat(), (320, 240)),
            (jpeg.concat(), (800, 600)),
            (extended.concat(), (2_048, 10)),
            (lossless.concat(), (10, 6)),
            (lossy.concat(), (640, 480)),
        ];
        for (bytes, size) in cases {
            assert_eq!(dimensions(&STANDARD.encode(bytes)), Some(size));
        }
    }

    #[test]
    fn anything_else_has_no_size() {
        let endless = [b"\xff\xd8".as_slice(), &[0xff; 300]].concat();
        let backwards = b"\xff\xd8\xff\xe0\0\0\xff\xe0\0\0".to_vec();
        for bytes in [b"".to_vec(), b"\x89PNG\r\n\x1a\n".to_vec(), endless, backwards] {
            assert_eq!(dimensions(&STANDARD.encode(bytes)), None);
        }
        for text in ["", "====", "not base64 at all", "iVBORw0KGgo", "\u{1f600}"] {
            assert_eq!(dimensions(text), None);
        }
    }
}
