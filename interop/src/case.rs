//! What a case is.

use crate::{
    guest::{Guest, Net, Siw},
    need::Need,
    scratch::Scratch,
};
use anyhow::Result;
use std::{fmt, time::Duration};

/// Longest that one step of a case may take: emulated CPUs on a shared machine are slow at times.
pub const STEP: Duration = Duration::from_secs(30);

/// What a case works with.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The guest that it asked for, siw's parameters set as it asked.
    pub guest: &'a Guest,
    /// A directory that goes after the case.
    pub scratch: Scratch,
}

type HostBody = Box<dyn Fn(&Scratch) -> Result<()>>;
type GuestBody = Box<dyn Fn(&Bench<'_>) -> Result<()>>;

/// What a case does; an error is a failure.
pub enum Body {
    /// On this machine alone, with a directory that goes afterwards.
    Host(HostBody),
    /// With a guest.
    Guest(GuestBody),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host(_) => "Host",
            Self::Guest(_) => "Guest",
        })
    }
}

/// One interop case.
#[derive(Debug)]
pub struct Case {
    /// Path-like and unique: `area/what`.
    pub name: String,
    /// The guest's network.
    pub net: Net,
    /// The guest's siw.
    pub siw: Siw,
    /// siw's parameters, `name=value`, for [`Siw::Repaired`].
    pub params: Vec<&'static str>,
    /// What it needs of this machine.
    pub needs: Vec<Need>,
    /// The case itself.
    pub body: Body,
}

impl Case {
    /// A case in a guest with the repaired siw at its default parameters.
    pub fn new(name: impl Into<String>, body: impl Fn(&Bench<'_>) -> Result<()> + 'static) -> Self {
        Self {
            name: name.into(),
            net: Net::User,
            siw: Siw::Repaired,
            params: Vec::new(),
            needs: vec![Need::Guest],
            body: Body::Guest(Box::new(body)),
        }
    }

    /// A case on this machine alone.
    pub fn host(name: impl Into<String>, body: impl Fn(&Scratch) -> Result<()> + 'static) -> Self {
        let guest = Self::new(name, |_| Ok(()));
        Self { needs: Vec::new(), body: Body::Host(Box::new(body)), ..guest }
    }

    /// With these parameters of siw.
    #[must_use]
    pub fn params(mut self, params: &[&'static str]) -> Self {
        self.params = params.to_vec();
        self
    }

    /// In a guest with the stock siw.
    #[must_use]
    pub fn stock(mut self) -> Self {
        self.siw = Siw::Stock;
        self
    }

    /// In a guest on a tap.
    #[must_use]
    pub fn tap(mut self) -> Self {
        self.net = Net::Tap;
        self.needs(&[Need::Tap])
    }

    /// Needs this, too.
    #[must_use]
    pub fn needs(mut self, needs: &[Need]) -> Self {
        self.needs.extend(needs);
        self
    }
}
