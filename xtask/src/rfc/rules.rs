//! The rule files: one an RFC, with the RFC's sections and the rules that an implementation must keep.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

/// One RFC.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rfc {
    /// Its number.
    pub(super) rfc: u32,
    /// Its title.
    pub(super) title: String,
    /// Every section, by number.
    pub(super) sections: BTreeMap<String, String>,
    /// Rules in the order of the RFC.
    #[serde(rename = "rule", default)]
    pub(super) rules: Vec<Rule>,
}

/// One rule, in our words.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    /// `RFC-SECTION-N`, such as `5044-4.3-1`.
    pub(super) id: String,
    /// How binding it is.
    pub(super) level: Level,
    /// What an implementation has to do.
    pub(super) text: String,
    /// Why it is not (wholly) kept or not held by a test here.
    pub(super) exception: Option<String>,
}

/// RFC 2119's two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Must,
    Should,
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Must => "must",
            Self::Should => "should",
        }
    }
}

impl Rule {
    /// The section number within the id.
    pub(super) fn section(&self) -> &str {
        self.id.split('-').nth(1).unwrap_or("")
    }
}

/// Reads all rule files of `folder`, in order of their RFC numbers.
pub(super) fn load(folder: &Path) -> Result<Vec<Rfc>> {
    let mut rfcs = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("no folder {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            let text = fs::read_to_string(&path)?;
            rfcs.push(parse(&text).with_context(|| format!("in {}", path.display()))?);
        }
    }
    rfcs.sort_by_key(|r| r.rfc);
    Ok(rfcs)
}

fn parse(text: &str) -> Result<Rfc> {
    let rfc: Rfc = toml::from_str(text)?;
    let mut seen = HashSet::new();
    for rule in &rfc.rules {
        let parts: Vec<_> = rule.id.split('-').collect();
        if parts.len() != 3 || parts[0] != rfc.rfc.to_string() || parts[2].parse::<u32>().is_err() {
            bail!("rule id `{}` is not {}-SECTION-N", rule.id, rfc.rfc);
        }
        if !rfc.sections.contains_key(rule.section()) {
            bail!("rule {}: RFC {} has no section {}", rule.id, rfc.rfc, rule.section());
        }
        if !seen.insert(&rule.id) {
            bail!("rule {} stands twice", rule.id);
        }
        if rule.text.trim().is_empty() || rule.exception.as_ref().is_some_and(|e| e.trim().is_empty()) {
            bail!("rule {} has an empty text", rule.id);
        }
    }
    Ok(rfc)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small RFC for the tests of this folder.
    pub(in crate::rfc) fn sample() -> Rfc {
        parse(
            "rfc = 5044\ntitle = \"MPA\"\n[sections]\n\"4.3\" = \"Markers\"\n\"8\" = \"Errors\"\n\
             [[rule]]\nid = \"5044-4.3-1\"\nlevel = \"must\"\ntext = \"Every 512 bytes.\"\n\
             [[rule]]\nid = \"5044-8-1\"\nlevel = \"should\"\ntext = \"Report.\"\nexception = \"Not ours.\"\n",
        )
        .unwrap()
    }

    #[test]
    fn a_rule_knows_its_section() {
        let rfc = sample();
        assert_eq!(rfc.rules[0].section(), "4.3");
        assert_eq!(rfc.rules[1].level.word(), "should");
    }

    #[test]
    fn bad_ids_are_refused() {
        let with = |id: &str| {
            parse(&format!(
                "rfc = 5044\ntitle = \"MPA\"\n[sections]\n\"8\" = \"E\"\n[[rule]]\nid = \"{id}\"\nlevel = \"must\"\ntext = \"x\"\n"
            ))
        };
        assert!(with("5044-8-1").is_ok());
        assert!(with("5044-9-1").is_err(), "unknown section");
        assert!(with("5040-8-1").is_err(), "another RFC");
        assert!(with("5044-8").is_err(), "no number");
    }

    #[test]
    fn the_rule_files_of_this_tree_are_well_formed() {
        let rfcs = load(&crate::workspace::root().join("docs/rfc-rules")).unwrap();
        let numbers: Vec<_> = rfcs.iter().map(|r| r.rfc).collect();
        assert_eq!(numbers, [5040, 5041, 5044, 6581, 7306]);
    }
}
