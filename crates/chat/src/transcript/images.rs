//! S13: images.

use super::{
    ImageRules, Position, TranscriptRule, TranscriptRules,
    draft::Draft,
    error_text,
    outcome::Findings,
    pixels,
    turn::{HasMessage, PartPath, nested_parts},
};
use steadfast_core::Dialect;

use crate::{ChatRequest, Media, MediaKind, MediaSource, Part, Role};

const NO_VISION: &str = "[image omitted: this model does not read images]";
const MISPLACED: &str = "[media omitted: the provider takes none in this place]";
const WRONG_TYPE: &str = "[image omitted: the provider does not take this type of image]";
const TOO_LARGE: &str = "[image omitted: too large for the provider]";
const TOO_MANY: &str = "[image omitted: too many images in this conversation]";

/// A part that is an image or another medium.
#[derive(Clone, Copy)]
struct MediaPart<'a> {
    path: PartPath,
    role: Role,
    media: &'a Media,
}

impl MediaPart<'_> {
    fn is_image(&self) -> bool {
        self.media.kind == MediaKind::Image
    }

    /// Its base64 text, when it is in the request itself.
    fn data(&self) -> Option<&str> {
        match &self.media.source {
            MediaSource::Base64 { data, .. } => Some(data),
            _ => None,
        }
    }

    /// The bytes of its base64 text.
    fn bytes(&self) -> usize {
        self.data().map_or(0, str::len)
    }

    /// The longer side, when it can be read from the data.
    fn side(&self) -> Option<u32> {
        pixels::dimensions(self.data()?).map(|(width, height)| width.max(height))
    }

    /// What is wrong with it, whatever else is in the request.
    fn fault(&self, rules: &ImageRules) -> Option<Fault> {
        let misplaced = match self.role {
            Role::Assistant => !rules.in_answers && self.path.nested.is_none(),
            Role::System => true,
            _ => false,
        };
        if self.is_image() && !rules.vision {
            return Some(Fault::NoVision);
        }
        if misplaced {
            return Some(Fault::Misplaced);
        }
        if !self.is_image() {
            return None;
        }
        if let MediaSource::Base64 { mime, .. } = &self.media.source
            && !rules.types.is_empty()
            && !rules.types.contains(&mime.as_str())
        {
            return Some(Fault::Type);
        }
        if let Some(max) = rules.max_base64
            && self.bytes() > max
        {
            return Some(Fault::Bytes(max));
        }
        let max = rules.max_side?;
        (self.side()? > max).then_some(Fault::Side(max, false))
    }
}

#[derive(Clone, Copy)]
enum Fault {
    NoVision,
    Misplaced,
    Type,
    Bytes(usize),
    /// A side is longer than this; whether only because there are many images.
    Side(u32, bool),
}

impl Fault {
    fn placeholder(self) -> &'static str {
        match self {
            Fault::NoVision => NO_VISION,
            Fault::Misplaced => MISPLACED,
            Fault::Type => WRONG_TYPE,
            Fault::Bytes(_) | Fault::Side(..) => TOO_LARGE,
        }
    }

    fn message(self, dialect: Dialect, media: &MediaPart<'_>, rules: &ImageRules) -> String {
        let at = media.path.at;
        match self {
            Fault::NoVision => error_text::no_vision(dialect).to_owned(),
            Fault::Misplaced => error_text::media_misplaced(dialect, at),
            Fault::Type => error_text::image_type(dialect, at, rules.types),
            Fault::Bytes(max) => error_text::image_bytes(dialect, at, media.bytes(), max),
            Fault::Side(max, many) => error_text::image_side(dialect, at, max, many),
        }
    }
}

/// All media, in order.
fn media_parts<H: HasMessage>(list: &[H]) -> impl Iterator<Item = MediaPart<'_>> {
    nested_parts(list).filter_map(|(path, role, part)| match part {
        Part::Media(media) => Some(MediaPart { path, role, media }),
        _ => None,
    })
}

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let dialect = rules.dialect;
    let images = &rules.images;
    let mut count = 0;
    let mut total = 0;
    for media in media_parts(&request.messages) {
        count += usize::from(media.is_image());
        total += media.bytes();
        if let Some(fault) = media.fault(images) {
            let message = fault.message(dialect, &media, images);
            found.push(TranscriptRule::Images, media.path.at, message);
        }
    }
    if let Some(max) = images.max
        && count > max
    {
        let message = error_text::image_count(count, max);
        found.push(TranscriptRule::Images, Position::Request, message);
    }
    if let Some(max) = images.max_total
        && total > max
    {
        found.push(TranscriptRule::Images, Position::Request, error_text::image_total(max));
    }
    let Some(max) = many_side(images, count) else { return };
    for media in media_parts(&request.messages).filter(MediaPart::is_image) {
        if media.fault(images).is_none() && media.side().is_some_and(|side| side > max) {
            let message = Fault::Side(max, true).message(dialect, &media, images);
            found.push(TranscriptRule::Images, media.path.at, message);
        }
    }
}

/// The longest side that is accepted among so many images, when that is a limit of its own.
fn many_side(rules: &ImageRules, count: usize) -> Option<u32> {
    rules.many.filter(|(from, _)| count > *from).map(|(_, side)| side)
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = &draft.rules.images;
    let mut replacements: Vec<Replacement<'_>> = media_parts(&draft.messages)
        .map(|media| (media, media.fault(rules).map(Fault::placeholder)))
        .collect();

    let is_image = |media: &MediaPart<'_>| usize::from(media.is_image());
    let count = kept(&replacements, is_image);
    replace_oldest(&mut replacements, excess(count, rules.max), is_image, TOO_MANY);

    if let Some(max) = many_side(rules, kept(&replacements, is_image)) {
        for (media, text) in &mut replacements {
            if text.is_none() && media.is_image() && media.side().is_some_and(|side| side > max) {
                *text = Some(TOO_LARGE);
            }
        }
    }

    let bytes = |media: &MediaPart<'_>| media.bytes();
    let total = kept(&replacements, bytes);
    replace_oldest(&mut replacements, excess(total, rules.max_total), bytes, TOO_LARGE);

    let replacements: Vec<_> =
        replacements.into_iter().filter_map(|(media, text)| Some((media.path, text?))).collect();
    for (path, text) in replacements {
        if let Some(part) = draft.part_mut(path) {
            *part = Part::text(text);
        }
        draft.record(TranscriptRule::Images, path.at, "replaced by a line of text");
    }
}

/// A medium, and the text that replaces it, if it can not stay.
type Replacement<'a> = (MediaPart<'a>, Option<&'static str>);

/// The sum of `weight` over what stays.
fn kept(all: &[Replacement<'_>], weight: impl Fn(&MediaPart<'_>) -> usize) -> usize {
    all.iter().filter(|(_, text)| text.is_none()).map(|(media, _)| weight(media)).sum()
}

/// How much has to go, in steps of a quarter of the limit. The caller of a growing conversation
/// sends all of it every time: so the prefix changes, and its prompt cache is lost, only now and
/// then and not in every turn.
fn excess(found: usize, max: Option<usize>) -> usize {
    let Some(max) = max else { return 0 };
    let step = (max / 4).max(1);
    found.saturating_sub(max).div_ceil(step) * step
}

/// Replaces the oldest media of this weight.
fn replace_oldest(
    all: &mut [Replacement<'_>],
    mut excess: usize,
    weight: impl Fn(&MediaPart<'_>) -> usize,
    placeholder: &'static str,
) {
    for (media, text) in all {
        let weight = weight(media);
        if excess > 0 && weight > 0 && text.is_none() {
            excess = excess.saturating_sub(weight);
            *text = Some(placeholder);
        }
    }
}
