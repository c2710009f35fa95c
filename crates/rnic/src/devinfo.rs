//! `rnic devinfo`
use serde_json::{Map, Value};

use crate::cli::DevinfoArgs;
use crate::error::Result;
use crate::fabric;
use crate::perf::progress::say;

/// Prints the device's attributes.
pub(crate) fn run(args: &DevinfoArgs) -> Result<()> {
    let attr = fabric::open()?.attr();
    // (name, value, shown without -v)
    let rows: [(&str, Value, bool); 21] = [
        ("name", attr.name.into(), true),
        ("transport", "iWARP over TCP, in user space".into(), true),
        ("version", attr.version.into(), true),
        ("mpa_revisions", "1, 2".into(), true),
        ("max_qp", attr.max_qp.into(), true),
        ("max_qp_wr", attr.max_qp_wr.into(), true),
        ("max_sge", attr.max_sge.into(), true),
        ("max_inline", attr.max_inline.into(), true),
        ("max_cq", attr.max_cq.into(), false),
        ("max_cqe", attr.max_cqe.into(), true),
        ("max_mr", attr.max_mr.into(), true),
        ("max_mr_size", attr.max_mr_size.into(), true),
        ("max_mw", attr.max_mw.into(), false),
        ("max_pd", attr.max_pd.into(), false),
        ("max_srq", attr.max_srq.into(), false),
        ("max_srq_wr", attr.max_srq_wr.into(), false),
        ("max_ord", attr.max_ord.into(), true),
        ("max_ird", attr.max_ird.into(), true),
        ("max_msg", attr.max_msg.into(), true),
        ("max_private_data", attr.max_private_data.into(), false),
        ("memlock_needed", false.into(), false),
    ];
    if args.json {
        let object: Map<String, Value> =
            rows.into_iter().map(|(name, value, _)| (name.to_owned(), value)).collect();
        return say(&Value::Object(object).to_string());
    }
    for (name, value, always) in rows {
        if always || args.verbose {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            say(&format!("{name:<18} {value}"))?;
        }
    }
    Ok(())
}
