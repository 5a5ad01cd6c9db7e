//! Images and other media: S13.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use steadfast_chat::{
    ChatRequest, Media, MediaKind, MediaSource, Message, Part, Role,
    transcript::{Position, TranscriptRule::Images, TranscriptRules},
};
use steadfast_core::{
    Dialect::{self, Anthropic, Gemini, OpenAi},
    Profile, Target,
};

use crate::support::{CASE, Case, GEMINI, check, refused, repaired, request, rules, unchanged};

fn user(parts: Vec<Part>) -> Message {
    Message::new(Role::User, parts)
}

fn image(data: &str) -> Part {
    Part::image("image/png", data)
}

/// The first bytes of a PNG of this width, in base64.
fn png(width: u32) -> String {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend([0, 0, 0, 1]);
    STANDARD.encode(bytes)
}

fn count_images(request: &ChatRequest) -> usize {
    let has_image = |part: &&Part| part.has_image();
    request.messages.iter().flat_map(Message::parts).filter(has_image).count()
}

#[test]
fn s13_images_and_media_that_the_provider_does_not_accept() {
    const WITH_IMAGES: &str = "user what is it + image:AAAA / model call:a / user image_result:a";
    const DRAW: &str = "user draw / model image:AAAA / user thanks";
    const NO_VISION: [&str; 3] =
        ["remove image inputs", "remove image inputs", "not enabled for this model"];
    check(&[
        Case { name: "vision", before: WITH_IMAGES, ..CASE },
        Case {
            name: "no vision",
            setup: |rules, _| {
                let mut profile = Profile::new(Target::new("p"));
                profile.can.vision = false;
                *rules = TranscriptRules::for_profile(rules.dialect, &profile);
            },
            before: WITH_IMAGES,
            refused: &[(Images, NO_VISION), (Images, NO_VISION)],
            after: "user what is it + [image omitted: this model does not read images] / model call:a / \
                    user result:a=[image omitted: this model does not read images]",
            ..CASE
        },
        Case {
            name: "an image in the model's message",
            dialects: &[Anthropic, OpenAi],
            before: DRAW,
            refused: &[(
                Images,
                [
                    "`image` blocks can only be in `user` messages",
                    "Image URLs are only allowed for messages with role 'user'",
                    "",
                ],
            )],
            after: "user draw / model [media omitted: the provider takes none in this place] / \
                    user thanks",
            ..CASE
        },
        Case { name: "an image in the model's message", before: DRAW, ..GEMINI },
    ]);
}

#[test]
fn s13_other_media_are_left_to_the_encoder() {
    let document = Part::Media(Media {
        kind: MediaKind::Document,
        source: MediaSource::Url { mime: None, url: "https://example.com/a.pdf".into() },
        extra: None,
    });
    for dialect in Dialect::ALL {
        unchanged("a document", &request(vec![user(vec![document.clone()])]), &rules(dialect));
    }
}

#[test]
fn s13_type_bytes_and_sides_of_one_image() {
    let mut rules = rules(Anthropic);
    rules.images.max_base64 = Some(64);
    for (part, text) in [
        (
            Part::image("image/tiff", "AAAA"),
            "media_type: Input should be 'image/jpeg', 'image/png'",
        ),
        (image(&"A".repeat(65)), "image exceeds 0 MB maximum: 65 bytes > 64 bytes"),
        (
            image(&png(8_001)),
            "At least one of the image dimensions exceed max allowed size: 8000 pixels",
        ),
    ] {
        let history = request(vec![user(vec![part, Part::text("what is it")])]);
        let found = refused(&history, &rules);
        assert!(found[0].message.contains(text), "{found}");
        let left = repaired(&history, &rules).messages[0].text();
        assert!(
            left.starts_with("[image omitted: ") && left.ends_with("]what is it"),
            "{text}: {left}"
        );
    }
    for (name, part) in [
        ("bytes at the limit", image(&"A".repeat(64))),
        ("a side at the limit", image(&png(8_000))),
        ("no PNG", image("no png at all")),
    ] {
        unchanged(name, &request(vec![user(vec![part])]), &rules);
    }
    // Anthropic's own limit.
    let data: Arc<str> = "A".repeat(5 * 1024 * 1024 + 1).into();
    let found = refused(
        &request(vec![user(vec![Part::image("image/png", data)])]),
        &self::rules(Anthropic),
    );
    assert!(found[0].message.contains("image exceeds 5 MB maximum: 5242881 bytes > 5242880 bytes"));
}

#[test]
fn s13_of_too_many_images_the_oldest_are_replaced_in_steps() {
    let history = |count: usize| {
        request((0..count).map(|n| user(vec![Part::text(n.to_string()), image("AAAA")])).collect())
    };
    unchanged("at the limit", &history(100), &rules(Anthropic));
    unchanged("no limit", &history(400), &rules(OpenAi));
    let found = refused(&history(101), &rules(Anthropic));
    assert!(found[0].message.contains("too many images and documents: 101 + 0 > 100"));
    // The prefix stays the same while the conversation grows by a quarter of the limit.
    for (count, kept) in [(101, 76), (125, 100), (126, 76), (400, 100)] {
        let after = repaired(&history(count), &rules(Anthropic));
        assert_eq!(count_images(&after), kept, "of {count}");
        let first = after.messages.iter().position(|m| m.parts()[1].has_image());
        assert_eq!(first, Some(count - kept), "of {count}");
    }
}

#[test]
fn s13_among_many_images_the_large_ones_are_replaced() {
    let history = |count: usize| {
        let mut messages = vec![user(vec![image(&png(2_001))])];
        messages.extend((1..count).map(|_| user(vec![image(&png(2_000))])));
        request(messages)
    };
    unchanged("few images", &history(20), &rules(Anthropic));
    let found = refused(&history(21), &rules(Anthropic));
    assert!(found[0].message.contains("for many-image requests: 2000 pixels"), "{found}");
    assert_eq!((found.len(), found[0].at), (1, Position::Part { message: 0, part: 0 }));
    assert_eq!(count_images(&repaired(&history(21), &rules(Anthropic))), 20);
}

#[test]
fn s13_gemini_limits_the_bytes_of_all_images() {
    let mut rules = rules(Gemini);
    rules.images.max_total = Some(1_000);
    let history =
        |count: usize| request((0..count).map(|_| user(vec![image(&"A".repeat(200))])).collect());
    unchanged("at the limit", &history(5), &rules);
    let found = refused(&history(6), &rules);
    assert!(found[0].message.contains("payload size exceeds the limit: 1000 bytes"), "{found}");
    let after = repaired(&history(6), &rules);
    assert_eq!(count_images(&after), 4);
    assert!(!after.messages[0].parts()[0].has_image());
}
