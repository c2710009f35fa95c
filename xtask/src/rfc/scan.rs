//! Finds rule ids and section citations in comments.

use super::rules::{Rfc, Rule};
use crate::source::Source;
use std::collections::BTreeMap;

/// A place that holds a rule: `path` and the function, type or test there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Relative to the workspace root.
    pub(super) path: String,
    /// Empty where the comment speaks of the whole file.
    pub(super) symbol: String,
}

/// Where one rule is held.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) code: Vec<Place>,
    pub(super) tests: Vec<Place>,
}

/// All citations of the tree.
#[derive(Debug)]
pub(super) struct Citations {
    held: BTreeMap<String, Held>,
    /// Sections by RFC number.
    sections: BTreeMap<String, Vec<String>>,
    /// Wrong citations.
    pub(super) errors: Vec<String>,
}

impl Citations {
    /// Ready to find citations of `rfcs`.
    pub(super) fn new(rfcs: &[Rfc]) -> Self {
        let held = rfcs.iter().flat_map(|r| &r.rules).map(|r| (r.id.clone(), Held::default())).collect();
        let sections =
            rfcs.iter().map(|r| (r.rfc.to_string(), r.sections.keys().cloned().collect())).collect();
        Self { held, sections, errors: Vec::new() }
    }

    /// Takes in a source file.
    pub(super) fn add_source(&mut self, source: &Source) {
        for comment in &source.comments {
            self.check_sections(&source.path, comment.line, &comment.text);
            for id in self.rule_ids(&comment.text) {
                let owner = source.owner(comment.line);
                let place = Place {
                    path: source.path.clone(),
                    symbol: owner.map(|i| i.name.clone()).unwrap_or_default(),
                };
                // A comment above `#[test]` stands before the item begins: its owner decides then.
                let is_test = source.is_test(comment.line) || owner.is_some_and(|i| i.is_test);
                let Some(held) = self.held.get_mut(&id) else {
                    self.errors.push(format!("{}:{}: no rule {id}", source.path, comment.line));
                    continue;
                };
                if is_test { held.tests.push(place) } else { held.code.push(place) }
            }
        }
    }

    /// Takes in a document: its section citations are checked.
    pub(super) fn add_document(&mut self, path: &str, text: &str) {
        text.lines().enumerate().for_each(|(i, line)| self.check_sections(path, i + 1, line));
    }

    /// Puts the places in a stable order, each once.
    pub(super) fn sort(&mut self) {
        for held in self.held.values_mut() {
            for places in [&mut held.code, &mut held.tests] {
                places.sort();
                places.dedup();
            }
        }
    }

    /// Where `rule` is held.
    pub(super) fn held(&self, rule: &Rule) -> &Held {
        &self.held[&rule.id]
    }

    /// What `rule` lacks: nothing where an exception is stated.
    pub(super) fn lack(&self, rule: &Rule) -> Option<&'static str> {
        let held = self.held(rule);
        match (rule.exception.is_some(), held.code.is_empty(), held.tests.is_empty()) {
            (true, _, _) | (_, false, false) => None,
            (_, true, true) => Some("no code, no test"),
            (_, true, false) => Some("no code"),
            (_, false, true) => Some("no test"),
        }
    }

    fn check_sections(&mut self, path: &str, line: usize, text: &str) {
        for (rfc, section) in sections_cited(text) {
            if let Some(known) = self.sections.get(rfc)
                && !known.iter().any(|k| k == section)
            {
                self.errors.push(format!("{path}:{line}: RFC {rfc} has no section {section}"));
            }
        }
    }

    /// Tokens of the form `RFC-SECTION-N` whose RFC has rules here.
    fn rule_ids(&self, text: &str) -> Vec<String> {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'))
            .map(|t| t.trim_end_matches('.'))
            .filter(|t| {
                let parts: Vec<_> = t.split('-').collect();
                parts.len() == 3 && self.sections.contains_key(parts[0]) && parts[2].parse::<u32>().is_ok()
            })
            .map(Into::into)
            .collect()
    }
}

/// Pairs of RFC number and section in `RFC 5040 §5.2`, `RFC 5040 §5.2, §7 and §8.1`.
fn sections_cited(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("RFC ") {
        let rest = &text[at + 4..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (rfc, mut rest) = rest.split_at(digits);
        // Further sections of the same RFC follow directly, joined by commas or "and".
        while let Some(after) =
            rest.trim_start_matches([' ', ',']).trim_start_matches("and ").strip_prefix('§')
        {
            let after = after.trim_start_matches(['§', ' ']);
            let len = after.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'.').count();
            let section = after[..len].trim_end_matches('.');
            if !section.is_empty() {
                found.push((rfc, section));
            }
            rest = &after[len..];
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::sample;
    use super::*;

    fn scan(path: &str, text: &str) -> Citations {
        let mut c = Citations::new(&[sample()]);
        c.add_source(&Source::parse(path, text));
        c.sort();
        c
    }

    #[test]
    fn citations_name_one_or_several_sections() {
        assert_eq!(sections_cited("see RFC 5040 §5.2."), [("5040", "5.2")]);
        assert_eq!(
            sections_cited("RFC 5040 §5.2, §7 and §8.1, RFC 5044 §A.1"),
            [("5040", "5.2"), ("5040", "7"), ("5040", "8.1"), ("5044", "A.1")]
        );
        assert!(sections_cited("RFC 5040 and §3 of something").len() <= 1);
        assert!(sections_cited("RFC 5040, in general").is_empty());
    }

    #[test]
    fn a_rule_is_held_by_code_and_by_test() {
        let text = "fn seal() {\n // rule 5044-4.3-1\n}\n#[cfg(test)]\nmod tests {\n // rule 5044-4.3-1.\n #[test]\n fn every_512() {}\n}\n";
        let c = scan("crates/iwarp/src/m.rs", text);
        let rfc = sample();
        let held = c.held(&rfc.rules[0]);
        assert_eq!(held.code, [Place { path: "crates/iwarp/src/m.rs".into(), symbol: "seal".into() }]);
        assert_eq!(held.tests[0].symbol, "every_512");
        assert_eq!(c.lack(&rfc.rules[0]), None);
    }

    #[test]
    fn what_a_rule_lacks_is_named_unless_there_is_an_exception() {
        let c = scan("crates/iwarp/src/m.rs", "// rule 5044-4.3-1\nfn seal() {}\n");
        let rfc = sample();
        assert_eq!(c.lack(&rfc.rules[0]), Some("no test"));
        assert_eq!(c.lack(&rfc.rules[1]), None);
    }

    #[test]
    fn unknown_rules_and_sections_are_errors() {
        let c = scan("crates/iwarp/src/m.rs", "// rule 5044-4.3-9, RFC 5044 §9.9, RFC 793 §3\nfn f() {}\n");
        assert_eq!(c.errors.len(), 2, "{:?}", c.errors);
    }
}
