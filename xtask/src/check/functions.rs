//! Function length: an error above 100 lines of code, a count above 60, so that growth shows in a review.

use super::{Findings, Tree};
use crate::source::{Item, Kind, Source};
use anyhow::Result;

/// More lines of code than this is an error.
const LIMIT: usize = 100;
/// More than this is counted.
const LONG: usize = 60;

pub(super) fn check(tree: &Tree) -> Result<Findings> {
    let mut found = Findings::default();
    let mut long = Vec::new();
    for source in &tree.sources {
        for item in source.items.iter().filter(|i| i.kind == Kind::Fn && !source.is_test(i.line)) {
            let lines = body_lines(source, item);
            let place = format!("{}:{} {}", source.path, item.line, item.name);
            if lines > LIMIT {
                found.errors.push(format!("{place}: {lines} lines, at most {LIMIT}"));
            } else if lines > LONG {
                long.push((lines, place));
            }
        }
    }
    long.sort_unstable_by(|a, b| b.cmp(a));
    found.notes.push(format!("{} functions of more than {LONG} lines", long.len()));
    found.notes.extend(long.iter().take(5).map(|(lines, place)| format!("{lines:>4} {place}")));
    Ok(found)
}

/// Lines of code strictly inside the body.
fn body_lines(source: &Source, item: &Item) -> usize {
    source.code_lines().filter(|&n| item.body < n && n < item.end).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_length(lines: usize) -> Findings {
        let text = format!("fn f() {{\n// a comment\n\n{}}}\n", "    x();\n".repeat(lines));
        check(&Tree::of("a.rs", &text)).unwrap()
    }

    #[test]
    fn length_is_lines_of_code_in_the_body() {
        assert!(of_length(LONG).errors.is_empty());
        assert_eq!(of_length(LONG).notes, ["0 functions of more than 60 lines"]);
        assert_eq!(of_length(LONG + 1).notes.len(), 2);
        assert!(of_length(LIMIT).errors.is_empty());
        assert_eq!(of_length(LIMIT + 1).errors.len(), 1);
    }
}
