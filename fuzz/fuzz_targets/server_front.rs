#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_fuzz::server_front::run(data));
