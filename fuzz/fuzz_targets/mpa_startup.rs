#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rnic_testkit::fuzzing::mpa_startup(data));
