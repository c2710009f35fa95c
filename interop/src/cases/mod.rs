//! The cases.

use crate::case::Case;

mod capture;
mod lab;
mod peer;
mod ping;
mod verbs;

/// All cases, or those whose names contain `filter`.
pub fn matching(filter: Option<&str>) -> Vec<Case> {
    let mut cases = lab::cases();
    cases.extend(capture::cases());
    cases.extend(ping::cases());
    cases.extend(verbs::cases());
    cases.retain(|c| filter.is_none_or(|f| c.name.contains(f)));
    cases
}
