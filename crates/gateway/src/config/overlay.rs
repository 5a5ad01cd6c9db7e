//! One table of keys laid over another.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// `upper` laid over `lower`: tables are merged at every depth, and of any other value the one of `upper`
/// is taken whole, of arrays too. What `upper` sets keeps its position in the file.
pub(super) fn overlay<'i>(lower: &DeTable<'i>, upper: &DeTable<'i>) -> DeTable<'i> {
    let mut merged = lower.clone();
    for (name, value) in upper {
        // Removed, so that the key's own position is that of `upper`.
        let value = match (merged.remove(name), value.get_ref()) {
            (Some(below), DeValue::Table(above)) => match below.get_ref() {
                DeValue::Table(below) => {
                    Spanned::new(value.span(), DeValue::Table(overlay(below, above)))
                }
                _ => value.clone(),
            },
            _ => value.clone(),
        };
        merged.insert(name.clone(), value);
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(lower: &str, upper: &str) -> toml::Table {
        let (lower, upper) = (DeTable::parse(lower).unwrap(), DeTable::parse(upper).unwrap());
        let table = overlay(lower.get_ref(), upper.get_ref());
        let whole = Spanned::new(0..0, table);
        serde::Deserialize::deserialize(toml::Deserializer::from(whole)).unwrap()
    }

    #[test]
    fn tables_are_merged_and_everything_else_is_replaced() {
        for (lower, upper, expected) in [
            ("", "", ""),
            ("a = 1", "", "a = 1"),
            ("", "a = 1", "a = 1"),
            ("a = 1", "a = 2", "a = 2"),
            ("a = 1\nb = 2", "a = 'x'\nc = 3", "a = 'x'\nb = 2\nc = 3"),
            ("[t]\na = 1\nb = 2", "[t]\nb = 3", "[t]\na = 1\nb = 3"),
            ("[t.u]\na = 1", "t = { u = { b = 2 }, c = 3 }", "[t]\nc = 3\nu = { a = 1, b = 2 }"),
            ("a = [1, 2]", "a = [3]", "a = [3]"),
            ("a = [1, 2]", "a = []", "a = []"),
            ("[[p]]\nn = 1\n[[p]]\nn = 2", "[[p]]\nm = 3", "p = [{ m = 3 }]"),
            ("[t]\na = 1", "t = 5", "t = 5"),
            ("t = 5", "[t]\na = 1", "[t]\na = 1"),
        ] {
            let expected: toml::Table = expected.parse().unwrap();
            assert_eq!(merged(lower, upper), expected, "{lower:?} under {upper:?}");
        }
    }

    #[test]
    fn what_is_set_above_keeps_its_position() {
        let upper = DeTable::parse("# the file\n[t]\na = 7").unwrap();
        let lower = DeTable::parse("[t]\na = 1").unwrap();
        let table = overlay(lower.get_ref(), upper.get_ref());
        let (name, t) = table.iter().next().unwrap();
        assert_eq!((name.span(), t.span().start), (12..13, 11));
        let DeValue::Table(t) = t.get_ref() else { panic!("a table") };
        assert_eq!(t.iter().next().unwrap().1.span(), 19..20);
    }
}
