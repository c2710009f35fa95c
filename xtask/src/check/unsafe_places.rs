//! Where unsafe code may live. clippy sees to the SAFETY comments; this sees to the places.

use super::{Findings, Tree};
use anyhow::Result;
use std::collections::BTreeMap;

/// Files and folders that may hold unsafe code.
const PLACES: &[&str] = &["crates/verbs/src/mem/", "crates/verbs/src/ring/", "crates/verbs/src/net/sys.rs"];

/// Tests that drive an unsafe API may do so in the open, under the same `expect` with a reason.
const TEST_PLACES: &[&str] = &["crates/verbs/tests/"];

pub(super) fn check(tree: &Tree) -> Result<Findings> {
    let mut found = Findings::default();
    let mut counts = BTreeMap::<&str, usize>::new();
    for source in &tree.sources {
        let path = source.path.as_str();
        let allowed = PLACES.iter().chain(TEST_PLACES).any(|p| path.starts_with(p));
        for line in source.lines_with_word("unsafe") {
            if allowed {
                *counts.entry(crate_of(path)).or_default() += 1;
            } else {
                found.errors.push(format!("{path}:{line}: unsafe code outside {}", PLACES.join(", ")));
            }
        }
        // `deny` in the workspace's lints can be lifted by an attribute: only where unsafe may live.
        for line in source.lines_with_word("unsafe_code") {
            let text = source.code.lines().nth(line - 1).unwrap_or("");
            if !allowed && (text.contains("allow") || text.contains("expect")) {
                found.errors.push(format!("{path}:{line}: lifts the unsafe_code lint"));
            }
        }
    }
    found.notes.extend(counts.iter().map(|(name, n)| format!("{name}: {n} lines with unsafe")));
    Ok(found)
}

fn crate_of(path: &str) -> &str {
    let end = path.match_indices('/').nth(1).map_or(path.len(), |(at, _)| at);
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> usize {
        check(&Tree::of(path, text)).unwrap().errors.len()
    }

    #[test]
    fn unsafe_is_for_the_listed_places() {
        let text = "fn f() { unsafe { g() } }\n";
        assert_eq!(errors("crates/verbs/src/mem/copy.rs", text), 0);
        assert_eq!(errors("crates/verbs/src/net/sys.rs", text), 0);
        assert_eq!(errors("crates/verbs/src/net/tcp.rs", text), 1);
        assert_eq!(errors("crates/iwarp/src/lib.rs", text), 1);
    }

    #[test]
    fn words_about_it_are_no_unsafe_code() {
        assert_eq!(errors("crates/iwarp/src/lib.rs", "//! no unsafe here\n#![forbid(unsafe_code)]\n"), 0);
    }

    #[test]
    fn the_lint_is_not_lifted_elsewhere() {
        let text = "#![expect(unsafe_code, reason = \"x\")]\n";
        assert_eq!(errors("crates/verbs/src/qp/mod.rs", text), 1);
        assert_eq!(errors("crates/verbs/src/mem/mod.rs", text), 0);
    }
}
