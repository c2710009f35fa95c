//! Collects samples of all rounds by subject, size and contender.

use super::case::{Place, Sample, Subject};
use super::stats;
use crate::apt::{self, Need};
use std::collections::BTreeMap;

/// What one block of the table is about: place, subject, message size.
pub(super) type Block = (Place, Subject, u64);

/// Everything that was measured, and what was not.
#[derive(Debug, Default)]
pub(super) struct Results {
    samples: BTreeMap<Block, BTreeMap<String, Vec<Sample>>>,
    /// What failed, with the last reason.
    pub(super) failures: BTreeMap<String, String>,
    /// Contenders that are not installed, with the command that brings them.
    pub(super) missing: BTreeMap<String, String>,
}

/// One contender's figures for one subject and size.
#[derive(Debug, serde::Serialize)]
pub(super) struct Figure {
    pub(super) contender: String,
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) greatest: f64,
    /// How many times better the best contender of ours is; above 1 we lead. `None` for our own rows.
    pub(super) our_ratio: Option<f64>,
    pub(super) cpu_s_per_gb: Option<f64>,
    pub(super) rounds: usize,
}

impl Results {
    /// Takes one sample in.
    pub(super) fn add(&mut self, sample: Sample) {
        let block = self.samples.entry((sample.place, sample.subject, sample.size)).or_default();
        block.entry(sample.contender.clone()).or_default().push(sample);
    }

    /// Notes that a case failed; the other rounds still count.
    pub(super) fn failed(&mut self, name: &str, why: &str) {
        eprintln!("  {name}: {why}");
        self.failures.insert(name.into(), why.into());
    }

    /// Notes that a contender is not installed.
    pub(super) fn missing(&mut self, contender: &str, tool: Need) {
        let remedy = if tool.package.is_empty() {
            format!("`{}` is in no Debian package: build fabtests and put it on the PATH", tool.program)
        } else {
            apt::install_line(&[tool.package])
        };
        self.missing.insert(contender.into(), remedy);
    }

    /// The blocks of the table, each with its figures, best first.
    pub(super) fn blocks(&self) -> Vec<(Block, Vec<Figure>)> {
        self.samples.iter().map(|(block, by)| (*block, figures(block.1, by))).collect()
    }
}

fn figures(subject: Subject, by: &BTreeMap<String, Vec<Sample>>) -> Vec<Figure> {
    let mut figures: Vec<Figure> = by
        .iter()
        .filter_map(|(contender, samples)| {
            let values: Vec<f64> = samples.iter().map(|s| s.value).collect();
            let cpu: Vec<f64> = samples.iter().filter_map(|s| s.cpu_s_per_gb).collect();
            let (median, least, greatest) = stats::spread(&values)?;
            let cpu_s_per_gb = stats::spread(&cpu).map(|s| s.0);
            let contender = contender.clone();
            Some(Figure {
                contender,
                median,
                least,
                greatest,
                our_ratio: None,
                cpu_s_per_gb,
                rounds: values.len(),
            })
        })
        .collect();
    figures.sort_by(|a, b| a.median.total_cmp(&b.median));
    if !subject.smaller_is_better() {
        figures.reverse();
    }
    let ours = figures.iter().find(|f| is_ours(&f.contender)).map(|f| f.median);
    for figure in figures.iter_mut().filter(|f| !is_ours(&f.contender)) {
        figure.our_ratio =
            ours.map(|o| if subject.smaller_is_better() { figure.median / o } else { o / figure.median });
    }
    figures
}

/// Whether a contender is this project's.
fn is_ours(contender: &str) -> bool {
    contender.starts_with("rnic")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(subject: Subject, contender: &str, value: f64) -> Sample {
        Sample {
            place: Place::Host,
            subject,
            size: 64,
            contender: contender.into(),
            value,
            cpu_s_per_gb: None,
        }
    }

    fn block(subject: Subject, samples: &[(&str, f64)]) -> Vec<Figure> {
        let mut r = Results::default();
        samples.iter().for_each(|(c, v)| r.add(sample(subject, c, *v)));
        r.blocks().remove(0).1
    }

    #[test]
    fn ratios_above_one_mean_that_we_lead() {
        let f =
            block(Subject::SendBandwidth, &[("rnic", 40.0), ("ucx", 20.0), ("rnic", 42.0), ("rnic", 44.0)]);
        assert_eq!((f[0].contender.as_str(), f[0].median, f[0].our_ratio), ("rnic", 42.0, None));
        assert_eq!(f[1].our_ratio, Some(2.1));
        let f = block(Subject::SendLatency, &[("rnic", 5.0), ("ucx", 6.0), ("tcp", 4.0)]);
        assert_eq!(f.iter().map(|f| f.contender.as_str()).collect::<Vec<_>>(), ["tcp", "rnic", "ucx"]);
        assert_eq!((f[0].our_ratio, f[2].our_ratio), (Some(0.8), Some(1.2)));
    }

    #[test]
    fn without_our_own_figure_there_is_no_ratio() {
        assert_eq!(block(Subject::SendLatency, &[("ucx", 6.0)])[0].our_ratio, None);
    }
}
