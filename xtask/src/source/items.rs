//! Finds items in code that [`super::lexer`] has cleaned: their kind, name, extent, and whether they are test code.

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `fn`
    Fn,
    /// `struct`, `enum`, `union`
    Type,
    /// `impl`
    Impl,
    /// `trait`
    Trait,
    /// `mod`
    Mod,
    /// `const`, `static`, `type`, `extern crate`, `macro_rules!`
    Other,
}

impl Kind {
    /// Whether other items live directly inside.
    pub(crate) fn holds_items(self) -> bool {
        matches!(self, Self::Impl | Self::Trait | Self::Mod)
    }
}

/// One item.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its name; a method's is `Type::method`.
    pub(crate) name: String,
    /// Line (from 1) of its first attribute, or of its keyword.
    pub(crate) start: usize,
    /// Line of its keyword.
    pub(crate) line: usize,
    /// Line of its opening brace, or of its end where it has none.
    pub(crate) body: usize,
    /// Line of its closing brace or semicolon.
    pub(crate) end: usize,
    /// Marked `#[test]` or `#[cfg(test)]`, or inside something that is.
    pub(crate) is_test: bool,
}

/// A word or a single other character.
#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let len = if word > 0 { word } else { c.len_utf8() };
            if !c.is_whitespace() {
                found.push(Token { text: &rest[..len], line: i + 1 });
            }
            rest = &rest[len..];
        }
    }
    found
}

/// The items of `code`, outer before inner.
pub(super) fn find(code: &str) -> Vec<Item> {
    let mut f = Finder { tokens: tokens(code), at: 0, items: Vec::new() };
    let end = f.tokens.len();
    f.scan(end, "", false);
    f.items
}

struct Finder<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    items: Vec<Item>,
}

impl<'a> Finder<'a> {
    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |t| t.text)
    }

    /// Collects items up to token `end`; `owner` prefixes method names.
    fn scan(&mut self, end: usize, owner: &str, in_test: bool) {
        let mut start = None;
        let mut test_attribute = false;
        while self.at < end {
            let token = self.tokens[self.at];
            if token.text == "#" {
                start.get_or_insert(token.line);
                test_attribute |= self.attribute();
            } else if let Some((kind, name)) = self.item_head(owner) {
                let is_test = in_test || test_attribute;
                self.item(kind, name, start.unwrap_or(token.line), is_test, end);
                (start, test_attribute) = (None, false);
            } else {
                // Anything that is no visibility or qualifier ends the reach of the attributes before it.
                if matches!(token.text, ";" | "{" | "}" | ",") {
                    (start, test_attribute) = (None, false);
                }
                self.at += 1;
            }
        }
    }

    /// Skips `#[…]` or `#![…]`; whether it makes the next item test code.
    fn attribute(&mut self) -> bool {
        let open = self.at + 1 + usize::from(self.text(self.at + 1) == "!");
        if self.text(open) != "[" {
            self.at += 1;
            return false;
        }
        let close = self.matching(open);
        let inner = self.text(open + 1) != "!" && open == self.at + 1;
        let words: Vec<_> = (open + 1..close).map(|i| self.text(i)).collect();
        self.at = close + 1;
        let cfg_test = words.first() == Some(&"cfg") && words.contains(&"test") && !words.contains(&"not");
        inner && (cfg_test || words.last() == Some(&"test"))
    }

    /// The token that closes the bracket at `open`.
    fn matching(&self, open: usize) -> usize {
        let mut depth = 0usize;
        for at in open..self.tokens.len() {
            match self.text(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return at;
                    }
                }
                _ => {}
            }
        }
        self.tokens.len().saturating_sub(1)
    }

    /// Kind and name where an item's keyword stands here.
    fn item_head(&self, owner: &str) -> Option<(Kind, String)> {
        let name = self.text(self.at + 1);
        let named = name.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
        let before = if self.at == 0 { "" } else { self.text(self.at - 1) };
        let starts = matches!(before, "" | "{" | "}" | ";" | "]" | ")" | "pub" | "unsafe");
        match self.text(self.at) {
            "fn" if named => {
                let name = if owner.is_empty() { name.into() } else { format!("{owner}::{name}") };
                Some((Kind::Fn, name))
            }
            "struct" | "enum" | "union" if named && starts => Some((Kind::Type, name.into())),
            "trait" if named && starts => Some((Kind::Trait, name.into())),
            "mod" if named && starts => Some((Kind::Mod, name.into())),
            "impl" if starts => Some((Kind::Impl, self.impl_name())),
            "const" | "static" if named && starts && self.text(self.at + 2) == ":" => {
                Some((Kind::Other, name.into()))
            }
            "type" if named && starts => Some((Kind::Other, name.into())),
            "extern" if name == "crate" => Some((Kind::Other, self.text(self.at + 2).into())),
            "macro_rules" => Some((Kind::Other, self.text(self.at + 2).into())),
            _ => None,
        }
    }

    /// The type that an `impl` at the present token is for.
    fn impl_name(&self) -> String {
        let (mut depth, mut name) = (0i32, "");
        for at in self.at + 1..self.tokens.len() {
            match self.text(at) {
                "{" | "where" => break,
                "<" => depth += 1,
                // not the arrow of `Fn() -> T`
                ">" if self.text(at - 1) != "-" => depth -= 1,
                "for" if depth == 0 => name = "",
                word if depth == 0 && word.starts_with(|c: char| c.is_alphabetic()) => name = word,
                _ => {}
            }
        }
        name.into()
    }

    /// Records the item at the present token and scans its inside.
    fn item(&mut self, kind: Kind, name: String, start: usize, is_test: bool, end: usize) {
        let line = self.tokens[self.at].line;
        let value = kind == Kind::Other;
        let mut at = self.at + 1;
        // To the body's brace or the semicolon; brackets in between (arguments, array types) are skipped whole.
        while at < end {
            match self.text(at) {
                ";" => break,
                "{" if !value || self.text(self.at) == "macro_rules" => break,
                "(" | "[" | "{" => at = self.matching(at),
                _ => {}
            }
            at += 1;
        }
        let at = at.min(end.saturating_sub(1));
        let has_body = self.text(at) == "{";
        let close = if has_body { self.matching(at) } else { at };
        let (body, last) = (self.tokens[at].line, self.tokens[close].line);
        let owner = if matches!(kind, Kind::Impl | Kind::Trait) { name.clone() } else { String::new() };
        self.items.push(Item { kind, name, start, line, body, end: last, is_test });
        self.at = at + 1;
        if has_body && kind != Kind::Other {
            self.scan(close, &owner, is_test);
        }
        self.at = close + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str) -> Vec<(Kind, String)> {
        find(code).into_iter().map(|i| (i.kind, i.name)).collect()
    }

    #[test]
    fn methods_carry_their_type() {
        let code = "impl<'a, F: Fn(u8) -> u8> fmt::Display for Wire<'a, F> where F: X {\n fn fmt(&self) {}\n}\nfn free() {}";
        let found = names(code);
        assert_eq!(found[0], (Kind::Impl, "Wire".into()));
        assert_eq!(found[1], (Kind::Fn, "Wire::fmt".into()));
        assert_eq!(found[2], (Kind::Fn, "free".into()));
    }

    #[test]
    fn what_only_looks_like_an_item_is_none() {
        let code =
            "fn f<const N: usize>(a: *const u8, g: fn(u8), h: impl Fn()) -> [u8; 4] { let type_ = 1; }";
        assert_eq!(names(code), [(Kind::Fn, "f".into())]);
    }

    #[test]
    fn extents_span_signature_and_body() {
        let items = find(
            "#[inline]\npub fn f(\n a: [u8; 4],\n)\n{\n  x();\n}\nconst A: S = S {\n a: 1 };\nstruct T(u8);\n",
        );
        let f = &items[0];
        assert_eq!((f.start, f.line, f.body, f.end), (1, 2, 5, 7));
        assert_eq!((items[1].line, items[1].end, items[1].name.as_str()), (8, 9, "A"));
        assert_eq!((items[2].line, items[2].end), (10, 10));
    }

    #[test]
    fn test_attributes_reach_inwards_and_no_further() {
        let items = find(
            "#[cfg(test)]\nmod tests {\n fn helper() {}\n}\nfn product() {}\n#[cfg(not(test))]\nfn real() {}\n#[test]\nfn t() {}",
        );
        let flags: Vec<_> = items.iter().map(|i| (i.name.as_str(), i.is_test)).collect();
        assert_eq!(
            flags,
            [("tests", true), ("helper", true), ("product", false), ("real", false), ("t", true)]
        );
    }
}
