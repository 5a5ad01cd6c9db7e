//! Vendors whose errors mean something of their own, by the names that providers go under.

use std::sync::LazyLock;

use smallvec::SmallVec;

use super::table::{Table, TableError, built_in, table};

const FILE: Table = table!("vendors.txt");

/// A vendor, as the data files name it.
pub(crate) type Vendor = &'static str;

pub(crate) const GOOGLE: Vendor = "google";
pub(crate) const LM_STUDIO: Vendor = "lmstudio";

/// Each spelling with its vendor.
static SPELLINGS: LazyLock<Vec<(&str, Vendor)>> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<Vec<(&'static str, Vendor)>, TableError> {
    let mut spellings: Vec<(&str, Vendor)> = Vec::new();
    for row in table.rows(2, 2)? {
        let (vendor, spelling) = (row.text(0), row.text(1));
        if spelling != spelling.to_ascii_lowercase() {
            return Err(row.error(format!("`{spelling}` is not in lower case")));
        }
        let contained = |known: &&str| known.contains(spelling) || spelling.contains(*known);
        if let Some(known) =
            spellings.iter().map(|(known, _)| *known).find(|known| contained(known))
        {
            return Err(row.error(format!("one of `{spelling}` and `{known}` is enough")));
        }
        spellings.push((spelling, vendor));
    }
    Ok(spellings)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&SPELLINGS);
}

/// The vendor of that name.
pub(crate) fn named(name: &str) -> Option<Vendor> {
    SPELLINGS.iter().find(|(_, vendor)| *vendor == name).map(|(_, vendor)| *vendor)
}

/// Whose errors `provider` answers with; a relay's name may contain several.
pub(crate) fn of(provider: &str) -> SmallVec<[Vendor; 2]> {
    let provider = provider.to_ascii_lowercase();
    let mut vendors = SmallVec::new();
    for (spelling, vendor) in &*SPELLINGS {
        if provider.contains(spelling) && !vendors.contains(vendor) {
            vendors.push(*vendor);
        }
    }
    vendors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        for vendor in [GOOGLE, LM_STUDIO] {
            assert_eq!(named(vendor), Some(vendor));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, error) in [
            ("zai | Z.ai", "`Z.ai` is not in lower case"),
            ("zai | glm\nzai | glm-4", "one of `glm-4` and `glm` is enough"),
        ] {
            let found = read(Table { file: "vendors.txt", text }).unwrap_err().to_string();
            assert!(found.ends_with(error), "{found}");
        }
    }

    #[test]
    fn providers_are_recognised_however_they_are_written() {
        assert_eq!(of("zai-coding").as_slice(), ["zai"]);
        assert_eq!(of("MiniMax").as_slice(), ["minimax"]);
        assert_eq!(of("vertex-mistral").as_slice(), ["mistral", GOOGLE]);
        assert!(of("openai").is_empty());
    }
}
