//! Random accesses against a plain array and arithmetic without limits.

use iwarp::TaggedFault;
use proptest::prelude::*;

use super::*;

/// The rule in words of 128-bit arithmetic. RFC 5041 §7.1.
fn expected(iova: u64, size: u64, to: u64, len: u64) -> Result<u64, TaggedFault> {
    let (iova, to) = (u128::from(iova), u128::from(to));
    let (end, room) = (to + u128::from(len), iova + u128::from(size));
    if end > 1 << 64 {
        return Err(TaggedFault::Wrap);
    }
    if to < iova || end > room {
        return Err(TaggedFault::Bounds);
    }
    Ok((to - iova) as u64)
}

/// Values near the edges that matter.
fn edges(iova: u64, size: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        (-3i64..200).prop_map(move |d| iova.wrapping_add_signed(d)),
        (-3i64..3).prop_map(move |d| iova.wrapping_add(size).wrapping_add_signed(d)),
        (0u64..4).prop_map(|d| u64::MAX - d),
        any::<u64>(),
    ]
}

fn case() -> impl Strategy<Value = (u64, u64, u64, u64)> {
    let iova = prop_oneof![
        Just(0u64),
        0u64..10_000,
        (160u64..200).prop_map(|d| u64::MAX - d),
        any::<u64>().prop_map(|v| v.min(u64::MAX - 160)),
    ];
    (iova, 0u64..160).prop_flat_map(|(iova, size)| {
        (Just(iova), Just(size), edges(iova, size), prop_oneof![0u64..180, any::<u64>()])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn checks_agree_with_the_model((iova, size, to, len) in case()) {
        let table = table();
        let region = region_at(&table, size as usize, Access::REMOTE_READ, Some(iova));
        let got = table.check(region.stag(), to, len, Access::REMOTE_READ, WHO);
        match expected(iova, size, to, len) {
            Ok(offset) => {
                let grant = got.unwrap();
                prop_assert_eq!(grant.len() as u64, len);
                if size != 0 {
                    let base = table.check(region.stag(), iova, 0, Access::empty(), WHO).unwrap().as_ptr();
                    prop_assert_eq!(grant.as_ptr().addr() - base.addr(), offset as usize);
                }
            }
            Err(fault) => prop_assert_eq!(got.map(drop), Err(fault)),
        }
    }

    #[test]
    fn writes_agree_with_the_model(
        writes in prop::collection::vec((any::<bool>(), 0u64..300, prop::collection::vec(any::<u8>(), 0..80)), 1..30),
    ) {
        let table = table();
        let region = region_at(&table, 256, ALL, Some(0x4000));
        let mut model = vec![0u8; 256];
        for (remote, at, bytes) in writes {
            let fits = at as usize + bytes.len() <= 256;
            let ok = if remote {
                table.place(region.stag(), 0x4000 + at, &bytes, WHO).is_ok()
            } else {
                match table.local(region.lkey(), 0x4000 + at, bytes.len() as u32, true, PD) {
                    Ok(segment) => {
                        segment.enter().unwrap().copy_in(0, &bytes);
                        true
                    }
                    Err(_) => false,
                }
            };
            prop_assert_eq!(ok, fits);
            if fits {
                model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            }
        }
        prop_assert_eq!(content(&region), model);
    }
}
