//! A map from short names that are known beforehand: open addressing, linear probing.

/// Names are up to eight times `W` bytes, zeros behind them.
pub(crate) type Words<const W: usize> = [u64; W];

#[derive(Debug)]
pub(crate) struct Map<const W: usize, V> {
    /// The entry's number plus one; zero is empty. A power of two, at most a quarter full, so that
    /// a probe ends at once.
    slots: Box<[u16]>,
    entries: Vec<(Words<W>, V)>,
}

impl<const W: usize, V> Map<W, V> {
    /// A map of `entries`; of two of one name the first counts.
    pub(crate) fn new(entries: Vec<(Words<W>, V)>) -> Self {
        let size = (entries.len() * 4).next_power_of_two().max(4);
        let mut map = Self { slots: vec![0; size].into_boxed_slice(), entries };
        for (number, (name, _)) in (1u16..).zip(&map.entries) {
            let mut slot = home(name, size);
            while map.slots[slot] != 0 {
                slot = (slot + 1) % size;
            }
            map.slots[slot] = number;
        }
        map
    }

    pub(crate) fn get(&self, name: &Words<W>) -> Option<&V> {
        let size = self.slots.len();
        let mut slot = home(name, size);
        loop {
            let (known, value) = &self.entries[usize::from(self.slots[slot].checked_sub(1)?)];
            if known == name {
                return Some(value);
            }
            slot = (slot + 1) & (size - 1);
        }
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> &[(Words<W>, V)] {
        &self.entries
    }
}

/// The slot where the search for `name` begins.
fn home<const W: usize>(name: &Words<W>, size: usize) -> usize {
    // No name has a zero in it, so what is behind the last word says nothing.
    let hash = name
        .iter()
        .take_while(|word| **word != 0)
        .fold(0u64, |hash, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (hash >> 32) as usize & (size - 1)
}

/// The words of a name's bytes.
pub(crate) fn words<const B: usize, const W: usize>(bytes: &[u8; B]) -> Words<W> {
    const { assert!(B == W * 8, "eight bytes a word") };
    let mut words = [0; W];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_no_other() {
        let name = |number: u64| [number, number % 3];
        let map = Map::new((1..=300).map(|number| (name(number), number)).collect());
        for number in 1..=300 {
            assert_eq!(map.get(&name(number)), Some(&number));
            assert_eq!(map.get(&[number, 7]), None);
        }
        let twice = Map::new(vec![([1], "first"), ([1], "second")]);
        assert_eq!(twice.get(&[1]), Some(&"first"));
        assert_eq!(Map::<1, ()>::new(Vec::new()).get(&[1]), None);
    }
}
