//! The tool calls of an answer: which are complete, and which were cut off.

use smallvec::SmallVec;
use steadfast_core::Dialect;

/// The bytes of `{}`.
const EMPTY: usize = 2;

/// The tool calls of an answer so far. Of their arguments only the size is kept, and whether they are
/// complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    all: SmallVec<[Call; 2]>,
    doubt: Doubt,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    block: u32,
    arguments: Balance,
    /// The provider reported that the block is complete.
    closed: bool,
    /// It looks complete, but is cut off if the output limit comes next.
    doubtful: bool,
    /// Something has come behind it.
    followed: bool,
}

impl Call {
    fn is_whole(&self) -> bool {
        self.arguments.complete && !self.doubtful
    }
}

/// Which calls may be cut off although they look complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doubt {
    /// None: their arguments are sent as text, and a part of a JSON text is not valid.
    #[default]
    None,
    /// Those without arguments, which look on the wire like those whose arguments have not come yet.
    Empty,
    /// All: partial arguments are sent as a complete object.
    All,
}

impl Calls {
    /// Sets the dialect of the next stream, and whether it is streamed.
    pub(crate) fn set_source(&mut self, dialect: Dialect, streams: bool) {
        self.doubt = match (dialect, streams) {
            (Dialect::Anthropic, true) => Doubt::Empty,
            (Dialect::Anthropic, false) => Doubt::All,
            (Dialect::OpenAi | Dialect::Gemini | Dialect::Responses, _) => Doubt::None,
        };
    }

    pub(crate) fn begin(&mut self, block: u32) {
        let (arguments, doubtful) = (Balance::default(), self.doubt == Doubt::All);
        self.all.push(Call { block, arguments, closed: false, doubtful, followed: false });
    }

    /// A piece of a call's arguments.
    pub(crate) fn read(&mut self, block: u32, json: &str) {
        if let Some(call) = self.all.iter_mut().rev().find(|call| call.block == block) {
            call.arguments.read(json);
            if self.doubt == Doubt::Empty {
                call.doubtful = call.arguments.bytes == EMPTY;
            }
        }
    }

    pub(crate) fn end(&mut self, block: u32) {
        for call in self.all.iter_mut().filter(|call| call.block == block) {
            call.closed = true;
        }
    }

    /// Something else has come after the calls so far: they are complete.
    pub(crate) fn confirm(&mut self) {
        for call in &mut self.all {
            call.doubtful = false;
            call.followed = true;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// None of them is under way.
    pub(crate) fn are_over(&self) -> bool {
        self.all.iter().all(|call| call.closed || call.arguments.complete)
    }

    pub(crate) fn has_cut(&self) -> bool {
        self.all.iter().any(|call| !call.is_whole())
    }

    /// Some are not complete, or nothing has come behind them: until then the answer may break with them.
    pub(crate) fn has_open(&self) -> bool {
        !self.are_followed(self.all.len())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The first `count` of them are complete, and something has come behind each.
    pub(crate) fn are_followed(&self, count: usize) -> bool {
        self.all.iter().take(count).all(|call| call.is_whole() && call.followed)
    }

    /// The stream broke: what nothing has come behind is cut off with it.
    pub(crate) fn break_off(&mut self) {
        for call in self.all.iter_mut().filter(|call| !call.followed) {
            call.doubtful = true;
        }
    }

    pub(crate) fn has_whole(&self) -> bool {
        self.all.iter().any(Call::is_whole)
    }

    pub(crate) fn is_cut(&self, block: u32) -> bool {
        self.all.iter().any(|call| call.block == block && !call.is_whole())
    }

    /// The first block of the calls that are not complete, and how many calls they are.
    pub(crate) fn cut(&self) -> Option<(u32, u32)> {
        let cut = || self.all.iter().filter(|call| !call.is_whole());
        let first = cut().map(|call| call.block).min()?;
        Some((first, u32::try_from(cut().count()).unwrap_or(u32::MAX)))
    }

    /// Bytes of the arguments of calls that are not complete.
    pub(crate) fn cut_bytes(&self) -> usize {
        let bytes = |call: &Call| match call.arguments {
            Balance { complete: true, bytes: EMPTY, .. } => 0,
            Balance { bytes, .. } => bytes,
        };
        self.all.iter().filter(|call| !call.is_whole()).map(bytes).sum()
    }

    /// Removes the calls that are not complete; returns the first of their blocks.
    pub(crate) fn drop_cut(&mut self) -> Option<u32> {
        let first = self.all.iter().filter(|call| !call.is_whole()).map(|call| call.block).min();
        self.all.retain(|call| call.is_whole());
        first
    }
}

/// Finds the end of a JSON text, without keeping it.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    depth: u32,
    bytes: usize,
    in_string: bool,
    escaped: bool,
    complete: bool,
}

impl Balance {
    fn read(&mut self, json: &str) {
        self.bytes = self.bytes.saturating_add(json.len());
        for byte in json.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.complete |= self.depth == 0;
                }
                _ => {}
            }
        }
    }
}
