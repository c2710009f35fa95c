//! Outside crates are few, each with its reason: one list, in the root manifest, one comment a crate.

use super::{Findings, Tree};
use anyhow::Result;
use std::fs;

pub(super) fn check(_: &Tree) -> Result<Findings> {
    let root = crate::workspace::root();
    let mut errors = without_reason(&fs::read_to_string(root.join("Cargo.toml"))?);
    for folder in
        ["crates/iwarp", "crates/verbs", "crates/rnic", "crates/testkit", "interop", "examples", "xtask"]
    {
        let path = format!("{folder}/Cargo.toml");
        if let Ok(manifest) = fs::read_to_string(root.join(&path)) {
            errors.extend(
                outside_the_list(&manifest)
                    .into_iter()
                    .map(|name| format!("{path}: `{name}` must come from [workspace.dependencies]")),
            );
        }
    }
    Ok(Findings { errors, notes: Vec::new() })
}

/// The lines of one manifest table, with their comments.
fn section<'a>(manifest: &'a str, wanted: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = &'a str> {
    let mut inside = false;
    manifest.lines().filter(move |line| {
        if line.starts_with('[') {
            inside = wanted(line.trim());
            return false;
        }
        inside && !line.trim().is_empty()
    })
}

/// Crates of `[workspace.dependencies]` without `# name: reason` above them.
fn without_reason(manifest: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut comment = "";
    for line in section(manifest, |s| s == "[workspace.dependencies]") {
        if let Some(text) = line.strip_prefix('#') {
            comment = text.trim();
            continue;
        }
        // A continuation of a value over several lines has no `=` at its head.
        let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with([' ', ']', '}'])) else {
            continue;
        };
        let name = name.trim();
        let reason = comment.strip_prefix(name).and_then(|r| r.strip_prefix(':')).map_or("", str::trim);
        if !value.contains("path =") && reason.is_empty() {
            errors.push(format!("Cargo.toml: `{name}` has no line `# {name}: why` above it"));
        }
        comment = "";
    }
    errors
}

/// Dependencies of a member that do not refer to the workspace's list.
fn outside_the_list(manifest: &str) -> Vec<String> {
    section(manifest, |s| s.ends_with("dependencies]"))
        .filter(|l| !l.starts_with(['#', ' ', ']', '}']))
        .filter(|l| !l.contains("workspace = true"))
        .filter_map(|l| l.split_once('=').map(|(name, _)| name.trim().to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outside_crate_says_why() {
        let manifest = "[workspace.dependencies]\niwarp = { path = \"crates/iwarp\" }\n# libc: raw calls\nlibc = \"0.2\"\nserde = \"1\"\n[profile.dev]\nopt-level = 1\n";
        let errors = without_reason(manifest);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("serde"));
    }

    #[test]
    fn the_reason_names_its_crate() {
        assert_eq!(without_reason("[workspace.dependencies]\n# libc: calls\nserde = \"1\"\n").len(), 1);
        assert_eq!(without_reason("[workspace.dependencies]\n# libc:\nlibc = \"1\"\n").len(), 1);
    }

    #[test]
    fn members_refer_to_the_list() {
        let manifest = "[dependencies]\n# note\nlibc.workspace = true\nserde = { workspace = true }\nfoo = \"1\"\n[dev-dependencies]\nbar = \"2\"\n[lints]\nworkspace = true\n";
        assert_eq!(outside_the_list(manifest), ["foo", "bar"]);
    }
}
