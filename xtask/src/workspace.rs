//! The workspace as cargo sees it.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The root folder of the workspace.
pub(crate) fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        // xtask/ lies directly under the root. The environment comes first, so that a moved binary still finds its tree.
        let manifest =
            std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
        let manifest = PathBuf::from(manifest);
        manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf)
    })
}

/// `path` as it is written in reports: relative to the root, with forward slashes.
pub(crate) fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// The members of the workspace, from `cargo metadata --no-deps`.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// Workspace members.
    pub(crate) packages: Vec<Package>,
    /// Where build output goes.
    #[serde(default)]
    pub(crate) target_directory: PathBuf,
}

/// One member.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// Package name.
    pub(crate) name: String,
    /// Declared dependencies of every kind.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One declared dependency.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// Package name.
    pub(crate) name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// Set for path dependencies, that is for members.
    pub(crate) path: Option<PathBuf>,
}

impl Metadata {
    /// Asks cargo; does not resolve or fetch anything.
    pub(crate) fn load() -> Result<Self> {
        let json =
            crate::cmd::output(crate::cmd::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
        serde_json::from_str(&json).context("cargo metadata has changed its format")
    }

    /// Whether a member of this name exists.
    #[cfg(test)]
    fn has(&self, package: &str) -> bool {
        self.packages.iter().any(|p| p.name == package)
    }
}

/// The `rnic` binary of the release profile, whether or not it is built.
pub(crate) fn rnic_binary() -> Result<PathBuf> {
    Ok(Metadata::load()?.target_directory.join("release/rnic"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_knows_this_very_package() {
        let meta = Metadata::load().unwrap();
        assert!(meta.has("xtask") && !meta.has("no-such-member"));
    }

    #[test]
    fn paths_in_reports_are_relative_to_the_root() {
        assert_eq!(relative(&root().join("xtask/src/main.rs")), "xtask/src/main.rs");
    }
}
