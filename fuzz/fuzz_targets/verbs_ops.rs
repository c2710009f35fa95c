#![no_main]

#[path = "../../crates/verbs/tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::run(data));
