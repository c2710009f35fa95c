//! Random work in both directions at once against a reference model: order, completeness, content.

use proptest::prelude::*;
use rnic_testkit::model::Model;
use rnic_testkit::pair::{Config, End, Pair};
use rnic_testkit::pipe::Chunking;
use rnic_testkit::seed::Seed;

fn config() -> impl Strategy<Value = Config> {
    let chunking = prop_oneof![
        Just(Chunking::Whole),
        (1usize..40).prop_map(Chunking::Fixed),
        (1usize..9000).prop_map(Chunking::Random),
    ];
    let wire = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 80usize..9000, chunking);
    let depths = (1u16..6, 200usize..70_000, 0u64..20, any::<u64>(), any::<bool>());
    (wire, depths).prop_map(
        |((crc, to_i, to_r, direct, mulpdu, chunking), (depth, capacity, latency, seed, extensions))| {
            Config {
                crc,
                markers_to_initiator: to_i,
                markers_to_responder: to_r,
                mulpdu,
                depth,
                extensions,
                chunking,
                capacity,
                latency,
                direct,
                seed,
                ..Config::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_directions_do_what_the_model_does(config in config(), count in 1usize..60) {
        let mut seed = Seed::new(config.seed ^ 0x5eed);
        let mut pair = Pair::new(&config);
        let mut models = Vec::new();
        for initiator in [true, false] {
            let model = Model::new(&mut seed, 12_000, config.extensions);
            model.register_requester(pair.host(initiator));
            model.register_target(pair.host(!initiator));
            models.push((initiator, model));
        }
        for (initiator, model) in &mut models {
            for _ in 0..count {
                let work = model.draw(&mut seed);
                pair.end(*initiator).post(work);
            }
            // The responder waits for the initiator's first FPDU, so there must be one.
            for _ in 0..model.receives() {
                pair.host(!*initiator).post_receive(12_000);
            }
        }
        prop_assert_eq!(pair.run(), End::Idle, "faults {:?}", pair.faults());
        for (initiator, model) in &models {
            model.check_target(&pair.end(!*initiator).host);
            model.check_requester(&pair.end(*initiator).host);
            let mut done: Vec<u64> = pair.end(*initiator).done().iter().map(|d| d.index).collect();
            done.sort_unstable();
            prop_assert_eq!(done, (0..count as u64).collect::<Vec<_>>());
        }
    }
}
