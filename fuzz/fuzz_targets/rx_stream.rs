#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rnic_testkit::fuzzing::rx_stream(data));
