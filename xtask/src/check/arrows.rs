//! Which member may depend on which. Anything not listed is an error, so a new crate is a decision made here.

use super::{Findings, Tree};
use crate::workspace::Package;
use anyhow::Result;

/// What a member may depend on in its shipped form.
struct Rule {
    package: &'static str,
    /// Members.
    on: &'static [&'static str],
    /// Whether it may use other crates at all.
    others: bool,
}

const RULES: &[Rule] = &[
    // The core goes into a kernel: nothing at all.
    Rule { package: "rnic-iwarp", on: &[], others: false },
    Rule { package: "rnic-verbs", on: &["rnic-iwarp"], others: true },
    Rule { package: "rnic", on: &["rnic-verbs"], others: true },
    // Development only from here on.
    Rule { package: "rnic-testkit", on: &["rnic-iwarp"], others: true },
    Rule { package: "rnic-interop", on: &["rnic-iwarp", "rnic-verbs", "rnic-testkit"], others: true },
    Rule { package: "rnic-examples", on: &["rnic-verbs"], others: true },
    Rule { package: "xtask", on: &[], others: true },
];

/// Members that no shipped crate may need.
const DEV_ONLY: &[&str] = &["rnic-testkit", "rnic-interop", "rnic-examples", "xtask"];

pub(super) fn check(tree: &Tree) -> Result<Findings> {
    let errors = tree.meta.packages.iter().flat_map(errors_of).collect();
    Ok(Findings { errors, notes: Vec::new() })
}

fn errors_of(package: &Package) -> Vec<String> {
    let Some(rule) = RULES.iter().find(|r| r.package == package.name) else {
        return vec![format!("{}: a member without a rule in xtask/src/check/arrows.rs", package.name)];
    };
    let mut errors = Vec::new();
    for d in &package.dependencies {
        let dev = d.kind.as_deref() == Some("dev");
        let member = d.path.is_some();
        let allowed = if dev {
            // Tests may use the test kit and what lies below their own crate.
            !member || d.name == "rnic-testkit" || rule.on.contains(&d.name.as_str())
        } else if member {
            rule.on.contains(&d.name.as_str())
        } else {
            rule.others
        };
        if !allowed {
            let kind = d.kind.as_deref().unwrap_or("normal");
            errors.push(format!("{} -> {} ({kind}) is no allowed arrow", package.name, d.name));
        }
        if !dev && !DEV_ONLY.contains(&package.name.as_str()) && DEV_ONLY.contains(&d.name.as_str()) {
            errors.push(format!("{} ships with the development crate {}", package.name, d.name));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, deps: &[(&str, Option<&str>, bool)]) -> Package {
        let dependencies = deps
            .iter()
            .map(|&(name, kind, member)| Dependency {
                name: name.into(),
                kind: kind.map(Into::into),
                path: member.then(|| "/x".into()),
            })
            .collect();
        Package { name: name.into(), dependencies }
    }

    #[test]
    fn the_core_has_no_dependency_outside_its_tests() {
        assert!(errors_of(&package("rnic-iwarp", &[("proptest", Some("dev"), false)])).is_empty());
        assert!(errors_of(&package("rnic-iwarp", &[("rnic-testkit", Some("dev"), true)])).is_empty());
        assert_eq!(errors_of(&package("rnic-iwarp", &[("libc", None, false)])).len(), 1);
        assert_eq!(errors_of(&package("rnic-iwarp", &[("cc", Some("build"), false)])).len(), 1);
    }

    #[test]
    fn arrows_point_one_way() {
        assert!(
            errors_of(&package("rnic-verbs", &[("rnic-iwarp", None, true), ("libc", None, false)]))
                .is_empty()
        );
        assert!(!errors_of(&package("rnic-verbs", &[("rnic", None, true)])).is_empty());
        assert!(!errors_of(&package("rnic", &[("rnic-iwarp", None, true)])).is_empty());
    }

    #[test]
    fn the_test_kit_never_ships() {
        assert_eq!(errors_of(&package("rnic-verbs", &[("rnic-testkit", None, true)])).len(), 2);
    }

    #[test]
    fn a_new_member_needs_a_rule() {
        assert_eq!(errors_of(&package("rnic-surprise", &[])).len(), 1);
    }
}
