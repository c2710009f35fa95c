//! Splits Rust text into code and comments, so that neither a brace in a string nor a keyword in a comment misleads a check.

/// One line of a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comment {
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// The text with its slashes or stars.
    pub(crate) text: String,
}

/// Code with comments and the insides of literals replaced by blanks (newlines stay), and the comments.
pub(super) fn split(text: &str) -> (String, Vec<Comment>) {
    let mut s =
        Splitter { rest: text, code: String::with_capacity(text.len()), comments: Vec::new(), line: 1 };
    while !s.rest.is_empty() {
        s.step();
    }
    (s.code, s.comments)
}

struct Splitter<'a> {
    rest: &'a str,
    code: String,
    comments: Vec<Comment>,
    line: usize,
}

impl Splitter<'_> {
    fn step(&mut self) {
        let after_ident = self.code.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        if self.rest.starts_with("//") {
            self.comment(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.comment(block_comment_len(self.rest));
        } else if let Some(len) = (!after_ident).then(|| raw_string_len(self.rest)).flatten() {
            self.blank(len);
        } else if self.rest.starts_with('"') {
            self.blank(quoted_len(self.rest, '"'));
        } else if let Some(len) = char_literal_len(self.rest) {
            self.blank(len);
        } else {
            let c = self.rest.chars().next().unwrap_or('\n');
            self.line += usize::from(c == '\n');
            self.code.push(c);
            self.rest = &self.rest[c.len_utf8()..];
        }
    }

    fn comment(&mut self, len: usize) {
        for (i, line) in self.rest[..len].lines().enumerate() {
            self.comments.push(Comment { line: self.line + i, text: line.into() });
        }
        self.blank(len);
    }

    fn blank(&mut self, len: usize) {
        let (gone, rest) = self.rest.split_at(len);
        let start = self.code.len();
        self.code.extend(gone.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        // A literal leaves its quotes, so that code on its line still counts as code.
        if !gone.starts_with('/') && self.code.as_bytes()[start] == b' ' {
            self.code.replace_range(start..=start, "\"");
        }
        self.line += gone.matches('\n').count();
        self.rest = rest;
    }
}

fn block_comment_len(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0usize);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

/// Length of a raw string (`r"…"`, `br#"…"#`, `cr"…"`) at the start of `text`.
fn raw_string_len(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"].into_iter().find(|p| text.starts_with(p))?;
    let hashes = text[prefix.len()..].bytes().take_while(|&b| b == b'#').count();
    let open = prefix.len() + hashes + 1;
    if text.as_bytes().get(open - 1) != Some(&b'"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    Some(text[open..].find(&close).map_or(text.len(), |at| open + at + close.len()))
}

/// Length of a literal between `quote`s with backslash escapes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// Length of a character literal; `None` for a lifetime.
fn char_literal_len(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let c = inner.chars().next()?;
    if c == '\\' {
        return Some(quoted_len(text, '\''));
    }
    inner[c.len_utf8()..].starts_with('\'').then_some(c.len_utf8() + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        split(text).0.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_leave_no_trace_in_code() {
        assert_eq!(code("a // { b\nc"), "a c");
        assert_eq!(code("a /* { /* nested */ } */ b"), "a b");
        assert_eq!(code("let s = \"{ \\\" //\"; x"), "let s = \" ; x");
        assert_eq!(code("let s = r#\"{\"\"#; x"), "let s = \" ; x");
        assert_eq!(code("match c { '{' => 1, '\\'' => 2 }"), "match c { \" => 1, \" => 2 }");
    }

    #[test]
    fn lifetimes_are_no_character_literals() {
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
    }

    #[test]
    fn an_identifier_that_ends_in_r_starts_no_raw_string() {
        assert_eq!(code("ptr\"x\" y"), "ptr\" y");
    }

    #[test]
    fn comments_keep_their_line_numbers() {
        let (code, comments) = split("a\n/* x\ny */\n\"s\ns\" // z\n");
        assert_eq!(code.lines().count(), 5);
        let lines: Vec<_> = comments.iter().map(|c| c.line).collect();
        assert_eq!(lines, [2, 3, 5]);
    }
}
