//! S13: images.

use super::{
    ImageRules, Place, Rule, Rules, draft::Draft, outcome::Findings, pixels, turn::Holds,
    turn::Spot, words,
};
use steadfast_core::Dialect;

use crate::{ChatRequest, Media, MediaKind, MediaSource, Part, Role};

const BLIND: &str = "[image omitted: this model does not read images]";
const MISPLACED: &str = "[media omitted: the provider takes none in this place]";
const WRONG_TYPE: &str = "[image omitted: the provider does not take this type of image]";
const TOO_LARGE: &str = "[image omitted: too large for the provider]";
const TOO_MANY: &str = "[image omitted: too many images in this conversation]";

/// A medium, and where it is.
#[derive(Clone, Copy)]
struct Picture<'a> {
    spot: Spot,
    /// Its index inside a result.
    nested: Option<usize>,
    role: Role,
    media: &'a Media,
}

impl Picture<'_> {
    fn is_image(&self) -> bool {
        self.media.kind == MediaKind::Image
    }

    /// The bytes of its base64 text, when it is in the request itself.
    fn base64(&self) -> usize {
        match &self.media.source {
            MediaSource::Base64 { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// The longer side, when it can be read off the data.
    fn side(&self) -> Option<u32> {
        match &self.media.source {
            MediaSource::Base64 { data, .. } => {
                pixels::dimensions(data).map(|(width, height)| width.max(height))
            }
            _ => None,
        }
    }

    /// What is wrong with it, whatever else is in the request.
    fn fault(&self, rules: &ImageRules) -> Option<Fault> {
        let in_result = self.nested.is_some();
        let misplaced = match self.role {
            Role::Assistant => !rules.in_answers && !in_result,
            Role::System => true,
            _ => false,
        };
        if self.is_image() && !rules.vision {
            return Some(Fault::Blind);
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
            && self.base64() > max
        {
            return Some(Fault::Bytes(max));
        }
        let max = rules.max_side?;
        (self.side()? > max).then_some(Fault::Side(max, false))
    }
}

#[derive(Clone, Copy)]
enum Fault {
    Blind,
    Misplaced,
    Type,
    Bytes(usize),
    /// A side is longer than this; whether only because there are many images.
    Side(u32, bool),
}

impl Fault {
    fn placeholder(self) -> &'static str {
        match self {
            Fault::Blind => BLIND,
            Fault::Misplaced => MISPLACED,
            Fault::Type => WRONG_TYPE,
            Fault::Bytes(_) | Fault::Side(..) => TOO_LARGE,
        }
    }

    fn words(self, dialect: Dialect, picture: &Picture<'_>, rules: &ImageRules) -> String {
        let spot = picture.spot;
        match self {
            Fault::Blind => words::blind(dialect),
            Fault::Misplaced => words::media_misplaced(dialect, spot),
            Fault::Type => words::image_type(dialect, spot, rules.types),
            Fault::Bytes(max) => words::image_bytes(dialect, spot, picture.base64(), max),
            Fault::Side(max, many) => words::image_side(dialect, spot, max, many),
        }
    }
}

/// All media, in order.
fn pictures<H: Holds>(list: &[H]) -> impl Iterator<Item = Picture<'_>> {
    list.iter().enumerate().flat_map(|(message, held)| {
        let role = held.message().role();
        let parts = held.message().parts().iter().enumerate();
        parts.flat_map(move |(part, value)| {
            let spot = Spot { message, part };
            let (content, is_nested) = match value {
                Part::ToolResult(result) => (&*result.content, true),
                other => (std::slice::from_ref(other), false),
            };
            content.iter().enumerate().filter_map(move |(index, part)| match part {
                Part::Media(media) => {
                    Some(Picture { spot, nested: is_nested.then_some(index), role, media })
                }
                _ => None,
            })
        })
    })
}

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let dialect = rules.dialect;
    let images = &rules.images;
    let mut count = 0;
    let mut total = 0;
    for picture in pictures(&request.messages) {
        count += usize::from(picture.is_image());
        total += picture.base64();
        if let Some(fault) = picture.fault(images) {
            let Spot { message, part } = picture.spot;
            let words = fault.words(dialect, &picture, images);
            found.part(Rule::Images, message, part, words);
        }
    }
    if let Some(max) = images.max
        && count > max
    {
        found.push(Rule::Images, Place::Request, words::image_count(count, max));
    }
    if let Some(max) = images.max_total
        && total > max
    {
        found.push(Rule::Images, Place::Request, words::image_total(max));
    }
    let Some(side) = many_side(images, count) else { return };
    for picture in pictures(&request.messages).filter(Picture::is_image) {
        if picture.fault(images).is_none() && picture.side().is_some_and(|found| found > side) {
            let Spot { message, part } = picture.spot;
            let words = Fault::Side(side, true).words(dialect, &picture, images);
            found.part(Rule::Images, message, part, words);
        }
    }
}

/// The longest side that is accepted among so many images, when that is a limit of its own.
fn many_side(rules: &ImageRules, count: usize) -> Option<u32> {
    rules.many.filter(|(from, _)| count > *from).map(|(_, side)| side)
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let rules = &draft.rules.images;
    let mut fates: Vec<Fate<'_>> = pictures(&draft.messages)
        .map(|picture| (picture, picture.fault(rules).map(Fault::placeholder)))
        .collect();

    let is_image = |picture: &Picture<'_>| usize::from(picture.is_image());
    let count = sum(&fates, is_image);
    spare(&mut fates, excess(count, rules.max), is_image, TOO_MANY);

    if let Some(side) = many_side(rules, sum(&fates, is_image)) {
        for (picture, fate) in &mut fates {
            if fate.is_none() && picture.is_image() && picture.side().is_some_and(|s| s > side) {
                *fate = Some(TOO_LARGE);
            }
        }
    }

    let bytes = |picture: &Picture<'_>| picture.base64();
    let total = sum(&fates, bytes);
    spare(&mut fates, excess(total, rules.max_total), bytes, TOO_LARGE);

    let doomed: Vec<_> = fates
        .into_iter()
        .filter_map(|(picture, fate)| Some((picture.spot, picture.nested, fate?)))
        .collect();
    for (spot, nested, placeholder) in doomed {
        let slot = &mut draft.messages[spot.message];
        let at = Place::Part { message: slot.from, part: spot.part };
        if let Some(part) = slot.part_mut(spot.part, nested) {
            *part = Part::text(placeholder);
        }
        draft.did(Rule::Images, at, "replaced by a line of text");
    }
}

/// A medium, and what is to stand in its place, if it goes.
type Fate<'a> = (Picture<'a>, Option<&'static str>);

/// The weight of what stays.
fn sum(fates: &[Fate<'_>], weight: impl Fn(&Picture<'_>) -> usize) -> usize {
    fates.iter().filter(|(_, fate)| fate.is_none()).map(|(picture, _)| weight(picture)).sum()
}

/// How much has to go, in steps of a quarter of the limit. The caller of a growing conversation
/// sends all of it every time: so the prefix changes, and its prompt cache is lost, once in a while
/// and not in every turn.
fn excess(found: usize, max: Option<usize>) -> usize {
    let Some(max) = max else { return 0 };
    let step = (max / 4).max(1);
    found.saturating_sub(max).div_ceil(step) * step
}

/// Lets go of so much weight, the oldest first.
fn spare(
    fates: &mut [Fate<'_>],
    mut excess: usize,
    weight: impl Fn(&Picture<'_>) -> usize,
    why: &'static str,
) {
    for (picture, fate) in fates {
        let weight = weight(picture);
        if excess > 0 && weight > 0 && fate.is_none() {
            excess = excess.saturating_sub(weight);
            *fate = Some(why);
        }
    }
}
