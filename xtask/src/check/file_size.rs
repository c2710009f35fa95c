//! Files stay small enough to be read in one go. Lines of product code count; tests, comments and blank lines do not.

use super::{Findings, Tree};
use anyhow::Result;

/// More product lines than this in one file is an error.
const LIMIT: usize = 800;

pub(super) fn check(tree: &Tree) -> Result<Findings> {
    let mut sizes: Vec<_> =
        tree.sources.iter().map(|s| (s.product_lines(), s.path.as_str())).filter(|s| s.0 > 0).collect();
    sizes.sort_unstable();
    let errors = sizes
        .iter()
        .filter(|(lines, _)| *lines > LIMIT)
        .map(|(lines, path)| format!("{path}: {lines} lines without tests, at most {LIMIT}: split it"))
        .collect();
    let mut notes = Vec::new();
    if let (Some(median), Some((most, path))) = (sizes.get(sizes.len() / 2), sizes.last()) {
        notes.push(format!("{} files, median {} lines, largest {most} ({path})", sizes.len(), median.0));
    }
    Ok(Findings { errors, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_product_lines_count_against_the_limit() {
        let long = "fn f() {}\n".repeat(LIMIT);
        assert!(check(&Tree::of("a.rs", &long)).unwrap().errors.is_empty());
        let commented = format!("{long}// note\n\n#[cfg(test)]\nmod tests {{\n fn t() {{}}\n}}\n");
        assert!(check(&Tree::of("a.rs", &commented)).unwrap().errors.is_empty());
        assert_eq!(check(&Tree::of("a.rs", &format!("{long}fn g() {{}}\n"))).unwrap().errors.len(), 1);
    }
}
