//! Test support for the workspace.
