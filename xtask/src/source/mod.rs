//! Rust source as the checks see it: code without comments and literals, the comments, and the items.
//!
//! A full parser would be a large dependency for what is asked here: where functions begin and end,
//! what is test code, and what a comment stands next to.

mod items;
mod lexer;

pub(crate) use items::{Item, Kind};
pub(crate) use lexer::Comment;

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// One source file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the workspace root.
    pub(crate) path: String,
    /// The text with comments and the insides of literals blanked out; lines stay where they are.
    pub(crate) code: String,
    /// Comments in order.
    pub(crate) comments: Vec<Comment>,
    /// Items in order of their keyword, outer before inner.
    pub(crate) items: Vec<Item>,
    /// Whether the whole file is test code.
    pub(crate) is_test_file: bool,
}

impl Source {
    /// Reads and scans a file below the workspace root.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self::parse(&crate::workspace::relative(path), &text))
    }

    /// Scans `text` as the file `path` (relative to the workspace root).
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let (code, comments) = lexer::split(text);
        let items = items::find(&code);
        let is_test_file =
            path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "benches")
                || path.starts_with("crates/testkit/");
        Self { path: path.into(), code, comments, items, is_test_file }
    }

    /// The innermost item whose body holds `line` (counted from 1).
    fn enclosing(&self, line: usize) -> Option<&Item> {
        self.items.iter().rev().find(|i| i.body <= line && line <= i.end && i.line <= line)
    }

    /// What a comment on `line` speaks of: the function or type around it, else the item that follows it.
    pub(crate) fn owner(&self, line: usize) -> Option<&Item> {
        let around = self.enclosing(line);
        match around {
            Some(item) if !item.kind.holds_items() => Some(item),
            _ => {
                let end = around.map_or(usize::MAX, |i| i.end);
                self.items.iter().find(|i| i.line >= line && i.end <= end).or(around)
            }
        }
    }

    /// Whether code on `line` exists only in test builds.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.is_test_file || self.items.iter().any(|i| i.is_test && i.start <= line && line <= i.end)
    }

    /// Lines that hold code, without blank, comment and test lines.
    pub(crate) fn product_lines(&self) -> usize {
        if self.is_test_file {
            return 0;
        }
        self.code_lines().filter(|&n| !self.is_test(n)).count()
    }

    /// The numbers (from 1) of lines that hold any code.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = usize> + '_ {
        self.code.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()).map(|(i, _)| i + 1)
    }

    /// Lines on which `word` stands as a word of its own in code.
    pub(crate) fn lines_with_word<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let is_ident = |c: char| c.is_alphanumeric() || c == '_';
        self.code
            .lines()
            .enumerate()
            .filter_map(move |(i, l)| l.split(|c: char| !is_ident(c)).any(|w| w == word).then_some(i + 1))
    }
}

/// All `.rs` files below `folder` (relative to the root), in order of their paths; build output is left out.
pub(crate) fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![crate::workspace::root().join(folder)];
    while let Some(dir) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"//! Head.

/// Before the type.
pub struct Deframer;

impl Deframer {
    // before take
    pub fn take(&mut self) -> u32 {
        // inside take
        let s = "fn not_a_function() {";
        s.len() as u32
    }
}

pub enum Fault {
    // about a variant
    Crc,
}

#[cfg(test)]
mod tests {
    // before the test
    #[test]
    fn holds() {
        assert!(true); // inside the test
    }
}
"#;

    fn owner(line_of: &str) -> String {
        let s = Source::parse("crates/iwarp/src/x.rs", SAMPLE);
        let line = SAMPLE.lines().position(|l| l.contains(line_of)).unwrap() + 1;
        s.owner(line).map(|i| i.name.clone()).unwrap_or_default()
    }

    #[test]
    fn a_comment_belongs_to_what_holds_it_or_to_what_follows() {
        assert_eq!(owner("Before the type"), "Deframer");
        assert_eq!(owner("before take"), "Deframer::take");
        assert_eq!(owner("inside take"), "Deframer::take");
        assert_eq!(owner("about a variant"), "Fault");
        assert_eq!(owner("before the test"), "holds");
        assert_eq!(owner("inside the test"), "holds");
    }

    #[test]
    fn test_code_is_told_from_product_code() {
        let s = Source::parse("crates/iwarp/src/x.rs", SAMPLE);
        let line = |t: &str| SAMPLE.lines().position(|l| l.contains(t)).unwrap() + 1;
        assert!(s.is_test(line("assert!")) && s.is_test(line("mod tests")) && s.is_test(line("cfg(test)")));
        assert!(!s.is_test(line("pub enum")));
        // struct 1, impl 2, fn 4, enum 3
        assert_eq!(s.product_lines(), 10);
        assert_eq!(Source::parse("crates/iwarp/tests/x.rs", SAMPLE).product_lines(), 0);
    }

    #[test]
    fn words_are_found_in_code_only() {
        let s = Source::parse("x.rs", "// unsafe\nlet a = \"unsafe\";\nunsafe { not_unsafe() }\n");
        assert_eq!(s.lines_with_word("unsafe").collect::<Vec<_>>(), [3]);
    }
}
